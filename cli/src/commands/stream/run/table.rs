//! How streams went, for people.

use datapipes_fabric::placement::Placement;

use super::one::Run;
use crate::arguments::units;
use crate::commands::stream::job::{Job, Target};
use crate::commands::stream::steps::chain::Work;
use crate::outcome::{harmless, shown_path};

pub(in crate::commands::stream) fn run(job: &Job, run: &Run) -> String {
    let mut text = String::new();
    if let Some(choice) = &run.choice {
        text += &choice.to_string();
    }
    text += &format!(
        "{}: {} in {:.3} s ({}), {} channels, {:.3} s of processor time\n",
        run.placement.name(),
        units::bytes(run.sent.bytes),
        run.seconds,
        units::rate(run.sent.bytes, run.seconds),
        run.channels,
        run.cpu_seconds
    );
    for edge in &run.edges {
        let between = harmless(&format!("{} -> {}", edge.from, edge.to), usize::MAX);
        text += &format!("  {between}: {} blocks, {}\n", edge.blocks, units::bytes(edge.bytes));
    }
    let crc = |crc32: u32| format!("CRC-32 {crc32:08x}");
    text += &format!("  sent {}, {}; ", units::bytes(run.sent.bytes), crc(run.sent.crc32));
    let on_disk = |amount: fn(u64) -> String| match run.on_disk {
        Some(sum) => format!("on disk {}, {}", amount(sum.bytes), crc(sum.crc32)),
        None => format!("the sink had {}, {}; the file was not read back", amount(run.due.bytes), crc(run.due.crc32)),
    };
    text += &match (run.verified, &job.to) {
        (Some(true), _) if run.due_from == "replay" => {
            format!(
                "{}: verified, the transforms applied to the origin once more give the same\n",
                on_disk(units::bytes)
            )
        }
        (Some(true), _) => format!("{}: verified, the same as what was sent\n", on_disk(units::bytes)),
        (None, Target::Output) => {
            let against = if run.due_from == "replay" { ", as the transforms applied once more give it" } else { "" };
            format!(
                "written {}, {}{against}; not verified: a stream cannot be read back\n",
                units::bytes(run.due.bytes),
                crc(run.due.crc32)
            )
        }
        (None, Target::File(_)) if run.on_disk.is_none() => format!("{}\n", on_disk(units::bytes)),
        (None, Target::File(_)) => {
            let same = if run.due_from == "program" { "what the program wrote" } else { "what reached the sink" };
            let why = match job.steps.iter().any(|step| matches!(step.work, Work::Program(_))) {
                true => "a program is run only once",
                false => "what was sent can be read only once",
            };
            format!("{}: the same as {same}; the transforms were not verified, for {why}\n", on_disk(units::bytes))
        }
        (Some(false), to) => format!(
            "{}, where {} bytes, {} were due: DIFFERENT{}\n",
            on_disk(|bytes| format!("{bytes} bytes")),
            run.due.bytes,
            crc(run.due.crc32),
            match to {
                Target::File(path) => format!(", {} was not written", shown_path(path)),
                Target::Output => ", and it was written".into(),
            }
        ),
    };
    text
}

/// The placements side by side, compared with the distributed one.
pub(in crate::commands::stream) fn comparison(runs: &[Run]) -> String {
    let mut text = format!(
        "\n{:<26} {:>8} {:>10} {:>12} {:>10} {:>12}\n",
        "placement", "channels", "seconds", "rate", "CPU s", "of the rate"
    );
    let best = runs.iter().find(|r| r.placement == Placement::DistributedResourceSide).map(|r| r.bytes_per_second);
    for run in runs {
        let share = best.map_or(String::new(), |best| format!("{:.2}x", run.bytes_per_second / best));
        text += &format!(
            "{:<26} {:>8} {:>10.3} {:>12} {:>10.3} {:>12}\n",
            run.placement.name(),
            run.channels,
            run.seconds,
            units::rate(run.sent.bytes, run.seconds),
            run.cpu_seconds,
            share
        );
    }
    text
}
