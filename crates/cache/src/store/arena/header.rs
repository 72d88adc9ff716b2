//! The header of an item: eight bytes before the data of its slab.
//!
//! ```text
//! bit 63      20 19        8 7      6 5          3 2     0
//!     [  offset ][ length-1 ][ freq  ][ period    ][ state ]
//! ```
//! In a free slot the upper half is the number of the next free slot.

/// The contents of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing. The slot is on its class's list of free slots, or was never used.
    Free,
    /// Nothing any more, but a reader may still use the old item.
    Dead,
    /// An item that was not yet read again (S3-FIFO's small queue, a window, the paper's TempBuf).
    Probation,
    /// An item that was read again.
    Main,
}

/// The bytes of a sector, the unit of the index.
pub(crate) const SECTOR: u64 = 512;
/// The bytes of a page. No item crosses the end of a page.
pub(crate) const PAGE: u64 = 4096;
/// The greatest length of an item: a page.
pub(crate) const MAX_LEN: usize = PAGE as usize;
/// The limit of offsets: 16 TiB.
pub(crate) const MAX_OFFSET: u64 = 1 << 44;
/// The limit of an item's read count.
pub(crate) const MAX_FREQ: u8 = 3;
/// Periods of the time to live are counted modulo this.
pub(crate) const PERIODS: u8 = 8;

/// The header of an item, or of a free slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header(u64);

impl Header {
    pub(crate) fn item(offset: u64, len: usize, period: u8, state: State) -> Header {
        debug_assert!(offset < MAX_OFFSET && (1..=MAX_LEN).contains(&len));
        Header(offset << 20 | (len as u64 - 1) << 8 | u64::from(period % PERIODS) << 3 | state as u64)
    }

    pub(crate) fn free(next: u32) -> Header {
        Header(u64::from(next) << 32 | State::Free as u64)
    }

    /// Makes a header from a word of memory. Every number is a header.
    pub(crate) fn of(bits: u64) -> Header {
        Header(bits)
    }

    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    /// The next slot in the list of free slots.
    pub(crate) fn next_free(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub(crate) fn state(self) -> State {
        match self.0 & 7 {
            0 => State::Free,
            1 => State::Dead,
            2 => State::Probation,
            _ => State::Main,
        }
    }

    pub(crate) fn is_live(self) -> bool {
        self.0 & 7 >= State::Probation as u64
    }

    pub(crate) fn offset(self) -> u64 {
        self.0 >> 20
    }

    pub(crate) fn len(self) -> usize {
        (self.0 >> 8 & 0xfff) as usize + 1
    }

    pub(crate) fn end(self) -> u64 {
        self.offset() + self.len() as u64
    }

    pub(crate) fn freq(self) -> u8 {
        (self.0 >> 6 & 3) as u8
    }

    pub(crate) fn period(self) -> u8 {
        (self.0 >> 3 & 7) as u8
    }

    pub(crate) fn with_freq(self, freq: u8) -> Header {
        Header(self.0 & !(3 << 6) | u64::from(freq & 3) << 6)
    }

    pub(crate) fn with_state(self, state: State) -> Header {
        Header(self.0 & !7 | state as u64)
    }

    /// Whether it holds all of `len` bytes at `offset`.
    pub(crate) fn covers(self, offset: u64, len: usize) -> bool {
        self.offset() <= offset && offset + len as u64 <= self.end()
    }

    /// Whether it holds a byte of the range.
    pub(crate) fn overlaps(self, from: u64, to: u64) -> bool {
        self.offset() < to && from < self.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_keeps_its_extremes() {
        for offset in [0, 1, 4095, MAX_OFFSET - 1] {
            for len in [1, 2, 511, MAX_LEN] {
                let h = Header::item(offset, len, 7, State::Main).with_freq(MAX_FREQ);
                assert_eq!((h.offset(), h.len(), h.period(), h.freq()), (offset, len, 7, 3));
                let h = h.with_state(State::Probation).with_freq(1);
                assert_eq!((h.offset(), h.len(), h.period(), h.freq()), (offset, len, 7, 1));
                assert_eq!((h.state(), h.is_live()), (State::Probation, true));
                assert!(!h.with_state(State::Dead).is_live());
            }
        }
        let h = Header::free(u32::MAX - 1);
        assert_eq!((h.state(), h.next_free(), h.is_live()), (State::Free, u32::MAX - 1, false));
    }
}
