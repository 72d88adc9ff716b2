//! What travels over a pipe's descriptor: one message a packet, integers in the machine's byte
//! order.
//!
//! ```text
//! request:     token u64 | source u64 | target u64 | len u64                                     32 bytes
//! completion:  token u64 | bytes u64 | place u64 | errno u32 | kind u32 | text of the error      32 bytes and the text
//! ```

use crate::error::{Error, ErrorKind};
use crate::span::Span;

/// Bytes of a request.
pub const REQUEST_BYTES: usize = 32;
/// Bytes of a completion before its text.
pub const COMPLETION_BYTES: usize = 32;
/// Bytes of the longest completion: longer texts are cut.
pub const MESSAGE_BYTES: usize = 1024;

/// A transfer that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferRequest {
    /// Comes back with the completion.
    pub token: u64,
    /// The bytes to move.
    pub span: Span,
}

/// A transfer that is done.
#[derive(Debug)]
#[non_exhaustive]
pub struct Completion {
    /// The request's token.
    pub token: u64,
    /// The pipe's place, as named at connect: which locator is ready.
    pub place: u64,
    /// Success, or the error with the bytes done.
    pub result: Result<(), Error>,
    /// Bytes moved.
    pub bytes: u64,
}

impl TransferRequest {
    /// The message.
    pub fn to_bytes(self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        let fields = [self.token, self.span.source, self.span.target, self.span.len];
        for (at, field) in bytes.chunks_exact_mut(8).zip(fields) {
            at.copy_from_slice(&field.to_ne_bytes());
        }
        bytes
    }

    /// The request of a message; None where it has another length.
    pub fn from_bytes(bytes: &[u8]) -> Option<TransferRequest> {
        if bytes.len() != REQUEST_BYTES {
            return None;
        }
        let field = |i: usize| u64_at(bytes, i * 8);
        Some(TransferRequest { token: field(0)?, span: Span { source: field(1)?, target: field(2)?, len: field(3)? } })
    }
}

impl Completion {
    /// The message.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (errno, kind, text) = match &self.result {
            Ok(()) => (0, 0, String::new()),
            Err(e) => (e.errno().unwrap_or(0), code_of(e.kind()), e.to_string()),
        };
        let mut bytes = Vec::with_capacity(COMPLETION_BYTES + text.len());
        bytes.extend_from_slice(&self.token.to_ne_bytes());
        bytes.extend_from_slice(&self.bytes.to_ne_bytes());
        bytes.extend_from_slice(&self.place.to_ne_bytes());
        bytes.extend_from_slice(&errno.to_ne_bytes());
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(text.as_bytes());
        bytes.truncate(MESSAGE_BYTES);
        bytes
    }

    /// The completion of a message; None where it is too short.
    pub fn from_bytes(bytes: &[u8]) -> Option<Completion> {
        let (token, moved, place) = (u64_at(bytes, 0)?, u64_at(bytes, 8)?, u64_at(bytes, 16)?);
        let tail = u64_at(bytes, 24)?.to_ne_bytes();
        let (errno, kind) = tail.split_at(4);
        let errno = i32::from_ne_bytes(errno.try_into().ok()?);
        let kind = u32::from_ne_bytes(kind.try_into().ok()?);
        let result = if kind == 0 {
            Ok(())
        } else {
            let text = String::from_utf8_lossy(bytes.get(COMPLETION_BYTES..)?).into_owned();
            let mut error = Error::relayed(kind_of(kind), text).with_bytes_done(moved);
            if errno != 0 {
                error = error.with_errno(errno);
            }
            Err(error)
        };
        Some(Completion { token, place, result, bytes: moved })
    }
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Kinds by their number on the wire; 0 is success. New ones are added at the end.
const KINDS: [ErrorKind; 17] = [
    ErrorKind::InvalidInput,
    ErrorKind::OutOfRange,
    ErrorKind::Misaligned,
    ErrorKind::Busy,
    ErrorKind::Unsupported,
    ErrorKind::Unavailable,
    ErrorKind::NotFound,
    ErrorKind::PermissionDenied,
    ErrorKind::NoSpace,
    ErrorKind::OutOfMemory,
    ErrorKind::EndOfFile,
    ErrorKind::Device,
    ErrorKind::Interrupted,
    ErrorKind::Corrupt,
    ErrorKind::System,
    ErrorKind::Forked,
    ErrorKind::Panicked,
];

/// The number of a kind; one that the wire does not know is `System`.
pub fn code_of(kind: ErrorKind) -> u32 {
    let unknown = || KINDS.iter().position(|k| *k == ErrorKind::System).unwrap_or_default();
    let at = KINDS.iter().position(|k| *k == kind).unwrap_or_else(unknown);
    at as u32 + 1
}

/// The kind of a number.
pub fn kind_of(code: u32) -> ErrorKind {
    let at = (code as usize).wrapping_sub(1);
    KINDS.get(at).copied().unwrap_or(ErrorKind::System)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_as_they_were() {
        let request = TransferRequest { token: 7, span: Span { source: 1, target: u64::MAX, len: 3 } };
        assert_eq!(TransferRequest::from_bytes(&request.to_bytes()), Some(request));
        assert_eq!(TransferRequest::from_bytes(&request.to_bytes()[..31]), None);
        for kind in KINDS {
            let error = Error::new(kind, "read", "a place").with_errno(5).with_bytes_done(9);
            let text = error.to_string();
            let sent = Completion { token: 1, place: 2, result: Err(error), bytes: 9 };
            let got = Completion::from_bytes(&sent.to_bytes()).unwrap();
            assert_eq!((got.token, got.place, got.bytes), (1, 2, 9));
            let error = got.result.unwrap_err();
            assert_eq!((error.kind(), error.errno(), error.bytes_done()), (kind, Some(5), 9));
            assert_eq!(error.to_string(), text, "the text is told once");
        }
        let good = Completion { token: 1, place: 2, result: Ok(()), bytes: 9 };
        assert!(Completion::from_bytes(&good.to_bytes()).unwrap().result.is_ok());
        assert!(Completion::from_bytes(&good.to_bytes()[..30]).is_none());
    }

    /// Programs in other languages, compiled long ago, read and write these bytes.
    #[test]
    fn the_bytes_and_the_numbers_of_messages_never_change() {
        if cfg!(target_endian = "big") {
            println!("NOT APPLICABLE: the_bytes_and_the_numbers_of_messages_never_change: other byte order");
            return;
        }
        let request = TransferRequest { token: 0x0102_0304, span: Span { source: 0x10, target: 0x20, len: 0x0f_0000 } };
        let expected: [u8; 32] = [
            4, 3, 2, 1, 0, 0, 0, 0, // token
            0x10, 0, 0, 0, 0, 0, 0, 0, // source
            0x20, 0, 0, 0, 0, 0, 0, 0, // target
            0, 0, 0x0f, 0, 0, 0, 0, 0, // len
        ];
        assert_eq!(request.to_bytes(), expected);
        let error = Error::relayed(ErrorKind::Device, "no".into()).with_errno(5).with_bytes_done(0x0102);
        let completion = Completion { token: 7, place: 9, result: Err(error), bytes: 0x0102 }.to_bytes();
        let expected: [u8; 34] = [
            7, 0, 0, 0, 0, 0, 0, 0, // token
            2, 1, 0, 0, 0, 0, 0, 0, // bytes
            9, 0, 0, 0, 0, 0, 0, 0, // place
            5, 0, 0, 0, // errno
            12, 0, 0, 0, // kind
            b'n', b'o',
        ];
        assert_eq!(completion, expected);
        let numbers = [
            (1, ErrorKind::InvalidInput),
            (2, ErrorKind::OutOfRange),
            (3, ErrorKind::Misaligned),
            (4, ErrorKind::Busy),
            (5, ErrorKind::Unsupported),
            (6, ErrorKind::Unavailable),
            (7, ErrorKind::NotFound),
            (8, ErrorKind::PermissionDenied),
            (9, ErrorKind::NoSpace),
            (10, ErrorKind::OutOfMemory),
            (11, ErrorKind::EndOfFile),
            (12, ErrorKind::Device),
            (13, ErrorKind::Interrupted),
            (14, ErrorKind::Corrupt),
            (15, ErrorKind::System),
            (16, ErrorKind::Forked),
            (17, ErrorKind::Panicked),
        ];
        for (number, kind) in numbers {
            assert_eq!((code_of(kind), kind_of(number)), (number, kind));
        }
    }
}
