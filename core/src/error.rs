//! The one error of the library: what the caller can do about it, where it happened, how far it
//! got.

use std::fmt;

/// What the caller can do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The arguments make no sense; change them.
    InvalidInput,
    /// Outside the place: check offset and length.
    OutOfRange,
    /// Offset, length or address do not meet an alignment that was required.
    Misaligned,
    /// The bytes are leased to somebody else, or a queue is full: wait and try again.
    Busy,
    /// No route serves the pair under the constraints; the context names the alternatives.
    Unsupported,
    /// The machine lacks it, or refused it (missing instruction, `ENOSYS`, seccomp).
    Unavailable,
    /// The named file or device is not there.
    NotFound,
    /// The process may not.
    PermissionDenied,
    /// The place is full (`ENOSPC`, `EDQUOT`).
    NoSpace,
    /// Memory could not be had, or a budget does not suffice.
    OutOfMemory,
    /// The source ended before the span did.
    EndOfFile,
    /// The device failed (`EIO` and its kin): the data at the offset is not to be had.
    Device,
    /// A signal or the caller stopped it.
    Interrupted,
    /// Bytes are not what they must be (a checksum or an order is wrong).
    Corrupt,
    /// Any other refusal by the operating system.
    System,
    /// It was made by the process that forked this one: make it anew here.
    Forked,
    /// Code of the caller's that the library called (a callback, a closure of a graph) panicked:
    /// mend it.
    Panicked,
}

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    operation: &'static str,
    context: String,
    advice: Option<String>,
    errno: Option<i32>,
    offset: Option<u64>,
    bytes_done: Option<u64>,
    /// The context is the whole text: it was made elsewhere.
    relayed: bool,
}

/// An error: kind, operation, context, and for I/O errno, offset and the bytes done before it.
///
/// ```
/// use datapipes_core::{Error, ErrorKind};
/// let e = Error::new(ErrorKind::NoSpace, "write", "/data/out").errno(28).offset(4096).bytes_done(512);
/// assert_eq!(e.kind(), ErrorKind::NoSpace);
/// assert!(e.to_string().contains("at offset 4096"));
/// ```
#[derive(Debug)]
pub struct Error(Box<Inner>);

/// The result of every fallible function of the library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of a kind, in an operation (an infinitive: "open", "connect"), with its context
    /// (what, where).
    pub fn new(kind: ErrorKind, operation: &'static str, context: impl Into<String>) -> Self {
        Error(Box::new(Inner {
            kind,
            operation,
            context: context.into(),
            advice: None,
            errno: None,
            offset: None,
            bytes_done: None,
            relayed: false,
        }))
    }

    /// An error that another process or thread told, with its whole text.
    pub fn relayed(kind: ErrorKind, text: String) -> Self {
        let mut error = Error::new(kind, "transfer", text);
        error.0.relayed = true;
        error
    }

    /// The error of a failed system call; the kind follows from the errno.
    pub fn os(operation: &'static str, errno: i32, context: impl Into<String>) -> Self {
        Error::new(kind_of(errno), operation, context).errno(errno)
    }

    /// The error of a `std::io::Error`.
    pub fn io(operation: &'static str, error: &std::io::Error, context: impl Into<String>) -> Self {
        match error.raw_os_error() {
            Some(errno) => Error::os(operation, errno, context),
            None => Error::new(ErrorKind::System, operation, format!("{}: {error}", context.into())),
        }
    }

    /// Adds the errno.
    #[must_use]
    pub fn errno(mut self, errno: i32) -> Self {
        self.0.errno = Some(errno);
        self
    }

    /// Adds the offset in bytes at which it happened.
    #[must_use]
    pub fn offset(mut self, offset: u64) -> Self {
        self.0.offset = Some(offset);
        self
    }

    /// Adds how many bytes were moved before it happened.
    #[must_use]
    pub fn bytes_done(mut self, bytes: u64) -> Self {
        self.0.bytes_done = Some(bytes);
        self
    }

    /// Adds what the caller can do (a whole clause: "give -T a larger directory").
    #[must_use]
    pub fn advice(mut self, advice: impl Into<String>) -> Self {
        self.0.advice = Some(advice.into());
        self
    }

    /// Says where it happened in a larger job, before what it says already.
    #[must_use]
    pub fn within(mut self, whose: impl fmt::Display) -> Self {
        self.0.context = format!("{whose}: {}", self.0.context);
        self
    }

    /// What the caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The operation that failed.
    pub fn operation(&self) -> &'static str {
        self.0.operation
    }

    /// What and where.
    pub fn context(&self) -> &str {
        &self.0.context
    }

    /// The operating system's number, if it came from there.
    pub fn raw_os_error(&self) -> Option<i32> {
        self.0.errno
    }

    /// The offset in bytes, for I/O.
    pub fn at_offset(&self) -> Option<u64> {
        self.0.offset
    }

    /// Bytes moved before the error, for I/O.
    pub fn done(&self) -> u64 {
        self.0.bytes_done.unwrap_or(0)
    }
}

/// The kind of an errno.
fn kind_of(errno: i32) -> ErrorKind {
    match errno {
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => ErrorKind::NoSpace,
        libc::EIO | libc::ENODATA | libc::EILSEQ | libc::EREMOTEIO | libc::ENXIO => ErrorKind::Device,
        // The kernel met memory that is not there: of a mapped file that was cut, or on a page that
        // the machine lost.
        libc::EFAULT | libc::EHWPOISON => ErrorKind::Device,
        libc::EINTR | libc::ECANCELED => ErrorKind::Interrupted,
        libc::ENOENT | libc::ENODEV | libc::ENOTDIR => ErrorKind::NotFound,
        libc::EACCES | libc::EPERM | libc::EROFS => ErrorKind::PermissionDenied,
        libc::ENOMEM => ErrorKind::OutOfMemory,
        libc::ENOSYS | libc::EOPNOTSUPP => ErrorKind::Unavailable,
        libc::EBUSY | libc::EAGAIN | libc::ETXTBSY => ErrorKind::Busy,
        libc::EINVAL => ErrorKind::InvalidInput,
        _ => ErrorKind::System,
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let e = &*self.0;
        if e.relayed {
            return f.write_str(&e.context);
        }
        write!(f, "{}: {}", e.operation, e.context)?;
        if let Some(offset) = e.offset {
            write!(f, " at offset {offset}")?;
        }
        if let Some(done) = e.bytes_done {
            write!(f, " after {done} bytes")?;
        }
        if let Some(errno) = e.errno {
            write!(f, ": {}", std::io::Error::from_raw_os_error(errno))?;
        }
        if let Some(advice) = &e.advice {
            write!(f, "; {advice}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}
