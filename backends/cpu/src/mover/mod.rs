//! The open primitives: a copy between two ranges, a placement of lines that stay where they are, a
//! read by the source.

mod copy;
mod in_place;
mod read;
mod tally;

pub(crate) use copy::CopyMover;
pub(crate) use in_place::{InPlaceAction, InPlaceMover};
pub(crate) use read::ReadMover;

use datapipes_core::memory::MemoryRange;
use datapipes_core::{Error, ErrorKind, Result, Span};

/// The two ranges of a pipe, and the core whose cache the target is.
pub(crate) struct Ends {
    pub(crate) source: MemoryRange,
    pub(crate) target: MemoryRange,
    pub(crate) target_core: Option<usize>,
    /// What the target keeps without power must be flushed before a transfer returns.
    pub(crate) target_keeps: bool,
}

/// A span as this process's memory counts.
#[derive(Clone, Copy)]
struct Bytes {
    source: usize,
    target: usize,
    len: usize,
}

impl Bytes {
    #[inline]
    fn of(span: Span) -> Result<Bytes> {
        match (span.source.try_into(), span.target.try_into(), span.len.try_into()) {
            (Ok(source), Ok(target), Ok(len)) => Ok(Bytes { source, target, len }),
            _ => {
                Err(Error::new(ErrorKind::OutOfRange, "transfer", format!("{span:?} is beyond this machine's memory")))
            }
        }
    }
}
