//! io_uring as a program would use it by hand, for comparison: reads are submitted together, and
//! waited for.
//!
//! Unsafe: the kernel writes to buffers that it knows by their addresses.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};

use datapipes::{Error, ErrorKind, Result};
use io_uring::{IoUring, opcode, types};

/// A ring and nothing around it.
pub(super) struct RingByHand {
    ring: IoUring,
    /// What cannot be counted any more: buffers may be under way.
    is_broken: bool,
}

impl RingByHand {
    pub(super) fn new(entries: u32) -> Result<RingByHand> {
        let ring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(entries);
        let ring = ring.or_else(|_| IoUring::new(entries)).map_err(|e| Error::io("experiment", e, "io_uring_setup"))?;
        Ok(RingByHand { ring, is_broken: false })
    }

    /// Reads into all buffers, as many as the ring has entries at most. Returns the system calls.
    pub(super) fn read<'a>(
        &mut self,
        file: BorrowedFd<'_>,
        reads: impl Iterator<Item = (&'a mut [u8], u64)>,
    ) -> Result<u64> {
        let failed = |e: std::io::Error| Error::io("experiment", e, "io_uring_enter");
        if self.is_broken {
            return Err(Error::new(ErrorKind::System, "experiment", "the ring failed before"));
        }
        let mut wanted = Vec::new();
        for (buffer, offset) in reads {
            let len = u32::try_from(buffer.len()).map_err(|e| failed(std::io::Error::other(e)))?;
            let entry = opcode::Read::new(types::Fd(file.as_raw_fd()), buffer.as_mut_ptr(), len).offset(offset).build();
            wanted.push((entry, len));
        }
        let mut pushed = 0;
        for (entry, _) in &wanted {
            // SAFETY: the buffer and the descriptor are borrowed until all answers have come, or
            // the process has ended: see `wait`.
            if unsafe { self.ring.submission().push(entry) }.is_err() {
                break;
            }
            pushed += 1;
        }
        let calls = self.wait(pushed);
        if pushed < wanted.len() {
            return Err(Error::new(ErrorKind::InvalidInput, "experiment", "more reads than the ring has entries"));
        }
        let calls = calls.map_err(failed)?;
        let lengths = wanted.first().map_or(0, |(_, len)| *len);
        let mut outcome = Ok(calls);
        for answer in self.ring.completion() {
            if answer.result() < 0 {
                outcome = Err(failed(std::io::Error::from_raw_os_error(-answer.result())));
            } else if answer.result() as u32 != lengths {
                let what = format!("{} of {lengths} bytes", answer.result());
                outcome = Err(Error::new(ErrorKind::EndOfFile, "experiment", what));
            }
        }
        outcome
    }

    /// Submits, and waits for all answers. Where that cannot be, the buffers may be written at any
    /// time, and the program ends.
    fn wait(&mut self, count: usize) -> std::io::Result<u64> {
        let mut calls = 0;
        loop {
            let came = self.ring.completion().len();
            if came >= count {
                return Ok(calls);
            }
            calls += 1;
            match self.ring.submit_and_wait(count) {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                Err(error) if self.ring.submission().len() == count => {
                    // Nothing was taken: nobody has the buffers.
                    self.is_broken = true;
                    return Err(error);
                }
                Err(_) => std::process::abort(),
            }
        }
    }
}
