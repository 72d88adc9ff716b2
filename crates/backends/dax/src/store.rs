//! The choice of stores for each part of a range, so that the medium writes each of its blocks
//! once.
//!
//! ```text
//! blocks of 256:   |...........|...........|...........|...........|
//! the bytes:            [ head |   whole blocks        | tail ]
//!
//! head, tail:    ordinary stores of all of it, then its lines are written back in order. The
//!                block is assembled in the cache, and the medium, which writes only whole
//!                blocks, gets it once.
//! whole blocks:  four lines by stores past the caches, back to back
//! ```
//!
//! Neighbouring bytes, which belong to others, are never stored. Reading, changing and writing a
//! block would store them.

use crate::guard::{AccessFault, Guarded, LINE};

/// The bytes that the medium reads and writes at once.
pub(crate) const BLOCK: usize = 256;
/// From this length on, stores past the caches are faster than storing and writing back. They need
/// not read the line first (Yang et al., "An Empirical Guide to the Behavior and Use of Scalable
/// Persistent Memory", FAST'20, section 5.2).
pub(crate) const MIN_STREAM_BYTES: usize = 512;
/// Bytes that are stored before they are written back, while they are in the nearest cache. A
/// multiple of `BLOCK`.
const CHUNK: usize = 4096;

/// How bytes are stored to persistent memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    /// By length: `WriteBack` below [`MIN_STREAM_BYTES`], else `Stream`.
    BySize,
    /// Whole blocks bypass the caches.
    Stream,
    /// Ordinary stores are written back.
    WriteBack,
}

/// How bytes are loaded from persistent memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// Ordinary loads and stores: the bytes are in the caches afterwards.
    Ordinary,
    /// Loads and stores both bypass the caches.
    Past,
}

/// The three parts of a range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    /// Bytes before the first whole block.
    pub(crate) head: usize,
    /// Bytes of whole blocks.
    pub(crate) blocks: usize,
    /// Bytes after the last whole block.
    pub(crate) tail: usize,
}

impl Parts {
    /// Divides `len` bytes at an address into units of `unit` bytes.
    pub(crate) fn of(address: usize, len: usize, unit: usize) -> Parts {
        let head = (address.wrapping_neg() % unit).min(len);
        let blocks = (len - head) / unit * unit;
        Parts { head, blocks, tail: len - head - blocks }
    }
}

/// Adds the bytes that were done before.
fn after(done: usize) -> impl Fn(AccessFault) -> AccessFault {
    move |gone| AccessFault { done: gone.done + done, ..gone }
}

/// Stores `len` bytes. If the target is persistent memory, they survive when this returns. `whole`
/// is the length of the transfer that they are a part of.
///
/// # Safety
/// As for [`Guarded::copy`]; `len` bytes must be held at both addresses.
#[allow(unsafe_code)]
pub(crate) unsafe fn store(
    guarded: Guarded,
    (from, to): (*const u8, *mut u8),
    len: usize,
    how: Store,
    whole: usize,
) -> Result<(), AccessFault> {
    if how == Store::WriteBack || how == Store::BySize && whole < MIN_STREAM_BYTES {
        // SAFETY: the caller guarantees what this function demands.
        return unsafe { write_back(guarded, from, to, len) };
    }
    let Parts { head, blocks, tail } = Parts::of(to.addr(), len, BLOCK);
    let (blocks_end, mid) = (head + blocks, head);
    // SAFETY: the three parts follow each other within the `len` bytes that the caller guarantees.
    // The whole blocks start at a multiple of BLOCK, which is a multiple of LINE.
    unsafe {
        write_back(guarded, from, to, head)?;
        guarded.stream(from.add(mid), to.add(mid), blocks).map_err(after(mid))?;
        write_back(guarded, from.add(blocks_end), to.add(blocks_end), tail).map_err(after(blocks_end))
    }
}

/// # Safety
/// As for [`store`].
#[allow(unsafe_code)]
unsafe fn write_back(guarded: Guarded, from: *const u8, to: *mut u8, len: usize) -> Result<(), AccessFault> {
    let mut done = 0;
    while done < len {
        // Each part ends at a multiple of CHUNK, so that no block is written back twice.
        let part = (CHUNK - (to.addr() + done) % CHUNK).min(len - done);
        // SAFETY: `part` bytes after `done` lie within the `len` bytes that the caller guarantees.
        unsafe {
            // Bytes that were stored before a missing page are written back too, so that the bytes
            // reported as done are durable.
            let copied = guarded.copy(from.add(done), to.add(done), part);
            let stored = copied.err().map_or(part, |gone| gone.done);
            guarded.write_back(to.add(done), stored).map_err(after(done))?;
            copied.map_err(after(done))?;
        }
        done += part;
    }
    Ok(())
}

/// Loads `len` bytes into memory that need not survive.
///
/// # Safety
/// As for [`store`].
#[allow(unsafe_code)]
pub(crate) unsafe fn load(
    guarded: Guarded,
    (from, to): (*const u8, *mut u8),
    len: usize,
    how: Load,
) -> Result<(), AccessFault> {
    if how == Load::Ordinary || len < 2 * LINE {
        // SAFETY: the caller guarantees what this function demands.
        return unsafe { guarded.copy(from, to, len) };
    }
    let Parts { head, blocks, tail } = Parts::of(to.addr(), len, LINE);
    let (lines_end, mid) = (head + blocks, head);
    // SAFETY: as in `store`, in units of LINE.
    unsafe {
        guarded.copy(from, to, head)?;
        guarded.stream(from.add(mid), to.add(mid), blocks).map_err(after(mid))?;
        guarded.copy(from.add(lines_end), to.add(lines_end), tail).map_err(after(lines_end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_parts_cover_the_bytes_and_no_block_is_in_two_of_them(at in 0usize..2000, len in 0usize..5000) {
            let Parts { head, blocks, tail } = Parts::of(at, len, BLOCK);
            prop_assert_eq!(head + blocks + tail, len);
            prop_assert!(head < BLOCK && tail < BLOCK && blocks % BLOCK == 0);
            prop_assert!(blocks == 0 || (at + head) % BLOCK == 0);
            // The blocks of the three parts, by number.
            let of = |at: usize, len: usize| if len == 0 { 0..0 } else { at / BLOCK..(at + len).div_ceil(BLOCK) };
            let parts = [of(at, head), of(at + head, blocks), of(at + head + blocks, tail)];
            for (i, a) in parts.iter().enumerate() {
                for b in &parts[i + 1..] {
                    prop_assert!(a.is_empty() || b.is_empty() || a.end <= b.start, "{parts:?}");
                }
            }
            // Where there are whole blocks, none of them is in the head or the tail.
            prop_assert!(head + tail < 2 * BLOCK);
        }
    }
}
