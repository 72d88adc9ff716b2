//! The standard streams as the parent handed them over. A stream that was closed is an error when
//! it is used.
//!
//! ```text
//! loader    look()         notes which of 0, 1, 2 are closed, and whether the parent ignores SIGPIPE
//! runtime                  opens /dev/null for each closed one, ignores SIGPIPE
//! main      guard()        puts a descriptor there with which nothing can be read, written or opened again
//! commands  input() ...    plain system calls: the standard library takes EBADF for an empty or an endless stream
//! ```
//! The runtime's /dev/null alone would make `dpipe sort f >&-` a success whose output is gone. Once
//! it is there, it cannot be told from a /dev/null of the parent: only what runs before the runtime
//! sees the difference. Because the runtime fills the places 0 to 2, no file that a command opens
//! becomes a standard stream.
//!
//! Unsafe: a function that the loader calls, as it calls the standard library's own for the
//! arguments.
#![allow(unsafe_code)]

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

use datapipes::locks::Mutex;
use datapipes::{Error, Result};
use rustix::fs::{Mode, OFlags};

/// The name of the standard output in messages.
pub(crate) const OUTPUT: &str = "standard output";
/// The name of the standard input in messages.
pub(crate) const INPUT: &str = "standard input";

/// Bits 0 to 2: this descriptor was closed. Bit 3: SIGPIPE was ignored.
static FOUND: AtomicU8 = AtomicU8::new(0);
const SIGPIPE_IGNORED: u8 = 1 << 3;

/// Whether something that had to be said could not be written to the standard error.
static UNHEARD: AtomicBool = AtomicBool::new(false);

// SAFETY: the loader calls every function of this section once, before `main`, with the C library
// ready (the section comes after the libraries' own); it passes arguments that a C function without
// parameters ignores. `look` makes two kinds of system calls and stores one atomic: it needs
// nothing of the Rust runtime, which does not run yet.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    let mut found = 0;
    for fd in 0..3 {
        // SAFETY: F_GETFD reads the flags of a number that need not be a descriptor.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1 {
            found |= 1 << fd;
        }
    }
    // SAFETY: without a new action, sigaction fills the structure that it is given, for which zeros
    // are valid.
    let ignored = unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGPIPE, std::ptr::null(), &mut old) == 0 && old.sa_sigaction == libc::SIG_IGN
    };
    if ignored {
        found |= SIGPIPE_IGNORED;
    }
    FOUND.store(found, Relaxed);
}

fn was_closed(fd: u8) -> bool {
    FOUND.load(Relaxed) & 1 << fd != 0
}

/// Whether the parent ignores SIGPIPE: then a reader that went away is an error with a message, not
/// a death.
pub(crate) fn sigpipe_was_ignored() -> bool {
    FOUND.load(Relaxed) & SIGPIPE_IGNORED != 0
}

/// Replaces the runtime's /dev/null where a stream was closed. To be called first of all.
pub(crate) fn guard() {
    if (0..3).all(|fd| !was_closed(fd)) {
        return;
    }
    // A symbolic link, not followed: what is done with it is EBADF, and to open it again
    // (/dev/stdin) is ELOOP.
    let path = OFlags::PATH | OFlags::CLOEXEC;
    let nothing = rustix::fs::open("/proc/self/exe", path | OFlags::NOFOLLOW, Mode::empty());
    let Ok(nothing) = nothing.or_else(|_| rustix::fs::open("/", path, Mode::empty())) else { return };
    // Where this fails the runtime's /dev/null stays; `input` and `output` refuse it all the same.
    if was_closed(0) {
        let _ = rustix::stdio::dup2_stdin(&nothing);
    }
    if was_closed(1) {
        let _ = rustix::stdio::dup2_stdout(&nothing);
    }
    if was_closed(2) {
        let _ = rustix::stdio::dup2_stderr(&nothing);
    }
}

/// A standard stream without a buffer: every read and write is the system's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream(BorrowedFd<'static>);

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(self.0, buffer)?)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(self.0, bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn refuse_closed(fd: u8, operation: &'static str, name: &'static str) -> Result<()> {
    if was_closed(fd) { Err(Error::os(operation, libc::EBADF, name)) } else { Ok(()) }
}

/// The standard input.
///
/// # Errors
/// Where the parent closed it.
pub(crate) fn input() -> Result<Stream> {
    refuse_closed(0, "read", INPUT)?;
    Ok(Stream(rustix::stdio::stdin()))
}

/// The standard input as a descriptor of its own.
///
/// # Errors
/// Where the parent closed it, or no more files can be open.
pub(crate) fn input_fd() -> Result<OwnedFd> {
    let fd = input()?.0;
    fd.try_clone_to_owned().map_err(|e| Error::io("open", e, INPUT))
}

/// How many bytes of the standard input, where it is a pipe, nobody has read; 0 where nobody knows.
pub(crate) fn unread_input() -> u64 {
    rustix::io::ioctl_fionread(rustix::stdio::stdin()).unwrap_or(0)
}

/// Lets go of the standard output, so that who reads it sees the end of what others write there.
///
/// # Errors
/// What opening `/dev/null` meets.
pub(crate) fn leave_output() -> Result<()> {
    let nothing = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let left = nothing.and_then(|nothing| rustix::stdio::dup2_stdout(&nothing));
    left.map_err(|e| Error::os("open", e.raw_os_error(), "/dev/null"))
}

/// Lets go of the standard input, which others read.
///
/// # Errors
/// What opening `/dev/null` meets.
pub(crate) fn leave_input() -> Result<()> {
    let nothing = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let left = nothing.and_then(|nothing| rustix::stdio::dup2_stdin(&nothing));
    left.map_err(|e| Error::os("open", e.raw_os_error(), "/dev/null"))
}

/// Whether the standard input is a terminal.
pub(crate) fn input_is_terminal() -> bool {
    rustix::termios::isatty(rustix::stdio::stdin())
}

/// The lines of the standard input that nobody took yet: what was read ahead is there for the next
/// caller.
///
/// # Errors
/// Where the parent closed it.
pub(crate) fn lines() -> Result<impl Iterator<Item = io::Result<String>>> {
    static AHEAD: OnceLock<Mutex<BufReader<Stream>>> = OnceLock::new();
    let stream = input()?;
    let ahead = AHEAD.get_or_init(|| Mutex::new(BufReader::new(stream)));
    let next = || {
        let mut line = String::new();
        let read = ahead.lock().read_line(&mut line);
        match read {
            Ok(0) => None,
            read => Some(read.map(|_| {
                let text = line.strip_suffix('\n').unwrap_or(&line);
                text.strip_suffix('\r').unwrap_or(text).to_owned()
            })),
        }
    };
    Ok(std::iter::from_fn(next))
}

/// The standard output.
///
/// # Errors
/// Where the parent closed it.
pub(crate) fn output() -> Result<Stream> {
    refuse_closed(1, "write", OUTPUT)?;
    Ok(Stream(rustix::stdio::stdout()))
}

/// The standard output as a descriptor of its own.
///
/// # Errors
/// Where the parent closed it, or no more files can be open.
pub(crate) fn output_fd() -> Result<OwnedFd> {
    let fd = output()?.0;
    fd.try_clone_to_owned().map_err(|e| Error::io("open", e, OUTPUT))
}

/// Prints to the standard error what has to be known: where that fails, the exit code is 2, see
/// [`unheard`].
pub(crate) fn print_error(bytes: &[u8]) {
    if !note(bytes) {
        UNHEARD.store(true, Relaxed);
    }
}

/// Prints to the standard error what nobody misses; whether it could.
pub(crate) fn note(bytes: &[u8]) -> bool {
    !was_closed(2) && Stream(rustix::stdio::stderr()).write_all(bytes).is_ok()
}

/// Whether a complaint could not be written.
pub(crate) fn unheard() -> bool {
    UNHEARD.load(Relaxed)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// The standard library's streams swallow EBADF, and its macros panic: only this module may
    /// touch the streams.
    #[test]
    fn nothing_goes_past_this_module() {
        fn look(dir: &Path, found: &mut Vec<String>) {
            for entry in std::fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    look(&path, found);
                } else if !(path.ends_with("standard_streams.rs") || path.ends_with("tests.rs")) {
                    let text = std::fs::read_to_string(&path).unwrap();
                    let program = text.split("#[cfg(test)]").next().unwrap_or_default();
                    let words = ["io::stdin()", "io::stdout()", "io::stderr()", "print!(", "println!("];
                    let hits = words.iter().filter(|word| program.contains(**word));
                    found.extend(hits.map(|word| format!("{}: {word}", path.display())));
                }
            }
        }
        let mut found = Vec::new();
        look(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")), &mut found);
        // Whether it is a terminal is no use of it.
        found.retain(|hit| {
            !(hit.ends_with("io::stderr()") && (hit.contains("progress.rs") || hit.contains("fine/stat.rs")))
        });
        assert!(found.is_empty(), "{found:#?}");
    }
}
