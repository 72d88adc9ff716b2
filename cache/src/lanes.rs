//! The engine over data pipes: lanes, each a pipe from the file into buffers of its own (Pipette's requester).
//!
//! A thread that reads takes a lane, so that nobody waits for another's lock while the device works; a lane that is free
//! again is used by the next one, because its ring and its buffers are warm.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use datapipes_core::{Constraints, Dram, Error, ErrorKind, Machine, MapOptions, Pages, Pipe, Result, Span, Ssd};

use crate::engine::{EngineFacts, Extent, OnExtent, ReadEngine};
use crate::store::PAGE;
use crate::sync::{Condvar, Mutex, lock};

/// The most pages an extent has: what one buffer of a lane holds.
const BUFFER: usize = PAGE as usize;

struct Lane {
    pipe: Pipe,
    buffers: Dram,
}

/// Reads a file by pipes of the machine.
pub(crate) struct Lanes {
    machine: Machine,
    ssd: Ssd,
    constraints: Constraints,
    granularity: u32,
    depth: usize,
    most: usize,
    made: AtomicUsize,
    free: Mutex<Vec<Lane>>,
    returned: Condvar,
    started: Instant,
}

impl Lanes {
    /// Lanes of `depth` buffers each, at most `most` of them. The first is made now, so that what is wrong is known now.
    pub(crate) fn open(machine: &Machine, ssd: &Ssd, depth: usize, most: usize) -> Result<Lanes> {
        let file = ssd.file();
        if !file.readable() {
            return Err(Error::new(ErrorKind::InvalidInput, "read", format!("{} is open for writing only", ssd.path().display())));
        }
        // Past the page cache, in the device's own blocks: a page cache in front would hold the same bytes again, by pages.
        let direct = file.direct_fd().is_ok() && u64::from(file.offset_align()) <= PAGE;
        let direct = direct && file.access() != datapipes_core::FileAccess::Cached;
        let constraints = Constraints {
            bypass_page_cache: direct,
            queue_depth: Some(depth as u32),
            typical_len: Some(512),
            ..Constraints::default()
        };
        let lanes = Lanes {
            machine: machine.clone(),
            ssd: ssd.clone(),
            constraints,
            granularity: if direct { file.offset_align() } else { 1 },
            depth,
            most: most.max(1),
            made: AtomicUsize::new(0),
            free: Mutex::new(Vec::new()),
            returned: Condvar::new(),
            started: Instant::now(),
        };
        let first = lanes.take()?;
        lanes.give(first);
        Ok(lanes)
    }

    /// Why bytes are read as they are: the route of the first lane.
    pub(crate) fn route(&self) -> Option<String> {
        lock(&self.free).first().map(|lane| lane.pipe.route().to_string())
    }

    /// Bytes of buffers.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.made.load(Ordering::Relaxed) * self.depth * BUFFER
    }

    fn make(&self) -> Result<Lane> {
        let options = MapOptions { pages: Pages::Small, ..MapOptions::default() };
        let buffers = Dram::allocate_with(self.depth * BUFFER, options)?;
        let pipe = self.machine.connect_with(&self.ssd, &buffers, &self.constraints)?;
        Ok(Lane { pipe, buffers })
    }

    fn take(&self) -> Result<Lane> {
        let mut free = lock(&self.free);
        loop {
            if let Some(lane) = free.pop() {
                return Ok(lane);
            }
            let made = self.made.load(Ordering::Relaxed);
            if made < self.most {
                self.made.store(made + 1, Ordering::Relaxed);
                drop(free);
                return self.make().inspect_err(|_| {
                    // The place is another's again; under the lock, as above.
                    let _free = lock(&self.free);
                    self.made.fetch_sub(1, Ordering::Relaxed);
                    self.returned.notify_one();
                });
            }
            free = self.returned.wait(free).unwrap_or_else(crate::sync::PoisonError::into_inner);
        }
    }

    fn give(&self, lane: Lane) {
        lock(&self.free).push(lane);
        self.returned.notify_one();
    }

    /// Hands out the bytes in a buffer.
    fn tell(lane: &Lane, slot: usize, len: u32, number: usize, result: Result<()>, done: &mut OnExtent<'_>) {
        let bytes = result.and_then(|()| lane.buffers.range(slot * BUFFER, len as usize)?.lease());
        match &bytes {
            Ok(lease) => done(number, Ok(lease)),
            Err(_) => {}
        }
        if let Err(error) = bytes {
            done(number, Err(error));
        }
    }

    fn read_one(lane: &Lane, extent: Extent, done: &mut OnExtent<'_>) {
        let span = Span { source: extent.offset, target: 0, len: u64::from(extent.len) };
        Self::tell(lane, 0, extent.len, 0, lane.pipe.transfer(span), done);
    }

    fn read_many(&self, lane: &Lane, extents: &[Extent], done: &mut OnExtent<'_>) {
        let mut batch = lane.pipe.batch();
        let mut free: Vec<usize> = (0..self.depth).rev().collect();
        let mut next = 0;
        let mut told = vec![false; extents.len()];
        let mut left = extents.len();
        // Submitted in groups: one call for many, and the device's queue never runs dry.
        let group = (self.depth / 8).max(1);
        while left > 0 {
            if next < extents.len() && (free.len() >= group || batch.under_way() == 0) {
                let count = free.len().min(extents.len() - next);
                let start = next;
                let slots = free.split_off(free.len() - count);
                batch.submit(slots.into_iter().enumerate().map(|(i, slot)| {
                    let e = extents[start + i];
                    let tag = ((start + i) as u64) << 16 | slot as u64;
                    (tag, Span { source: e.offset, target: (slot * BUFFER) as u64, len: u64::from(e.len) })
                }));
                next += count;
            }
            match batch.next() {
                Ok(Some(finished)) => {
                    let (number, slot) = ((finished.tag >> 16) as usize, (finished.tag & 0xffff) as usize);
                    Self::tell(lane, slot, extents[number].len, number, finished.result, done);
                    free.push(slot);
                    told[number] = true;
                    left -= 1;
                }
                Ok(None) => break,
                Err(error) => {
                    // The ring itself is broken: nothing of what is left comes.
                    let (kind, text) = (error.kind(), error.to_string());
                    for (number, _) in told.iter().enumerate().filter(|(_, told)| !**told) {
                        done(number, Err(Error::relayed(kind, text.clone())));
                    }
                    return;
                }
            }
        }
    }
}

impl ReadEngine for Lanes {
    fn facts(&self) -> EngineFacts {
        EngineFacts { granularity: self.granularity, depth: self.depth as u32, longest: BUFFER as u32 }
    }

    fn len_bytes(&self) -> Result<u64> {
        self.ssd.len()
    }

    fn read(&self, extents: &[Extent], done: &mut OnExtent<'_>) {
        let lane = match self.take() {
            Ok(lane) => lane,
            Err(error) => {
                let (kind, text) = (error.kind(), error.to_string());
                (0..extents.len()).for_each(|i| done(i, Err(Error::relayed(kind, text.clone()))));
                return;
            }
        };
        match extents {
            [] => {}
            [one] => Self::read_one(&lane, *one, done),
            many => self.read_many(&lane, many, done),
        }
        self.give(lane);
    }

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }
}
