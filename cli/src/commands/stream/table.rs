//! How streams went, for people.

use datapipes_fabric::placement::Placement;

use super::Job;
use super::one::Run;
use crate::amount;

pub(super) fn run(job: &Job, run: &Run) -> String {
    let mut text = String::new();
    if let Some(choice) = &run.choice {
        text += &choice.to_string();
    }
    text += &format!(
        "{}: {} in {:.3} s ({}), {} channels, {:.3} s of processor time\n",
        run.placement.name(),
        amount::bytes(run.sent.bytes),
        run.seconds,
        amount::rate(run.sent.bytes, run.seconds),
        run.channels,
        run.cpu_seconds
    );
    for edge in &run.edges {
        text += &format!("  {} -> {}: {} blocks, {}\n", edge.from, edge.to, edge.blocks, amount::bytes(edge.bytes));
    }
    let crc = |crc32: u32| format!("CRC-32 {crc32:08x}");
    let against = match run.due_from {
        "replay" => "the functions, applied to the origin once more, give the same",
        "sent" => "the same as what was sent",
        _ => "the same as what reached the sink; what was sent cannot be read again to apply the functions to it",
    };
    text += &format!("  sent {}, {}; ", amount::bytes(run.sent.bytes), crc(run.sent.crc32));
    let on_disk = |amount: fn(u64) -> String| match run.on_disk {
        Some(sum) => format!("on disk {}, {}", amount(sum.bytes), crc(sum.crc32)),
        None => "the disk was not read".to_owned(),
    };
    text += &match run.verified {
        Some(true) => format!("{}: {against}\n", on_disk(amount::bytes)),
        None => {
            format!("the sink had {}, {}; the disk was not read\n", amount::bytes(run.due.bytes), crc(run.due.crc32))
        }
        Some(false) => format!(
            "{}, where {} bytes, {} were due: DIFFERENT, {} was not written\n",
            on_disk(|bytes| format!("{bytes} bytes")),
            run.due.bytes,
            crc(run.due.crc32),
            job.to.display()
        ),
    };
    text
}

/// The placements side by side, compared with the distributed one.
pub(super) fn comparison(runs: &[Run]) -> String {
    let mut text = format!(
        "\n{:<26} {:>8} {:>10} {:>12} {:>10} {:>12}\n",
        "placement", "channels", "seconds", "rate", "CPU s", "of the rate"
    );
    let best = runs.iter().find(|r| r.placement == Placement::DistributedResourceSide).map(|r| r.gb_per_s);
    for run in runs {
        let share = best.map_or(String::new(), |best| format!("{:.2}x", run.gb_per_s / best));
        text += &format!(
            "{:<26} {:>8} {:>10.3} {:>12} {:>10.3} {:>12}\n",
            run.placement.name(),
            run.channels,
            run.seconds,
            amount::rate(run.sent.bytes, run.seconds),
            run.cpu_seconds,
            share
        );
    }
    text
}
