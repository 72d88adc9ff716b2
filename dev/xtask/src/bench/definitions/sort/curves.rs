//! Sorts of text lines over the size of the input and over the memory budget, as charts: a cliff
//! shows where a program changes its way.

use crate::TaskResult;
use crate::bench::contestants::sort_job::SortJob;
use crate::bench::context::{Context, Input};
use crate::bench::measuring::turns;
use crate::bench::measuring::verify::Order;
use crate::bench::records::record::Record;
use datapipes_picture::chart::{Form, Panel, Series};

pub(in crate::bench) const SIZES_ABOUT: &str = "1 MB to 10 GB of text lines in 2 GiB: dpipe, GNU sort, DuckDB";
pub(in crate::bench) const MEMORIES_ABOUT: &str = "1 GB of text lines in 16 MiB to 4 GiB: dpipe, GNU sort, DuckDB";

const MB: u64 = 1_000_000;
const SIZES_MB: [u64; 9] = [1, 3, 10, 30, 100, 300, 1000, 3000, 10_000];
const MEMORIES_MIB: [u64; 5] = [16, 64, 256, 1024, 4096];
/// The curves, as the contestants' names begin.
const CURVES: [&str; 3] = ["dpipe", "GNU sort", "DuckDB"];

/// One place on the axis.
struct Step {
    label: String,
    input: Input,
    budget_bytes: u64,
}

pub(in crate::bench) fn sizes(context: &Context) -> TaskResult<Record> {
    let sizes = SIZES_MB.map(|mb| context.size(mb * MB));
    context.need_free(sizes.iter().sum::<u64>() + sizes.iter().max().unwrap_or(&0) * 3)?;
    let mut steps = Vec::new();
    for (size, mb) in sizes.into_iter().zip(SIZES_MB) {
        let label = if mb < 1000 { format!("{mb} MB") } else { format!("{} GB", mb / 1000) };
        steps.push(Step { label, input: context.generate("lines", size)?, budget_bytes: context.budget(2 << 30) });
    }
    curves(context, &steps, "size of the input, in 2 GiB")
}

pub(in crate::bench) fn memories(context: &Context) -> TaskResult<Record> {
    let bytes = context.size(1000 * MB);
    context.need_free(bytes * 4)?;
    let mut steps = Vec::new();
    for (nth, mib) in MEMORIES_MIB.into_iter().enumerate() {
        // Each has the same bytes. One file would do, but it belongs to its step.
        let input = match nth {
            0 => context.generate("lines", bytes)?,
            _ => steps.first().map(|first: &Step| Input::of_another(&first.input)).ok_or("no first step")?,
        };
        steps.push(Step { label: format!("{mib} MiB"), input, budget_bytes: mib << 20 });
    }
    curves(context, &steps, "memory, for 1 GB")
}

fn curves(context: &Context, steps: &[Step], axis: &str) -> TaskResult<Record> {
    let mut record = context.record();
    let mut contestants = Vec::new();
    for Step { label, input, budget_bytes } in steps {
        let job = SortJob { context, input, label, order: Order::Lines, crlf: false, budget_bytes: *budget_bytes };
        record.inputs.push(job.describe(&format!("text lines ({label})"))?);
        contestants.extend([job.dpipe(&[]), job.gnu(), job.duckdb()]);
    }
    turns::run(context, &contestants, None, &mut record)?;
    for Step { label, .. } in steps {
        for peer in &CURVES[1..] {
            record.compare("wall_s", &format!("{peer}, {label}"), &format!("dpipe, {label}"), None);
        }
    }
    let gigabytes = steps.iter().map(|s| Ok(s.input.bytes()? as f64 / 1e9)).collect::<TaskResult<Vec<f64>>>()?;
    for (figure, what, unit) in [
        ("wall_s", "Time", "seconds"),
        ("wall_s", "Time for a gigabyte", "seconds a GB"),
        ("cpu_s", "Processor time for a gigabyte", "seconds a GB"),
        ("peak_rss_mib", "Largest resident memory", "MiB"),
    ] {
        let divisor = |nth: usize| if unit.ends_with("GB") { gigabytes[nth] } else { 1.0 };
        let series = |(color, name): (usize, &&str)| Series {
            name: (*name).to_owned(),
            color,
            is_published: false,
            values: (steps.iter().enumerate())
                .map(|(nth, s)| Some(record.median(&format!("{name}, {}", s.label), figure)? / divisor(nth)))
                .collect(),
        };
        let panel = Panel {
            title: format!("{what}, over {axis}"),
            unit: unit.to_owned(),
            form: Form::Lines,
            is_logarithmic: true,
            labels: steps.iter().map(|s| s.label.clone()).collect(),
            series: CURVES.iter().enumerate().map(series).collect(),
        };
        record.charts.push(panel);
    }
    Ok(record)
}
