//! Changes that nobody told us of: other processes, or memory that maps the file.
//!
//! What the kernel can tell is the file's length and its times of modification and change. A write by another process moves
//! them; one through a mapping moves them only when the page is first written after it was cleaned; two writes within a tick
//! of the file system's clock (nanoseconds on kernels from 6.13 on, milliseconds before) look like one. So this finds a file that
//! was edited or replaced in place; it is no protocol between processes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use datapipes_core::{Error, Result, Ssd};

use crate::sync::{Mutex, lock};

/// How the file looked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) len: u64,
    pub(crate) modified_ns: i128,
    pub(crate) changed_ns: i128,
}

impl Look {
    pub(crate) fn at(ssd: &Ssd) -> Result<Look> {
        let stat = rustix::fs::fstat(ssd.file().cached_fd())
            .map_err(|e| Error::os("look at", e.raw_os_error(), ssd.path().display().to_string()))?;
        let ns = |s: i64, ns: i128| i128::from(s) * 1_000_000_000 + ns;
        Ok(Look {
            len: u64::try_from(stat.st_size).unwrap_or(0),
            modified_ns: ns(stat.st_mtime, i128::from(stat.st_mtime_nsec)),
            changed_ns: ns(stat.st_ctime, i128::from(stat.st_ctime_nsec)),
        })
    }

    /// The same, such that every change from now on is seen: it waits, at most for a tick of the file system's clock, while the
    /// last change is younger than that.
    pub(crate) fn at_rest(ssd: &Ssd) -> Result<Look> {
        let look = Look::at(ssd)?;
        let last = u64::try_from(look.changed_ns.max(look.modified_ns)).unwrap_or(0);
        let age = SystemTime::now().duration_since(UNIX_EPOCH + Duration::from_nanos(last)).unwrap_or_default();
        if age >= TICK {
            return Ok(look);
        }
        std::thread::sleep(TICK - age);
        Look::at(ssd)
    }
}

/// A file that changed within this time may change again without looking otherwise: no clock of a file system that we know
/// ticks more slowly.
const TICK: Duration = Duration::from_millis(20);

/// How it looked last; nothing is known until the next look after a change of our own.
pub(crate) struct Outside(Mutex<Option<Look>>);

impl Outside {
    pub(crate) fn new(ssd: Option<&Ssd>) -> Outside {
        Outside(Mutex::new(ssd.and_then(|s| Look::at(s).ok())))
    }

    /// A change of our own: how the file looks now is how it should look.
    pub(crate) fn forget(&self, ssd: Option<&Ssd>) {
        *lock(&self.0) = ssd.and_then(|s| Look::at(s).ok());
    }

    /// Whether the file looks otherwise than before.
    pub(crate) fn look(&self, ssd: Option<&Ssd>) -> Result<bool> {
        let Some(ssd) = ssd else { return Ok(false) };
        let mut known = lock(&self.0);
        let now = Look::at(ssd)?;
        Ok(known.replace(now).is_some_and(|before| before != now))
    }
}
