//! Many reads at once, by the caller's offsets and lengths.

use datapipes_core::{Error, ErrorKind, Result};

use crate::fine::FineGrained;
use crate::miss::gather::{Gathered, Read};

impl FineGrained {
    /// Reads `len` bytes at each offset into `out`, one after the other, such as rows of a table.
    /// Equal bytes are read from the device once. Each read is of one moment; the batch is not.
    ///
    /// # Errors
    /// `InvalidInput` where `out` is not `offsets.len() * len` bytes long. Errors of single reads
    /// are in [`Gathered`].
    pub fn gather(&self, offsets: &[u64], len: usize, out: &mut [u8]) -> Result<Gathered> {
        self.0.owner.check("gather")?;
        check(offsets.len().checked_mul(len), out.len())?;
        let reads = |i: usize| Read { offset: offsets[i], len, out_at: i * len };
        Ok(self.0.gather(offsets.len(), &reads, out))
    }

    /// As [`gather`](Self::gather), for reads of any lengths: (offset, length) each.
    ///
    /// # Errors
    /// `InvalidInput` where the length of `out` is not the sum of all lengths.
    pub fn gather_ranges(&self, ranges: &[(u64, usize)], out: &mut [u8]) -> Result<Gathered> {
        self.0.owner.check("gather")?;
        check(sum(ranges), out.len())?;
        Ok(self.0.gather_ranges(ranges, out))
    }
}

/// The sum of the lengths, if it is a number of bytes of memory.
pub(super) fn sum(ranges: &[(u64, usize)]) -> Option<usize> {
    ranges.iter().try_fold(0usize, |sum, (_, len)| sum.checked_add(*len))
}

pub(super) fn check(wanted: Option<usize>, given: usize) -> Result<()> {
    if wanted == Some(given) {
        return Ok(());
    }
    let wanted = wanted.map_or("more bytes than memory".to_owned(), |w| w.to_string());
    Err(Error::new(ErrorKind::InvalidInput, "gather", format!("{wanted} bytes into {given}")))
}
