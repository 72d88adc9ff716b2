//! The contract of transports over a ring in shared memory.

use datapipes_core::{Error, ErrorKind, Result};

use super::ends::{Block, Buffers, Data};
use super::{Back, Credits, Inlet, InletEvent, Outlet, Returned, Source};
use crate::channel::layout::{Descriptor, END, ReplyRecord};
use crate::channel::memory::Payload;
use crate::channel::ring::{ReceiveRing, ReplyRing, SendRing, Sent};
use crate::channel::{BlockOutcome, ChannelShape, Head, Patience, ReceiveMode, Reply};
use crate::sync::{Arc, Mutex};

/// The sender's end. The slots are the receiver's memory itself.
pub(crate) struct SharedOutlet {
    ring: SendRing,
    payload: Payload,
    shape: ChannelShape,
}

impl SharedOutlet {
    pub(crate) fn new(ring: SendRing, payload: Payload, shape: ChannelShape) -> SharedOutlet {
        SharedOutlet { ring, payload, shape }
    }
}

fn returned((sent, record): (Sent, ReplyRecord)) -> Returned {
    let reply = Reply { outcome: BlockOutcome::of(record.status), word: record.word };
    let at_ns = (record.at_ns > 0).then_some(record.at_ns);
    Returned { sequence: sent.sequence, end: sent.end, reply, at_ns }
}

impl Outlet for SharedOutlet {
    fn shape(&self) -> ChannelShape {
        self.shape
    }

    fn time_replies(&mut self, on: bool) {
        self.ring.is_timed = on;
    }

    fn take(&mut self) -> Option<u32> {
        self.ring.take()
    }

    fn give_back(&mut self, slot: u32) {
        self.ring.put_back(slot);
    }

    fn memory(&mut self, slot: u32) -> &mut [u8] {
        &mut self.payload.slot_mut(slot)[..self.shape.block_bytes]
    }

    fn fill(&mut self, slot: u32, bytes: &[u8]) {
        self.payload.fill(slot, bytes);
    }

    fn push(&mut self, slot: u32, len: usize, head: Head, _: Patience) -> Result<()> {
        let check = if self.shape.checked { crc32fast::hash(&self.payload.slot_mut(slot)[..len]) } else { 0 };
        self.ring.publish(slot, len, check, head.end, head.words)
    }

    fn poll_reply(&mut self) -> Result<Option<Returned>> {
        self.ring.check("send")?;
        Ok(self.ring.look()?.map(returned))
    }

    fn await_reply(&mut self, patience: Patience) -> Result<Returned> {
        self.ring.await_reply(patience).map(returned)
    }

    fn outstanding(&self) -> u32 {
        self.ring.outstanding()
    }

    fn close(&mut self) {
        self.ring.close();
    }
}

/// The receiver's end.
pub(crate) struct SharedInlet {
    ring: ReceiveRing,
    payload: Payload,
    shape: ChannelShape,
    trust: ReceiveMode,
    back: Arc<SharedCredits>,
}

struct SharedCredits {
    ring: Arc<Mutex<ReplyRing>>,
    /// Buffers for private copies.
    copies: Buffers,
}

impl Credits for SharedCredits {
    fn reply(&self, slot: u32, reply: Reply, copy: Option<Vec<u8>>) {
        if let Some(copy) = copy {
            self.copies.lock().push(copy);
        }
        self.ring.lock().reply(slot, reply.outcome.code(), reply.word);
    }
}

impl SharedInlet {
    /// # Errors
    /// `InvalidInput` where the trust needs checks that the channel does not have.
    pub(crate) fn new(
        ring: ReceiveRing,
        payload: Payload,
        shape: ChannelShape,
        trust: ReceiveMode,
    ) -> Result<SharedInlet> {
        if trust == ReceiveMode::InPlaceChecked && !shape.checked {
            let context = "in place and checked, of a channel whose blocks carry no check";
            return Err(Error::new(ErrorKind::InvalidInput, "receive", context));
        }
        let back = SharedCredits { ring: ring.replies().clone(), copies: Arc::new(Mutex::new(Vec::new())) };
        Ok(SharedInlet { ring, payload, shape, trust, back: Arc::new(back) })
    }

    fn block(&mut self, d: Descriptor) -> Result<Block> {
        let (len, head) = (d.len as usize, Head { words: d.words, end: d.flags & END != 0 });
        let back: Back = self.back.clone();
        match self.trust {
            ReceiveMode::InPlace | ReceiveMode::InPlaceChecked => {
                // SAFETY: the code that chose this trust vouches for the sender: see
                // `TrustToken::new`.
                #[allow(unsafe_code)]
                let bytes = unsafe { self.payload.in_place(d.slot, len) };
                let check = (self.trust == ReceiveMode::InPlaceChecked).then_some(d.check);
                return Ok(Block::new(Data::InPlace(bytes), len, head, d.slot, check, back));
            }
            // The check is for a receiver that looks at the bytes. A relay leaves it to the next
            // one.
            ReceiveMode::Copy if self.shape.checked => {}
            // A receiver that does not look needs no copy. One that looks gets a copy at the first
            // look, which does not change later.
            ReceiveMode::Copy | ReceiveMode::Carried => {
                let bytes = self.payload.remote_bytes(d.slot, len);
                let bytes = Data::Carried(bytes, Default::default(), self.back.copies.clone());
                return Ok(Block::new(bytes, len, head, d.slot, None, back));
            }
        }
        let copy = self.back.copies.lock().pop();
        let mut copy = copy.unwrap_or_else(|| vec![0; self.shape.block_bytes]);
        self.payload.copy_out(d.slot, &mut copy[..len]);
        let block = Block::new(Data::Private(copy), len, head, d.slot, None, back);
        if self.shape.checked && crc32fast::hash(&block) != d.check {
            // Whether the sender changed them on purpose or not, these bytes are not the announced
            // ones.
            let _ = block.reply(Reply { outcome: BlockOutcome::Damaged, word: 0 });
            let what = format!("block {} does not have the checksum that came with it", d.sequence);
            return Err(Error::new(ErrorKind::Corrupt, "receive", what));
        }
        Ok(block)
    }
}

impl Inlet for SharedInlet {
    fn shape(&self) -> ChannelShape {
        self.shape
    }

    fn poll_block(&mut self) -> Result<Option<Block>> {
        match self.ring.look()? {
            Some(descriptor) => self.block(descriptor).map(Some),
            None => self.ring.check().map(|()| None),
        }
    }

    fn await_block(&mut self, patience: Patience) -> Result<Block> {
        let descriptor = self.ring.await_block(patience)?;
        self.block(descriptor)
    }

    fn event(&self) -> InletEvent<'_> {
        let common = &self.ring.common;
        InletEvent(Source::Words(self.ring.all_watches(), &common.state, &common.alive))
    }

    fn say_sleeping(&self, sleeping: bool) {
        self.ring.say_sleeping(sleeping);
    }

    fn close(&mut self) {
        self.ring.close();
    }
}
