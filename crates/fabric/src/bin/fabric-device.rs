//! A program that acts as a controller or a device with the functions of the crate. It does nothing
//! by itself.

use std::process::ExitCode;

use datapipes_fabric::{device::Functions, process};

fn main() -> ExitCode {
    process::enter(&Functions::default()).unwrap_or_else(|| {
        eprintln!("fabric-device: `Session::start` starts this program; it is not for direct use");
        ExitCode::FAILURE
    })
}
