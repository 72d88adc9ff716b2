//! A storage device that serves files block by block: the device's side of [`file`](crate::file).
//!
//! Its n-th inlet and its n-th outlet belong to one client. Each client has a thread, so that a
//! client that does not take its blocks does not delay others. It also has its own state: the open
//! file, its mode, and the position of the next write.

use std::os::fd::OwnedFd;

use datapipes_core::threads;
use datapipes_core::{Error, ErrorKind, Result};

use super::sink::{sync, write_at};
use super::source::read_at;
use super::{Body, DeviceChannels};
use crate::channel::{BlockOutcome, Head, Patience, Reply, WORDS};
use crate::transport::{Block, Receiver, Sender};

/// The kinds of requests, in the first user word. This one opens a file.
pub(crate) const OPEN: u64 = 1;
/// Sends bytes at an offset to the client, which also reads sequentially by this: only the client
/// knows which of the blocks that it requested ahead it has taken.
pub(crate) const READ_AT: u64 = 2;
/// Takes the next block from the client.
pub(crate) const WRITE: u64 = 3;
/// Takes a block for an offset from the client.
pub(crate) const WRITE_AT: u64 = 4;
/// Completes what was written.
pub(crate) const COMMIT: u64 = 5;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
#[non_exhaustive]
pub enum Mode {
    /// For reading, sequentially from the start and at offsets.
    Read = 0,
    /// For writing, sequentially from the start and at offsets, with a commit.
    Write = 1,
    /// For reading and writing.
    ReadWrite = 2,
}

impl Mode {
    fn of(word: u64) -> Option<Mode> {
        [Mode::Read, Mode::Write, Mode::ReadWrite].into_iter().find(|mode| *mode as u64 == word)
    }

    pub(crate) fn reads(self) -> bool {
        self != Mode::Write
    }

    pub(crate) fn writes(self) -> bool {
        self != Mode::Read
    }
}

pub(super) struct Files {
    given: Vec<OwnedFd>,
}

/// A client, and the file that it has open.
struct Client<'a> {
    given: &'a [OwnedFd],
    open: Option<Open>,
    blocks: Option<Sender>,
}

#[derive(Clone, Copy)]
struct Open {
    file: usize,
    mode: Mode,
    /// The position of the next sequential write.
    at: u64,
    /// The end of the written bytes.
    written: u64,
}

impl Files {
    pub(super) fn new(given: Vec<OwnedFd>) -> Files {
        Files { given }
    }
}

/// The failure of a request.
enum Failed {
    /// Only the request failed. The client is told, whatever the file or the request was.
    Request(Error),
    /// The client's channel ended, so nobody can be told.
    Channel(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed::Request(error)
    }
}

impl Failed {
    /// Classifies an error of sending a block. A file can cause the same kinds of errors.
    fn by_sending(error: Error) -> Failed {
        match error.kind() {
            ErrorKind::PermissionDenied | ErrorKind::Unavailable => Failed::Channel(error),
            _ => Failed::Request(error),
        }
    }
}

fn wrong(what: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, "serve a file", what)
}

impl Client<'_> {
    /// Serves requests until the client closes.
    fn serve(mut self, mut requests: Receiver) -> Result<()> {
        requests.set_patience(Patience::UNTIL_ENDED);
        loop {
            let block = match requests.receive() {
                Ok(block) => block,
                Err(e) if e.kind() == ErrorKind::EndOfFile => return Ok(()),
                Err(e) => return Err(e),
            };
            let words = block.head().words;
            let reply = match self.request(&block, words) {
                Ok(word) => Reply { outcome: BlockOutcome::Done, word },
                Err(Failed::Channel(e)) => return Err(e),
                Err(Failed::Request(e)) => Reply { outcome: BlockOutcome::of_error(&e), word: 0 },
            };
            block.reply(reply)?;
        }
    }

    /// Executes a request. Returns the word of the reply.
    fn request(&mut self, block: &Block, words: [u64; WORDS]) -> Result<u64, Failed> {
        Ok(match words[0] {
            OPEN => self.open(words)?,
            // The result of a read is reported with the block, in its order among the others.
            READ_AT => self.read(words)?,
            WRITE | WRITE_AT => self.write(block, words)?,
            COMMIT => self.commit()?,
            _ => return Err(wrong("an unknown request").into()),
        })
    }

    fn open(&mut self, words: [u64; WORDS]) -> Result<u64> {
        let missing = || Error::new(ErrorKind::NotFound, "serve a file", format!("file {}", words[1]));
        let file = usize::try_from(words[1]).ok().filter(|file| *file < self.given.len()).ok_or_else(missing)?;
        let mode = Mode::of(words[2]).ok_or_else(|| wrong("an unknown mode"))?;
        let stat = rustix::fs::fstat(&self.given[file]);
        let len = stat.map_err(|e| Error::os("serve a file", e.raw_os_error(), "its length"))?.st_size;
        self.open = Some(Open { file, mode, at: 0, written: 0 });
        Ok(u64::try_from(len).unwrap_or(0))
    }

    fn opened(&self, may: fn(Mode) -> bool) -> Result<Open> {
        let open = self.open.ok_or_else(|| wrong("no file is open"))?;
        if may(open.mode) { Ok(open) } else { Err(wrong("the mode of the file does not allow this request")) }
    }

    /// Sends the bytes, or reports that they cannot be read.
    fn read(&mut self, words: [u64; WORDS]) -> Result<u64, Failed> {
        let opened = self.opened(Mode::reads);
        let given = self.given;
        let out = self.blocks.as_mut().ok_or_else(|| wrong("the client has no channel for blocks"))?;
        let most = out.shape().block_bytes;
        let mut grant = out.grant().map_err(Failed::by_sending)?;
        let from = opened.and_then(|open| {
            let (at, len) = (words[1], usize::try_from(words[2]).unwrap_or(usize::MAX));
            if len > most || end_of(at, len).is_none() {
                return Err(Error::new(ErrorKind::OutOfRange, "serve a file", format!("{len} bytes at {at}")));
            }
            read_at(&given[open.file], &mut grant.bytes()[..len], at)
        });
        match from {
            Ok(got) => {
                let head = Head { words: [words[1], 0, 0, 0], end: false };
                grant.send(got, head).map_err(Failed::by_sending)?;
                Ok(got as u64)
            }
            Err(e) => {
                let outcome = u64::from(BlockOutcome::of_error(&e).code());
                let head = Head { words: [words[1], outcome, 0, 0], end: false };
                grant.send(0, head).map_err(Failed::by_sending)?;
                Ok(0)
            }
        }
    }

    fn write(&mut self, block: &Block, words: [u64; WORDS]) -> Result<u64> {
        let open = self.opened(Mode::writes)?;
        let at = if words[0] == WRITE { open.at } else { words[1] };
        let out_of_range =
            || Error::new(ErrorKind::OutOfRange, "serve a file", format!("{} bytes at {at}", block.len()));
        let end = end_of(at, block.len()).ok_or_else(out_of_range)?;
        write_at(&self.given[open.file], block, at)?;
        if let Some(open) = &mut self.open {
            if words[0] == WRITE {
                open.at = end;
            }
            open.written = open.written.max(end);
        }
        Ok(end)
    }

    fn commit(&mut self) -> Result<u64> {
        let open = self.opened(Mode::writes)?;
        sync(&self.given[open.file], 0, open.written)?;
        self.open = None;
        Ok(open.written)
    }
}

/// Prepares the end to a client that may drop unwanted blocks: that is not a failure of the next
/// one.
fn unmoved(mut blocks: Sender) -> Sender {
    blocks.relay_failures();
    blocks
}

/// The end offset of `len` bytes at `at`, if a file can have one.
fn end_of(at: u64, len: usize) -> Option<u64> {
    at.checked_add(len as u64).filter(|end| i64::try_from(*end).is_ok())
}

impl Body for Files {
    /// Answers a failed request with its failure, and serves the next one. The end of a client's
    /// channel does not affect other clients.
    fn run(&mut self, stage: &mut DeviceChannels<'_>) -> Result<()> {
        let requests: Vec<Receiver> = stage.inlets.drain(..).flatten().collect();
        let mut blocks = stage.outlets.drain(..);
        let given = &self.given[..];
        let mut clients: Vec<_> = requests
            .into_iter()
            .map(|requests| (Client { given, open: None, blocks: blocks.next().map(unmoved) }, requests))
            .collect();
        // This thread serves the last client, so that one client needs no other thread.
        let Some((last, its_requests)) = clients.pop() else { return Err(wrong("without clients")) };
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            let mut outcome = Ok(());
            for (client, requests) in clients {
                match threads::spawn_scoped(scope, "serve", move || client.serve(requests)) {
                    Ok(thread) => threads.push(thread),
                    // The client's ends are dropped with it, so the client learns it at once.
                    Err(e) => outcome = Err(e.within("a client of a file")),
                }
            }
            let mut outcome = outcome.and(last.serve(its_requests));
            for thread in threads {
                let panicked = |_| Err(Error::new(ErrorKind::System, "serve a file", "a thread panicked"));
                outcome = outcome.and(thread.join().unwrap_or_else(panicked));
            }
            outcome
        })
    }
}
