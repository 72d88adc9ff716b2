//! The channels' progress as columns of a recording, and as samples.

use datapipes::metrics::{CourseColumn, Label, Sample, vocabulary};
use datapipes_fabric::placement::Placement;

use crate::commands::stream::steps::device_progress::{self, ProgressReader};

/// Columns of a channel: blocks, bytes, blocks under way, and whether its sender has sent
/// everything.
pub(super) const COLUMNS: usize = 4;

pub(super) fn columns(channels: usize) -> Vec<CourseColumn> {
    let one = [CourseColumn::Sum, CourseColumn::Sum, CourseColumn::Peak, CourseColumn::Peak];
    (0..channels).flat_map(|_| one).collect()
}

/// Readers of the channels' progress, with the credits of each.
pub(super) type Meters = [(ProgressReader, u32)];

/// The channels as samples. They have the name of the placement and a number: names of transforms
/// may hold a command of the user.
pub(super) fn samples(meters: &Meters, placement: Placement) -> Vec<Sample> {
    let of = |(number, ((meter, credits), sample)): (usize, (&(ProgressReader, u32), device_progress::Sample))| {
        let pipe = format!("{} {}", placement.name(), number + 1);
        let moved = |measurement, n: u64| {
            Sample::new(measurement, n).label(Label::Pipe, pipe.as_str()).label(Label::Direction, "out")
        };
        let now = |measurement, n: u64| Sample::new(measurement, n).label(Label::Pipe, pipe.as_str());
        let counted = [
            moved(&vocabulary::CHANNEL_BLOCKS, sample.blocks),
            moved(&vocabulary::CHANNEL_BYTES, sample.bytes),
            now(&vocabulary::CHANNEL_OUTSTANDING, sample.under_way),
            now(&vocabulary::CHANNEL_CREDITS, u64::from(*credits)),
        ];
        let times = meter.latencies();
        let times = times.map(|times| Sample::new(&vocabulary::CHANNEL_BLOCK_TIME, times).label(Label::Pipe, pipe));
        counted.into_iter().chain(times)
    };
    meters.iter().zip(read_all(meters)).enumerate().flat_map(of).collect()
}

fn read_all(meters: &Meters) -> Vec<device_progress::Sample> {
    device_progress::read_all(meters.iter().map(|(meter, _)| meter))
}

pub(super) fn values(meters: &Meters) -> Vec<f64> {
    let of = |s: device_progress::Sample| {
        [s.blocks as f64, s.bytes as f64, s.under_way as f64, f64::from(u8::from(s.is_ending))]
    };
    read_all(meters).into_iter().flat_map(of).collect()
}
