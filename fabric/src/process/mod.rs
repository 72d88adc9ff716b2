//! Programs that are controllers and devices when they are started as such.

mod alone;
mod attendant;
pub(crate) mod inherited;
mod namespace;
mod sandbox;
pub(crate) mod status;

pub use attendant::ControllerClient;

use std::os::fd::OwnedFd;
use std::process::ExitCode;

use datapipes_core::process::OwningProcess;
use datapipes_core::{Error, Result};

use crate::device::Functions;

/// The first argument of a controller.
pub(crate) const CONTROLLER: &str = "--fabric-controller";
/// The first argument of a device.
pub(crate) const DEVICE: &str = "--fabric-device";

/// If this process was started as a controller or a device, is that, and returns what `main` shall
/// return when it is over. To be called first in `main`, before there are threads: a device with
/// another thread, also one that a library started when it was loaded, would not be confined, and
/// ends with an error that says so.
pub fn enter(functions: &Functions) -> Option<ExitCode> {
    // Another program's first argument may be anything.
    let role = std::env::args_os().nth(1)?.into_string().ok()?;
    if role == CONTROLLER || role == DEVICE {
        inherited::close();
        // Asks for a page of memory in a way that no device can: now, while it can.
        let _ = OwningProcess::here();
    }
    let outcome = match role.as_str() {
        CONTROLLER => control_socket().and_then(crate::control::serve),
        DEVICE => control_socket().and_then(|socket| ControllerClient::live(socket, functions)),
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

/// The socket to who started this process: its standard input, which is nothing from here on.
fn control_socket() -> Result<OwnedFd> {
    let os = |what: &'static str| move |e: rustix::io::Errno| Error::os("start", e.raw_os_error(), what);
    let stdin = std::io::stdin();
    rustix::net::sockopt::socket_domain(&stdin).map_err(os("standard input is no control socket"))?;
    let fd = rustix::io::fcntl_dupfd_cloexec(&stdin, 3).map_err(os("the control socket"))?;
    let nothing = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty());
    match nothing {
        Ok(nothing) => rustix::stdio::dup2_stdin(&nothing).map_err(os("standard input"))?,
        // Without a /dev/null it stays what it is: the same socket, by another number.
        Err(e) if e == rustix::io::Errno::NOENT => {}
        Err(e) => return Err(os("/dev/null")(e)),
    }
    Ok(fd)
}
