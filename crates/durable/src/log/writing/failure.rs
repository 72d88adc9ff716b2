//! The failure of a log: an error that every later call returns.

use datapipes_core::{Error, ErrorKind};

/// The reason why a log takes no more records.
#[derive(Debug)]
pub(in crate::log) struct Failure {
    kind: ErrorKind,
    operation: &'static str,
    context: String,
    errno: Option<i32>,
    offset: Option<u64>,
}

impl Failure {
    pub(in crate::log) fn of(e: &Error) -> Failure {
        Failure {
            kind: e.kind(),
            operation: e.operation(),
            context: e.context().to_owned(),
            errno: e.errno(),
            offset: e.offset(),
        }
    }

    pub(in crate::log) fn error(&self) -> Error {
        let mut e = Error::new(self.kind, self.operation, self.context.clone()).with_advice(
            "unacknowledged records may be lost, and the log takes no more: open it again to recover the others",
        );
        if let Some(errno) = self.errno {
            e = e.with_errno(errno);
        }
        match self.offset {
            Some(offset) => e.with_offset(offset),
            None => e,
        }
    }
}
