//! Pinned buffers through which a core copies what a copy engine cannot reach: memory that is not
//! registered, or must not be, because its pages may go (mapped files, memory of other processes).
//!
//! Unsafe code: the buffers are memory of the driver, used only here, one copy at a time.
#![allow(unsafe_code)]

use datapipes_core::memory::guarded::{self, AccessFault};

use crate::driver::device::Device;
use crate::driver::{Driver, Failure, abi, checked};

/// The bytes of a buffer: some times what an engine moves while a copy is started.
pub(crate) const BUFFER_BYTES: usize = 1 << 20;
/// The buffers: one is filled, one is moved, and two are in between.
pub(crate) const BUFFERS: usize = 4;

/// The buffers of a mover.
pub(crate) struct StagingBuffers {
    start: *mut u8,
    free: Vec<usize>,
    device: &'static Device,
}

// SAFETY: the memory belongs to the process, not to a thread.
unsafe impl Send for StagingBuffers {}

impl StagingBuffers {
    /// Allocates pinned memory.
    ///
    /// # Errors
    /// Those of the driver. The context must be current.
    pub(crate) fn new(driver: &Driver, device: &'static Device) -> Result<StagingBuffers, Failure> {
        let mut start = std::ptr::null_mut();
        // SAFETY: it writes an address.
        let status = unsafe { (driver.functions.host_allocate)(&raw mut start, BUFFERS * BUFFER_BYTES, abi::PORTABLE) };
        checked("cuMemHostAlloc", status)?;
        Ok(StagingBuffers { start: start.cast(), free: (0..BUFFERS).collect(), device })
    }

    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Takes a free buffer.
    pub(crate) fn take(&mut self) -> Option<usize> {
        self.free.pop()
    }

    /// Gives a buffer back, which no copy uses any more.
    pub(crate) fn give_back(&mut self, buffer: usize) {
        self.free.push(buffer);
    }

    /// The address of a buffer, which was taken.
    pub(crate) fn address(&self, buffer: usize) -> *mut u8 {
        self.start.wrapping_add(buffer % BUFFERS * BUFFER_BYTES)
    }

    /// Copies into a buffer.
    ///
    /// # Safety
    /// `from..from + len` is leased for reading, `len` is at most [`BUFFER_BYTES`], and the buffer
    /// was taken and is in no copy.
    ///
    /// # Errors
    /// The page that is gone.
    pub(crate) unsafe fn fill(&self, buffer: usize, from: *const u8, len: usize) -> Result<(), AccessFault> {
        // SAFETY: as the caller promises.
        unsafe { guarded::copy(from, self.address(buffer), len) }
    }

    /// Copies out of a buffer.
    ///
    /// # Safety
    /// As [`fill`](Self::fill), with a lease for writing.
    ///
    /// # Errors
    /// The page that is gone.
    pub(crate) unsafe fn empty(&self, buffer: usize, to: *mut u8, len: usize) -> Result<(), AccessFault> {
        // SAFETY: as the caller promises.
        unsafe { guarded::copy(self.address(buffer).cast_const(), to, len) }
    }
}

impl Drop for StagingBuffers {
    fn drop(&mut self) {
        // A lost device keeps them until the process ends.
        if let Ok(entered) = self.device.enter("close") {
            // SAFETY: the driver gave this address, and no copy is under way: the mover's are done.
            unsafe { (entered.driver.functions.host_free)(self.start.cast()) };
        }
    }
}
