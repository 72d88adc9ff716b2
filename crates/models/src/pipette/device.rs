//! The simulated SSD: flash channels, a read buffer and a link, with the traffic over it.

use crate::time::{QueueServer, Time};

use super::timing::Timing;

pub(super) const CHANNELS: usize = 8;

/// Fills `out` with the bytes of a modelled file. They are a function of their offset, so that a
/// reader can check them and nothing is stored.
pub fn fill(offset: u64, out: &mut [u8]) {
    let head = (offset.next_multiple_of(8) - offset).min(out.len() as u64) as usize;
    let (head, rest) = out.split_at_mut(head);
    let byte = |at: u64| word(at / 8).to_le_bytes()[(at % 8) as usize];
    head.iter_mut().zip(offset..).for_each(|(b, at)| *b = byte(at));
    let first = offset.div_ceil(8);
    let mut words = rest.chunks_exact_mut(8);
    let mut number = first;
    for chunk in &mut words {
        chunk.copy_from_slice(&word(number).to_le_bytes());
        number += 1;
    }
    words.into_remainder().iter_mut().zip(number * 8..).for_each(|(b, at)| *b = byte(at));
}

/// Returns whether `bytes` are those of the file at an offset.
pub fn is_content(offset: u64, bytes: &[u8]) -> bool {
    let byte = |at: u64| word(at / 8).to_le_bytes()[(at % 8) as usize];
    if !offset.is_multiple_of(8) || !bytes.len().is_multiple_of(8) {
        return (offset..).zip(bytes).all(|(at, &b)| b == byte(at));
    }
    let expected = (offset / 8..).map(|n| word(n).to_le_bytes());
    bytes.chunks_exact(8).zip(expected).all(|(found, expected)| found == expected)
}

/// Returns a word of the file. Every word differs from its neighbours, and pages differ from each
/// other.
fn word(number: u64) -> u64 {
    let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

/// A device in virtual time. Reads of different channels overlap if they are issued at the same
/// time.
#[derive(Clone, Debug)]
pub struct SimulatedDevice {
    timing: Timing,
    /// The size of a flash page as a shift: divisions by it would take half of a model's run time.
    flash_page_bits: u32,
    channels: [QueueServer; CHANNELS],
    link: QueueServer,
    host_bytes: u64,
    flash_reads: u64,
}

impl SimulatedDevice {
    /// Makes an idle device.
    pub fn new(timing: Timing) -> SimulatedDevice {
        SimulatedDevice {
            flash_page_bits: timing.flash_page_bytes.max(1).ilog2(),
            timing,
            channels: [QueueServer::default(); CHANNELS],
            link: QueueServer::default(),
            host_bytes: 0,
            flash_reads: 0,
        }
    }

    /// Returns the costs.
    pub fn timing(&self) -> &Timing {
        &self.timing
    }

    /// Returns the bytes moved to the host: the I/O traffic of the paper's tables.
    pub fn host_bytes(&self) -> u64 {
        self.host_bytes
    }

    /// Returns the number of flash pages read.
    pub fn flash_reads(&self) -> u64 {
        self.flash_reads
    }

    /// Reads `len` bytes of an extent and moves them to the host in one piece. Returns the time
    /// when they are there.
    pub fn fetch(&mut self, now: Time, offset: u64, len: u64) -> Time {
        let buffered = self.load(now, offset, len);
        self.host_bytes += len;
        self.link.serve(buffered, Time::of_bytes(len, self.timing.link_bytes_per_s))
    }

    /// Reads a block with the window that the kernel reads ahead, flash page after flash page. Only
    /// the block itself is counted as traffic.
    pub fn fetch_with_read_ahead(&mut self, now: Time, offset: u64, len: u64) -> Time {
        let pages = ((self.timing.read_ahead_bytes.max(len) - 1) >> self.flash_page_bits) + 1;
        self.flash_reads += pages;
        self.host_bytes += len;
        let channel = self.channel(offset);
        let buffered = self.channels[channel].serve(now, self.timing.flash_read * pages);
        self.link.serve(buffered, Time::of_bytes(len, self.timing.link_bytes_per_s))
    }

    /// Loads the flash pages of an extent into the read buffer, and counts the bytes that the host
    /// itself loads from there.
    pub fn expose(&mut self, now: Time, offset: u64, len: u64) -> Time {
        self.host_bytes += len;
        self.load(now, offset, len)
    }

    fn load(&mut self, now: Time, offset: u64, len: u64) -> Time {
        let (first, last) = (offset >> self.flash_page_bits, (offset + len.max(1) - 1) >> self.flash_page_bits);
        let mut until = now;
        for flash_page in first..=last {
            self.flash_reads += 1;
            let channel = flash_page as usize % CHANNELS;
            until = until.max(self.channels[channel].serve(now, self.timing.flash_read));
        }
        until
    }

    fn channel(&self, offset: u64) -> usize {
        (offset >> self.flash_page_bits) as usize % CHANNELS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_overlap_and_read_ahead_does_not() {
        let timing = Timing { link_bytes_per_s: f64::INFINITY, ..Timing::calibrated() };
        let mut device = SimulatedDevice::new(timing);
        let page = timing.flash_page_bytes;
        assert_eq!(device.fetch(Time::ZERO, 0, 128), timing.flash_read);
        assert_eq!(device.fetch(Time::ZERO, page, 128), timing.flash_read);
        assert_eq!(device.fetch(Time::ZERO, 64, 128), timing.flash_read * 2);
        assert_eq!(device.fetch(Time::ns(1_000_000), page - 1, 2), Time::ns(1_000_000) + timing.flash_read);
        assert_eq!((device.host_bytes(), device.flash_reads()), (386, 5));
        let mut device = SimulatedDevice::new(timing);
        let pages = timing.read_ahead_bytes / page;
        assert_eq!(device.fetch_with_read_ahead(Time::ZERO, 4096, 4096), timing.flash_read * pages);
        assert_eq!(device.host_bytes(), 4096);
    }

    #[test]
    fn bytes_are_the_same_in_any_pieces_and_wrong_ones_are_seen() {
        let mut whole = vec![0; 9000];
        fill(0, &mut whole);
        for (offset, len) in [(0, 9000), (1, 1), (5, 100), (4090, 20), (8, 64), (8999, 1), (7, 0)] {
            let mut piece = vec![0; len];
            fill(offset as u64, &mut piece);
            assert_eq!(piece, whole[offset..offset + len]);
            assert!(is_content(offset as u64, &piece));
            if len > 0 {
                piece[len / 2] ^= 1;
                assert!(!is_content(offset as u64, &piece));
            }
        }
        assert!(whole[..4096] != whole[4096..8192]);
    }
}
