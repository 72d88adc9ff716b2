//! The ring of a channel: blocks go in one direction, replies in the other, and a reply returns the
//! credit.
//!
//! ```text
//! sender                                   receiver
//! take a free slot (a credit)
//! fill it; descriptor; sent += 1  ------>  look; copy the descriptor once; check it; hold the slot
//!                                          process
//! look; check; slot is free again <------  reply; replied += 1
//! ```
//!
//! A side that is about to sleep announces it in its own page and then looks for the last time. The
//! other side changes its counter and then reads the announcement. Both orders are sequentially
//! consistent, so one of the two sees the other. The other side's page is not trusted: a counter
//! that runs ahead, a slot that is not in flight, or another epoch ends the channel for this side
//! with `Corrupt`.

use std::collections::VecDeque;

use datapipes_core::{Error, ErrorKind, Result};

use super::bell::{Watch, wait, wake};
use super::copy;
use super::layout::{Descriptor, END, ReceiverPage, ReplyRecord, SenderPage, State, StatePage, TIMED, WORDS};
use super::memory::View;
use super::patience::{AdaptiveSpin, Patience, Waiting};
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Arc, Mutex, monotonic_ns};

/// The state that both sides have.
pub(crate) struct Common {
    pub(crate) credits: u32,
    pub(crate) block_bytes: usize,
    pub(crate) epoch: u64,
    pub(crate) state: View<StatePage>,
    /// Whether the controller still lives. It is asked ten times a second during a wait.
    pub(crate) alive: Alive,
}

/// A function that tells whether the controller still lives.
pub(crate) type Alive = std::sync::Arc<dyn Fn() -> bool + Send + Sync>;

impl Common {
    pub(crate) fn check(&self, operation: &'static str, mine: Side) -> Result<()> {
        match (self.state.get(), mine) {
            (State::Active, _) | (State::SenderGone, Side::Sender) | (State::ReceiverGone, Side::Receiver) => Ok(()),
            (State::Configured, _) => Err(Error::new(ErrorKind::Busy, operation, "the channel is not active yet")),
            (State::Revoked, _) => Err(revoked(operation)),
            (State::SenderGone, Side::Receiver) => {
                Err(Error::new(ErrorKind::Device, operation, "the sender of the channel has died"))
            }
            (State::ReceiverGone, Side::Sender) => {
                Err(Error::new(ErrorKind::Device, operation, "the receiver of the channel has died"))
            }
            (State::ControllerGone, _) => Err(controller_gone(operation)),
        }
    }

    fn watch(&self) -> Watch<'_> {
        let word = &self.state.state.0;
        Watch { word, seen: word.load(Ordering::SeqCst) }
    }

    pub(crate) fn is_revoked(&self) -> bool {
        self.state.get() == State::Revoked
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Side {
    Sender,
    Receiver,
}

pub(crate) fn revoked(operation: &'static str) -> Error {
    Error::new(ErrorKind::PermissionDenied, operation, "the channel was revoked")
}

pub(crate) fn controller_gone(operation: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, operation, "the controller has ended")
}

pub(crate) fn broken(operation: &'static str, side: &str, what: String) -> Error {
    Error::new(ErrorKind::Corrupt, operation, format!("the {side} breaks the protocol: {what}"))
        .with_advice("revoke the channel: nothing that it sent can be trusted")
}

/// One side that waits for the other.
trait Waits {
    type Found;
    const OPERATION: &'static str;
    /// A description of what did not come.
    const WHAT: &'static str;
    fn look(&mut self) -> Result<Option<Self::Found>>;
    /// Whether waiting makes sense.
    fn check(&self) -> Result<()>;
    fn common(&self) -> &Common;
    fn watches(&self) -> [Watch<'_>; 3];
    /// Tells the other side that this one sleeps, or has stopped sleeping.
    fn say_sleeping(&self, sleeping: bool);
}

/// Looks, spins and sleeps until there is something, the state forbids it, or the patience is over.
fn await_change<R: Waits>(ring: &mut R, spin: &mut AdaptiveSpin, patience: Patience) -> Result<R::Found> {
    if let Some(found) = spin.look(|| ring.look().transpose()) {
        return found;
    }
    let mut waiting = Waiting::new(patience);
    loop {
        ring.say_sleeping(true);
        let since = std::time::Instant::now();
        let mut slept = false;
        let found = sleep(ring, &mut waiting, &mut slept);
        ring.say_sleeping(false);
        if let Some(found) = found? {
            match slept {
                true => spin.slept(since.elapsed()),
                false => spin.just_missed(),
            }
            return Ok(found);
        }
        if !(ring.common().alive)() {
            return Err(controller_gone(R::OPERATION));
        }
    }
}

/// Sleeps once, and looks before and after. Sets `slept` if the thread really slept.
fn sleep<R: Waits>(ring: &mut R, waiting: &mut Waiting, slept: &mut bool) -> Result<Option<R::Found>> {
    let state_seen = ring.common().state.state.0.load(Ordering::SeqCst);
    if let Some(found) = ring.look()? {
        return Ok(Some(found));
    }
    ring.check()?;
    let Some(slice) = waiting.slice() else { return Err(waiting.over(R::OPERATION, R::WHAT)) };
    if waiting.own_core() {
        std::hint::spin_loop();
    } else {
        let mut watches = ring.watches();
        // The value is the one from before the check of the state.
        watches[2].seen = state_seen;
        *slept = wait(&watches, &ring.common().state, slice);
    }
    ring.look()
}

/// The announcement of a sleeper: the count at which it sleeps. 0 means awake. The lowest bit says
/// that it sleeps. The lost highest bit of the count does no harm, because there are never 2^31
/// blocks between two sleeps that are compared.
fn sleep_at(count: u32) -> u32 {
    count << 1 | 1
}

/// The sleep for which the other side was woken last. Many blocks may be sent between a wake-up and
/// the moment when the sleeper runs. One wake-up is enough for each sleep.
#[derive(Default)]
struct Woken(u32);

impl Woken {
    /// Whether the other side sleeps at an earlier count than this, and was not woken from that
    /// sleep yet. It is asked after the count was published. A sleep at this very count began after
    /// the count was seen, so the next block ends it, and it counts as not woken.
    fn must_wake(&mut self, waiting: &AtomicU32, count: u32) -> bool {
        let sleep = waiting.load(Ordering::SeqCst);
        if sleep == 0 || sleep == sleep_at(count) || sleep == self.0 {
            return false;
        }
        self.0 = sleep;
        true
    }
}

/// What a sender remembers of a block in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) sequence: u64,
    pub(crate) end: bool,
}

/// The sender's side.
pub(crate) struct SendRing {
    pub(crate) common: Common,
    own: View<SenderPage>,
    peer: View<ReceiverPage>,
    sent: u32,
    /// The number of blocks sent since the beginning.
    sequence: u64,
    replied: u32,
    /// Slots are used in turn. One that was freed just now is in the caches of the receiver's core,
    /// and to write it at once takes its lines from there: half of the rate on one processor.
    free: VecDeque<u32>,
    /// The blocks in flight, by slot.
    under_way: Vec<Option<Sent>>,
    woken: Woken,
    spin: Option<AdaptiveSpin>,
    failed: bool,
    /// Whether the receiver is to say when it replies.
    pub(crate) is_timed: bool,
}

impl SendRing {
    pub(crate) fn new(common: Common, own: View<SenderPage>, peer: View<ReceiverPage>) -> SendRing {
        let credits = common.credits;
        let free = (0..credits).collect();
        let under_way = vec![None; credits as usize];
        let spin = Some(AdaptiveSpin::new());
        let woken = Woken::default();
        SendRing {
            common,
            own,
            peer,
            sent: 0,
            sequence: 0,
            replied: 0,
            free,
            under_way,
            woken,
            spin,
            failed: false,
            is_timed: false,
        }
    }

    /// Takes a free slot, if there is one now.
    pub(crate) fn take(&mut self) -> Option<u32> {
        self.free.pop_front()
    }

    /// Returns a slot that was taken and not sent.
    pub(crate) fn put_back(&mut self, slot: u32) {
        self.free.push_front(slot);
    }

    /// The number of blocks sent whose replies were not taken.
    pub(crate) fn outstanding(&self) -> u32 {
        self.sent.wrapping_sub(self.replied)
    }

    /// Checks whether blocks may be sent now.
    pub(crate) fn check(&self, operation: &'static str) -> Result<()> {
        if self.failed {
            return Err(broken(operation, "receiver", "as was told before".into()));
        }
        self.common.check(operation, Side::Sender)?;
        if self.peer.closed.0.load(Ordering::SeqCst) != 0 {
            return Err(Error::new(ErrorKind::Device, operation, "the receiver has closed the channel"));
        }
        Ok(())
    }

    /// Publishes the contents of a slot, and wakes the receiver if it sleeps.
    pub(crate) fn publish(&mut self, slot: u32, len: usize, check: u32, end: bool, words: [u64; WORDS]) -> Result<()> {
        if let Err(e) = self.check("send") {
            self.put_back(slot);
            return Err(e);
        }
        let descriptor = Descriptor {
            slot,
            len: len as u32,
            sequence: self.sequence,
            flags: u32::from(end) * END + u32::from(self.is_timed) * TIMED,
            check,
            epoch: self.common.epoch,
            words,
        };
        self.own.ring[(self.sent % self.common.credits) as usize].store(&descriptor);
        self.under_way[slot as usize] = Some(Sent { sequence: self.sequence, end });
        self.sequence += 1;
        self.sent = self.sent.wrapping_add(1);
        self.own.sent.0.store(self.sent, Ordering::SeqCst);
        if self.woken.must_wake(&self.peer.waiting.0, self.sent) {
            wake(&self.own.sent.0, &self.common.state);
        }
        Ok(())
    }

    /// Returns a reply, if there is one, and frees its slot.
    pub(crate) fn look(&mut self) -> Result<Option<(Sent, ReplyRecord)>> {
        if self.failed {
            return Err(broken("send", "receiver", "as was told before".into()));
        }
        let counted = self.peer.replied.0.load(Ordering::SeqCst);
        let ready = counted.wrapping_sub(self.replied);
        if ready == 0 {
            return Ok(None);
        }
        let fail = |ring: &mut SendRing, what: String| {
            ring.failed = true;
            Err(broken("send", "receiver", what))
        };
        if ready > self.outstanding() {
            let outstanding = self.outstanding();
            return fail(self, format!("{ready} replies to {outstanding} blocks"));
        }
        let reply = self.peer.ring[(self.replied % self.common.credits) as usize].load();
        if reply.epoch != self.common.epoch {
            return fail(self, format!("a reply of epoch {}, not {}", reply.epoch, self.common.epoch));
        }
        let Some(sent) = self.under_way.get_mut(reply.slot as usize).and_then(Option::take) else {
            return fail(self, format!("a reply to slot {}, which is not under way", reply.slot));
        };
        self.replied = self.replied.wrapping_add(1);
        self.free.push_back(reply.slot);
        Ok(Some((sent, reply)))
    }

    /// Waits for a reply.
    ///
    /// # Errors
    /// `Busy` when the patience is over, and any error that ended the channel.
    pub(crate) fn await_reply(&mut self, patience: Patience) -> Result<(Sent, ReplyRecord)> {
        let mut spin = self.spin.take().unwrap_or_else(AdaptiveSpin::new);
        let answer = await_change(self, &mut spin, patience);
        self.spin = Some(spin);
        answer
    }

    /// Announces that nothing will follow.
    pub(crate) fn close(&self) {
        self.own.closed.0.store(1, Ordering::SeqCst);
        wake(&self.own.closed.0, &self.common.state);
        // A short sleep is on this word alone.
        wake(&self.own.sent.0, &self.common.state);
    }
}

impl Waits for SendRing {
    type Found = (Sent, ReplyRecord);
    const OPERATION: &'static str = "send";
    const WHAT: &'static str = "no credit came back";

    fn look(&mut self) -> Result<Option<(Sent, ReplyRecord)>> {
        SendRing::look(self)
    }
    fn check(&self) -> Result<()> {
        SendRing::check(self, "send")
    }
    fn common(&self) -> &Common {
        &self.common
    }
    fn watches(&self) -> [Watch<'_>; 3] {
        [
            Watch { word: &self.peer.replied.0, seen: self.replied },
            Watch { word: &self.peer.closed.0, seen: 0 },
            self.common.watch(),
        ]
    }
    fn say_sleeping(&self, sleeping: bool) {
        let said = if sleeping { sleep_at(self.replied) } else { 0 };
        self.own.waiting.0.store(said, Ordering::SeqCst);
    }
}

/// The receiver's side for arriving blocks. Replies have their own half, because blocks are replied
/// to in any order and from any thread.
pub(crate) struct ReceiveRing {
    pub(crate) common: Common,
    own: View<ReceiverPage>,
    peer: View<SenderPage>,
    replies: Arc<Mutex<ReplyRing>>,
    taken: u32,
    /// The sender's counter at the last look. Its line is in the sender's cache, so it is not read
    /// again while there are blocks before this count.
    counted: u32,
    sequence: u64,
    spin: Option<AdaptiveSpin>,
    failed: bool,
}

/// Returns the half that replies.
pub(crate) struct ReplyRing {
    own: View<ReceiverPage>,
    peer: View<SenderPage>,
    state: View<StatePage>,
    credits: u32,
    epoch: u64,
    replied: u32,
    woken: Woken,
    /// What this side holds, by slot.
    held: Vec<Held>,
}

/// What the receiver holds of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    Nothing,
    Block,
    /// A block whose sender wants to know when it is replied to.
    TimedBlock,
}

impl ReceiveRing {
    pub(crate) fn new(common: Common, own: View<ReceiverPage>, peer: View<SenderPage>) -> ReceiveRing {
        let replies = ReplyRing {
            own: own.clone(),
            peer: peer.clone(),
            state: common.state.clone(),
            credits: common.credits,
            epoch: common.epoch,
            replied: 0,
            woken: Woken::default(),
            held: vec![Held::Nothing; common.credits as usize],
        };
        let (replies, spin) = (Arc::new(Mutex::new(replies)), Some(AdaptiveSpin::new()));
        ReceiveRing { common, own, peer, replies, taken: 0, counted: 0, sequence: 0, spin, failed: false }
    }

    /// Returns the half that replies.
    pub(crate) fn replies(&self) -> &Arc<Mutex<ReplyRing>> {
        &self.replies
    }

    /// Returns the next block's descriptor, if there is one. It is copied once and checked.
    pub(crate) fn look(&mut self) -> Result<Option<Descriptor>> {
        if self.failed {
            return Err(broken("receive", "sender", "as was told before".into()));
        }
        if self.common.is_revoked() {
            return Err(revoked("receive"));
        }
        let looked = self.counted == self.taken;
        if looked {
            self.counted = self.peer.sent.0.load(Ordering::SeqCst);
        }
        let ready = self.counted.wrapping_sub(self.taken);
        if ready == 0 {
            return Ok(None);
        }
        let replies = self.replies.clone();
        let answer = self.admit(ready, looked, &mut replies.lock());
        self.failed = answer.is_err();
        answer.map(Some)
    }

    fn admit(&mut self, ready: u32, looked: bool, replies: &mut ReplyRing) -> Result<Descriptor> {
        let wrong = |what: String| Err(broken("receive", "sender", what));
        let (credits, epoch) = (self.common.credits, self.common.epoch);
        let unanswered = self.taken.wrapping_sub(replies.replied);
        // Once this holds it continues to hold: taking a block makes one more unanswered and one
        // fewer ready.
        if looked && ready > credits - unanswered.min(credits) {
            return wrong(format!("{ready} more blocks with {unanswered} of {credits} credits in use"));
        }
        let d = self.peer.ring[(self.taken % credits) as usize].load();
        if d.epoch != epoch {
            return wrong(format!("a block of epoch {}, not {epoch}", d.epoch));
        }
        if d.sequence != self.sequence {
            return wrong(format!("block {} where {} comes next", d.sequence, self.sequence));
        }
        if d.len as usize > self.common.block_bytes {
            return wrong(format!("a block of {} bytes, where {} fit", d.len, self.common.block_bytes));
        }
        if d.flags & !(END | TIMED) != 0 {
            return wrong(format!("flags {:#x}", d.flags));
        }
        match replies.held.get_mut(d.slot as usize) {
            Some(held) if *held == Held::Nothing => {
                *held = if d.flags & TIMED == 0 { Held::Block } else { Held::TimedBlock };
            }
            Some(_) => return wrong(format!("a block in slot {}, which is still being processed", d.slot)),
            None => return wrong(format!("a block in slot {} of {credits}", d.slot)),
        }
        self.taken = self.taken.wrapping_add(1);
        self.sequence += 1;
        if self.counted != self.taken {
            // It is fetched while this block is processed.
            copy::prefetch(&self.peer.ring[(self.taken % credits) as usize]);
        }
        Ok(d)
    }

    /// Checks whether blocks may still come.
    pub(crate) fn check(&self) -> Result<()> {
        if self.peer.closed.0.load(Ordering::SeqCst) != 0 && self.peer.sent.0.load(Ordering::SeqCst) == self.taken {
            return Err(Error::new(ErrorKind::EndOfFile, "receive", "the sender has closed the channel"));
        }
        // Blocks that a sender sent before it died are received first.
        if self.peer.sent.0.load(Ordering::SeqCst) != self.taken && !self.common.is_revoked() {
            return Ok(());
        }
        self.common.check("receive", Side::Receiver)
    }

    /// Waits for the next block.
    ///
    /// # Errors
    /// `Busy` when the patience is over, `EndOfFile` where the sender closed, and any error that
    /// ended the channel.
    pub(crate) fn await_block(&mut self, patience: Patience) -> Result<Descriptor> {
        let mut spin = self.spin.take().unwrap_or_else(AdaptiveSpin::new);
        let answer = await_change(self, &mut spin, patience);
        self.spin = Some(spin);
        answer
    }

    /// The words to sleep on when waiting for several channels.
    pub(crate) fn all_watches(&self) -> [Watch<'_>; 3] {
        Waits::watches(self)
    }

    /// Tells the sender whether it must wake this side.
    pub(crate) fn say_sleeping(&self, sleeping: bool) {
        let said = if sleeping { sleep_at(self.taken) } else { 0 };
        self.own.waiting.0.store(said, Ordering::SeqCst);
    }

    /// Announces that no more blocks are taken.
    pub(crate) fn close(&self) {
        self.own.closed.0.store(1, Ordering::SeqCst);
        wake(&self.own.closed.0, &self.common.state);
        wake(&self.own.replied.0, &self.common.state);
    }
}

impl Waits for ReceiveRing {
    type Found = Descriptor;
    const OPERATION: &'static str = "receive";
    const WHAT: &'static str = "no block came";

    fn look(&mut self) -> Result<Option<Descriptor>> {
        ReceiveRing::look(self)
    }
    fn check(&self) -> Result<()> {
        ReceiveRing::check(self)
    }
    fn common(&self) -> &Common {
        &self.common
    }
    fn watches(&self) -> [Watch<'_>; 3] {
        [
            Watch { word: &self.peer.sent.0, seen: self.taken },
            Watch { word: &self.peer.closed.0, seen: 0 },
            self.common.watch(),
        ]
    }
    fn say_sleeping(&self, sleeping: bool) {
        ReceiveRing::say_sleeping(self, sleeping);
    }
}

impl ReplyRing {
    /// Returns a slot, and wakes the sender if it sleeps. On a channel that has ended nobody reads
    /// the reply, which is not an error.
    pub(crate) fn reply(&mut self, slot: u32, status: u32, word: u64) {
        let held = std::mem::replace(&mut self.held[slot as usize], Held::Nothing);
        debug_assert!(held != Held::Nothing, "a block is replied to once");
        let at_ns = if held == Held::TimedBlock { monotonic_ns() } else { 0 };
        let record = ReplyRecord { slot, status, word, epoch: self.epoch, at_ns };
        self.own.ring[(self.replied % self.credits) as usize].store(&record);
        self.replied = self.replied.wrapping_add(1);
        self.own.replied.0.store(self.replied, Ordering::SeqCst);
        if self.woken.must_wake(&self.peer.waiting.0, self.replied) {
            wake(&self.own.replied.0, &self.state);
        }
    }
}
