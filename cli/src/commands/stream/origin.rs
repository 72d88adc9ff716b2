//! Where a stream comes from, and what must arrive at its end.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use datapipes::{Error, ErrorKind, FileMode, Result};
use datapipes_fabric::device::Function;
use serde::Serialize;

/// Where the bytes come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// So many bytes, made by a thread of this command and sent over TCP.
    Generate(u64),
    /// Whatever a listener sends until it closes.
    Tcp(String),
    /// A file.
    File(PathBuf),
}

impl FromStr for Origin {
    type Err = String;

    fn from_str(text: &str) -> Result<Origin, String> {
        match text.split_once(':') {
            Some(("generate", size)) => Ok(Origin::Generate(datapipes::parse_size(size).map_err(|e| e.to_string())?)),
            Some(("tcp", address)) if address.contains(':') => Ok(Origin::Tcp(address.into())),
            Some(("file", path)) if !path.is_empty() => Ok(Origin::File(path.into())),
            _ => Err("give generate:SIZE, tcp:HOST:PORT or file:PATH".into()),
        }
    }
}

/// Bytes, and their CRC-32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Sum {
    /// How many.
    pub(super) bytes: u64,
    /// CRC-32.
    pub(super) crc32: u32,
}

#[derive(Default)]
pub(super) struct Summing(crc32fast::Hasher, u64);

impl Summing {
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
        self.1 += bytes.len() as u64;
    }

    pub(super) fn sum(self) -> Sum {
        Sum { bytes: self.1, crc32: self.0.finalize() }
    }
}

/// An origin that was opened for one run.
pub(super) struct Opened {
    /// What the source device reads.
    pub(super) descriptor: OwnedFd,
    /// Who sends, and what it says that it sent; it begins when told to.
    pub(super) generator: Option<Generator>,
    /// Of the file that the stream becomes: what was private stays so.
    pub(super) mode: FileMode,
}

pub(super) struct Generator {
    go: Sender<()>,
    thread: JoinHandle<std::io::Result<Sum>>,
}

impl Generator {
    pub(super) fn begin(&self) {
        // A thread that ended already says why when it is joined.
        let _ = self.go.send(());
    }

    pub(super) fn sent(self) -> Result<Sum> {
        drop(self.go);
        let sent = self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        sent.map_err(|e| Error::io("send", &e, "the generator's connection"))
    }
}

impl Origin {
    pub(super) fn open(&self) -> Result<Opened> {
        match self {
            Origin::File(path) => {
                let file = File::open(path).map_err(|e| Error::io("open", &e, path.display().to_string()))?;
                let mode = file.metadata().map_or(FileMode::USUAL, |m| FileMode::like(m.permissions().mode()));
                // Several placements write the target one after the other.
                Ok(Opened { descriptor: file.into(), generator: None, mode: mode.and(FileMode::USUAL).and_owner() })
            }
            Origin::Tcp(address) => {
                let stream = TcpStream::connect(address).map_err(|e| Error::io("connect", &e, address.clone()))?;
                Ok(Opened { descriptor: stream.into(), generator: None, mode: FileMode::USUAL })
            }
            Origin::Generate(len) => {
                let io = |e: std::io::Error| Error::io("connect", &e, "the generator over TCP");
                let listener = TcpListener::bind("127.0.0.1:0").map_err(io)?;
                let mut sending = TcpStream::connect(listener.local_addr().map_err(io)?).map_err(io)?;
                let (arriving, _) = listener.accept().map_err(io)?;
                let (go, wait) = channel();
                let len = *len;
                let thread = datapipes::threads::spawn("generate", move || {
                    let mut sum = Summing::default();
                    if wait.recv().is_ok() {
                        generate(len, |part| {
                            sum.add(part);
                            sending.write_all(part)
                        })?;
                    }
                    Ok(sum.sum())
                })?;
                let generator = Some(Generator { go, thread });
                Ok(Opened { descriptor: arriving.into(), generator, mode: FileMode::USUAL })
            }
        }
    }

    /// Whether it can be an origin, without opening it: a named pipe would wait for its writer.
    pub(super) fn check(&self) -> Result<()> {
        let Origin::File(path) = self else { return Ok(()) };
        let meta = std::fs::metadata(path).map_err(|e| Error::io("open", &e, path.display().to_string()))?;
        if meta.is_file() || meta.file_type().is_block_device() {
            return Ok(());
        }
        let what = if meta.is_dir() { "a folder" } else { "neither a file nor a block device" };
        Err(Error::new(ErrorKind::InvalidInput, "open", format!("{}: {what}", path.display()))
            .advice("send what can be read only once by `tcp:`, or copy it to a file"))
    }

    /// How many bytes it has; 0 where nobody knows.
    pub(super) fn len(&self) -> u64 {
        match self {
            Origin::Generate(len) => *len,
            Origin::Tcp(_) => 0,
            Origin::File(path) => std::fs::metadata(path).map_or(0, |meta| meta.len()),
        }
    }

    /// What was sent and what must be on disk: the origin is read once more, and the functions are applied to it here, block by
    /// block. None where it cannot be read again. `look` is told of the bytes so far, and may end it.
    pub(super) fn replay(
        &self,
        block_bytes: usize,
        chain: &mut [Box<dyn Function>],
        mut look: impl FnMut(u64) -> Result<()>,
    ) -> Result<Option<(Sum, Sum)>> {
        let (mut sent, mut due) = (Summing::default(), Summing::default());
        let mut buffers = [Vec::new(), Vec::new()];
        let mut pass = |block: &[u8]| -> Result<()> {
            sent.add(block);
            due.add(through(chain, block, &mut buffers)?);
            look(sent.1)
        };
        match self {
            Origin::Tcp(_) => return Ok(None),
            Origin::File(path) => {
                let io = |e: std::io::Error| Error::io("read", &e, path.display().to_string());
                let mut file = File::open(path).map_err(io)?;
                let mut block = Vec::with_capacity(block_bytes);
                loop {
                    block.clear();
                    (&mut file).take(block_bytes as u64).read_to_end(&mut block).map_err(io)?;
                    if block.is_empty() {
                        break;
                    }
                    pass(&block)?;
                }
            }
            Origin::Generate(len) => {
                let mut block = Vec::with_capacity(block_bytes);
                generate(*len, |mut part| {
                    while !part.is_empty() {
                        let now = part.len().min(block_bytes - block.len());
                        block.extend_from_slice(&part[..now]);
                        part = &part[now..];
                        if block.len() == block_bytes {
                            pass(&block)?;
                            block.clear();
                        }
                    }
                    Ok::<(), Error>(())
                })?;
                if !block.is_empty() {
                    pass(&block)?;
                }
            }
        }
        for function in chain {
            function.finish();
        }
        Ok(Some((sent.sum(), due.sum())))
    }
}

/// A block after all functions.
fn through<'a>(
    chain: &mut [Box<dyn Function>],
    block: &'a [u8],
    [one, other]: &'a mut [Vec<u8>; 2],
) -> Result<&'a [u8]> {
    let (mut from, mut to, mut first) = (one, other, true);
    for function in chain {
        let input = if first { block } else { &from[..] };
        to.resize(most_bytes(input.len()).max(block.len() * 2), 0);
        let len = function.apply(input, to)?;
        to.truncate(len);
        std::mem::swap(&mut from, &mut to);
        first = false;
    }
    Ok(if first { block } else { from })
}

/// The longest that any function makes of so many bytes.
pub(super) fn most_bytes(len: usize) -> usize {
    len + len / 10 + super::bodies::FRAME_BYTES
}

const PAGE: usize = 4096;

/// Makes data that compresses somewhat, of which no two pages are alike, and the same each time.
fn generate<E>(len: u64, mut take: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let word = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // Small and large numbers in turn.
        if state & 1 == 0 { state >> 48 } else { state }
    };
    let mut piece: Vec<u8> = std::iter::repeat_with(word).take(64 * PAGE / 8).flat_map(u64::to_le_bytes).collect();
    let (mut left, mut page) = (len, 0u64);
    while left > 0 {
        for bytes in piece.chunks_exact_mut(PAGE) {
            bytes[..8].copy_from_slice(&page.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
            page += 1;
        }
        let now = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
        take(&piece[..now])?;
        left -= now as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_read() {
        assert_eq!("generate:2M".parse(), Ok(Origin::Generate(2 << 20)));
        assert_eq!("tcp:localhost:80".parse(), Ok(Origin::Tcp("localhost:80".into())));
        assert_eq!("file:/a:b".parse(), Ok(Origin::File("/a:b".into())));
        for wrong in ["", "generate:", "tcp:80", "file:", "nfs:x"] {
            assert!(wrong.parse::<Origin>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_replay_gives_what_the_functions_give() {
        let functions = super::super::bodies::functions();
        let function = |name| functions.function(name, &serde_json::Value::Null).unwrap();
        let origin = Origin::Generate(100_000);
        let (sent, due) = origin.replay(4096, &mut [], |_| Ok(())).unwrap().unwrap();
        assert_eq!((sent.bytes, sent), (100_000, due));
        let mut there_and_back = [function("sort-u64"), function("lz4-compress"), function("lz4-decompress")];
        let (again, sorted) = origin.replay(4096, &mut there_and_back, |_| Ok(())).unwrap().unwrap();
        assert_eq!((again, sorted.bytes), (sent, sent.bytes));
        assert_ne!(sorted.crc32, sent.crc32);
        let (_, smaller) = origin.replay(4096, &mut [function("lz4")], |_| Ok(())).unwrap().unwrap();
        assert!(smaller.bytes < sent.bytes, "{smaller:?}");
    }
}
