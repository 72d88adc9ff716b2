//! The parts of an object that is written: which are put together in memory, on their way, or at
//! the server.

use std::collections::BTreeMap;

use datapipes_core::{Dram, Error, ErrorKind, MapOptions, Pages, Result};
use object_store::multipart::PartId;

use super::covered::Covered;
use super::published::PublishedObject;

/// A part that is put together in memory.
#[derive(Debug)]
pub(crate) struct PartBuffer {
    pub(crate) memory: Dram,
    pub(crate) covered: Covered,
}

/// Where a part is.
#[derive(Debug)]
pub(crate) enum PartState {
    Filling(PartBuffer),
    /// On its way to the server.
    Sent,
    /// At the server.
    Stored {
        id: PartId,
        len: u64,
    },
}

/// How far the object is.
#[derive(Debug)]
pub(crate) enum Phase {
    Open,
    Publishing,
    Published(PublishedObject),
    /// A part could not be sent, for this reason; and what to do, if it is known.
    Failed(ErrorKind, String, Option<String>),
    /// Nobody can publish it any more.
    Dropped,
}

/// An error with the advice of another one.
pub(super) fn advised(error: Error, advice: &Option<String>) -> Error {
    match advice {
        Some(advice) => error.with_advice(advice),
        None => error,
    }
}

/// Why an object that was dropped takes no bytes.
pub(super) const DROPPED: &str = "it was dropped without being published";

/// What a write of a part may do.
#[derive(Debug)]
pub(crate) enum Admission {
    /// Send its bytes from where they are: it is the whole part.
    Send,
    /// Put them into the part's buffer.
    Fill,
    /// Wait until a part that is on its way has arrived.
    Wait,
}

/// All parts.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) part_bytes: u64,
    pub(crate) max_buffers: usize,
    pub(crate) max_parts: u64,
    pub(crate) states: BTreeMap<u32, PartState>,
    /// Buffers of parts that arrived, to be used again.
    free: Vec<Dram>,
    /// Buffers in use, for parts that fill and those on their way.
    in_use: usize,
    /// Buffers on their way.
    pub(crate) on_the_way: usize,
    /// Where the last byte ends that was written.
    pub(crate) end: u64,
    pub(crate) phase: Phase,
}

impl Parts {
    pub(crate) fn new(part_bytes: u64, max_buffers: usize, max_parts: u64) -> Parts {
        Parts {
            part_bytes,
            max_buffers,
            max_parts,
            states: BTreeMap::new(),
            free: Vec::new(),
            in_use: 0,
            on_the_way: 0,
            end: 0,
            phase: Phase::Open,
        }
    }

    /// Decides on a write of `len` bytes at `at` of a part. `in_place` says whether bytes can be
    /// sent from where they are.
    ///
    /// # Errors
    /// `InvalidInput` where the bytes are at the server already, or the object is published;
    /// `OutOfMemory` where the writes are too far apart; the error of a part that failed before.
    pub(crate) fn admit(&mut self, number: u32, len: u64, in_place: bool, name: &str) -> Result<Admission> {
        let refuse = |kind, why: String| Error::new(kind, "write", format!("{name}: {why}"));
        match &self.phase {
            Phase::Open => {}
            // An object of one part is still in memory, and can be published again.
            Phase::Published(_) if self.is_one_buffer() => self.phase = Phase::Open,
            Phase::Published(_) => return Err(refuse(ErrorKind::InvalidInput, "it is published".into())),
            Phase::Publishing => return Err(refuse(ErrorKind::Busy, "it is being published".into())),
            Phase::Failed(kind, why, advice) => {
                return Err(advised(refuse(*kind, format!("an earlier part failed: {why}")), advice));
            }
            Phase::Dropped => return Err(refuse(ErrorKind::InvalidInput, DROPPED.into())),
        }
        if u64::from(number) >= self.max_parts {
            let why = format!("it has more than {} parts of {} bytes", self.max_parts, self.part_bytes);
            let error = refuse(ErrorKind::NoSpace, why);
            return Err(error.with_advice("say how long it will be, so that its parts are longer"));
        }
        match self.states.get(&number) {
            Some(PartState::Filling(_)) => Ok(Admission::Fill),
            Some(PartState::Sent | PartState::Stored { .. }) => {
                let why = format!("bytes of part {number} are written again, which are at the server already");
                Err(refuse(ErrorKind::InvalidInput, why).with_advice("write each byte of an object once"))
            }
            None if in_place && len == self.part_bytes => {
                self.states.insert(number, PartState::Sent);
                Ok(Admission::Send)
            }
            None if self.in_use < self.max_buffers => {
                let memory = match self.free.pop() {
                    Some(memory) => memory,
                    None => {
                        let len = usize::try_from(self.part_bytes).unwrap_or(usize::MAX);
                        Dram::allocate_with(len, MapOptions::default().pages(Pages::Small).prefault(false))?
                    }
                };
                self.in_use += 1;
                self.states.insert(number, PartState::Filling(PartBuffer { memory, covered: Covered::default() }));
                Ok(Admission::Fill)
            }
            None if self.on_the_way > 0 => Ok(Admission::Wait),
            None => {
                let why =
                    format!("more than {} parts are written at once, and none of them is whole", self.max_buffers);
                let error = refuse(ErrorKind::OutOfMemory, why);
                Err(error.with_advice("write in the order of offsets, or allow more buffered bytes"))
            }
        }
    }

    /// Notes a write, and takes the part's buffer where it is whole now.
    pub(crate) fn filled(&mut self, number: u32, at: u64, len: u64) -> Option<PartBuffer> {
        let Some(PartState::Filling(buffer)) = self.states.get_mut(&number) else { return None };
        buffer.covered.add(at..at.saturating_add(len));
        if !buffer.covered.is_whole(self.part_bytes) {
            return None;
        }
        self.take(number)
    }

    /// Takes a part's buffer, to send it.
    pub(crate) fn take(&mut self, number: u32) -> Option<PartBuffer> {
        match self.states.insert(number, PartState::Sent) {
            Some(PartState::Filling(buffer)) => {
                self.on_the_way += 1;
                Some(buffer)
            }
            Some(other) => {
                self.states.insert(number, other);
                None
            }
            None => {
                self.states.remove(&number);
                None
            }
        }
    }

    /// Notes that a buffer arrived, or failed to.
    pub(crate) fn gave_back(&mut self, memory: Dram) {
        self.on_the_way = self.on_the_way.saturating_sub(1);
        self.in_use = self.in_use.saturating_sub(1);
        // A connection that is being closed may still know the bytes of an attempt that failed.
        if memory.lease_mut().is_ok() {
            self.free.push(memory);
        }
    }

    /// Whether all that was written is in the buffer of the first part.
    pub(crate) fn is_one_buffer(&self) -> bool {
        self.states.iter().all(|(number, state)| *number == 0 && matches!(state, PartState::Filling(_)))
    }
}
