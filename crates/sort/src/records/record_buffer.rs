//! Records that are kept apart from the reading buffers: those that cross two buffers, and, if only
//! unique keys are kept, the last one written. A part of the pool is set aside for them. What does
//! not fit there is on the heap, and is counted.

use datapipes_core::{Dram, Error, ErrorKind, LeaseMut, Result};

/// Records of at most this many bytes get no room of their own in the pool.
pub(crate) const SHORT_RECORD: u64 = 4096;

/// A record in one piece, and its room in the pool.
#[derive(Default)]
pub(crate) struct RecordBuffer {
    /// The offset and the length of its room in the pool.
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

    /// Returns the most bytes that were needed beyond the room.
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
            // The heap part grows by an eighth at a time, not by doubling: it may be one of many
            // long records.
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
        .with_advice("give more memory (`memory_bytes`)")
}
