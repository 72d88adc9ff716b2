//! Handles: numbers that stand for objects.
//!
//! ```text
//! id     generation: 32 | kind: 6 | index: 26   never 0; an index is used again with the next generation
//! state  generation: 32 | closing | vacant | users: 30
//!
//! get     users + 1; is it this generation, not closing, not vacant?     no: users - 1, refused
//! close   closing; the last user takes the object out and drops it
//! ```
//!
//! A pointer that was freed cannot be told from one that is valid; a number can. A handle that is
//! closed while another thread uses it stays valid for that call. There are no locks, so a child
//! made by `fork` can use the tables whatever threads its parent had. A use costs two atomic
//! additions.
//!
//! Unsafe code: a slot's object is read only by its users, and moved out only by whoever changes
//! the state from "closing, no users" to "vacant", which happens once a generation.

use std::cell::UnsafeCell;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Deref;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use datapipes::{Error, ErrorKind, Result};

/// Set while the object waits for its last user.
const CLOSING: u64 = 1 << 31;
/// Set while there is no object.
const VACANT: u64 = 1 << 30;
/// The bits that count users.
const USERS: u64 = VACANT - 1;
/// Slots of the first chunk, as a power of two. Every further chunk has twice as many.
const FIRST: u32 = 6;
/// Chunks of a table: almost 2^26 slots in all.
const CHUNKS: usize = 20;
/// The bits of an index, above which the kind is.
const INDEX_BITS: u32 = FIRST + CHUNKS as u32;

struct Slot<T> {
    state: AtomicU64,
    /// The next free slot after this one (its index + 1), while this one is free.
    next: AtomicU32,
    /// Its own index, which never changes. So a user needs no more than two words, and they stay in
    /// registers.
    index: u32,
    object: UnsafeCell<MaybeUninit<T>>,
}

/// What a handle stands for. Handles of two kinds never have the same number: where a program mixes
/// them up, it is told so.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Machine = 1,
    Place,
    Lease,
    Pipe,
    Transfer,
    Runtime,
    RuntimePipe,
    Future,
    DescriptorPipe,
    Graph,
    Cache,
    Log,
    LogReader,
    Error,
    Client,
    Fabric,
    DeviceGraph,
    Flow,
    Sender,
    Receiver,
    Block,
    Endpoint,
}

impl Kind {
    /// The bits of the number that tell it.
    const fn bits(self) -> u32 {
        (self as u32) << INDEX_BITS
    }

    /// What errors call it.
    fn name(self) -> &'static str {
        match self {
            Kind::Machine => "machine",
            Kind::Place => "place",
            Kind::Lease => "lease",
            Kind::Pipe => "pipe",
            Kind::Transfer => "transfer",
            Kind::Runtime => "runtime",
            Kind::RuntimePipe => "pipe of a runtime",
            Kind::Future => "future",
            Kind::DescriptorPipe => "descriptor pipe",
            Kind::Graph => "graph",
            Kind::Cache => "cache",
            Kind::Log => "log",
            Kind::LogReader => "reader of a log",
            Kind::Error => "error",
            Kind::Client => "client",
            Kind::Fabric => "fabric",
            Kind::DeviceGraph => "graph of devices",
            Kind::Flow => "flow",
            Kind::Sender => "sender",
            Kind::Receiver => "receiver",
            Kind::Block => "block",
            Kind::Endpoint => "memory endpoint",
        }
    }
}

/// The objects of one kind.
pub(crate) struct Table<T> {
    chunks: [AtomicPtr<Slot<T>>; CHUNKS],
    /// The first free slot (its index + 1) and a count of changes, so that a thread which read an
    /// old head cannot take it for the new one.
    free: AtomicU64,
    /// Slots that were ever used.
    used: AtomicU32,
    kind: Kind,
}

// SAFETY: objects are shared between threads only by reference (T: Sync) and dropped by any of
// them (T: Send); everything else is atomic.
unsafe impl<T: Send + Sync> Sync for Table<T> {}

/// Objects of all tables.
static OPEN: AtomicU64 = AtomicU64::new(0);

/// How many handles are open.
pub(crate) fn open() -> u64 {
    OPEN.load(Ordering::Relaxed)
}

/// An object in use: it is not dropped meanwhile.
pub(crate) struct Used<T: 'static> {
    table: &'static Table<T>,
    slot: &'static Slot<T>,
}

impl<T> Table<T> {
    /// An empty table. There is one of each kind.
    pub(crate) const fn new(kind: Kind) -> Table<T> {
        Table {
            chunks: [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS],
            free: AtomicU64::new(0),
            used: AtomicU32::new(0),
            kind,
        }
    }

    /// The chunk of a slot and its place in it.
    fn place(index: u32) -> (usize, usize) {
        let shifted = u64::from(index) + (1 << FIRST);
        let chunk = shifted.ilog2() - FIRST;
        (chunk as usize, (shifted - (1 << (chunk + FIRST))) as usize)
    }

    fn slot(&'static self, index: u32) -> Option<&'static Slot<T>> {
        let (chunk, at) = Self::place(index);
        let slots = self.chunks.get(chunk)?.load(Ordering::Acquire);
        // SAFETY: a chunk is published once, has more slots than `at`, and is never freed.
        (!slots.is_null()).then(|| unsafe { &*slots.add(at) })
    }

    /// A slot that nobody has: a used one, or the next of a chunk, which is allocated if need be.
    fn vacant(&'static self) -> Option<(u32, &'static Slot<T>)> {
        let mut head = self.free.load(Ordering::Acquire);
        while let Some(index) = (head as u32).checked_sub(1) {
            let slot = self.slot(index)?;
            let next = u64::from(slot.next.load(Ordering::Relaxed));
            let new = ((head >> 32).wrapping_add(1) << 32) | next;
            match self.free.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some((index, slot)),
                Err(seen) => head = seen,
            }
        }
        let mut used = self.used.load(Ordering::Relaxed);
        loop {
            let chunk = self.chunks.get(Self::place(used).0)?;
            // The chunk comes first: where there is no memory for it, no index is used up.
            if chunk.load(Ordering::Acquire).is_null() {
                Self::allocate(chunk, Self::place(used).0)?;
            }
            match self.used.compare_exchange_weak(used, used + 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(index) => return Some((index, self.slot(index)?)),
                Err(seen) => used = seen,
            }
        }
    }

    /// Allocates the slots of a chunk, unless another thread is faster. `None` where there is no
    /// memory: a process that has that many handles should be told, not ended.
    fn allocate(chunk: &AtomicPtr<Slot<T>>, number: usize) -> Option<()> {
        let mut slots: Vec<Slot<T>> = Vec::new();
        let count = 1usize << (number as u32 + FIRST);
        slots.try_reserve_exact(count).ok()?;
        let first_index = (1u32 << (number as u32 + FIRST)) - (1 << FIRST);
        for (index, slot) in (first_index..).zip(slots.spare_capacity_mut()) {
            let slot = slot.as_mut_ptr();
            // SAFETY: the slot lies within the vector's memory. Its object needs no value.
            unsafe {
                (&raw mut (*slot).state).write(AtomicU64::new((1 << 32) | VACANT));
                (&raw mut (*slot).next).write(AtomicU32::new(0));
                (&raw mut (*slot).index).write(index);
            }
        }
        // From here on the memory is the chunk's, for ever.
        let mut slots = ManuallyDrop::new(slots);
        let first = slots.as_mut_ptr();
        if chunk.compare_exchange(ptr::null_mut(), first, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // Another thread published its chunk, so nobody has this one.
            drop(ManuallyDrop::into_inner(slots));
        }
        Some(())
    }

    /// Takes an object in and returns its number.
    ///
    /// # Errors
    /// `OutOfMemory` where there are 2^26 objects of this type, or no memory for more.
    pub(crate) fn put(&'static self, object: T) -> Result<u64> {
        let Some((index, slot)) = self.vacant() else {
            let why = format!("there are {} of them, and no room for more", self.used.load(Ordering::Relaxed));
            return Err(Error::new(ErrorKind::OutOfMemory, "make a handle", format!("{}: {why}", self.kind.name())));
        };
        // SAFETY: the slot is vacant and was taken from the free ones, so only this thread has it.
        unsafe { (*slot.object.get()).write(object) };
        OPEN.fetch_add(1, Ordering::Relaxed);
        // Others may count themselves in and out meanwhile; they see that the handle is another.
        let state = slot.state.fetch_sub(VACANT, Ordering::AcqRel);
        Ok((state >> 32 << 32) | u64::from(self.kind.bits() | index))
    }

    /// The object of a number.
    ///
    /// # Errors
    /// `InvalidInput` where the number stands for none.
    #[inline]
    pub(crate) fn get(&'static self, id: u64) -> Result<Used<T>> {
        // The number of another kind gives an index that no table has.
        let index = id as u32 ^ self.kind.bits();
        let Some(slot) = self.slot(index) else { return Err(self.unknown(id)) };
        let state = slot.state.fetch_add(1, Ordering::Acquire);
        let used = Used { table: self, slot };
        if state >> 32 == id >> 32 && state & (CLOSING | VACANT) == 0 { Ok(used) } else { Err(self.unknown(id)) }
    }

    #[cold]
    fn unknown(&self, id: u64) -> Error {
        let why = match id {
            0 => "was never made",
            id if (id as u32 ^ self.kind.bits()) >> INDEX_BITS != 0 => "is the handle of something else",
            _ => "was closed, or never made",
        };
        Error::new(ErrorKind::InvalidInput, "look up a handle", format!("the {} {id:#x} {why}", self.kind.name()))
            .with_advice("pass what a function of the library returned, and close it once")
    }

    /// Ends a handle. The object is dropped when its last user is done with it.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub(crate) fn close(&'static self, id: u64) -> Result<()> {
        let used = self.get(id)?;
        if used.slot.state.fetch_or(CLOSING, Ordering::AcqRel) & CLOSING != 0 {
            return Err(self.unknown(id)); // Another thread was faster.
        }
        Ok(())
    }

    /// Drops the object if this user was the last of a handle that is closing.
    #[cold]
    fn reclaim(&'static self, slot: &'static Slot<T>, state: u64) {
        let next = ((state >> 32).wrapping_add(1) << 32) | VACANT;
        if slot.state.compare_exchange(state, next, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return; // One with an old handle looked; it comes here, too.
        }
        // SAFETY: the state was "closing, no users", so nobody has a reference and nobody gets one;
        // only this thread changed it, so the object is moved out once.
        let object = unsafe { (*slot.object.get()).assume_init_read() };
        OPEN.fetch_sub(1, Ordering::Relaxed);
        // A slot whose generations are used up stays away, so that no number stands for two.
        if next >> 32 != u64::from(u32::MAX) {
            let mut head = self.free.load(Ordering::Relaxed);
            loop {
                slot.next.store(head as u32, Ordering::Relaxed);
                let new = ((head >> 32).wrapping_add(1) << 32) | (u64::from(slot.index) + 1);
                match self.free.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Relaxed) {
                    Ok(_) => break,
                    Err(seen) => head = seen,
                }
            }
        }
        drop(object);
    }
}

impl<T> Deref for Used<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: `get` found the object there and counted this user, so it is not moved out.
        unsafe { (*self.slot.object.get()).assume_init_ref() }
    }
}

impl<T> Drop for Used<T> {
    #[inline]
    fn drop(&mut self) {
        let state = self.slot.state.fetch_sub(1, Ordering::AcqRel) - 1;
        if state & (CLOSING | VACANT | USERS) == CLOSING {
            self.table.reclaim(self.slot, state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn places_are_dense() {
        let mut last = None;
        for index in 0..if cfg!(miri) { 300 } else { 100_000 } {
            let (chunk, at) = Table::<u8>::place(index);
            assert!(chunk < CHUNKS && at < 1 << (chunk as u32 + FIRST));
            let here = Some((chunk, at));
            assert!(here > last);
            last = here;
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri ends where memory does")]
    fn a_table_that_has_no_memory_says_so_and_uses_up_nothing() {
        static TABLE: Table<[u8; 1 << 44]> = Table::new(Kind::Place);
        for _ in 0..3 {
            assert!(TABLE.vacant().is_none());
        }
        assert_eq!(TABLE.used.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_last_chunk_ends_the_table() {
        static TABLE: Table<u8> = Table::new(Kind::Pipe);
        let end = (1u32 << (CHUNKS as u32 + FIRST)) - (1 << FIRST);
        assert_eq!(Table::<u8>::place(end - 1).0, CHUNKS - 1);
        TABLE.used.store(end, Ordering::Relaxed);
        assert_eq!(TABLE.put(1).unwrap_err().kind(), ErrorKind::OutOfMemory);
    }

    #[test]
    fn the_number_of_another_kind_is_refused() {
        static PIPES: Table<u8> = Table::new(Kind::Pipe);
        static PLACES: Table<u8> = Table::new(Kind::Place);
        let (pipe, place) = (PIPES.put(1).unwrap(), PLACES.put(2).unwrap());
        assert_ne!(pipe, place);
        for error in [PIPES.get(place).err().unwrap(), PLACES.close(pipe).unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().contains("something else"), "{error}");
        }
        assert_eq!((*PIPES.get(pipe).unwrap(), *PLACES.get(place).unwrap()), (1, 2));
    }

    #[test]
    fn a_closed_handle_is_refused_for_ever_and_its_object_is_dropped_once() {
        static TABLE: Table<Arc<u32>> = Table::new(Kind::Pipe);
        let object = Arc::new(7);
        let mut old = Vec::new();
        for round in 0..if cfg!(miri) { 20 } else { 1000 } {
            let id = TABLE.put(object.clone()).unwrap();
            assert_eq!(**TABLE.get(id).unwrap(), 7);
            let used = TABLE.get(id).unwrap();
            TABLE.close(id).unwrap();
            assert_eq!(TABLE.close(id).unwrap_err().kind(), ErrorKind::InvalidInput);
            assert_eq!((**used, Arc::strong_count(&object)), (7, 2), "it lives while it is used");
            drop(used);
            assert_eq!(Arc::strong_count(&object), 1, "round {round}");
            old.push(id);
        }
        for id in old {
            assert!(TABLE.get(id).is_err());
        }
        assert!(TABLE.get(0).is_err() && TABLE.get(u64::MAX).is_err());
    }

    #[test]
    fn threads_that_use_and_close_the_same_handles() {
        static TABLE: Table<Arc<u64>> = Table::new(Kind::Pipe);
        static IDS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
        let objects: Vec<Arc<u64>> = (0..4).map(Arc::new).collect();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let objects = &objects;
                scope.spawn(move || {
                    let mut random = thread + 1;
                    for _ in 0..if cfg!(miri) { 50 } else { 50_000 } {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                        let which = (random >> 60) as usize % 4;
                        let id = IDS[which].load(Ordering::Relaxed);
                        match random >> 40 & 3 {
                            0 => {
                                let new = TABLE.put(objects[which].clone()).unwrap();
                                let before = IDS[which].swap(new, Ordering::Relaxed);
                                // Another thread may have closed it already.
                                let _ = TABLE.close(before);
                            }
                            1 => {
                                let _ = TABLE.close(id);
                            }
                            _ => {
                                if let Ok(used) = TABLE.get(id) {
                                    assert_eq!(**used, which as u64);
                                }
                            }
                        }
                    }
                });
            }
        });
        for id in &IDS {
            let _ = TABLE.close(id.load(Ordering::Relaxed));
        }
        assert!(objects.iter().all(|object| Arc::strong_count(object) == 1), "each object was dropped once");
    }
}
