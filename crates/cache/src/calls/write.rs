//! Writes through the cache: first to the file, by a pipe, then to the cached items.

use std::ops::Range;

use datapipes_core::{Constraints, Dram, Error, ErrorKind, MapOptions, Pages, Pipe, Result, Span};

use crate::coherence::writes::Writes;
use crate::fine::FineGrained;
use crate::miss::requester::in_pages;
use crate::sync::Mutex;

/// The bytes of one piece of a write.
const PIECE: usize = 256 << 10;
/// The longest write whose bytes are cached again.
const MAX_KEPT: usize = 4096;

/// A pipe from memory to the cache's file.
pub struct Writer {
    fine: FineGrained,
    pipe: Pipe,
    buffer: Mutex<Dram>,
}

impl FineGrained {
    /// Opens a writer. Any pipe to the same file works as well. This one keeps cached items cached,
    /// with the new bytes.
    ///
    /// # Errors
    /// `InvalidInput` for a cache that is not over a file. Errors of connecting.
    pub fn writer(&self) -> Result<Writer> {
        self.0.owner.check("write")?;
        let Some(ssd) = &self.0.ssd else {
            return Err(Error::new(ErrorKind::InvalidInput, "write", "the cache is not over a file"));
        };
        let options = MapOptions::default().pages(Pages::Small);
        let buffer = Dram::allocate_with(PIECE, options)?;
        let pipe = self.config().machine.connect_with(&buffer, ssd, &Constraints::default())?;
        Ok(Writer { fine: self.clone(), pipe, buffer: Mutex::new(buffer) })
    }
}

impl Writer {
    /// Writes the bytes at `offset`, also beyond the end. When it returns, every read sees them.
    /// They survive a power failure after [`Ssd::sync`](datapipes_core::Ssd::sync). Of more than
    /// 256 KiB, readers may see a part before the rest. It waits for reads of these bytes that were
    /// repeated often because the bytes kept changing, at most for
    /// [`CacheOptions::patience`](crate::CacheOptions::patience).
    ///
    /// # Errors
    /// `OutOfRange` for bytes beyond the limit of a file (2^63). `NoSpace` or `Device`, with the
    /// bytes done; the contents of the rest are undefined.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.fine.0.owner.check("write")?;
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| i64::try_from(end).is_err()) {
            let context = format!("{} bytes at {offset} of a file", bytes.len());
            return Err(Error::new(ErrorKind::OutOfRange, "write", context).with_offset(offset).with_bytes_done(0));
        }
        let buffer = self.buffer.lock();
        let mut done = 0;
        for piece in bytes.chunks(PIECE) {
            buffer.range(0, piece.len())?.lease_mut()?.copy_from_slice(piece);
            let at = offset + done;
            self.one(at, piece).map_err(|e| {
                let before = e.bytes_done();
                e.with_bytes_done(done + before)
            })?;
            done += piece.len() as u64;
        }
        Ok(())
    }

    fn one(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let inner = &*self.fine.0;
        let range = offset..offset.saturating_add(bytes.len() as u64);
        // Bytes that are cached now are worth caching again.
        let short = bytes.len() <= MAX_KEPT;
        let kept: Vec<_> = in_pages(offset, bytes.len()).filter(|&(at, len)| short && inner.holds(at, len)).collect();
        inner.writes.let_readers_go(&range, inner.options.patience);
        // This surrounds the pipe's own announcement, so that readers also wait until the new bytes
        // are cached.
        inner.notice_others();
        let change = Change { writes: &inner.writes, range: &range };
        let before = inner.writes.begin(&range);
        let result = self.pipe.transfer(Span { source: 0, target: offset, len: bytes.len() as u64 });
        if let (Ok(()), Some(before)) = (&result, before) {
            // No other thread wrote there if none did when this began, and only the pipe's
            // announcement was made since.
            let valid = || inner.writes.unchanged_but_once(&range, before);
            for (at, len) in kept {
                let from = (at - offset) as usize;
                inner.insert(at, &bytes[from..from + len], at, &valid);
            }
        }
        drop(change);
        result
    }
}

/// A change that is over when this is dropped, whatever happens in between.
struct Change<'a> {
    writes: &'a Writes,
    range: &'a Range<u64>,
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.writes.end(self.range);
    }
}
