//! Where runs wait to be merged: files without names in one or several directories.

use std::path::PathBuf;

use datapipes_core::{Error, ErrorKind, Result, Ssd};

use crate::report::SpillUse;

/// Runs start at multiples of this.
const GRAIN: u64 = 4096;

/// A place where a run's records begin, for finding keys in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    /// From the run's start, in bytes.
    pub(crate) at: u64,
    pub(crate) prefix: u64,
}

/// A sorted run.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) place: usize,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Ascending; the first record of each block that was written.
    pub(crate) marks: Vec<Mark>,
}

#[derive(Debug)]
struct Place {
    dir: PathBuf,
    ssd: Option<Ssd>,
    end: u64,
    written: u64,
    full: bool,
    why: String,
}

/// The spill places of a job, in the order in which they are taken.
#[derive(Debug)]
pub(crate) struct Spill {
    places: Vec<Place>,
    next: usize,
}

impl Spill {
    pub(crate) fn new(dirs: &[PathBuf]) -> Self {
        let place = |dir: &PathBuf| Place {
            dir: dir.clone(),
            ssd: None,
            end: 0,
            written: 0,
            full: false,
            why: "not needed".into(),
        };
        Spill { places: dirs.iter().map(place).collect(), next: 0 }
    }

    /// Room for a run of `len` bytes: the places take turns, and one that is full is left out.
    pub(crate) fn reserve(&mut self, len: u64) -> Result<Run> {
        let rounded = len.next_multiple_of(GRAIN).max(GRAIN);
        let mut refusals = Vec::new();
        for turn in 0..self.places.len() {
            let index = (self.next + turn) % self.places.len();
            let place = &mut self.places[index];
            if place.full {
                refusals.push(format!("{}: {}", place.dir.display(), place.why));
                continue;
            }
            match place.extend(rounded) {
                Ok(offset) => {
                    self.next = index + 1;
                    return Ok(Run { place: index, offset, len, marks: Vec::new() });
                }
                Err(e) if e.kind() == ErrorKind::NoSpace => {
                    place.full = true;
                    place.why = format!("full after {} bytes", place.end);
                    refusals.push(format!("{}: {e}", place.dir.display()));
                }
                Err(e) => return Err(e),
            }
        }
        Err(Error::os("spill", libc::ENOSPC, format!("a sorted run of {len} bytes ({})", refusals.join("; ")))
            .advice("name a directory with more room by -T, or give more memory by -S"))
    }

    pub(crate) fn ssd(&self, place: usize) -> Result<&Ssd> {
        self.places
            .get(place)
            .and_then(|p| p.ssd.as_ref())
            .ok_or_else(|| Error::new(ErrorKind::InvalidInput, "spill", format!("place {place} was never written")))
    }

    pub(crate) fn count(&self) -> usize {
        self.places.len()
    }

    /// A run that was merged: its blocks are given back.
    pub(crate) fn free(&mut self, run: &Run) -> Result<()> {
        self.ssd(run.place)?.punch(run.offset, run.len.next_multiple_of(GRAIN))
    }

    pub(crate) fn uses(&self) -> Vec<SpillUse> {
        let describe =
            |p: &Place| SpillUse { place: p.dir.display().to_string(), bytes: p.written, why: p.why.clone() };
        self.places.iter().map(describe).collect()
    }
}

impl Place {
    fn extend(&mut self, len: u64) -> Result<u64> {
        if self.ssd.is_none() {
            let scratch = Ssd::scratch_in(&self.dir);
            self.ssd = Some(scratch.map_err(|e| e.advice("name a writable directory by -T"))?);
            self.why = "taken in turn".into();
        }
        let Some(ssd) = &self.ssd else {
            return Err(Error::new(ErrorKind::InvalidInput, "spill", "the place has no file"));
        };
        ssd.preallocate(self.end + len)?;
        let offset = self.end;
        self.end += len;
        self.written += len;
        Ok(offset)
    }
}
