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
//! for the place, or they do not. If they do, the place's rate is known, and so is the time for
//! which they had other work. A few frames, compressed to try it, say how fast that is and what is
//! left of them. Blocks are compressed if all this makes the runs at least a fifth faster.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use datapipes_core::{Error, ErrorKind, Result};

use crate::report::CompressionReport;

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
            .with_advice("the spill place lost or changed it; name another one by -T and check that device")),
    }
}

/// The compression of the runs of a job: the decision, and what it rests on.
pub(crate) struct Packing {
    mode: SpillCompression,
    started: Instant,
    threads: u64,
    pub(crate) frame: usize,
    packing: AtomicBool,
    /// Blocks, bytes before, and bytes written.
    blocks: AtomicU64,
    bytes: AtomicU64,
    stored: AtomicU64,
    /// Bytes of blocks that were compressed or tried, what was left of them, and nanoseconds.
    tried: AtomicU64,
    left: AtomicU64,
    spent: AtomicU64,
    /// The rates at the decision, in bytes a second: of the place, and of all threads.
    place_rate: AtomicU64,
    packing_rate: AtomicU64,
}

impl Packing {
    /// Begins a measurement. `frame` is the length of frames, and of the smallest reading buffer.
    pub(crate) fn new(mode: SpillCompression, threads: usize, frame: usize) -> Packing {
        let zero = || AtomicU64::new(0);
        Packing {
            mode,
            started: Instant::now(),
            threads: threads as u64,
            frame,
            packing: AtomicBool::new(mode == SpillCompression::On),
            blocks: zero(),
            bytes: zero(),
            stored: zero(),
            tried: zero(),
            left: zero(),
            spent: zero(),
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
            let (tried, left) = (self.tried.load(Relaxed), self.left.load(Relaxed));
            self.packing.store((left as f64) < GAIN * tried as f64, Relaxed);
        }
        lens
    }

    /// Takes a block of a run that is not compressed into account. `waited` are the nanoseconds for
    /// which threads waited for the place so far.
    pub(crate) fn consider(&self, block: &[u8], waited: u64) {
        let index = self.blocks.fetch_add(1, Relaxed);
        self.bytes.fetch_add(block.len() as u64, Relaxed);
        self.wrote(block.len() as u64);
        if self.mode == SpillCompression::Auto && index.is_multiple_of(TRY_EVERY) && self.waits(waited) {
            let bytes = &block[..block.len().min(self.frame)];
            self.timed(bytes, &mut vec![0; bytes.len()]);
            self.decide(waited);
        }
    }

    /// Notes the bytes that were written for a block.
    pub(crate) fn wrote(&self, stored: u64) {
        self.stored.fetch_add(stored, Relaxed);
    }

    fn timed(&self, bytes: &[u8], packed: &mut [u8]) -> Option<Vec<u32>> {
        let started = Instant::now();
        let lens = pack(bytes, self.frame, packed);
        let nanos = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let left = lens.as_ref().map_or(bytes.len() as u64, |lens| lens.iter().map(|len| u64::from(*len)).sum());
        self.tried.fetch_add(bytes.len() as u64, Relaxed);
        self.left.fetch_add(left, Relaxed);
        self.spent.fetch_add(nanos, Relaxed);
        lens
    }

    fn waiting(&self, waited: u64) -> (f64, f64) {
        let elapsed = self.started.elapsed().as_secs_f64();
        (elapsed, (waited as f64 / 1e9 / self.threads as f64).min(elapsed))
    }

    fn waits(&self, waited: u64) -> bool {
        let (elapsed, waiting) = self.waiting(waited);
        self.stored.load(Relaxed) >= ENOUGH && waiting > WAITING * elapsed
    }

    /// Decides for the blocks to come. The place was the limit, so its rate is what was written.
    fn decide(&self, waited: u64) {
        let (elapsed, waiting) = self.waiting(waited);
        let (tried, left) = (self.tried.load(Relaxed) as f64, self.left.load(Relaxed) as f64);
        let written = self.stored.load(Relaxed) as f64;
        let rate = tried / (self.spent.load(Relaxed) as f64 / 1e9).max(1e-9) * self.threads as f64;
        let ratio = left / tried.max(1.0);
        let with = (ratio * elapsed).max(elapsed - waiting + written / rate);
        if with < GAIN * elapsed {
            self.place_rate.store((written / elapsed) as u64, Relaxed);
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
            SpillCompression::Auto if self.tried.load(Relaxed) > 0 => "it would not make the sort faster".to_owned(),
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
