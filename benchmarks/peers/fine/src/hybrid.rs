//! foyer's hybrid cache: items in memory, evicted ones in its own store on disk; what is in neither
//! is read directly.

use std::path::Path;

use foyer::{
    BlockEngineConfig, Code, DeviceBuilder, FsDeviceBuilder, HybridCache, HybridCacheBuilder, PsyncIoEngineConfig,
    RecoverMode, S3FifoConfig,
};
use tokio::runtime::Runtime;

use crate::front::{ITEM, Row};
use crate::reader::{Outcome, Reader, Session};
use crate::ring::{Direct, Ring};

#[derive(Clone, Debug)]
struct Value(Row);

impl Code for Value {
    fn encode(&self, writer: &mut impl std::io::Write) -> foyer::Result<()> {
        writer.write_all(&self.0).map_err(foyer::Error::io_error)
    }

    fn decode(reader: &mut impl std::io::Read) -> foyer::Result<Value> {
        let mut row = [0; ITEM];
        reader.read_exact(&mut row).map_err(foyer::Error::io_error)?;
        Ok(Value(row))
    }

    fn estimated_size(&self) -> usize {
        ITEM
    }
}

pub struct Foyer {
    runtime: Runtime,
    cache: HybridCache<u64, Value>,
    direct: Direct,
    capacity: usize,
}

impl Foyer {
    /// So many items in memory, and a store of `store_bytes` in a folder.
    pub fn open(direct: Direct, folder: &Path, items: usize, store_bytes: usize) -> Outcome<Foyer> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.map_err(|e| e.to_string())?;
        let device = FsDeviceBuilder::new(folder).with_capacity(store_bytes).with_direct(true);
        let build = async {
            let device = device.build()?;
            let engine = BlockEngineConfig::new(device)
                .with_block_size(16 << 20)
                .with_buffer_pool_size(8 << 20)
                .with_flushers(1);
            HybridCacheBuilder::new()
                .memory(items)
                .with_shards(4)
                .with_eviction_config(S3FifoConfig::default())
                .storage()
                .with_io_engine_config(PsyncIoEngineConfig::new())
                .with_engine_config(engine)
                .with_recover_mode(RecoverMode::None)
                .build()
                .await
        };
        let cache = runtime.block_on(build).map_err(|e: foyer::Error| e.to_string())?;
        Ok(Foyer { runtime, cache, direct, capacity: items })
    }

    /// Uses an item as a read does, without a device, to be weighed.
    pub fn play(&self, offset: u64, row: Row) {
        if self.cache.memory().get(&offset).is_none() {
            self.cache.insert(offset, Value(row));
        }
    }
}

impl Reader for Foyer {
    fn session(&self) -> Outcome<Box<dyn Session + '_>> {
        Ok(Box::new(InBoth { of: self, ring: self.direct.ring()?, counts: (0, 0) }))
    }

    fn hits_by(&self) -> &'static str {
        "its own count, of memory and store together"
    }

    fn notes(&self) -> Vec<(&'static str, f64)> {
        let (items, capacity) = (self.cache.memory().usage() as f64, self.capacity as f64);
        vec![("items", items), ("capacity_items", capacity), ("block_bytes", self.direct.block() as f64)]
    }

    /// By real reads: what is put in faster than the store writes is dropped, and the store would
    /// stay empty.
    fn warm_up(&self) -> Option<(usize, usize)> {
        Some((600_000, 1))
    }
}

struct InBoth<'a> {
    of: &'a Foyer,
    ring: Ring,
    counts: (u64, u64),
}

impl Session for InBoth<'_> {
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Outcome<()> {
        let len = out.len();
        self.batch(&[offset], len, 1, out)
    }

    fn batch(&mut self, offsets: &[u64], len: usize, depth: usize, out: &mut [u8]) -> Outcome<()> {
        let cache = &self.of.cache;
        let (mut misses, mut places) = (Vec::new(), Vec::new());
        // Memory first, without a future; then the store, all at once.
        let (mut asked, mut numbers) = (Vec::new(), Vec::new());
        for (number, offset) in offsets.iter().enumerate() {
            match cache.memory().get(offset) {
                Some(entry) => out[number * len..][..len].copy_from_slice(&entry.value().0),
                None => {
                    asked.push(cache.get(offset));
                    numbers.push(number);
                }
            }
        }
        for (found, number) in self.of.runtime.block_on(futures_util::future::join_all(asked)).into_iter().zip(numbers)
        {
            match found.map_err(|e| e.to_string())? {
                Some(entry) => out[number * len..][..len].copy_from_slice(&entry.value().0),
                None => {
                    misses.push(offsets[number]);
                    places.push(number * len);
                }
            }
        }
        self.counts.1 += offsets.len() as u64;
        self.counts.0 += (offsets.len() - misses.len()) as u64;
        self.ring.read_all(&misses, len, depth, |number, bytes| {
            out[places[number]..][..len].copy_from_slice(bytes);
            if let Some(row) = bytes.first_chunk::<ITEM>() {
                cache.insert(misses[number], Value(*row));
            }
        })
    }

    fn counts(&self) -> (u64, u64) {
        self.counts
    }
}
