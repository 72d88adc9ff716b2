//! Bytes of a GPU's memory read and written by the caller, without a pipe.
//!
//! Unsafe code: copies between leased bytes and a borrowed buffer, which are waited for.
#![allow(unsafe_code)]

use datapipes_core::memory::Access;
use datapipes_core::{Error, ErrorKind, Result};

use super::Hbm;
use super::memory::HbmHold;
use crate::driver::device::Entered;
use crate::driver::stream::{Stream, StreamPriority};
use crate::driver::{Driver, Failure};

impl Hbm {
    /// Copies the bytes at `at` into a buffer, for what is short or once: a pipe is faster.
    ///
    /// # Errors
    /// `OutOfRange`; `Busy` while they may be written; the driver's; `Forked`.
    pub fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        let hold = self.hold(at, into.len() as u64, Access::Read, "read")?;
        let mut done = 0;
        for piece in into.chunks_mut(PIECE) {
            let mut buffer = bounce(piece.len())?;
            let from = hold.address() + done;
            // SAFETY: the hold permits it; the buffer is this function's own, and `finish` waits or
            // keeps it.
            buffer = self.finish(&hold, "read", buffer, |driver, stream, buffer| unsafe {
                stream.download(driver, buffer.as_mut_ptr(), from, buffer.len())
            })?;
            piece.copy_from_slice(&buffer);
            done += piece.len() as u64;
        }
        Ok(())
    }

    /// Copies a buffer over the bytes at `at`.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write(&self, at: u64, from: &[u8]) -> Result<()> {
        let hold = self.hold(at, from.len() as u64, Access::Write, "write")?;
        let mut done = 0;
        for piece in from.chunks(PIECE) {
            let mut buffer = bounce(piece.len())?;
            buffer.copy_from_slice(piece);
            let to = hold.address() + done;
            // SAFETY: as in `read`.
            self.finish(&hold, "write", buffer, |driver, stream, buffer| unsafe {
                stream.upload(driver, to, buffer.as_ptr(), buffer.len())
            })?;
            done += piece.len() as u64;
        }
        Ok(())
    }

    /// Starts a copy on a stream of its own, and waits for its end whether or not it was started.
    /// Where the driver does not tell the end, the buffer is never given back. The buffer is not
    /// the caller's memory: that may be registered, also with pages that it has no more.
    fn finish(
        &self,
        hold: &HbmHold,
        operation: &'static str,
        mut buffer: Vec<u8>,
        start: impl FnOnce(&Driver, &Stream, &mut [u8]) -> Result<(), Failure>,
    ) -> Result<Vec<u8>> {
        let entered: Entered = self.on().enter(operation)?;
        let driver = entered.driver;
        let stream = Stream::new(self.on(), StreamPriority::High)?;
        let started = hold.order(driver, &stream).and_then(|()| start(driver, &stream, &mut buffer));
        let told = |failure: Failure| driver.error(operation, failure, &self.name());
        if let Err(failure) = stream.synchronize(driver) {
            std::mem::forget(buffer);
            return Err(told(failure));
        }
        started.map_err(told)?;
        Ok(buffer)
    }
}

/// The bytes that are copied at a time.
const PIECE: usize = 1 << 20;

fn bounce(len: usize) -> Result<Vec<u8>> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(len).map_err(|_| {
        Error::new(ErrorKind::OutOfMemory, "allocate", format!("{len} bytes for a copy to or from a GPU"))
    })?;
    buffer.resize(len, 0);
    Ok(buffer)
}
