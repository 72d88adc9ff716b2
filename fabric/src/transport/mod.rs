//! The one contract of all transports, and the two ends that programs use.
//!
//! A block takes the same steps over every transport ([`Step`]): credit, push, notify, process,
//! reply. Over shared memory a push is a store into the receiver's memory and a notification a
//! counter; over a socket both are one message; over RDMA they would be a write with immediate data
//! into registered memory, and the reply a short send. So an [`Outlet`] hands out memory to fill
//! (the receiver's own, or what will be pushed there), and an [`Inlet`] hands out blocks that the
//! reply gives back.

mod ends;
mod local;
pub(crate) mod seal;
mod several;
mod shared;
mod socket;

pub use ends::{Block, Grant, Receiver, Sender};
pub use local::{pair, pair_with};
pub use several::{MAX_INLETS, receive_any};
pub(crate) use shared::{SharedInlet, SharedOutlet};
pub use socket::{SocketInlet, SocketOutlet, Token};

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use datapipes_core::Result;
use serde::{Deserialize, Serialize};

use crate::channel::bell::Watch;
use crate::channel::{ChannelShape, Head, Patience, Reply};

/// The steps of a block. A model of a transport gives each its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// The sender gets the right to write a block of the receiver's memory.
    Credit,
    /// The bytes go into the receiver's memory.
    Push,
    /// The receiver learns of it: descriptor, user words, end of stream.
    Notify,
    /// The receiver works on the bytes, in place.
    Process,
    /// The receiver answers, which returns the credit.
    Reply,
}

impl Step {
    /// All, in their order.
    pub const ALL: [Step; 5] = [Step::Credit, Step::Push, Step::Notify, Step::Process, Step::Reply];
}

/// A reply as the sender's transport tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Returned {
    /// The number of the block, from 0.
    pub sequence: u64,
    /// Whether it was the last of its stream.
    pub end: bool,
    /// What the receiver said.
    pub reply: Reply,
}

/// The sender's end of a transport. Slots are numbers below the shape's credits; one that was taken
/// is pushed or given back.
pub trait Outlet: Send {
    /// How large the channel is.
    fn shape(&self) -> ChannelShape;
    /// Takes a slot, if a credit is there.
    fn take(&mut self) -> Option<u32>;
    /// Gives a slot back that was not pushed.
    fn give_back(&mut self, slot: u32);
    /// The bytes of a slot that was taken.
    fn memory(&mut self, slot: u32) -> &mut [u8];
    /// Copies bytes into a slot that was taken, in the way that suits the transport.
    fn fill(&mut self, slot: u32, bytes: &[u8]) {
        self.memory(slot)[..bytes.len()].copy_from_slice(bytes);
    }
    /// Pushes bytes from where they are, filling a slot with them only where the transport needs
    /// that.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn push_bytes(&mut self, slot: u32, bytes: &[u8], head: Head, patience: Patience) -> Result<()> {
        self.fill(slot, bytes);
        self.push(slot, bytes.len(), head, patience)
    }
    /// Pushes the first `len` bytes of a slot and notifies. Waits up to `patience` for a way that
    /// takes no more just then; a block that was begun by then counts as pushed.
    ///
    /// # Errors
    /// `Busy` when patience ends and nothing was pushed; what ended the channel
    /// (`PermissionDenied`, `Device`, `Corrupt`, `Unavailable`). The slot is given back.
    fn push(&mut self, slot: u32, len: usize, head: Head, patience: Patience) -> Result<()>;
    /// A reply, if there is one now.
    ///
    /// # Errors
    /// `Corrupt` where the receiver breaks the protocol.
    fn poll_reply(&mut self) -> Result<Option<Returned>>;
    /// Waits for a reply.
    ///
    /// # Errors
    /// `Busy` when patience ends; what ended the channel.
    fn await_reply(&mut self, patience: Patience) -> Result<Returned>;
    /// Blocks pushed and not replied to.
    fn outstanding(&self) -> u32;
    /// Tells the receiver that nothing will follow.
    fn close(&mut self);
}

/// The receiver's end of a transport.
pub trait Inlet: Send {
    /// How large the channel is.
    fn shape(&self) -> ChannelShape;
    /// A block, if one is there now.
    ///
    /// # Errors
    /// As [`await_block`](Self::await_block), without `Busy`.
    fn poll_block(&mut self) -> Result<Option<Block>>;
    /// Waits for a block.
    ///
    /// # Errors
    /// `Busy` when patience ends; `EndOfFile` where the sender closed; `Corrupt` where it breaks
    /// the protocol; `Device` where it died; `PermissionDenied` after revocation; `Unavailable`
    /// where the controller ended.
    fn await_block(&mut self, patience: Patience) -> Result<Block>;
    /// What to sleep on beside other inlets.
    fn event(&self) -> InletEvent<'_>;
    /// Tells the sender whether this end sleeps, and must be woken.
    fn say_sleeping(&self, sleeping: bool);
    /// Tells the sender that nothing more is taken.
    fn close(&mut self);
}

/// What a channel within one machine goes over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Carrier {
    /// Memory that both ends map.
    #[default]
    SharedMemory,
    /// A Unix socket. The baseline that shared memory is compared with.
    UnixSocket,
    /// A TCP connection over the loopback interface: what a channel to another machine does,
    /// without the network.
    TcpLoopback,
}

/// What an inlet's news can be waited for by.
pub struct InletEvent<'a>(pub(crate) Source<'a>);

pub(crate) enum Source<'a> {
    Words([Watch<'a>; 3], &'a crate::channel::layout::StatePage, &'a crate::channel::ring::Alive),
    Descriptor(BorrowedFd<'a>, Option<&'a crate::channel::ring::Alive>),
}

impl<'a> InletEvent<'a> {
    /// Readable when there is something to look at.
    pub fn descriptor(fd: BorrowedFd<'a>) -> InletEvent<'a> {
        InletEvent(Source::Descriptor(fd, None))
    }
}

/// Where a block's credit goes back to.
pub trait Credits: Send + Sync {
    /// Returns a slot with the reply, and its private copy, if it had one, for the next block.
    fn reply(&self, slot: u32, reply: Reply, copy: Option<Vec<u8>>);
}

/// Shared credits.
pub type Back = Arc<dyn Credits>;

#[cfg(test)]
mod bare;
#[cfg(all(test, shuttle))]
mod schedules;
#[cfg(all(test, not(shuttle)))]
mod tests;
