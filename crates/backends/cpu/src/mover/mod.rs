//! The open primitives: a copy between two ranges, a placement of lines that keep their addresses,
//! and a read by the source.

mod copy;
mod in_place;
mod read;
mod tally;

pub(crate) use copy::CopyMover;
pub(crate) use in_place::{InPlaceAction, InPlaceMover};
pub(crate) use read::ReadMover;

use datapipes_core::memory::MemoryRange;
use datapipes_core::{Error, ErrorKind, Result, Span};

/// The two ranges of a pipe, and the core whose cache is the target.
pub(crate) struct Ends {
    pub(crate) source: MemoryRange,
    pub(crate) target: MemoryRange,
    pub(crate) target_core: Option<usize>,
    /// Whether the target is persistent, so that bytes must be flushed before a transfer returns.
    pub(crate) target_keeps: bool,
}

/// A span in sizes of this process's memory.
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
