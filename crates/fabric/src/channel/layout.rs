//! The words in the shared pages of a channel.
//!
//! ```text
//! page         written by    read-only for the others; contents
//! sender's     sender        counter of sent blocks, "I wait", descriptors
//! receiver's   receiver      counter of replies, "I wait", replies
//! state        controller    active, revoked, or which party is gone
//! payload      sender        credits x block bytes: the memory that the receiver granted
//! ```
//!
//! No party can forge a counter of another, because the kernel lets no other party write the page.
//! All fields are atomics. A reader copies what it needs from a page once, and trusts nothing
//! before it has checked the copy.

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The most blocks in flight on one channel.
pub const MAX_CREDITS: usize = 256;
/// The most bytes of a block.
pub const MAX_BLOCK_BYTES: usize = 1 << 30;
/// The number of user words that travel with a block.
pub const WORDS: usize = 4;

/// A field with a cache line of its own.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(crate) struct Line<T>(pub(crate) T);

/// The sender's page.
#[repr(C)]
pub(crate) struct SenderPage {
    /// The number of blocks sent, modulo 2^32. The receiver sleeps on it.
    pub(crate) sent: Line<AtomicU32>,
    /// Not 0 while the sender sleeps or is about to sleep.
    pub(crate) waiting: Line<AtomicU32>,
    /// Not 0 when the sender has closed properly: nothing will follow.
    pub(crate) closed: Line<AtomicU32>,
    pub(crate) ring: [DescriptorWords; MAX_CREDITS],
}

/// The receiver's page.
#[repr(C)]
pub(crate) struct ReceiverPage {
    /// The number of replies given, modulo 2^32. The sender sleeps on it.
    pub(crate) replied: Line<AtomicU32>,
    /// Not 0 while the receiver sleeps or is about to sleep.
    pub(crate) waiting: Line<AtomicU32>,
    /// Not 0 when the receiver has closed properly: it takes no more blocks.
    pub(crate) closed: Line<AtomicU32>,
    pub(crate) ring: [ReplyWords; MAX_CREDITS],
}

/// The controller's page. Both sides sleep on it in addition to the other's counter.
#[repr(C)]
pub(crate) struct StatePage {
    pub(crate) state: Line<AtomicU32>,
    /// The model's replacement of futexes.
    #[cfg(shuttle)]
    pub(crate) model: (crate::sync::Mutex<()>, shuttle::sync::Condvar),
}

/// The state of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum State {
    Configured = 0,
    Active = 1,
    Revoked = 2,
    SenderGone = 3,
    ReceiverGone = 4,
    ControllerGone = 5,
}

impl StatePage {
    pub(crate) fn get(&self) -> State {
        match self.state.0.load(Ordering::SeqCst) {
            0 => State::Configured,
            1 => State::Active,
            2 => State::Revoked,
            3 => State::SenderGone,
            4 => State::ReceiverGone,
            _ => State::ControllerGone,
        }
    }
}

/// A descriptor in the ring.
#[repr(C, align(64))]
#[derive(Default)]
pub(crate) struct DescriptorWords([AtomicU64; 8]);

/// A descriptor, copied from the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Descriptor {
    /// The slot of the payload.
    pub(crate) slot: u32,
    pub(crate) len: u32,
    /// The number of the block, from 0.
    pub(crate) sequence: u64,
    pub(crate) flags: u32,
    /// The CRC-32 of the bytes, on channels with checks.
    pub(crate) check: u32,
    /// The epoch of the channel.
    pub(crate) epoch: u64,
    pub(crate) words: [u64; WORDS],
}

/// The flag of the last block of a stream.
pub(crate) const END: u32 = 1;
/// The flag of a block whose sender wants to know when it is replied to.
pub(crate) const TIMED: u32 = 2;

impl DescriptorWords {
    /// Stores a descriptor. The counter that is stored afterwards publishes these words.
    pub(crate) fn store(&self, d: &Descriptor) {
        let halves = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let fixed = [halves(d.slot, d.len), d.sequence, halves(d.flags, d.check), d.epoch];
        for (word, value) in self.0.iter().zip(fixed.into_iter().chain(d.words)) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Copies the descriptor, reading each word once.
    pub(crate) fn load(&self) -> Descriptor {
        let w: [u64; 8] = std::array::from_fn(|i| self.0[i].load(Ordering::Relaxed));
        let (low, high) = (|v: u64| v as u32, |v: u64| (v >> 32) as u32);
        Descriptor {
            slot: low(w[0]),
            len: high(w[0]),
            sequence: w[1],
            flags: low(w[2]),
            check: high(w[2]),
            epoch: w[3],
            words: [w[4], w[5], w[6], w[7]],
        }
    }
}

/// A reply in the ring.
#[repr(C, align(32))]
#[derive(Default)]
pub(crate) struct ReplyWords([AtomicU64; 4]);

/// A reply, copied from the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReplyRecord {
    pub(crate) slot: u32,
    /// 0, or the number of an [`Outcome`](super::BlockOutcome).
    pub(crate) status: u32,
    pub(crate) word: u64,
    pub(crate) epoch: u64,
    /// When it was made, on the monotonic clock; 0 where the sender did not ask.
    pub(crate) at_ns: u64,
}

impl ReplyWords {
    pub(crate) fn store(&self, r: &ReplyRecord) {
        self.0[0].store(u64::from(r.slot) | u64::from(r.status) << 32, Ordering::Relaxed);
        self.0[1].store(r.word, Ordering::Relaxed);
        self.0[2].store(r.epoch, Ordering::Relaxed);
        self.0[3].store(r.at_ns, Ordering::Relaxed);
    }

    pub(crate) fn load(&self) -> ReplyRecord {
        let [first, word, epoch, at_ns] = std::array::from_fn(|i| self.0[i].load(Ordering::Relaxed));
        ReplyRecord { slot: first as u32, status: (first >> 32) as u32, word, epoch, at_ns }
    }
}

/// New pages are zeroed, and these values equal zeroed pages.
#[cfg(test)]
impl SenderPage {
    pub(crate) fn zeroed() -> SenderPage {
        let ring = std::array::from_fn(|_| DescriptorWords::default());
        SenderPage { sent: Line::default(), waiting: Line::default(), closed: Line::default(), ring }
    }
}

#[cfg(test)]
impl ReceiverPage {
    pub(crate) fn zeroed() -> ReceiverPage {
        let ring = std::array::from_fn(|_| ReplyWords::default());
        ReceiverPage { replied: Line::default(), waiting: Line::default(), closed: Line::default(), ring }
    }
}

#[cfg(test)]
impl StatePage {
    pub(crate) fn active() -> StatePage {
        StatePage {
            state: Line(AtomicU32::new(State::Active as u32)),
            #[cfg(shuttle)]
            model: Default::default(),
        }
    }
}
