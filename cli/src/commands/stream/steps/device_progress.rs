//! How far each device is, while it works: a small sealed memory that only the device writes and
//! the command looks into.
//!
//! Channels are between their two ends and nobody else, so a device has to tell what goes over its
//! own. It does by `pwrite` on a descriptor that it was given; a reader may see two tellings mixed,
//! which a view can live with.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use datapipes::{Error, Result};
use datapipes_fabric::device::{self, StreamProgress};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::{Errno, pread, pwrite};

/// A device tells no more often than this.
const EVERY: Duration = Duration::from_millis(20);
const WORDS: usize = 4;

/// The traffic of the channel that leads out of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::commands::stream) struct Sample {
    /// Blocks sent.
    pub(in crate::commands::stream) blocks: u64,
    /// Their bytes.
    pub(in crate::commands::stream) bytes: u64,
    /// Blocks that no reply came for.
    pub(in crate::commands::stream) under_way: u64,
    /// When the device had its first bytes, on the monotonic clock; 0 before.
    pub(in crate::commands::stream) since_ns: u64,
}

/// The command's side.
pub(in crate::commands::stream) struct ProgressReader(OwnedFd);

impl ProgressReader {
    pub(in crate::commands::stream) fn new() -> Result<ProgressReader> {
        let os = |e: Errno| Error::os("create", e.raw_os_error(), "a meter");
        let fd = memfd_create("dpipe-meter", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(os)?;
        ftruncate(&fd, WORDS as u64 * 8).map_err(os)?;
        // A device can write its words, and make the memory neither larger nor smaller.
        fcntl_add_seals(&fd, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL).map_err(os)?;
        Ok(ProgressReader(fd))
    }

    /// The descriptor that the device is given.
    pub(in crate::commands::stream) fn for_device(&self) -> Result<OwnedFd> {
        self.0.try_clone().map_err(|e| Error::io("create", e, "a meter"))
    }

    /// Another reader of the same memory.
    pub(in crate::commands::stream) fn second(&self) -> Result<ProgressReader> {
        self.for_device().map(ProgressReader)
    }

    pub(in crate::commands::stream) fn read(&self) -> Sample {
        let mut bytes = [0; WORDS * 8];
        // The memory is there and as long as it was made: a short read cannot be, and would show as
        // no progress.
        let _ = pread(&self.0, &mut bytes[..], 0);
        let (words, _) = bytes.as_chunks::<8>();
        let [blocks, bytes, under_way, since_ns] = std::array::from_fn(|i| u64::from_le_bytes(words[i]));
        Sample { blocks, bytes, under_way, since_ns }
    }
}

/// The device's side.
pub(in crate::commands::stream) struct ProgressWriter {
    fd: OwnedFd,
    told: Option<Instant>,
    sample: Sample,
}

impl ProgressWriter {
    pub(in crate::commands::stream) fn new(fd: OwnedFd) -> ProgressWriter {
        ProgressWriter { fd, told: None, sample: Sample::default() }
    }

    fn tell(&mut self) -> Result<()> {
        let Sample { blocks, bytes, under_way, since_ns } = self.sample;
        let words = [blocks, bytes, under_way, since_ns].map(u64::to_le_bytes);
        self.told = Some(Instant::now());
        let told = pwrite(&self.fd, words.as_flattened(), 0);
        told.map(|_| ()).map_err(|e| Error::os("tell", e.raw_os_error(), "the meter"))
    }
}

impl device::ProgressSink for ProgressWriter {
    /// Tells it if it is time to, and always at the end: after that the device reports, and then
    /// the command looks.
    fn note(&mut self, standing: &StreamProgress) -> Result<()> {
        let since_ns = if self.sample.since_ns == 0 { now_ns() } else { self.sample.since_ns };
        let StreamProgress { blocks_out, bytes_out, under_way, at_end, .. } = *standing;
        // Blocks under way at the end count as done: the end of the stream waits for them.
        let under_way = if at_end { 0 } else { under_way };
        self.sample = Sample { blocks: blocks_out, bytes: bytes_out, under_way, since_ns };
        match self.told {
            Some(told) if told.elapsed() < EVERY && !at_end => Ok(()),
            _ => self.tell(),
        }
    }
}

/// The monotonic clock, which all processes of a machine share.
pub(in crate::commands::stream) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}
