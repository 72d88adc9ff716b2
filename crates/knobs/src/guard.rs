//! The process that restores settings when another one dies.

use std::io::{ErrorKind, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use datapipes_core::{Error, ErrorKind as Kind, Result, threads};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::journal::{Journal, LOOK_EVERY, Turn};
use crate::restore::{RestoredKnobs, restore_journal};
use crate::tree::MachineTree;

/// What the guard says once it will restore.
const READY: u8 = b'+';
/// What the guard is told when there is nothing to restore.
const DONE: u8 = b'.';
/// How long the guard may take to start. A machine that swaps needs seconds.
const MAX_START: Duration = Duration::from_secs(20);
/// How long the guard may take to end once it is told that there is nothing to restore.
const MAX_END: Duration = Duration::from_secs(2);

/// Says on `ready` that this process will restore. It waits until `input`, the reading end of a
/// pipe that only the process with the transaction can write, is closed, and restores what that
/// process left. `None` where it left nothing.
///
/// A child that the process forked, and that executes no other program, can write the pipe as well:
/// where the process is killed, this waits for the end of such children, too.
///
/// # Errors
/// The first refusal of the kernel, after all others were tried; errors of reading the journal.
pub fn restore_when_closed(
    tree: &MachineTree,
    id: &str,
    mut input: impl Read,
    mut ready: impl Write,
) -> Result<Option<RestoredKnobs>> {
    // Who does not listen is dead, which the input tells.
    let _ = ready.write_all(&[READY]).and_then(|()| ready.flush());
    let mut word = [0; 1];
    loop {
        match input.read(&mut word) {
            // Closed without a word: it died, or could not restore.
            Ok(0) => break,
            Ok(_) if word[0] == DONE => return Ok(None),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // What cannot be read says no more than what is closed.
            Err(_) => break,
        }
    }
    loop {
        // Another process may have restored it already, and have begun a transaction of its own.
        if Journal::find(tree)?.is_none_or(|journal| journal.id != id) {
            return Ok(None);
        }
        if let Some(_turn) = Turn::take(tree)? {
            return restore_journal(tree, Some(id), &mut |_| {}).map(Some);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// A guard that was started and said that it is there.
#[derive(Debug)]
pub(crate) struct Guard {
    process: Child,
}

impl Guard {
    /// Starts a guard, and waits until it will restore.
    pub(crate) fn start(mut command: Command) -> Result<Guard> {
        let shown = command.get_program().to_string_lossy().into_owned();
        let process = threads::start_program(command.stdin(Stdio::piped()).stdout(Stdio::piped()))
            .map_err(|e| Error::io("start the guard", e, &*shown).with_advice("nothing is changed"))?;
        let mut guard = Guard { process };
        if guard.says_ready() {
            return Ok(guard);
        }
        guard.kill();
        let context = format!("the guard did not start: {shown} did not say that it is ready");
        Err(Error::new(Kind::System, "start the guard", context).with_advice("nothing is changed"))
    }

    fn says_ready(&mut self) -> bool {
        let Some(mut output) = self.process.stdout.take() else { return false };
        let until = Instant::now() + MAX_START;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&output, PollFlags::IN)], Some(&left)) {
                Err(rustix::io::Errno::INTR) => {}
                Err(_) | Ok(0) => return false,
                Ok(_) => {
                    let mut word = [0; 1];
                    return output.read_exact(&mut word).is_ok() && word[0] == READY;
                }
            }
        }
    }

    /// Lets the guard go. If something `is_left`, it looks once more. The wait for its end is
    /// bounded: it may be stopped.
    pub(crate) fn dismiss(mut self, is_left: bool) {
        if let Some(mut input) = self.process.stdin.take()
            && !is_left
        {
            // If it is not there any more, there is nobody to tell.
            let _ = input.write_all(&[DONE]);
        }
        let until = Instant::now() + MAX_END;
        while let Ok(None) = self.process.try_wait() {
            if Instant::now() >= until {
                if !is_left {
                    self.kill();
                }
                return;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
