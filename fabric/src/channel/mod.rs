//! A data channel in shared memory: one sender, one receiver, blocks one way, replies the other
//! (section 4.2 of the paper).
//!
//! The sender pushes a block into memory that the receiver granted, and notifies; the receiver
//! processes it in place; its reply returns the credit. A credit is the right to write one slot of
//! that memory, so credits gate memory, not messages.
//!
//! # What the receiver may rely on
//!
//! | [`Trust`] | the sender could write a block again while it is processed | cost |
//! |---|---|---|
//! | `Copy` | yes, and it changes nothing: a private copy is what is processed | one copy, if anybody looks |
//! | `InPlace` | yes: the sender is trusted not to, which is an `unsafe` promise (see [`TrustToken`]) | none |
//! | `InPlaceChecked` | as `InPlace`, and an accident is found: the CRC-32 is checked after processing | two passes |
//!
//! Who only carries blocks on (a relay, the resource-side CPU) needs neither: it copies from memory
//! to memory by instructions that do not care who writes meanwhile, and makes no reference to the
//! bytes.
//!
//! Everything else holds in all modes: counters, descriptors and bounds do not depend on the
//! sender's goodwill. Two other ways to take a block away from its sender were measured and not
//! taken: sealing a memory per block (a new memory, mapped and touched for the first time for each
//! block, at 0.3 to 1.2 GB/s), and write-protecting the slot in the sender by userfaultfd (71 us
//! there and back for 1 MiB, where the copy takes 51).

pub(crate) mod bell;
mod copy;
pub(crate) mod layout;
pub(crate) mod memory;
mod patience;
pub(crate) mod ring;

pub use copy::Copies;
pub use layout::{MAX_BLOCK_BYTES, MAX_CREDITS, WORDS};
pub use patience::Patience;
pub(crate) use patience::Waiting;

use datapipes_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// How large a channel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChannelShape {
    /// Blocks that may be under way, 1 to [`MAX_CREDITS`].
    pub credits: u32,
    /// Bytes of the longest block, 1 to [`MAX_BLOCK_BYTES`]. The channel has `credits` times as
    /// much memory.
    pub block_bytes: usize,
    /// Whether blocks carry a CRC-32.
    #[serde(default)]
    pub checked: bool,
}

impl ChannelShape {
    /// `credits` blocks of `block_bytes` bytes, unchecked.
    pub const fn new(credits: u32, block_bytes: usize) -> ChannelShape {
        ChannelShape { credits, block_bytes, checked: false }
    }

    /// Whether such a channel can be.
    ///
    /// # Errors
    /// `InvalidInput` with the bound that is not met.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::new(ErrorKind::InvalidInput, "create a channel", what));
        if self.credits == 0 || self.credits as usize > MAX_CREDITS {
            return wrong(format!("{} credits, where 1 to {MAX_CREDITS} can be", self.credits));
        }
        if self.block_bytes == 0 || self.block_bytes > MAX_BLOCK_BYTES {
            return wrong(format!("blocks of {} bytes, where 1 to {MAX_BLOCK_BYTES} can be", self.block_bytes));
        }
        Ok(())
    }

    /// Bytes of the memory of such a channel.
    pub(crate) fn payload_bytes(&self) -> usize {
        self.credits as usize * self.slot_bytes()
    }

    /// Bytes from the start of one slot to the next: whole pages from a page on, so that slots can
    /// be mapped and flushed apart.
    pub(crate) fn slot_bytes(&self) -> usize {
        self.block_bytes.next_multiple_of(if self.block_bytes < 4096 { 64 } else { 4096 })
    }
}

/// How far a receiver trusts the sender of a channel: see the page of this module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// Process a private copy, made at the first look at a block (where blocks are checked, when it
    /// is received).
    #[default]
    Copy,
    /// Process in place; the sender keeps to the protocol.
    InPlace(TrustToken),
    /// Process in place, and check the bytes afterwards. Only on channels that are checked.
    InPlaceChecked(TrustToken),
}

impl Trust {
    /// [`Trust::InPlace`].
    ///
    /// # Safety
    /// As [`TrustToken::new`].
    #[allow(unsafe_code)]
    pub const unsafe fn in_place() -> Trust {
        Trust::InPlace(TrustToken(()))
    }

    /// [`Trust::InPlaceChecked`].
    ///
    /// # Safety
    /// As [`TrustToken::new`]: what the check finds has been seen by then.
    #[allow(unsafe_code)]
    pub const unsafe fn in_place_checked() -> Trust {
        Trust::InPlaceChecked(TrustToken(()))
    }
}

/// Somebody's word that a sender keeps to the protocol.
///
/// A block in place is shown as `&[u8]`, and Rust takes it that such bytes do not change. The
/// sender's process has them mapped for writing, and no kernel mechanism that is fast enough takes
/// that away block by block; so it is for who chooses this trust to know who the sender is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrustToken(());

impl TrustToken {
    /// The word.
    ///
    /// # Safety
    /// Whoever is the sender of the channels that this is used for does not write a block between
    /// sending it and getting the reply, until the channel's end. Every sender of this crate keeps
    /// to that, also if its program is wrong or dies; a process with other code, or one that was
    /// taken over, may not.
    #[allow(unsafe_code)]
    pub const unsafe fn new() -> TrustToken {
        TrustToken(())
    }
}

/// How a receiver takes blocks, as it is told between processes. Not public: reading one from text
/// must not make a
/// [`TrustToken`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Taking {
    Copy,
    InPlace,
    InPlaceChecked,
    /// In place and carried on; a private copy is made only if somebody looks.
    Carried,
}

impl From<Trust> for Taking {
    fn from(trust: Trust) -> Taking {
        match trust {
            Trust::Copy => Taking::Copy,
            Trust::InPlace(_) => Taking::InPlace,
            Trust::InPlaceChecked(_) => Taking::InPlaceChecked,
        }
    }
}

/// What travels with a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// For the user; forwarded by transforms.
    pub words: [u64; WORDS],
    /// The last block of its stream. It may be empty.
    pub end: bool,
}

/// What became of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BlockOutcome {
    /// Processed; by who forwards, sent on.
    Done,
    /// Dropped without being processed.
    Dropped,
    /// The bytes were not those that were sent.
    Damaged,
    /// The receiver could not process it.
    Failed,
    /// The place behind the receiver is full.
    NoSpace,
}

impl BlockOutcome {
    const ALL: [BlockOutcome; 5] =
        [BlockOutcome::Done, BlockOutcome::Dropped, BlockOutcome::Damaged, BlockOutcome::Failed, BlockOutcome::NoSpace];

    pub(crate) fn code(self) -> u32 {
        self as u32
    }

    /// What is not known was not done.
    pub(crate) fn of(code: u32) -> BlockOutcome {
        BlockOutcome::ALL.get(code as usize).copied().unwrap_or(BlockOutcome::Failed)
    }

    /// What an error means to the other side.
    pub fn of_error(error: &Error) -> BlockOutcome {
        match error.kind() {
            ErrorKind::NoSpace => BlockOutcome::NoSpace,
            ErrorKind::Corrupt => BlockOutcome::Damaged,
            _ => BlockOutcome::Failed,
        }
    }
}

/// The receiver's reply to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// What became of it.
    pub outcome: BlockOutcome,
    /// For the user.
    pub word: u64,
}

impl Reply {
    /// Processed.
    pub const DONE: Reply = Reply { outcome: BlockOutcome::Done, word: 0 };

    /// The reply, unless it tells a failure.
    ///
    /// # Errors
    /// `NoSpace`, `Corrupt` or `Device`, by the outcome.
    pub fn into_result(self) -> Result<Reply> {
        let (kind, what) = match self.outcome {
            BlockOutcome::Done => return Ok(self),
            BlockOutcome::Dropped => (ErrorKind::Device, "the receiver dropped a block without processing it"),
            BlockOutcome::Damaged => (ErrorKind::Corrupt, "a block did not arrive as it was sent"),
            BlockOutcome::Failed => (ErrorKind::Device, "the receiver could not process a block"),
            BlockOutcome::NoSpace => (ErrorKind::NoSpace, "the place behind the receiver is full"),
        };
        Err(Error::new(kind, "send", what))
    }
}
