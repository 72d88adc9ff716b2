//! Blocks of memory for output: any thread fills them, pipes write them, and they are used again.

use std::collections::VecDeque;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crc32fast::Hasher;
use datapipes_core::in_flight_limit::{InFlightLimit, InFlightMark};
use datapipes_core::locks::{Condvar, Mutex, MutexGuard};
use datapipes_core::{Dram, Error, ErrorKind, LeaseMut, Pipe, Result, Span, Transfer};

use crate::control::{Control, MIN_UNDER_WAY, count, is_of_file, limit_under_way};
use crate::memory::short_copy::copy_record;
use crate::report::{MovementRole, Movements, StreamEnd};
use crate::runs::checksum::{Partial, Summing};
use crate::stoppable::StoppableFile;
use crate::waits::SortWait;

/// Offsets and lengths of direct writes are multiples of this.
pub(crate) const ALIGN: usize = 4096;

/// A write that was started: a block, or a piece of one.
struct Flying {
    transfer: Transfer,
    len: u64,
    /// When it was begun, if it counts as being under way.
    begun: Option<InFlightMark>,
    /// The block, which is free when nobody has it any more: pieces arrive in any order.
    block: Arc<usize>,
}

struct State {
    free: Vec<usize>,
    flying: VecDeque<Flying>,
    /// The bytes of the writes to files that were started and not waited for, and their limit.
    under_way: u64,
    limit: InFlightLimit,
}

/// A pool of blocks.
pub(crate) struct BlockPool {
    memory: Dram,
    pub(crate) size: usize,
    state: Mutex<State>,
    freed: Condvar,
}

/// A block that was taken from the pool.
pub(crate) struct Block {
    at: usize,
    pub(crate) bytes: LeaseMut,
}

impl BlockPool {
    /// Makes `count` blocks of `size` bytes, from offset `at` of the memory on.
    pub(crate) fn new(memory: &Dram, at: usize, size: usize, count: usize) -> Self {
        let free = (0..count).rev().map(|i| at + i * size).collect();
        let limit = limit_under_way((count as u64).saturating_mul(size as u64));
        let state = Mutex::new(State { free, flying: VecDeque::new(), under_way: 0, limit });
        BlockPool { memory: memory.clone(), size, state, freed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns a free block. Waits for the oldest write if there is none; `what` says what is
    /// written.
    pub(crate) fn take(&self, control: &Control, what: SortWait) -> Result<Block> {
        let mut state = self.lock();
        let at = loop {
            if let Some(at) = state.free.pop() {
                break at;
            }
            if let Some(oldest) = state.flying.pop_front() {
                drop(state);
                let waits = control.waits_for(what);
                let outcome = self.arrive(oldest);
                drop(waits);
                outcome?;
                state = self.lock();
                continue;
            }
            let waits = control.waits_for(what);
            state = self.freed.wait(state);
            drop(waits);
        };
        Ok(Block { at, bytes: self.memory.range(at, self.size)?.lease_mut()? })
    }

    /// Waits for a write that was taken from the queue.
    fn arrive(&self, flying: Flying) -> Result<()> {
        let outcome = flying.transfer.wait();
        let mut state = self.lock();
        if let Some(begun) = flying.begun {
            state.under_way = state.under_way.saturating_sub(flying.len);
            state.limit.arrived(begun);
        }
        state.free.extend(Arc::into_inner(flying.block));
        drop(state);
        self.freed.notify_one();
        outcome
    }

    /// Waits until some of these bytes may be written, and returns how many.
    fn make_way(&self, (control, what): (&Control, SortWait), len: u64) -> Result<u64> {
        loop {
            let oldest = {
                let mut state = self.lock();
                let limit = state.limit.bytes();
                let room = limit.saturating_sub(state.under_way);
                if room >= len.min(MIN_UNDER_WAY) {
                    return Ok(len.min(room / ALIGN as u64 * ALIGN as u64).max(len.min(ALIGN as u64)));
                }
                match state.flying.pop_front() {
                    Some(oldest) => oldest,
                    // Other threads wait for what is under way.
                    None => return Ok(len.min(MIN_UNDER_WAY)),
                }
            };
            let waits = control.waits_for(what);
            let outcome = self.arrive(oldest);
            drop(waits);
            outcome?;
        }
    }

    fn give_back(&self, at: usize) {
        self.lock().free.push(at);
        self.freed.notify_one();
    }

    /// Gives back a block without writing it.
    pub(crate) fn cancel(&self, block: Block) {
        let at = block.at;
        drop(block);
        self.give_back(at);
    }

    /// Starts to write bytes `from..to` of a block to `offset` of the pipe's target. To start a
    /// write is a wait for the place as well: it may need room first, or be done when it has
    /// started.
    pub(crate) fn write(
        &self,
        (control, what): (&Control, SortWait),
        pipe: &Pipe,
        block: Block,
        (from, to): (usize, usize),
        offset: u64,
    ) -> Result<()> {
        let at = block.at;
        drop(block);
        let block = Arc::new(at);
        // A server gives more the more it is asked.
        let is_limited = is_of_file(pipe);
        let (mut done, len) = (0, (to - from) as u64);
        loop {
            let piece = if is_limited { self.make_way((control, what), len - done) } else { Ok(len) };
            let started = piece.and_then(|piece| {
                let span = Span { source: (at + from) as u64 + done, target: offset + done, len: piece };
                let begun = is_limited.then(|| self.lock().limit.begin());
                let waits = control.calls_for(what);
                let started = pipe.start(span);
                drop(waits);
                done += piece;
                started.map(|transfer| Flying { transfer, len: piece, begun, block: block.clone() })
            });
            let outcome = started.map(|flying| {
                let mut state = self.lock();
                state.under_way = state.under_way.saturating_add(flying.begun.map_or(0, |_| flying.len));
                state.flying.push_back(flying);
                drop(state);
                self.freed.notify_one();
            });
            if outcome.is_err() || done == len {
                // All pieces may have arrived meanwhile.
                if let Some(at) = Arc::into_inner(block) {
                    self.give_back(at);
                }
                return outcome;
            }
        }
    }

    /// Waits for all writes. Returns the first error, if any.
    pub(crate) fn drain(&self) -> Result<()> {
        let mut result = Ok(());
        loop {
            let Some(oldest) = self.lock().flying.pop_front() else { break };
            let outcome = self.arrive(oldest);
            if result.is_ok() {
                result = outcome;
            }
        }
        result
    }
}

/// A target that takes bytes only in order, by `write`.
#[derive(Debug)]
pub(crate) struct OrderedStream<'a> {
    role: MovementRole,
    state: Mutex<Stream>,
    turned: Condvar,
    abandoned: AtomicBool,
    movements: &'a Movements,
}

#[derive(Debug)]
struct Stream {
    file: StoppableFile,
    written: u64,
    /// The checksum of the bytes written, if one is kept.
    sum: Option<Hasher>,
}

impl<'a> OrderedStream<'a> {
    /// Makes the stream of the output.
    pub(crate) fn new(name: PathBuf, file: File, control: &Control, movements: &'a Movements) -> Self {
        OrderedStream::of(StoppableFile::new(file, name, control), movements)
    }

    fn of(file: StoppableFile, movements: &'a Movements) -> Self {
        let state = Mutex::new(Stream { file, written: 0, sum: None });
        let (turned, abandoned) = (Condvar::new(), AtomicBool::new(false));
        OrderedStream { role: MovementRole::Output, state, turned, abandoned, movements }
    }

    /// Makes a stream with a checksum, into a pipe that no other process writes to.
    pub(crate) fn summed(pipe: StoppableFile, role: MovementRole, movements: &'a Movements) -> Self {
        let mut stream = OrderedStream { role, ..OrderedStream::of(pipe, movements) };
        stream.state.get_mut().sum = Some(Hasher::new());
        stream
    }

    /// Closes the stream. Returns the bytes written and their checksum (0 if none was kept).
    pub(crate) fn close(self) -> (u64, u32) {
        let Stream { written, sum, .. } = self.state.into_inner();
        (written, sum.map_or(0, Hasher::finalize))
    }

    /// Returns what `fstat` says of its file.
    pub(crate) fn stat(&self) -> Result<rustix::fs::Stat, rustix::io::Errno> {
        rustix::fs::fstat(self.state.lock().file.file())
    }

    /// Whether writes replace bytes of a file of `len` bytes instead of appending to it.
    pub(crate) fn overwrites(&self, len: u64) -> Result<bool, rustix::io::Errno> {
        let state = self.state.lock();
        let appends = rustix::fs::fcntl_getfl(state.file.file())?.contains(rustix::fs::OFlags::APPEND);
        Ok(!appends && rustix::fs::tell(state.file.file())? < len)
    }

    /// Wakes the threads that wait for earlier bytes, which will not be written.
    pub(crate) fn abandon(&self) {
        let _state = self.state.lock();
        self.abandoned.store(true, Relaxed);
        self.turned.notify_all();
    }

    /// Writes bytes that belong at `offset`, after everything before them is written.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut state = self.state.lock();
        while state.written != offset {
            if self.abandoned.load(Relaxed) {
                return Err(Error::new(ErrorKind::Interrupted, "write", "the bytes before it were not written"));
            }
            state = self.turned.wait(state);
        }
        state.file.write_all(bytes).map_err(|e| e.with_offset(offset))?;
        state.written += bytes.len() as u64;
        if let Some(sum) = &mut state.sum {
            sum.update(bytes);
        }
        // Runs are streams only to the program that compresses them.
        let end = match self.role {
            MovementRole::Spill => StreamEnd::CompressProgram,
            _ => StreamEnd::of(state.file.waits_for_others()),
        };
        self.movements.add_stream(self.role, end, bytes.len() as u64);
        self.turned.notify_all();
        Ok(())
    }
}

/// The target of finished bytes.
#[derive(Clone, Copy)]
pub(crate) enum Target<'a> {
    /// The output, a file or memory. Its last block is written as a whole where it is `padded`:
    /// what lies behind the records is cut off later.
    File { pipe: &'a Pipe, padded: bool },
    /// A run in the spill places, from `base` on, with a checksum for each `grain` bytes.
    Run { pipe: &'a Pipe, base: u64, grain: usize },
    /// The output, a stream.
    Stream(&'a OrderedStream<'a>),
    /// A run that a program compresses.
    CompressedRun(&'a OrderedStream<'a>),
}

impl<'a> Target<'a> {
    /// Returns the pipe to a place and the base offset there; `None` for a stream.
    pub(crate) fn place(self) -> Option<(&'a Pipe, u64)> {
        match self {
            Target::File { pipe, .. } => Some((pipe, 0)),
            Target::Run { pipe, base, .. } => Some((pipe, base)),
            Target::Stream(_) | Target::CompressedRun(_) => None,
        }
    }

    /// Returns the stream, if it is one.
    pub(crate) fn stream(self) -> Option<&'a OrderedStream<'a>> {
        match self {
            Target::Stream(stream) | Target::CompressedRun(stream) => Some(stream),
            Target::File { .. } | Target::Run { .. } => None,
        }
    }

    /// What a thread waits for that waits until its bytes are written.
    pub(crate) fn wait(self) -> SortWait {
        if self.is_output() { SortWait::Output } else { SortWait::Spill }
    }

    /// Where the bytes end that are written for the last block, whose records end at `end`.
    pub(crate) fn written_end(self, end: usize) -> usize {
        let padded = !matches!(self, Target::File { padded: false, .. });
        if padded { end.next_multiple_of(ALIGN) } else { end }
    }

    /// Whether it is the output, not a run.
    pub(crate) fn is_output(self) -> bool {
        matches!(self, Target::File { .. } | Target::Stream(_))
    }
}

/// The bytes that one part of an output has in a 4 KiB block shared with another part, and their
/// offset.
pub(crate) type PartialBlock = (u64, Vec<u8>);

/// Writes one part of an output in order, on one thread. If a part begins or ends within a 4 KiB
/// block, its bytes in that block are kept as partial blocks, which `write_partial_blocks` puts
/// together.
pub(crate) struct PartWriter<'a> {
    blocks: &'a BlockPool,
    target: Target<'a>,
    control: &'a Control,
    counter: &'a AtomicU64,
    /// Offset in the output of the block's first byte.
    block_at: u64,
    block: Option<Block>,
    /// Bytes `skip..fill` of the block belong to this part.
    skip: usize,
    fill: usize,
    /// Whether the bytes behind this part belong to another part.
    shared_end: bool,
    pub(crate) partial_blocks: Vec<PartialBlock>,
    summing: Option<Summing>,
}

impl<'a> PartWriter<'a> {
    pub(crate) fn new(
        blocks: &'a BlockPool,
        target: Target<'a>,
        at: u64,
        shared_end: bool,
        control: &'a Control,
        counter: &'a AtomicU64,
    ) -> Self {
        let skip = match target {
            Target::File { .. } | Target::Run { .. } => (at % ALIGN as u64) as usize,
            Target::Stream(_) | Target::CompressedRun(_) => 0,
        };
        let summing = match target {
            Target::Run { grain, .. } => Some(Summing::new(grain, at)),
            Target::File { .. } | Target::Stream(_) | Target::CompressedRun(_) => None,
        };
        let block_at = at - skip as u64;
        PartWriter {
            blocks,
            target,
            control,
            counter,
            block_at,
            block: None,
            skip,
            fill: skip,
            shared_end,
            partial_blocks: Vec::new(),
            summing,
        }
    }

    /// Returns the checksums of the part, if it belongs to a run.
    pub(crate) fn take_sums(&mut self) -> Vec<Partial> {
        self.summing.take().map(Summing::finish).unwrap_or_default()
    }

    /// Returns the offset in the output of the next byte.
    pub(crate) fn at(&self) -> u64 {
        self.block_at + self.fill as u64
    }

    /// Returns the last `len` bytes that were appended, if they are still in one block.
    #[inline]
    pub(crate) fn tail(&self, len: usize) -> Option<&[u8]> {
        let start = self.fill.checked_sub(len).filter(|start| *start >= self.skip)?;
        self.block.as_ref()?.bytes.get(start..self.fill)
    }

    /// Appends bytes to the part.
    #[inline]
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.push_start(bytes, bytes.len())
    }

    /// Appends the first `len` of these bytes to the part, which is faster if more follow them.
    #[inline]
    pub(crate) fn push_start(&mut self, bytes: &[u8], len: usize) -> Result<()> {
        if let Some(block) = &mut self.block
            && copy_record(&mut block.bytes, self.fill, bytes, len)
        {
            self.fill += len;
            return Ok(());
        }
        self.push_slowly(&bytes[..len])
    }

    #[cold]
    fn push_slowly(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let block = match &mut self.block {
                Some(block) => block,
                None => self.block.insert(self.blocks.take(self.control, self.target.wait())?),
            };
            let now = bytes.len().min(self.blocks.size - self.fill);
            block.bytes[self.fill..self.fill + now].copy_from_slice(&bytes[..now]);
            self.fill += now;
            bytes = &bytes[now..];
            if self.fill == self.blocks.size {
                self.flush(false)?;
            }
        }
        Ok(())
    }

    /// Writes the block and goes on to the next.
    fn flush(&mut self, last: bool) -> Result<()> {
        self.control.check()?;
        let Some(mut block) = self.block.take() else { return Ok(()) };
        let (skip, fill) = (self.skip, self.fill);
        count(self.counter, (fill - skip) as u64);
        if let Some(summing) = &mut self.summing {
            summing.feed(&block.bytes[skip..fill]);
        }
        match self.target {
            Target::Stream(stream) | Target::CompressedRun(stream) => {
                let waits = self.control.waits_for(self.target.wait());
                let result = stream.write(self.block_at, &block.bytes[skip..fill]);
                drop(waits);
                self.blocks.cancel(block);
                result?;
            }
            Target::File { pipe, .. } | Target::Run { pipe, .. } => {
                let base = self.target.place().map_or(0, |(_, base)| base);
                let mut from = skip;
                if skip > 0 {
                    from = ALIGN.min(fill);
                    self.partial_blocks.push((self.block_at + skip as u64, block.bytes[skip..from].to_vec()));
                }
                let mut to = fill;
                if last && self.shared_end {
                    to = (fill - fill % ALIGN).max(from);
                    if to < fill {
                        self.partial_blocks.push((self.block_at + to as u64, block.bytes[to..fill].to_vec()));
                    }
                } else if last {
                    to = self.target.written_end(fill);
                    block.bytes[fill..to].fill(0);
                    if from == fill {
                        to = from;
                    }
                }
                if to > from {
                    let waits = (self.control, self.target.wait());
                    self.blocks.write(waits, pipe, block, (from, to), base + self.block_at + from as u64)?;
                } else {
                    self.blocks.cancel(block);
                }
            }
        }
        self.block_at += fill as u64;
        self.skip = 0;
        self.fill = 0;
        Ok(())
    }

    /// Writes the last block; partial blocks remain.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.flush(true)
    }
}

/// Takes the records of a merge in order.
pub(crate) trait RecordWriter {
    /// Returns the offset of the next byte.
    fn at(&self) -> u64;

    /// Returns the last `len` bytes that were appended, if they are still in one piece.
    fn tail(&self, len: usize) -> Option<&[u8]>;

    /// Appends the first `len` of these bytes, which is faster if more follow them.
    fn push_start(&mut self, bytes: &[u8], len: usize) -> Result<()>;

    /// Ends the part.
    fn finish(&mut self) -> Result<()>;
}

impl RecordWriter for PartWriter<'_> {
    #[inline]
    fn at(&self) -> u64 {
        PartWriter::at(self)
    }

    #[inline]
    fn tail(&self, len: usize) -> Option<&[u8]> {
        PartWriter::tail(self, len)
    }

    #[inline]
    fn push_start(&mut self, bytes: &[u8], len: usize) -> Result<()> {
        PartWriter::push_start(self, bytes, len)
    }

    fn finish(&mut self) -> Result<()> {
        PartWriter::finish(self)
    }
}

/// Puts the partial blocks of all parts together and writes them.
pub(crate) fn write_partial_blocks(
    blocks: &BlockPool,
    target: Target<'_>,
    control: &Control,
    mut edges: Vec<PartialBlock>,
) -> Result<()> {
    let Some((pipe, base)) = target.place() else { return Ok(()) };
    edges.sort_by_key(|e| e.0);
    let mut edges = edges.into_iter().peekable();
    while let Some((at, bytes)) = edges.next() {
        let start = at - at % ALIGN as u64;
        let mut block = blocks.take(control, target.wait())?;
        let mut end = (at - start) as usize + bytes.len();
        block.bytes[..ALIGN].fill(0);
        block.bytes[(at - start) as usize..end].copy_from_slice(&bytes);
        while let Some((at, bytes)) = edges.next_if(|e| e.0 < start + ALIGN as u64) {
            end = (at - start) as usize + bytes.len();
            block.bytes[(at - start) as usize..end].copy_from_slice(&bytes);
        }
        blocks.write((control, target.wait()), pipe, block, (0, target.written_end(end)), base + start)?;
    }
    Ok(())
}
