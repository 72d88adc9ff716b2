//! Runs on a disk that is held to a rate, compressed where that pays and not compressed.

use crate::TaskResult;
use crate::bench::context::{Context, Input};
use crate::bench::measuring::turns::{self, Contestant, MakeCommand};
use crate::bench::measuring::verify::Order;
use crate::bench::records::record::{Record, Target};
use crate::slow_disk::{DiskRates, SlowDisk};
use std::path::Path;

pub(in crate::bench) const ABOUT: &str = "1 GB in 256 MiB, runs on a disk held to 200 MB/s: compressed or not";

const RATE: u64 = 200_000_000;
/// The two ways, as `--spill-compression` names them.
const WAYS: [&str; 2] = ["auto", "off"];

pub(in crate::bench) fn run(context: &Context) -> TaskResult<Record> {
    let bytes = context.size(1_000_000_000);
    context.need_free(bytes * 6)?;
    let mut record = context.record();
    let disk =
        SlowDisk::make(&context.options.dir, bytes * 3 / 2 + (64 << 20), DiskRates { reads: RATE, writes: RATE });
    let disk = match disk {
        Ok(disk) => disk,
        // It needs root and controllers, which a machine for builds has not.
        Err(e) => {
            println!("    not measured: no disk can be held to a rate here: {e}");
            record.notes.push(format!("not measured: no disk can be held to a rate here: {e}"));
            return Ok(record);
        }
    };
    record.notes.push(disk.describe());
    let kinds = [("text lines", "lines", Order::Lines), ("records as ASCII", "records-ascii", Order::Lines)];
    let mut inputs = Vec::new();
    for (label, kind, order) in kinds {
        let input = context.generate(kind, bytes)?;
        record.inputs.push(format!("{:.3} GB of {label}", input.bytes()? as f64 / 1e9));
        inputs.push((label, input, order));
    }
    let mut contestants = Vec::new();
    for (label, input, order) in &inputs {
        for way in WAYS {
            contestants.push(contestant(context, &disk, (label, input, *order), way));
        }
    }
    turns::run(context, &contestants, None, &mut record)?;
    for (label, ..) in &inputs {
        let [auto, off] = WAYS.map(|way| name(way, label));
        record.compare("wall_s", &off, &auto, Some(Target::AtLeast(1.5)));
        record.compare("cpu_s", &off, &auto, None);
    }
    Ok(record)
}

fn name(way: &str, label: &str) -> String {
    format!("dpipe --spill-compression={way}, {label}")
}

fn contestant(
    context: &Context,
    disk: &SlowDisk,
    (label, input, order): (&str, &Input, Order),
    way: &'static str,
) -> Contestant {
    let (path, spill) = (input.path.clone(), disk.folder().to_path_buf());
    let budget = format!("{}M", context.budget(256 << 20) >> 20);
    let shell = disk.shell();
    let arguments: Vec<_> = shell.get_args().map(ToOwned::to_owned).collect();
    let command = context.dpipe.clone().map(|dpipe| {
        Box::new(move |output: &Path| {
            let mut command = std::process::Command::new("sh");
            command.args(&arguments).arg(&dpipe).arg("sort").arg("-S").arg(&budget).arg("-T").arg(&spill);
            command.arg(format!("--spill-compression={way}")).env("LC_ALL", "C").arg("-o").arg(output).arg(&path);
            command
        }) as MakeCommand
    });
    Contestant {
        name: name(way, label),
        version: "this commit".into(),
        note: "only the runs are on the slow disk".into(),
        input: input.path.clone(),
        order,
        command,
    }
}
