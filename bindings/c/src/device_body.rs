//! Bodies of devices that are functions of the program: they work with the ends of their channels
//! until these end, instead of being called for each block.
//!
//! Unsafe code: functions of the program, called with the argument that it gave for them.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_void};
use std::os::fd::OwnedFd;

use datapipes::fabric::channel::Patience;
use datapipes::fabric::device::{Body, DeviceArguments, DeviceChannels};
use datapipes::{Error, ErrorKind, Result};

use crate::arguments;
use crate::channel::{dp_receiver, dp_receiver_close, dp_sender, dp_sender_close, keep_receiver, keep_sender};
use crate::error::{dp_error, dp_error_close};
use crate::machine::Shared;

/// What a device does: it receives from its inlets and sends to its outlets, in the order in which
/// they were connected, until they end, and returns. `arguments` are those of its role, as JSON. The
/// calls for these ends wait until their channels end, unless it sets another patience. They are
/// closed when it has returned, where it has not closed them. It runs in a process of the device,
/// which can open nothing. An error is told to the application, but for DP_END_OF_FILE, which is the
/// orderly end.
pub type dp_device_run = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        arguments: *const c_char,
        inlets: *const dp_receiver,
        inlet_count: usize,
        outlets: *const dp_sender,
        outlet_count: usize,
    ) -> dp_error,
>;

/// A body that devices of this program can have.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_device_body {
    /// The name by which a device's role calls it: `{"custom": {"name": NAME, "arguments": VALUE}}`.
    pub name: *const c_char,
    /// What it does.
    pub run: dp_device_run,
    /// What it is called with.
    pub user: *mut c_void,
}

type Run =
    unsafe extern "C" fn(*mut c_void, *const c_char, *const dp_receiver, usize, *const dp_sender, usize) -> dp_error;

/// A body in C, in the process of a device.
struct BodyOfC {
    run: Run,
    user: Shared,
    arguments: CString,
}

impl Body for BodyOfC {
    fn run(&mut self, channels: &mut DeviceChannels<'_>) -> Result<()> {
        let mut ends = Ends { inlets: Vec::new(), outlets: Vec::new() };
        for mut inlet in channels.inlets.drain(..).flatten() {
            inlet.set_patience(Patience::UNTIL_ENDED);
            ends.inlets.push(keep_receiver(inlet)?);
        }
        for outlet in channels.outlets.drain(..) {
            ends.outlets.push(keep_sender(outlet)?);
        }
        let (inlets, outlets) = (&ends.inlets, &ends.outlets);
        // SAFETY: the program gave the function for these arguments, which live until it returns.
        let outcome = unsafe {
            (self.run)(
                self.user.get(),
                self.arguments.as_ptr(),
                inlets.as_ptr(),
                inlets.len(),
                outlets.as_ptr(),
                outlets.len(),
            )
        };
        outcome.into_result("run")
    }
}

/// The ends of a device, until its body has returned.
struct Ends {
    inlets: Vec<dp_receiver>,
    outlets: Vec<dp_sender>,
}

impl Drop for Ends {
    fn drop(&mut self) {
        // What the body closed all the same is closed.
        self.inlets.iter().for_each(|end| dp_error_close(dp_receiver_close(*end)));
        self.outlets.iter().for_each(|end| dp_error_close(dp_sender_close(*end)));
    }
}

/// What makes the body for a device.
#[allow(clippy::type_complexity)] // A closure whose type has no name.
pub(crate) fn maker(
    name: &str,
    body: &dp_device_body,
) -> Result<impl Fn(&DeviceArguments, Vec<OwnedFd>) -> Result<Box<dyn Body>> + Send + Sync + use<>> {
    let none = || Error::new(ErrorKind::InvalidInput, "enter", format!("`{name}` has no work"));
    let (run, user) = (body.run.ok_or_else(none)?, Shared(body.user));
    Ok(move |arguments: &DeviceArguments, given: Vec<OwnedFd>| {
        if !given.is_empty() {
            let why = format!("{} descriptors for a body in C, which takes none", given.len());
            return Err(Error::new(ErrorKind::InvalidInput, "launch", why));
        }
        let wrong = |_| Error::new(ErrorKind::InvalidInput, "launch", "the arguments have a NUL");
        let arguments = CString::new(arguments::json(arguments)?).map_err(wrong)?;
        Ok(Box::new(BodyOfC { run, user, arguments }) as Box<dyn Body>)
    })
}
