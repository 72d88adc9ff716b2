//! A device that reads a place and sends it as a stream: storage, or data from the network.

use std::os::fd::{AsFd, OwnedFd};

use datapipes_core::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustix::time::Timespec;

use super::stage::{FIRST_WAIT, MAX_WAIT, descriptor};
use super::{Body, DeviceChannels, DevicePlace, Spread};
use crate::channel::Head;

pub(super) struct Source {
    from: From,
    /// Some if the report has a checksum.
    sum: Option<crc32fast::Hasher>,
}

enum From {
    File { file: OwnedFd, direct: Option<OwnedFd>, offset: u64, len: Option<u64> },
    Socket { socket: OwnedFd, whole_blocks: bool },
    Stream { stream: OwnedFd, whole_blocks: bool },
    Zeros(u64),
}

impl Source {
    pub(super) fn new(place: DevicePlace, sum: bool, given: &mut [Option<OwnedFd>]) -> Result<Source> {
        let from = match place {
            DevicePlace::File { descriptor: at, direct, offset, len } => {
                let direct = direct.map(|at| descriptor(given, at)).transpose()?;
                From::File { file: descriptor(given, at)?, direct, offset, len }
            }
            DevicePlace::Socket { descriptor: at, whole_blocks } => {
                From::Socket { socket: descriptor(given, at)?, whole_blocks }
            }
            DevicePlace::Stream { descriptor: at, whole_blocks } => {
                From::Stream { stream: descriptor(given, at)?, whole_blocks }
            }
            DevicePlace::Nothing { len } => From::Zeros(len),
        };
        Ok(Source { from, sum: sum.then(crc32fast::Hasher::new) })
    }
}

impl Body for Source {
    /// Sends one stream each time it runs.
    fn run(&mut self, stage: &mut DeviceChannels<'_>) -> Result<()> {
        let mut read = 0u64;
        loop {
            if let From::Socket { socket: bytes, .. } | From::Stream { stream: bytes, .. } = &self.from {
                await_bytes(bytes, stage)?;
            }
            let Source { from, sum } = self;
            let mut got = 0;
            let read_next = |target: &mut [u8]| {
                got = fill(from, read, target)?;
                sum.iter_mut().for_each(|sum| sum.update(&target[..got]));
                Ok(got)
            };
            // The end of the place is no block of the stream.
            stage.send_if(Spread::Turns, Head { words: [read, 0, 0, 0], end: false }, read_next, |len| len > 0)?;
            if got == 0 {
                break;
            }
            read += got as u64;
            stage.so_far.blocks_in += 1;
        }
        stage.finish([read, 0, 0, 0])?;
        stage.so_far.bytes_in = read;
        stage.so_far.crc = self.sum.as_mut().map(|sum| std::mem::take(sum).finalize());
        let report = std::mem::take(&mut stage.so_far);
        stage.attendant.report(report)
    }
}

/// Reads the next bytes into the receiver's memory. Returns 0 at the end.
fn fill(place: &From, read: u64, target: &mut [u8]) -> Result<usize> {
    match place {
        From::Zeros(len) => {
            let now = target.len().min(usize::try_from(len - read).unwrap_or(usize::MAX));
            target[..now].fill(0);
            Ok(now)
        }
        From::Socket { socket, whole_blocks } => fill_from_socket(socket, *whole_blocks, target),
        From::Stream { stream, whole_blocks } => fill_from_stream(stream, *whole_blocks, target),
        From::File { file, direct, offset, len } => {
            let left = len.map_or(u64::MAX, |len| len.saturating_sub(read));
            let now = target.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let (target, at) = (&mut target[..now], offset + read);
            // Whole blocks bypass the page cache. The end of the file, and reads that the device
            // refuses, use it.
            match direct {
                Some(direct) if now.is_multiple_of(4096) => match read_at(direct, target, at) {
                    Err(e) if e.errno() == Some(libc::EINVAL) => read_at(file, target, at),
                    other => other,
                },
                _ => read_at(file, target, at),
            }
        }
    }
}

/// Reads until the target is full or the file ends.
pub(super) fn read_at(file: &OwnedFd, target: &mut [u8], at: u64) -> Result<usize> {
    let mut done = 0;
    while done < target.len() {
        match rustix::io::pread(file, &mut target[done..], at + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(e) => {
                let error = Error::os("read", e.raw_os_error(), "the source's file").with_offset(at + done as u64);
                return Err(error.with_bytes_done(done as u64));
            }
        }
    }
    Ok(done)
}

/// Waits for bytes and checks the channels meanwhile. No credit is held before there is something
/// to send.
fn await_bytes(socket: &OwnedFd, stage: &mut DeviceChannels<'_>) -> Result<()> {
    let mut slice = FIRST_WAIT;
    loop {
        let limit = Timespec { tv_sec: 0, tv_nsec: slice.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&socket.as_fd(), PollFlags::IN)], Some(&limit)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(e) => return Err(Error::os("read", e.raw_os_error(), "waiting for the source's bytes")),
        }
        stage.tell_wait()?;
        slice = (slice * 2).min(MAX_WAIT);
    }
}

/// Receives a whole block, or the available part of one, for which it waits only for the first
/// byte.
fn fill_from_socket(socket: &OwnedFd, whole: bool, target: &mut [u8]) -> Result<usize> {
    let mut done = 0;
    while done < target.len() {
        let flags = if whole || done == 0 { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        match recv(socket, &mut target[done..], flags) {
            Ok((0, _)) => break,
            Ok((n, _)) => done += n,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => break,
            Err(Errno::CONNRESET) => {
                return Err(Error::new(ErrorKind::Device, "read", "the network peer broke the connection"));
            }
            Err(e) => return Err(Error::os("read", e.raw_os_error(), "the source's socket")),
        }
    }
    Ok(done)
}

/// Reads a whole block, or what one read returns. The descriptor may be shared with others, who may
/// have made it non-blocking.
fn fill_from_stream(stream: &OwnedFd, whole: bool, target: &mut [u8]) -> Result<usize> {
    let mut done = 0;
    while done < target.len() {
        match rustix::io::read(stream, &mut target[done..]) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let ready = poll(&mut [PollFd::new(&stream.as_fd(), PollFlags::IN)], None);
                if let Err(e) = ready
                    && e != Errno::INTR
                {
                    return Err(Error::os("read", e.raw_os_error(), "waiting for the source's stream"));
                }
            }
            Err(e) => {
                let error = Error::os("read", e.raw_os_error(), "the source's stream");
                return Err(error.with_bytes_done(done as u64));
            }
        }
        if !whole && done > 0 {
            break;
        }
    }
    Ok(done)
}
