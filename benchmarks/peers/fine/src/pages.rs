//! Readers through the page cache, with the advice that reads are random (so no read-ahead).

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use crate::reader::{Outcome, Reader, Session};

/// Requests and threads after which the page cache is in its steady state: several times as many
/// faults as it has pages.
const WARM_UP: (usize, usize) = (200_000, 8);

pub struct Pread {
    file: File,
    /// Without a limit of memory: after so many reads the file is dropped from the page cache.
    drop_after: Option<u64>,
}

impl Pread {
    pub fn open(path: &str, drop_after: Option<u64>) -> Outcome<Pread> {
        let file = File::open(path).map_err(|e| format!("{path}: {e}"))?;
        // SAFETY: advice about a descriptor that is open.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
        Ok(Pread { file, drop_after })
    }
}

impl Reader for Pread {
    fn session(&self) -> Outcome<Box<dyn Session + '_>> {
        Ok(Box::new(Positioned { of: self, left: self.drop_after.unwrap_or(u64::MAX) }))
    }

    fn hits_by(&self) -> &'static str {
        "pages not read, by the kernel's count of device bytes"
    }

    fn warm_up(&self) -> Option<(usize, usize)> {
        Some(WARM_UP)
    }
}

struct Positioned<'a> {
    of: &'a Pread,
    left: u64,
}

impl Session for Positioned<'_> {
    #[inline]
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Outcome<()> {
        self.left -= 1;
        if self.left == 0 {
            // SAFETY: advice about a descriptor that is open.
            unsafe { libc::posix_fadvise(self.of.file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
            self.left = self.of.drop_after.unwrap_or(u64::MAX);
        }
        self.of.file.read_exact_at(out, offset).map_err(|e| e.to_string())
    }
}

pub struct Mapped {
    at: *const u8,
    len: usize,
}

// SAFETY: a mapping that is only read may be read by any thread.
unsafe impl Sync for Mapped {}

impl Mapped {
    pub fn open(path: &str) -> Outcome<Mapped> {
        let file = File::open(path).map_err(|e| format!("{path}: {e}"))?;
        let len = file.metadata().map_err(|e| e.to_string())?.len() as usize;
        // SAFETY: a new mapping of an open file; it lives as long as the process.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().to_string());
        }
        // SAFETY: advice about our own mapping.
        unsafe { libc::madvise(at, len, libc::MADV_RANDOM) };
        Ok(Mapped { at: at.cast(), len })
    }
}

impl Reader for Mapped {
    fn session(&self) -> Outcome<Box<dyn Session + '_>> {
        Ok(Box::new(Looking(self)))
    }

    fn hits_by(&self) -> &'static str {
        "pages not read, by the kernel's count of device bytes"
    }

    fn warm_up(&self) -> Option<(usize, usize)> {
        Some(WARM_UP)
    }
}

struct Looking<'a>(&'a Mapped);

impl Session for Looking<'_> {
    #[inline]
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Outcome<()> {
        let at = offset as usize;
        if at + out.len() > self.0.len {
            return Err(format!("{offset} is beyond the file"));
        }
        // SAFETY: within the mapping, as was just checked; the file is not changed while it is
        // measured.
        unsafe { std::ptr::copy_nonoverlapping(self.0.at.add(at), out.as_mut_ptr(), out.len()) };
        Ok(())
    }
}
