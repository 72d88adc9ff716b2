//! Memory of Python objects as places of the library.
//!
//! ```text
//! object --View (pinned until dropped)--> Foreign --Region::shared--> pipe, ring, jobs
//!                                            |            |
//!                                            |            +-- its keeper sets `gone` on drop
//!                                            +-- dropped: the view, too, if `gone`; else kept
//! ```
//!
//! Unsafe code: a region over the bytes of a buffer. The bytes stay valid because the view is
//! dropped only when the region's keeper was dropped. The region is a *shared* one: other code of
//! the program may access the bytes meanwhile, as Python code can, so no references to them are
//! made.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use datapipes::Dram;
use datapipes::locks::Mutex;
use datapipes::memory::Region;
use pyo3::prelude::*;

use crate::buffer::Buffer;
use crate::errors::{attached, invalid};
use crate::view::View;
pub(crate) use crate::view::{Use, bytes_of as raw};

/// Set when the last reference to a region is dropped.
struct Gone(Arc<AtomicBool>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Views whose regions were still referred to when they were let go. The lock is taken only by
/// holders of the interpreter's lock, so a child of `fork` finds it free.
static KEPT: Mutex<Vec<(Arc<AtomicBool>, View)>> = Mutex::new(Vec::new());

/// Drops kept views whose regions nothing refers to any more.
pub(crate) fn sweep(_: Python<'_>) {
    let free: Vec<_> = {
        let mut kept = KEPT.lock();
        kept.extract_if(.., |(gone, _)| gone.load(Ordering::Acquire)).collect()
    };
    // Outside of the lock: this runs code of the objects.
    drop(free);
}

/// The bytes of a Python object.
struct Foreign {
    dram: Option<Dram>,
    view: Option<View>,
    gone: Arc<AtomicBool>,
}

impl Drop for Foreign {
    fn drop(&mut self) {
        drop(self.dram.take());
        if let Some(view) = self.view.take()
            && !self.gone.load(Ordering::Acquire)
        {
            KEPT.lock().push((self.gone.clone(), view));
        }
    }
}

/// Memory that a transfer reads or writes. It is made and dropped with the interpreter's lock.
pub(crate) struct Bytes {
    /// `None` for no bytes.
    dram: Option<Dram>,
    len: usize,
    // After `dram`: fields drop in order.
    _foreign: Option<Foreign>,
}

impl Bytes {
    /// The bytes of a [`Buffer`], of an object with the buffer protocol, or of one with DLPack.
    pub(crate) fn of(object: &Bound<'_, PyAny>, purpose: Use, operation: &'static str) -> PyResult<Bytes> {
        let py = object.py();
        sweep(py);
        if let Ok(buffer) = object.cast::<Buffer>() {
            let buffer = buffer.get();
            if purpose == Use::Write && buffer.is_readonly() {
                return Err(invalid(py, operation, "the buffer is read-only"));
            }
            let len = buffer.place().len();
            return Ok(Bytes { dram: (len > 0).then(|| buffer.place().clone()), len, _foreign: None });
        }
        let view = raw(object, purpose, operation)?;
        let len = view.len();
        let Some(start) = view.start() else { return Ok(Bytes { dram: None, len: 0, _foreign: None }) };
        let gone = Arc::new(AtomicBool::new(false));
        // SAFETY: an exporter keeps the bytes of a buffer where they are until the view is dropped,
        // and `Foreign` drops it after the keeper. For writing, it was checked that the buffer is
        // not read-only; for reading, the region is only used as a source.
        let region = unsafe { Region::shared(start, len, Box::new(Gone(gone.clone()))) };
        let dram = attached(py, || Ok(Dram::over(region.range(0, len)?)));
        drop(region);
        let dram = dram?;
        let foreign = Foreign { dram: Some(dram.clone()), view: Some(view), gone };
        Ok(Bytes { dram: Some(dram), len, _foreign: Some(foreign) })
    }

    /// The place; `None` for no bytes.
    pub(crate) fn place(&self) -> Option<&Dram> {
        self.dram.as_ref()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}
