//! Data channels: their ends, and the blocks that arrive (Asmussen and Roitzsch, section 4.2).

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::MutexGuard;
use std::time::Duration;

use datapipes::fabric::channel::{BlockOutcome, ChannelShape, Head, Patience, Reply, Trust};
use datapipes::fabric::transport::{self, Block, Grant, Receiver, Sender};
use datapipes::{Error, ErrorKind, Result};

use crate::arguments;
use crate::door::enter;
use crate::error::dp_error;
use crate::handles::{Kind, Table};
use crate::place::len_of;
use crate::process_lock::ProcessLock;

/// The size of a channel.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_channel_shape {
    /// The bytes of the longest block, 1 to 2^30. The channel has `credits` times as much memory.
    pub block_bytes: u64,
    /// The number of blocks that may be under way, 1 to 256.
    pub credits: u32,
    /// Not 0: blocks carry a CRC-32.
    pub checked: u32,
}

impl dp_channel_shape {
    pub(crate) fn shape(self) -> Result<ChannelShape> {
        let mut shape = ChannelShape::new(self.credits, len_of(self.block_bytes)?);
        shape.checked = self.checked != 0;
        Ok(shape)
    }
}

/// What travels with a block.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct dp_block_head {
    /// Words of the program's. Devices pass them on.
    pub words: [u64; 4],
    /// Not 0: the last block of its stream. It may be empty.
    pub end: u64,
}

impl From<dp_block_head> for Head {
    fn from(head: dp_block_head) -> Head {
        Head { words: head.words, end: head.end != 0 }
    }
}

impl From<Head> for dp_block_head {
    fn from(head: Head) -> dp_block_head {
        dp_block_head { words: head.words, end: head.end.into() }
    }
}

/// How much a receiver trusts the sender of a channel.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum dp_trust {
    /// The receiver sees a private copy of a block.
    DP_TRUST_COPY = 0,
    /// It sees the block in place. Who chooses this promises that the sender does not write a block
    /// between sending it and its reply. All senders of this library keep that.
    DP_TRUST_IN_PLACE = 1,
    /// As before, and the bytes are checked when a block is done. The shape must be `checked`.
    DP_TRUST_IN_PLACE_CHECKED = 2,
}

pub(crate) fn trust_of(number: u32) -> Result<Trust> {
    match number {
        0 => Ok(Trust::Copy),
        // SAFETY: the header says what who passes this number promises.
        1 => Ok(unsafe { Trust::in_place() }),
        // SAFETY: as above.
        2 => Ok(unsafe { Trust::in_place_checked() }),
        other => Err(Error::new(ErrorKind::InvalidInput, "call", format!("{other} is no dp_trust"))),
    }
}

/// What became of a block.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum dp_block_outcome {
    /// It was processed. From a relay: it was sent on.
    DP_BLOCK_DONE = 0,
    /// It was dropped.
    DP_BLOCK_DROPPED = 1,
    /// Its bytes are not those that were sent.
    DP_BLOCK_DAMAGED = 2,
    /// The receiver could not process it.
    DP_BLOCK_FAILED = 3,
    /// The place behind the receiver is full.
    DP_BLOCK_NO_SPACE = 4,
}

fn outcome_of(number: u32) -> Result<BlockOutcome> {
    use BlockOutcome::{Damaged, Done, Dropped, Failed, NoSpace};
    [Done, Dropped, Damaged, Failed, NoSpace]
        .get(number as usize)
        .copied()
        .ok_or_else(|| Error::new(ErrorKind::InvalidInput, "reply", format!("{number} is no dp_block_outcome")))
}

/// The reply to a block.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_block_reply {
    /// The number of the block, from 0.
    pub sequence: u64,
    /// A word of the receiver's.
    pub word: u64,
    /// A `dp_block_outcome`.
    pub outcome: u32,
    /// Not 0: the block was the last of its stream.
    pub end: u32,
}

/// How long a call waits, in milliseconds; `UINT64_MAX` until the channel ends.
pub(crate) fn patience_of(milliseconds: u64) -> Patience {
    match milliseconds {
        u64::MAX => Patience::UNTIL_ENDED,
        limit => Patience::up_to(Duration::from_millis(limit)),
    }
}

/// The sending end of a channel. It belongs to the caller, who closes it with `dp_sender_close`. One
/// thread at a time uses it: another is refused with DP_BUSY.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_sender {
    /// The number; 0 for none.
    pub id: u64,
}

/// The receiving end of a channel. It belongs to the caller, who closes it with `dp_receiver_close`.
/// One thread at a time uses it: another is refused with DP_BUSY.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_receiver {
    /// The number; 0 for none.
    pub id: u64,
}

/// A block that arrived. It belongs to the caller, who replies to it with `dp_block_answer`, or
/// closes it with `dp_block_close`. Until then it holds a credit of its channel.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_block {
    /// The number; 0 for none.
    pub id: u64,
}

/// A sender, and the memory that it has granted.
pub(crate) struct SendingEnd {
    /// A box of its own, so that a grant may refer to it.
    sender: NonNull<Sender>,
    /// It has the sender's only reference while it is there.
    grant: Option<Grant<'static>>,
}

// SAFETY: a sender and a grant, which is a reference to it, may go to another thread.
unsafe impl Send for SendingEnd where Sender: Send {}

impl SendingEnd {
    pub(crate) fn new(sender: Sender) -> SendingEnd {
        SendingEnd { sender: NonNull::from(Box::leak(Box::new(sender))), grant: None }
    }

    fn sender(&mut self) -> Result<&mut Sender> {
        if self.grant.is_some() {
            return Err(Error::new(ErrorKind::Busy, "send", "memory of a block is granted")
                .with_advice("send the granted block, or give it back"));
        }
        // SAFETY: the box lives until this is dropped, and no grant refers to it.
        Ok(unsafe { self.sender.as_mut() })
    }

    fn grant(&mut self) -> Result<(*mut u8, usize)> {
        self.sender()?;
        // SAFETY: as above; the reference is in the grant alone, which is dropped before the box.
        let mut grant = unsafe { &mut *self.sender.as_ptr() }.grant()?;
        let bytes = grant.bytes();
        let given = (bytes.as_mut_ptr(), bytes.len());
        self.grant = Some(grant);
        Ok(given)
    }

    fn granted(&mut self) -> Result<Grant<'static>> {
        let none = || Error::new(ErrorKind::InvalidInput, "send", "no memory is granted");
        self.grant.take().ok_or_else(none)
    }
}

impl Drop for SendingEnd {
    fn drop(&mut self) {
        self.grant = None;
        // SAFETY: the box was leaked in `new`, and nothing refers to it any more.
        drop(unsafe { Box::from_raw(self.sender.as_ptr()) });
    }
}

static SENDERS: Table<ProcessLock<SendingEnd>> = Table::new(Kind::Sender);
/// A receiver is away only while a call waits for several, which has its lock.
static RECEIVERS: Table<ProcessLock<Option<Receiver>>> = Table::new(Kind::Receiver);
static BLOCKS: Table<ProcessLock<Option<Block>>> = Table::new(Kind::Block);

pub(crate) fn keep_sender(sender: Sender) -> Result<dp_sender> {
    Ok(dp_sender { id: SENDERS.put(ProcessLock::new(SendingEnd::new(sender)))? })
}

pub(crate) fn keep_receiver(receiver: Receiver) -> Result<dp_receiver> {
    Ok(dp_receiver { id: RECEIVERS.put(ProcessLock::new(Some(receiver)))? })
}

fn alone<'a, T>(lock: &'a ProcessLock<T>, operation: &'static str) -> Result<MutexGuard<'a, T>> {
    lock.try_lock(operation)?
        .ok_or_else(|| Error::new(ErrorKind::Busy, operation, "another thread uses this end of the channel"))
}

fn sending<R>(sender: dp_sender, work: impl FnOnce(&mut SendingEnd) -> Result<R>) -> Result<R> {
    let end = SENDERS.get(sender.id)?;
    let mut end = alone(&end, "send")?;
    work(&mut end)
}

fn receiving<R>(receiver: dp_receiver, work: impl FnOnce(&mut Receiver) -> Result<R>) -> Result<R> {
    let end = RECEIVERS.get(receiver.id)?;
    let mut end = alone(&end, "receive")?;
    work(end.as_mut().ok_or_else(lost)?)
}

/// The receivers are taken from their handles for the time of the call.
fn receive_any(receivers: &[dp_receiver], last: usize, patience: Patience) -> Result<(usize, Result<Block>)> {
    let held = receivers.iter().map(|receiver| RECEIVERS.get(receiver.id)).collect::<Result<Vec<_>>>()?;
    let mut ends = held.iter().map(|end| alone(end, "receive")).collect::<Result<Vec<_>>>()?;
    let mut taken: Vec<Option<Receiver>> = ends.iter_mut().map(|end| end.take()).collect();
    let outcome = match taken.iter().all(Option::is_some) {
        true => transport::receive_any(&mut taken, last, patience),
        false => Err(lost()),
    };
    ends.iter_mut().zip(taken).for_each(|(end, taken)| **end = taken);
    outcome
}

fn lost() -> Error {
    Error::new(ErrorKind::Panicked, "receive", "a call that waited for several receivers panicked")
}

fn with_block<R>(block: dp_block, work: impl FnOnce(&Block) -> Result<R>) -> Result<R> {
    let held = BLOCKS.get(block.id)?;
    let held = alone(&held, "use a block")?;
    work(held.as_ref().ok_or_else(answered)?)
}

fn answered() -> Error {
    Error::new(ErrorKind::InvalidInput, "use a block", "another thread replied to it")
}

/// Makes the two ends of a channel in this process, for programs whose stages are threads. `trust`
/// is a `dp_trust`.
///
/// Errors: DP_INVALID_INPUT for a shape that is out of bounds; DP_OUT_OF_MEMORY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_channel_pair(
    shape: dp_channel_shape,
    trust: u32,
    sender: *mut dp_sender,
    receiver: *mut dp_receiver,
) -> dp_error {
    enter(|| {
        arguments::check(sender, "sender")?;
        arguments::check(receiver, "receiver")?;
        let (sends, receives) = transport::pair(shape.shape()?, trust_of(trust)?)?;
        let (sends, receives) = (keep_sender(sends)?, keep_receiver(receives)?);
        // SAFETY: the header says what the pointers are.
        unsafe {
            arguments::give(sender, "sender", sends)?;
            arguments::give(receiver, "receiver", receives)
        }
    })
}

/// Sets how long calls for a sender wait, in milliseconds: 0 not at all, `UINT64_MAX` until the
/// channel ends. Without this it is ten seconds. A call whose time is over fails with DP_BUSY, and
/// the channel can be used further.
#[unsafe(no_mangle)]
pub extern "C" fn dp_sender_set_patience(sender: dp_sender, milliseconds: u64) -> dp_error {
    enter(|| {
        sending(sender, |end| {
            end.sender()?.set_patience(patience_of(milliseconds));
            Ok(())
        })
    })
}

/// Sends a copy of `len` bytes. They may be changed when this returns.
///
/// Errors: DP_OUT_OF_RANGE for more bytes than a block holds; DP_BUSY where no credit came in time,
/// and while memory is granted; the failure that a reply reported, once; DP_PERMISSION_DENIED after a
/// revocation; DP_DEVICE where the other side died; DP_UNAVAILABLE where the controller ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_sender_send(
    sender: dp_sender,
    bytes: *const c_void,
    len: usize,
    head: dp_block_head,
) -> dp_error {
    enter(|| {
        // SAFETY: the header says what the pointer is.
        let bytes = unsafe { arguments::slice(bytes.cast::<u8>(), len, "bytes")? };
        sending(sender, |end| end.sender()?.send(bytes, head.into()))
    })
}

/// Waits for a credit, and gives the memory of one block, to be filled in place: `*len` bytes at
/// `*bytes`, which hold older data. The address is valid until `dp_sender_send_granted`,
/// `dp_sender_give_back` or `dp_sender_close`. Until then other calls that send are refused.
///
/// Errors: as `dp_sender_send`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_sender_grant(sender: dp_sender, bytes: *mut *mut c_void, len: *mut usize) -> dp_error {
    enter(|| {
        arguments::check(bytes, "bytes")?;
        arguments::check(len, "len")?;
        let (at, has) = sending(sender, SendingEnd::grant)?;
        // SAFETY: the header says what the pointers are.
        unsafe {
            arguments::give(bytes, "bytes", at.cast())?;
            arguments::give(len, "len", has)
        }
    })
}

/// Sends the first `len` bytes of the memory that was granted.
///
/// Errors: DP_INVALID_INPUT where none is; DP_OUT_OF_RANGE for more than a block holds: the memory
/// is given back then; what ended the channel.
#[unsafe(no_mangle)]
pub extern "C" fn dp_sender_send_granted(sender: dp_sender, len: usize, head: dp_block_head) -> dp_error {
    enter(|| sending(sender, |end| end.granted()?.send(len, head.into())))
}

/// Gives the memory that was granted back, without sending it.
///
/// Errors: DP_INVALID_INPUT where none is.
#[unsafe(no_mangle)]
pub extern "C" fn dp_sender_give_back(sender: dp_sender) -> dp_error {
    enter(|| sending(sender, |end| end.granted().map(drop)))
}

/// Sends a block that was received on. Its bytes are copied from memory to memory. The block stays
/// the caller's.
///
/// Errors: as `dp_sender_send`.
#[unsafe(no_mangle)]
pub extern "C" fn dp_sender_forward(sender: dp_sender, block: dp_block, head: dp_block_head) -> dp_error {
    enter(|| with_block(block, |block| sending(sender, |end| end.sender()?.forward(block, head.into()))))
}

/// Ends the stream with an empty block, and waits until every block was replied to: over a chain of
/// devices, until all of it is done. `*word`, if it is not NULL, becomes the word of the reply to the
/// end. The channel can carry another stream afterwards. `head.end` needs not be set.
///
/// Errors: as `dp_sender_send`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_sender_finish(sender: dp_sender, head: dp_block_head, word: *mut u64) -> dp_error {
    enter(|| {
        arguments::check_optional(word, "word")?;
        let reply = sending(sender, |end| end.sender()?.finish(head.words))?;
        // SAFETY: the header says what the pointer is.
        if let Some(word) = unsafe { word.as_mut() } {
            *word = reply.word;
        }
        Ok(())
    })
}

/// Waits until every block was replied to.
///
/// Errors: as `dp_sender_send`.
#[unsafe(no_mangle)]
pub extern "C" fn dp_sender_drain(sender: dp_sender) -> dp_error {
    enter(|| sending(sender, |end| end.sender()?.drain().map(|_| ())))
}

/// Gives the next reply that was not taken yet, in the order in which they came; waits where there
/// is none. The last replies are kept for this, as many as the channel has credits.
///
/// Errors: DP_INVALID_INPUT where no block is under way; as `dp_sender_send`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_sender_reply(sender: dp_sender, reply: *mut dp_block_reply) -> dp_error {
    enter(|| {
        arguments::check(reply, "reply")?;
        let returned = sending(sender, |end| end.sender()?.reply())?;
        let outcome = returned.reply.outcome as u32;
        let (sequence, end) = (returned.sequence, returned.end.into());
        let given = dp_block_reply { sequence, word: returned.reply.word, outcome, end };
        // SAFETY: the header says what the pointer is.
        unsafe { arguments::give(reply, "reply", given) }
    })
}

/// Gives how many blocks were sent and not replied to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_sender_outstanding(sender: dp_sender, blocks: *mut u32) -> dp_error {
    enter(|| {
        arguments::check(blocks, "blocks")?;
        let count = sending(sender, |end| Ok(end.sender()?.outstanding()))?;
        // SAFETY: the header says what the pointer is.
        unsafe { arguments::give(blocks, "blocks", count) }
    })
}

/// Ends a sender: nothing will follow, and its receiver is told so.
///
/// Errors: DP_INVALID_INPUT for a sender that was closed.
#[unsafe(no_mangle)]
pub extern "C" fn dp_sender_close(sender: dp_sender) -> dp_error {
    enter(|| SENDERS.close(sender.id))
}

/// Sets how long calls for a receiver wait, as `dp_sender_set_patience` does.
#[unsafe(no_mangle)]
pub extern "C" fn dp_receiver_set_patience(receiver: dp_receiver, milliseconds: u64) -> dp_error {
    enter(|| {
        receiving(receiver, |end| {
            end.set_patience(patience_of(milliseconds));
            Ok(())
        })
    })
}

/// Waits for the next block. `*head` and `*len`, if they are not NULL, become what travels with it
/// and the number of its bytes.
///
/// Errors: DP_BUSY where none came in time; DP_END_OF_FILE where the sender closed; DP_CORRUPT where
/// it broke the protocol; DP_DEVICE where it died; DP_PERMISSION_DENIED after a revocation;
/// DP_UNAVAILABLE where the controller ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_receiver_receive(
    receiver: dp_receiver,
    block: *mut dp_block,
    head: *mut dp_block_head,
    len: *mut usize,
) -> dp_error {
    enter(|| {
        // SAFETY: the header says what the pointers are.
        unsafe {
            check_block(block, head, len)?;
            give_block(receiving(receiver, Receiver::receive)?, block, head, len)
        }
    })
}

/// As `dp_receiver_receive`, without waiting: `*block` becomes 0 where none has arrived.
///
/// Errors: as `dp_receiver_receive`, without DP_BUSY for a block that did not come.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_receiver_poll(
    receiver: dp_receiver,
    block: *mut dp_block,
    head: *mut dp_block_head,
    len: *mut usize,
) -> dp_error {
    enter(|| {
        // SAFETY: the header says what the pointers are.
        unsafe {
            check_block(block, head, len)?;
            match receiving(receiver, Receiver::try_receive)? {
                Some(arrived) => give_block(arrived, block, head, len),
                None => arguments::give(block, "block", dp_block { id: 0 }),
            }
        }
    })
}

/// Waits, up to `milliseconds` (`UINT64_MAX`: until it is ended), for the next block of any of `count`
/// receivers, at most 42. It looks first at the one after `last`: pass `*which` of the call before, so
/// that none starves. `*which` becomes the index of the receiver whose block this is, or whose error is
/// returned: that of a channel which ended (DP_END_OF_FILE) concerns no other. `*which` becomes
/// `SIZE_MAX` where the error is none of a channel.
///
/// Errors: as `dp_receiver_receive`; DP_BUSY where none came in time, and where a receiver is named
/// twice or another thread uses one; DP_INVALID_INPUT for 0 or too many receivers; DP_UNSUPPORTED for a
/// mixture of shared memory and sockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_receiver_receive_any(
    receivers: *const dp_receiver,
    count: usize,
    last: usize,
    milliseconds: u64,
    which: *mut usize,
    block: *mut dp_block,
    head: *mut dp_block_head,
    len: *mut usize,
) -> dp_error {
    enter(|| {
        arguments::check(which, "which")?;
        check_block(block, head, len)?;
        // SAFETY: the header says what the pointers are.
        let receivers = unsafe { arguments::slice(receivers, count, "receivers")? };
        // SAFETY: as above.
        unsafe { which.write(usize::MAX) };
        if receivers.is_empty() || receivers.len() > transport::MAX_INLETS {
            let why = format!("from {} channels: 1 to {}", receivers.len(), transport::MAX_INLETS);
            return Err(Error::new(ErrorKind::InvalidInput, "receive", why));
        }
        let (at, arrived) = receive_any(receivers, last % receivers.len(), patience_of(milliseconds))?;
        // SAFETY: as above.
        unsafe {
            which.write(at);
            give_block(arrived?, block, head, len)
        }
    })
}

fn check_block(block: *const dp_block, head: *const dp_block_head, len: *const usize) -> Result<()> {
    arguments::check(block, "block")?;
    arguments::check_optional(head, "head")?;
    arguments::check_optional(len, "len")
}

/// # Safety
/// `block` is valid for a write; `head` and `len` are null or valid for one.
unsafe fn give_block(arrived: Block, block: *mut dp_block, head: *mut dp_block_head, len: *mut usize) -> Result<()> {
    let (its_head, its_len) = (arrived.head(), arrived.len());
    let id = BLOCKS.put(ProcessLock::new(Some(arrived)))?;
    // SAFETY: the caller of this function says so.
    unsafe {
        if !head.is_null() {
            head.write(its_head.into());
        }
        if !len.is_null() {
            len.write(its_len);
        }
        arguments::give(block, "block", dp_block { id })
    }
}

/// Ends a receiver: its sender is told that no more blocks are taken.
///
/// Errors: DP_INVALID_INPUT for a receiver that was closed.
#[unsafe(no_mangle)]
pub extern "C" fn dp_receiver_close(receiver: dp_receiver) -> dp_error {
    enter(|| RECEIVERS.close(receiver.id))
}

/// Gives the bytes of a block: `*len` of them at `*bytes`, until it is answered or closed. The first
/// call makes the copy of `DP_TRUST_COPY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_block_bytes(block: dp_block, bytes: *mut *const c_void, len: *mut usize) -> dp_error {
    enter(|| {
        arguments::check(bytes, "bytes")?;
        arguments::check(len, "len")?;
        // The bytes of a block do not move with it: they are in a mapping or on the heap.
        let (at, has) = with_block(block, |block| Ok((block.as_ptr(), block.len())))?;
        // SAFETY: the header says what the pointers are.
        unsafe {
            arguments::give(bytes, "bytes", at.cast())?;
            arguments::give(len, "len", has)
        }
    })
}

/// Copies the bytes of a block to the start of `capacity` bytes at `into`, from memory to memory.
///
/// Errors: DP_OUT_OF_RANGE where the block is longer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_block_copy(block: dp_block, into: *mut c_void, capacity: usize) -> dp_error {
    enter(|| {
        // SAFETY: the header says what the pointer is.
        let into = unsafe { arguments::slice_mut(into.cast(), capacity, "into")? };
        with_block(block, |block| block.copy_to(into))
    })
}

/// Replies to a block, which returns its credit, and ends it. `outcome` is a `dp_block_outcome`.
///
/// Errors: DP_INVALID_INPUT for a number that is none, or a block that was answered or closed;
/// DP_CORRUPT where the bytes of a checked channel are not those that were sent.
#[unsafe(no_mangle)]
pub extern "C" fn dp_block_answer(block: dp_block, outcome: u32, word: u64) -> dp_error {
    enter(|| {
        let outcome = outcome_of(outcome)?;
        let taken = {
            let held = BLOCKS.get(block.id)?;
            let mut held = alone(&held, "reply")?;
            held.take().ok_or_else(answered)?
        };
        BLOCKS.close(block.id)?;
        taken.reply(Reply { outcome, word })
    })
}

/// Ends a block. The sender of one that was not answered is told `DP_BLOCK_DROPPED`.
///
/// Errors: DP_INVALID_INPUT for a block that was answered or closed.
#[unsafe(no_mangle)]
pub extern "C" fn dp_block_close(block: dp_block) -> dp_error {
    enter(|| BLOCKS.close(block.id))
}
