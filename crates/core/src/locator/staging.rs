//! Staging: several places used as one, among which the library chooses (CIDR'23, section 5.3,
//! figure 7).
//!
//! ```text
//! write at an offset:  mapped already: to its place
//!                      not yet: a place is chosen, from the first tier that has room, in turns
//!                      the place fills up or fails: the bytes that are left go to the next place
//! read:                from wherever the pieces are, in one transfer over several places
//! free:                memory is reused; files return the blocks to the file system (a hole)
//! ```
//!
//! It moves nothing itself (pipes do), keeps no second copy, never moves bytes from one place to
//! another once they have arrived, and survives no crash.

use std::fmt;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::locks::{Mutex, MutexGuard};
use serde::Serialize;

use super::endpoint::StagingHandle;
use super::ledger::{Claim, Ledger, Out, Part, Return};
use super::stage_place::{Opened, StagePlace};
use super::{Endpoint, EndpointHandle, FilePlace, Locator, Persistence, PlaceFacts, Reach};
use crate::error::{Error, ErrorKind, Result};
use crate::process::OwningProcess;

/// A range of a staging, from which spans are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagingExtent {
    /// The offset at which it begins in the staging, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
}

/// How a place of a staging was used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PlaceUse {
    /// Its name.
    pub place: String,
    /// When it is used: tier 0 comes first, and places of one tier take turns.
    pub tier: usize,
    /// Why it is in that tier.
    pub reason: String,
    /// Bytes that were ever placed there.
    pub placed: u64,
    /// Those of them that were freed, or that went to another place in the end.
    pub freed: u64,
    /// Why it is no longer used, if so: for good, or until some of its bytes are freed.
    pub left: Option<String>,
}

/// How the places of a staging are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StageOrder {
    /// By their tiers, as the caller set them.
    #[default]
    Given,
    /// By the planner's estimates for writing there and reading back, and by free space.
    Cost,
}

/// Several places used as one. Bytes are written at offsets of the caller's choice, or in extents,
/// and can be read there.
///
/// It is connected like any locator ([`Machine::connect`](crate::Machine::connect)). All places of
/// one staging share its offsets, and a clone is the same staging. Bytes that were never written
/// have no place; reading them is an error (`EndOfFile`). Bytes of an extent that was allocated but
/// not yet written are unspecified.
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
    /// Locked for moments, never during I/O.
    ledger: Mutex<Ledger>,
    owner: OwningProcess,
}

impl Staging {
    /// Opens the places, to be used in the order of their tiers.
    ///
    /// # Errors
    /// Errors of opening a place; `InvalidInput` where there are no places.
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

    /// Allocates `len` unused bytes, in as many pieces as needed.
    ///
    /// # Errors
    /// `NoSpace` with the answer of every place; `Device` where one of them failed.
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

    /// Sets `len` offsets aside that no extent and no other call of this gets. They have no space
    /// until something is written there, so what is written may be of any length up to `len`.
    ///
    /// ```
    /// use datapipes_core::{StagePlace, Staging};
    /// let staging = Staging::open(vec![StagePlace::memory(1 << 20, None)])?;
    /// let open_ended = staging.offsets(1 << 40)?;
    /// let extent = staging.extent(1 << 20)?; // all of the memory, behind these offsets
    /// assert!(extent.offset >= open_ended + (1 << 40));
    /// # Ok::<(), datapipes_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` if so many offsets are not left.
    pub fn offsets(&self, len: u64) -> Result<u64> {
        self.check_process("stage")?;
        self.lock().fresh(len).ok_or_else(|| out_of_range(0, len))
    }

    /// Frees bytes: they can no longer be read, and their space is reused. Bytes under a transfer
    /// are freed when it is over.
    pub fn free(&self, offset: u64, len: u64) {
        if !self.0.owner.is_here() {
            return;
        }
        let range = offset..offset.saturating_add(len);
        let returns = self.lock().unmap(&range);
        self.give_back(returns);
    }

    /// As [`free`](Self::free), of bytes that are all taken now.
    ///
    /// ```
    /// use datapipes_core::{StagePlace, Staging};
    /// let staging = Staging::open(vec![StagePlace::folder(std::env::temp_dir()).limit(1 << 20)])?;
    /// let extent = staging.extent(8192)?;
    /// assert!(staging.free_taken(u64::MAX, 4096).is_err());
    /// staging.free_taken(extent.offset, extent.len)?;
    /// assert!(staging.free_taken(extent.offset, extent.len).is_err()); // it was freed already
    /// # Ok::<(), datapipes_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` for no bytes, and for bytes of which some were freed already or never taken:
    /// then nothing is freed. `Forked` in a child of the process that opened it.
    pub fn free_taken(&self, offset: u64, len: u64) -> Result<()> {
        self.check_process("free")?;
        let range = offset..offset.saturating_add(len);
        let mut ledger = self.lock();
        // A range beyond all offsets is cut, and then nothing of it is taken.
        let missing = ledger.unmapped(&range) + (len - (range.end - range.start));
        if len == 0 || missing > 0 {
            drop(ledger);
            let why = format!("{len} bytes at {offset} of a staging, of which {missing} are not taken");
            return Err(Error::new(ErrorKind::InvalidInput, "free", why));
        }
        let returns = ledger.unmap(&range);
        drop(ledger);
        self.give_back(returns);
        Ok(())
    }

    /// Frees bytes as [`free`](Self::free) does, but their files keep the space for what is written
    /// next. Space is kept as long as no file has more than `most` unused bytes by that.
    ///
    /// Blocks that were written before are written faster. Nothing else on the file system can use
    /// them, until [`trim`](Self::trim) is called.
    ///
    /// ```
    /// use datapipes_core::{StagePlace, Staging};
    /// let place = StagePlace::folder(std::env::temp_dir()).limit(1 << 20);
    /// let staging = Staging::open(vec![place])?;
    /// let first = staging.extent(1 << 20)?;
    /// assert!(staging.extent(4096).is_err());
    /// staging.free_for_reuse(first.offset, first.len, 1 << 20);
    /// let second = staging.extent(1 << 19)?; // where half of the first one was
    /// assert!(staging.extent(1 << 20).is_err());
    /// staging.trim(); // the other half goes back to the file system
    /// staging.free(second.offset, second.len);
    /// assert_eq!(staging.uses()[0].placed, staging.uses()[0].freed);
    /// # Ok::<(), datapipes_core::Error>(())
    /// ```
    pub fn free_for_reuse(&self, offset: u64, len: u64, most: u64) {
        if !self.0.owner.is_here() {
            return;
        }
        let range = offset..offset.saturating_add(len);
        let mut returns = Vec::new();
        {
            let mut ledger = self.lock();
            for back in ledger.unmap(&range) {
                match ledger.keeps(&back, most) {
                    true => ledger.returned(back, None),
                    false => returns.push(back),
                }
            }
        }
        self.give_back(returns);
    }

    /// Returns the unused space of its files to their file systems. What is written meanwhile does
    /// not find that space.
    pub fn trim(&self) {
        if !self.0.owner.is_here() {
            return;
        }
        let returns = self.lock().take_unused();
        self.give_back(returns);
    }

    /// Checks that this is the process that opened it. A child reads and frees nothing of it.
    ///
    /// # Errors
    /// `Forked` in a child.
    pub(crate) fn check_process(&self, operation: &'static str) -> Result<()> {
        self.0.owner.check(operation)
    }

    /// How the places were used, in the order of their tiers. The list is empty in a child of the
    /// process that opened it.
    pub fn uses(&self) -> Vec<PlaceUse> {
        if !self.0.owner.is_here() {
            return Vec::new();
        }
        let mut uses = self.uses_as_given();
        uses.sort_by_key(|u| u.tier);
        uses
    }

    /// As [`uses`](Self::uses), in the order in which the places were given.
    pub(crate) fn uses_as_given(&self) -> Vec<PlaceUse> {
        self.0.places.iter().zip(&self.lock().places).map(describe).collect()
    }

    /// Duplicates of the descriptors of the files in which bytes are staged. As long as one of them
    /// is open, the space of its file stays allocated, even after the staging is dropped.
    ///
    /// # Errors
    /// Errors of `dup`.
    pub fn files(&self) -> Result<Vec<OwnedFd>> {
        self.check_process("duplicate")?;
        let files = self.ends().filter_map(|(name, end)| Some((name, end.file()?)));
        let duplicate = |(name, file): (&str, &Arc<FilePlace>)| {
            file.cached_fd().try_clone_to_owned().map_err(|e| Error::io("duplicate", e, name.to_owned()))
        };
        files.map(duplicate).collect()
    }

    /// The places' names and endpoints, in the order in which they were given.
    pub(crate) fn ends(&self) -> impl Iterator<Item = (&str, &Endpoint)> {
        self.0.places.iter().map(|p| (p.name.as_str(), &p.endpoint))
    }

    /// The bytes that a place could take now, if that is known.
    pub(crate) fn free_bytes(&self, place: usize) -> Option<u64> {
        self.0.places.get(place)?.free_bytes()
    }

    /// Sets the order of the places: the tier of each, with the reason.
    pub(crate) fn rank(&self, ranks: Vec<(usize, String)>) {
        for (store, (tier, reason)) in self.lock().places.iter_mut().zip(ranks) {
            (store.tier, store.reason) = (tier, reason);
        }
    }

    /// The reason for a place's position in the order.
    pub(crate) fn rank_of(&self, place: usize) -> String {
        self.lock().places.get(place).map_or_else(String::new, |s| s.reason.clone())
    }

    pub(crate) fn name_of(&self, place: usize) -> &str {
        self.0.places.get(place).map_or("a place", |p| p.name.as_str())
    }

    /// Returns the parts to read for a range. The caller must [`land`](Self::land) them.
    pub(crate) fn readable(&self, range: Range<u64>) -> Result<Vec<Part>> {
        let mut ledger = self.lock();
        if let Some(gap) = ledger.gap(&range) {
            let why = format!("bytes {} to {} of the staging were never written", gap.start, gap.end);
            return Err(Error::new(ErrorKind::EndOfFile, "read", why).with_offset(gap.start));
        }
        let parts = ledger.parts(&range);
        ledger.fly(&parts);
        Ok(parts)
    }

    /// Returns the parts to write for a range. Bytes that are not mapped, or mapped where writes
    /// failed, get a place now. The caller must [`land`](Self::land) the parts.
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

    /// Notes that a write to a place failed: the place takes nothing more, and the range is
    /// unmapped there. `writable` then finds another place.
    pub(crate) fn moves_on(&self, part: &Part, error: &Error) {
        let mut ledger = self.lock();
        match error.kind() {
            ErrorKind::NoSpace => ledger.full(part.place, &error.to_string()),
            _ => ledger.failed(part.place, &error.to_string(), error.errno()),
        }
        // Another thread may have written these bytes to another place meanwhile.
        let there: Vec<Part> = ledger.parts(&(part.offset..part.offset + part.len));
        let mut returns = Vec::new();
        for still in there.iter().filter(|p| p.place == part.place) {
            returns.extend(ledger.unmap(&(still.offset..still.offset + still.len)));
        }
        drop(ledger);
        if error.kind() == ErrorKind::NoSpace {
            // Space that the file system refused is returned as holes, which must not make the
            // place look free again.
            self.give_back(returns);
            self.lock().full(part.place, &error.to_string());
        }
    }

    /// Notes that a place cannot be read. It gets no new bytes.
    pub(crate) fn failed(&self, place: usize, error: &Error) {
        self.lock().failed(place, &error.to_string(), error.errno());
    }

    /// Ends a transfer of these parts.
    pub(crate) fn land(&self, parts: &[Part]) {
        let returns = self.lock().land(parts);
        self.give_back(returns);
    }

    /// Maps all unmapped bytes of a range.
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

    /// Refuses a range that all places together cannot hold, before any of them is asked. Filling
    /// up a file system to see whether it has more would leave it full for others meanwhile.
    fn could_hold(&self, range: &Range<u64>) -> Result<()> {
        let free: Vec<Option<u64>> = self.0.places.iter().map(Opened::unused_bytes).collect();
        let (wanted, room) = {
            let ledger = self.lock();
            (ledger.unmapped(range), ledger.room(&free))
        };
        match room {
            Some(room) if room < wanted => {
                let places: Vec<&str> = self.ends().map(|(name, _)| name).collect();
                let context = format!("{wanted} bytes: {} together have only {room} left", places.join(", "));
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
                // Some file systems keep the blocks that they found before they ran out.
                let _ = ssd.punch(range.start, len);
                let mut ledger = self.lock();
                if e.kind() == ErrorKind::NoSpace {
                    ledger.refused(place, range, &e.to_string());
                } else {
                    ledger.failed(place, &e.to_string(), e.errno());
                }
            }
        }
    }

    fn give_back(&self, returns: Vec<Return>) {
        for back in returns {
            let wanted = self.lock().device_wants(&back);
            let ssd = self.0.places.get(back.place).and_then(|p| p.file.as_ref());
            // Space that cannot be returned is kept for reuse.
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
        // There might be space if no place had failed, so the failure is what must be repaired.
        let ledger = self.lock();
        let failed = ledger.places.iter().find_map(|s| match &s.out {
            Some(Out::Failed(_, errno)) => Some(*errno),
            _ => None,
        });
        match failed {
            None => Error::os("stage", libc::ENOSPC, context),
            Some(errno) => {
                let error = Error::new(ErrorKind::Device, "stage", context).with_offset(range.start);
                errno.into_iter().fold(error, Error::with_errno)
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Ledger> {
        // No foreign code runs under the lock, so even a poisoned lock guards a consistent ledger.
        self.0.ledger.lock()
    }
}

fn describe((place, store): (&Opened, &super::ledger::Store)) -> PlaceUse {
    PlaceUse {
        place: place.name.clone(),
        tier: store.tier,
        reason: store.reason.clone(),
        placed: store.placed,
        freed: store.freed,
        left: match (&store.out, &store.was) {
            (Some(Out::Full(why) | Out::Failed(why, _)), _) => Some(why.clone()),
            (None, Some(was)) => Some(format!("{was}; used again after bytes of it were freed")),
            (None, None) => None,
        },
    }
}

fn out_of_range(offset: u64, len: u64) -> Error {
    Error::new(ErrorKind::OutOfRange, "stage", format!("{len} bytes at {offset}")).with_offset(offset)
}

impl Endpoint {
    /// The staging, if the place is one.
    pub fn staging(&self) -> Option<&Staging> {
        match &self.handle {
            EndpointHandle::Staging(staging) => staging.0.downcast_ref(),
            _ => None,
        }
    }
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
            // Only this process knows which bytes are where.
            persistence: Persistence::Volatile,
            len: None,
            node: None,
            core: None,
        };
        Endpoint { facts: Arc::new(facts), handle: EndpointHandle::Staging(StagingHandle(Arc::new(self.clone()))) }
    }
}

impl fmt::Debug for Staging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.0.places.iter().map(|p| p.name.as_str()).collect();
        write!(f, "Staging({})", names.join(", "))
    }
}
