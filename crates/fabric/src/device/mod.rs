//! Devices: locked-down processes, each of which wraps a place and a function (the paper's
//! activities on accelerator tiles).
//!
//! A device is launched with a [`DeviceRole`] and the descriptors that it works on, and can open
//! nothing by itself. It gets channels from the controller, and works from its inlets to its
//! outlets without knowing the other ends. So the same device serves under every
//! [`Placement`](crate::placement::Placement).
//!
//! The bytes of files are moved by `pread` and `pwrite` on the given descriptors, because a ring
//! (io_uring) would bypass the device's filter of system calls.

mod arguments;
mod files;
mod functions;
mod meter;
mod progress;
mod relay;
pub(crate) mod role;
mod sink;
mod source;
mod stage;
mod transform;

pub use arguments::DeviceArguments;
pub use files::Mode;
pub(crate) use files::{COMMIT, OPEN, READ_AT, WRITE, WRITE_AT};
pub use functions::{Function, Functions, MakeFunction};
pub use meter::metered;
pub use progress::{ProgressSink, StreamProgress, StreamStage};
pub use relay::relay;
pub use role::{DevicePlace, DeviceRole, Failure, Spread, StreamReport};
pub use stage::{Body, DeviceChannels, MakeBody};

use std::os::fd::OwnedFd;

use datapipes_core::Result;

/// Makes the body of a role from the given descriptors. It is also for custom bodies that do
/// something in addition.
///
/// Devices call it before the lock-down, when no foreign data was seen yet.
///
/// # Errors
/// `NotFound` for an unknown function or body, and errors about its arguments or descriptors.
pub fn body(role: DeviceRole, given: Vec<OwnedFd>, functions: &Functions) -> Result<Box<dyn Body>> {
    let mut given: Vec<Option<OwnedFd>> = given.into_iter().map(Some).collect();
    Ok(match role {
        DeviceRole::Source { place, sum } => Box::new(source::Source::new(place, sum, &mut given)?),
        DeviceRole::Transform { function, arguments, spread } => {
            Box::new(transform::Transform::new(functions.function(&function, &arguments)?, spread))
        }
        DeviceRole::Sink { place } => Box::new(sink::Sink::new(place, &mut given)?),
        DeviceRole::Files => Box::new(files::Files::new(given.into_iter().flatten().collect())),
        DeviceRole::Hub => Box::new(relay::Hub),
        DeviceRole::Custom { name, arguments } => {
            functions.body(&name)?(&arguments, given.into_iter().flatten().collect())?
        }
    })
}
