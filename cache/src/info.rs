//! The Info Area: which extents are on their way, and for whom (Pipette, section 3.1.2).
//!
//! Who finds that an extent is being read by another thread waits for that instead of reading it
//! again.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use datapipes_core::{Error, ErrorKind, Result};

use crate::engine::Extent;
use crate::store::index::mix;
use crate::sync::{Arc, Condvar, Mutex, PoisonError, lock};
use crate::writes::{Stamp, Writes};

/// Parts of the table, so that threads seldom meet.
const PARTS: usize = 16;

/// Offsets need no hash that withstands an enemy: who chooses them has the table for himself.
#[derive(Default)]
struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u64(u64::from(*b)));
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = mix(self.0 ^ n);
    }
}

type Flights = HashMap<u64, Arc<Flight>, BuildHasherDefault<Mixed>>;

/// What arrived, or why it did not.
type Arrival = std::result::Result<Arc<[u8]>, (ErrorKind, String)>;

#[derive(Default)]
struct Progress {
    waiting: usize,
    over: bool,
    arrival: Option<Arrival>,
}

/// An extent on its way.
pub(crate) struct Flight {
    extent: Extent,
    /// When it took off, by the versions of its own bytes: all of them, whatever part others want.
    stamp: Stamp,
    whole: bool,
    progress: Mutex<Progress>,
    landed: Condvar,
}

impl Flight {
    /// Whether its bytes are those of the file from when it took off until now, and it has all of
    /// the extent. It is asked of all that the flight brings: one who wants a part of it has fewer
    /// stripes, whose versions are no measure of the flight.
    fn serves(&self, extent: Extent, writes: &Writes) -> bool {
        let own = self.extent.offset..self.extent.end();
        self.extent.offset == extent.offset
            && self.extent.len >= extent.len
            && self.whole
            && writes.unchanged(&own, self.stamp)
    }
}

/// A flight of one's own. Whoever drops it without a word, by a panic perhaps, leaves an error to
/// those who wait.
pub(crate) struct Own<'a> {
    area: &'a InfoArea,
    flight: Option<Arc<Flight>>,
}

/// What becomes of an extent that is wanted.
pub(crate) enum Claim<'a> {
    /// It is to be read by who asked, and reported by [`Own::landed`].
    Mine(Own<'a>),
    /// Another thread reads it.
    Others(Arc<Flight>),
}

/// The table of flights.
pub(crate) struct InfoArea {
    parts: [Mutex<Flights>; PARTS],
}

impl Default for InfoArea {
    fn default() -> InfoArea {
        InfoArea { parts: std::array::from_fn(|_| Mutex::default()) }
    }
}

impl InfoArea {
    fn part(&self, offset: u64) -> &Mutex<Flights> {
        &self.parts[mix(offset) as usize % PARTS]
    }

    /// Takes the extent, or finds who has it. A flight that took off before a change of its bytes
    /// is of no use to who asks after it. Nor is one that took off while a byte of it was changing:
    /// who reads there may want none of the changing bytes, and who asks may.
    pub(crate) fn claim(&self, extent: Extent, writes: &Writes) -> Claim<'_> {
        let range = extent.offset..extent.end();
        // In this order: what begins to change after the look at the list is told by the stamp.
        let stamp = writes.stamp(&range);
        let whole = !writes.is_changing(&range);
        let mut part = lock(self.part(extent.offset));
        if let Some(flight) = part.get(&extent.offset)
            && flight.serves(extent, writes)
        {
            lock(&flight.progress).waiting += 1;
            return Claim::Others(flight.clone());
        }
        let flight = Arc::new(Flight { extent, stamp, whole, progress: Mutex::default(), landed: Condvar::new() });
        // Where a shorter or older flight is there, both go on; who looks finds the newer one.
        part.insert(extent.offset, flight.clone());
        Claim::Mine(Own { area: self, flight: Some(flight) })
    }

    fn landed(&self, flight: &Arc<Flight>, result: Result<&[u8], &Error>) {
        let mut part = lock(self.part(flight.extent.offset));
        if part.get(&flight.extent.offset).is_some_and(|f| Arc::ptr_eq(f, flight)) {
            part.remove(&flight.extent.offset);
        }
        drop(part);
        let mut progress = lock(&flight.progress);
        progress.over = true;
        // Copied only if somebody waits: nobody can join any more.
        if progress.waiting > 0 {
            progress.arrival = Some(match result {
                Ok(bytes) => Ok(bytes.into()),
                Err(error) => Err((error.kind(), error.to_string())),
            });
            flight.landed.notify_all();
        }
    }

    /// How many are on their way.
    pub(crate) fn under_way(&self) -> usize {
        self.parts.iter().map(|p| lock(p).len()).sum()
    }
}

impl Own<'_> {
    /// Whether this is the flight.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn is_of(&self, flight: &Arc<Flight>) -> bool {
        self.flight.as_ref().is_some_and(|own| Arc::ptr_eq(own, flight))
    }

    /// Reports what came of it.
    pub(crate) fn landed(mut self, result: Result<&[u8], &Error>) {
        if let Some(flight) = self.flight.take() {
            self.area.landed(&flight, result);
        }
    }
}

impl Drop for Own<'_> {
    fn drop(&mut self) {
        if let Some(flight) = self.flight.take() {
            let error =
                Error::new(ErrorKind::System, "read", "the read that was to bring these bytes ended without them");
            self.area.landed(&flight, Err(&error));
        }
    }
}

impl Flight {
    /// Whether it has landed, so that waiting for it is no wait.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn is_over(&self) -> bool {
        lock(&self.progress).over
    }

    /// Waits for another's flight: all of its bytes.
    ///
    /// # Errors
    /// What the other met.
    pub(crate) fn wait(&self) -> Result<Arc<[u8]>> {
        let mut progress = lock(&self.progress);
        while !progress.over {
            progress = self.landed.wait(progress).unwrap_or_else(PoisonError::into_inner);
        }
        match &progress.arrival {
            Some(Ok(bytes)) => Ok(bytes.clone()),
            Some(Err((kind, text))) => Err(Error::relayed(*kind, text.clone())),
            None => Err(Error::new(ErrorKind::System, "read", "an extent landed without a word")),
        }
    }
}
