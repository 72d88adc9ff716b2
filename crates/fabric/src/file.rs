//! Files block by block over data channels: open, next-in, next-out, commit (the *File Protocol* of
//! section 3.1.4), and reads and writes at offsets.
//!
//! One storage device serves many clients. The n-th client has the n-th channel to the device and
//! the n-th one back. An open file of one client, or blocks that it does not take, do not affect
//! others.
//!
//! The storage device has the files as descriptors, by number. Names stay with the application. A
//! file to be written is an [`AtomicFile`]: it has no name until the device has made it durable and
//! the application names it. So no half-written file is ever seen under a name, whichever process
//! dies.

use std::collections::VecDeque;

use datapipes_core::{AtomicFile, Error, ErrorKind, Result};

use crate::channel::{BlockOutcome, Head, Reply};
pub use crate::device::Mode;
use crate::device::{COMMIT, OPEN, READ_AT, WRITE, WRITE_AT};
use crate::transport::{Block, Grant, Receiver, Sender};

/// The client of a storage device. Its requests and blocks go one way, the device's blocks come
/// back the other way.
pub struct FileClient {
    requests: Sender,
    blocks: Receiver,
    /// The pieces that were requested and have not arrived, in order.
    asked: VecDeque<Piece>,
    /// The offset of the next sequential block.
    next: u64,
    /// Whether the requested pieces are the next sequential blocks, with all that was written.
    ahead: bool,
    ended: bool,
}

impl FileClient {
    /// Makes a client over a channel to the device and one back.
    pub fn new(requests: Sender, blocks: Receiver) -> FileClient {
        FileClient { requests, blocks, asked: VecDeque::new(), next: 0, ahead: false, ended: true }
    }

    /// Opens the file with this number. Returns its length in bytes.
    ///
    /// # Errors
    /// `Device` where the device has no such file, and any error that ended a channel.
    pub fn open(&mut self, file: u64, mode: Mode) -> Result<u64> {
        self.forget()?;
        let word = self.call([OPEN, file, mode as u64, 0])?.word;
        (self.next, self.ended) = (0, !mode.reads());
        Ok(word)
    }

    /// Returns the next block of a file that is open for reading, or None at its end. Blocks are
    /// requested ahead as far as there are credits. Reads at offsets, and writes, do not move the
    /// position of the next block, and it has what this client wrote before.
    ///
    /// # Errors
    /// Errors of the device, and any error that ended a channel. The next call asks for the same
    /// block again.
    pub fn next_in(&mut self) -> Result<Option<Block>> {
        if self.ended {
            return Ok(None);
        }
        if !self.ahead {
            self.forget()?;
            self.ahead = true;
        }
        let (most, len) = (self.most_asked(), self.blocks.shape().block_bytes);
        while self.asked.len() < most {
            let at = self.next.saturating_add((self.asked.len() * len) as u64);
            self.ask_at(Piece { at, len })?;
        }
        let block = self.piece().inspect_err(|_| self.ahead = false)?;
        // A short block is the end of the file, unless the file grows.
        self.ahead = block.len() == len;
        self.next = self.next.saturating_add(block.len() as u64);
        if !block.is_empty() {
            return Ok(Some(block));
        }
        self.ended = true;
        block.done()?;
        self.forget()?;
        Ok(None)
    }

    /// Reads at an offset of a file that is open for reading: as many bytes as exist, up to `len`,
    /// which must not exceed a block.
    ///
    /// # Errors
    /// `OutOfRange` for more than a block holds, errors of the device, and any error that ended a
    /// channel.
    pub fn read_at(&mut self, at: u64, len: usize) -> Result<Block> {
        self.forget()?;
        self.ask_at(Piece { at, len })?;
        self.piece()
    }

    /// As [`read_at`](Self::read_at) for many pieces, of which as many are requested ahead as there
    /// are credits. `each` is called with the index of a piece and its bytes, in the order of the
    /// pieces.
    ///
    /// # Errors
    /// Those of [`read_at`](Self::read_at), and the first error of `each`. Pieces after it are not
    /// read.
    pub fn read_each(&mut self, pieces: &[Piece], mut each: impl FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        self.forget()?;
        let (most, mut asked) = (self.most_asked(), 0);
        for at in 0..pieces.len() {
            while asked < pieces.len() && self.asked.len() < most {
                self.ask_at(pieces[asked])?;
                asked += 1;
            }
            let block = self.piece()?;
            each(at, &block)?;
            block.done()?;
        }
        Ok(())
    }

    fn ask_at(&mut self, piece: Piece) -> Result<()> {
        let most = self.blocks.shape().block_bytes;
        if piece.len > most {
            let context = format!("{} bytes at {}, where a block has {most}", piece.len, piece.at);
            return Err(Error::new(ErrorKind::OutOfRange, "read", context));
        }
        let words = [READ_AT, piece.at, piece.len as u64, 0];
        self.requests.send(&[], Head { words, end: false })?;
        self.asked.push_back(piece);
        Ok(())
    }

    /// Returns the reply to the oldest request, which has no more bytes than were asked for.
    fn piece(&mut self) -> Result<Block> {
        let block = self.blocks.receive()?;
        let Some(Piece { at, len }) = self.asked.pop_front() else {
            return Err(Error::new(ErrorKind::Corrupt, "read", "a block that was not asked for"));
        };
        let words = block.head().words;
        if let Err(e) = told(words[1]) {
            block.done()?;
            return Err(e);
        }
        if words[0] != at {
            let context = format!("bytes at {} where those at {at} were asked for", words[0]);
            return Err(Error::new(ErrorKind::Corrupt, "read", context));
        }
        if block.len() > len {
            let context = format!("{} bytes at {at} where {len} were asked for", block.len());
            return Err(Error::new(ErrorKind::Corrupt, "read", context));
        }
        Ok(block)
    }

    fn most_asked(&self) -> usize {
        self.blocks.shape().credits.min(self.requests.shape().credits) as usize
    }

    /// Returns memory of the device for the next block of a file that is open for writing.
    /// [`NextOut::send`] sends it.
    ///
    /// # Errors
    /// `NoSpace` or `Device` for errors with earlier blocks, and any error that ended a channel.
    pub fn next_out(&mut self) -> Result<NextOut<'_>> {
        self.ahead = false;
        Ok(NextOut { grant: self.requests.grant()?, words: [WRITE, 0, 0, 0] })
    }

    /// As [`next_out`](Self::next_out), for bytes at an offset. Gaps before the end of the file are
    /// zeros.
    ///
    /// # Errors
    /// As [`next_out`](Self::next_out).
    pub fn out_at(&mut self, at: u64) -> Result<NextOut<'_>> {
        self.ahead = false;
        Ok(NextOut { grant: self.requests.grant()?, words: [WRITE_AT, at, 0, 0] })
    }

    /// Waits until all blocks are written and durable. Returns the end of the last one, or the
    /// file's length if there was none.
    ///
    /// # Errors
    /// `NoSpace` or `Device` for errors of the device, and any error that ended a channel.
    pub fn commit(&mut self) -> Result<u64> {
        Ok(self.call([COMMIT, 0, 0, 0])?.word)
    }

    /// Commits, and names the file: before that no file is visible, afterwards all of it is.
    ///
    /// # Errors
    /// Those of [`commit`](Self::commit), and errors of naming it. Nothing of the file is left
    /// then.
    pub fn publish(&mut self, draft: AtomicFile) -> Result<u64> {
        let len = self.commit()?;
        draft.publish(len)?;
        Ok(len)
    }

    /// Sends a request and waits for its reply, and for all replies before it. For a relay it is
    /// the end of a stream, so that the device's own reply comes back.
    fn call(&mut self, words: [u64; 4]) -> Result<Reply> {
        self.requests.drain()?;
        self.requests.finish(words)
    }

    /// Discards blocks that were requested ahead and are not wanted.
    fn forget(&mut self) -> Result<()> {
        self.ahead = false;
        while !self.asked.is_empty() {
            self.blocks.receive()?.done()?;
            self.asked.pop_front();
        }
        self.requests.drain().map(|_| ())
    }
}

/// A range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The offset of the first byte.
    pub at: u64,
    /// The number of bytes.
    pub len: usize,
}

/// The result of a read, as the device reported it.
fn told(outcome: u64) -> Result<()> {
    let outcome = BlockOutcome::of(u32::try_from(outcome).unwrap_or(u32::MAX));
    if outcome == BlockOutcome::Done {
        return Ok(());
    }
    let error = Error::new(ErrorKind::Device, "read", format!("the storage device could not read: {outcome:?}"));
    Err(error.with_advice("check that the offset is valid and the file is open for reading"))
}

/// Memory of a storage device for a block of a file.
pub struct NextOut<'a> {
    grant: Grant<'a>,
    words: [u64; 4],
}

impl NextOut<'_> {
    /// The bytes of the block, with its full length.
    pub fn bytes(&mut self) -> &mut [u8] {
        self.grant.bytes()
    }

    /// Sends the first `len` bytes.
    ///
    /// # Errors
    /// `InvalidInput` for `len` 0, `OutOfRange` for more than a block holds, and any error that
    /// ended the channel.
    pub fn send(self, len: usize) -> Result<()> {
        if len == 0 {
            return Err(Error::new(ErrorKind::InvalidInput, "send", "an empty block of a file"));
        }
        self.grant.send(len, Head { words: self.words, end: false })
    }
}
