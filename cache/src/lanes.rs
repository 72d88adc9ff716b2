//! The engine over data pipes: lanes, each a pipe from the file into buffers of its own (Pipette's requester).
//!
//! A thread that reads takes a lane, so that nobody waits for another's lock while the device works; a lane that is free
//! again is used by the next one, because its ring and its buffers are warm.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use datapipes_core::{
    Constraints, Dram, Error, ErrorKind, Finished, Machine, MapOptions, Pages, Pipe, Result, Span, Ssd,
};

use crate::engine::{EngineFacts, Extent, OnExtent, ReadEngine};
use crate::store::PAGE;
use crate::sync::{Condvar, Mutex, lock};

/// Buffers for each request outstanding: those of one group are emptied while the next is on its way.
const SPARE: usize = 2;
/// The most pages an extent has: what one buffer of a lane holds.
const BUFFER: usize = PAGE as usize;

struct Lane {
    pipe: Pipe,
    buffers: Dram,
}

/// Lanes that nobody reads by, and how many threads wait for one.
#[derive(Default)]
struct Free {
    lanes: Vec<Lane>,
    waiting: usize,
}

/// Bytes of a lane's buffers, by its depth.
pub(crate) fn lane_bytes(depth: usize) -> usize {
    depth * SPARE * BUFFER
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
    free: Mutex<Free>,
    returned: Condvar,
    started: Instant,
}

impl Lanes {
    /// Lanes of `depth` requests each, at most `most` of them. The first is made now, so that what is wrong is known now.
    pub(crate) fn open(machine: &Machine, ssd: &Ssd, depth: usize, most: usize) -> Result<Lanes> {
        let file = ssd.file();
        if !file.readable() {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "read",
                format!("{} is open for writing only", ssd.path().display()),
            ));
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
            free: Mutex::default(),
            returned: Condvar::new(),
            started: Instant::now(),
        };
        drop(lanes.take()?);
        Ok(lanes)
    }

    /// Why bytes are read as they are: the route of the first lane.
    pub(crate) fn route(&self) -> Option<String> {
        lock(&self.free).lanes.first().map(|lane| lane.pipe.route().to_string())
    }

    /// Bytes of buffers.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.made.load(Ordering::Relaxed) * self.depth * SPARE * BUFFER
    }

    fn make(&self) -> Result<Lane> {
        let options = MapOptions { pages: Pages::Small, ..MapOptions::default() };
        let buffers = Dram::allocate_with(self.depth * SPARE * BUFFER, options)?;
        let pipe = self.machine.connect_with(&self.ssd, &buffers, &self.constraints)?;
        Ok(Lane { pipe, buffers })
    }

    /// A lane that is free, or a new one; where none can be made, one that others use, once they return it.
    fn take(&self) -> Result<Taken<'_>> {
        let mut free = lock(&self.free);
        let mut refused = false;
        loop {
            if let Some(lane) = free.lanes.pop() {
                return Ok(Taken { lanes: self, lane: Some(lane) });
            }
            let made = self.made.load(Ordering::Relaxed);
            if made < self.most && (!refused || made == 0) {
                self.made.store(made + 1, Ordering::Relaxed);
                drop(free);
                let outcome = self.make();
                free = lock(&self.free);
                match outcome {
                    Ok(lane) => return Ok(Taken { lanes: self, lane: Some(lane) }),
                    Err(error) => {
                        let left = self.made.fetch_sub(1, Ordering::Relaxed) - 1;
                        if left == 0 {
                            // Nobody is there to be waited for; those who wait for this one try for themselves.
                            self.returned.notify_all();
                            return Err(error);
                        }
                        // No descriptor is left, or no memory: others read, and return what they read by.
                        refused = true;
                        continue;
                    }
                }
            }
            free.waiting += 1;
            free = self.returned.wait(free).unwrap_or_else(crate::sync::PoisonError::into_inner);
            free.waiting -= 1;
        }
    }

    fn give(&self, lane: Lane) {
        let mut free = lock(&self.free);
        free.lanes.push(lane);
        // Waking nobody is a call to the kernel, too.
        if free.waiting > 0 {
            self.returned.notify_one();
        }
    }

    /// Hands out the bytes in a buffer.
    fn tell(lane: &Lane, slot: usize, len: u32, number: usize, result: Result<()>, done: &mut OnExtent<'_>) {
        let bytes = result.and_then(|()| lane.buffers.range(slot * BUFFER, len as usize)?.lease());
        if let Ok(lease) = &bytes {
            done(number, Ok(lease))
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
        let mut free: Vec<usize> = (0..self.depth * SPARE).rev().collect();
        let mut told = vec![false; extents.len()];
        let mut ready = Vec::with_capacity(self.depth);
        let mut next = 0;
        // Submitted in groups, one call for many; and before what has come is handed out, so that the device has work meanwhile.
        let group = (self.depth / 4).max(1);
        loop {
            let room = self.depth.saturating_sub(batch.under_way()).min(free.len());
            if next < extents.len() && (room >= group || batch.under_way() == 0) {
                let count = room.min(extents.len() - next);
                let start = next;
                let slots = free.split_off(free.len() - count);
                batch.submit(slots.into_iter().enumerate().map(|(i, slot)| {
                    let e = extents[start + i];
                    let tag = ((start + i) as u64) << 16 | slot as u64;
                    (tag, Span { source: e.offset, target: (slot * BUFFER) as u64, len: u64::from(e.len) })
                }));
                next += count;
            }
            for Finished { tag, result } in ready.drain(..) {
                let (number, slot) = ((tag >> 16) as usize, (tag & 0xffff) as usize);
                Self::tell(lane, slot, extents[number].len, number, result, done);
                told[number] = true;
                free.push(slot);
            }
            if batch.under_way() == 0 && next == extents.len() {
                return;
            }
            // While more is to be submitted, as soon as there is room for a group; at the end, half of the rest at a time.
            let least = if next < extents.len() { group } else { batch.under_way().div_ceil(2) };
            if let Err(error) = batch.wait_for(least) {
                // The ring itself is broken: nothing of what is left comes.
                let (kind, text) = (error.kind(), error.to_string());
                for (number, _) in told.iter().enumerate().filter(|(_, told)| !**told) {
                    done(number, Err(Error::relayed(kind, text.clone())));
                }
                return;
            }
            while let Some(finished) = batch.try_next() {
                ready.push(finished);
            }
        }
    }
}

/// A lane in use, which is free again when this is dropped: who is told of bytes may panic.
struct Taken<'a> {
    lanes: &'a Lanes,
    lane: Option<Lane>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Some(lane) = self.lane.take() {
            self.lanes.give(lane);
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
        let Some(lane) = &lane.lane else { return };
        match extents {
            [] => {}
            [one] => Self::read_one(lane, *one, done),
            many => self.read_many(lane, many, done),
        }
    }

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }
}
