//! Programs that act as controllers, devices and bridges when they are started as such.

mod alone;
pub(crate) mod inherited;
mod life;
mod namespace;
pub(crate) mod sandbox;
mod signals;
pub(crate) mod status;

pub use crate::control::party::client::ControllerClient;

use std::os::fd::OwnedFd;
use std::process::ExitCode;

use datapipes_core::process::OwningProcess;
use datapipes_core::{Error, Result};

use crate::control::protocol::{BRIDGE, CONTROLLER, DEVICE};
use crate::device::Functions;

/// If this process was started as a controller, a device or a bridge, runs as that, and returns the
/// exit code for `main`. Call it first in `main`, before there are threads: a device with another
/// thread, also one that a library started when it was loaded, would not be confined, and ends with
/// an error that says so.
pub fn enter(functions: &Functions) -> Option<ExitCode> {
    // The first argument of another program may be anything.
    let role = std::env::args_os().nth(1)?.into_string().ok()?;
    if [CONTROLLER, DEVICE, BRIDGE].contains(&role.as_str()) {
        inherited::close();
        // This needs a page of memory in a way that is forbidden to devices, so it is done now.
        let _ = OwningProcess::here();
    }
    if role == CONTROLLER {
        signals::outlive_those_of_the_group();
    }
    let outcome = match role.as_str() {
        CONTROLLER => control_socket().and_then(crate::control::serve),
        DEVICE => control_socket().and_then(|socket| life::live(socket, functions)),
        BRIDGE => control_socket().and_then(crate::bridge::life::live),
        _ => return None,
    };
    Some(match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{}: {e}", role.trim_start_matches("--"));
            ExitCode::FAILURE
        }
    })
}

/// Returns the role that this process was started for, and does not play: its `main` has not called
/// [`enter`].
pub(crate) fn unheeded_role() -> Option<&'static str> {
    let role = std::env::args_os().nth(1)?;
    [CONTROLLER, DEVICE, BRIDGE].into_iter().find(|known| role == **known)
}

/// Returns the socket to the parent process: its standard input, which becomes /dev/null.
fn control_socket() -> Result<OwnedFd> {
    let os = |what: &'static str| move |e: rustix::io::Errno| Error::os("start", e.raw_os_error(), what);
    let stdin = std::io::stdin();
    rustix::net::sockopt::socket_domain(&stdin).map_err(os("standard input is no control socket"))?;
    let fd = rustix::io::fcntl_dupfd_cloexec(&stdin, 3).map_err(os("the control socket"))?;
    let nothing = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty());
    match nothing {
        Ok(nothing) => rustix::stdio::dup2_stdin(&nothing).map_err(os("standard input"))?,
        // Without /dev/null it stays as it is: the same socket with another number.
        Err(e) if e == rustix::io::Errno::NOENT => {}
        Err(e) => return Err(os("/dev/null")(e)),
    }
    Ok(fd)
}
