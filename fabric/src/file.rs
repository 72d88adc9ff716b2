//! Files block by block over data channels: open, next-in, next-out, commit (the *File Protocol* of section 3.1.4).
//!
//! The storage device has the files as descriptors, by number; names stay with the application. A file to be written is a
//! [`Draft`]: it has no name until the device has made it durable and the application gives it one, so that nothing half-written
//! is ever seen under a name, whoever dies when.

use datapipes_core::{Draft, Error, ErrorKind, Result};

use crate::channel::{Head, Reply};
pub use crate::device::Mode;
use crate::device::{COMMIT, OPEN, READ, WRITE};
use crate::transport::{Block, Grant, Receiver, Sender};

/// The client of a storage device: its requests and blocks go one way, the device's blocks come the other.
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
        self.ended = mode == Mode::Write;
        Ok(word)
    }

    /// The next block of a file that is open for reading; None at its end. The device reads ahead as far as there are credits.
    ///
    /// # Errors
    /// What the device met; what ended a channel.
    pub fn next_in(&mut self) -> Result<Option<Block>> {
        let most = self.blocks.shape().credits.min(self.requests.shape().credits);
        while !self.ended && self.asked < most {
            self.requests.send(&[], Head { words: [READ, 0, 0, 0], end: false })?;
            self.asked += 1;
        }
        if self.asked == 0 {
            return Ok(None);
        }
        let block = self.blocks.receive()?;
        self.asked -= 1;
        if block.head().end {
            self.ended = true;
            block.done()?;
            self.forget()?;
            return Ok(None);
        }
        Ok(Some(block))
    }

    /// Memory of the device for the next block of a file that is open for writing; to be sent by [`NextOut::send`].
    ///
    /// # Errors
    /// `NoSpace`, `Device`: what the device met with earlier blocks; what ended a channel.
    pub fn next_out(&mut self) -> Result<NextOut<'_>> {
        Ok(NextOut(self.requests.grant()?))
    }

    /// Waits until all blocks are written and durable; the file's length.
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
    pub fn publish(&mut self, draft: Draft) -> Result<u64> {
        let len = self.commit()?;
        draft.publish(len)?;
        Ok(len)
    }

    /// Sends a request and waits for the reply to it, all others before it included. It is the end of a stream to whoever
    /// relays it, so that the device's own reply comes back.
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

/// Memory of a storage device, for the next block of a file.
pub struct NextOut<'a>(Grant<'a>);

impl NextOut<'_> {
    /// The bytes, as long as a block is.
    pub fn bytes(&mut self) -> &mut [u8] {
        self.0.bytes()
    }

    /// Sends the first `len` bytes.
    ///
    /// # Errors
    /// `InvalidInput` for none; `OutOfRange` for more than a block has; what ended the channel.
    pub fn send(self, len: usize) -> Result<()> {
        if len == 0 {
            return Err(Error::new(ErrorKind::InvalidInput, "send", "an empty block of a file"));
        }
        self.0.send(len, Head { words: [WRITE, 0, 0, 0], end: false })
    }
}
