//! The engine over a distant place, such as an object in a bucket, where a request costs far more
//! than its bytes.
//!
//! ```text
//! extents -> units of the place: in memory?   -> hand on
//!                                another thread loads it? -> wait for that
//!                                otherwise -> one request each, all at once
//! ```
//! A unit is as long as a request takes a quarter more time for it than for a few bytes, as it was
//! measured when the place was opened: bytes around the ones that were asked for are nearly free,
//! and save further requests where reads are close to each other. Units live in a part of the
//! cache's budget; what the cache keeps of them is decided by its policy.

use std::time::Instant;

use datapipes_core::{Dram, Error, ErrorKind, Locator, Machine, MapOptions, Pipe, Result, Span, Transfer};

use super::engine::{EngineFacts, Extent, OnExtent, ReadEngine, RejectedWay};
use super::units::{UnitClaim, UnitTable};
use crate::store::PAGE;
use crate::sync::{Condvar, Mutex};

/// Bytes of the short and the long request that are measured.
const SHORT: u64 = PAGE;
const LONG: u64 = 256 << 10;
/// How often each is measured; the first one also opens a connection.
const LOOKS: usize = 3;
/// How much longer a request for a unit may take than a short one.
const SHARE: f64 = 0.25;
/// The longest unit.
const MAX_UNIT: u64 = 8 << 20;
/// The least number of units in memory.
const MIN_SLOTS: u64 = 8;
/// What requests to a place take, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct RequestCost {
    short_ns: f64,
    long_ns: f64,
}

impl RequestCost {
    fn byte_ns(&self) -> f64 {
        ((self.long_ns - self.short_ns) / (LONG - SHORT) as f64).max(1e-3)
    }

    /// The bytes of a unit, a power of two, where there are `bytes` for all of them.
    fn unit(&self, bytes: u64) -> u64 {
        let most = (bytes / MIN_SLOTS).clamp(PAGE, MAX_UNIT);
        let worth = (self.short_ns * SHARE / self.byte_ns()).clamp(PAGE as f64, most as f64) as u64;
        // The largest power of two that is no more.
        1 << worth.max(1).ilog2()
    }
}

/// A place that is read in units.
pub(crate) struct PlaceEngine {
    name: String,
    len: u64,
    unit: u64,
    /// The most units that one call claims at once.
    share: usize,
    cost: Option<RequestCost>,
    pipe: Pipe,
    memory: Dram,
    table: Mutex<UnitTable>,
    changed: Condvar,
    started: Instant,
}

impl PlaceEngine {
    /// Opens an engine over a place that states its length, with so many bytes for units. It reads
    /// the place a few times to measure what requests cost.
    ///
    /// # Errors
    /// `InvalidInput` where the place does not state its length; errors of connecting and reading.
    pub(crate) fn open(machine: &Machine, place: &dyn Locator, bytes: usize) -> Result<PlaceEngine> {
        let facts = place.endpoint().facts;
        let name = facts.name.clone();
        let Some(len) = facts.len else {
            let why = format!("{name}: a place that does not state its length");
            return Err(Error::new(ErrorKind::InvalidInput, "make a cache", why));
        };
        let cost = if len < LONG { None } else { Some(measure(machine, place, len)?) };
        let unit = cost.map_or(PAGE, |cost| cost.unit(bytes as u64));
        let slots = usize::try_from((bytes as u64 / unit).clamp(MIN_SLOTS, len.div_ceil(unit).max(MIN_SLOTS)));
        let slots = slots.unwrap_or(MIN_SLOTS as usize);
        let memory = Dram::allocate_with(slots * unit as usize, MapOptions::default().prefault(false))?;
        Ok(PlaceEngine {
            name,
            len,
            unit,
            // Two callers find room at once; an extent lies in two units at most.
            share: (slots / 2).max(2),
            cost,
            pipe: machine.connect(place, &memory)?,
            memory,
            table: Mutex::new(UnitTable::new(slots)),
            changed: Condvar::new(),
            started: Instant::now(),
        })
    }

    /// The units that an extent lies in.
    fn units_of(&self, extent: &Extent) -> std::ops::RangeInclusive<u64> {
        let last = extent.offset.saturating_add(u64::from(extent.len)).saturating_sub(1).max(extent.offset);
        extent.offset / self.unit..=last / self.unit
    }

    /// Pins the units, ascending, loads those that are not there, and calls `use_them`.
    fn with_units(&self, units: &[u64], use_them: &mut dyn FnMut(&[UnitClaim])) {
        let mut table = self.table.lock();
        let claims = loop {
            match table.claim(units) {
                Some(claims) => break claims,
                // Whoever has them neither waits for this call nor for a further unit.
                None => table = self.changed.wait(table),
            }
        };
        drop(table);
        let start = |claim: &UnitClaim| {
            let source = claim.unit * self.unit;
            let len = self.unit.min(self.len.saturating_sub(source));
            self.pipe.start(Span { source, target: claim.slot as u64 * self.unit, len })
        };
        let mine = claims.iter().filter(|claim| claim.is_mine);
        let started: Vec<(usize, Result<Transfer>)> = mine.map(|claim| (claim.slot, start(claim))).collect();
        for (slot, started) in started {
            let outcome = started.and_then(Transfer::wait).map_err(|e| (e.kind(), e.to_string()));
            self.table.lock().settle(slot, outcome);
            self.changed.notify_all();
        }
        let mut table = self.table.lock();
        while claims.iter().any(|claim| table.is_loading(claim.slot)) {
            table = self.changed.wait(table);
        }
        drop(table);
        use_them(&claims);
        let mut table = self.table.lock();
        claims.iter().for_each(|claim| table.release(claim));
        drop(table);
        self.changed.notify_all();
    }

    /// The bytes of an extent, put together where it lies in two units.
    fn hand_on(&self, extent: &Extent, claims: &[UnitClaim], done: &mut dyn FnMut(Result<&[u8]>)) {
        let end = extent.offset + u64::from(extent.len);
        let mut whole = Vec::new();
        for unit in self.units_of(extent) {
            let Ok(found) = claims.binary_search_by_key(&unit, |claim| claim.unit) else { continue };
            let slot = claims[found].slot;
            let failure = self.table.lock().failure(slot);
            if let Some((kind, why)) = failure {
                return done(Err(Error::relayed(kind, why)));
            }
            let begin = unit * self.unit;
            let (from, to) = (extent.offset.max(begin), end.min(begin + self.unit));
            let at = slot as u64 * self.unit + (from - begin);
            let range = self.memory.range(at as usize, (to - from) as usize);
            match range.and_then(|range| range.lease()) {
                Ok(bytes) if from == extent.offset && to == end => return done(Ok(&bytes[..])),
                Ok(bytes) => whole.extend_from_slice(&bytes),
                Err(error) => return done(Err(error)),
            }
        }
        done(Ok(&whole));
    }
}

/// Measures a short and a long request.
fn measure(machine: &Machine, place: &dyn Locator, len: u64) -> Result<RequestCost> {
    let memory = Dram::allocate(LONG as usize)?;
    let pipe = machine.connect(place, &memory)?;
    let time = |len: u64, at: u64| -> Result<f64> {
        let began = Instant::now();
        pipe.transfer(Span { source: at, target: 0, len })?;
        Ok(began.elapsed().as_nanos() as f64)
    };
    let (mut short_ns, mut long_ns) = (f64::MAX, f64::MAX);
    for look in 0..LOOKS as u64 {
        // Not the same bytes again, which a server may have at hand.
        let at = (len - LONG) / LOOKS as u64 * look;
        short_ns = short_ns.min(time(SHORT, at)?);
        long_ns = long_ns.min(time(LONG, at)?);
    }
    Ok(RequestCost { short_ns, long_ns: long_ns.max(short_ns) })
}

impl ReadEngine for PlaceEngine {
    fn facts(&self) -> EngineFacts {
        // Any bytes can be asked for. An extent is no longer than a unit, so it lies in two at
        // most.
        EngineFacts { granularity: 1, depth: self.share as u32, longest: self.unit as u32 }
    }

    fn len_bytes(&self) -> Result<u64> {
        Ok(self.len)
    }

    fn read(&self, extents: &[Extent], done: &mut OnExtent<'_>) {
        let mut order: Vec<usize> = (0..extents.len()).collect();
        order.sort_unstable_by_key(|at| extents[*at].offset);
        let mut rest = order.as_slice();
        while !rest.is_empty() {
            // As many extents as lie in the units that one call may have.
            let mut units: Vec<u64> = Vec::new();
            let mut count = 0;
            for at in rest {
                let new = self.units_of(&extents[*at]).filter(|unit| units.last().is_none_or(|last| unit > last));
                let new: Vec<u64> = new.collect();
                if count > 0 && units.len() + new.len() > self.share {
                    break;
                }
                units.extend(new);
                count += 1;
            }
            let (group, later) = rest.split_at(count);
            self.with_units(&units, &mut |claims| {
                for at in group {
                    let extent = &extents[*at];
                    if extent.offset.saturating_add(u64::from(extent.len)) > self.len {
                        done(*at, Err(Error::end_of_source("read", self.name.clone(), self.len)));
                        continue;
                    }
                    self.hand_on(extent, claims, &mut |bytes| done(*at, bytes));
                }
            });
            rest = later;
        }
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn changed(&self) {
        self.table.lock().forget();
    }

    fn explain(&self) -> Option<String> {
        let route = self.pipe.route().hops.first().map_or("", |hop| hop.primitive);
        let cost = self.cost.map_or_else(String::new, |cost| {
            let (short, byte) = (cost.short_ns / 1e6, cost.byte_ns());
            format!(": a request took {short:.2} ms here, and {byte:.2} ns more for each byte")
        });
        Some(format!("{}, by {route} in units of {} bytes{cost}", self.name, self.unit))
    }

    fn rejected(&self) -> Vec<RejectedWay> {
        let rejected = self.pipe.route().rejected.iter();
        rejected.map(|other| RejectedWay { way: other.primitive.to_owned(), why: other.why.clone() }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_as_long_as_its_request_pays() {
        // 20 ms a request, 85 MB/s a connection: a cloud's server.
        let distant = RequestCost { short_ns: 20e6, long_ns: 20e6 + (LONG - SHORT) as f64 * 11.8 };
        assert_eq!(distant.unit(64 << 20), 256 << 10);
        assert_eq!(distant.unit(1 << 20), 128 << 10);
        // 0.2 ms, 1 GB/s: a server on this machine.
        let near = RequestCost { short_ns: 0.2e6, long_ns: 0.2e6 + (LONG - SHORT) as f64 };
        assert_eq!(near.unit(64 << 20), 32 << 10);
        let free = RequestCost { short_ns: 100.0, long_ns: 100.0 };
        assert_eq!(free.unit(64 << 20), 16 << 10);
        assert_eq!(RequestCost { short_ns: 1.0, long_ns: 1e9 }.unit(64 << 20), PAGE);
    }
}
