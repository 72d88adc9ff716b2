//! What became of a log that failed: an error that everybody is told, as often as they ask.

use datapipes_core::{Error, ErrorKind};

/// Why a log takes no more.
#[derive(Debug)]
pub(super) struct Failure {
    kind: ErrorKind,
    operation: &'static str,
    context: String,
    errno: Option<i32>,
    offset: Option<u64>,
}

impl Failure {
    pub(super) fn of(e: &Error) -> Failure {
        Failure {
            kind: e.kind(),
            operation: e.operation(),
            context: e.context().to_owned(),
            errno: e.raw_os_error(),
            offset: e.at_offset(),
        }
    }

    pub(super) fn error(&self) -> Error {
        let mut e = Error::new(self.kind, self.operation, self.context.clone()).advice(
            "what was not acknowledged may be lost and the log takes no more: open it again, which recovers the rest",
        );
        if let Some(errno) = self.errno {
            e = e.errno(errno);
        }
        match self.offset {
            Some(offset) => e.offset(offset),
            None => e,
        }
    }
}
