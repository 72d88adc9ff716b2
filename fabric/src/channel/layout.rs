//! What lies in the shared pages of a channel, word by word.
//!
//! ```text
//! page         written by    mapped by the others for reading only
//! sender's     the sender    counter of blocks sent, "I wait", descriptors
//! receiver's   the receiver  counter of replies, "I wait", replies
//! state        controller    active, revoked, who is gone
//! payload      the sender    credits x block bytes: the memory that the receiver granted
//! ```
//!
//! Nobody can forge a counter of somebody else, because the kernel lets nobody else write the page.
//! All fields are atomics: whoever reads a page copies what it needs out of it once, and believes
//! nothing before it has checked the copy.

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Blocks under way on one channel, at most.
pub const MAX_CREDITS: usize = 256;
/// Bytes of a block, at most.
pub const MAX_BLOCK_BYTES: usize = 1 << 30;
/// User words that travel with a block.
pub const WORDS: usize = 4;

/// A field that has its cache line for itself.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(crate) struct Line<T>(pub(crate) T);

/// What the sender says.
#[repr(C)]
pub(crate) struct SenderPage {
    /// Blocks sent, modulo 2^32. The receiver sleeps on it.
    pub(crate) sent: Line<AtomicU32>,
    /// Not 0 while the sender sleeps, or is about to.
    pub(crate) waiting: Line<AtomicU32>,
    /// Not 0 when the sender has gone in good order: nothing will follow.
    pub(crate) closed: Line<AtomicU32>,
    pub(crate) ring: [DescriptorWords; MAX_CREDITS],
}

/// What the receiver says.
#[repr(C)]
pub(crate) struct ReceiverPage {
    /// Replies given, modulo 2^32. The sender sleeps on it.
    pub(crate) replied: Line<AtomicU32>,
    /// Not 0 while the receiver sleeps, or is about to.
    pub(crate) waiting: Line<AtomicU32>,
    /// Not 0 when the receiver has gone in good order: it takes nothing more.
    pub(crate) closed: Line<AtomicU32>,
    pub(crate) ring: [ReplyWords; MAX_CREDITS],
}

/// What the controller says. Both sides sleep on it beside the other's counter.
#[repr(C)]
pub(crate) struct StatePage {
    pub(crate) state: Line<AtomicU32>,
    /// In the model, what futexes are here.
    #[cfg(shuttle)]
    pub(crate) model: (crate::sync::Mutex<()>, shuttle::sync::Condvar),
}

/// Where a channel is in its life.
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

/// A descriptor as it lies in the ring.
#[repr(C, align(64))]
#[derive(Default)]
pub(crate) struct DescriptorWords([AtomicU64; 8]);

/// A descriptor, copied out of the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Descriptor {
    /// Which slot of the payload.
    pub(crate) slot: u32,
    pub(crate) len: u32,
    /// The number of the block, from 0.
    pub(crate) sequence: u64,
    pub(crate) flags: u32,
    /// CRC-32 of the bytes, on channels that are checked.
    pub(crate) check: u32,
    /// That of the channel.
    pub(crate) epoch: u64,
    pub(crate) words: [u64; WORDS],
}

/// The last block of a stream.
pub(crate) const END: u32 = 1;

impl DescriptorWords {
    /// The counter that is stored afterwards publishes these words.
    pub(crate) fn store(&self, d: &Descriptor) {
        let halves = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let fixed = [halves(d.slot, d.len), d.sequence, halves(d.flags, d.check), d.epoch];
        for (word, value) in self.0.iter().zip(fixed.into_iter().chain(d.words)) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Copies it, each word once.
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

/// A reply as it lies in the ring.
#[repr(C, align(32))]
#[derive(Default)]
pub(crate) struct ReplyWords([AtomicU64; 3]);

/// A reply, copied out of the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReplyRecord {
    pub(crate) slot: u32,
    /// 0, or the number of an [`Outcome`](super::BlockOutcome).
    pub(crate) status: u32,
    pub(crate) word: u64,
    pub(crate) epoch: u64,
}

impl ReplyWords {
    pub(crate) fn store(&self, r: &ReplyRecord) {
        self.0[0].store(u64::from(r.slot) | u64::from(r.status) << 32, Ordering::Relaxed);
        self.0[1].store(r.word, Ordering::Relaxed);
        self.0[2].store(r.epoch, Ordering::Relaxed);
    }

    pub(crate) fn load(&self) -> ReplyRecord {
        let [first, word, epoch] = std::array::from_fn(|i| self.0[i].load(Ordering::Relaxed));
        ReplyRecord { slot: first as u32, status: (first >> 32) as u32, word, epoch }
    }
}

/// Pages are zeroed when they are made, and these values are what zeroed pages hold.
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
