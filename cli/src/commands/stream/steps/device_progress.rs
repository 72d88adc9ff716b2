//! How far each device is, while it works: a small sealed memory that only the device writes and
//! the command looks into.
//!
//! Channels are between their two ends and nobody else, so a device has to tell what goes over its
//! own. It does by `pwrite` on a descriptor that it was given; a reader may see two tellings mixed,
//! which a view can live with.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use datapipes::metrics::Histogram;
use datapipes::{Error, Result};
use datapipes_fabric::device::{self, StreamProgress, StreamStage};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::{Errno, pread, pwrite};

/// A device tells no more often than this.
const EVERY: Duration = Duration::from_millis(20);
const WORDS: usize = 7;
/// Behind the words are the counts of the times of blocks.
const TIMES_AT: u64 = WORDS as u64 * 8;
const TIMES_LEN: usize = Histogram::BUCKETS * 8;

/// The traffic of the channel that leads out of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::commands::stream) struct Sample {
    /// Blocks sent.
    pub(in crate::commands::stream) blocks: u64,
    /// Their bytes.
    pub(in crate::commands::stream) bytes: u64,
    /// Blocks that no reply came for, as far as the device knows.
    pub(in crate::commands::stream) under_way: u64,
    /// When the device had its first bytes, on the monotonic clock; 0 before.
    pub(in crate::commands::stream) since_ns: u64,
    /// Whether it has sent everything.
    pub(in crate::commands::stream) is_ending: bool,
    /// Blocks received.
    pub(in crate::commands::stream) blocks_in: u64,
    /// Whether it waits for a block.
    pub(in crate::commands::stream) is_idle: bool,
}

/// The traffic of all channels of a stream, in their order. A device that is held up, in a read of
/// a slow disk for example, does not see replies; what its receiver has taken is known all the
/// same.
pub(in crate::commands::stream) fn read_all<'a>(readers: impl Iterator<Item = &'a ProgressReader>) -> Vec<Sample> {
    let mut samples: Vec<Sample> = readers.map(ProgressReader::read).collect();
    for at in 1..samples.len() {
        let (receiver, sender) = (samples[at], &mut samples[at - 1]);
        // The one that it works on has no reply either.
        let left = sender.blocks.saturating_sub(receiver.blocks_in) + u64::from(!receiver.is_idle);
        sender.under_way = sender.under_way.min(left);
    }
    samples
}

/// The command's side.
pub(in crate::commands::stream) struct ProgressReader {
    fd: OwnedFd,
    measures: bool,
}

impl ProgressReader {
    /// Makes the memory for a device that measures the times of its blocks, or one that does not.
    pub(in crate::commands::stream) fn new(measures: bool) -> Result<ProgressReader> {
        let os = |e: Errno| Error::os("create", e.raw_os_error(), "a meter");
        let fd = memfd_create("dpipe-meter", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(os)?;
        ftruncate(&fd, TIMES_AT + TIMES_LEN as u64).map_err(os)?;
        // A device can write its words, and make the memory neither larger nor smaller.
        fcntl_add_seals(&fd, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL).map_err(os)?;
        Ok(ProgressReader { fd, measures })
    }

    /// The descriptor that the device is given.
    pub(in crate::commands::stream) fn for_device(&self) -> Result<OwnedFd> {
        self.fd.try_clone().map_err(|e| Error::io("create", e, "a meter"))
    }

    /// Another reader of the same memory.
    pub(in crate::commands::stream) fn second(&self) -> Result<ProgressReader> {
        Ok(ProgressReader { fd: self.for_device()?, measures: self.measures })
    }

    pub(in crate::commands::stream) fn read(&self) -> Sample {
        let mut bytes = [0; WORDS * 8];
        // The memory is there and as long as it was made: a short read cannot be, and would show as
        // no progress.
        let _ = pread(&self.fd, &mut bytes[..], 0);
        let (words, _) = bytes.as_chunks::<8>();
        let [blocks, bytes, under_way, since_ns, is_ending, blocks_in, is_idle] =
            std::array::from_fn(|i| u64::from_le_bytes(words[i]));
        Sample { blocks, bytes, under_way, since_ns, is_ending: is_ending > 0, blocks_in, is_idle: is_idle > 0 }
    }

    /// The times from the push of a block until it was replied to, where they are measured.
    pub(in crate::commands::stream) fn latencies(&self) -> Option<Histogram> {
        let mut bytes = vec![0; TIMES_LEN];
        let _ = self.measures.then(|| pread(&self.fd, &mut bytes[..], TIMES_AT))?;
        let (words, _) = bytes.as_chunks::<8>();
        let counts: Vec<u64> = words.iter().copied().map(u64::from_le_bytes).collect();
        Some(Histogram::of_counts(&counts))
    }
}

/// The device's side.
pub(in crate::commands::stream) struct ProgressWriter {
    fd: OwnedFd,
    told: Option<Instant>,
    /// Whether the last note was told.
    is_told: bool,
    sample: Sample,
    measures: bool,
}

impl ProgressWriter {
    pub(in crate::commands::stream) fn new(fd: OwnedFd, measures: bool) -> ProgressWriter {
        ProgressWriter { fd, told: None, is_told: false, sample: Sample::default(), measures }
    }

    fn tell(&mut self) -> Result<()> {
        let Sample { blocks, bytes, under_way, since_ns, is_ending, blocks_in, is_idle } = self.sample;
        let words = [blocks, bytes, under_way, since_ns, is_ending.into(), blocks_in, is_idle.into()];
        let words = words.map(u64::to_le_bytes);
        self.told = Some(Instant::now());
        self.write(words.as_flattened(), 0)
    }

    fn write(&self, bytes: &[u8], at: u64) -> Result<()> {
        pwrite(&self.fd, bytes, at).map(|_| ()).map_err(|e| Error::os("tell", e.raw_os_error(), "the meter"))
    }
}

impl device::ProgressSink for ProgressWriter {
    /// Tells it if it is time to; always before the device waits, for nobody knows how long that
    /// is; and at the end: after that the device reports, and then the command looks.
    fn note(&mut self, standing: &StreamProgress) -> Result<()> {
        let StreamProgress { blocks_out, bytes_out, under_way, blocks_in, is_idle, stage, .. } = *standing;
        let is_ending = matches!(stage, StreamStage::Ending | StreamStage::Ended);
        if self.sample.is_ending && !is_ending && blocks_out == 0 {
            // It waits for a next stream. What was told of this one stays.
            self.is_told = false;
            return Ok(());
        }
        let has_begun = blocks_out > 0 || matches!(stage, StreamStage::Ending | StreamStage::Ended);
        let since_ns = match self.sample.since_ns {
            0 if has_begun => now_ns(),
            since_ns => since_ns,
        };
        let (blocks, bytes) = (blocks_out, bytes_out);
        let sample = Sample { blocks, bytes, under_way, since_ns, is_ending, blocks_in, is_idle };
        let is_new = sample != self.sample;
        self.sample = sample;
        let is_due = || self.told.is_none_or(|told| told.elapsed() >= EVERY);
        self.is_told =
            stage != StreamStage::Sending && (is_new || stage == StreamStage::Ended || !self.is_told) || is_due();
        if self.is_told { self.tell() } else { Ok(()) }
    }

    fn measures_latencies(&self) -> bool {
        self.measures
    }

    /// Tells them together with the note before.
    fn note_latencies(&mut self, times: &dyn Fn() -> Histogram) -> Result<()> {
        if !self.is_told {
            return Ok(());
        }
        let counts: Vec<u8> = times().counts().into_iter().flat_map(u64::to_le_bytes).collect();
        self.write(&counts, TIMES_AT)
    }
}

/// The monotonic clock, which all processes of a machine share.
pub(in crate::commands::stream) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use datapipes::metrics::Recorder;
    use datapipes_fabric::device::ProgressSink;

    use super::*;

    #[test]
    fn times_of_blocks_come_across_where_they_are_measured() {
        let recorder = Recorder::default();
        [5, 1_000, 2_000_000].into_iter().for_each(|ns| recorder.record_ns(ns));
        for measures in [false, true] {
            let reader = ProgressReader::new(measures).unwrap();
            let mut writer = ProgressWriter::new(reader.for_device().unwrap(), measures);
            assert_eq!(writer.measures_latencies(), measures);
            assert_eq!(reader.latencies(), measures.then(Histogram::default));
            writer.is_told = true;
            if measures {
                writer.note_latencies(&|| recorder.histogram()).unwrap();
            }
            assert_eq!(reader.second().unwrap().latencies(), measures.then(|| recorder.histogram()));
            assert_eq!(reader.read(), Sample::default());
        }
        // A source that is held up knows of four blocks without replies; its receiver waits for the
        // next one, or works on the last one.
        let readers = [ProgressReader::new(false).unwrap(), ProgressReader::new(false).unwrap()];
        let tell = |at: usize, sample: Sample| {
            let mut writer = ProgressWriter::new(readers[at].for_device().unwrap(), false);
            writer.sample = sample;
            writer.tell().unwrap();
        };
        tell(0, Sample { blocks: 8, under_way: 4, ..Sample::default() });
        for (blocks_in, is_idle, under_way) in [(8, true, 0), (8, false, 1), (6, false, 3), (2, false, 4)] {
            tell(1, Sample { blocks_in, is_idle, ..Sample::default() });
            assert_eq!(read_all(readers.iter())[0].under_way, under_way);
        }
        // What is not told yet is not read either.
        let reader = ProgressReader::new(true).unwrap();
        let mut writer = ProgressWriter::new(reader.for_device().unwrap(), true);
        writer.note_latencies(&|| panic!("nobody looks")).unwrap();
    }
}
