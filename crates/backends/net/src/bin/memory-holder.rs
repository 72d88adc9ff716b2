//! A program that acts as the holder of an export. It does nothing by itself.

use std::process::ExitCode;

fn main() -> ExitCode {
    datapipes_net::enter_holder().unwrap_or_else(|| {
        eprintln!("memory-holder: `Exporter` starts this program; it is not for direct use");
        ExitCode::FAILURE
    })
}
