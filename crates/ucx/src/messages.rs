//! Messages to a peer and from it, by UCX's active messages: each arrives once, and in the order in
//! which they were sent.
//!
//! UCX promises no order: it sends long messages in pieces, by several queues where a device has
//! them. So each message has a number, and what comes early waits here.
//!
//! What waits here is bounded, and a peer that sends more is cut off. The two sides must agree on
//! how much may be under way, because UCX itself does not hold a sender back.
//!
//! This module's unsafe code calls functions of UCX with objects that live as long as the endpoint.
//! The handler of messages writes into a locked inbox in a box. Bytes that are being sent stay in
//! `under_way` until their request was found done, or the worker was destroyed.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::BorrowedFd;

use datapipes_core::locks::Mutex;
use datapipes_core::{Error, ErrorKind, Result};

use crate::abi::{self, HandlerParams, ReceiveParams, RequestParams, Status};
use crate::endpoint::{Outcome, PeerEndpoint, PeerRequest, within};
use crate::settings::UcxSettings;
use crate::worker::{Armed, UcxWorker};

/// The most bytes of a message's body.
pub const MAX_MESSAGE_BYTES: usize = 64 << 10;
/// The most messages that wait here.
const MAX_WAITING: usize = 64;
/// The number of the handler at the peer, the same on both sides.
const HANDLER: u32 = 1;
/// Bytes of a header: the message's number, and two words.
const HEADER_BYTES: usize = 24;

/// A message that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UcxMessage {
    /// The two words that came with it.
    pub words: [u64; 2],
    /// Its bytes.
    pub body: Vec<u8>,
}

/// What arrived and was not taken.
#[derive(Default)]
struct Inbox {
    /// The number of the message that is taken next.
    next: u64,
    waiting: BTreeMap<u64, UcxMessage>,
    /// What the peer did that it must not.
    wrong: Option<&'static str>,
}

impl Inbox {
    fn add(&mut self, header: &[u8], body: &[u8]) {
        let word = |at: usize| header.get(at..).and_then(<[u8]>::first_chunk).map(|b| u64::from_le_bytes(*b));
        let (Some(number), Some(one), Some(two)) = (word(0), word(8), word(16)) else {
            self.wrong = Some("a message without a header");
            return;
        };
        // Messages under way are numbered without gaps, so none is far ahead.
        if header.len() != HEADER_BYTES || number.wrapping_sub(self.next) >= MAX_WAITING as u64 {
            self.wrong = Some("a message that has another number than the next ones, or more than may wait");
        } else if body.len() > MAX_MESSAGE_BYTES {
            self.wrong = Some("a message that is too long");
        } else if self.waiting.insert(number, UcxMessage { words: [one, two], body: body.to_vec() }).is_some() {
            self.wrong = Some("two messages with the same number");
        }
    }

    fn take(&mut self) -> Option<UcxMessage> {
        let message = self.waiting.remove(&self.next)?;
        self.next = self.next.wrapping_add(1);
        Some(message)
    }
}

/// A message that UCX has not sent yet. The header and the body stay where they are.
struct UnderWay {
    request: PeerRequest,
    _header: Box<[u8; HEADER_BYTES]>,
    body: Vec<u8>,
}

/// A connection for messages with one peer.
pub struct PeerMessages {
    /// It is dropped first: with it ends what is under way, and no message comes any more.
    endpoint: PeerEndpoint,
    under_way: Vec<UnderWay>,
    inbox: Box<Mutex<Inbox>>,
    sent: u64,
    free: Vec<Vec<u8>>,
}

unsafe extern "C" fn on_message(
    inbox: *mut c_void,
    header: *const c_void,
    header_len: usize,
    body: *mut c_void,
    body_len: usize,
    params: *const ReceiveParams,
) -> Status {
    // SAFETY: the argument is the inbox in its box, which outlives the worker that calls this.
    let inbox = unsafe { &*inbox.cast::<Mutex<Inbox>>() };
    // SAFETY: UCX passes a structure that lives during the call.
    let attributes = unsafe { (*params).attributes };
    let bytes = |start: *const c_void, len: usize| {
        if start.is_null() || len == 0 {
            return &[][..];
        }
        // SAFETY: UCX passes so many bytes, which nobody writes during the call.
        unsafe { std::slice::from_raw_parts(start.cast::<u8>(), len) }
    };
    let mut inbox = inbox.lock();
    if attributes & abi::RECEIVED_RENDEZVOUS != 0 {
        // There are no bytes yet. The sender was told to send them at once.
        inbox.wrong = Some("a message whose bytes it kept");
    } else {
        inbox.add(bytes(header, header_len), bytes(body, body_len));
    }
    // The bytes were copied, so UCX may have its buffer back.
    abi::OK
}

impl PeerMessages {
    /// Connects a worker to a peer's, whose address came in a way that proves who it is: UCX
    /// believes what a peer says of itself.
    ///
    /// # Errors
    /// `Unavailable` where UCX finds no way to the peer.
    pub fn connect(worker: UcxWorker, settings: &UcxSettings, peer: &[u8]) -> Result<PeerMessages> {
        let ucx = worker.ucx;
        let inbox = Box::new(Mutex::new(Inbox::default()));
        let handler = HandlerParams {
            field_mask: abi::HANDLER_ID | abi::HANDLER_CALLBACK | abi::HANDLER_ARGUMENT,
            id: HANDLER,
            flags: 0,
            on_message: Some(on_message),
            argument: std::ptr::from_ref::<Mutex<Inbox>>(&inbox).cast_mut().cast(),
        };
        // SAFETY: the worker lives, the structure lives during the call, and the argument is in a
        // box that is dropped after the worker: below with the endpoint's error, or as a field.
        let status = unsafe { (ucx.set_handler)(worker.worker, &raw const handler) };
        ucx.check(status, "connect").map_err(|e| within(e, settings))?;
        let endpoint = PeerEndpoint::open(worker, settings, peer)?;
        Ok(PeerMessages { endpoint, under_way: Vec::new(), inbox, sent: 0, free: Vec::new() })
    }

    /// Sends a message. It never waits. Both sides must agree on how many messages may be under
    /// way: a peer that has more than 64 of them ends with an error.
    ///
    /// # Errors
    /// `OutOfRange` for a body of more than [`MAX_MESSAGE_BYTES`]. `Device` where the peer has
    /// gone.
    pub fn send(&mut self, words: [u64; 2], body: Vec<u8>) -> Result<()> {
        if body.len() > MAX_MESSAGE_BYTES {
            let what = format!("a message of {} bytes, where {MAX_MESSAGE_BYTES} fit", body.len());
            return Err(Error::new(ErrorKind::OutOfRange, "send", what));
        }
        self.check()?;
        let mut header = Box::new([0; HEADER_BYTES]);
        for (place, word) in header.chunks_exact_mut(8).zip([self.sent, words[0], words[1]]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        self.sent = self.sent.wrapping_add(1);
        let (ucx, params) = (self.endpoint.worker.ucx, RequestParams::new(abi::OP_FLAGS, abi::SEND_EAGER));
        let (endpoint, start) = (self.endpoint.endpoint, header.as_ptr().cast::<c_void>());
        // SAFETY: the endpoint lives as long as `self`. Header and body are on the heap and are
        // neither written nor freed until the request was found done, or the worker destroyed.
        let started = unsafe {
            let (bytes, len) = (body.as_ptr().cast::<c_void>(), body.len());
            (ucx.send_message)(endpoint, HANDLER, start, HEADER_BYTES, bytes, len, &raw const params)
        };
        match self.endpoint.started(started) {
            Outcome::Done => self.give_back(body),
            Outcome::Pending(request) => self.under_way.push(UnderWay { request, _header: header, body }),
            Outcome::Failed(status) => return Err(self.gone(status)),
        }
        Ok(())
    }

    /// A buffer for a message, empty, and reused where there is one.
    pub fn buffer(&mut self) -> Vec<u8> {
        self.free.pop().unwrap_or_default()
    }

    /// Gives a buffer back for the next message.
    pub fn give_back(&mut self, mut body: Vec<u8>) {
        if body.capacity() > 0 && self.free.len() < MAX_WAITING {
            body.clear();
            self.free.push(body);
        }
    }

    /// Notes the messages that UCX has sent by now. Returns how many are under way.
    ///
    /// # Errors
    /// `Device` where the peer has gone.
    pub fn settle(&mut self) -> Result<usize> {
        let mut failed = None;
        for UnderWay { request, _header, body } in std::mem::take(&mut self.under_way) {
            match self.endpoint.ask(request) {
                Outcome::Done => self.give_back(body),
                Outcome::Pending(request) => self.under_way.push(UnderWay { request, _header, body }),
                Outcome::Failed(status) => failed = failed.or(Some(status)),
            }
        }
        match failed {
            Some(status) => Err(self.gone(status)),
            None => Ok(self.under_way.len()),
        }
    }

    /// Lets the messages that were sent leave this process: once [`settle`](Self::settle) finds
    /// nothing under way, they have.
    ///
    /// # Errors
    /// `Device` where the peer has gone.
    pub fn flush(&mut self) -> Result<()> {
        match self.endpoint.flush() {
            Outcome::Done => Ok(()),
            Outcome::Pending(request) => {
                self.under_way.push(UnderWay { request, _header: Box::new([0; HEADER_BYTES]), body: Vec::new() });
                Ok(())
            }
            Outcome::Failed(status) => Err(self.gone(status)),
        }
    }

    /// Takes the next message that arrived. Messages that came before the peer failed come before
    /// its error.
    ///
    /// # Errors
    /// `Corrupt` where the peer sent what it must not. `Device` where it has gone.
    pub fn receive(&mut self) -> Result<Option<UcxMessage>> {
        let mut inbox = self.inbox.lock();
        if let Some(what) = inbox.wrong {
            return Err(Error::new(ErrorKind::Corrupt, "receive", format!("the peer sent {what}")));
        }
        if let Some(message) = inbox.take() {
            return Ok(Some(message));
        }
        drop(inbox);
        self.check().map(|()| None)
    }

    /// Does what there is to do, and returns whether there was something.
    pub fn progress(&mut self) -> bool {
        self.endpoint.worker.progress()
    }

    /// Makes the event tell of what comes next, as [`UcxWorker::arm`].
    ///
    /// # Errors
    /// Errors of UCX.
    pub fn arm(&mut self) -> Result<Armed> {
        self.endpoint.worker.arm()
    }

    /// The descriptor of the worker, as [`UcxWorker::event`].
    pub fn event(&self) -> BorrowedFd<'_> {
        self.endpoint.worker.event()
    }

    fn check(&self) -> Result<()> {
        self.endpoint.failure().map_or(Ok(()), |status| Err(self.gone(status)))
    }

    fn gone(&self, status: Status) -> Error {
        let ucx = self.endpoint.worker.ucx;
        let what = format!("the peer has gone (UCX {}: {})", ucx.version, ucx.words_of(status));
        Error::new(ErrorKind::Device, "send", what)
    }
}

#[cfg(test)]
mod tests {
    use datapipes_testkit::bounded;

    use super::*;
    use crate::library::Ucx;
    use crate::worker::UcxUse;

    fn pair(settings: &UcxSettings) -> (PeerMessages, PeerMessages) {
        let mut one = UcxWorker::open(settings, UcxUse::Messages).unwrap();
        let mut two = UcxWorker::open(settings, UcxUse::Messages).unwrap();
        let (of_one, of_two) = (one.address().unwrap(), two.address().unwrap());
        let one = PeerMessages::connect(one, settings, &of_two).unwrap();
        (one, PeerMessages::connect(two, settings, &of_one).unwrap())
    }

    fn each_way(test: &'static str, run: impl Fn(&UcxSettings) + Send + Sync + Copy + 'static) {
        if let Err(why) = Ucx::get() {
            return println!("SKIPPED: {test}: {why}");
        }
        let tcp = UcxSettings::network(None, Some("lo"), None, "connect").unwrap();
        for settings in [UcxSettings::shared_memory(), tcp] {
            bounded(test, move || run(&settings));
        }
    }

    /// Receives one message, with both sides at work.
    fn next(to: &mut PeerMessages, from: &mut PeerMessages) -> UcxMessage {
        loop {
            from.progress();
            from.settle().unwrap();
            to.progress();
            to.settle().unwrap();
            if let Some(message) = to.receive().unwrap() {
                return message;
            }
        }
    }

    #[test]
    fn messages_of_all_lengths_arrive_once_and_in_order_both_ways() {
        each_way("messages in order", |settings| {
            let (mut one, mut two) = pair(settings);
            let lengths = [0, 1, 7, 64, 4095, 8192, 8193, 20_001, 65_535, MAX_MESSAGE_BYTES, 3, 0];
            let body = |n: usize, len: usize| -> Vec<u8> { (0..len).map(|i| (i * 31 + n * 7) as u8).collect() };
            for round in 0..4 {
                for (n, len) in lengths.into_iter().enumerate() {
                    one.send([n as u64, round], body(n, len)).unwrap();
                    two.send([round, n as u64], body(n + 1, len)).unwrap();
                }
                for (n, len) in lengths.into_iter().enumerate() {
                    let there = next(&mut two, &mut one);
                    assert_eq!(there.words, [n as u64, round], "{settings:?}");
                    assert!(there.body == body(n, len), "{settings:?}: {len} bytes");
                    let back = next(&mut one, &mut two);
                    assert!(back.words == [round, n as u64] && back.body == body(n + 1, len), "{settings:?}");
                }
            }
            assert_eq!(one.send([0, 0], vec![0; MAX_MESSAGE_BYTES + 1]).unwrap_err().kind(), ErrorKind::OutOfRange);
            let (mut under_way, mut others) = (1, 1);
            while under_way + others > 0 {
                one.progress();
                two.progress();
                (under_way, others) = (one.settle().unwrap(), two.settle().unwrap());
            }
        });
    }

    #[test]
    fn a_peer_that_sends_more_than_may_wait_is_cut_off() {
        each_way("more than may wait", |settings| {
            let (mut one, mut two) = pair(settings);
            for n in 0..=MAX_WAITING as u64 {
                one.send([n, 0], vec![1; 10]).unwrap();
            }
            let error = loop {
                one.progress();
                one.settle().unwrap();
                two.progress();
                if two.inbox.lock().wrong.is_some() {
                    break two.receive().unwrap_err();
                }
            };
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{settings:?}: {error}");
        });
    }

    #[test]
    fn what_comes_early_waits_and_what_is_wrong_is_found() {
        let header = |number: u64| [number.to_le_bytes(), 5u64.to_le_bytes(), 6u64.to_le_bytes()].concat();
        let mut inbox = Inbox::default();
        inbox.add(&header(1), b"two");
        assert_eq!(inbox.take(), None);
        inbox.add(&header(0), b"one");
        assert_eq!(inbox.take().unwrap().body, b"one");
        assert_eq!(inbox.take().unwrap(), UcxMessage { words: [5, 6], body: b"two".to_vec() });
        assert!(inbox.wrong.is_none());
        let long = vec![0; MAX_MESSAGE_BYTES + 1];
        let cases: [(&[u8], &[u8]); 6] = [
            (b"short", b""),
            (&header(1), b"again"),
            (&header(2 + MAX_WAITING as u64), b"far"),
            (&header(u64::MAX), b"old"),
            (&[&header(2)[..], &[0]].concat(), b"more"),
            (&header(2), &long),
        ];
        for (header, body) in cases {
            let mut inbox = Inbox { next: 2, ..Inbox::default() };
            inbox.add(header, body);
            assert!(inbox.wrong.is_some() && inbox.waiting.is_empty(), "{header:?}");
        }
        let mut inbox = Inbox::default();
        inbox.add(&header(0), b"one");
        inbox.add(&header(0), b"one");
        assert!(inbox.wrong.is_some());
    }
}
