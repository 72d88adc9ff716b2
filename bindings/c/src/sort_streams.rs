//! The external sort between functions of the program.
//!
//! ```text
//! read  <- thread: into a socket -> sort (its input is a stream) -> socket: thread -> write
//! ```
//! The sockets bound what is under way. A function that fails stops the sort, whose error is then
//! that function's. Each stream is shut down at its end: a child that the program forks meanwhile has
//! copies of the sockets, and their closing here would end nothing.
//!
//! Unsafe code: functions of the program, called with the argument that it gave for them.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use datapipes::locks::Mutex;
use datapipes::sort::{Control, Input, Output, sort_telling};
use datapipes::{Error, ErrorKind, Result, threads};
use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType, send, shutdown, socketpair};

use crate::arguments;
use crate::door::enter;
use crate::error::dp_error;
use crate::machine::{MACHINES, dp_machine};
use crate::report::tell;
use crate::sort::{PROGRESS_INTERVAL, SortSettings, dp_sort_options, goes_on};

/// Bytes that a function gives or takes at a time, at most.
const PIECE: usize = 256 << 10;

/// Gives the next bytes of what is sorted: at most `capacity` of them, into `into`, and their number
/// into `*len`; 0 at the end. It is called by one thread of the library, and no more when it has
/// given 0 or an error, which ends the sort.
pub type dp_sort_read =
    Option<unsafe extern "C" fn(user: *mut c_void, into: *mut c_void, capacity: usize, len: *mut usize) -> dp_error>;

/// Takes the next bytes of what was sorted. It is called by one thread of the library, another one
/// than `dp_sort_read`, and no more when it has given an error, which ends the sort.
pub type dp_sort_write = Option<unsafe extern "C" fn(user: *mut c_void, bytes: *const c_void, len: usize) -> dp_error>;

/// An argument of a function of the program.
#[derive(Clone, Copy)]
struct UserArgument(*mut c_void);

// SAFETY: the header says that the functions are called by threads of the library.
unsafe impl Send for UserArgument {}

/// The first error of a function, and how the sort is stopped for it.
#[derive(Clone)]
struct Failure(Arc<Mutex<Option<Error>>>, Control);

impl Failure {
    fn note(&self, error: Error) {
        self.0.lock().get_or_insert(error);
        self.1.stop();
    }

    fn is_there(&self) -> bool {
        self.0.lock().is_some()
    }
}

/// Sorts what `read` gives, and hands it to `write` in order. Both are over, and called no more, when
/// it returns. A `read` that waits for ever keeps it from returning, also when the sort has failed.
/// `options` are those of `dp_sort`; what does not fit the memory goes to `spill`, or to the folder for
/// temporary files.
///
/// Errors: what `read` and `write` give; DP_INVALID_INPUT where `read` says that it gave more than it
/// was asked for; as `dp_sort`. After an error, what `write` took is not all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_sort_streams(
    machine: dp_machine,
    read: dp_sort_read,
    read_user: *mut c_void,
    write: dp_sort_write,
    write_user: *mut c_void,
    options: *const dp_sort_options,
) -> dp_error {
    enter(|| {
        // SAFETY: the header says what the pointers are.
        let (asked, mut settings) = unsafe {
            let asked = arguments::options(options, "options")?;
            (asked, SortSettings::of(&asked)?)
        };
        let (Some(read), Some(write)) = (read, write) else {
            return Err(Error::new(ErrorKind::InvalidInput, "call", "read, write: a null pointer"));
        };
        settings.spill_somewhere();
        let machine = MACHINES.get(machine.id)?.clone();
        let control = Control::default();
        let failure = Failure(Arc::default(), control.clone());
        let (input, given) = pair()?;
        let (taken, output) = pair()?;
        let ends = Ends(copy_of(&input)?, copy_of(&output)?);
        let source = {
            let (failure, user) = (failure.clone(), UserArgument(read_user));
            threads::spawn("dp-sort-read", move || give(read, user, given, &failure))?
        };
        let sink = {
            let (failure, user) = (failure.clone(), UserArgument(write_user));
            threads::spawn("dp-sort-write", move || take(write, user, taken.into(), &failure))
        };
        let sorted = sink.and_then(|sink| {
            let input = Input::Stream { name: PathBuf::from("what the program gives"), fd: input };
            let output = Output::Stream { name: PathBuf::from("what the program takes"), file: File::from(output) };
            let job = settings.job(&machine, vec![input], output).control(control);
            let sorted = sort_telling(&machine, job, PROGRESS_INTERVAL, |seen| {
                // SAFETY: the caller gave the function for its argument.
                unsafe { goes_on(&asked, seen) }
            });
            // Both threads come to their ends.
            drop(ends);
            let _ = threads::join(sink);
            sorted
        });
        let _ = threads::join(source);
        if let Some(error) = failure.0.lock().take() {
            return Err(error);
        }
        tell(asked.report, asked.report_user, arguments::json(&sorted?)?)
    })
}

/// Two ends of a stream. (A pipe would send SIGPIPE to whoever writes when the other end is closed.)
fn pair() -> Result<(OwnedFd, OwnedFd)> {
    socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|e| Error::os("sort", e.raw_os_error(), "a stream"))
}

fn copy_of(end: &OwnedFd) -> Result<OwnedFd> {
    end.try_clone().map_err(|e| Error::io("sort", e, "a stream"))
}

/// The sort's ends of both streams. They are shut down when this is dropped, whoever has copies.
struct Ends(OwnedFd, OwnedFd);

impl Drop for Ends {
    fn drop(&mut self) {
        // What was written before is read all the same. It fails where the other end is closed.
        let _ = (shutdown(&self.0, Shutdown::Both), shutdown(&self.1, Shutdown::Write));
    }
}

/// Memory for the bytes of a call.
fn piece(failure: &Failure) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    if bytes.try_reserve_exact(PIECE).is_err() {
        failure.note(Error::new(ErrorKind::OutOfMemory, "sort", format!("{PIECE} bytes")));
        return None;
    }
    bytes.resize(PIECE, 0);
    Some(bytes)
}

/// Has the function give bytes until it ends, fails, or nobody takes them, and ends the stream.
fn give(
    read: unsafe extern "C" fn(*mut c_void, *mut c_void, usize, *mut usize) -> dp_error,
    user: UserArgument,
    to: OwnedFd,
    failure: &Failure,
) {
    give_all(read, user, &to, failure);
    let _ = shutdown(&to, Shutdown::Write);
}

fn give_all(
    read: unsafe extern "C" fn(*mut c_void, *mut c_void, usize, *mut usize) -> dp_error,
    user: UserArgument,
    to: &OwnedFd,
    failure: &Failure,
) {
    let Some(mut bytes) = piece(failure) else { return };
    while !failure.is_there() {
        let mut len = 0;
        // SAFETY: the bytes and the number are ours, and written by nobody else during the call; the
        // caller gave the function for this argument.
        let told = unsafe { read(user.0, bytes.as_mut_ptr().cast(), PIECE, &raw mut len) };
        let told = told.into_result("read").and_then(|()| match len {
            0..=PIECE => Ok(len),
            _ => {
                let why = format!("read says that it gave {len} bytes, of {PIECE} that it was asked for");
                Err(Error::new(ErrorKind::InvalidInput, "sort", why))
            }
        });
        let mut rest = match told {
            Ok(0) => return,
            Ok(len) => &bytes[..len],
            Err(error) => return failure.note(error),
        };
        while !rest.is_empty() {
            match send(to, rest, SendFlags::NOSIGNAL) {
                Ok(sent) => rest = &rest[sent..],
                Err(rustix::io::Errno::INTR) => {}
                // The sort has ended, and says why.
                Err(_) => return,
            }
        }
    }
}

/// Has the function take bytes until there are no more. When it has failed, the rest is thrown away,
/// so that the sort does not wait for a reader.
fn take(
    write: unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> dp_error,
    user: UserArgument,
    mut from: File,
    failure: &Failure,
) {
    let Some(mut bytes) = piece(failure) else { return };
    let mut has_failed = false;
    loop {
        let len = match from.read(&mut bytes) {
            Ok(0) => return,
            Ok(len) => len,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) => return failure.note(Error::io("read", e, "what was sorted")),
        };
        if has_failed {
            continue;
        }
        // SAFETY: the bytes are there during the call; the caller gave the function for this argument.
        if let Err(error) = unsafe { write(user.0, bytes.as_ptr().cast(), len) }.into_result("write") {
            has_failed = true;
            failure.note(error);
        }
    }
}
