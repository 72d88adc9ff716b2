//! A place for segments that loses what was not synced, sector by sector, as a device without power
//! does. It is memory, reached by the same pipes as any other place.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use datapipes_core::{Dram, Error, ErrorKind, Locator, MapOptions, Pages, Result};
use datapipes_durable::log::{SegmentSpace, SegmentStorage, UnpublishedSegment};

use super::Random;

/// The unit that a device writes as a whole or not at all.
const SECTOR: usize = 512;

/// Segments and their bytes.
pub(crate) type Image = Vec<(u64, Vec<u8>)>;

#[derive(Default)]
struct State {
    segments: BTreeMap<u64, Arc<Mem>>,
}

/// A device, and what happens to it.
#[derive(Default)]
pub(crate) struct Device {
    state: Mutex<State>,
    locked: AtomicBool,
    syncs: AtomicU64,
    /// The sync of this number fails, and the bytes that it was to make durable are in doubt.
    fails_at: AtomicU64,
    /// The bytes that a power failure at that moment leaves.
    left: Mutex<Option<Image>>,
    seed: AtomicU64,
    note: Mutex<Option<Vec<u8>>>,
}

pub(crate) struct Mem {
    device: Arc<Device>,
    dram: Dram,
    durable: Mutex<Vec<u8>>,
}

/// The storage; clones are the same device.
#[derive(Clone, Default)]
pub(crate) struct Model(pub(crate) Arc<Device>);

impl Model {
    /// Makes a device that holds these segments.
    pub(crate) fn holding(segments: Image) -> Model {
        let model = Model::default();
        for (number, bytes) in segments {
            let mem = Mem::new(&model.0, bytes.len());
            mem.dram.lease_mut().unwrap().copy_from_slice(&bytes);
            *mem.durable.lock().unwrap() = bytes;
            model.0.state.lock().unwrap().segments.insert(number, Arc::new(mem));
        }
        model
    }

    /// Makes the power fail at the `nth` sync from now (the first is 0). Sectors in flight survive
    /// or not by `seed`.
    pub(crate) fn fail_at(&self, nth: u64, seed: u64) {
        self.0.seed.store(seed, SeqCst);
        self.0.fails_at.store(self.0.syncs.load(SeqCst) + nth + 1, SeqCst);
    }

    pub(crate) fn syncs(&self) -> u64 {
        self.0.syncs.load(SeqCst)
    }

    /// Returns what the power failure left, if it came.
    pub(crate) fn left(&self) -> Option<Image> {
        self.0.left.lock().unwrap().take()
    }

    /// Returns the present contents, synced or not.
    pub(crate) fn now(&self) -> Image {
        let state = self.0.state.lock().unwrap();
        state.segments.iter().map(|(n, mem)| (*n, mem.dram.lease().unwrap().to_vec())).collect()
    }
}

impl Mem {
    fn new(device: &Arc<Device>, len: usize) -> Mem {
        let options = MapOptions::default().pages(Pages::Small).prefault(false);
        let dram = Dram::allocate_with(len, options).unwrap();
        Mem { device: device.clone(), dram, durable: Mutex::new(vec![0; len]) }
    }

    /// Mixes durable sectors and unsynced ones at random.
    fn torn(&self, random: &mut Random) -> Vec<u8> {
        let (mut bytes, now) = (self.durable.lock().unwrap().clone(), self.dram.lease().unwrap());
        // The share is one of a few, so that nearly all and nearly nothing happen too.
        let share = [0, 10, 50, 90, 100][random.below(5)];
        for (old, new) in bytes.chunks_mut(SECTOR).zip(now.chunks(SECTOR)) {
            if random.below(100) < share {
                old.copy_from_slice(new);
            }
        }
        bytes
    }
}

impl SegmentSpace for Mem {
    fn target(&self) -> &dyn Locator {
        &self.dram
    }

    fn len_bytes(&self) -> Result<u64> {
        Ok(self.dram.len() as u64)
    }

    fn sync(&self) -> Result<()> {
        let device = &self.device;
        // A log with a note is closed: nothing is written to it.
        assert!(device.note.lock().unwrap().is_none(), "a closed log is synced");
        if device.syncs.fetch_add(1, SeqCst) + 1 == device.fails_at.load(SeqCst) {
            let random = &mut Random(device.seed.load(SeqCst));
            let state = device.state.lock().unwrap();
            *device.left.lock().unwrap() = Some(state.segments.iter().map(|(n, mem)| (*n, mem.torn(random))).collect());
            return Err(Error::os("sync", libc::EIO, "a device without power"));
        }
        *self.durable.lock().unwrap() = self.dram.lease().unwrap().to_vec();
        Ok(())
    }
}

/// Space that is not a segment yet; it begins with stale bytes of an earlier use.
struct Fresh {
    mem: Mem,
    number: u64,
}

impl SegmentSpace for Fresh {
    fn target(&self) -> &dyn Locator {
        self.mem.target()
    }

    fn len_bytes(&self) -> Result<u64> {
        self.mem.len_bytes()
    }

    fn sync(&self) -> Result<()> {
        self.mem.sync()
    }
}

impl UnpublishedSegment for Fresh {
    fn publish(self: Box<Self>) -> Result<Arc<dyn SegmentSpace>> {
        let mem = Arc::new(self.mem);
        mem.device.clone().state.lock().unwrap().segments.insert(self.number, mem.clone());
        Ok(mem)
    }
}

impl SegmentStorage for Model {
    fn name(&self) -> String {
        "model".into()
    }

    fn lock(&self) -> Result<Box<dyn Any + Send + Sync>> {
        struct Unlock(Arc<Device>);
        impl Drop for Unlock {
            fn drop(&mut self) {
                self.0.locked.store(false, SeqCst);
            }
        }
        if self.0.locked.swap(true, SeqCst) {
            return Err(Error::new(ErrorKind::Busy, "lock", "the model has a writer"));
        }
        Ok(Box::new(Unlock(self.0.clone())))
    }

    fn list(&self) -> Result<Vec<u64>> {
        Ok(self.0.state.lock().unwrap().segments.keys().copied().collect())
    }

    fn prepare(&self, number: u64, len: u64) -> Result<Box<dyn UnpublishedSegment>> {
        let mem = Mem::new(&self.0, len as usize);
        let mut state = self.0.state.lock().unwrap();
        // The stale bytes are those of the oldest segment, with header and frames.
        if let Some(old) = state.segments.values_mut().next()
            && old.dram.len() as u64 == len
        {
            let stale = old.durable.lock().unwrap().clone();
            mem.dram.lease_mut().unwrap().copy_from_slice(&stale);
            *mem.durable.lock().unwrap() = stale;
        }
        Ok(Box::new(Fresh { mem, number }))
    }

    fn open(&self, number: u64, _writable: bool) -> Result<Arc<dyn SegmentSpace>> {
        match self.0.state.lock().unwrap().segments.get(&number) {
            Some(mem) => Ok(mem.clone()),
            None => Err(Error::new(ErrorKind::NotFound, "open", format!("segment {number}"))),
        }
    }

    fn note(&self) -> Result<Option<Vec<u8>>> {
        Ok(self.0.note.lock().unwrap().clone())
    }

    fn set_note(&self, note: Option<&[u8]>) -> Result<()> {
        *self.0.note.lock().unwrap() = note.map(<[u8]>::to_vec);
        Ok(())
    }

    fn remove(&self, number: u64) -> Result<()> {
        self.0.state.lock().unwrap().segments.remove(&number);
        Ok(())
    }
}
