//! Other ways to read: from the cache alone, many views at once, and advice of what is to come.

use datapipes_core::Result;

use crate::fine::{Bytes, FineGrained, Held, Inner, zeroed};
use crate::requester::in_pages;
use crate::store::PAGE;
use crate::sync::Arc;

impl FineGrained {
    /// Copies the bytes at `offset`, if all of them are cached: neither the device nor another
    /// thread is waited for. None where one is not there, another thread is just changing that part
    /// of the cache, or bytes across pages are being written; what `out` has then is not certain.
    /// They are as they were at one moment between the call and its return.
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
            // As in `read`, a hit is of the present.
            return inner.store.try_read(inner.map.of(offset)?, out);
        }
        let range = offset..offset.checked_add(out.len() as u64)?;
        // In this order: what begins to change after the look is told by the stamp.
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

    /// The bytes at `offset` without copying them, if one item of the cache has them all: neither
    /// the device nor another thread is waited for. None also where [`get`](Self::get) would copy
    /// them, because too many hold that slab.
    pub fn try_get(&self, offset: u64, len: usize) -> Option<Bytes> {
        let inner = &*self.0;
        if !inner.owner.is_here() || len == 0 || len as u64 > PAGE - offset % PAGE {
            return None;
        }
        inner.sample(offset);
        inner.store.try_pin(inner.map.of(offset)?, len).map(|pinned| Bytes(Held::Cached(pinned)))
    }

    /// Many extents, (offset, length) each, without copying those that are cached; the others are
    /// read together, with a deep queue, into one buffer that lives as long as any of them. Each is
    /// of one moment; all of them are not. As with
    /// [`get`](Self::get), slabs of the cache stay as they are while they are held.
    ///
    /// # Errors
    /// For each extent what [`get`](Self::get) meets. `Forked` for all of them together.
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
                // Before there is memory for them: a length may be anything.
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

    /// Says which extents, (offset, length) each, will be read soon: they are read and cached
    /// meanwhile, as by reads of just these extents, by a thread of the pool's, or by
    /// [`maintain`](Self::maintain) where the pool has no threads. It is advice: errors are left to
    /// whoever reads, and what is not within the file is not read; in [`Metrics`](crate::Metrics)
    /// these reads count as others do.
    ///
    /// Returns how many were taken. What waits, of all files, has no more bytes than the budget,
    /// and no more extents than have room in a 256th of it (4096 at most): of an extent that is
    /// longer than that leaves, the beginning is read, and the ones behind it are not taken. They
    /// are read in pieces of a 128th of the budget, 16 to 256 KiB; where reads are checked
    /// ([`Config::verify`](crate::CacheConfig::verify)), which is done of whole reads, longer
    /// extents are not read ahead.
    ///
    /// # Errors
    /// `Forked`; what starting the thread meets, and `OutOfMemory`, with the first advice.
    pub fn prefetch(&self, extents: &[(u64, usize)]) -> Result<usize> {
        self.0.owner.check("read ahead")?;
        self.0.pool.ahead.take(&self.0, extents, self.0.pool.config.maintenance)
    }
}

/// Bytes of one buffer for what is missing, unless one extent has more.
const TOGETHER: usize = 4 << 20;

/// Numbers of extents whose bytes are read together.
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
                let relayed =
                    |n: &usize| datapipes_core::Error::relayed(error.kind(), error.to_string()).offset(extents[*n].0);
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
    use crate::config::CacheConfig;
    use crate::engine::{EngineFacts, Extent, OnExtent, ReadEngine};

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
    fn what_is_held_too_often_is_copied() {
        let machine = Machine::new(Topology::discover_under(std::path::Path::new("/nonexistent")), Vec::new());
        let mut config = CacheConfig::new(&machine).budget(2 << 20);
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
