//! Reads a file or an object through a pipe into a window of memory: while one block is looked at,
//! the next ones arrive.
//!
//! ```text
//! file   | b0 | b1 | b2 | b3 | b4 | ...
//! memory | b0 | b1 | b2 |             b0 is looked at, b1 and b2 are on their way; then b3 goes where b0 was
//! ```

use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};

use datapipes::in_flight_limit::{InFlightLimit, InFlightMark};
use datapipes::{Constraints, Dram, FileAccess, Locator, MapOptions, Pages, Pipe, Reach, Result, Span, Ssd, Transfer};

/// The most bytes of a block; a multiple of what direct I/O wants.
pub(crate) const BLOCK: usize = 4 << 20;
/// The least bytes of a block. Blocks of slow places are short, so that a signal is soon heard.
const SHORT_BLOCK: u64 = 256 << 10;
/// Blocks of a window.
const DEPTH: usize = 3;
/// The same for what is at a server: a block is a request, and requests wait for the network.
const DISTANT_BLOCK: usize = 8 << 20;
const DISTANT_DEPTH: usize = 8;

/// A pipe from a place to a window.
pub(crate) struct Window {
    pipe: Pipe,
    memory: Dram,
    block: usize,
}

impl Window {
    /// Connects a place of this length to fresh memory.
    pub(crate) fn over(machine: &datapipes::Machine, place: &dyn Locator, len: u64) -> Result<Window> {
        let is_distant = place.endpoint().facts.reach == Reach::Server;
        let (block, depth) = if is_distant { (DISTANT_BLOCK, DISTANT_DEPTH) } else { (BLOCK, DEPTH) };
        // The window is no larger than the place, so that a small one costs little memory.
        let len = usize::try_from(len).unwrap_or(usize::MAX).clamp(1, block * depth).next_multiple_of(4096);
        let options = MapOptions::default().pages(Pages::Huge).prefault(false);
        let memory = Dram::allocate_with(len, options)?;
        let constraints = Constraints::default().typical_len(block as u64);
        Ok(Window { pipe: machine.connect_with(place, &memory, &constraints)?, memory, block })
    }

    /// Hands on the bytes of a range of the place, block by block and in order, until `look` has
    /// seen enough.
    pub(crate) fn read(&self, range: Range<u64>, mut look: impl FnMut(&[u8]) -> Result<ControlFlow<()>>) -> Result<()> {
        let slots = (self.memory.len() / self.block).max(1);
        let most = self.memory.len().min(self.block) as u64;
        let mut flying: VecDeque<(usize, usize, Transfer, InFlightMark)> = VecDeque::new();
        let mut next = range.start;
        let mut turn = 0;
        let mut limit = match self.block == DISTANT_BLOCK {
            true => InFlightLimit::fixed(most * slots as u64),
            false => InFlightLimit::new(SHORT_BLOCK.min(most), most / 4, most * slots as u64),
        };
        loop {
            let mut under_way: u64 = flying.iter().map(|(_, len, ..)| *len as u64).sum();
            while flying.len() < slots && next < range.end && (flying.is_empty() || under_way < limit.bytes()) {
                let at = turn % slots * self.block;
                // Blocks end at multiples of their size, so that all but the first are aligned.
                let block =
                    (limit.bytes() / slots as u64 / SHORT_BLOCK * SHORT_BLOCK).clamp(SHORT_BLOCK.min(most), most);
                let len = (block - next % block).min(range.end - next);
                under_way += len;
                let begun = limit.begin();
                let transfer = self.pipe.start(Span { source: next, target: at as u64, len })?;
                flying.push_back((at, len as usize, transfer, begun));
                next += len;
                turn += 1;
            }
            let Some((at, len, transfer, begun)) = flying.pop_front() else { return Ok(()) };
            transfer.wait()?;
            limit.arrived(begun);
            if look(&self.memory.range(at, len)?.lease()?)?.is_break() {
                return flying.into_iter().try_for_each(|(_, _, transfer, _)| transfer.wait());
            }
        }
    }
}

/// The same file past the page cache where its file system can, so that what is read is what is on
/// the device.
pub(crate) fn direct(ssd: &Ssd) -> Result<Ssd> {
    match ssd.file().direct_fd() {
        Ok(_) => ssd.with_access(FileAccess::Direct),
        Err(_) => Ok(ssd.clone()),
    }
}
