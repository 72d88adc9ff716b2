//! What Prometheus and JSON see of samples.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use datapipes_metrics::{
    Document, Histogram, Label, MeasurementKind, Recorder, Sample, SampleValue, prometheus, prometheus_of_run,
    vocabulary,
};
use proptest::prelude::*;

#[test]
fn a_family_has_one_head_and_its_samples_together() {
    let of = |outcome: &str, n: u64| Sample::new(&vocabulary::CACHE_READS, n).label(Label::Outcome, outcome);
    let samples = [of("hit", 3), Sample::new(&vocabulary::CACHE_BUDGET, 7u64), of("miss", 4)];
    assert_eq!(
        prometheus(&samples),
        "# HELP datapipes_cache_reads_total Reads of pieces that lie in one page\n\
         # TYPE datapipes_cache_reads_total counter\n\
         datapipes_cache_reads_total{outcome=\"hit\"} 3\n\
         datapipes_cache_reads_total{outcome=\"miss\"} 4\n\
         # HELP datapipes_cache_budget_bytes The memory budget\n\
         # TYPE datapipes_cache_budget_bytes gauge\n\
         datapipes_cache_budget_bytes 7\n"
    );
    assert_eq!(prometheus(&[]), "");
}

#[test]
fn files_of_several_runs_have_no_series_in_common() {
    let times = Recorder::default();
    times.record_ns(100);
    let samples = [
        Sample::new(&vocabulary::CACHE_READS, 3u64).label(Label::Outcome, "hit"),
        Sample::new(&vocabulary::SORT_TIME, 1.5),
        Sample::new(&vocabulary::CACHE_READ_TIME, times.histogram()),
    ];
    let series = |text: &str| -> BTreeSet<String> {
        let values = text.lines().filter(|line| !line.starts_with('#'));
        values.map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect()
    };
    let [one, other] = ["a", "b\"\n"].map(|run| series(&prometheus_of_run(&samples, run)));
    assert!(one.is_disjoint(&other) && one.len() == series(&prometheus(&samples)).len(), "{one:?} {other:?}");
    assert!(one.contains("datapipes_cache_reads_total{outcome=\"hit\",run=\"a\"}"), "{one:?}");
    assert!(one.contains("datapipes_cache_read_seconds_bucket{run=\"a\",le=\"+Inf\"}"), "{one:?}");
    assert!(other.contains("datapipes_sort_seconds{run=\"b\\\"\\n\"}"), "{other:?}");
}

#[test]
fn what_is_absent_is_a_remark_of_one_line() {
    let absent = Sample::new(&vocabulary::DISK_READ, SampleValue::Absent("no\ndisk\r\n7".into()));
    assert_eq!(prometheus(&[absent]), "# datapipes_disk_read_bytes_total is absent: no disk  7\n");
}

#[test]
fn a_histogram_has_cumulative_buckets_and_its_sum() {
    let times = Recorder::default();
    [100, 200, 200, 3_000_000_000, u64::MAX].into_iter().for_each(|ns| times.record_ns(ns));
    let text = prometheus(&[Sample::new(&vocabulary::CACHE_READ_TIME, times.histogram()).label(Label::Outcome, "hit")]);
    let values: Vec<(&str, &str)> =
        text.lines().filter(|line| !line.starts_with('#')).map(|line| line.rsplit_once(' ').unwrap()).collect();
    let buckets: Vec<u64> =
        values.iter().filter(|(name, _)| name.contains("_bucket")).map(|(_, n)| n.parse().unwrap()).collect();
    assert!(buckets.is_sorted());
    assert_eq!((buckets.first(), buckets.last()), (Some(&1), Some(&5)));
    let of = |wanted: &str| values.iter().find(|(name, _)| *name == wanted).map(|(_, value)| *value);
    let bucket = |le: &str| of(&format!("datapipes_cache_read_seconds_bucket{{outcome=\"hit\",le=\"{le}\"}}"));
    assert_eq!(bucket("0.000000127"), Some("1"));
    assert_eq!(bucket("0.000000255"), Some("3"));
    assert_eq!(bucket("4.294967295"), Some("4"), "{text}");
    assert_eq!(bucket("68.719476735"), Some("4"));
    assert_eq!(bucket("+Inf"), Some("5"));
    assert_eq!(of("datapipes_cache_read_seconds_count{outcome=\"hit\"}"), Some("5"));
    assert_eq!(text.matches("# TYPE").count(), 1);
    // Without times there are the same series.
    let none = prometheus(&[Sample::new(&vocabulary::CACHE_READ_TIME, Histogram::default())]);
    assert_eq!(none.lines().count(), text.lines().count());
}

#[test]
fn json_has_labels_values_and_reasons() {
    let times = Recorder::default();
    times.record_ns(1000);
    let samples = [
        Sample::new(&vocabulary::CACHE_READS, 3u64).label(Label::Outcome, "hit"),
        Sample::new(&vocabulary::DISK_READ, SampleValue::Absent("no disk".into())),
        Sample::new(&vocabulary::CACHE_READS, 4u64).label(Label::Outcome, "mi\"ss"),
        Sample::new(&vocabulary::LOG_SYNC_TIME, times.histogram()),
    ];
    let json = serde_json::to_value(Document(&samples)).unwrap();
    assert_eq!(json.as_array().unwrap().len(), 3);
    assert_eq!(json[0]["name"], "datapipes_cache_reads_total");
    assert_eq!((&json[0]["kind"], &json[0]["unit"]), (&"counter".into(), &"count".into()));
    assert_eq!(json[0]["samples"][1]["labels"]["outcome"], "mi\"ss");
    assert_eq!(json[0]["samples"][1]["value"], 4);
    assert_eq!(json[1]["samples"][0]["absent"], "no disk");
    assert_eq!(json[2]["samples"][0]["histogram"]["count"], 1);
    assert_eq!(json[2]["samples"][0]["histogram"]["p99_ns"], 1023);
}

/// Reads a line of samples as Prometheus does: name, labels, value.
fn parsed(line: &str) -> (String, BTreeMap<String, String>, f64) {
    let name: String = line.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
    let mut rest = &line[name.len()..];
    let mut labels = BTreeMap::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            let (label, after) = rest.split_once("=\"").unwrap();
            let (mut value, mut chars) = (String::new(), after.char_indices());
            let end = loop {
                match chars.next().unwrap() {
                    (at, '"') => break at,
                    (_, '\\') => value.push(match chars.next().unwrap().1 {
                        'n' => '\n',
                        other => other,
                    }),
                    (_, other) => value.push(other),
                }
            };
            assert!(labels.insert(label.to_owned(), value).is_none());
            rest = &after[end + 1..];
            match rest.strip_prefix(',') {
                Some(more) => rest = more,
                None => break,
            }
        }
        rest = rest.strip_prefix('}').unwrap();
    }
    let value = rest.strip_prefix(' ').unwrap();
    (name, labels, value.replace("Inf", "inf").parse().unwrap())
}

proptest! {
    #[test]
    fn any_label_and_value_comes_back(device in any::<String>(), class in ".*", value in any::<f64>()) {
        let sample = Sample::new(&vocabulary::DEVICE_MINIMUM_SHARE, value)
            .label(Label::Device, device.clone())
            .label(Label::Class, class.clone());
        let text = prometheus(&[sample]);
        // The format's lines end with a line feed only.
        let lines: Vec<&str> = text.split_terminator('\n').collect();
        prop_assert_eq!(lines.len(), 3);
        let (name, labels, told) = parsed(lines[2]);
        prop_assert_eq!(name, vocabulary::DEVICE_MINIMUM_SHARE.name);
        prop_assert_eq!(labels, BTreeMap::from([("device".to_owned(), device), ("class".to_owned(), class)]));
        prop_assert!(told == value || told.is_nan() && value.is_nan());
    }

    #[test]
    fn a_merged_histogram_is_that_of_all_times(one in prop::collection::vec(any::<u64>(), 0..50), two in prop::collection::vec(any::<u64>(), 0..50)) {
        let of = |times: &[u64]| {
            let recorder = Recorder::default();
            times.iter().for_each(|ns| recorder.record_ns(*ns));
            recorder.histogram()
        };
        let mut merged = of(&one);
        merged.add(&of(&two));
        let mut all = [one, two].concat();
        prop_assert_eq!(&merged, &of(&all));
        all.sort_unstable();
        for percent in [0.0, 50.0, 99.0, 100.0] {
            let rank = ((all.len() as f64 * percent / 100.0).ceil() as usize).clamp(1, all.len().max(1));
            let exact = all.get(rank - 1).copied().unwrap_or(0);
            let told = merged.percentile_ns(percent);
            prop_assert!(told >= exact && (told - exact) as f64 <= exact as f64 / 16.0);
        }
    }
}

#[test]
fn names_follow_the_rules() {
    let mut names = BTreeSet::new();
    for (constant, measurement) in vocabulary::ALL {
        let name = measurement.name;
        assert!(names.insert(name), "{name} is there twice");
        let rest = name.strip_prefix("datapipes_").expect(name);
        assert!(rest.chars().all(|c| c.is_ascii_lowercase() || c == '_') && !rest.contains("__"), "{name}");
        let stem = match measurement.kind {
            MeasurementKind::Counter => name.strip_suffix("_total").unwrap_or_else(|| panic!("{constant}: {name}")),
            _ => name,
        };
        assert!(!stem.ends_with("_total"), "{name}: only counters are totals");
        assert!(stem.ends_with(measurement.unit.suffix()), "{name} does not end with its unit");
        let units = ["_bytes", "_pages", "_seconds", "_ratio", "_bytes_per_second"];
        if measurement.unit.suffix().is_empty() {
            assert!(!units.iter().any(|unit| stem.ends_with(unit)), "{name} has no unit");
        }
        assert!(!["_bucket", "_sum", "_count"].iter().any(|end| name.ends_with(end)), "{name}");
        let help = measurement.help;
        assert!(!help.is_empty() && !help.ends_with('.') && !help.contains(['\n', '|']), "{name}: {help}");
        let labels: BTreeSet<_> = measurement.labels.iter().collect();
        assert_eq!(labels.len(), measurement.labels.len(), "{name}");
    }
    let used: BTreeSet<_> = vocabulary::ALL.iter().flat_map(|(_, m)| m.labels).collect();
    // A run is a label of the whole file.
    let unused: Vec<_> = Label::ALL.iter().filter(|label| !used.contains(label)).collect();
    assert_eq!(unused, [&Label::Run], "a label that no measurement has, or a file's that one has");
    assert!(Label::ALL.iter().all(|label| label.as_str() != "le"), "Prometheus' own");
    let helps = Label::ALL.iter().map(|label| label.help());
    assert!(helps.clone().all(|help| !help.is_empty() && !help.ends_with('.') && !help.contains('|')));
}
