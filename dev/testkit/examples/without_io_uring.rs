//! Runs a command for which the kernel refuses io_uring, as it does in many containers:
//! `cargo run -p datapipes-testkit --example without_io_uring -- COMMAND ARGUMENTS`.

use std::process::{Command, ExitCode};

use datapipes_testkit::{RefusedCall, without_calls};

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    let Some(program) = words.next() else {
        eprintln!("usage: without_io_uring COMMAND [ARGUMENTS]");
        return ExitCode::from(2);
    };
    let mut command = Command::new(program);
    command.args(words);
    let refused = RefusedCall { number: libc::SYS_io_uring_setup, errno: libc::EPERM };
    // A process inherits the filter of the thread that starts it.
    match without_calls(&[refused], || command.status()) {
        Ok(Ok(status)) => ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)),
        Ok(Err(error)) => {
            eprintln!("without_io_uring: {error}");
            ExitCode::from(2)
        }
        Err(why) => {
            eprintln!("without_io_uring: no call can be refused here: {why}");
            ExitCode::from(2)
        }
    }
}
