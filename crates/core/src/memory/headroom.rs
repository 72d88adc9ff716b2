//! How much memory may be touched now: a process that touches more than there is is killed.
//!
//! ```text
//! query: how much memory can this process take now (machine, control groups, node)?
//! until the next query: all threads together touch at most an eighth of that, an eighth of the
//!     margin, and STEP bytes. So several processes that query at the same time do not take all.
//!     What eight of them were granted long ago and touch only now fits into the margin.
//! only the margin is left: an error, and the memory goes back
//! ```

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::FallocateFlags;

use crate::error::{Error, ErrorKind, Result};
use crate::topology::MemoryHeadroom;

/// The most bytes touched after one query. Touching them takes 1.5 to 50 ms, a query 0.05 ms.
pub(super) const STEP: usize = 16 << 20;
/// The smallest step in bytes.
pub(super) const MIN_STEP: usize = 64 << 10;
/// Bytes that always stay unused: heaps, stacks and page tables of this process and others grow
/// without a query.
const SPARE: u64 = 4 << 20;

/// Bytes that may be touched before the next query. It is shared, so that many small ranges are
/// controlled like one large range.
pub(super) static LEFT: AtomicUsize = AtomicUsize::new(0);

/// The bytes that must stay unused beside `len` bytes: their page tables, `SPARE`, and a 64th of
/// the total.
pub(super) fn margin(len: u64, room: &MemoryHeadroom) -> u64 {
    (len / 256).saturating_add(SPARE).saturating_add(room.of_bytes / 64)
}

/// The most bytes that a caller can ask for.
fn most(room: &MemoryHeadroom) -> u64 {
    let spare = room.bytes.saturating_sub(margin(0, room));
    // Page tables take a 256th of the bytes.
    spare / 257 * 256
}

/// The bytes that may be touched after a query and before the next one.
pub(super) fn grant(room: &MemoryHeadroom) -> usize {
    let margin = margin(STEP as u64, room);
    let spare = room.bytes.saturating_sub(margin);
    usize::try_from(spare.min(margin) / 8).unwrap_or(usize::MAX).min(STEP)
}

/// Takes a step from the granted bytes; returns false where a new query is needed.
pub(super) fn is_granted(step: usize) -> bool {
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

/// Takes a part of `left` bytes that may be touched now, and returns its length. Bytes that
/// `is_there` finds present need no memory.
///
/// # Errors
/// `OutOfMemory`, with the limit that is reached.
pub(super) fn take_step(left: usize, node: Option<u32>, is_there: impl FnOnce(usize) -> bool) -> Result<usize> {
    let step = left.min(STEP);
    if is_granted(step) {
        return Ok(step);
    }
    let Some(room) = MemoryHeadroom::now(node) else { return Ok(step) };
    let spare = room.bytes.saturating_sub(margin(STEP as u64, &room));
    let granted = grant(&room);
    let step = step.min(granted.max(MIN_STEP));
    LEFT.store(granted.saturating_sub(step), Ordering::Relaxed);
    if spare < step as u64 && !is_there(step) {
        return Err(short(left, &room));
    }
    Ok(step)
}

/// Allocates all bytes of an empty file in memory (a memfd), part by part, so that no process is
/// killed where there is not enough memory.
///
/// # Errors
/// `OutOfMemory` where the machine or a control group has not so much memory; some of it may be
/// allocated by then, until the file is closed. Errors of fallocate(2).
pub fn allocate_all(file: BorrowedFd<'_>, len: usize) -> Result<()> {
    check(len, None)?;
    let mut done = 0;
    while done < len {
        let step = take_step(len - done, None, |_| false)?;
        rustix::fs::fallocate(file, FallocateFlags::empty(), done as u64, step as u64)
            .map_err(|e| Error::os("allocate", e.raw_os_error(), format!("{len} bytes of shared memory")))?;
        done += step;
    }
    Ok(())
}

#[cold]
pub(super) fn short(len: usize, room: &MemoryHeadroom) -> Error {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::fd::AsFd;

    use rustix::fs::{MemfdFlags, fstat, memfd_create};

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

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memfd")]
    fn more_memory_than_there_is_is_refused_before_any_is_taken() {
        let file = memfd_create("headroom", MemfdFlags::CLOEXEC).unwrap();
        let allocated = || fstat(&file).unwrap().st_blocks * 512;
        for len in [1 << 40, 1 << 50, usize::MAX] {
            let error = allocate_all(file.as_fd(), len).unwrap_err();
            assert_eq!((error.kind(), allocated()), (ErrorKind::OutOfMemory, 0), "{len}: {error}");
        }
        allocate_all(file.as_fd(), STEP + 4096).unwrap();
        assert_eq!(allocated(), STEP as i64 + 4096);
    }
}
