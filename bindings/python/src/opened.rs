//! A file as one process opened it, and what readers of it share.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use datapipes::process::OwningProcess;
use datapipes::{Constraints, Counters, Error, ErrorKind, Pipe, Result, Ssd};

use crate::kept::KeptPipes;

/// What was moved, by primitive. The names of short reads and writes are not those of primitives.
pub(crate) type Moved = BTreeMap<&'static str, Counters>;

/// A file as one process opened it, and its pipes that are kept for further reads.
pub(crate) struct Opened {
    pub(crate) ssd: Ssd,
    /// The path by which it was opened, for errors.
    pub(crate) path: Arc<Path>,
    pub(crate) kept: KeptPipes,
    /// Whether the last read that should not wait missed the page cache.
    missed: AtomicBool,
    pub(crate) owner: OwningProcess,
}

impl Opened {
    pub(crate) fn new(ssd: Ssd) -> Arc<Opened> {
        let path = ssd.path().into();
        Arc::new(Opened {
            ssd,
            path,
            kept: KeptPipes::default(),
            missed: AtomicBool::new(false),
            owner: OwningProcess::here(),
        })
    }

    /// Whether a read that does not wait should be tried. Where it misses, the kernel begins to read
    /// the bytes, and those around them, beside the transfer that follows. So after a miss it is
    /// asked first, which costs a hit a third of its time.
    pub(crate) fn may_be_cached(&self, offset: u64, len: u64) -> bool {
        !self.missed.load(Ordering::Relaxed) || datapipes::is_cached(&self.ssd, offset, len) != Some(false)
    }

    /// Takes note of what came of it.
    pub(crate) fn note_cached(&self, hit: bool) {
        if self.missed.load(Ordering::Relaxed) == hit {
            self.missed.store(!hit, Ordering::Relaxed);
        }
    }
}

/// Adds what a pipe did.
pub(crate) fn note(moved: &mut Moved, pipe: &Pipe) {
    for hop in pipe.report().hops {
        moved.entry(hop.primitive).or_default().add(&hop.counters);
    }
}

/// The bytes from an offset to the end, at most `len`.
pub(crate) fn available(ssd: &Ssd, offset: u64, len: u64) -> Result<u64> {
    let size = ssd.len()?;
    if size == 0 && !ssd.len_is_exact()? {
        let why = format!("{}: its length is known only when all of it is read", ssd.path().display());
        return Err(Error::new(ErrorKind::Unsupported, "read", why).with_advice("read it with `open` of Python"));
    }
    Ok(size.saturating_sub(offset).min(len))
}

/// From so many bytes on, memory is asked for before it is used.
const MUCH: u64 = 64 << 20;

/// Fails where so much memory is not there: without that, the kernel would end a process for it.
pub(crate) fn check_memory(len: u64) -> Result<()> {
    if len < MUCH {
        return Ok(());
    }
    let Ok(text) = std::fs::read_to_string("/proc/meminfo") else { return Ok(()) };
    let of = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().trim_end_matches(" kB").parse::<u64>().ok()
    };
    let Some(available) = of("MemAvailable:") else { return Ok(()) };
    let left = available.saturating_add(of("SwapFree:").unwrap_or(0)).saturating_mul(1024);
    if len <= left {
        return Ok(());
    }
    Err(Error::new(ErrorKind::OutOfMemory, "allocate", format!("{len} bytes of memory, of which {left} are left"))
        .with_advice("read it in parts, or map it"))
}

pub(crate) fn constraints(len: u64) -> Constraints {
    Constraints::default().typical_len(len)
}
