//! The two ends of a channel, over whatever transport.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;
use std::sync::OnceLock;

use datapipes_core::process::OwningProcess;
use datapipes_core::{Error, ErrorKind, Result};

use super::{Back, Inlet, Outlet, Returned};
use crate::channel::memory::{InPlace, There};
use crate::channel::{BlockOutcome, ChannelShape, Head, Patience, Reply, WORDS};
use crate::sync::{Mutex, lock};

/// The end that sends.
///
/// A reply that tells a failure is returned by the next call, once. The end belongs to the process
/// that took it: in a child made by `fork` its calls fail (`Forked`), and dropping it there tells
/// the other side nothing.
pub struct Sender {
    outlet: Box<dyn Outlet>,
    patience: Patience,
    replies: VecDeque<Returned>,
    failure: Option<Reply>,
    /// Failures that replies tell are no errors of calls: who relays passes them on.
    relaying: bool,
    blocks: u64,
    bytes: u64,
    owner: OwningProcess,
}

impl Sender {
    /// An end over a transport.
    pub fn new(outlet: Box<dyn Outlet>) -> Sender {
        Sender {
            outlet,
            patience: Patience::default(),
            replies: VecDeque::new(),
            failure: None,
            relaying: false,
            blocks: 0,
            bytes: 0,
            owner: OwningProcess::here(),
        }
    }

    /// How long calls wait for credits and replies.
    #[must_use]
    pub fn with_patience(mut self, patience: Patience) -> Sender {
        self.patience = patience;
        self
    }

    /// Sets how long calls wait from now on.
    pub fn set_patience(&mut self, patience: Patience) {
        self.patience = patience;
    }

    /// How large the channel is.
    pub fn shape(&self) -> ChannelShape {
        self.outlet.shape()
    }

    /// Blocks sent and not replied to.
    pub fn outstanding(&self) -> u32 {
        self.outlet.outstanding()
    }

    /// Blocks and bytes sent so far.
    pub fn sent(&self) -> (u64, u64) {
        (self.blocks, self.bytes)
    }

    /// Waits for a credit: memory of one block, to be filled and sent. Dropped, the credit stays
    /// for the next.
    ///
    /// # Errors
    /// `Busy` when patience ends; the failure that a reply told; what ended the channel.
    pub fn grant(&mut self) -> Result<Grant<'_>> {
        let slot = self.credit()?;
        Ok(Grant { sender: self, slot: Some(slot) })
    }

    /// Sends a copy of `bytes`: they are in the receiver's memory, or over a socket on their way
    /// there, when this returns. A socket that takes part of a block before patience ends gets the
    /// rest with the next call of this end.
    ///
    /// # Errors
    /// `OutOfRange` for more bytes than a block has; as [`grant`](Self::grant). Nothing was sent
    /// then.
    pub fn send(&mut self, bytes: &[u8], head: Head) -> Result<()> {
        self.fits(bytes.len())?;
        let slot = self.credit()?;
        self.outlet.push_bytes(slot, bytes, head, self.patience)?;
        self.count(bytes.len());
        Ok(())
    }

    /// Sends a block that was received on, with other words or not; its bytes are copied from
    /// memory to memory and not looked at.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn forward(&mut self, block: &Block, head: Head) -> Result<()> {
        self.fits(block.len())?;
        let slot = self.credit()?;
        match &block.data {
            Data::Carried(there, copy, _) if copy.get().is_none() => {
                there.copy_across(&mut self.outlet.memory(slot)[..block.len()]);
                self.outlet.push(slot, block.len(), head, self.patience)?;
            }
            _ => self.outlet.push_bytes(slot, block, head, self.patience)?,
        }
        self.count(block.len());
        Ok(())
    }

    /// Ends the stream by an empty block, and waits until every block was replied to. The reply is
    /// the one to the end: over a chain of devices it says that all of the chain is done. The
    /// channel can carry another stream afterwards.
    ///
    /// # Errors
    /// As [`grant`](Self::grant), and the first failure that a reply told.
    pub fn finish(&mut self, words: [u64; WORDS]) -> Result<Reply> {
        self.send(&[], Head { words, end: true })?;
        self.drain()
    }

    /// Waits until every block was replied to; the reply to the end of the stream, where that was
    /// among them.
    ///
    /// # Errors
    /// As [`grant`](Self::grant), and the first failure that a reply told.
    pub fn drain(&mut self) -> Result<Reply> {
        self.owner.check("wait for replies")?;
        let mut last = Reply::DONE;
        while self.outlet.outstanding() > 0 {
            let returned = self.outlet.await_reply(self.patience)?;
            self.note(returned);
        }
        for returned in self.replies.drain(..) {
            last = if returned.end { returned.reply } else { last };
        }
        self.told()?;
        Ok(last)
    }

    /// The next reply that was not taken yet, in the order in which they came; waits if there is
    /// none and blocks are under way. The last `credits` replies are kept for this call.
    ///
    /// # Errors
    /// `InvalidInput` where nothing is under way; as [`grant`](Self::grant).
    pub fn reply(&mut self) -> Result<Returned> {
        self.owner.check("wait for a reply")?;
        if let Some(returned) = self.replies.pop_front() {
            return Ok(returned);
        }
        if self.outlet.outstanding() == 0 {
            return Err(Error::new(ErrorKind::InvalidInput, "wait for a reply", "no block is under way"));
        }
        self.outlet.await_reply(self.patience)
    }

    /// Takes note of the replies that are there, without waiting.
    ///
    /// # Errors
    /// The failure that a reply told; what ended the channel.
    pub fn poll(&mut self) -> Result<()> {
        self.owner.check("send")?;
        while let Some(returned) = self.outlet.poll_reply()? {
            self.note(returned);
        }
        self.told()
    }

    #[cfg(all(test, not(shuttle)))]
    pub(super) fn outlet_mut(&mut self) -> &mut dyn Outlet {
        &mut *self.outlet
    }

    fn credit(&mut self) -> Result<u32> {
        self.poll()?;
        loop {
            if let Some(slot) = self.outlet.take() {
                return Ok(slot);
            }
            let returned = self.outlet.await_reply(self.patience)?;
            self.note(returned);
            self.told()?;
        }
    }

    fn push(&mut self, slot: u32, len: usize, head: Head) -> Result<()> {
        self.owner.check("send")?;
        self.outlet.push(slot, len, head, self.patience)?;
        self.count(len);
        Ok(())
    }

    fn count(&mut self, len: usize) {
        self.blocks += 1;
        self.bytes += len as u64;
    }

    fn fits(&self, len: usize) -> Result<()> {
        let most = self.outlet.shape().block_bytes;
        if len > most {
            return Err(Error::new(ErrorKind::OutOfRange, "send", format!("{len} bytes in a block of {most}")));
        }
        Ok(())
    }

    fn note(&mut self, returned: Returned) {
        if returned.reply.outcome != BlockOutcome::Done && self.failure.is_none() {
            self.failure = Some(returned.reply);
        }
        if self.replies.len() >= self.outlet.shape().credits as usize {
            self.replies.pop_front();
        }
        self.replies.push_back(returned);
    }

    fn told(&mut self) -> Result<()> {
        match self.failure {
            Some(reply) if !self.relaying => {
                self.failure = None;
                reply.into_result().map(|_| ())
            }
            _ => Ok(()),
        }
    }

    /// From now on failures that replies tell are taken by [`take_failure`](Self::take_failure)
    /// alone.
    pub(crate) fn relay_failures(&mut self) {
        self.relaying = true;
    }

    /// The first failure that a reply told and nobody took.
    pub(crate) fn take_failure(&mut self) -> Option<Reply> {
        self.failure.take()
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if self.owner.is_here() {
            self.outlet.close();
        }
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sender({:?}, {} under way)", self.shape(), self.outstanding())
    }
}

/// Memory of one block of the receiver, to be filled.
pub struct Grant<'a> {
    sender: &'a mut Sender,
    slot: Option<u32>,
}

impl Grant<'_> {
    /// The bytes, as long as a block is. They hold what an earlier block left there. None in a
    /// child made by `fork`: they are its parent's.
    pub fn bytes(&mut self) -> &mut [u8] {
        if !self.sender.owner.is_here() {
            return &mut [];
        }
        // The slot is taken by `send` and `drop` only, which end the grant.
        let slot = self.slot.unwrap_or_default();
        self.sender.outlet.memory(slot)
    }

    /// Sends the first `len` bytes.
    ///
    /// # Errors
    /// `OutOfRange` for more than a block has; what ended the channel.
    pub fn send(mut self, len: usize, head: Head) -> Result<()> {
        self.sender.fits(len)?;
        match self.slot.take() {
            Some(slot) => self.sender.push(slot, len, head),
            None => Ok(()),
        }
    }
}

impl Drop for Grant<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.sender.outlet.give_back(slot);
        }
    }
}

/// The end that receives. It belongs to the process that took it, as a [`Sender`] does.
pub struct Receiver {
    pub(super) inlet: Box<dyn Inlet>,
    patience: Patience,
    owner: OwningProcess,
}

impl Receiver {
    /// An end over a transport.
    pub fn new(inlet: Box<dyn Inlet>) -> Receiver {
        Receiver { inlet, patience: Patience::default(), owner: OwningProcess::here() }
    }

    /// How long calls wait for blocks.
    #[must_use]
    pub fn with_patience(mut self, patience: Patience) -> Receiver {
        self.patience = patience;
        self
    }

    /// Sets how long calls wait from now on.
    pub fn set_patience(&mut self, patience: Patience) {
        self.patience = patience;
    }

    /// How large the channel is.
    pub fn shape(&self) -> ChannelShape {
        self.inlet.shape()
    }

    /// Waits for the next block.
    ///
    /// # Errors
    /// As [`Inlet::await_block`].
    pub fn receive(&mut self) -> Result<Block> {
        self.owner.check("receive")?;
        self.inlet.await_block(self.patience)
    }

    /// The next block, if it is there.
    ///
    /// # Errors
    /// As [`Inlet::poll_block`].
    pub fn try_receive(&mut self) -> Result<Option<Block>> {
        self.owner.check("receive")?;
        self.inlet.poll_block()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if self.owner.is_here() {
            self.inlet.close();
        }
    }
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Receiver({:?})", self.shape())
    }
}

/// Private memory for copies: touched once, and then used again and again.
pub(crate) type Buffers = crate::sync::Arc<Mutex<Vec<Vec<u8>>>>;

pub(crate) enum Data {
    InPlace(InPlace),
    /// Copied at the first look, if there is one, into a buffer that is used again.
    Carried(There, OnceLock<Vec<u8>>, Buffers),
    /// A buffer of a block's length.
    Private(Vec<u8>),
}

/// A block that arrived: its bytes, until it is replied to. Dropped without a reply it is reported
/// as dropped, but for a child made by `fork`, whose reply nobody would expect.
#[must_use = "reply to a block when it is processed"]
pub struct Block {
    data: Data,
    len: usize,
    head: Head,
    slot: u32,
    /// CRC-32 of the bytes, to be looked at before the reply.
    check: Option<u32>,
    back: Option<Back>,
    owner: OwningProcess,
}

impl Block {
    pub(crate) fn new(data: Data, len: usize, head: Head, slot: u32, check: Option<u32>, back: Back) -> Block {
        Block { data, len, head, slot, check, back: Some(back), owner: OwningProcess::here() }
    }

    /// A block in private memory, for transports of other crates. `bytes` has at least `len` bytes.
    pub fn private(bytes: Vec<u8>, len: usize, head: Head, slot: u32, back: Back) -> Block {
        let len = len.min(bytes.len());
        Block::new(Data::Private(bytes), len, head, slot, None, back)
    }

    /// Its bytes, without looking at them.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies its bytes to the start of `target`, from memory to memory.
    ///
    /// # Errors
    /// `OutOfRange` where `target` is shorter.
    pub fn copy_to(&self, target: &mut [u8]) -> Result<()> {
        let has = target.len();
        let short = || Error::new(ErrorKind::OutOfRange, "copy", format!("{} bytes into {has}", self.len));
        let target = target.get_mut(..self.len).ok_or_else(short)?;
        match &self.data {
            // What was looked at is what is passed on, whatever its sender has made of it since.
            Data::Carried(there, copy, _) if copy.get().is_none() => there.copy_across(target),
            _ => target.copy_from_slice(self),
        }
        Ok(())
    }

    /// The user words and whether it is the last of its stream.
    pub fn head(&self) -> Head {
        self.head
    }

    /// Replies that it is processed.
    ///
    /// # Errors
    /// `Corrupt` where the bytes, checked after processing, are not those that were sent; the
    /// sender is told, too.
    pub fn done(self) -> Result<()> {
        self.reply(Reply::DONE)
    }

    /// Replies.
    ///
    /// # Errors
    /// As [`done`](Self::done).
    pub fn reply(mut self, reply: Reply) -> Result<()> {
        self.owner.check("reply")?;
        if reply.outcome == BlockOutcome::Done && self.check.is_some_and(|check| crc32fast::hash(&self) != check) {
            self.give_back(Reply { outcome: BlockOutcome::Damaged, word: 0 });
            let what = "a block is not what was sent, after it was processed in place";
            return Err(Error::new(ErrorKind::Corrupt, "receive", what).advice("receive with `Trust::Copy`"));
        }
        self.give_back(reply);
        Ok(())
    }

    fn give_back(&mut self, reply: Reply) {
        if let (Some(back), true) = (self.back.take(), self.owner.is_here()) {
            let copy = match &mut self.data {
                Data::Private(bytes) => Some(std::mem::take(bytes)),
                Data::Carried(_, copy, _) => copy.take(),
                Data::InPlace(_) => None,
            };
            back.reply(self.slot, reply, copy);
        }
    }
}

impl Deref for Block {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.data {
            Data::InPlace(bytes) => bytes,
            Data::Carried(there, copy, buffers) => {
                let copy = copy.get_or_init(|| {
                    let used = lock(buffers).pop();
                    let mut bytes = used.unwrap_or_else(|| vec![0; there.room()]);
                    there.copy_across(&mut bytes[..self.len]);
                    bytes
                });
                &copy[..self.len]
            }
            Data::Private(bytes) => &bytes[..self.len],
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.give_back(Reply { outcome: BlockOutcome::Dropped, word: 0 });
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({} bytes, {:?})", self.len, self.head)
    }
}
