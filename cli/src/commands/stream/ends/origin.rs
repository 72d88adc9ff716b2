//! Where a stream comes from, and what must arrive at its end.

use std::cell::RefCell;
use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::mpsc::{Sender, channel};

use datapipes::{Error, ErrorKind, FileMode, Result};
use datapipes_fabric::device::DevicePlace;
use rustix::event::PollFlags;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use serde::Serialize;

use super::waiting::{WaitTimeout, connect};
use crate::commands::stream::steps::blocks::{Blocks, Cut};

/// Where the bytes come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// So many bytes, made by a thread of this command and sent over TCP.
    Generate(u64),
    /// Whatever a listener sends until it closes.
    Tcp(String),
    /// A file, or a named pipe.
    File(PathBuf),
    /// The standard input.
    Input,
}

impl FromStr for Origin {
    type Err = String;

    fn from_str(text: &str) -> Result<Origin, String> {
        match text.split_once(':') {
            None if text == "-" => Ok(Origin::Input),
            Some(("generate", size)) => Ok(Origin::Generate(datapipes::parse_size(size).map_err(|e| e.to_string())?)),
            Some(("tcp", address)) if address.contains(':') => Ok(Origin::Tcp(address.into())),
            Some(("file", path)) if !path.is_empty() => Ok(Origin::File(path.into())),
            _ => Err("give generate:SIZE, tcp:HOST:PORT, file:PATH, or - for the standard input".into()),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Generate(len) => write!(f, "generate:{len}"),
            Origin::Tcp(address) => write!(f, "tcp:{address}"),
            Origin::File(path) => write!(f, "file:{}", path.display()),
            Origin::Input => f.write_str("-"),
        }
    }
}

/// Bytes, and their CRC-32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(in crate::commands::stream) struct Sum {
    /// Number of bytes.
    pub(in crate::commands::stream) bytes: u64,
    /// CRC-32.
    pub(in crate::commands::stream) crc32: u32,
}

#[derive(Default)]
pub(in crate::commands::stream) struct Summing(crc32fast::Hasher, u64);

impl Summing {
    pub(in crate::commands::stream) fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
        self.1 += bytes.len() as u64;
    }

    pub(in crate::commands::stream) fn sum(self) -> Sum {
        Sum { bytes: self.1, crc32: self.0.finalize() }
    }
}

/// An origin that was opened for one run.
pub(in crate::commands::stream) struct Opened {
    /// What the source device reads.
    pub(in crate::commands::stream) descriptor: OwnedFd,
    /// How it reads that, as its first descriptor.
    pub(in crate::commands::stream) place: DevicePlace,
    /// Who sends, and what it says that it sent; it begins when told to.
    pub(in crate::commands::stream) generator: Option<Generator>,
    /// Of the file that the stream becomes: what was private stays so.
    pub(in crate::commands::stream) mode: FileMode,
}

pub(in crate::commands::stream) struct Generator {
    go: Sender<()>,
    thread: datapipes::threads::JoinHandle<std::io::Result<Sum>>,
}

impl Generator {
    pub(in crate::commands::stream) fn begin(&self) {
        // A thread that ended already says why when it is joined.
        let _ = self.go.send(());
    }

    pub(in crate::commands::stream) fn sent(self) -> Result<Sum> {
        drop(self.go);
        let sent =
            datapipes::threads::join(self.thread).unwrap_or_else(|lost| Err(std::io::Error::other(lost.to_string())));
        sent.map_err(|e| Error::io("send", e, "the generator's connection"))
    }
}

/// Blocks are whole, so that what becomes of them can be computed again.
const SOCKET: DevicePlace = DevicePlace::Socket { descriptor: 0, whole_blocks: true };
const STREAM: DevicePlace = DevicePlace::Stream { descriptor: 0, whole_blocks: true };
const FILE: DevicePlace = DevicePlace::File { descriptor: 0, direct: None, offset: 0, len: None };

/// The mode of what becomes of a file of this mode. Several placements write the target one after
/// the other.
fn mode_like(mode: u32) -> FileMode {
    FileMode::like(mode).and(FileMode::USUAL).and_owner()
}

impl Origin {
    /// Opens it. A named pipe waits for its writer, and a connection for its other side, no longer
    /// than patience lasts.
    pub(in crate::commands::stream) fn open(&self, patience: WaitTimeout) -> Result<Opened> {
        match self {
            Origin::File(path) => {
                let fail = |e: Errno| Error::os("open", e.raw_os_error(), path.display().to_string());
                // Or a named pipe would wait here, where no signal is looked at.
                let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
                let descriptor = rustix::fs::open(path, flags, Mode::empty()).map_err(fail)?;
                let stat = rustix::fs::fstat(&descriptor).map_err(fail)?;
                let place = match FileType::from_raw_mode(stat.st_mode) {
                    FileType::RegularFile | FileType::BlockDevice => FILE,
                    FileType::Fifo => {
                        patience.for_ready(&descriptor, PollFlags::IN, || {
                            format!("a writer of {} and its first bytes", path.display())
                        })?;
                        STREAM
                    }
                    FileType::CharacterDevice => STREAM,
                    _ => return Err(refused(path, "a folder, or nothing that can be read")),
                };
                let usual = rustix::fs::fcntl_getfl(&descriptor).map_err(fail)? - OFlags::NONBLOCK;
                rustix::fs::fcntl_setfl(&descriptor, usual).map_err(fail)?;
                Ok(Opened { descriptor, place, generator: None, mode: mode_like(stat.st_mode) })
            }
            Origin::Input => {
                let descriptor = crate::system::standard_streams::input_fd()?;
                let stat = rustix::fs::fstat(&descriptor);
                let stat =
                    stat.map_err(|e| Error::os("look at", e.raw_os_error(), crate::system::standard_streams::INPUT))?;
                let kind = FileType::from_raw_mode(stat.st_mode);
                let mode = if kind == FileType::RegularFile { mode_like(stat.st_mode) } else { FileMode::USUAL };
                Ok(Opened { descriptor, place: STREAM, generator: None, mode })
            }
            Origin::Tcp(address) => {
                let stream = connect(address, patience)?;
                Ok(Opened { descriptor: stream, place: SOCKET, generator: None, mode: FileMode::USUAL })
            }
            Origin::Generate(len) => {
                let io = |e: std::io::Error| Error::io("connect", e, "the generator over TCP");
                let listener = TcpListener::bind("127.0.0.1:0").map_err(io)?;
                let mut sending = TcpStream::connect(listener.local_addr().map_err(io)?).map_err(io)?;
                let (arriving, _) = listener.accept().map_err(io)?;
                let (go, wait) = channel();
                let len = *len;
                let thread = datapipes::threads::spawn("generate", move || {
                    let mut sum = Summing::default();
                    if wait.recv().is_ok() {
                        let mut made = Generated::new(len);
                        loop {
                            let part = made.next();
                            if part.is_empty() {
                                break;
                            }
                            sum.add(part);
                            sending.write_all(part)?;
                        }
                    }
                    Ok(sum.sum())
                })?;
                let generator = Some(Generator { go, thread });
                let descriptor = arriving.into();
                Ok(Opened { descriptor, place: SOCKET, generator, mode: FileMode::USUAL })
            }
        }
    }

    /// Whether it can be an origin, without opening it: a named pipe would wait for its writer.
    pub(in crate::commands::stream) fn check(&self) -> Result<()> {
        let Origin::File(path) = self else { return Ok(()) };
        let meta = std::fs::metadata(path).map_err(|e| Error::io("open", e, path.display().to_string()))?;
        let kind = meta.file_type();
        match kind.is_dir() || kind.is_socket() {
            true => Err(refused(path, if kind.is_dir() { "a folder" } else { "a socket" })),
            false => Ok(()),
        }
    }

    /// Whether its bytes are there once only.
    pub(in crate::commands::stream) fn is_read_once(&self) -> bool {
        match self {
            Origin::Generate(_) => false,
            Origin::Tcp(_) | Origin::Input => true,
            Origin::File(path) => {
                std::fs::metadata(path).is_ok_and(|meta| !meta.is_file() && !meta.file_type().is_block_device())
            }
        }
    }

    /// How many bytes it has; 0 where nobody knows.
    pub(in crate::commands::stream) fn len(&self) -> u64 {
        match self {
            Origin::Generate(len) => *len,
            Origin::Tcp(_) | Origin::Input => 0,
            Origin::File(path) => std::fs::metadata(path).map_or(0, |meta| meta.len()),
        }
    }

    /// The blocks that the source would send, and their sum so far; None where it cannot be read
    /// again. `look` is told of the bytes so far, and may end it.
    pub(in crate::commands::stream) fn again<'a>(
        &self,
        block_bytes: usize,
        sum: &'a RefCell<Summing>,
        look: &'a dyn Fn(u64) -> Result<()>,
    ) -> Result<Option<Box<dyn Blocks + 'a>>> {
        if self.is_read_once() {
            return Ok(None);
        }
        let from: Box<dyn Read + 'a> = match self {
            Origin::Tcp(_) | Origin::Input => return Ok(None),
            Origin::Generate(len) => Box::new(Generated::new(*len)),
            Origin::File(path) => {
                Box::new(File::open(path).map_err(|e| Error::io("open", e, path.display().to_string()))?)
            }
        };
        let from = Cut::new(from, block_bytes);
        Ok(Some(Box::new(Counted { from, sum, look })))
    }
}

fn refused(path: &Path, what: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, "open", format!("{}: {what}", path.display()))
}

/// Blocks, summed up as they go by.
struct Counted<'a> {
    from: Cut<'a>,
    sum: &'a RefCell<Summing>,
    look: &'a dyn Fn(u64) -> Result<()>,
}

impl Blocks for Counted<'_> {
    fn next(&mut self, block: &mut Vec<u8>) -> Result<bool> {
        let more = self.from.next(block)?;
        let mut sum = self.sum.borrow_mut();
        sum.add(block);
        (self.look)(sum.1).map(|()| more)
    }
}

const PAGE: usize = 4096;

/// Data that compresses somewhat, of which no two pages are alike, and the same each time.
pub(in crate::commands::stream) struct Generated {
    piece: Vec<u8>,
    /// Offset within the piece.
    at: usize,
    page: u64,
    left: u64,
}

impl Generated {
    fn new(len: u64) -> Generated {
        let mut state = 0x9E37_79B9_7F4A_7C15u64;
        let word = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // Small and large numbers in turn.
            if state & 1 == 0 { state >> 48 } else { state }
        };
        let piece: Vec<u8> = std::iter::repeat_with(word).take(64 * PAGE / 8).flat_map(u64::to_le_bytes).collect();
        Generated { at: piece.len(), piece, page: 0, left: len }
    }

    /// The next bytes, up to a piece; none at the end.
    fn next(&mut self) -> &[u8] {
        if self.at == self.piece.len() {
            for bytes in self.piece.chunks_exact_mut(PAGE) {
                bytes[..8].copy_from_slice(&self.page.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
                self.page += 1;
            }
            self.at = 0;
        }
        let now = usize::try_from(self.left).unwrap_or(usize::MAX).min(self.piece.len() - self.at);
        self.left -= now as u64;
        self.at += now;
        &self.piece[self.at - now..self.at]
    }
}

impl Read for Generated {
    fn read(&mut self, target: &mut [u8]) -> std::io::Result<usize> {
        let next = self.next();
        let (len, n) = (next.len(), next.len().min(target.len()));
        target[..n].copy_from_slice(&next[..n]);
        // What was not taken stays.
        self.at -= len - n;
        self.left += (len - n) as u64;
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_read() {
        assert_eq!("generate:2M".parse(), Ok(Origin::Generate(2 << 20)));
        assert_eq!("tcp:localhost:80".parse(), Ok(Origin::Tcp("localhost:80".into())));
        assert_eq!("file:/a:b".parse(), Ok(Origin::File("/a:b".into())));
        assert_eq!("-".parse(), Ok(Origin::Input));
        for wrong in ["", "--", "generate:", "tcp:80", "file:", "nfs:x"] {
            assert!(wrong.parse::<Origin>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_generated_is_the_same_however_it_is_read() {
        let mut whole = Vec::new();
        Generated::new(700_001).read_to_end(&mut whole).unwrap();
        let (mut parts, mut made) = (Vec::new(), Generated::new(700_001));
        loop {
            let part = made.next();
            if part.is_empty() {
                break;
            }
            parts.extend_from_slice(part);
        }
        assert!(whole == parts && whole.len() == 700_001);
        let mut pieces = Vec::new();
        let mut made = Generated::new(700_001);
        let mut buffer = [0; 977];
        while let n @ 1.. = made.read(&mut buffer).unwrap() {
            pieces.extend_from_slice(&buffer[..n]);
        }
        assert!(whole == pieces);
    }
}
