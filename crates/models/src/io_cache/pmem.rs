//! Persistent memory that writes whole blocks: lines of a block that arrive near each other are
//! combined in a small buffer.
//!
//! ```text
//!   line -> module (by its address) -> entry of its block? mark the line : take an entry
//!                                      no entry left: the oldest block is written to the media
//!                                      all lines of a block are there: it is written at once
//! ```

use serde::Serialize;

use super::parameters::PmemShape;

/// What persistent memory counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PmemCounts {
    /// Lines that arrived.
    pub lines: u64,
    /// Lines among them that replaced one that was still in the buffer.
    pub rewritten: u64,
    /// Blocks that were written to the media.
    pub blocks: u64,
    /// Blocks among them that the media had to read first, because lines were missing.
    pub partial_blocks: u64,
}

/// One block in the buffer of a module.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The lines that are there.
    lines: u64,
    used: u64,
}

#[derive(Debug, Default)]
struct Module {
    /// The blocks, beside `entries`: they are searched for each line.
    blocks: Vec<u64>,
    entries: Vec<Entry>,
}

/// Persistent memory.
#[derive(Debug)]
pub struct PmemMedia {
    shape: PmemShape,
    line_bytes: u64,
    modules: Vec<Module>,
    clock: u64,
    counts: PmemCounts,
}

impl PmemMedia {
    /// Makes memory whose buffers are empty. The shape must have passed [`PmemShape::check`].
    pub fn new(shape: PmemShape, line_bytes: u64) -> PmemMedia {
        let modules = (0..shape.modules).map(|_| Module::default()).collect();
        PmemMedia { shape, line_bytes, modules, clock: 0, counts: PmemCounts::default() }
    }

    /// Takes a line.
    pub fn write(&mut self, line: u64) {
        self.clock += 1;
        self.counts.lines += 1;
        let lines_of_block = self.shape.block_bytes / self.line_bytes;
        let block = line / lines_of_block;
        let bit = 1u64 << (line % lines_of_block);
        let full = u64::MAX >> (64 - lines_of_block);
        let piece = line / (self.shape.interleave_bytes / self.line_bytes);
        let module = &mut self.modules[(piece % u64::from(self.shape.modules)) as usize];
        let place = match module.blocks.iter().position(|b| *b == block) {
            Some(place) => place,
            None => {
                if module.blocks.len() >= self.shape.buffer_entries as usize {
                    write_oldest(module, full, &mut self.counts);
                }
                module.blocks.push(block);
                module.entries.push(Entry { lines: 0, used: 0 });
                module.blocks.len() - 1
            }
        };
        let entry = &mut module.entries[place];
        self.counts.rewritten += u64::from(entry.lines & bit != 0);
        entry.lines |= bit;
        entry.used = self.clock;
        if entry.lines == full {
            write_out(module, place, full, &mut self.counts);
        }
    }

    /// Writes all blocks of the buffers to the media.
    pub fn flush(&mut self) {
        let full = u64::MAX >> (64 - self.shape.block_bytes / self.line_bytes);
        for module in &mut self.modules {
            while !module.blocks.is_empty() {
                write_oldest(module, full, &mut self.counts);
            }
        }
    }

    /// Flushes, and sets all counts to zero.
    pub fn restart(&mut self) {
        self.flush();
        self.counts = PmemCounts::default();
    }

    /// Returns what was counted.
    pub fn counts(&self) -> PmemCounts {
        self.counts
    }

    /// Returns the bytes that the media wrote for each byte that arrived and was not replaced
    /// within the buffer; `None` if nothing arrived. After a [`flush`](Self::flush) it is between 1
    /// and a block over a line.
    pub fn amplification(&self) -> Option<f64> {
        let lines = self.counts.lines - self.counts.rewritten;
        let media = self.counts.blocks * self.shape.block_bytes;
        (lines > 0).then(|| media as f64 / (lines * self.line_bytes) as f64)
    }

    /// Returns the blocks in the buffers.
    pub fn buffered_blocks(&self) -> usize {
        self.modules.iter().map(|module| module.blocks.len()).sum()
    }
}

fn write_oldest(module: &mut Module, full: u64, counts: &mut PmemCounts) {
    let oldest = (0..module.entries.len()).min_by_key(|place| module.entries[*place].used);
    if let Some(place) = oldest {
        write_out(module, place, full, counts);
    }
}

fn write_out(module: &mut Module, place: usize, full: u64, counts: &mut PmemCounts) {
    module.blocks.swap_remove(place);
    let entry = module.entries.swap_remove(place);
    counts.blocks += 1;
    counts.partial_blocks += u64::from(entry.lines != full);
}
