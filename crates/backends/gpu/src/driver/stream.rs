//! Streams and events of a device.
//!
//! This module's unsafe code promises: a handle is used only while its value lives, and in the
//! process that made it. What a stream copies is the caller's to keep.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use datapipes_core::Result;

use super::abi::{self, DeviceAddress, Handle, HostFunction};
use super::device::{Context, Device};
use super::{Driver, Failure, checked};

/// How a stream's work goes among that of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamPriority {
    Usual,
    /// Before that of other streams, where the device can.
    High,
}

/// A queue of work of a device, carried out in order.
pub(crate) struct Stream {
    handle: Handle,
    device: &'static Device,
}

// SAFETY: a handle of the driver, which may be used by any thread.
unsafe impl Send for Stream {}
// SAFETY: as above; the driver locks a stream.
unsafe impl Sync for Stream {}

impl Stream {
    /// Makes a stream that waits for no other one.
    ///
    /// # Errors
    /// Those of the driver.
    pub(crate) fn new(device: &'static Device, priority: StreamPriority) -> Result<Stream> {
        let entered = device.enter("connect")?;
        let functions = &entered.driver.functions;
        let (mut least, mut greatest): (c_int, c_int) = (0, 0);
        let mut handle = std::ptr::null_mut();
        // SAFETY: it writes two numbers.
        let known = unsafe { (functions.stream_priorities)(&raw mut least, &raw mut greatest) } == abi::SUCCESS;
        let priority = if known && priority == StreamPriority::High { greatest } else { least };
        // SAFETY: it writes a handle. The context is current.
        let status = unsafe { (functions.stream_create)(&raw mut handle, abi::STREAM_NON_BLOCKING, priority) };
        checked("cuStreamCreateWithPriority", status)
            .map_err(|failure| entered.driver.error("connect", failure, &device.shown()))?;
        Ok(Stream { handle, device })
    }

    /// Starts a copy from memory of this process.
    ///
    /// # Safety
    /// Both ranges stay valid, and nobody writes the source or accesses the target, until an event
    /// that is recorded afterwards is over or the context is lost. The context is current.
    pub(crate) unsafe fn upload(
        &self,
        driver: &Driver,
        to: DeviceAddress,
        from: *const u8,
        len: usize,
    ) -> Result<(), Failure> {
        // SAFETY: as the caller promises.
        checked("cuMemcpyHtoDAsync", unsafe { (driver.functions.upload)(to, from.cast(), len, self.handle) })
    }

    /// Starts a copy into memory of this process.
    ///
    /// # Safety
    /// As [`upload`](Self::upload).
    pub(crate) unsafe fn download(
        &self,
        driver: &Driver,
        to: *mut u8,
        from: DeviceAddress,
        len: usize,
    ) -> Result<(), Failure> {
        // SAFETY: as the caller promises.
        checked("cuMemcpyDtoHAsync", unsafe { (driver.functions.download)(to.cast(), from, len, self.handle) })
    }

    /// Starts a copy within a device.
    ///
    /// # Safety
    /// As [`upload`](Self::upload).
    pub(crate) unsafe fn copy(
        &self,
        driver: &Driver,
        to: DeviceAddress,
        from: DeviceAddress,
        len: usize,
    ) -> Result<(), Failure> {
        // SAFETY: as the caller promises.
        checked("cuMemcpyDtoDAsync", unsafe { (driver.functions.copy)(to, from, len, self.handle) })
    }

    /// Starts a copy to another device.
    ///
    /// # Safety
    /// As [`upload`](Self::upload); each address belongs to its context.
    pub(crate) unsafe fn copy_peer(
        &self,
        driver: &Driver,
        (to, to_context): (DeviceAddress, Context),
        (from, from_context): (DeviceAddress, Context),
        len: usize,
    ) -> Result<(), Failure> {
        // SAFETY: as the caller promises.
        let status = unsafe { (driver.functions.copy_peer)(to, to_context.0, from, from_context.0, len, self.handle) };
        checked("cuMemcpyPeerAsync", status)
    }

    /// Work that is given from now on comes after the event.
    ///
    /// # Errors
    /// Those of the driver. The context must be current.
    pub(crate) fn wait_for(&self, driver: &Driver, event: &Event) -> Result<(), Failure> {
        // SAFETY: both handles live.
        checked("cuStreamWaitEvent", unsafe { (driver.functions.stream_wait)(self.handle, event.handle, 0) })
    }

    /// Marks the end of what was given so far.
    ///
    /// # Errors
    /// Those of the driver. The context must be current.
    pub(crate) fn record(&self, driver: &Driver, event: &Event) -> Result<(), Failure> {
        event.record(driver, self.handle)
    }

    /// Blocks until all that was given is done.
    ///
    /// # Errors
    /// Those of the driver. The context must be current.
    pub(crate) fn synchronize(&self, driver: &Driver) -> Result<(), Failure> {
        // SAFETY: the handle lives.
        checked("cuStreamSynchronize", unsafe { (driver.functions.stream_synchronize)(self.handle) })
    }

    /// Calls a function when what was given so far is done. Where the device is lost, nobody calls
    /// it.
    ///
    /// # Safety
    /// The function may be called on any thread with this value, once. It calls nothing of the
    /// driver and does not unwind.
    pub(crate) unsafe fn call(
        &self,
        driver: &Driver,
        function: HostFunction,
        value: *mut c_void,
    ) -> Result<(), Failure> {
        // SAFETY: as the caller promises.
        checked("cuLaunchHostFunc", unsafe { (driver.functions.launch_host)(self.handle, function, value) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // A child has a copy of the handle, and the stream is its parent's. Of a lost device the
        // driver keeps the stream until the process ends.
        if let Ok(entered) = self.device.enter("close") {
            // SAFETY: the handle was made by `new`, and nobody uses it any more.
            unsafe { (entered.driver.functions.stream_destroy)(self.handle) };
        }
    }
}

/// A mark in a stream, which is over when the stream has come there.
pub(crate) struct Event {
    handle: Handle,
    device: &'static Device,
}

// SAFETY: as for `Stream`.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// Makes an event of this device.
    ///
    /// # Errors
    /// Those of the driver. The context must be current.
    pub(crate) fn new(driver: &Driver, device: &'static Device) -> Result<Event, Failure> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: it writes a handle.
        let status = unsafe { (driver.functions.event_create)(&raw mut handle, abi::EVENT_DISABLE_TIMING) };
        checked("cuEventCreate", status).map(|()| Event { handle, device })
    }

    fn record(&self, driver: &Driver, stream: Handle) -> Result<(), Failure> {
        // SAFETY: the event lives; a stream that does not is refused by the driver, or is the
        // program's mistake (`record_on_foreign`).
        checked("cuEventRecord", unsafe { (driver.functions.event_record)(self.handle, stream) })
    }

    /// Marks the end of what was given so far to a stream of the program. A stream that is captured
    /// into a graph is refused: nothing that it is given is carried out now.
    ///
    /// # Safety
    /// `stream` is a stream of the current context, which lives; 0 is the default stream.
    ///
    /// # Errors
    /// Those of the driver.
    pub(crate) unsafe fn record_on_foreign(&self, driver: &Driver, stream: u64) -> Result<(), Failure> {
        let stream = std::ptr::with_exposed_provenance_mut(stream as usize);
        let mut captures = 0;
        // SAFETY: it writes a number; the stream lives, as the caller promises.
        let asked = unsafe { (driver.functions.stream_capturing)(stream, &raw mut captures) };
        checked("cuStreamIsCapturing", asked)?;
        if captures != 0 {
            return Err(Failure { call: "cuStreamIsCapturing", status: abi::CAPTURE_UNSUPPORTED });
        }
        self.record(driver, stream)
    }

    /// Makes a stream of the program wait for the event.
    ///
    /// # Safety
    /// As [`record_on_foreign`](Self::record_on_foreign).
    ///
    /// # Errors
    /// Those of the driver.
    pub(crate) unsafe fn hold_foreign(&self, driver: &Driver, stream: u64) -> Result<(), Failure> {
        let stream = std::ptr::with_exposed_provenance_mut(stream as usize);
        // SAFETY: as the caller promises.
        checked("cuStreamWaitEvent", unsafe { (driver.functions.stream_wait)(stream, self.handle, 0) })
    }

    /// Whether it is over.
    ///
    /// # Errors
    /// Those of the driver, also of work that was given before.
    pub(crate) fn is_over(&self, driver: &Driver) -> Result<bool, Failure> {
        // SAFETY: the handle lives.
        match unsafe { (driver.functions.event_query)(self.handle) } {
            abi::SUCCESS => Ok(true),
            // While any thread captures a graph, the driver answers no questions (900 to 908).
            abi::NOT_READY | 900..=908 => Ok(false),
            status => Err(Failure { call: "cuEventQuery", status }),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(entered) = self.device.enter("close") {
            // SAFETY: the handle was made by `new`, and nobody uses it any more.
            unsafe { (entered.driver.functions.event_destroy)(self.handle) };
        }
    }
}
