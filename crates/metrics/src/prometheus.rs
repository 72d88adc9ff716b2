//! Samples as Prometheus' text format (version 0.0.4).

use std::fmt::Write as _;

use crate::histogram::Histogram;
use crate::measurement::{Label, Measurement};
use crate::sample::{Sample, SampleValue};

/// The buckets that a histogram is shown with: times below each power of two of nanoseconds, from
/// 2^7 (128 ns) to 2^36 (69 s). They are always the same, for a series that comes and goes is none.
const POWERS: std::ops::RangeInclusive<u32> = 7..=36;

/// Returns samples as text. The samples of a measurement stand together, below its help and type,
/// in the order in which the measurements first appear. Absent ones are remarks: a value of 0 would
/// be a lie.
pub fn prometheus(samples: &[Sample]) -> String {
    text_of(samples, None)
}

/// The same with the label [`Label::Run`] on every sample, which tells the files of several runs of
/// one program apart: a reader of files takes no two series of one name with the same labels.
pub fn prometheus_of_run(samples: &[Sample], run: &str) -> String {
    text_of(samples, Some(run))
}

fn text_of(samples: &[Sample], run: Option<&str>) -> String {
    let mut families: Vec<&'static Measurement> = Vec::new();
    for sample in samples {
        if !families.iter().any(|known| known.name == sample.measurement().name) {
            families.push(sample.measurement());
        }
    }
    let mut text = String::new();
    for family in families {
        let of_it = samples.iter().filter(|sample| sample.measurement().name == family.name);
        write_family(&mut text, family, of_it, run);
    }
    text
}

// Writing to a String cannot fail, hence the discarded results.
fn write_family<'a>(
    text: &mut String,
    family: &Measurement,
    samples: impl Iterator<Item = &'a Sample>,
    run: Option<&str>,
) {
    let name = family.name;
    let mut has_head = false;
    for sample in samples {
        if let SampleValue::Absent(why) = sample.value() {
            let _ = writeln!(text, "# {name}{} is absent: {}", labels(sample, run, None), on_one_line(why));
            continue;
        }
        if !std::mem::replace(&mut has_head, true) {
            let help = family.help.replace('\\', "\\\\").replace('\n', "\\n");
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {}", family.kind.as_str());
        }
        let _ = match sample.value() {
            SampleValue::Integer(value) => writeln!(text, "{name}{} {value}", labels(sample, run, None)),
            SampleValue::Float(value) => writeln!(text, "{name}{} {}", labels(sample, run, None), float(*value)),
            SampleValue::Histogram(times) => {
                write_histogram(text, name, sample, run, times);
                Ok(())
            }
            SampleValue::Absent(_) => Ok(()),
        };
    }
}

fn write_histogram(text: &mut String, name: &str, sample: &Sample, run: Option<&str>, times: &Histogram) {
    let count = times.count();
    for power in POWERS {
        let le = ((1u64 << power) - 1) as f64 / 1e9;
        let labels = labels(sample, run, Some(&float(le)));
        let _ = writeln!(text, "{name}_bucket{labels} {}", times.below_power(power));
    }
    let _ = writeln!(text, "{name}_bucket{} {count}", labels(sample, run, Some("+Inf")));
    let _ = writeln!(text, "{name}_sum{} {}", labels(sample, run, None), float(times.sum_ns() as f64 / 1e9));
    let _ = writeln!(text, "{name}_count{} {count}", labels(sample, run, None));
}

/// The labels of a sample in braces, with the run and the bound of a bucket; nothing where there
/// are none.
fn labels(sample: &Sample, run: Option<&str>, bound: Option<&str>) -> String {
    let own = sample.labels().iter().map(|(label, value)| (Label::as_str(*label), value.as_str()));
    let all: Vec<String> = own
        .chain(run.map(|run| (Label::Run.as_str(), run)))
        .chain(bound.map(|bound| ("le", bound)))
        .map(|(label, value)| format!("{label}=\"{}\"", escaped(value)))
        .collect();
    if all.is_empty() { String::new() } else { format!("{{{}}}", all.join(",")) }
}

/// A label's value, which may hold anything.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// A remark ends with its line. Other control characters are no help either.
fn on_one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn float(value: f64) -> String {
    match value {
        _ if value.is_nan() => "NaN".into(),
        f64::INFINITY => "+Inf".into(),
        f64::NEG_INFINITY => "-Inf".into(),
        _ => value.to_string(),
    }
}
