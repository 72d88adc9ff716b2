//! The parts of one transfer: which are out, what came back, and what becomes of the transfer.

use crate::error::{Error, ErrorKind, Result};

#[derive(Default)]
pub(super) struct Parts {
    /// Parts at a device or a thread.
    out: u32,
    /// No part will follow.
    released: bool,
    /// The error nearest to the start of the span.
    failure: Option<(u64, Error)>,
    stopped: bool,
    /// Bytes of the parts that came back whole.
    moved: u64,
}

impl Parts {
    /// A part goes out.
    pub(super) fn release(&mut self, last: bool) {
        self.out += 1;
        self.released |= last;
    }

    /// Whether no part will follow.
    pub(super) fn is_released(&self) -> bool {
        self.released
    }

    /// Whether no part is out and none will follow.
    pub(super) fn is_over(&self) -> bool {
        self.released && self.out == 0
    }

    /// A part is back; true where the rest is not worth carrying out.
    pub(super) fn finish_part(&mut self, at: u64, len: u64, result: Result<()>) -> bool {
        self.out -= 1;
        let failed = result.is_err();
        match result {
            Ok(()) => self.moved += len,
            Err(e) => {
                let nearer = self.failure.as_ref().is_none_or(|f| at < f.0);
                if nearer {
                    let done = at.saturating_add(e.bytes_done());
                    self.failure = Some((at, e.with_bytes_done(done)));
                }
            }
        }
        failed && !self.released
    }

    /// What was not released never will be.
    pub(super) fn drop_unreleased(&mut self, stopped: bool) {
        self.released = true;
        self.stopped |= stopped;
    }

    /// What became of a transfer of `len` bytes, when it is over.
    pub(super) fn outcome(&mut self, len: u64) -> Result<()> {
        match self.failure.take() {
            Some((_, error)) => Err(error),
            None if self.stopped && self.moved < len => {
                Err(Error::new(ErrorKind::Interrupted, "transfer", "cancelled by the caller")
                    .with_bytes_done(self.moved))
            }
            None => Ok(()),
        }
    }
}
