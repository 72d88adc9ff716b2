//! The two ends of a channel, over any transport.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;
use std::sync::OnceLock;

use datapipes_core::process::OwningProcess;
use datapipes_core::{Error, ErrorKind, Result};
use datapipes_metrics::{Histogram, Label, Sample, vocabulary};

use super::times::BlockTimes;
use super::{Back, Inlet, Outlet, Returned};
use crate::channel::memory::{InPlace, RemoteBytes};
use crate::channel::{BlockOutcome, ChannelShape, Head, Patience, Reply, WORDS};
use crate::sync::{Mutex, monotonic_ns};

/// The sending end of a channel.
///
/// If a reply reports a failure, the next call returns it, once. The end belongs to the process
/// that took it: in a child made by `fork` its calls fail (`Forked`), and dropping it there does
/// not affect the other side.
pub struct Sender {
    outlet: Box<dyn Outlet>,
    patience: Patience,
    replies: VecDeque<Returned>,
    failure: Option<Reply>,
    /// Whether failures that replies report are not errors of calls, because a relay passes them
    /// on.
    relaying: bool,
    blocks: u64,
    bytes: u64,
    /// Only while times are measured.
    times: Option<Box<BlockTimes>>,
    owner: OwningProcess,
}

impl Sender {
    /// Makes an end over a transport.
    pub fn new(outlet: Box<dyn Outlet>) -> Sender {
        Sender {
            outlet,
            patience: Patience::default(),
            replies: VecDeque::new(),
            failure: None,
            relaying: false,
            blocks: 0,
            bytes: 0,
            times: None,
            owner: OwningProcess::here(),
        }
    }

    /// Sets how long calls wait for credits and replies.
    #[must_use]
    pub fn with_patience(mut self, patience: Patience) -> Sender {
        self.patience = patience;
        self
    }

    /// Sets how long calls wait from now on.
    pub fn set_patience(&mut self, patience: Patience) {
        self.patience = patience;
    }

    pub(crate) fn patience(&self) -> Patience {
        self.patience
    }

    /// The shape of the channel.
    pub fn shape(&self) -> ChannelShape {
        self.outlet.shape()
    }

    /// The number of blocks sent and not replied to.
    pub fn outstanding(&self) -> u32 {
        self.outlet.outstanding()
    }

    /// The number of blocks and bytes sent so far.
    pub fn sent(&self) -> (u64, u64) {
        (self.blocks, self.bytes)
    }

    /// Measures from now on how long blocks are on their way, or stops it and forgets the times.
    pub fn measure_latencies(&mut self, on: bool) {
        self.times = on.then(Box::default);
        self.outlet.time_replies(on);
    }

    /// The times from the push of a block until the receiver replied, if they are
    /// [measured](Self::measure_latencies); without those of empty blocks that end a stream. Over a
    /// socket they end when this end knows the reply, which it finds out when it sends, waits for a
    /// reply or [polls](Self::poll).
    pub fn latencies(&self) -> Option<Histogram> {
        self.times.as_ref().map(|times| times.histogram())
    }

    /// Returns what it sent as samples; `pipe` is what the caller calls the channel.
    pub fn samples(&self, pipe: &str) -> Vec<Sample> {
        let mut samples = vec![
            Sample::new(&vocabulary::CHANNEL_BLOCKS, self.blocks).label(Label::Direction, "out"),
            Sample::new(&vocabulary::CHANNEL_BYTES, self.bytes).label(Label::Direction, "out"),
            Sample::new(&vocabulary::CHANNEL_OUTSTANDING, self.outstanding()),
            Sample::new(&vocabulary::CHANNEL_CREDITS, self.shape().credits),
        ];
        samples.extend(self.latencies().map(|times| Sample::new(&vocabulary::CHANNEL_BLOCK_TIME, times)));
        samples.into_iter().map(|sample| sample.label(Label::Pipe, pipe)).collect()
    }

    /// Waits for a credit. Returns the memory of one block, to be filled and sent. If it is
    /// dropped, the next call gets the credit.
    ///
    /// # Errors
    /// `Busy` when the patience is over, the failure that a reply reported, and any error that
    /// ended the channel.
    pub fn grant(&mut self) -> Result<Grant<'_>> {
        let slot = self.credit()?;
        Ok(Grant { sender: self, slot: Some(slot) })
    }

    /// Sends a copy of `bytes`. When this returns, they are in the receiver's memory, or over a
    /// socket on their way there. If a socket takes a part of a block before the patience is over,
    /// the next call of this end sends the rest.
    ///
    /// # Errors
    /// `OutOfRange` for more bytes than a block holds, and those of [`grant`](Self::grant). Nothing
    /// was sent then.
    pub fn send(&mut self, bytes: &[u8], head: Head) -> Result<()> {
        self.fits(bytes.len())?;
        let slot = self.credit()?;
        let since = self.time_of_push(bytes.len(), head);
        self.outlet.push_bytes(slot, bytes, head, self.patience)?;
        self.count(bytes.len(), since);
        Ok(())
    }

    /// Sends a received block on, with any words. Its bytes are copied from memory to memory and
    /// not looked at.
    ///
    /// # Errors
    /// Those of [`send`](Self::send).
    pub fn forward(&mut self, block: &Block, head: Head) -> Result<()> {
        self.fits(block.len())?;
        let slot = self.credit()?;
        let since = self.time_of_push(block.len(), head);
        match &block.data {
            Data::Carried(there, copy, _) if copy.get().is_none() => {
                there.copy_across(&mut self.outlet.memory(slot)[..block.len()]);
                self.outlet.push(slot, block.len(), head, self.patience)?;
            }
            _ => self.outlet.push_bytes(slot, block, head, self.patience)?,
        }
        self.count(block.len(), since);
        Ok(())
    }

    /// Ends the stream with an empty block, and waits until every block was replied to. Returns the
    /// reply to the end: over a chain of devices it means that the whole chain is done. The channel
    /// can carry another stream afterwards.
    ///
    /// # Errors
    /// Those of [`grant`](Self::grant), and the first failure that a reply reported.
    pub fn finish(&mut self, words: [u64; WORDS]) -> Result<Reply> {
        self.send(&[], Head { words, end: true })?;
        self.drain()
    }

    /// Waits until every block was replied to. Returns the reply to the end of the stream, if that
    /// was among them.
    ///
    /// # Errors
    /// Those of [`grant`](Self::grant), and the first failure that a reply reported.
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

    /// Returns the next reply that was not taken yet, in order of arrival. Waits if there is none
    /// and blocks are in flight. The last `credits` replies are kept for this call.
    ///
    /// # Errors
    /// `InvalidInput` where nothing is in flight, and those of [`grant`](Self::grant).
    pub fn reply(&mut self) -> Result<Returned> {
        self.owner.check("wait for a reply")?;
        if let Some(returned) = self.replies.pop_front() {
            return Ok(returned);
        }
        if self.outlet.outstanding() == 0 {
            return Err(Error::new(ErrorKind::InvalidInput, "wait for a reply", "no block is under way"));
        }
        let returned = self.outlet.await_reply(self.patience)?;
        self.time_reply(returned);
        Ok(returned)
    }

    /// Notes the replies that have arrived, without waiting.
    ///
    /// # Errors
    /// The failure that a reply reported, and any error that ended the channel.
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
        let since = self.time_of_push(len, head);
        self.outlet.push(slot, len, head, self.patience)?;
        self.count(len, since);
        Ok(())
    }

    /// The time, while times are measured. The empty block at the end of a stream is none of the
    /// stream's: its reply comes when all is durable.
    fn time_of_push(&self, len: usize, head: Head) -> Option<u64> {
        let is_end = head.end && len == 0;
        self.times.as_ref().filter(|_| !is_end).map(|_| monotonic_ns())
    }

    fn count(&mut self, len: usize, since: Option<u64>) {
        if let (Some(times), Some(since)) = (&mut self.times, since) {
            times.pushed(self.blocks, since, self.outlet.shape().credits);
        }
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

    fn time_reply(&mut self, returned: Returned) {
        if let Some(times) = &mut self.times {
            times.replied(returned.sequence, returned.at_ns);
        }
    }

    fn note(&mut self, returned: Returned) {
        self.time_reply(returned);
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

    /// Makes [`take_failure`](Self::take_failure) the only way to get failures that replies report
    /// from now on.
    pub(crate) fn relay_failures(&mut self) {
        self.relaying = true;
    }

    /// Returns the first reported failure that was not taken.
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
    /// The bytes of the block, with its full length. They hold data of an earlier block. They are
    /// empty in a child made by `fork`, because they belong to its parent.
    pub fn bytes(&mut self) -> &mut [u8] {
        if !self.sender.owner.is_here() {
            return &mut [];
        }
        // Only `send` and `drop` take the slot, and both end the grant.
        let slot = self.slot.unwrap_or_default();
        self.sender.outlet.memory(slot)
    }

    /// Sends the first `len` bytes.
    ///
    /// # Errors
    /// `OutOfRange` for more than a block holds, and any error that ended the channel.
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

/// The receiving end of a channel. It belongs to the process that took it, like a [`Sender`].
pub struct Receiver {
    pub(super) inlet: Box<dyn Inlet>,
    patience: Patience,
    owner: OwningProcess,
}

impl Receiver {
    /// Makes an end over a transport.
    pub fn new(inlet: Box<dyn Inlet>) -> Receiver {
        Receiver { inlet, patience: Patience::default(), owner: OwningProcess::here() }
    }

    /// Sets how long calls wait for blocks.
    #[must_use]
    pub fn with_patience(mut self, patience: Patience) -> Receiver {
        self.patience = patience;
        self
    }

    /// Sets how long calls wait from now on.
    pub fn set_patience(&mut self, patience: Patience) {
        self.patience = patience;
    }

    /// The shape of the channel.
    pub fn shape(&self) -> ChannelShape {
        self.inlet.shape()
    }

    /// Waits for the next block.
    ///
    /// # Errors
    /// Those of [`Inlet::await_block`].
    pub fn receive(&mut self) -> Result<Block> {
        self.owner.check("receive")?;
        self.inlet.await_block(self.patience)
    }

    /// Returns the next block, if it has arrived.
    ///
    /// # Errors
    /// Those of [`Inlet::poll_block`].
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

/// Private memory for copies, which is touched once and then used again.
pub(crate) type Buffers = crate::sync::Arc<Mutex<Vec<Vec<u8>>>>;

pub(crate) enum Data {
    InPlace(InPlace),
    /// Copied into a reused buffer at the first look, if there is one.
    Carried(RemoteBytes, OnceLock<Vec<u8>>, Buffers),
    /// A buffer with the length of a block.
    Private(Vec<u8>),
}

/// A block that arrived. It gives access to its bytes until it is replied to. If it is dropped
/// without a reply, it is reported as dropped, except in a child made by `fork`.
#[must_use = "reply to a block when it is processed"]
pub struct Block {
    data: Data,
    len: usize,
    head: Head,
    slot: u32,
    /// The CRC-32 of the bytes, to be checked before the reply.
    check: Option<u32>,
    back: Option<Back>,
    owner: OwningProcess,
}

impl Block {
    pub(crate) fn new(data: Data, len: usize, head: Head, slot: u32, check: Option<u32>, back: Back) -> Block {
        Block { data, len, head, slot, check, back: Some(back), owner: OwningProcess::here() }
    }

    /// Makes a block in private memory, for transports of other crates. `bytes` has at least `len`
    /// bytes.
    pub fn private(bytes: Vec<u8>, len: usize, head: Head, slot: u32, back: Back) -> Block {
        let len = len.min(bytes.len());
        Block::new(Data::Private(bytes), len, head, slot, None, back)
    }

    /// The number of its bytes. It does not look at them.
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
            // If the bytes were looked at, the same copy is passed on, whatever its sender has
            // written since.
            Data::Carried(there, copy, _) if copy.get().is_none() => there.copy_across(target),
            _ => target.copy_from_slice(self),
        }
        Ok(())
    }

    /// The user words, and whether it is the last block of its stream.
    pub fn head(&self) -> Head {
        self.head
    }

    /// Replies that the block was processed.
    ///
    /// # Errors
    /// `Corrupt` where the bytes, checked after processing, differ from those that were sent. The
    /// sender is told, too.
    pub fn done(self) -> Result<()> {
        self.reply(Reply::DONE)
    }

    /// Sends a reply.
    ///
    /// # Errors
    /// Those of [`done`](Self::done).
    pub fn reply(mut self, reply: Reply) -> Result<()> {
        self.owner.check("reply")?;
        if reply.outcome == BlockOutcome::Done && self.check.is_some_and(|check| crc32fast::hash(&self) != check) {
            self.give_back(Reply { outcome: BlockOutcome::Damaged, word: 0 });
            let what = "a block that was processed in place differs from what was sent";
            return Err(Error::new(ErrorKind::Corrupt, "receive", what).with_advice("receive with `Trust::Copy`"));
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
                    let used = buffers.lock().pop();
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
