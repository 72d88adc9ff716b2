//! Touching pages before they are needed, but not more than there is memory for: a process that
//! touches more is killed.
//!
//! ```text
//! query: how much memory can this process take now (machine, control groups, node)?
//! until the next query: all threads together touch at most an eighth of that, an eighth of the
//!     margin, and STEP bytes. So several processes that query at the same time do not take all.
//!     What eight of them were granted long ago and touch only now fits into the margin.
//! only the margin is left: an error, and the memory goes back
//! ```
//!
//! Pages are populated by `MADV_POPULATE_WRITE`, which returns an errno where a touch would raise
//! SIGBUS.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::region::{MemoryRange, advise, last_os_error};
use crate::error::{Error, ErrorKind, Result};
use crate::process::page_size;
use crate::topology::MemoryHeadroom;

/// The most bytes touched after one query. Touching them takes 1.5 to 50 ms, a query 0.05 ms.
const STEP: usize = 16 << 20;
/// The smallest step in bytes.
const MIN_STEP: usize = 64 << 10;
/// Bytes that always stay unused: heaps, stacks and page tables of this process and others grow
/// without a query.
const SPARE: u64 = 4 << 20;

/// How often populating is tried again when the kernel is short of something for a moment.
const TRIES: u32 = 1000;

/// Bytes that may be touched before the next query. It is shared, so that many small ranges are
/// controlled like one large range.
static LEFT: AtomicUsize = AtomicUsize::new(0);

/// The bytes that must stay unused beside `len` bytes: their page tables, `SPARE`, and a 64th of
/// the total.
fn margin(len: u64, room: &MemoryHeadroom) -> u64 {
    (len / 256).saturating_add(SPARE).saturating_add(room.of_bytes / 64)
}

/// The most bytes that a caller can ask for.
fn most(room: &MemoryHeadroom) -> u64 {
    let spare = room.bytes.saturating_sub(margin(0, room));
    // Page tables take a 256th of the bytes.
    spare / 257 * 256
}

/// The bytes that may be touched after a query and before the next one.
fn grant(room: &MemoryHeadroom) -> usize {
    let margin = margin(STEP as u64, room);
    let spare = room.bytes.saturating_sub(margin);
    usize::try_from(spare.min(margin) / 8).unwrap_or(usize::MAX).min(STEP)
}

/// Takes a step from the granted bytes; returns false where a new query is needed.
fn is_granted(step: usize) -> bool {
    let less = |left: usize| left.checked_sub(step);
    cfg!(miri) || LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
}

/// Checks before mapping that there is memory for `len` bytes.
///
/// # Errors
/// `OutOfMemory`, with the limit that is reached.
pub(super) fn check(len: usize, node: Option<u32>) -> Result<()> {
    if len < STEP {
        // A short range is checked when it is touched.
        return Ok(());
    }
    match if cfg!(miri) { None } else { MemoryHeadroom::now(node) } {
        Some(room) if room.bytes < (len as u64).saturating_add(margin(len as u64, &room)) => Err(short(len, &room)),
        _ => Ok(()),
    }
}

#[cold]
fn short(len: usize, room: &MemoryHeadroom) -> Error {
    let kept = margin(len as u64, room);
    let context = format!(
        "{len} bytes of memory: only {} are left by {}, and {kept} of them have to stay unused (page tables, heaps, stacks)",
        room.bytes, room.limited_by
    );
    Error::new(ErrorKind::OutOfMemory, "touch", context).with_advice(format!(
        "ask for at most {} bytes now, free some, or raise the limit of the container",
        most(room)
    ))
}

impl MemoryRange {
    /// Touches every page, so that later accesses do not fault.
    ///
    /// # Errors
    /// `OutOfMemory` where the machine, a control group or the node has no more memory, before a
    /// process is killed for it. `Device` where a mapped file has no such page or no space for it.
    /// `Unavailable` for a mapped file on a kernel before 5.14. Some pages may have been touched by
    /// then.
    pub fn prefault(&self) -> Result<()> {
        let mut done = 0;
        while done < self.len() {
            let left = self.len() - done;
            let step = self.step(done, left)?;
            self.populate(done..done + step)?;
            done += step;
        }
        Ok(())
    }

    /// Returns how much of the rest may be touched now.
    fn step(&self, at: usize, left: usize) -> Result<usize> {
        let step = left.min(STEP);
        if is_granted(step) {
            return Ok(step);
        }
        let Some(room) = MemoryHeadroom::now(self.node()) else { return Ok(step) };
        let spare = room.bytes.saturating_sub(margin(STEP as u64, &room));
        let granted = grant(&room);
        let step = step.min(granted.max(MIN_STEP));
        LEFT.store(granted.saturating_sub(step), Ordering::Relaxed);
        if spare < step as u64 && !self.is_there(at..at + step) {
            return Err(short(left, &room));
        }
        Ok(step)
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

    fn populate(&self, part: Range<usize>) -> Result<()> {
        let (address, len) = self.pages(part.clone());
        let mut tries = 0;
        loop {
            // SAFETY: these are whole pages that hold bytes of the range, which the region keeps
            // mapped. Populating changes no byte.
            if unsafe { advise(address.cast(), len, libc::MADV_POPULATE_WRITE) } == 0 {
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
                    .with_offset((self.at() + part.start) as u64)
                    .with_advice("check whether the mapped file was truncated, or the file system is full")),
                Some(libc::EHWPOISON) => Err(Error::new(ErrorKind::Device, "prefault", context())
                    .with_errno(libc::EHWPOISON)
                    .with_offset((self.at() + part.start) as u64)),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_grants_that_are_used_late_fit_into_the_margin() {
        for (bytes, of_bytes) in
            [(0, 0), (5 << 20, 64 << 20), (90 << 20, 96 << 20), (1 << 30, 1 << 30), (20 << 30, 24 << 30)]
        {
            let room = MemoryHeadroom { bytes, of_bytes, limited_by: "a test".to_owned() };
            // The others have taken all but the margin since. A delayed process then touches what
            // it was granted earlier.
            let late = 8 * grant(&room).max(MIN_STEP) as u64;
            assert!(late <= margin(STEP as u64, &room), "{late} of {room:?}");
        }
    }

    #[test]
    fn the_advised_size_fits_and_the_error_names_the_reserve() {
        for (bytes, of_bytes) in
            [(0, 0), (5 << 20, 64 << 20), (96 << 20, 96 << 20), (20 << 30, 24 << 30), (u64::MAX, u64::MAX)]
        {
            let room = MemoryHeadroom { bytes, of_bytes, limited_by: "a test".to_owned() };
            let most = most(&room);
            assert!(most == 0 || most.saturating_add(margin(most, &room)) <= bytes, "{most} of {room:?}");
            let more = most + (64 << 10);
            assert!(bytes > 1 << 40 || more + margin(more, &room) > bytes, "{more} would fit, too: {room:?}");
            let text = short(1 << 20, &room).to_string();
            for part in
                [format!("{} of them have to stay unused", margin(1 << 20, &room)), format!("at most {most} bytes")]
            {
                assert!(text.contains(&part), "{part} is not in: {text}");
            }
        }
    }
}
