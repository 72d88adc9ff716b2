//! The error of the library: what the caller can do about it, where it happened, and how far it
//! got.

use std::{fmt, io};

/// What the caller can do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The arguments make no sense: change them.
    InvalidInput,
    /// The span lies outside the place: check offset and length.
    OutOfRange,
    /// Offset, length or address do not meet an alignment that was required.
    Misaligned,
    /// The bytes are leased to another operation, or a queue is full: wait and try again.
    Busy,
    /// No route serves the pair under the constraints. The context names the alternatives.
    Unsupported,
    /// The machine lacks something or refused it (a missing instruction, `ENOSYS`, seccomp).
    Unavailable,
    /// The named file or device does not exist.
    NotFound,
    /// The process lacks the permission.
    PermissionDenied,
    /// The place is full (`ENOSPC`, `EDQUOT`).
    NoSpace,
    /// Memory could not be allocated, or a budget does not suffice.
    OutOfMemory,
    /// The source ended before the span did.
    EndOfFile,
    /// The device failed (`EIO` and similar): the data at the offset cannot be read or written.
    Device,
    /// A signal or the caller stopped the operation.
    Interrupted,
    /// Bytes are wrong: a checksum or an order does not match.
    Corrupt,
    /// Any other refusal by the operating system.
    System,
    /// The value was made by the parent of this forked process: make a new one here.
    Forked,
    /// Code of the caller that the library called (a callback, a closure of a graph) panicked: fix
    /// it.
    Panicked,
}

/// What made an error.
enum Cause {
    /// The operating system's number.
    Os(io::Error),
    Other(Box<dyn std::error::Error + Send + Sync>),
}

struct Inner {
    kind: ErrorKind,
    operation: &'static str,
    context: String,
    advice: Option<String>,
    cause: Option<Cause>,
    errno: Option<i32>,
    offset: Option<u64>,
    bytes_done: Option<u64>,
    /// Whether the context is the whole text, because another process or thread made the error.
    relayed: bool,
}

/// An error: its kind, operation and context, and for I/O the errno, the offset and the bytes done
/// before it.
///
/// What `with_x` sets, `x` returns. Its text is complete in itself, so that a program may print it
/// alone: the text of the [`source`](std::error::Error::source), which is the cause where there is
/// one, is part of it.
///
/// ```
/// use std::error::Error as _;
/// use datapipes_core::{Error, ErrorKind};
/// let e = Error::os("write", 28, "/data/out").with_offset(4096).with_bytes_done(512);
/// assert_eq!(e.kind(), ErrorKind::NoSpace);
/// assert_eq!((e.errno(), e.offset(), e.bytes_done()), (Some(28), Some(4096), 512));
/// assert!(e.to_string().contains("at offset 4096"));
/// let cause = e.source().and_then(|cause| cause.downcast_ref::<std::io::Error>());
/// assert_eq!(cause.and_then(std::io::Error::raw_os_error), Some(28));
/// ```
pub struct Error(Box<Inner>);

/// The result of every fallible function of the library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Makes an error of a kind. `operation` is an infinitive ("open", "connect"); `context` says
    /// what and where.
    pub fn new(kind: ErrorKind, operation: &'static str, context: impl Into<String>) -> Self {
        Error(Box::new(Inner {
            kind,
            operation,
            context: context.into(),
            advice: None,
            cause: None,
            errno: None,
            offset: None,
            bytes_done: None,
            relayed: false,
        }))
    }

    /// Makes an error from the whole text of another process or thread.
    pub fn relayed(kind: ErrorKind, text: String) -> Self {
        let mut error = Error::new(kind, "transfer", text);
        error.0.relayed = true;
        error
    }

    /// Makes the error of a source that ends, at this offset, before the span does.
    pub fn end_of_source(operation: &'static str, context: impl Into<String>, at: u64) -> Self {
        Error::new(ErrorKind::EndOfFile, operation, context)
            .with_offset(at)
            .with_advice("ask for no more than the source holds")
    }

    /// Makes the error of a failed system call. The kind follows from the errno, and the advice
    /// where it is the same for every call.
    pub fn os(operation: &'static str, errno: i32, context: impl Into<String>) -> Self {
        let error = Error::new(kind_of(errno), operation, context).with_errno(errno);
        match errno {
            libc::EMFILE => error.with_advice("raise the limit on open files (ulimit -n)"),
            libc::EFBIG => error.with_advice("raise the limit on the length of files (ulimit -f)"),
            _ => error,
        }
    }

    /// Makes the error of a `std::io::Error`, which becomes its
    /// [`source`](std::error::Error::source).
    pub fn io(operation: &'static str, error: io::Error, context: impl Into<String>) -> Self {
        match error.raw_os_error() {
            Some(errno) => Error::os(operation, errno, context),
            None => {
                let text = format!("{}: {error}", context.into());
                // An error of ours that went through an interface of the standard library.
                match error.downcast::<Error>() {
                    Ok(ours) => Error::new(ours.kind(), operation, text).with_source(ours),
                    Err(error) => Error::new(ErrorKind::System, operation, text).with_source(error),
                }
            }
        }
    }

    /// Adds the errno, which is the cause if no other is given.
    #[must_use]
    pub fn with_errno(mut self, errno: i32) -> Self {
        self.0.errno = Some(errno);
        if !matches!(self.0.cause, Some(Cause::Other(_))) {
            self.0.cause = Some(Cause::Os(io::Error::from_raw_os_error(errno)));
        }
        self
    }

    /// Adds the cause. The text stays as it is: say in the context what people need of the cause.
    #[must_use]
    pub fn with_source(mut self, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.0.cause = Some(Cause::Other(cause.into()));
        self
    }

    /// Adds the offset in bytes at which the error happened.
    #[must_use]
    pub fn with_offset(mut self, offset: u64) -> Self {
        self.0.offset = Some(offset);
        self
    }

    /// Adds how many bytes were moved before the error.
    #[must_use]
    pub fn with_bytes_done(mut self, bytes: u64) -> Self {
        self.0.bytes_done = Some(bytes);
        self
    }

    /// Adds what the caller can do, as a whole clause ("give -T a larger directory").
    #[must_use]
    pub fn with_advice(mut self, advice: impl Into<String>) -> Self {
        self.0.advice = Some(advice.into());
        self
    }

    /// Puts the name of a larger job before the context.
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

    /// What failed, and where.
    pub fn context(&self) -> &str {
        &self.0.context
    }

    /// The operating system's error number, if there is one.
    pub fn errno(&self) -> Option<i32> {
        self.0.errno
    }

    /// The offset in bytes, for I/O.
    pub fn offset(&self) -> Option<u64> {
        self.0.offset
    }

    /// What the caller can do.
    pub fn advice(&self) -> Option<&str> {
        self.0.advice.as_deref()
    }

    /// Bytes moved before the error, for I/O; 0 if none were counted.
    pub fn bytes_done(&self) -> u64 {
        self.0.bytes_done.unwrap_or(0)
    }
}

/// The kind of an errno.
fn kind_of(errno: i32) -> ErrorKind {
    match errno {
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => ErrorKind::NoSpace,
        libc::EIO | libc::ENODATA | libc::EILSEQ | libc::EREMOTEIO | libc::ENXIO => ErrorKind::Device,
        // The kernel met memory that does not exist: a mapped file was truncated, or the machine
        // lost a page.
        libc::EFAULT | libc::EHWPOISON => ErrorKind::Device,
        libc::EINTR | libc::ECANCELED => ErrorKind::Interrupted,
        libc::ENOENT | libc::ENODEV | libc::ENOTDIR => ErrorKind::NotFound,
        libc::EACCES | libc::EPERM | libc::EROFS => ErrorKind::PermissionDenied,
        libc::ENOMEM => ErrorKind::OutOfMemory,
        libc::ENOSYS | libc::EOPNOTSUPP => ErrorKind::Unavailable,
        libc::EBUSY | libc::EAGAIN | libc::ETXTBSY => ErrorKind::Busy,
        // A folder where a file is meant.
        libc::EINVAL | libc::EISDIR => ErrorKind::InvalidInput,
        _ => ErrorKind::System,
    }
}

/// As [`Display`](fmt::Display), after the kind: what a `main` that returns an error prints.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.kind())
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

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self.0.cause.as_ref()? {
            Cause::Os(cause) => Some(cause),
            Cause::Other(cause) => Some(&**cause),
        }
    }
}

/// For functions that return `std::io::Result`: the kind is the errno's, or the closest one; the
/// error itself is kept in it ([`std::io::Error::get_ref`]). What was stopped never has the kind
/// `Interrupted` there, because the standard library repeats a call that fails so.
impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match error.errno() {
            Some(errno) if errno != libc::EINTR => io::Error::from_raw_os_error(errno).kind(),
            _ => io_kind_of(error.kind()),
        };
        io::Error::new(kind, error)
    }
}

/// The closest kind of the standard library.
fn io_kind_of(kind: ErrorKind) -> io::ErrorKind {
    match kind {
        ErrorKind::InvalidInput | ErrorKind::OutOfRange | ErrorKind::Misaligned => io::ErrorKind::InvalidInput,
        ErrorKind::Busy => io::ErrorKind::ResourceBusy,
        ErrorKind::Unsupported | ErrorKind::Unavailable => io::ErrorKind::Unsupported,
        ErrorKind::NotFound => io::ErrorKind::NotFound,
        ErrorKind::PermissionDenied => io::ErrorKind::PermissionDenied,
        ErrorKind::NoSpace => io::ErrorKind::StorageFull,
        ErrorKind::OutOfMemory => io::ErrorKind::OutOfMemory,
        ErrorKind::EndOfFile => io::ErrorKind::UnexpectedEof,
        ErrorKind::Corrupt => io::ErrorKind::InvalidData,
        ErrorKind::Interrupted | ErrorKind::Device | ErrorKind::System | ErrorKind::Forked | ErrorKind::Panicked => {
            io::ErrorKind::Other
        }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn what_is_set_is_what_is_got() {
        let e = Error::new(ErrorKind::Device, "read", "/data")
            .with_errno(5)
            .with_offset(7)
            .with_bytes_done(9)
            .with_advice("replace the disk");
        assert_eq!((e.kind(), e.operation(), e.context()), (ErrorKind::Device, "read", "/data"));
        assert_eq!((e.errno(), e.offset(), e.bytes_done()), (Some(5), Some(7), 9));
        assert_eq!(e.advice(), Some("replace the disk"));
    }

    #[test]
    fn the_cause_is_kept() {
        assert!(Error::new(ErrorKind::Busy, "read", "").source().is_none());
        let os = |e: &Error| e.source().and_then(|c| c.downcast_ref::<io::Error>()).and_then(io::Error::raw_os_error);
        assert_eq!(os(&Error::os("read", 5, "")), Some(5));
        assert_eq!(os(&Error::io("read", io::Error::from_raw_os_error(28), "")), Some(28));
        // One that the kernel did not make is kept as it is.
        let e = Error::io("read", io::Error::other("odd"), "/data");
        assert_eq!(e.source().map(ToString::to_string).as_deref(), Some("odd"));
        assert_eq!(e.to_string(), "read: /data: odd");
        // A cause that was given stays, also where an errno is added.
        let e = Error::new(ErrorKind::Corrupt, "load", "").with_source(Error::os("read", 5, "")).with_errno(117);
        let inner = e.source().and_then(|c| c.downcast_ref::<Error>());
        assert_eq!(inner.and_then(Error::errno), Some(5));
    }

    #[test]
    fn it_goes_through_the_standard_library_and_back() {
        let there = io::Error::from(Error::new(ErrorKind::NoSpace, "write", "/data"));
        assert_eq!(there.kind(), io::ErrorKind::StorageFull);
        let back = Error::io("copy", there, "/data");
        assert_eq!(back.kind(), ErrorKind::NoSpace);
        assert!(back.source().is_some_and(|c| c.is::<Error>()));
        assert_eq!(io::Error::from(Error::os("open", 2, "/data")).kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_cancelled_read_is_not_repeated_by_the_standard_library() {
        struct Cancelled(u32);
        impl io::Read for Cancelled {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                self.0 += 1;
                match self.0 {
                    1 => Err(Error::new(ErrorKind::Interrupted, "transfer", "cancelled by the caller").into()),
                    _ => Ok(0),
                }
            }
        }
        let error = io::Read::read_to_end(&mut Cancelled(0), &mut Vec::new()).unwrap_err();
        assert_eq!(Error::io("copy", error, "/data").kind(), ErrorKind::Interrupted);
    }
}
