//! A device that writes received blocks to a place.

use std::os::fd::{AsFd, OwnedFd};

use datapipes_core::in_flight_limit::InFlightLimit;
use datapipes_core::page_cache::{begin_write_back, write_back};
use datapipes_core::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::stage::descriptor;
use super::{Body, DeviceChannels, DevicePlace};
use crate::channel::{BlockOutcome, Reply};

/// The shortest piece of a file that is written back at once, and the longest.
const MIN_PIECE: u64 = 1 << 20;
const MAX_PIECE: u64 = 256 << 20;

pub(super) struct Sink {
    to: To,
    sum: crc32fast::Hasher,
    written: u64,
}

enum To {
    File {
        file: OwnedFd,
        direct: Option<OwnedFd>,
        offset: u64,
    },
    Socket(OwnedFd),
    /// None after the end of a stream.
    Stream(Option<OwnedFd>),
    Nowhere,
}

impl Sink {
    pub(super) fn new(place: DevicePlace, given: &mut [Option<OwnedFd>]) -> Result<Sink> {
        let to = match place {
            DevicePlace::File { descriptor: at, direct, offset, .. } => {
                let direct = direct.map(|at| descriptor(given, at)).transpose()?;
                To::File { file: descriptor(given, at)?, direct, offset }
            }
            DevicePlace::Socket { descriptor: at, .. } => To::Socket(descriptor(given, at)?),
            DevicePlace::Stream { descriptor: at, .. } => To::Stream(Some(descriptor(given, at)?)),
            DevicePlace::Nothing { .. } => To::Nowhere,
        };
        Ok(Sink { to, sum: crc32fast::Hasher::new(), written: 0 })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match &self.to {
            To::File { file, direct, offset } => {
                let at = offset + self.written;
                match direct {
                    // Only blocks that are processed in place are aligned. A private copy goes
                    // through the page cache.
                    Some(direct) if bytes.len().is_multiple_of(4096) && at.is_multiple_of(4096) => {
                        match write_at(direct, bytes, at) {
                            Err(e) if e.errno() == Some(libc::EINVAL) => write_at(file, bytes, at),
                            other => other,
                        }?;
                    }
                    _ => write_at(file, bytes, at)?,
                }
            }
            To::Socket(socket) => send_all(socket, bytes)?,
            To::Stream(Some(stream)) => write_all(stream, bytes)?,
            // An empty block writes nothing. Later bytes would go to a reader that has seen the
            // end.
            To::Stream(None) if bytes.is_empty() => {}
            To::Stream(None) => {
                let context = "the sink's stream was closed at the end of the stream before";
                return Err(Error::new(ErrorKind::InvalidInput, "write", context));
            }
            To::Nowhere => {}
        }
        if !matches!(self.to, To::Nowhere) {
            self.sum.update(bytes);
        }
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Makes the written bytes durable.
    fn commit(&mut self) -> Result<()> {
        match &self.to {
            To::File { file, offset, .. } => sync(file, *offset, self.written),
            To::Socket(_) | To::Stream(_) | To::Nowhere => Ok(()),
        }
    }
}

impl Body for Sink {
    /// The reply to the end of a stream gives the number of durable bytes, of all streams together.
    fn run(&mut self, stage: &mut DeviceChannels<'_>) -> Result<()> {
        while let Some(block) = stage.receive()? {
            let end = block.head().end;
            let mut done = self.write(&block);
            if end && done.is_ok() {
                done = self.commit();
            }
            if let Err(e) = done {
                block.reply(Reply { outcome: BlockOutcome::of_error(&e), word: self.written })?;
                return Err(e);
            }
            if end {
                let sum = (!matches!(self.to, To::Nowhere)).then(|| self.sum.clone().finalize());
                if stage.end(block, Some(self.written), sum)? {
                    self.sum = crc32fast::Hasher::new();
                    // All inlets have ended, so the reader of a stream sees its end.
                    if let To::Stream(stream) = &mut self.to {
                        *stream = None;
                    }
                }
            } else {
                block.done()?;
            }
        }
        Ok(())
    }
}

/// Writes all bytes.
pub(super) fn write_at(file: &OwnedFd, bytes: &[u8], at: u64) -> Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let here = at + done as u64;
        match rustix::io::pwrite(file, &bytes[done..], here) {
            Ok(0) => {
                return Err(Error::new(ErrorKind::Device, "write", "the file takes no more bytes").with_offset(here));
            }
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(e) => {
                let error = Error::os("write", e.raw_os_error(), "the sink's file").with_offset(here);
                return Err(error.with_bytes_done(done as u64));
            }
        }
    }
    Ok(())
}

/// Makes bytes that were written to a range durable.
///
/// A process cannot be killed while it waits for the kernel to write pages. So they are written in
/// pieces first, of about a quarter of a second, and a device that is to end ends soon.
pub(super) fn sync(file: &OwnedFd, at: u64, len: u64) -> Result<()> {
    let failed = |e: Errno, at: u64| Error::os("sync", e.raw_os_error(), "the sink's file").with_offset(at);
    // The kernel's word for an error is told once, so it is not left to the sync below.
    let written = |done: core::result::Result<(), Errno>, at: u64| match done {
        Ok(()) => Ok(true),
        // Descriptors that are not files on a disk; a kernel that has no such call.
        Err(Errno::INVAL | Errno::SPIPE | Errno::ROFS | Errno::NOSYS | Errno::PERM) => Ok(false),
        Err(e) => Err(failed(e, at)),
    };
    let end = at.saturating_add(len);
    // However long a file with holes is, the pieces are few.
    let least = MIN_PIECE.max(len >> 16);
    let mut limit = InFlightLimit::new(least, least, MAX_PIECE.max(least));
    let (mut next, mut begun) = (at, None);
    loop {
        let piece = limit.bytes().min(end - next);
        let now = (next, piece, limit.begin());
        if piece > 0 && !written(begin_write_back(file.as_fd(), next, piece), next)? {
            break;
        }
        next += piece;
        let before = begun.replace(now);
        if let Some((at, len, mark)) = before {
            written(write_back(file.as_fd(), at, len), at)?;
            limit.arrived(mark);
        }
        if piece == 0 {
            break;
        }
    }
    match rustix::fs::fdatasync(file) {
        Ok(()) => Ok(()),
        // Descriptors that are not files on a disk have nothing to make durable.
        Err(Errno::INVAL | Errno::ROFS) => Ok(()),
        Err(e) => Err(Error::os("sync", e.raw_os_error(), "the sink's file")),
    }
}

fn send_all(socket: &OwnedFd, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        match rustix::net::send(socket, bytes, rustix::net::SendFlags::NOSIGNAL) {
            Ok(n) => bytes = &bytes[n..],
            Err(Errno::INTR) => {}
            Err(e) => return Err(Error::os("write", e.raw_os_error(), "the sink's socket")),
        }
    }
    Ok(())
}

/// Writes all bytes in order. The descriptor may be shared with others, who may have made it
/// non-blocking.
fn write_all(stream: &OwnedFd, bytes: &[u8]) -> Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::write(stream, &bytes[done..]) {
            Ok(0) => return Err(Error::new(ErrorKind::Device, "write", "the sink's stream takes no more bytes")),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let ready = poll(&mut [PollFd::new(&stream.as_fd(), PollFlags::OUT)], None);
                if let Err(e) = ready
                    && e != Errno::INTR
                {
                    return Err(Error::os("write", e.raw_os_error(), "waiting for the sink's stream"));
                }
            }
            Err(e) => {
                let error = Error::os("write", e.raw_os_error(), "the sink's stream");
                return Err(error.with_bytes_done(done as u64));
            }
        }
    }
    Ok(())
}
