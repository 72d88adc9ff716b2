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

use datapipes_core::{AtomicFile, Error, ErrorKind, Result};

use crate::channel::{BlockOutcome, Head, Reply};
pub use crate::device::Mode;
use crate::device::{COMMIT, OPEN, READ, READ_AT, WRITE, WRITE_AT};
use crate::transport::{Block, Grant, Receiver, Sender};

/// The client of a storage device. Its requests and blocks go one way, the device's blocks come
/// back the other way.
pub struct FileClient {
    requests: Sender,
    blocks: Receiver,
    /// Blocks that were requested and have not arrived.
    asked: u32,
    ended: bool,
}

impl FileClient {
    /// Makes a client over a channel to the device and one back.
    pub fn new(requests: Sender, blocks: Receiver) -> FileClient {
        FileClient { requests, blocks, asked: 0, ended: true }
    }

    /// Opens the file with this number. Returns its length in bytes.
    ///
    /// # Errors
    /// `Device` where the device has no such file, and any error that ended a channel.
    pub fn open(&mut self, file: u64, mode: Mode) -> Result<u64> {
        self.forget()?;
        let word = self.call([OPEN, file, mode as u64, 0])?.word;
        self.ended = !mode.reads();
        Ok(word)
    }

    /// Returns the next block of a file that is open for reading, or None at its end. The device
    /// reads ahead as far as there are credits.
    ///
    /// # Errors
    /// Errors of the device, and any error that ended a channel.
    pub fn next_in(&mut self) -> Result<Option<Block>> {
        let most = self.most_asked();
        while !self.ended && self.asked < most {
            self.requests.send(&[], Head { words: [READ, 0, 0, 0], end: false })?;
            self.asked += 1;
        }
        if self.asked == 0 {
            return Ok(None);
        }
        let block = self.answer()?;
        if block.head().end {
            self.ended = true;
            let outcome = block.head().words[1];
            block.done()?;
            self.forget()?;
            return told(outcome).map(|()| None);
        }
        Ok(Some(block))
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
        self.piece(at)
    }

    /// As [`read_at`](Self::read_at) for many pieces, of which as many are requested ahead as there
    /// are credits. `each` is called with the index of a piece and its bytes, in the order of the
    /// pieces.
    /// # Errors
    /// Those of [`read_at`](Self::read_at), and the first error of `each`. Pieces after it are not
    /// read.
    pub fn read_each(&mut self, pieces: &[Piece], mut each: impl FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        self.forget()?;
        let (most, mut asked) = (self.most_asked(), 0);
        for (at, piece) in pieces.iter().enumerate() {
            while asked < pieces.len() && self.asked < most {
                self.ask_at(pieces[asked])?;
                asked += 1;
            }
            let block = self.piece(piece.at)?;
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
        self.asked += 1;
        Ok(())
    }

    /// Returns the reply to the oldest read at an offset.
    fn piece(&mut self, at: u64) -> Result<Block> {
        let block = self.answer()?;
        let words = block.head().words;
        if let Err(e) = told(words[1]) {
            block.done()?;
            return Err(e);
        }
        if words[0] != at {
            let context = format!("bytes at {} where those at {at} were asked for", words[0]);
            return Err(Error::new(ErrorKind::Corrupt, "read", context));
        }
        Ok(block)
    }

    fn answer(&mut self) -> Result<Block> {
        let block = self.blocks.receive()?;
        self.asked -= 1;
        Ok(block)
    }

    fn most_asked(&self) -> u32 {
        self.blocks.shape().credits.min(self.requests.shape().credits)
    }

    /// Returns memory of the device for the next block of a file that is open for writing.
    /// [`NextOut::send`] sends it.
    ///
    /// # Errors
    /// `NoSpace` or `Device` for errors with earlier blocks, and any error that ended a channel.
    pub fn next_out(&mut self) -> Result<NextOut<'_>> {
        Ok(NextOut { grant: self.requests.grant()?, words: [WRITE, 0, 0, 0] })
    }

    /// As [`next_out`](Self::next_out), for bytes at an offset. Gaps before the end of the file are
    /// zeros.
    ///
    /// # Errors
    /// As [`next_out`](Self::next_out).
    pub fn out_at(&mut self, at: u64) -> Result<NextOut<'_>> {
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
        while self.asked > 0 {
            self.blocks.receive()?.done()?;
            self.asked -= 1;
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
