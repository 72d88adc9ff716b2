//! Errors as handles.

use std::ffi::{CString, c_char};

use datapipes::descriptor::wire::{code_of, kind_of};
use datapipes::{Error, ErrorKind};

use crate::arguments::{self, Field, Options, fields};
use crate::handles::{Kind, Table};

/// What can be done about an error. The numbers are stable; new ones are added at the end. A
/// completion that is read from a descriptor has the same numbers.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum dp_error_kind {
    /// No error.
    DP_OK = 0,
    /// The arguments make no sense: change them. Also a handle that was closed.
    DP_INVALID_INPUT = 1,
    /// The span lies outside the place.
    DP_OUT_OF_RANGE = 2,
    /// Offset, length or address do not meet an alignment that was required.
    DP_MISALIGNED = 3,
    /// The bytes are leased to another operation, or a queue is full: wait and try again.
    DP_BUSY = 4,
    /// No route serves the pair under the constraints.
    DP_UNSUPPORTED = 5,
    /// The machine lacks something or refused it.
    DP_UNAVAILABLE = 6,
    /// The named file or device does not exist.
    DP_NOT_FOUND = 7,
    /// The process lacks the permission.
    DP_PERMISSION_DENIED = 8,
    /// The place is full.
    DP_NO_SPACE = 9,
    /// Memory could not be allocated, or a budget does not suffice.
    DP_OUT_OF_MEMORY = 10,
    /// The source ended before the span did.
    DP_END_OF_FILE = 11,
    /// The device failed.
    DP_DEVICE = 12,
    /// A signal or the caller stopped the operation.
    DP_INTERRUPTED = 13,
    /// Bytes are wrong: a checksum or an order does not match.
    DP_CORRUPT = 14,
    /// Any other refusal by the operating system.
    DP_SYSTEM = 15,
    /// The object was made by the parent of this forked process.
    DP_FORKED = 16,
    /// Code that the library called panicked, or the library did.
    DP_PANICKED = 17,
}

/// An error; `id` is 0 for success. An error that is not 0 belongs to the caller, who closes it
/// with `dp_error_close`. Any thread may use it. One that is not closed keeps about 450 bytes for as
/// long as the process lives; a process whose memory is used up by them ends.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct dp_error {
    /// The handle, 0 for success.
    pub id: u64,
}

/// The error and its text, for C.
pub(crate) struct Kept {
    error: Error,
    text: CString,
}

static ERRORS: Table<Kept> = Table::new(Kind::Error);

/// Stands for an error for which there was no handle left.
const NO_HANDLE: u64 = u64::MAX;

impl dp_error {
    pub(crate) const NONE: dp_error = dp_error { id: 0 };

    #[cold]
    pub(crate) fn of(error: Error) -> dp_error {
        let text = CString::new(error.to_string().replace('\0', "\\0")).unwrap_or_default();
        dp_error { id: ERRORS.put(Kept { error, text }).unwrap_or(NO_HANDLE) }
    }

    /// Takes an error that a callback returned; the handle is closed.
    pub(crate) fn into_result(self, operation: &'static str) -> datapipes::Result<()> {
        if self.id == 0 {
            return Ok(());
        }
        let error = match ERRORS.get(self.id) {
            Ok(kept) => copy(&kept.error),
            Err(_) => {
                Error::new(ErrorKind::InvalidInput, operation, "the callback returned an error that does not exist")
            }
        };
        let _ = ERRORS.close(self.id); // A handle that is none was just said.
        Err(error)
    }
}

/// An error cannot be cloned, because its cause cannot: this is the same without the cause.
fn copy(error: &Error) -> Error {
    let mut copy = Error::relayed(error.kind(), error.to_string()).with_bytes_done(error.bytes_done());
    if let Some(errno) = error.errno() {
        copy = copy.with_errno(errno);
    }
    if let Some(offset) = error.offset() {
        copy = copy.with_offset(offset);
    }
    copy
}

/// Returns what can be done about an error, a `dp_error_kind`.
#[unsafe(no_mangle)]
pub extern "C" fn dp_error_kind_of(error: dp_error) -> u32 {
    match error.id {
        0 => 0,
        NO_HANDLE => code_of(ErrorKind::OutOfMemory),
        id => ERRORS.get(id).map_or(code_of(ErrorKind::InvalidInput), |kept| code_of(kept.error.kind())),
    }
}

/// Returns the operating system's number; 0 if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn dp_error_errno(error: dp_error) -> i32 {
    ERRORS.get(error.id).ok().and_then(|kept| kept.error.errno()).unwrap_or(0)
}

/// Returns the offset in bytes at which it happened; `UINT64_MAX` if it has none.
#[unsafe(no_mangle)]
pub extern "C" fn dp_error_offset(error: dp_error) -> u64 {
    ERRORS.get(error.id).ok().and_then(|kept| kept.error.offset()).unwrap_or(u64::MAX)
}

/// Returns how many bytes were moved before the error.
#[unsafe(no_mangle)]
pub extern "C" fn dp_error_bytes_done(error: dp_error) -> u64 {
    ERRORS.get(error.id).map_or(0, |kept| kept.error.bytes_done())
}

/// Returns the whole text of an error, in UTF-8. It is valid until the error is closed.
#[unsafe(no_mangle)]
pub extern "C" fn dp_error_message(error: dp_error) -> *const c_char {
    match (error.id, ERRORS.get(error.id)) {
        (0, _) => c"no error".as_ptr(),
        (_, Ok(kept)) => kept.text.as_ptr(),
        (NO_HANDLE, _) => c"there are too many errors that were not closed".as_ptr(),
        (_, Err(_)) => c"this error was closed, or never made".as_ptr(),
    }
}

/// What an error has beside its kind and text. Set `size` to `sizeof(dp_error_facts)` and what is
/// not known to zero.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_error_facts {
    /// `sizeof(dp_error_facts)`.
    pub size: u32,
    /// The operating system's number; 0 if there is none.
    pub errno_number: i32,
    /// Not 0: `offset` is known.
    pub has_offset: u32,
    /// Not used; 0.
    pub reserved: u32,
    /// The offset in bytes at which it happened.
    pub offset: u64,
    /// Bytes that were moved before it.
    pub bytes_done: u64,
}

// SAFETY: the fields are numbers.
unsafe impl Options for dp_error_facts {
    const FIELDS: &'static [Field] =
        fields!(dp_error_facts { size, errno_number, has_offset, reserved, offset, bytes_done });
}

/// Makes an error, for a callback to return. `kind` is a `dp_error_kind`; one that is not is
/// DP_SYSTEM. In `message`, what is not UTF-8 is replaced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_error_new(kind: u32, message: *const c_char) -> dp_error {
    // SAFETY: the header says what a text is.
    dp_error::of(unsafe { made(kind, message) })
}

/// As `dp_error_new`, with what else the error has: for passing on an error with all of its parts.
/// Facts that make no sense are ignored; NULL for none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_error_new_with(
    kind: u32,
    message: *const c_char,
    facts: *const dp_error_facts,
) -> dp_error {
    // SAFETY: the header says what the pointers are.
    let (mut error, facts) = unsafe { (made(kind, message), arguments::options(facts, "facts")) };
    if let Ok(facts) = facts {
        error = error.with_bytes_done(facts.bytes_done);
        if facts.errno_number > 0 {
            error = error.with_errno(facts.errno_number);
        }
        if facts.has_offset != 0 {
            error = error.with_offset(facts.offset);
        }
    }
    dp_error::of(error)
}

/// # Safety
/// `message` is null or a text that ends with NUL.
unsafe fn made(kind: u32, message: *const c_char) -> Error {
    // SAFETY: the caller of this function says so.
    let text = unsafe { arguments::bytes(message, "message") };
    let text = text.map_or("an error of a callback".into(), String::from_utf8_lossy);
    Error::relayed(kind_of(kind), text.into_owned())
}

/// Ends an error. Success (0) is no error and is ignored, and so is an error that was closed.
#[unsafe(no_mangle)]
pub extern "C" fn dp_error_close(error: dp_error) {
    if error.id != 0 {
        let _ = ERRORS.close(error.id);
    }
}
