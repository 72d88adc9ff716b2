//! A device, and its primary context.
//!
//! Unsafe code: calls of the driver that take numbers, or write into variables of the caller.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::marker::PhantomData;
use std::sync::OnceLock;

use datapipes_core::{Error, ErrorKind, Result};

use super::abi::{self, DeviceHandle, Handle};
use super::library::Functions;
use super::loaded::{Driver, Failure, checked};

/// The bytes for a name.
const NAME_BYTES: usize = 128;

/// A device of the driver.
pub(crate) struct Device {
    pub(crate) number: u32,
    pub(crate) name: String,
    /// The PCI address, such as `0000:41:00.0`.
    pub(crate) pci: String,
    /// Copies that the device makes at the same time.
    pub(crate) copy_engines: u32,
    /// The rate of its memory by clock and width, in bytes per second.
    pub(crate) memory_bytes_per_s: Option<f64>,
    handle: DeviceHandle,
    context: OnceLock<Result<Context, Failure>>,
    /// Why its context can do nothing any more.
    lost: OnceLock<String>,
}

/// A primary context, which is retained until the process ends.
#[derive(Clone, Copy)]
pub(crate) struct Context(pub(crate) Handle);

// SAFETY: a handle of the driver, which may be used by any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// The devices, in the driver's order.
///
/// # Errors
/// What the driver says; that there is none.
pub(super) fn discover(functions: &Functions) -> Result<Vec<Device>, String> {
    let failed = |failure: Failure| format!("{} says {}", failure.call, functions.words_of(failure.status));
    let mut count = 0;
    // SAFETY: it writes a number.
    checked("cuDeviceGetCount", unsafe { (functions.device_count)(&raw mut count) }).map_err(failed)?;
    let devices = (0..count.max(0)).map(|number| Device::of(functions, number)).collect::<Result<Vec<_>, _>>();
    let devices = devices.map_err(failed)?;
    if devices.is_empty() { Err("the driver has no device".into()) } else { Ok(devices) }
}

impl Device {
    fn of(functions: &Functions, number: c_int) -> Result<Device, Failure> {
        let mut handle = 0;
        // SAFETY: it writes a number.
        checked("cuDeviceGet", unsafe { (functions.device_get)(&raw mut handle, number) })?;
        let text = |function: unsafe extern "C" fn(*mut c_char, c_int, DeviceHandle) -> abi::Status| {
            let mut bytes: [c_char; NAME_BYTES] = [0; NAME_BYTES];
            // SAFETY: it writes at most so many bytes, and the last one stays a zero.
            let status = unsafe { function(bytes.as_mut_ptr(), NAME_BYTES as c_int - 1, handle) };
            // SAFETY: the array ends with a zero.
            let text = unsafe { CStr::from_ptr(bytes.as_ptr()) }.to_string_lossy().into_owned();
            if status == abi::SUCCESS { text.chars().filter(|c| !c.is_control()).collect() } else { String::new() }
        };
        let attribute = |attribute| {
            let mut value = 0;
            // SAFETY: it writes a number.
            let status = unsafe { (functions.device_attribute)(&raw mut value, attribute, handle) };
            if status == abi::SUCCESS { u32::try_from(value).ok().filter(|value| *value > 0) } else { None }
        };
        // Both edges of the clock carry data.
        let rate = |khz: u32, bits: u32| f64::from(khz) * 1e3 * 2.0 * f64::from(bits) / 8.0;
        Ok(Device {
            number: number.unsigned_abs(),
            name: text(functions.device_name),
            pci: text(functions.device_pci).to_lowercase(),
            copy_engines: attribute(abi::ASYNC_ENGINES).unwrap_or(1),
            memory_bytes_per_s: attribute(abi::MEMORY_CLOCK_RATE)
                .zip(attribute(abi::MEMORY_BUS_WIDTH))
                .map(|(khz, bits)| rate(khz, bits)),
            handle,
            context: OnceLock::new(),
            lost: OnceLock::new(),
        })
    }

    /// Makes the device's context current on this thread, until the result is dropped.
    ///
    /// # Errors
    /// `Device` where the device was lost; `Forked`; the driver's error where it has no context.
    pub(crate) fn enter(&self, operation: &'static str) -> Result<Entered> {
        let driver = Driver::get(operation)?;
        if let Some(why) = self.lost.get() {
            return Err(self.lost_error(operation, why));
        }
        let told = |failure: Failure| driver.error(operation, failure, &self.shown());
        let context = self.context(driver).map_err(told)?;
        Entered::new(driver, context, self.number == 0).map_err(told)
    }

    fn context(&self, driver: &Driver) -> Result<Context, Failure> {
        *self.context.get_or_init(|| {
            let mut context = std::ptr::null_mut();
            // SAFETY: it writes a handle.
            let status = unsafe { (driver.functions.context_retain)(&raw mut context, self.handle) };
            checked("cuDevicePrimaryCtxRetain", status).map(|()| Context(context))
        })
    }

    /// The context, for a copy between devices.
    ///
    /// # Errors
    /// The driver's, where it has none.
    pub(crate) fn known_context(&self) -> Result<Context, Failure> {
        match self.context.get() {
            Some(context) => *context,
            None => Err(Failure { call: "cuDevicePrimaryCtxRetain", status: abi::INVALID_DEVICE }),
        }
    }

    /// Free and all bytes of its memory.
    ///
    /// # Errors
    /// As [`enter`](Self::enter), and the driver's.
    pub(crate) fn memory(&self) -> Result<(u64, u64)> {
        let entered = self.enter("discover")?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: it writes two numbers.
        let status = unsafe { (entered.driver.functions.memory_info)(&raw mut free, &raw mut total) };
        checked("cuMemGetInfo", status).map_err(|f| entered.driver.error("discover", f, &self.shown()))?;
        Ok((free as u64, total as u64))
    }

    /// Whether its context can do nothing any more.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// Notes that its context can do nothing any more.
    pub(crate) fn lose(&self, why: String) {
        self.lost.get_or_init(|| why);
    }

    /// The error of a device that was lost.
    pub(crate) fn lost_error(&self, operation: &'static str, why: &str) -> Error {
        Error::new(ErrorKind::Device, operation, format!("{} is lost: {why}", self.shown()))
            .with_advice("the driver refuses all work of this process with the device: start the program again")
    }

    /// Its number and name, for errors.
    pub(crate) fn shown(&self) -> String {
        format!("GPU {} ({})", self.number, self.name)
    }
}

/// A context that is current on this thread.
pub(crate) struct Entered {
    pub(crate) driver: &'static Driver,
    pushed: bool,
    /// What a thread that captures a graph may not do, before.
    capture_mode: Option<c_int>,
    /// It belongs to the thread.
    _thread: PhantomData<*const ()>,
}

impl Entered {
    /// `may_stay` where the context may be left on a thread that had none.
    fn new(driver: &'static Driver, context: Context, may_stay: bool) -> Result<Entered, Failure> {
        let mut current = std::ptr::null_mut();
        // SAFETY: it writes a handle.
        let status = unsafe { (driver.functions.context_current)(&raw mut current) };
        if may_stay && status == abi::SUCCESS && current.is_null() {
            // SAFETY: the context is retained until the process ends.
            checked("cuCtxSetCurrent", unsafe { (driver.functions.context_set)(context.0) })?;
            current = context.0;
        }
        let pushed = status != abi::SUCCESS || current != context.0;
        if pushed {
            // SAFETY: the context is retained until the process ends.
            checked("cuCtxPushCurrent", unsafe { (driver.functions.context_push)(context.0) })?;
        }
        // Another thread may capture a graph. Our calls are not a part of it, and must not end it.
        let mut mode = abi::CAPTURE_RELAXED;
        // SAFETY: it exchanges a number with one of this thread.
        let exchanged = unsafe { (driver.functions.capture_mode)(&raw mut mode) } == abi::SUCCESS;
        Ok(Entered { driver, pushed, capture_mode: exchanged.then_some(mode), _thread: PhantomData })
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(mut mode) = self.capture_mode {
            // SAFETY: it exchanges a number with one of this thread.
            unsafe { (self.driver.functions.capture_mode)(&raw mut mode) };
        }
        if self.pushed {
            let mut before = std::ptr::null_mut();
            // SAFETY: it writes a handle. What was pushed is on top: every push here has its pop.
            unsafe { (self.driver.functions.context_pop)(&raw mut before) };
        }
    }
}
