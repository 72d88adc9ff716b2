//! Errors, as they are told across processes: by their kind's name and their text.

use datapipes_core::{Error, ErrorKind};

/// The text of an error, as far as it fits a packet.
pub(crate) fn text_of(error: &Error) -> String {
    error.to_string().chars().take(2000).collect()
}

/// Makes the error from the name of its kind and its text.
pub(crate) fn relayed(kind: &str, errno: Option<i32>, text: String) -> Error {
    use ErrorKind::*;
    let kinds = [InvalidInput, OutOfRange, Misaligned, Busy, Unsupported, Unavailable, NotFound, PermissionDenied];
    let kinds = kinds.into_iter().chain([NoSpace, OutOfMemory, EndOfFile, Device, Interrupted, Corrupt]);
    let kind = kinds.into_iter().find(|k| format!("{k:?}") == kind).unwrap_or(System);
    let error = Error::relayed(kind, text);
    match errno {
        Some(errno) => error.with_errno(errno),
        None => error,
    }
}
