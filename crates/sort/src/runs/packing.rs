//! Runs compressed by LZ4, where the spill's place is slow.
//!
//! ```text
//! block   | frame | frame | frame | ...    each of `frame` bytes, compressed by itself
//! place   |fra|frame|fr|.......|           in the order in which blocks are ready; a block that does
//!                                          not become smaller is written as it is
//! ```
//! A table in memory says where each frame is. Checksums are those of the bytes before, so what is
//! decompressed is checked as other runs are. Space is reserved as for runs that are not
//! compressed, and what was not needed is freed.
//!
//! Whether blocks are compressed is decided while runs are formed. The threads that write runs wait
//! for the place, or they do not. If they do, the place's rate is known. The time of the processor
//! says how long the runs would take without the place, and the waits of the reading thread how
//! long the input would. A few frames, compressed to try it, say how fast that is and what is left
//! of them. Blocks are compressed if all this makes the runs at least a fifth faster.
//!
//! Time in which no thread says that it waits is no work: a write can block before it is under
//! way. A disk held to 200 MB/s took 5.4 s for runs whose threads worked for 2.2 s, and noted
//! 6.8 s of waits of the 10.8 s that two threads had.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use datapipes_core::locks::Mutex;
use datapipes_core::{Error, ErrorKind, Result};

use crate::processor_time::{processor_seconds, thread_seconds};
use crate::report::CompressionReport;
use crate::waits::{SortWait, SortWaits};

/// A frame is kept compressed if this much is saved, so that what is read for it, which begins and
/// ends at blocks of the place, takes no more than the frame.
const MARGIN: usize = 8 << 10;
/// Nothing is decided before this many bytes are written.
const ENOUGH: u64 = 32 << 20;
/// One in this many blocks is tried while blocks are not compressed.
const TRY_EVERY: u64 = 8;
/// The place limits the job if threads wait for it for this part of the time.
const WAITING: f64 = 0.15;
/// The part of the time that compressed runs may take at most.
const GAIN: f64 = 0.8;

/// Whether runs are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpillCompression {
    /// If that makes the sort faster, as measured while it runs.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// The place of a frame: its offset in the staging, and its bytes there. If these are as many as in
/// the run, the frame is not compressed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Frame {
    pub(crate) at: u64,
    pub(crate) len: u32,
}

/// The frames of a run.
#[derive(Clone, Debug)]
pub(crate) struct FrameTable {
    /// Bytes of a frame, except for the last one.
    pub(crate) frame: usize,
    pub(crate) frames: Vec<Frame>,
}

/// Compresses the frames of `block` into `packed`, one after the other, and returns their lengths.
/// Returns `None` if one of them does not become small enough.
pub(crate) fn pack(block: &[u8], frame: usize, packed: &mut [u8]) -> Option<Vec<u32>> {
    let mut scratch = vec![0; lz4_flex::block::get_maximum_output_size(frame)];
    let mut lens = Vec::with_capacity(block.len().div_ceil(frame));
    let mut at = 0;
    for bytes in block.chunks(frame) {
        let len = lz4_flex::block::compress_into(bytes, &mut scratch).ok()?;
        if len + MARGIN > bytes.len() {
            return None;
        }
        packed.get_mut(at..at + len)?.copy_from_slice(&scratch[..len]);
        at += len;
        lens.push(u32::try_from(len).ok()?);
    }
    Some(lens)
}

/// Decompresses a frame into `bytes`, which it must fill.
pub(crate) fn unpack(packed: &[u8], bytes: &mut [u8], offset: u64) -> Result<()> {
    if packed.len() == bytes.len() {
        bytes.copy_from_slice(packed);
        return Ok(());
    }
    match lz4_flex::block::decompress_into(packed, bytes) {
        Ok(len) if len == bytes.len() => Ok(()),
        _ => Err(Error::new(ErrorKind::Corrupt, "read", "a compressed run is not what was written")
            .with_offset(offset)
            .with_advice("the spill place lost or changed it; name another one (`spill`) and check that device")),
    }
}

/// What is known of the runs that are formed so far. Times are seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    elapsed: f64,
    /// The part of it for which all threads waited for the place: their waits by their number.
    spill_wait: f64,
    /// How long the runs would have taken if the place and the input took no time.
    work: f64,
    /// How long the runs would have taken if the place and the sorting took no time.
    input: f64,
}

/// What compressed frames show: their bytes before and after, and the seconds of a thread.
#[derive(Clone, Copy, Debug, Default)]
struct Trial {
    bytes: f64,
    left: f64,
    spent: f64,
}

impl Progress {
    /// Figures of a process and of its threads' waits, since the runs began.
    fn new(elapsed: f64, threads: f64, processor: f64, waits: &WaitSeconds) -> Progress {
        let noted = elapsed - (waits.spill + waits.records) / threads;
        Progress {
            elapsed,
            spill_wait: (waits.spill / threads).min(elapsed),
            // The process may do other things at the same time: then the waits say more.
            work: noted.min(processor / threads).max(0.0),
            input: (elapsed - waits.memory).max(0.0),
        }
    }

    /// Whether the place limits the job.
    fn waits(&self) -> bool {
        self.spill_wait > WAITING * self.elapsed
    }

    /// The part of the time that the runs would have taken with their `written` bytes compressed by
    /// `threads`. The place was the limit, so its rate is what was written.
    fn with_compression(&self, written: f64, threads: f64, trial: Trial) -> f64 {
        let ratio = trial.left / trial.bytes.max(1.0);
        let packing = written / trial.bytes.max(1.0) * trial.spent / threads;
        (ratio * self.elapsed).max(self.input).max(self.work + packing) / self.elapsed.max(1e-9)
    }
}

/// Seconds of waits since the runs began, added up over the threads.
#[derive(Clone, Copy, Debug, Default)]
struct WaitSeconds {
    spill: f64,
    records: f64,
    memory: f64,
}

impl WaitSeconds {
    fn of(waits: &SortWaits) -> WaitSeconds {
        let seconds = |what| waits.seconds(what);
        WaitSeconds {
            spill: seconds(SortWait::Spill),
            records: seconds(SortWait::Records),
            memory: seconds(SortWait::Memory),
        }
    }

    fn since(self, begin: WaitSeconds) -> WaitSeconds {
        WaitSeconds {
            spill: self.spill - begin.spill,
            records: self.records - begin.records,
            memory: self.memory - begin.memory,
        }
    }
}

/// Compressed frames, and what they took of a thread's processor time: a thread that lost its
/// core for 47 ms within one frame of 64 KiB made the compressor look ten times too slow for the
/// rest of a job. The slowest frame is left out, as a host that takes the core away from a
/// virtual machine is not always seen by that clock.
#[derive(Clone, Copy, Debug, Default)]
struct Trials {
    bytes: u64,
    left: u64,
    seconds: f64,
    /// Seconds a byte of the slowest call, its seconds, and its bytes.
    slowest: (f64, f64, u64),
}

impl Trials {
    fn add(&mut self, bytes: u64, left: u64, seconds: f64) {
        self.bytes += bytes;
        self.left += left;
        self.seconds += seconds;
        let per_byte = seconds / bytes.max(1) as f64;
        if per_byte >= self.slowest.0 {
            self.slowest = (per_byte, seconds, bytes);
        }
    }

    /// What they show together. Seconds are those that all bytes take at the rate of all calls but
    /// the slowest one.
    fn together(&self) -> Trial {
        let (_, seconds, bytes) = self.slowest;
        let rest = self.bytes - bytes;
        let spent = if rest > 0 { (self.seconds - seconds) / rest as f64 * self.bytes as f64 } else { self.seconds };
        Trial { bytes: self.bytes as f64, left: self.left as f64, spent }
    }
}

/// The compression of the runs of a job: the decision, and what it rests on.
pub(crate) struct Packing<'a> {
    mode: SpillCompression,
    started: Instant,
    threads: f64,
    waits: &'a SortWaits,
    /// The waits, and the processor time, when the runs began.
    waited: WaitSeconds,
    processor: f64,
    pub(crate) frame: usize,
    packing: AtomicBool,
    /// Blocks, bytes before, and bytes written.
    blocks: AtomicU64,
    bytes: AtomicU64,
    stored: AtomicU64,
    /// Blocks that were compressed or tried.
    trials: Mutex<Trials>,
    /// The rates at the decision, in bytes a second: of the place, and of all threads.
    place_rate: AtomicU64,
    packing_rate: AtomicU64,
}

impl Packing<'_> {
    /// Begins a measurement. `frame` is the length of frames, and of the smallest reading buffer.
    pub(crate) fn new(mode: SpillCompression, threads: usize, frame: usize, waits: &SortWaits) -> Packing<'_> {
        let zero = || AtomicU64::new(0);
        Packing {
            mode,
            started: Instant::now(),
            threads: threads.max(1) as f64,
            waits,
            waited: WaitSeconds::of(waits),
            processor: processor_seconds(),
            frame,
            packing: AtomicBool::new(mode == SpillCompression::On),
            blocks: zero(),
            bytes: zero(),
            stored: zero(),
            trials: Mutex::new(Trials::default()),
            place_rate: zero(),
            packing_rate: zero(),
        }
    }

    /// Whether runs get tables of frames: if blocks of them may be compressed.
    pub(crate) fn may_pack(&self) -> bool {
        self.mode != SpillCompression::Off
    }

    /// Whether the next run is compressed.
    pub(crate) fn is_on(&self) -> bool {
        self.packing.load(Relaxed)
    }

    /// Compresses a block.
    pub(crate) fn pack(&self, block: &[u8], packed: &mut [u8]) -> Option<Vec<u32>> {
        let lens = self.timed(block, packed);
        let index = self.blocks.fetch_add(1, Relaxed);
        self.bytes.fetch_add(block.len() as u64, Relaxed);
        if self.mode == SpillCompression::Auto && index.is_multiple_of(TRY_EVERY) {
            let trials = *self.trials.lock();
            self.packing.store((trials.left as f64) < GAIN * trials.bytes as f64, Relaxed);
        }
        lens
    }

    /// Takes a block of a run that is not compressed into account.
    pub(crate) fn consider(&self, block: &[u8]) {
        let index = self.blocks.fetch_add(1, Relaxed);
        self.bytes.fetch_add(block.len() as u64, Relaxed);
        self.wrote(block.len() as u64);
        let looks = self.mode == SpillCompression::Auto && index.is_multiple_of(TRY_EVERY);
        if !looks || self.stored.load(Relaxed) < ENOUGH {
            return;
        }
        let progress = self.progress();
        if progress.waits() {
            let bytes = &block[..block.len().min(self.frame)];
            // Blocks to come are compressed into memory that is there.
            let mut packed = vec![1; bytes.len()];
            self.timed(bytes, &mut packed);
            self.decide(progress);
        }
    }

    /// Notes the bytes that were written for a block.
    pub(crate) fn wrote(&self, stored: u64) {
        self.stored.fetch_add(stored, Relaxed);
    }

    fn timed(&self, bytes: &[u8], packed: &mut [u8]) -> Option<Vec<u32>> {
        let started = thread_seconds();
        let lens = pack(bytes, self.frame, packed);
        let spent = thread_seconds() - started;
        let left = lens.as_ref().map_or(bytes.len() as u64, |lens| lens.iter().map(|len| u64::from(*len)).sum());
        self.trials.lock().add(bytes.len() as u64, left, spent);
        lens
    }

    fn progress(&self) -> Progress {
        let elapsed = self.started.elapsed().as_secs_f64();
        let waits = WaitSeconds::of(self.waits).since(self.waited);
        Progress::new(elapsed, self.threads, processor_seconds() - self.processor, &waits)
    }

    /// Decides for the blocks to come.
    fn decide(&self, progress: Progress) {
        let (trial, written) = (self.trials.lock().together(), self.stored.load(Relaxed) as f64);
        if progress.with_compression(written, self.threads, trial) < GAIN {
            let rate = trial.bytes / trial.spent.max(1e-9) * self.threads;
            self.place_rate.store((written / progress.elapsed) as u64, Relaxed);
            self.packing_rate.store(rate as u64, Relaxed);
            self.packing.store(true, Relaxed);
        }
    }

    /// What the report says.
    pub(crate) fn report(&self) -> CompressionReport {
        let (bytes, stored) = (self.bytes.load(Relaxed), self.stored.load(Relaxed));
        let place = self.place_rate.load(Relaxed);
        let why = match self.mode {
            SpillCompression::On if stored == bytes => "it was asked for, but they do not become shorter".to_owned(),
            SpillCompression::On => "it was asked for".to_owned(),
            SpillCompression::Off => "it was not wanted".to_owned(),
            SpillCompression::Auto if place > 0 => format!(
                "the place took {} MB/s, and the threads compress {} MB/s",
                place / 1_000_000,
                self.packing_rate.load(Relaxed) / 1_000_000
            ),
            SpillCompression::Auto if self.trials.lock().bytes > 0 => "it would not make the sort faster".to_owned(),
            SpillCompression::Auto if stored < ENOUGH => "too little was written to tell whether it pays".to_owned(),
            SpillCompression::Auto => "the threads did not wait for the place".to_owned(),
        };
        CompressionReport { bytes, stored_bytes: stored, why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back() {
        let block: Vec<u8> = (0..200_000_u32).flat_map(|i| (i / 7).to_le_bytes()).collect();
        let mut packed = vec![0; block.len()];
        let frame = 64 << 10;
        let lens = pack(&block, frame, &mut packed).unwrap();
        let mut at = 0;
        for (len, expected) in lens.iter().zip(block.chunks(frame)) {
            let mut bytes = vec![0; expected.len()];
            let end = at + *len as usize;
            unpack(&packed[at..end], &mut bytes, 0).unwrap();
            assert_eq!(bytes, expected);
            assert_eq!(unpack(&packed[at..end - 1], &mut bytes, 7).unwrap_err().kind(), ErrorKind::Corrupt);
            at = end;
        }
    }

    /// Figures of a disk held to 200 MB/s and of one that is not, with two threads.
    #[test]
    fn a_slow_place_is_told_from_a_fast_one() {
        let waits = WaitSeconds { spill: 5.8, records: 1.0, memory: 3.4 };
        let slow = Progress::new(5.4, 2.0, 2.2, &waits);
        let trial = Trial { bytes: 6e6, left: 3e6, spent: 0.023 };
        assert!(slow.waits());
        let part = slow.with_compression(1e9, 2.0, trial);
        assert!((0.5..0.65).contains(&part), "{part}");
        // Frames that hardly shrink, an input that is as slow, a compressor that is too slow.
        assert!(slow.with_compression(1e9, 2.0, Trial { left: 5.5e6, ..trial }) > GAIN);
        let input = Progress::new(5.4, 2.0, 2.2, &WaitSeconds { memory: 0.2, ..waits });
        assert!(input.with_compression(1e9, 2.0, trial) > GAIN);
        assert!(slow.with_compression(1e9, 2.0, Trial { spent: 0.06, ..trial }) > GAIN);
        // A process that does other things: its threads' waits say how long they worked.
        let busy = Progress::new(5.4, 2.0, 50.0, &waits);
        assert!((busy.work - 2.0).abs() < 1e-9, "{busy:?}");
        let fast = Progress::new(1.4, 2.0, 2.2, &WaitSeconds { spill: 0.2, records: 0.1, memory: 0.3 });
        assert!(!fast.waits());
    }

    /// Frames of a job on a disk held to 200 MB/s, one of which took 47 ms: its thread had no core.
    #[test]
    fn one_slow_frame_does_not_decide() {
        let mut trials = Trials::default();
        for _ in 0..6 {
            trials.add(65536, 26_700, 0.000_25);
        }
        let before = trials.together();
        trials.add(65536, 26_700, 0.047);
        let after = trials.together();
        assert!(after.bytes == before.bytes + 65536.0 && after.spent < before.spent * 1.2, "{before:?} {after:?}");
        let waits = WaitSeconds { spill: 0.49, records: 0.42, memory: 0.5 };
        let progress = Progress::new(0.68, 2.0, 0.3, &waits);
        assert!(progress.with_compression(117e6, 2.0, after) < GAIN);
        // A compressor that is slow for all frames is slow.
        let slow = Trial { spent: 7.0 * 0.047, ..after };
        assert!(progress.with_compression(117e6, 2.0, slow) > GAIN);
    }

    #[test]
    fn bytes_that_do_not_shrink_are_left() {
        let mut x = 1_u64;
        let block: Vec<u8> = std::iter::repeat_with(|| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (x >> 56) as u8
        })
        .take(1 << 18)
        .collect();
        assert!(pack(&block, 64 << 10, &mut vec![0; 1 << 18]).is_none());
    }
}
