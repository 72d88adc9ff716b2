//! How much memory may be touched now: a process that touches more than there is is killed.
//!
//! ```text
//! query: how much memory can this process take now (machine, control groups, node)?
//! until the next query: all threads together touch at most an eighth of that, an eighth of the
//!     margin, and STEP bytes. So several processes that query at the same time do not take all.
//!     What eight of them were granted long ago and touch only now fits into the margin.
//! only the margin is left: an error, and the memory goes back
//! ```

use std::sync::atomic::{AtomicUsize, Ordering};

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
