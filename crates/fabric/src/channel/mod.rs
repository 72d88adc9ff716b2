//! A data channel in shared memory: one sender and one receiver, with blocks in one direction and
//! replies in the other (section 4.2 of the paper).
//!
//! The sender pushes a block into memory that the receiver granted, and notifies. The receiver
//! processes it in place. Its reply returns the credit. A credit is the right to write one slot of
//! that memory, so credits limit memory, not messages.
//!
//! # What the receiver can rely on
//!
//! | [`Trust`] | May the sender write a block again while it is processed? | Cost |
//! |---|---|---|
//! | `Copy` | yes, without effect: a private copy is processed | one copy, if the bytes are used |
//! | `InPlace` | yes, but an `unsafe` promise says that it does not ([`TrustToken`]) | none |
//! | `InPlaceChecked` | as `InPlace`; a CRC-32 after processing detects accidents | two passes |
//!
//! A receiver that only passes blocks on (a relay, the resource-side CPU) needs neither. It copies
//! from memory to memory by instructions that tolerate concurrent writes, and makes no reference to
//! the bytes.
//!
//! Everything else holds in all modes: counters, descriptors and bounds do not depend on the
//! sender's goodwill. Two other ways to protect a block from its sender were measured and rejected:
//! sealing a memory for each block (new memory, mapped and touched for the first time for each
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

/// The size of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChannelShape {
    /// The number of blocks that may be in flight, 1 to [`MAX_CREDITS`].
    pub credits: u32,
    /// The bytes of the longest block, 1 to [`MAX_BLOCK_BYTES`]. The channel has `credits` times as
    /// much memory.
    pub block_bytes: usize,
    /// Whether blocks carry a CRC-32.
    #[serde(default)]
    pub checked: bool,
}

impl ChannelShape {
    /// Returns a shape with `credits` blocks of `block_bytes` bytes, without checks.
    pub const fn new(credits: u32, block_bytes: usize) -> ChannelShape {
        ChannelShape { credits, block_bytes, checked: false }
    }

    /// Checks whether such a channel is possible.
    ///
    /// # Errors
    /// `InvalidInput` with the violated limit.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::new(ErrorKind::InvalidInput, "create a channel", what));
        if self.credits == 0 || self.credits as usize > MAX_CREDITS {
            return wrong(format!("{} credits; the limit is 1 to {MAX_CREDITS}", self.credits));
        }
        if self.block_bytes == 0 || self.block_bytes > MAX_BLOCK_BYTES {
            return wrong(format!("blocks of {} bytes; the limit is 1 to {MAX_BLOCK_BYTES}", self.block_bytes));
        }
        Ok(())
    }

    /// The bytes of the memory of such a channel.
    pub(crate) fn payload_bytes(&self) -> usize {
        self.credits as usize * self.slot_bytes()
    }

    /// The bytes from the start of one slot to the next. Slots of a page or more are whole pages,
    /// so that they can be mapped and flushed separately.
    pub(crate) fn slot_bytes(&self) -> usize {
        self.block_bytes.next_multiple_of(if self.block_bytes < 4096 { 64 } else { 4096 })
    }
}

/// How much a receiver trusts the sender of a channel: see the documentation of this module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// The receiver processes a private copy. It is made at the first look at a block, or with
    /// checks when the block is received.
    #[default]
    Copy,
    /// The receiver processes in place, and the sender follows the protocol.
    InPlace(TrustToken),
    /// The receiver processes in place and checks the bytes afterwards. It needs a channel with
    /// checks.
    InPlaceChecked(TrustToken),
}

impl Trust {
    /// Returns [`Trust::InPlace`].
    ///
    /// # Safety
    /// Those of [`TrustToken::new`].
    #[allow(unsafe_code)]
    pub const unsafe fn in_place() -> Trust {
        Trust::InPlace(TrustToken(()))
    }

    /// Returns [`Trust::InPlaceChecked`].
    ///
    /// # Safety
    /// Those of [`TrustToken::new`]: an error that the check finds was seen already.
    #[allow(unsafe_code)]
    pub const unsafe fn in_place_checked() -> Trust {
        Trust::InPlaceChecked(TrustToken(()))
    }
}

/// A promise that a sender follows the protocol.
///
/// A block in place is shown as `&[u8]`, and Rust assumes that such bytes do not change. The
/// sender's process has them mapped for writing, and no fast enough kernel mechanism takes that
/// away for each block. So the code that chooses this trust must know the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrustToken(());

impl TrustToken {
    /// Makes the promise.
    ///
    /// # Safety
    /// The senders of the channels that this is used for do not write a block between sending it
    /// and getting the reply, until the channel's end. Every sender of this crate follows that
    /// rule, also if its program is wrong or dies. A process with other code, or a compromised one,
    /// may not.
    #[allow(unsafe_code)]
    pub const unsafe fn new() -> TrustToken {
        TrustToken(())
    }
}

/// How a receiver takes blocks, as it is sent between processes. It is not public: reading one from
/// text must not make a [`TrustToken`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ReceiveMode {
    Copy,
    InPlace,
    InPlaceChecked,
    /// In place and passed on. A private copy is made only if somebody looks at the bytes.
    Carried,
}

impl From<Trust> for ReceiveMode {
    fn from(trust: Trust) -> ReceiveMode {
        match trust {
            Trust::Copy => ReceiveMode::Copy,
            Trust::InPlace(_) => ReceiveMode::InPlace,
            Trust::InPlaceChecked(_) => ReceiveMode::InPlaceChecked,
        }
    }
}

/// The data that travel with a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Words for the user. Transforms forward them.
    pub words: [u64; WORDS],
    /// Whether it is the last block of its stream. It may be empty.
    pub end: bool,
}

/// The outcome of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BlockOutcome {
    /// Processed. From a relay it means sent on.
    Done,
    /// Dropped without being processed.
    Dropped,
    /// The bytes differ from those that were sent.
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

    /// Returns the outcome of a code. An unknown code counts as failed.
    pub(crate) fn of(code: u32) -> BlockOutcome {
        BlockOutcome::ALL.get(code as usize).copied().unwrap_or(BlockOutcome::Failed)
    }

    /// Returns what the other side is told about an error.
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
    /// The outcome of the block.
    pub outcome: BlockOutcome,
    /// A word for the user.
    pub word: u64,
}

impl Reply {
    /// The reply to a processed block.
    pub const DONE: Reply = Reply { outcome: BlockOutcome::Done, word: 0 };

    /// Returns the reply, unless it reports a failure.
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
