//! A storage device that serves files block by block: the device's side of [`file`](crate::file).

use std::os::fd::OwnedFd;

use datapipes_core::{Error, ErrorKind, Result};

use super::sink::{sync, write_at};
use super::source::read_at;
use super::{Body, Stage};
use crate::channel::{Head, Outcome, Reply, WORDS};
use crate::transport::Block;

/// What the first user word of a request says.
pub(crate) const OPEN: u64 = 1;
/// The next block to the client.
pub(crate) const READ: u64 = 2;
/// The next block from the client.
pub(crate) const WRITE: u64 = 3;
/// What was written is complete.
pub(crate) const COMMIT: u64 = 4;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Mode {
    /// From its start, block by block.
    Read = 0,
    /// From its start, to be committed.
    Write = 1,
}

pub(super) struct Files {
    given: Vec<OwnedFd>,
    open: Option<Open>,
}

struct Open {
    file: usize,
    mode: Mode,
    at: u64,
}

impl Files {
    pub(super) fn new(given: Vec<OwnedFd>) -> Files {
        Files { given, open: None }
    }

    /// Does what a request asks; the reply's word.
    fn serve(&mut self, block: &Block, stage: &mut Stage<'_>) -> Result<u64> {
        let wrong = |what: &str| Error::new(ErrorKind::InvalidInput, "serve a file", what);
        let words = block.head().words;
        if words[0] == OPEN {
            return self.open(words);
        }
        let open = self.open.as_mut().ok_or_else(|| wrong("none is open"))?;
        let file = &self.given[open.file];
        match (words[0], open.mode) {
            (READ, Mode::Read) => {
                let at = open.at;
                let sent = stage.outlets.first_mut().ok_or_else(|| wrong("nobody to read it"))?;
                let mut grant = sent.grant()?;
                let got = read_at(file, grant.bytes(), at)?;
                open.at += got as u64;
                grant.send(got, Head { words: [at, 0, 0, 0], end: got == 0 })?;
                Ok(got as u64)
            }
            (WRITE, Mode::Write) => {
                write_at(file, block, open.at)?;
                open.at += block.len() as u64;
                Ok(open.at)
            }
            (COMMIT, Mode::Write) => {
                sync(file)?;
                let len = open.at;
                self.open = None;
                Ok(len)
            }
            _ => Err(wrong("a request that its mode does not know")),
        }
    }

    fn open(&mut self, words: [u64; WORDS]) -> Result<u64> {
        let missing = || Error::new(ErrorKind::NotFound, "serve a file", format!("file {}", words[1]));
        let file = usize::try_from(words[1]).ok().filter(|file| *file < self.given.len()).ok_or_else(missing)?;
        let mode = if words[2] == Mode::Write as u64 { Mode::Write } else { Mode::Read };
        let stat = rustix::fs::fstat(&self.given[file]);
        let len = stat.map_err(|e| Error::os("serve a file", e.raw_os_error(), "its length"))?.st_size;
        self.open = Some(Open { file, mode, at: 0 });
        Ok(u64::try_from(len).unwrap_or(0))
    }
}

impl Body for Files {
    /// A request that fails is answered with its failure, and the next one is served.
    fn run(&mut self, stage: &mut Stage<'_>) -> Result<()> {
        while let Some(block) = stage.receive()? {
            let reply = match self.serve(&block, stage) {
                Ok(word) => Reply { outcome: Outcome::Done, word },
                Err(e) if matches!(e.kind(), ErrorKind::PermissionDenied | ErrorKind::Unavailable) => return Err(e),
                Err(e) => Reply { outcome: Outcome::of_error(&e), word: 0 },
            };
            block.reply(reply)?;
        }
        Ok(())
    }
}
