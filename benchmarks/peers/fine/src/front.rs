//! Caches of whole items in memory, in front of the plain direct reader.

use std::borrow::Borrow;
use std::num::NonZeroUsize;
use std::sync::Arc;

use crate::reader::{Outcome, Reader, Session};
use crate::ring::{Direct, Ring};

/// Bytes of an item; the caches hold them by value.
pub const ITEM: usize = 128;
pub type Row = [u8; ITEM];

/// A cache of items by their offset.
pub trait Front: Send + Sync {
    /// Copies an item that is there.
    fn get(&self, key: u64, out: &mut [u8]) -> bool;
    fn put(&self, key: u64, row: Row);
    /// Items in it.
    fn len(&self) -> usize;
}

/// With items by value.
pub type QuickCache = Quick<Row>;
/// With items on the heap: what is remembered of items that left takes less.
pub type QuickCacheBoxed = Quick<Arc<Row>>;

/// quick_cache, with items as a `V` each.
pub struct Quick<V>(quick_cache::sync::Cache<u64, V>);

impl<V: Clone> Quick<V> {
    pub fn new(items: usize) -> Quick<V> {
        Quick(quick_cache::sync::Cache::new(items))
    }
}

impl<V: Borrow<Row> + From<Row> + Clone + Send + Sync> Front for Quick<V> {
    #[inline]
    fn get(&self, key: u64, out: &mut [u8]) -> bool {
        self.0.get(&key).is_some_and(|row| {
            out.copy_from_slice(row.borrow());
            true
        })
    }

    fn put(&self, key: u64, row: Row) {
        self.0.insert(key, row.into());
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

pub struct Moka(moka::sync::Cache<u64, Row>);

impl Moka {
    pub fn new(items: usize) -> Moka {
        Moka(moka::sync::Cache::builder().max_capacity(items as u64).initial_capacity(items).build())
    }
}

impl Front for Moka {
    #[inline]
    fn get(&self, key: u64, out: &mut [u8]) -> bool {
        self.0.get(&key).is_some_and(|row| {
            out.copy_from_slice(&row);
            true
        })
    }

    fn put(&self, key: u64, row: Row) {
        self.0.insert(key, row);
    }

    fn len(&self) -> usize {
        self.0.run_pending_tasks();
        self.0.entry_count() as usize
    }
}

/// A cache and the reader behind it.
pub struct Fronted {
    pub cache: Box<dyn Front>,
    pub direct: Direct,
    pub capacity: NonZeroUsize,
}

impl Reader for Fronted {
    fn session(&self) -> Outcome<Box<dyn Session + '_>> {
        let (misses, places) = (Vec::with_capacity(4096), Vec::with_capacity(4096));
        Ok(Box::new(Fronting { cache: &*self.cache, ring: self.direct.ring()?, counts: (0, 0), misses, places }))
    }

    fn hits_by(&self) -> &'static str {
        "its own count"
    }

    fn notes(&self) -> Vec<(&'static str, f64)> {
        let (items, capacity) = (self.cache.len() as f64, self.capacity.get() as f64);
        vec![("items", items), ("capacity_items", capacity), ("block_bytes", self.direct.block() as f64)]
    }

    fn admit(&self, offset: u64, bytes: &dyn Fn(&mut [u8])) -> bool {
        let mut row = [0; ITEM];
        if !self.cache.get(offset, &mut row) {
            bytes(&mut row);
            self.cache.put(offset, row);
        }
        true
    }
}

struct Fronting<'a> {
    cache: &'a dyn Front,
    ring: Ring,
    counts: (u64, u64),
    misses: Vec<u64>,
    places: Vec<usize>,
}

impl Session for Fronting<'_> {
    #[inline]
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Outcome<()> {
        self.counts.1 += 1;
        if self.cache.get(offset, out) {
            self.counts.0 += 1;
            return Ok(());
        }
        self.ring.read(offset, out)?;
        self.cache.put(offset, *out.first_chunk::<ITEM>().ok_or("an item of another size")?);
        Ok(())
    }

    fn batch(&mut self, offsets: &[u64], len: usize, depth: usize, out: &mut [u8]) -> Outcome<()> {
        self.misses.clear();
        self.places.clear();
        for (number, offset) in offsets.iter().enumerate() {
            if !self.cache.get(*offset, &mut out[number * len..][..len]) {
                self.misses.push(*offset);
                self.places.push(number * len);
            }
        }
        self.counts.1 += offsets.len() as u64;
        self.counts.0 += (offsets.len() - self.misses.len()) as u64;
        let (cache, misses, places) = (self.cache, &self.misses, &self.places);
        self.ring.read_all(misses, len, depth, |number, bytes| {
            out[places[number]..][..len].copy_from_slice(bytes);
            if let Some(row) = bytes.first_chunk::<ITEM>() {
                cache.put(misses[number], *row);
            }
        })
    }

    fn counts(&self) -> (u64, u64) {
        self.counts
    }
}
