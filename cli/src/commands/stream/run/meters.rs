//! The channels' progress as columns of a recording, and as samples.

use datapipes::metrics::{CourseColumn, Label, Sample, vocabulary};

use crate::commands::stream::steps::device_progress::ProgressReader;

/// Columns of a channel: blocks, bytes, and blocks under way.
pub(super) const COLUMNS: usize = 3;

pub(super) fn columns(channels: usize) -> Vec<CourseColumn> {
    let one = [CourseColumn::Sum, CourseColumn::Sum, CourseColumn::Peak];
    (0..channels).flat_map(|_| one).collect()
}

/// Readers of the channels' progress, with the credits of each.
pub(super) type Meters = [(ProgressReader, u32)];

/// The channels as samples, for `dpipe top`. They have numbers: names of transforms may hold a
/// command of the user.
pub(super) fn samples(meters: &Meters) -> Vec<Sample> {
    let of = |(number, (meter, credits)): (usize, &(ProgressReader, u32))| {
        let (sample, pipe) = (meter.read(), (number + 1).to_string());
        let moved = |measurement, n: u64| {
            Sample::new(measurement, n).label(Label::Pipe, pipe.as_str()).label(Label::Direction, "out")
        };
        let now = |measurement, n: u64| Sample::new(measurement, n).label(Label::Pipe, pipe.as_str());
        [
            moved(&vocabulary::CHANNEL_BLOCKS, sample.blocks),
            moved(&vocabulary::CHANNEL_BYTES, sample.bytes),
            now(&vocabulary::CHANNEL_OUTSTANDING, sample.under_way),
            now(&vocabulary::CHANNEL_CREDITS, u64::from(*credits)),
        ]
    };
    meters.iter().enumerate().flat_map(of).collect()
}

pub(super) fn values(meters: &Meters) -> Vec<f64> {
    let samples = meters.iter().map(|(meter, _)| meter.read());
    samples.flat_map(|sample| [sample.blocks as f64, sample.bytes as f64, sample.under_way as f64]).collect()
}
