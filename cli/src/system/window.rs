//! Reads a file through a pipe into a window of memory: while one block is looked at, the next ones
//! arrive.
//!
//! ```text
//! file   | b0 | b1 | b2 | b3 | b4 | ...
//! memory | b0 | b1 | b2 |             b0 is looked at, b1 and b2 are on their way; then b3 goes where b0 was
//! ```

use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};

use datapipes::{Constraints, Dram, FileAccess, MapOptions, Pages, Pipe, Result, Span, Ssd, Transfer};

/// Bytes of a block; a multiple of what direct I/O wants.
pub(crate) const BLOCK: usize = 4 << 20;
/// Blocks of a window.
const DEPTH: usize = 3;

/// A pipe from a file to a window.
pub(crate) struct Window {
    pipe: Pipe,
    memory: Dram,
}

impl Window {
    /// Connects a file to fresh memory.
    pub(crate) fn over(machine: &datapipes::Machine, ssd: &Ssd) -> Result<Window> {
        // The window is no larger than the file, so that a small file costs little memory.
        let len = usize::try_from(ssd.len()?).unwrap_or(usize::MAX).clamp(1, BLOCK * DEPTH).next_multiple_of(4096);
        let options = MapOptions::default().pages(Pages::Huge).prefault(false);
        let memory = Dram::allocate_with(len, options)?;
        let constraints = Constraints::default().typical_len(BLOCK as u64);
        Ok(Window { pipe: machine.connect_with(ssd, &memory, &constraints)?, memory })
    }

    /// Hands on the bytes of a range of the file, block by block and in order, until `look` has
    /// seen enough.
    pub(crate) fn read(&self, range: Range<u64>, mut look: impl FnMut(&[u8]) -> Result<ControlFlow<()>>) -> Result<()> {
        let slots = (self.memory.len() / BLOCK).max(1);
        let block = self.memory.len().min(BLOCK) as u64;
        let mut flying: VecDeque<(usize, usize, Transfer)> = VecDeque::new();
        let mut next = range.start;
        let mut turn = 0;
        loop {
            while flying.len() < slots && next < range.end {
                let at = turn % slots * BLOCK;
                // Blocks end at multiples of their size, so that all but the first are aligned.
                let len = (block - next % block).min(range.end - next);
                let transfer = self.pipe.start(Span { source: next, target: at as u64, len })?;
                flying.push_back((at, len as usize, transfer));
                next += len;
                turn += 1;
            }
            let Some((at, len, transfer)) = flying.pop_front() else { return Ok(()) };
            transfer.wait()?;
            if look(&self.memory.range(at, len)?.lease()?)?.is_break() {
                return flying.into_iter().try_for_each(|(_, _, transfer)| transfer.wait());
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
