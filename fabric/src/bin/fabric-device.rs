//! A program that is a controller or a device with the functions of the crate, and nothing by
//! itself.

use std::process::ExitCode;

use datapipes_fabric::{device::Functions, process};

fn main() -> ExitCode {
    process::enter(&Functions::default()).unwrap_or_else(|| {
        eprintln!("fabric-device: this is started by `Session::start`, not by people");
        ExitCode::FAILURE
    })
}
