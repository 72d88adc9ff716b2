//! Memory of Python objects as places of the library, on the processor's side or on a device.
//!
//! ```text
//! object --Kept (pinned until dropped)--> Foreign --Region::shared--> pipe, ring, jobs
//!                                            |     (Hbm::foreign)
//!                                            |            |
//!                                            |            +-- its keeper sets `gone` on drop
//!                                            +-- dropped: what is kept, too, if `gone`; else later
//! ```
//!
//! A child of `fork` has copies of the objects, which no transfer of the parent touches. So there a
//! view is dropped whatever the region is referred to by.
//!
//! Unsafe code: a region over the bytes of a buffer, and memory of a device over those of a tensor.
//! The bytes stay valid because the view is dropped only when the region's keeper was dropped. The
//! region is a *shared* one: other code of the program may access the bytes meanwhile, as Python
//! code can, so no references to them are made.
#![allow(unsafe_code)]

use std::mem::forget;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use datapipes::gpu::Hbm;
use datapipes::locks::{Condvar, Mutex};
use datapipes::memory::{RawLease, Region, guarded};
use datapipes::process::OwningProcess;
use datapipes::{Dram, Error, ErrorKind, Locator, Result};
use pyo3::prelude::*;

use crate::buffer::Buffer;
use crate::device::hbm::DeviceMemory;
use crate::device::tensor::{self, Tensor};
use crate::errors::{attached, detached, invalid};
pub(crate) use crate::view::{Use, bytes_of as raw};
use crate::view::{View, has_buffer};

/// How long the end of a transfer waits for the runtime's thread to let go of its bytes, which is
/// the next that the thread does. After that, a later call lets go of them.
const PATIENCE: Duration = Duration::from_secs(1);

/// Whether the last reference to a region was dropped.
#[derive(Default)]
struct Gone {
    state: Mutex<GoneState>,
    changed: Condvar,
}

#[derive(Default)]
struct GoneState {
    is_gone: bool,
    /// Threads that wait for it: waking nobody costs a system call, too.
    waiting: usize,
}

impl Gone {
    fn is_set(&self) -> bool {
        self.state.lock().is_gone
    }

    fn wait(&self) {
        let mut state = self.state.lock();
        state.waiting += 1;
        let mut state = self.changed.wait_timeout_while(state, PATIENCE, |state| !state.is_gone).0;
        state.waiting -= 1;
    }
}

/// Sets `Gone` when the last reference to a region is dropped.
struct Keeper(Arc<Gone>);

impl Drop for Keeper {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.is_gone = true;
        if state.waiting > 0 {
            self.0.changed.notify_all();
        }
    }
}

/// Objects whose regions were still referred to when they were let go. The lock is taken only by
/// holders of the interpreter's lock, so a child of `fork` finds it free.
static KEPT: Mutex<Vec<Foreign>> = Mutex::new(Vec::new());

/// Whether there may be something to sweep. Every call looks at it.
static LEFT: AtomicBool = AtomicBool::new(false);

/// Takes note that something was left for a later sweep.
pub(crate) fn leave() {
    LEFT.store(true, Ordering::Relaxed);
}

/// Whether something was left since the last time that this was asked.
pub(crate) fn take_left() -> bool {
    LEFT.load(Ordering::Relaxed) && LEFT.swap(false, Ordering::Relaxed)
}

/// Lets go of kept objects that nothing refers to any more.
pub(crate) fn sweep(_: Python<'_>) {
    let free: Vec<_> = {
        let mut kept = KEPT.lock();
        let free = kept.extract_if(.., |foreign| foreign.is_free()).collect();
        if !kept.is_empty() {
            leave();
        }
        free
    };
    // Outside of the lock: this runs code of the objects.
    drop(free);
}

/// Memory that a transfer reads or writes.
#[derive(Clone)]
pub(crate) enum Place {
    /// Of the processor.
    Host(Dram),
    /// Of a GPU.
    Device(Hbm),
}

impl Place {
    pub(crate) fn locator(&self) -> &(dyn Locator + Sync) {
        match self {
            Place::Host(dram) => dram,
            Place::Device(hbm) => hbm,
        }
    }

    pub(crate) fn len(&self) -> u64 {
        match self {
            Place::Host(dram) => dram.len() as u64,
            Place::Device(hbm) => hbm.len(),
        }
    }

    /// The first bytes of it.
    pub(crate) fn first(&self, len: u64) -> Result<Place> {
        match self {
            // What is no longer than the memory fits in it.
            Place::Host(dram) => dram.range(0, usize::try_from(len).unwrap_or(usize::MAX)).map(Place::Host),
            Place::Device(hbm) => hbm.slice(0..len).map(Place::Device),
        }
    }
}

/// What keeps the bytes of an object where they are. It is held, not looked at.
#[allow(dead_code)]
enum Kept {
    View(View),
    Tensor(Tensor),
}

/// The bytes of a Python object. It is dropped with the interpreter's lock.
struct Foreign {
    place: Option<Place>,
    kept: Option<Kept>,
    gone: Arc<Gone>,
    owner: OwningProcess,
}

impl Foreign {
    /// Whether no transfer refers to the bytes. A lock of the parent's is not touched.
    fn is_free(&self) -> bool {
        !self.owner.is_here() || self.gone.is_set()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        match self.owner.is_here() {
            true => drop(self.place.take()),
            // What refers to it is the parent's.
            false => forget(self.place.take()),
        }
        if self.kept.is_some() && !self.is_free() {
            let (kept, gone) = (self.kept.take(), self.gone.clone());
            KEPT.lock().push(Foreign { place: None, kept, gone, owner: self.owner });
            leave();
        }
    }
}

/// Memory that a transfer reads or writes. It is made and dropped with the interpreter's lock.
pub(crate) struct Bytes {
    /// `None` for no bytes.
    place: Option<Place>,
    len: u64,
    foreign: Option<Foreign>,
}

/// Copies what was read to memory that may be of others: where it is that of a mapped file, pages may
/// be missing.
///
/// # Safety
/// The leases are over as many bytes, one for reading and one for writing, which do not overlap.
pub(crate) unsafe fn copy_out(source: &RawLease, target: &RawLease) -> Result<()> {
    // SAFETY: as the caller says.
    let copied = unsafe { guarded::copy(source.address(), target.address(), target.len()) };
    copied.map_err(|gone| {
        let (why, advice) = gone.reason();
        let why = format!("a page of the memory to fill is gone: {why}");
        Error::new(ErrorKind::Device, "read", why).with_bytes_done(gone.done as u64).with_advice(advice)
    })
}

impl Bytes {
    /// The bytes of a [`Buffer`], of an object with the buffer protocol, or of one with DLPack, in the
    /// processor's memory.
    pub(crate) fn of(object: &Bound<'_, PyAny>, purpose: Use, operation: &'static str) -> PyResult<Bytes> {
        let py = object.py();
        if let Ok(buffer) = object.cast::<Buffer>() {
            let buffer = buffer.get();
            if purpose == Use::Write && buffer.is_readonly() {
                return Err(invalid(py, operation, "the buffer is read-only"));
            }
            let len = buffer.len() as u64;
            let place = if len > 0 { Some(Place::Host(buffer.place(py)?)) } else { None };
            return Ok(Bytes { place, len, foreign: None });
        }
        let view = raw(object, purpose, operation)?;
        let len = view.len();
        let Some(start) = view.start() else { return Ok(Bytes { place: None, len: 0, foreign: None }) };
        // They may be those of a mapped file, whose pages go when it is cut off.
        attached(py, guarded::install)?;
        let gone = Arc::new(Gone::default());
        // SAFETY: an exporter keeps the bytes of a buffer where they are until the view is dropped,
        // and `Foreign` drops it after the keeper. For writing, it was checked that the buffer is
        // not read-only; for reading, the region is only used as a source.
        let region = unsafe { Region::shared(start, len, Box::new(Keeper(gone.clone()))) };
        let dram = attached(py, || Ok(Dram::over(region.range(0, len)?)));
        drop(region);
        Ok(Bytes::foreign(Place::Host(dram?), Kept::View(view), gone))
    }

    /// As [`of`](Self::of); the bytes may also be those of a GPU: an `Hbm`, a tensor, an array.
    pub(crate) fn anywhere(object: &Bound<'_, PyAny>, purpose: Use, operation: &'static str) -> PyResult<Bytes> {
        let py = object.py();
        if let Ok(memory) = object.cast::<DeviceMemory>() {
            let hbm = memory.get().place(py)?;
            let len = hbm.len();
            return Ok(Bytes { place: (len > 0).then_some(Place::Device(hbm)), len, foreign: None });
        }
        if has_buffer(object) {
            match Bytes::of(object, purpose, operation) {
                Err(_) if tensor::is_on_device(object)? => {}
                other => return other,
            }
        } else if !tensor::is_on_device(object)? {
            return Bytes::of(object, purpose, operation);
        }
        let tensor = Tensor::of(object, purpose, operation)?;
        if tensor.len == 0 {
            return Ok(Bytes { place: None, len: 0, foreign: None });
        }
        let gone = Arc::new(Gone::default());
        // SAFETY: the tensor's owner keeps the bytes until it is dropped, and `Foreign` drops it after
        // the keeper. For writing, it was checked that they are not read-only; for reading, the place
        // is only used as a source.
        let hbm = unsafe { tensor.place(py, Box::new(Keeper(gone.clone()))) }?;
        Ok(Bytes::foreign(Place::Device(hbm), Kept::Tensor(tensor), gone))
    }

    fn foreign(place: Place, kept: Kept, gone: Arc<Gone>) -> Bytes {
        let (len, owner) = (place.len(), OwningProcess::here());
        let foreign = Foreign { place: Some(place.clone()), kept: Some(kept), gone, owner };
        Bytes { place: Some(place), len, foreign: Some(foreign) }
    }

    /// The place; `None` for no bytes.
    pub(crate) fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }

    /// The place in the processor's memory; `None` for no bytes there.
    pub(crate) fn host(&self) -> Option<&Dram> {
        match &self.place {
            Some(Place::Host(dram)) => Some(dram),
            _ => None,
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Lets go of the bytes of a transfer that is done, so that their owner may resize them. The
    /// runtime's thread may still be about to let go of them.
    pub(crate) fn end(mut self, py: Python<'_>) {
        drop(self.place.take());
        let Some(foreign) = &mut self.foreign else { return };
        drop(foreign.place.take());
        if !foreign.is_free() {
            let gone = &foreign.gone;
            let _ = detached(py, || {
                gone.wait();
                Ok(())
            });
        }
    }

    /// Lets go of the bytes of a transfer of the parent, in a child of `fork`.
    pub(crate) fn forsake(mut self) {
        forget(self.place.take());
        // Its drop does the rest.
        drop(self.foreign.take());
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        // Before the object's own reference, which is the last.
        drop(self.place.take());
    }
}
