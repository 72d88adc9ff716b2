//! A copy between two ranges of memory.

use datapipes_core::backend::{Chunked, InlineMover, Job};
use datapipes_core::{Counters, Result, Span};

use super::tally::Tally;
use super::{Bytes, Ends};
use crate::kernel::Copier;

pub(crate) struct CopyMover {
    ends: Ends,
    copier: Copier,
    tally: Tally,
}

impl CopyMover {
    pub(crate) fn new(ends: Ends, copier: Copier) -> Self {
        CopyMover { ends, copier, tally: Tally::default() }
    }
}

impl InlineMover for CopyMover {
    #[inline]
    fn transfer(&self, span: Span) -> Result<()> {
        let Bytes { source, target, len } = Bytes::of(span)?;
        self.tally.check_core(self.ends.target_core);
        self.tally.count(len, || self.copier.copy((&self.ends.source, source), (&self.ends.target, target), len))
    }

    fn parts(&self) -> Option<&dyn Chunked> {
        Some(self)
    }

    fn counters(&self) -> Counters {
        self.tally.counters()
    }
}

impl Chunked for CopyMover {
    fn transfer_part(&self, part: &mut Job, whole: u64) -> Result<()> {
        let Bytes { len, .. } = Bytes::of(part.span)?;
        self.tally.check_core(self.ends.target_core);
        self.tally.count(len, || self.copier.copy_part(part, usize::try_from(whole).unwrap_or(usize::MAX)))
    }
}
