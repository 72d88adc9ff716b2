//! Files block by block over data channels: open, next-in, next-out, commit (the *File Protocol* of
//! section 3.1.4), and reads and writes at offsets.
//!
//! One storage device serves many clients: each has a channel to it and one back, the n-th of each,
//! and what one has open, or does not take, is no matter to the others.
//!
//! The storage device has the files as descriptors, by number; names stay with the application. A
//! file to be written is a
//! [`AtomicFile`]: it has no name until the device has made it durable and the application gives it one, so that nothing half-written
//! is ever seen under a name, whoever dies when.

use datapipes_core::{AtomicFile, Error, ErrorKind, Result};

use crate::channel::{BlockOutcome, Head, Reply};
pub use crate::device::Mode;
use crate::device::{COMMIT, OPEN, READ, READ_AT, WRITE, WRITE_AT};
use crate::transport::{Block, Grant, Receiver, Sender};

/// The client of a storage device: its requests and blocks go one way, the device's blocks come the
/// other.
pub struct FileClient {
    requests: Sender,
    blocks: Receiver,
    /// Blocks asked for that have not come.
    asked: u32,
    ended: bool,
}

impl FileClient {
    /// Over a channel to the device and one back.
    pub fn new(requests: Sender, blocks: Receiver) -> FileClient {
        FileClient { requests, blocks, asked: 0, ended: true }
    }

    /// Opens the file of that number; its length in bytes.
    ///
    /// # Errors
    /// `Device` where the device has no such file; what ended a channel.
    pub fn open(&mut self, file: u64, mode: Mode) -> Result<u64> {
        self.forget()?;
        let word = self.call([OPEN, file, mode as u64, 0])?.word;
        self.ended = !mode.reads();
        Ok(word)
    }

    /// The next block of a file that is open for reading; None at its end. The device reads ahead
    /// as far as there are credits.
    ///
    /// # Errors
    /// What the device met; what ended a channel.
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

    /// The bytes from an offset on, of a file that is open for reading: as many as are there, up to
    /// `len`, which no block may be longer than.
    ///
    /// # Errors
    /// `OutOfRange` for more than a block has; what the device met; what ended a channel.
    pub fn read_at(&mut self, at: u64, len: usize) -> Result<Block> {
        self.forget()?;
        self.ask_at(Piece { at, len })?;
        self.piece(at)
    }

    /// The same for many pieces, of which as many are asked for ahead as there are credits. `each`
    /// is called with the position of a piece and its bytes, in the order of the pieces.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at), and the first error of `each`: pieces after it are not read.
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

    /// The answer to the oldest of the reads at offsets.
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

    /// Memory of the device for the next block of a file that is open for writing; to be sent by
    /// [`NextOut::send`].
    ///
    /// # Errors
    /// `NoSpace`, `Device`: what the device met with earlier blocks; what ended a channel.
    pub fn next_out(&mut self) -> Result<NextOut<'_>> {
        Ok(NextOut { grant: self.requests.grant()?, words: [WRITE, 0, 0, 0] })
    }

    /// The same for bytes at an offset. What is written nowhere before the end of the file is
    /// zeros.
    ///
    /// # Errors
    /// As [`next_out`](Self::next_out).
    pub fn out_at(&mut self, at: u64) -> Result<NextOut<'_>> {
        Ok(NextOut { grant: self.requests.grant()?, words: [WRITE_AT, at, 0, 0] })
    }

    /// Waits until all blocks are written and durable; where the last of them ends, which is the
    /// file's length where it had none.
    ///
    /// # Errors
    /// `NoSpace`, `Device`: what the device met; what ended a channel.
    pub fn commit(&mut self) -> Result<u64> {
        Ok(self.call([COMMIT, 0, 0, 0])?.word)
    }

    /// Commits, and gives the file its name: before that nothing is there, after it all of it.
    ///
    /// # Errors
    /// As [`commit`](Self::commit); what naming it meets. Nothing of it is left then.
    pub fn publish(&mut self, draft: AtomicFile) -> Result<u64> {
        let len = self.commit()?;
        draft.publish(len)?;
        Ok(len)
    }

    /// Sends a request and waits for the reply to it, all others before it included. It is the end
    /// of a stream to whoever relays it, so that the device's own reply comes back.
    fn call(&mut self, words: [u64; 4]) -> Result<Reply> {
        self.requests.drain()?;
        self.requests.finish(words)
    }

    /// Takes what was asked for ahead and is not wanted.
    fn forget(&mut self) -> Result<()> {
        while self.asked > 0 {
            self.blocks.receive()?.done()?;
            self.asked -= 1;
        }
        self.requests.drain().map(|_| ())
    }
}

/// Bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// From where on.
    pub at: u64,
    /// How many.
    pub len: usize,
}

/// What a device said of a read.
fn told(outcome: u64) -> Result<()> {
    let outcome = BlockOutcome::of(u32::try_from(outcome).unwrap_or(u32::MAX));
    if outcome == BlockOutcome::Done {
        return Ok(());
    }
    let error = Error::new(ErrorKind::Device, "read", format!("the storage device could not read: {outcome:?}"));
    Err(error.advice("is the offset within what a file can have, and the file open for reading?"))
}

/// Memory of a storage device, for a block of a file.
pub struct NextOut<'a> {
    grant: Grant<'a>,
    words: [u64; 4],
}

impl NextOut<'_> {
    /// The bytes, as long as a block is.
    pub fn bytes(&mut self) -> &mut [u8] {
        self.grant.bytes()
    }

    /// Sends the first `len` bytes.
    ///
    /// # Errors
    /// `InvalidInput` for none; `OutOfRange` for more than a block has; what ended the channel.
    pub fn send(self, len: usize) -> Result<()> {
        if len == 0 {
            return Err(Error::new(ErrorKind::InvalidInput, "send", "an empty block of a file"));
        }
        self.grant.send(len, Head { words: self.words, end: false })
    }
}
