//! Touching pages before they are needed, but not more than there is memory for (`headroom.rs`).
//!
//! Pages are populated by `MADV_POPULATE_WRITE`, which returns an errno where a touch would raise
//! SIGBUS. Private pages of a file are populated for reading: writing would copy each of them.

use std::ops::Range;

use super::headroom;
use super::map::mapped_file::Sharing;
use super::map::pages::{advise, last_os_error};
use super::range::MemoryRange;
use crate::error::{Error, ErrorKind, Result};
use crate::process::page_size;

/// How often populating is tried again when the kernel is short of something for a moment.
const TRIES: u32 = 1000;

impl MemoryRange {
    /// Touches every page, so that later accesses do not fault. (In memory of
    /// [`Dram::map_file`](crate::Dram::map_file), the first store to a page still does.)
    ///
    /// # Errors
    /// `OutOfMemory` where the machine, a control group or the node has no more memory, before a
    /// process is killed for it. `Device` where a mapped file has no such page or no space for it.
    /// `Unavailable` for a mapped file on a kernel before 5.14. Some pages may have been touched by
    /// then.
    pub fn prefault(&self) -> Result<()> {
        if self.is_copied_on_write() {
            // The page cache gives its pages back where memory is short.
            return self.populate(0..self.len());
        }
        let mut done = 0;
        while done < self.len() {
            let left = self.len() - done;
            let step = headroom::take_step(left, self.node(), |step| self.is_there(done..done + step))?;
            self.populate(done..done + step)?;
            done += step;
        }
        Ok(())
    }

    /// Returns the whole pages that hold a part, as an address and a length.
    fn pages(&self, part: Range<usize>) -> (*mut u8, usize) {
        let start = self.address().wrapping_add(part.start);
        let skip = start.addr() % page_size();
        (start.wrapping_sub(skip), part.len() + skip)
    }

    /// Whether all pages of a part are present already, so that they need no memory.
    #[cfg(not(miri))]
    fn is_there(&self, part: Range<usize>) -> bool {
        let (address, len) = self.pages(part);
        let mut there = vec![0u8; len.div_ceil(page_size())];
        // SAFETY: the call asks about pages that the region keeps mapped; the vector has a byte for
        // each.
        let rc = unsafe { libc::mincore(address.cast(), len, there.as_mut_ptr()) };
        rc == 0 && there.iter().all(|page| page & 1 != 0)
    }

    #[cfg(miri)]
    fn is_there(&self, _: Range<usize>) -> bool {
        true
    }

    fn is_copied_on_write(&self) -> bool {
        self.file().is_some_and(|file| file.sharing == Sharing::Private)
    }

    fn populate(&self, part: Range<usize>) -> Result<()> {
        let (address, len) = self.pages(part.clone());
        let advice = if self.is_copied_on_write() { libc::MADV_POPULATE_READ } else { libc::MADV_POPULATE_WRITE };
        let mut tries = 0;
        loop {
            // SAFETY: these are whole pages that hold bytes of the range, which the region keeps
            // mapped. Populating changes no byte.
            if unsafe { advise(address.cast(), len, advice) } == 0 {
                return Ok(());
            }
            let context = || format!("{} bytes of memory at {}", part.len(), part.start);
            let e = last_os_error("prefault", context());
            return match e.errno() {
                Some(libc::EINTR) => continue,
                Some(libc::EAGAIN) if tries < TRIES => {
                    tries += 1;
                    std::thread::yield_now();
                    continue;
                }
                Some(libc::ENOMEM) => Err(e.with_advice("ask for less memory, or raise the limit of the container")),
                Some(libc::EFAULT) => Err(Error::new(ErrorKind::Device, "prefault", context())
                    .with_errno(libc::EFAULT)
                    .with_offset(offset_of(self, part.start))
                    .with_advice("check whether the mapped file was truncated, or the file system is full")),
                Some(libc::EHWPOISON) => Err(Error::new(ErrorKind::Device, "prefault", context())
                    .with_errno(libc::EHWPOISON)
                    .with_offset(offset_of(self, part.start))),
                // This is a kernel before 5.14, or memory whose mapping does not support the
                // advice.
                _ if !self.region().is_shared() => self.touch(part),
                // A touch could raise a SIGBUS that nothing handles here.
                _ => Err(Error::new(ErrorKind::Unavailable, "prefault", format!("{}: {e}", context()))
                    .with_advice("use it without prefaulting: the pages come when they are touched")),
            };
        }
    }

    /// Writes the first byte of each page.
    fn touch(&self, part: Range<usize>) -> Result<()> {
        let mut lease = self.range(part.start, part.len())?.lease_mut()?;
        for at in (0..lease.len()).step_by(page_size()) {
            let byte = &mut lease[at];
            // A volatile write of the same value faults the page in and keeps its contents. SAFETY:
            // byte is a valid reference.
            unsafe { std::ptr::write_volatile(byte, std::ptr::read_volatile(byte)) };
        }
        Ok(())
    }
}

/// The offset in the file that a range maps, else in its region.
fn offset_of(range: &MemoryRange, at: usize) -> u64 {
    let begins_at = range.file().map_or(0, |file| file.begins_at);
    begins_at.saturating_add((range.at() + at) as u64)
}
