//! Records that are kept beside the buffers through which they came: those that cross two of them,
//! and the last one written where only unique keys are kept. A part of the pool is set aside for
//! them; what does not fit there is on the heap, and counted.

use datapipes_core::{Dram, Error, ErrorKind, LeaseMut, Result};

/// Records up to this many bytes need no room of their own.
pub(crate) const SHORT_RECORD: u64 = 4096;

/// A record in one piece, and where there is room for it.
#[derive(Default)]
pub(crate) struct RecordBuffer {
    /// Where in the pool there is room for it, and how much.
    at: usize,
    room: usize,
    lease: Option<LeaseMut>,
    heap: Vec<u8>,
    len: usize,
    /// The most bytes that were needed beyond the room.
    excess: u64,
}

impl RecordBuffer {
    pub(crate) fn new(at: usize, room: usize) -> RecordBuffer {
        RecordBuffer { at, room, ..RecordBuffer::default() }
    }

    /// The most bytes that were needed beyond the room.
    pub(crate) fn excess(&self) -> u64 {
        self.excess
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.lease {
            Some(lease) if self.heap.is_empty() => &lease[..self.len],
            _ => &self.heap[..self.len],
        }
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
        self.heap.clear();
        if self.heap.capacity() > SHORT_RECORD as usize {
            self.heap = Vec::new();
        }
    }

    pub(crate) fn extend(&mut self, memory: &Dram, bytes: &[u8]) -> Result<()> {
        let len = self.len + bytes.len();
        if self.heap.is_empty() && len <= self.room {
            let lease = match &mut self.lease {
                Some(lease) => lease,
                None => self.lease.insert(memory.range(self.at, self.room)?.lease_mut()?),
            };
            lease[self.len..len].copy_from_slice(bytes);
        } else {
            // By an eighth at a time, not by twice as much: it may be one of many long records.
            let more = (len - self.heap.len()).max(self.heap.len() / 8);
            if self.heap.capacity() < len {
                self.heap.try_reserve_exact(more).map_err(|_| too_long(len))?;
            }
            if let (Some(lease), true) = (&self.lease, self.heap.is_empty()) {
                self.heap.extend_from_slice(&lease[..self.len]);
            }
            self.heap.extend_from_slice(bytes);
            if len as u64 > SHORT_RECORD {
                self.excess = self.excess.max(self.heap.capacity() as u64);
            }
        }
        self.len = len;
        Ok(())
    }
}

fn too_long(len: usize) -> Error {
    Error::new(ErrorKind::OutOfMemory, "merge", format!("a record of more than {len} bytes"))
        .advice("give more memory with -S")
}
