//! Pages are touched before they are needed, and not beyond what is there: a process that touches
//! more is killed.
//!
//! ```text
//! look: what can this process take now (machine, control groups, node)?
//! until the next look: no more than an eighth of that is touched, by all threads together, an eighth of the margin, and STEP
//!                      bytes at most; so several processes that look at the same time do not take it all, and what eight
//!                      of them have looked at long ago and touch only now fits into the margin
//! nothing left but the margin? an error, and the memory goes back
//! ```
//!
//! Pages are populated by `MADV_POPULATE_WRITE`, which answers with an errno where a touch would
//! raise SIGBUS.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::region::{MemoryRange, advise, last_os_error};
use crate::error::{Error, ErrorKind, Result};
use crate::process::page_size;
use crate::topology::MemoryHeadroom;

/// Bytes that are touched after one look, at most: to touch them takes 1.5 to 50 ms, a look 0.05.
const STEP: usize = 16 << 20;
/// The least step.
const MIN_STEP: usize = 64 << 10;
/// What must stay unused at least: heaps, stacks and page tables, of this process and others, grow
/// without anybody asking.
const SPARE: u64 = 4 << 20;

/// How often the kernel may lack something for a moment.
const TRIES: u32 = 1000;

/// Bytes that may be touched before the next look, so that many small pieces are looked after as
/// one large piece is.
static LEFT: AtomicUsize = AtomicUsize::new(0);

/// What must stay unused beside so many bytes: their page tables, and a 64th of what there is.
fn margin(len: u64, room: &MemoryHeadroom) -> u64 {
    (len / 256).saturating_add(SPARE).saturating_add(room.of_bytes / 64)
}

/// The most that can be asked for beside what must stay unused.
fn most(room: &MemoryHeadroom) -> u64 {
    let spare = room.bytes.saturating_sub(margin(0, room));
    // Page tables of `most` bytes are a 256th of them.
    spare / 257 * 256
}

/// What may be touched after a look, before the next one.
fn grant(room: &MemoryHeadroom) -> usize {
    let margin = margin(STEP as u64, room);
    let spare = room.bytes.saturating_sub(margin);
    usize::try_from(spare.min(margin) / 8).unwrap_or(usize::MAX).min(STEP)
}

/// Takes a step out of what may be touched without a look; false where it is time to look.
fn is_granted(step: usize) -> bool {
    let less = |left: usize| left.checked_sub(step);
    cfg!(miri) || LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
}

/// Whether so many bytes are there to be touched, before anything is mapped.
///
/// # Errors
/// `OutOfMemory`, with what limits it.
pub(super) fn check(len: usize, node: Option<u32>) -> Result<()> {
    if len < STEP {
        // It is looked after when it is touched.
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
        "{len} bytes of memory, of which {} are left by {}, {kept} of them to stay unused (page tables, heaps, stacks)",
        room.bytes, room.limited_by
    );
    Error::new(ErrorKind::OutOfMemory, "touch", context)
        .advice(format!("ask for at most {} bytes now, free some, or raise the limit of the container", most(room)))
}

impl MemoryRange {
    /// Touches every page, so that later access does not fault.
    ///
    /// # Errors
    /// `OutOfMemory` where the machine, a control group or the node has no more to give, before
    /// anybody is killed for it; `Device` where the file that is mapped has no such page, or no
    /// room for it; `Unavailable` for a mapped file on a kernel before 5.14. Some pages may have
    /// been touched then.
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

    /// How much of what is left may be touched now.
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

    /// Whole pages that hold a part, as an address and a length.
    fn pages(&self, part: Range<usize>) -> (*mut u8, usize) {
        let start = self.address().wrapping_add(part.start);
        let skip = start.addr() % page_size();
        (start.wrapping_sub(skip), part.len() + skip)
    }

    /// Whether all pages of a part are there already, and need no memory.
    #[cfg(not(miri))]
    fn is_there(&self, part: Range<usize>) -> bool {
        let (address, len) = self.pages(part);
        let mut there = vec![0u8; len.div_ceil(page_size())];
        // SAFETY: asks about pages that the region keeps mapped; the vector has a byte for each.
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
            // SAFETY: whole pages that hold bytes of the range, which the region keeps mapped;
            // populating changes no byte.
            if unsafe { advise(address.cast(), len, libc::MADV_POPULATE_WRITE) } == 0 {
                return Ok(());
            }
            let context = || format!("{} bytes of memory at {}", part.len(), part.start);
            let e = last_os_error("prefault", context());
            return match e.raw_os_error() {
                Some(libc::EINTR) => continue,
                Some(libc::EAGAIN) if tries < TRIES => {
                    tries += 1;
                    std::thread::yield_now();
                    continue;
                }
                Some(libc::ENOMEM) => Err(e.advice("ask for less memory, or raise the limit of the container")),
                Some(libc::EFAULT) => Err(Error::new(ErrorKind::Device, "prefault", context())
                    .errno(libc::EFAULT)
                    .offset((self.at() + part.start) as u64)
                    .advice("see whether somebody truncated the file that is mapped, or the file system is full")),
                Some(libc::EHWPOISON) => Err(Error::new(ErrorKind::Device, "prefault", context())
                    .errno(libc::EHWPOISON)
                    .offset((self.at() + part.start) as u64)),
                // Kernels before 5.14, and memory whose mapping does not know it.
                _ if !self.region().is_shared() => self.touch(part),
                // A touch could raise SIGBUS, which nobody here would answer.
                _ => Err(Error::new(ErrorKind::Unavailable, "prefault", format!("{}: {e}", context()))
                    .advice("use it without prefaulting: the pages come when they are touched")),
            };
        }
    }

    /// Writes the first byte of each page.
    fn touch(&self, part: Range<usize>) -> Result<()> {
        let mut lease = self.range(part.start, part.len())?.lease_mut()?;
        for at in (0..lease.len()).step_by(page_size()) {
            let byte = &mut lease[at];
            // A volatile write of what is there: the page is faulted in and its contents stay.
            // SAFETY: byte is a valid reference.
            unsafe { std::ptr::write_volatile(byte, std::ptr::read_volatile(byte)) };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_eight_processes_were_granted_long_ago_fits_into_the_margin() {
        for (bytes, of_bytes) in
            [(0, 0), (5 << 20, 64 << 20), (90 << 20, 96 << 20), (1 << 30, 1 << 30), (20 << 30, 24 << 30)]
        {
            let room = MemoryHeadroom { bytes, of_bytes, limited_by: "a test".to_owned() };
            // The others took all but the margin since: a process that was held up touches what it
            // was granted then.
            let late = 8 * grant(&room).max(MIN_STEP) as u64;
            assert!(late <= margin(STEP as u64, &room), "{late} of {room:?}");
        }
    }

    #[test]
    fn what_is_advised_fits_and_the_error_says_what_is_kept() {
        for (bytes, of_bytes) in
            [(0, 0), (5 << 20, 64 << 20), (96 << 20, 96 << 20), (20 << 30, 24 << 30), (u64::MAX, u64::MAX)]
        {
            let room = MemoryHeadroom { bytes, of_bytes, limited_by: "a test".to_owned() };
            let most = most(&room);
            assert!(most == 0 || most.saturating_add(margin(most, &room)) <= bytes, "{most} of {room:?}");
            let more = most + (64 << 10);
            assert!(bytes > 1 << 40 || more + margin(more, &room) > bytes, "{more} would fit, too: {room:?}");
            let text = short(1 << 20, &room).to_string();
            for part in [format!("{} of them to stay unused", margin(1 << 20, &room)), format!("at most {most} bytes")]
            {
                assert!(text.contains(&part), "{part} is not in: {text}");
            }
        }
    }
}
