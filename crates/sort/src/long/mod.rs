//! Lines that are too long for the memory, or for a good part of it.
//!
//! ```text
//! reading:  a line of more than `limit` bytes goes to the spill places, piece by piece
//!           (open_line.rs); a stub (records/stub.rs) takes its place in the slot or in the merge
//! sorting:  stubs are records like others
//! output:   the line is read again, piece by piece, where its stub would be written
//!           (stored_line.rs); stubs that agree in all they hold are told apart there (tied.rs)
//! ```
//! So the memory bounds neither a line nor what two lines have in common. What must fit `limit`
//! bytes is a key that is read as a whole: a number or a version.

mod open_line;
mod stored_line;
mod tied;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use datapipes_core::locks::Mutex;
use datapipes_core::{Dram, Machine, MapOptions, Pages, Pipe, Pool, Result};

use crate::control::Control;
use crate::report::{MovementRole, Movements};
use crate::runs::spill::Spill;

pub(crate) use open_line::OpenLine;
pub(crate) use stored_line::{StoredLine, read_through};
pub(crate) use tied::{TiedStubs, Written, sort_by};

/// Bytes that are written and read at once, with one checksum.
pub(crate) const PIECE: usize = 256 << 10;

/// The most bytes of a line that is sorted as it is, in any memory.
pub(crate) const MAX_KEY: usize = 1 << 20;

/// The most bytes of a line that is sorted as it is, in `memory` bytes. A stub has as many bytes of
/// its line, so they are few beside the memory; and they are more than codes of lines look at.
pub(crate) fn limit(memory: u64) -> usize {
    usize::try_from(memory / 64).unwrap_or(usize::MAX).clamp(64 << 10, MAX_KEY)
}

/// The long lines of a job.
pub(crate) struct LongLines<'a> {
    machine: &'a Machine,
    spill: &'a Spill<'a>,
    control: &'a Control,
    /// The most bytes of a line that is not long.
    pub(crate) limit: usize,
    pub(crate) terminator: u8,
    /// Buffers that are not in use.
    buffers: Mutex<Vec<LineBuffers>>,
    lines: AtomicU64,
    bytes: AtomicU64,
    stub_bytes: AtomicU64,
}

/// Two buffers of a piece each, and pipes between them and the spill places.
pub(crate) struct LineBuffers {
    memory: Dram,
    out: Pipe,
    back: Pipe,
}

impl<'a> LongLines<'a> {
    pub(crate) fn new(
        machine: &'a Machine,
        (spill, control): (&'a Spill<'a>, &'a Control),
        (limit, terminator): (usize, u8),
    ) -> LongLines<'a> {
        LongLines {
            machine,
            spill,
            control,
            limit,
            terminator,
            buffers: Mutex::default(),
            lines: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            stub_bytes: AtomicU64::new(0),
        }
    }

    /// The most bytes of a record that is not a stub, with its terminator.
    pub(crate) fn longest(&self) -> usize {
        self.limit.saturating_add(1)
    }

    /// How many lines were set aside, and their bytes.
    pub(crate) fn counted(&self) -> (u64, u64) {
        (self.lines.load(Relaxed), self.bytes.load(Relaxed))
    }

    /// How many more bytes the lines have than their stubs; fewer are counted as none.
    pub(crate) fn extra(&self) -> u64 {
        self.bytes.load(Relaxed).saturating_sub(self.stub_bytes.load(Relaxed))
    }

    /// Ends its pipes, and counts what they moved.
    pub(crate) fn close(self, movements: &Movements) {
        for LineBuffers { out, back, .. } in self.buffers.into_inner() {
            movements.keep(MovementRole::Spill, out);
            movements.keep(MovementRole::Merge, back);
        }
    }

    /// Finds room for one more piece in the spill places.
    fn place(&self, len: usize) -> Result<u64> {
        Ok(self.spill.reserve(len as u64, self.control)?.offset)
    }

    pub(crate) fn take_buffers(&self) -> Result<LineBuffers> {
        if let Some(buffers) = self.buffers.lock().pop() {
            return Ok(buffers);
        }
        let options = MapOptions::default().pages(Pages::Small).prefault(false);
        let memory = Dram::from_pool(&Pool::new(2 * PIECE, options)?, 2 * PIECE)?;
        let staging = self.spill.staging()?;
        let out = self.machine.connect(&memory, &staging)?;
        let back = self.machine.connect(&staging, &memory)?;
        Ok(LineBuffers { memory, out, back })
    }

    pub(crate) fn give_back(&self, buffers: LineBuffers) {
        self.buffers.lock().push(buffers);
    }

    fn note(&self, len: u64, stub: usize) {
        self.lines.fetch_add(1, Relaxed);
        self.bytes.fetch_add(len, Relaxed);
        self.stub_bytes.fetch_add(stub as u64, Relaxed);
    }
}
