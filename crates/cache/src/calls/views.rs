//! Other ways to read: from the cache alone, many views at once, and reads ahead.

use datapipes_core::Result;

use crate::bytes::{Bytes, Held, zeroed};
use crate::fine::FineGrained;
use crate::miss::requester::in_pages;
use crate::pool::file::Inner;
use crate::store::PAGE;
use crate::sync::Arc;

impl FineGrained {
    /// Copies the bytes at `offset` if all of them are cached. It waits neither for the device nor
    /// for another thread. Returns None where a byte is not cached, another thread is changing that
    /// part of the cache, or bytes across pages are being written; the contents of `out` are then
    /// undefined. The bytes are as they were at one moment between the call and its return.
    pub fn try_read(&self, offset: u64, out: &mut [u8]) -> Option<()> {
        let inner = &*self.0;
        if !inner.owner.is_here() {
            return None;
        }
        if out.is_empty() {
            return (offset <= inner.file_len()).then_some(());
        }
        inner.sample(offset);
        if out.len() as u64 <= PAGE - offset % PAGE {
            // As in `read`, a hit is up to date.
            return inner.store.try_read(inner.map.of(offset)?, out);
        }
        let range = offset..offset.checked_add(out.len() as u64)?;
        // The stamp comes first: it reveals a change that begins after the look.
        let stamp = inner.writes.stamp(&range);
        if inner.writes.any() {
            return None;
        }
        for (at, len) in in_pages(offset, out.len()) {
            let from = (at - offset) as usize;
            inner.store.try_read(inner.map.of(at)?, &mut out[from..from + len])?;
        }
        inner.writes.unchanged(&range, stamp).then_some(())
    }

    /// Returns the bytes at `offset` without a copy, if one item of the cache has them all. It
    /// waits neither for the device nor for another thread. It returns None also where
    /// [`get`](Self::get) would copy because that slab is pinned too often.
    pub fn try_get(&self, offset: u64, len: usize) -> Option<Bytes> {
        let inner = &*self.0;
        if !inner.owner.is_here() || len == 0 || len as u64 > PAGE - offset % PAGE {
            return None;
        }
        inner.sample(offset);
        inner.store.try_pin(inner.map.of(offset)?, len).map(|pinned| Bytes(Held::Cached(pinned)))
    }

    /// Returns many extents, (offset, length) each, without a copy of those that are cached. The
    /// others are read together, with a deep queue, into one buffer that lives as long as any of
    /// them. Each extent is of one moment; all of them together are not. As with
    /// [`get`](Self::get), held results pin slabs of the cache.
    ///
    /// # Errors
    /// For each extent those of [`get`](Self::get). `Forked` for the whole call.
    pub fn get_many(&self, extents: &[(u64, usize)]) -> Result<Vec<Result<Bytes>>> {
        self.0.owner.check("read")?;
        let inner = &*self.0;
        let mut missing = Vec::new();
        let mut all: Vec<Result<Bytes>> = Vec::with_capacity(extents.len());
        for (number, &(offset, len)) in extents.iter().enumerate() {
            inner.sample(offset);
            let pinned =
                if len > 0 && len as u64 <= PAGE - offset % PAGE { inner.pinned(offset, len).ok() } else { None };
            let held = match pinned {
                Some(pinned) => Ok(Bytes(Held::Cached(pinned))),
                // The range is checked before memory is allocated: a length may be anything.
                None => inner.check_range(offset, len).map(|()| {
                    missing.push(number);
                    Bytes(Held::Read(Box::default()))
                }),
            };
            all.push(held);
        }
        for some in windows(&missing, extents) {
            inner.bring_views(some, extents, &mut all);
        }
        Ok(all)
    }

    /// Advises that the extents, (offset, length) each, will be read soon. A thread of the pool
    /// reads and caches them meanwhile, as by reads of exactly these extents; where the pool has no
    /// threads, [`maintain`](Self::maintain) does. Errors are left to later reads, and ranges
    /// outside the file are not read. [`Metrics`](crate::Metrics) counts these reads as all others.
    ///
    /// Returns the number of extents that were accepted. The waiting advice of all files has at
    /// most as many bytes as the budget, and at most as many extents as fit into a 256th of it (no
    /// more than 4096). Of an extent that exceeds the limit only the beginning is accepted, and the
    /// extents after it are not. They are read in pieces of a 128th of the budget (16 to 256 KiB).
    /// A check ([`verify`](crate::CacheOptions::verify)) needs whole reads, so with one, longer
    /// extents are not read ahead.
    ///
    /// # Errors
    /// `Forked`. With the first advice, errors of starting the thread, and `OutOfMemory`.
    pub fn prefetch(&self, extents: &[(u64, usize)]) -> Result<usize> {
        self.0.owner.check("read ahead")?;
        self.0.pool.ahead.take(self.0.inner(), extents, self.0.pool.config.maintenance)
    }
}

/// The size of one buffer for missing bytes, unless one extent is larger.
const TOGETHER: usize = 4 << 20;

/// Splits the missing extents into groups that are read together.
fn windows<'a>(missing: &'a [usize], extents: &'a [(u64, usize)]) -> impl Iterator<Item = &'a [usize]> {
    let mut rest = missing;
    std::iter::from_fn(move || {
        let mut bytes = 0usize;
        let fits = |&&number: &&usize| {
            bytes = bytes.saturating_add(extents[number].1);
            bytes <= TOGETHER
        };
        let count = rest.iter().take_while(fits).count().max(1).min(rest.len());
        let (some, left) = rest.split_at(count);
        rest = left;
        (!some.is_empty()).then_some(some)
    })
}

impl Inner {
    /// Reads extents that are not cached, into one buffer.
    fn bring_views(&self, numbers: &[usize], extents: &[(u64, usize)], all: &mut [Result<Bytes>]) {
        let ranges: Vec<(u64, usize)> = numbers.iter().map(|&n| extents[n]).collect();
        let sum = ranges.iter().map(|(_, len)| *len).fold(0usize, usize::saturating_add);
        let mut buffer = match zeroed(sum) {
            Ok(buffer) => buffer,
            Err(error) => {
                let relayed = |n: &usize| {
                    datapipes_core::Error::relayed(error.kind(), error.to_string()).with_offset(extents[*n].0)
                };
                return numbers.iter().for_each(|n| all[*n] = Err(relayed(n)));
            }
        };
        let gathered = self.gather_ranges(&ranges, &mut buffer);
        let buffer = Arc::new(buffer);
        let mut at = 0;
        for (&number, &(_, len)) in numbers.iter().zip(&ranges) {
            all[number] = Ok(Bytes(Held::Part { buffer: buffer.clone(), at, len }));
            at += len;
        }
        for (number, error) in gathered.failed {
            all[numbers[number]] = Err(error);
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use datapipes_core::topology::Topology;
    use datapipes_core::{Error, Machine};

    use super::*;
    use crate::config::CacheOptions;
    use crate::device::engine::{EngineFacts, Extent, OnExtent, ReadEngine};

    struct Sevens;

    impl ReadEngine for Sevens {
        fn facts(&self) -> EngineFacts {
            EngineFacts { granularity: 1, depth: 4, longest: 4096 }
        }

        fn len_bytes(&self) -> Result<u64> {
            Ok(1 << 20)
        }

        fn read(&self, extents: &[Extent], done: &mut OnExtent<'_>) {
            (0..extents.len()).for_each(|i| done(i, Ok::<_, Error>(&[7; 4096][..extents[i].len as usize])));
        }

        fn now_ns(&self) -> u64 {
            1
        }
    }

    #[test]
    fn items_with_too_many_pins_are_copied() {
        let machine = Machine::new(Topology::discover_under(std::path::Path::new("/nonexistent")), Vec::new());
        let mut config = CacheOptions::new(&machine).budget(2 << 20);
        (config.prefault, config.maintenance) = (false, false);
        let fine = FineGrained::with_engine(Arc::new(Sevens), config, "sevens").unwrap();
        fine.read(640, &mut [0; 64]).unwrap();
        let held = fine.get(640, 64).unwrap();
        let Held::Cached(pinned) = &held.0 else { panic!("{held:?}") };
        pinned.pretend(u32::MAX - 1);
        let before = fine.metrics();
        let copies = [fine.get(640, 64), fine.get_many(&[(640, 64)]).unwrap().remove(0)];
        for copy in copies.map(Result::unwrap) {
            assert!(!copy.is_cached() && copy[..] == [7; 64], "{copy:?}");
        }
        assert!(fine.try_get(640, 64).is_none() && fine.try_read(640, &mut [0; 64]).is_some());
        let after = fine.metrics();
        assert_eq!((after.device_reads, after.misses), (before.device_reads, before.misses), "they are there");
        assert_eq!(after.hits, before.hits + 3, "each is counted once");
        pinned.pretend(1);
        assert!(fine.get(640, 64).unwrap().is_cached() && held[..] == [7; 64]);
    }
}
