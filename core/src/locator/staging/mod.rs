//! Staging: several places as one, of which the library picks (CIDR'23, section 5.3, figure 7).
//!
//! ```text
//! write at an offset:  mapped? there.   not yet? a place is found: the first tier that has room, its places in turn
//!                      the place fills up or fails meanwhile: what did not arrive goes to the next one
//! read:                wherever the pieces are, one transfer over several places
//! free:                memory is used again; files give the blocks back to the file system (a hole)
//! ```
//!
//! What it does not do: it moves nothing itself (pipes do), keeps no second copy, moves nothing
//! from one place to another once it has arrived, and survives no crash.

mod holes;
mod ledger;
mod place;

pub use place::StagePlace;

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use super::{Endpoint, EndpointHandle, Locator, Persistence, PlaceFacts, Reach};
use crate::error::{Error, ErrorKind, Result};
use crate::process::OwningProcess;
pub(crate) use ledger::Part;
use ledger::{Claim, Ledger, Out, Return};
use place::Opened;

/// A range of a staging: `len` bytes at `offset`, for spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagingExtent {
    /// Where it begins in the staging.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// What became of a place of a staging.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlaceUse {
    /// Its name.
    pub place: String,
    /// When it is taken: 0 comes first; places of one tier take turns.
    pub tier: usize,
    /// Why it is in that tier.
    pub reason: String,
    /// Bytes that were ever placed there.
    pub placed: u64,
    /// Bytes of them that were freed, or that went elsewhere after all.
    pub freed: u64,
    /// Why it was left, if it was: for good, or until bytes of it were freed.
    pub left: Option<String>,
}

/// By what the places of a staging are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StageOrder {
    /// By their tiers, as given.
    #[default]
    Given,
    /// By the planner's figures for writing there and reading back, and by free space.
    Cost,
}

/// Several places as one. Bytes are written at offsets of the caller's choice, or in extents; reads
/// find them.
///
/// It is connected as any locator is ([`Machine::connect`](crate::Machine::connect)). All places of
/// one staging share its offsets; a clone is the same staging. Bytes that were never written have
/// no place: to read them is an error (`EndOfFile`); bytes of an extent that was taken and not yet
/// written are unspecified.
///
/// ```
/// use datapipes_core::{Dram, StagePlace, Staging};
/// let staging = Staging::open(vec![
///     StagePlace::memory(1 << 20, None),
///     StagePlace::folder(std::env::temp_dir()).in_tier(1),
/// ])?;
/// let small = staging.extent(1 << 19)?;
/// let large = staging.extent(3 << 20)?; // half a MiB of it in memory, the rest in the file
/// assert_eq!(staging.uses().iter().map(|u| u.placed).collect::<Vec<_>>(), [1 << 20, 5 << 19]);
/// staging.free(small.offset, small.len);
/// # let _ = large;
/// # Ok::<(), datapipes_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Staging(Arc<Inner>);

struct Inner {
    places: Vec<Opened>,
    /// Held for moments, never during I/O.
    ledger: Mutex<Ledger>,
    owner: OwningProcess,
}

impl Staging {
    /// Opens the places, to be taken by their tiers.
    ///
    /// # Errors
    /// What opening a place meets; `InvalidInput` for no places.
    pub fn open(places: Vec<StagePlace>) -> Result<Staging> {
        if places.is_empty() {
            return Err(Error::new(ErrorKind::InvalidInput, "stage", "no place to stage in"));
        }
        let opened = places.into_iter().map(StagePlace::open).collect::<Result<Vec<_>>>()?;
        let (places, mut stores): (Vec<Opened>, Vec<_>) = opened.into_iter().unzip();
        for store in &mut stores {
            store.reason = format!("number {} in the order given", store.tier + 1);
        }
        Ok(Staging(Arc::new(Inner { places, ledger: Mutex::new(Ledger::new(stores)), owner: OwningProcess::here() })))
    }

    /// Takes `len` bytes that are nobody's yet, in as many pieces as it must be.
    ///
    /// # Errors
    /// `NoSpace` with what every place said; `Device` where one of them failed.
    pub fn extent(&self, len: u64) -> Result<StagingExtent> {
        self.check_process("stage")?;
        let offset = self.lock().fresh(len).ok_or_else(|| out_of_range(0, len))?;
        if let Err(e) = self.map(&(offset..offset + len)) {
            self.free(offset, len);
            self.lock().stale(offset, len);
            return Err(e);
        }
        Ok(StagingExtent { offset, len })
    }

    /// Frees bytes: they read as nothing, and their space is used again. Under a transfer they are
    /// freed when it is over.
    pub fn free(&self, offset: u64, len: u64) {
        if !self.0.owner.is_here() {
            return;
        }
        let range = offset..offset.saturating_add(len);
        let returns = self.lock().unmap(&range);
        self.give_back(returns);
    }

    /// Whether this is the process that opened it; a child gives nothing of it out and frees
    /// nothing.
    ///
    /// # Errors
    /// `Forked` in a child.
    pub(crate) fn check_process(&self, operation: &'static str) -> Result<()> {
        self.0.owner.check(operation)
    }

    /// What became of the places, in their order of tiers; nothing is known of it in a child of the
    /// process that opened it.
    pub fn uses(&self) -> Vec<PlaceUse> {
        if !self.0.owner.is_here() {
            return Vec::new();
        }
        let mut uses = self.uses_as_given();
        uses.sort_by_key(|u| u.tier);
        uses
    }

    /// The same, in the order in which the places were given.
    pub(crate) fn uses_as_given(&self) -> Vec<PlaceUse> {
        self.0.places.iter().zip(&self.lock().places).map(describe).collect()
    }

    /// The places' names and ends, in the order in which they were given.
    pub(crate) fn ends(&self) -> impl Iterator<Item = (&str, &Endpoint)> {
        self.0.places.iter().map(|p| (p.name.as_str(), &p.endpoint))
    }

    /// Bytes that a place could take now, as far as that is known.
    pub(crate) fn free_bytes(&self, place: usize) -> Option<u64> {
        self.0.places.get(place)?.free_bytes()
    }

    /// Sets the order of the places: a tier for each, with the reason.
    pub(crate) fn rank(&self, ranks: Vec<(usize, String)>) {
        for (store, (tier, reason)) in self.lock().places.iter_mut().zip(ranks) {
            (store.tier, store.reason) = (tier, reason);
        }
    }

    /// Where a place comes in the order, and why.
    pub(crate) fn rank_of(&self, place: usize) -> String {
        self.lock().places.get(place).map_or_else(String::new, |s| s.reason.clone())
    }

    pub(crate) fn name_of(&self, place: usize) -> &str {
        self.0.places.get(place).map_or("a place", |p| p.name.as_str())
    }

    /// Where to read a range. The parts must be [`land`](Self::land)ed.
    pub(crate) fn readable(&self, range: Range<u64>) -> Result<Vec<Part>> {
        let mut ledger = self.lock();
        if let Some(gap) = ledger.gap(&range) {
            let why = format!("bytes {} to {} of the staging were never written", gap.start, gap.end);
            return Err(Error::new(ErrorKind::EndOfFile, "read", why).offset(gap.start));
        }
        let parts = ledger.parts(&range);
        ledger.fly(&parts);
        Ok(parts)
    }

    /// Where to write a range; what is not mapped yet, or mapped where writes failed, gets a place
    /// now. The parts must be
    /// [`land`](Self::land)ed.
    pub(crate) fn writable(&self, range: Range<u64>) -> Result<Vec<Part>> {
        if range.end > i64::MAX as u64 {
            return Err(out_of_range(range.start, range.end - range.start));
        }
        loop {
            let mut ledger = self.lock();
            let parts = ledger.parts(&range);
            let failed: Vec<&Part> = parts.iter().filter(|p| ledger.is_failed(p.place)).collect();
            let failed: Vec<Range<u64>> = failed.iter().map(|p| p.offset..p.offset + p.len).collect();
            if failed.is_empty() && ledger.gap(&range).is_none() {
                ledger.fly(&parts);
                return Ok(parts);
            }
            let returns: Vec<Return> = failed.iter().flat_map(|lost| ledger.unmap(lost)).collect();
            drop(ledger);
            self.give_back(returns);
            self.map(&range)?;
        }
    }

    /// What a write to a place met: it takes nothing more. The range has no place any more;
    /// `writable` finds another.
    pub(crate) fn moves_on(&self, part: &Part, error: &Error) {
        let mut ledger = self.lock();
        match error.kind() {
            ErrorKind::NoSpace => ledger.full(part.place, &error.to_string()),
            _ => ledger.failed(part.place, &error.to_string(), error.raw_os_error()),
        }
        // Somebody else may have written these bytes elsewhere meanwhile.
        let there: Vec<Part> = ledger.parts(&(part.offset..part.offset + part.len));
        let mut returns = Vec::new();
        for still in there.iter().filter(|p| p.place == part.place) {
            returns.extend(ledger.unmap(&(still.offset..still.offset + still.len)));
        }
        drop(ledger);
        if error.kind() == ErrorKind::NoSpace {
            // What the file system refused is returned as holes, which must not make the place look
            // free again.
            self.give_back(returns);
            self.lock().full(part.place, &error.to_string());
        }
    }

    /// A place cannot be read: it gets nothing new.
    pub(crate) fn failed(&self, place: usize, error: &Error) {
        self.lock().failed(place, &error.to_string(), error.raw_os_error());
    }

    /// A transfer of these parts is over.
    pub(crate) fn land(&self, parts: &[Part]) {
        let returns = self.lock().land(parts);
        self.give_back(returns);
    }

    /// Nothing of a range is left unmapped.
    fn map(&self, range: &Range<u64>) -> Result<()> {
        let order = self.lock().order(range.end - range.start);
        let mut again = false;
        let mut looked = false;
        loop {
            let claim = {
                let mut ledger = self.lock();
                let Some(gap) = ledger.gap(range) else { return Ok(()) };
                match ledger.claim(gap.start, gap.end - gap.start, &order) {
                    Claim::Nothing if !again => {
                        again = true;
                        ledger.try_again();
                        continue;
                    }
                    claim => claim,
                }
            };
            match claim {
                Claim::Mapped(_) => {}
                Claim::Ask { place, range: wanted } => {
                    if !std::mem::replace(&mut looked, true)
                        && let Err(e) = self.could_hold(range)
                    {
                        self.lock().unasked(place, wanted);
                        return Err(e);
                    }
                    self.ask(place, wanted);
                }
                Claim::Nothing => return Err(self.no_room(range)),
            }
        }
    }

    /// What all places together cannot hold is refused before any of them is asked: a file system
    /// that is filled up to see whether more can be had is full for everybody else meanwhile.
    fn could_hold(&self, range: &Range<u64>) -> Result<()> {
        let free: Vec<Option<u64>> = self.0.places.iter().map(Opened::unused_bytes).collect();
        let (wanted, room) = {
            let ledger = self.lock();
            (ledger.unmapped(range), ledger.room(&free))
        };
        match room {
            Some(room) if room < wanted => {
                let places: Vec<&str> = self.ends().map(|(name, _)| name).collect();
                let context = format!("{wanted} bytes: {} together have {room} to give", places.join(", "));
                Err(Error::os("stage", libc::ENOSPC, context))
            }
            _ => Ok(()),
        }
    }

    /// Asks a file system for blocks.
    fn ask(&self, place: usize, range: Range<u64>) {
        let Some(ssd) = self.0.places.get(place).and_then(|p| p.file.as_ref()) else { return };
        let len = range.end - range.start;
        match ssd.reserve(range.start, len) {
            Ok(_) => self.lock().granted(place, range),
            Err(e) => {
                // Some file systems keep what they found before there was no more.
                let _ = ssd.punch(range.start, len);
                let mut ledger = self.lock();
                if e.kind() == ErrorKind::NoSpace {
                    ledger.refused(place, range, &e.to_string());
                } else {
                    ledger.failed(place, &e.to_string(), e.raw_os_error());
                }
            }
        }
    }

    fn give_back(&self, returns: Vec<Return>) {
        for back in returns {
            let wanted = self.lock().device_wants(&back);
            let ssd = self.0.places.get(back.place).and_then(|p| p.file.as_ref());
            // What cannot be given back stays ours, to be used again.
            let given = wanted.filter(|w| ssd.is_some_and(|ssd| ssd.punch(w.start, w.end - w.start).is_ok()));
            self.lock().returned(back, given);
        }
    }

    fn no_room(&self, range: &Range<u64>) -> Error {
        let uses = self.uses();
        let len = range.end - range.start;
        let said: Vec<String> =
            uses.iter().map(|u| format!("{}: {}", u.place, u.left.as_deref().unwrap_or("full"))).collect();
        let context = format!("{len} bytes ({})", said.join("; "));
        // There might be room, had no place failed: that is what must be repaired.
        let ledger = self.lock();
        let failed = ledger.places.iter().find_map(|s| match &s.out {
            Some(Out::Failed(_, errno)) => Some(*errno),
            _ => None,
        });
        match failed {
            None => Error::os("stage", libc::ENOSPC, context),
            Some(errno) => {
                let error = Error::new(ErrorKind::Device, "stage", context).offset(range.start);
                errno.into_iter().fold(error, Error::errno)
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Ledger> {
        // Nothing foreign runs under the lock, so a poisoned one guards a ledger that is whole.
        self.0.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn describe((place, store): (&Opened, &ledger::Store)) -> PlaceUse {
    PlaceUse {
        place: place.name.clone(),
        tier: store.tier,
        reason: store.reason.clone(),
        placed: store.placed,
        freed: store.freed,
        left: match (&store.out, &store.was) {
            (Some(Out::Full(why) | Out::Failed(why, _)), _) => Some(why.clone()),
            (None, Some(was)) => Some(format!("{was}; taken again when bytes of it were freed")),
            (None, None) => None,
        },
    }
}

fn out_of_range(offset: u64, len: u64) -> Error {
    Error::new(ErrorKind::OutOfRange, "stage", format!("{len} bytes at {offset}")).offset(offset)
}

impl Locator for Staging {
    fn endpoint(&self) -> Endpoint {
        let facts = || self.0.places.iter().map(|p| &p.endpoint.facts);
        let names: Vec<&str> = self.0.places.iter().map(|p| p.name.as_str()).collect();
        let facts = PlaceFacts {
            kind: "staging",
            name: format!("staging:{}", names.join(",")),
            reach: Reach::Several,
            granularity: facts().map(|f| f.granularity).max().unwrap_or(1),
            alignment: facts().map(|f| f.alignment).max().unwrap_or(1),
            // Which bytes are where is known to this process only.
            persistence: Persistence::Volatile,
            len: None,
            node: None,
            core: None,
        };
        Endpoint { facts: Arc::new(facts), handle: EndpointHandle::Staging(self.clone()) }
    }
}

impl fmt::Debug for Staging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.0.places.iter().map(|p| p.name.as_str()).collect();
        write!(f, "Staging({})", names.join(", "))
    }
}
