//! A stream as blocks, taken one after the other: the same steps that devices take, taken in one
//! process for the replay.

use std::io::{self, Read};

use datapipes::{Error, ErrorKind, Result};
use datapipes_fabric::device::Function;

use super::codecs::{Codec, fill};

/// Blocks in order.
pub(in crate::commands::stream) trait Blocks {
    /// Puts the next block in the place of what the buffer has; false at the end.
    fn next(&mut self, block: &mut Vec<u8>) -> Result<bool>;
}

/// Bytes cut into whole blocks, the last of which may be shorter.
pub(in crate::commands::stream) struct Cut<'a> {
    from: Box<dyn Read + 'a>,
    block_bytes: usize,
    operation: &'static str,
}

impl<'a> Cut<'a> {
    pub(in crate::commands::stream) fn new(from: Box<dyn Read + 'a>, block_bytes: usize) -> Cut<'a> {
        Cut { from, block_bytes, operation: "read" }
    }
}

impl Blocks for Cut<'_> {
    fn next(&mut self, block: &mut Vec<u8>) -> Result<bool> {
        block.resize(self.block_bytes, 0);
        let len = fill(&mut self.from, block).map_err(|e| told(self.operation, e))?;
        block.truncate(len);
        Ok(len > 0)
    }
}

/// Blocks after a function.
pub(in crate::commands::stream) struct Applied<'a> {
    pub(in crate::commands::stream) from: Box<dyn Blocks + 'a>,
    pub(in crate::commands::stream) function: Box<dyn Function>,
    /// The bytes of a block of the channel behind the step.
    pub(in crate::commands::stream) block_bytes: usize,
    pub(in crate::commands::stream) input: Vec<u8>,
}

impl Blocks for Applied<'_> {
    fn next(&mut self, block: &mut Vec<u8>) -> Result<bool> {
        if !self.from.next(&mut self.input)? {
            block.clear();
            self.function.finish();
            return Ok(false);
        }
        block.resize(self.block_bytes, 0);
        let len = self.function.apply(&self.input, block)?;
        block.truncate(len);
        Ok(true)
    }
}

/// Blocks after a codec.
pub(in crate::commands::stream) fn recoded<'a>(
    from: Box<dyn Blocks + 'a>,
    codec: Codec,
    block_bytes: usize,
) -> Result<Cut<'a>> {
    let read = codec.over(Joined { from, block: Vec::new(), at: 0 }).map_err(|e| told("compress", e))?;
    Ok(Cut { from: read, block_bytes, operation: "compress or decompress" })
}

/// The bytes of blocks. A read ends at a block's end, as it does in a device: what a codec makes
/// may depend on that.
struct Joined<'a> {
    from: Box<dyn Blocks + 'a>,
    block: Vec<u8>,
    at: usize,
}

impl Read for Joined<'_> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        while self.at == self.block.len() {
            self.at = 0;
            if !self.from.next(&mut self.block).map_err(io::Error::other)? {
                self.block.clear();
                return Ok(0);
            }
        }
        let n = target.len().min(self.block.len() - self.at);
        target[..n].copy_from_slice(&self.block[self.at..self.at + n]);
        self.at += n;
        Ok(n)
    }
}

/// The error that came through a reader, or the reader's own.
pub(in crate::commands::stream) fn told(operation: &'static str, error: io::Error) -> Error {
    if error.get_ref().is_some_and(|inner| inner.is::<Error>()) {
        let inner = error.into_inner().and_then(|inner| inner.downcast::<Error>().ok());
        return inner.map_or_else(|| Error::new(ErrorKind::System, operation, "an error was lost"), |inner| *inner);
    }
    match error.raw_os_error() {
        Some(errno) => Error::os(operation, errno, "the stream"),
        None => Error::new(ErrorKind::Corrupt, operation, error.to_string()),
    }
}
