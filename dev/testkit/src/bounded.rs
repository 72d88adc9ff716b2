//! Bounds on what a test waits for: a thread, a descriptor, a child process.

use std::io::Read;
use std::os::fd::AsFd;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long a test waits for what should take a moment: only against waiting for ever.
pub const PATIENCE: Duration = Duration::from_secs(if cfg!(miri) { 600 } else { 100 });

/// How often a thread or a child is looked at that is waited for.
const LOOKS: Duration = Duration::from_millis(1);

/// Runs `work` on a thread of its own, and panics where that does not end within [`PATIENCE`].
///
/// A panic of `work` goes on in the caller.
pub fn bounded<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::spawn(move || _ = sender.send(work()));
    match receiver.recv_timeout(PATIENCE) {
        Ok(value) => match thread.join() {
            Ok(()) => value,
            Err(payload) => std::panic::resume_unwind(payload),
        },
        Err(RecvTimeoutError::Timeout) => panic!("{what}: it hangs"),
        Err(RecvTimeoutError::Disconnected) => match thread.join() {
            Err(payload) => std::panic::resume_unwind(payload),
            Ok(()) => panic!("{what}: it ended without a value"),
        },
    }
}

/// Joins a thread.
///
/// A panic of the thread goes on in the caller.
///
/// # Panics
/// Where the thread does not end within [`PATIENCE`].
#[track_caller]
pub fn joined<T>(thread: JoinHandle<T>) -> T {
    until("the thread ends", || thread.is_finished());
    thread.join().unwrap_or_else(|payload| std::panic::resume_unwind(payload))
}

/// Waits until a descriptor has one of these events. Returns all that it has.
///
/// # Panics
/// Where it has none within [`PATIENCE`].
#[track_caller]
pub fn poll_until(fd: impl AsFd, events: PollFlags) -> PollFlags {
    let until = Instant::now() + PATIENCE;
    let mut fds = [PollFd::new(&fd, events)];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "the descriptor never has one of {events:?}");
        let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut fds, Some(&left)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return fds[0].revents(),
            Err(e) => panic!("poll: {e}"),
        }
    }
}

/// Waits for the end of a child.
///
/// # Panics
/// Where it does not end within [`PATIENCE`]; it is killed then.
#[track_caller]
pub fn ended(child: &mut Child) -> ExitStatus {
    ended_within(child, PATIENCE).unwrap_or_else(|| panic!("process {} does not end", child.id()))
}

/// The end of a child; `None` where it does not come within this time, and then it is killed.
///
/// # Panics
/// Where it cannot be waited for.
#[track_caller]
pub fn ended_within(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let until = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) => {}
            Err(e) => panic!("process {}: {e}", child.id()),
        }
        if Instant::now() >= until {
            let _ = child.kill();
            return None;
        }
        std::thread::sleep(LOOKS);
    }
}

/// As [`Command::output`].
///
/// # Errors
/// Those of starting the program.
///
/// # Panics
/// As [`ended`].
#[track_caller]
pub fn output_of(command: &mut Command) -> std::io::Result<Output> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (stdout, stderr) = (reads(child.stdout.take()), reads(child.stderr.take()));
    let status = ended(&mut child);
    Ok(Output { status, stdout: joined(stdout), stderr: joined(stderr) })
}

fn reads(from: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        match from.map(|mut from| from.read_to_end(&mut bytes)) {
            Some(Err(e)) => panic!("what a child says: {e}"),
            _ => bytes,
        }
    })
}

/// Waits until something holds.
///
/// # Panics
/// Where it does not within [`PATIENCE`].
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::sleep(LOOKS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_or_a_panic_comes_back() {
        assert_eq!(bounded("seven", || 7), 7);
        let panic = std::panic::catch_unwind(|| bounded("a panic", || std::panic::panic_any(7))).unwrap_err();
        assert_eq!(panic.downcast_ref::<i32>(), Some(&7));
        assert_eq!(joined(std::thread::spawn(|| 7)), 7);
        let panics = std::thread::spawn(|| std::panic::panic_any(7));
        assert_eq!(
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| joined(panics)))
                .unwrap_err()
                .downcast_ref::<i32>(),
            Some(&7)
        );
    }

    #[test]
    fn a_descriptor_and_a_child_are_waited_for() {
        let (reader, writer) = std::io::pipe().unwrap();
        let writes = std::thread::spawn(move || drop(writer));
        assert!(poll_until(&reader, PollFlags::IN).contains(PollFlags::HUP));
        joined(writes);
        // It says more than a pipe holds.
        let output = output_of(Command::new("sh").args(["-c", "yes | head -c 300000; echo no >&2; exit 3"])).unwrap();
        assert_eq!((output.status.code(), output.stdout.len(), &output.stderr[..]), (Some(3), 300_000, &b"no\n"[..]));
    }
}
