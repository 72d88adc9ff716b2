//! The contract of all transports, and the two ends that programs use.
//!
//! A block takes the same steps over every transport ([`Step`]): credit, push, notify, process,
//! reply. Over shared memory a push is a store into the receiver's memory, and a notification is a
//! counter. Over a socket both are one message. UCX, and RDMA by it, carries the messages of a
//! socket (see `bridge`); a device with RDMA of its own would push by a write with immediate data
//! into registered memory, and reply by a short send. So an [`Outlet`] hands out memory to fill
//! (the receiver's own, or a buffer that will be pushed there), and an [`Inlet`] hands out blocks
//! that the reply gives back.

mod ends;
mod local;
pub(crate) mod seal;
mod several;
mod shared;
mod socket;
mod times;

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

/// The steps of a block. A model of a transport assigns a time to each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// The sender gets the right to write a block of the receiver's memory.
    Credit,
    /// The bytes go into the receiver's memory.
    Push,
    /// The receiver is notified: descriptor, user words, end of stream.
    Notify,
    /// The receiver works on the bytes, in place.
    Process,
    /// The receiver replies, which returns the credit.
    Reply,
}

impl Step {
    /// All steps, in order.
    pub const ALL: [Step; 5] = [Step::Credit, Step::Push, Step::Notify, Step::Process, Step::Reply];
}

/// A reply, as the sender's transport returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Returned {
    /// The number of the block, from 0.
    pub sequence: u64,
    /// Whether it was the last of its stream.
    pub end: bool,
    /// The receiver's reply.
    pub reply: Reply,
    /// When the receiver made it, as the receiver says: on the monotonic clock of this machine, in
    /// nanoseconds. `None` where it was not [asked](Outlet::time_replies), or cannot be known.
    pub at_ns: Option<u64>,
}

/// The sender's end of a transport. Slots are numbers below the shape's credits. A taken slot is
/// either pushed or given back.
pub trait Outlet: Send {
    /// The shape of the channel.
    fn shape(&self) -> ChannelShape;
    /// Asks the receiver to say when it replies to the blocks that are pushed from now on, or no
    /// longer. A transport whose receiver has another clock does nothing.
    fn time_replies(&mut self, _on: bool) {}
    /// Takes a slot, if there is a credit.
    fn take(&mut self) -> Option<u32>;
    /// Gives back a slot that was not pushed.
    fn give_back(&mut self, slot: u32);
    /// The bytes of a slot that was taken.
    fn memory(&mut self, slot: u32) -> &mut [u8];
    /// Copies bytes into a slot that was taken, in the best way for the transport.
    fn fill(&mut self, slot: u32, bytes: &[u8]) {
        self.memory(slot)[..bytes.len()].copy_from_slice(bytes);
    }
    /// Pushes bytes from where they are. It copies them into the slot only if the transport needs
    /// that.
    ///
    /// # Errors
    /// Those of [`push`](Self::push).
    fn push_bytes(&mut self, slot: u32, bytes: &[u8], head: Head, patience: Patience) -> Result<()> {
        self.fill(slot, bytes);
        self.push(slot, bytes.len(), head, patience)
    }
    /// Pushes the first `len` bytes of a slot and notifies. It waits up to `patience` if the
    /// connection takes no more at present. A block that was begun by then counts as pushed.
    ///
    /// # Errors
    /// `Busy` when the patience is over and nothing was pushed, and any error that ended the
    /// channel (`PermissionDenied`, `Device`, `Corrupt`, `Unavailable`). The slot is given back.
    fn push(&mut self, slot: u32, len: usize, head: Head, patience: Patience) -> Result<()>;
    /// Returns a reply, if there is one now.
    ///
    /// # Errors
    /// `Corrupt` where the receiver breaks the protocol.
    fn poll_reply(&mut self) -> Result<Option<Returned>>;
    /// Waits for a reply.
    ///
    /// # Errors
    /// `Busy` when the patience is over, and any error that ended the channel.
    fn await_reply(&mut self, patience: Patience) -> Result<Returned>;
    /// The number of blocks pushed and not replied to.
    fn outstanding(&self) -> u32;
    /// Tells the receiver that nothing will follow.
    fn close(&mut self);
}

/// The receiver's end of a transport.
pub trait Inlet: Send {
    /// The shape of the channel.
    fn shape(&self) -> ChannelShape;
    /// Returns a block, if there is one now.
    ///
    /// # Errors
    /// Those of [`await_block`](Self::await_block), without `Busy`.
    fn poll_block(&mut self) -> Result<Option<Block>>;
    /// Waits for a block.
    ///
    /// # Errors
    /// `Busy` when the patience is over. `EndOfFile` where the sender closed. `Corrupt` where it
    /// breaks the protocol. `Device` where it died. `PermissionDenied` after a revocation.
    /// `Unavailable` where the controller ended.
    fn await_block(&mut self, patience: Patience) -> Result<Block>;
    /// The event to wait for together with those of other inlets.
    fn event(&self) -> InletEvent<'_>;
    /// Tells the sender whether this end sleeps and must be woken.
    fn say_sleeping(&self, sleeping: bool);
    /// Tells the sender that no more blocks are taken.
    fn close(&mut self);
}

/// The technology of a channel within one machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Carrier {
    /// Memory that both ends map.
    #[default]
    SharedMemory,
    /// A Unix socket, the baseline for comparison with shared memory.
    UnixSocket,
    /// A TCP connection over the loopback interface. It works like a channel to another machine,
    /// without the network.
    TcpLoopback,
    /// UCX over shared memory, between two processes beside the ends (bridges), to which the ends
    /// are connected by Unix sockets. It works like a link by UCX to another machine, without the
    /// network. UCX must be installed (`libucx0` of Debian).
    Ucx,
}

/// The event that shows that an inlet may have something new.
pub struct InletEvent<'a>(pub(crate) Source<'a>);

pub(crate) enum Source<'a> {
    Words([Watch<'a>; 3], &'a crate::channel::layout::StatePage, &'a crate::channel::ring::Alive),
    Descriptor(BorrowedFd<'a>, Option<&'a crate::channel::ring::Alive>),
}

impl<'a> InletEvent<'a> {
    /// An event that occurs when the descriptor is readable.
    pub fn descriptor(fd: BorrowedFd<'a>) -> InletEvent<'a> {
        InletEvent(Source::Descriptor(fd, None))
    }
}

/// The party that a block's credit returns to.
pub trait Credits: Send + Sync {
    /// Returns a slot with the reply. A private copy of the block, if there was one, is reused for
    /// the next block.
    fn reply(&self, slot: u32, reply: Reply, copy: Option<Vec<u8>>);
}

/// A shared reference to [`Credits`].
pub type Back = Arc<dyn Credits>;

#[cfg(test)]
mod bare;
#[cfg(all(test, shuttle))]
mod schedules;
#[cfg(all(test, not(shuttle)))]
mod tests;
