//! The runtime's end of a pipe's descriptor.
//!
//! ```text
//! readable:  request -> try_transfer, on_done -> completion        while the pipe has room
//! full:      requests stay in the socket, whose other end stops being writable
//! done:      completion into the socket; no room there? kept, and no request is taken until it went out
//! in this process: a transfer is started beside the socket and its completion kept in `heard`, with a notifier (one byte) in
//!            the socket for each, which the device rings where it can; the other end is readable, and no thread woke up
//! closed:    what is under way ends, its completions are of interest to nobody
//! ```

use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};

use super::passing;
use super::room::TransferSlots;
use super::wire::{Completion, MESSAGE_BYTES, REQUEST_BYTES, TransferRequest};
use crate::backend::{CompletionNotifier, NotifierSocket};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{self, DeferredDrop};
use crate::runtime::{EventSource, Interest, RuntimePipe};
use crate::span::Span;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Arc, Mutex, MutexGuard, thread_local};

/// A request that stands for none: it takes up room in the socket while the pipe is full.
pub(super) const PLUG: [u8; 1] = [0];

/// Requests taken before the other pipes are looked after: who sends without end stands in nobody's
/// way.
const AT_ONCE: usize = 32;

/// Bells are rung for pipes that take at most so many transfers: there is room in the socket for
/// all of them, and for those that are one too many.
const BELLS: usize = 96;

pub(super) struct DescriptorServer {
    socket: Arc<OwnedFd>,
    /// The kernel lets descriptors come with packets, to be closed by who reads them.
    may_carry: bool,
    pipe: RuntimePipe,
    place: u64,
    room: TransferSlots,
    unsent: Mutex<VecDeque<Vec<u8>>>,
    /// The other end is closed.
    closed: AtomicBool,
    /// The giver ended it: nothing is started any more.
    ended: AtomicBool,
    /// The end of this process was closed.
    closed_here: AtomicBool,
    /// The coordinator left what there is to read in the socket: for lack of room, and so until
    /// there is some.
    left: AtomicBool,
    notifier_socket: Arc<NotifierSocket>,
    /// Completions for this process. Where there are any and nobody is about to take one, there is
    /// a byte in the socket: whoever leaves some behind rings for them, unless it is sure of that.
    /// (A byte that the device is to send may not come: the kernel gives it up with the thread that
    /// submitted the transfer, and tells of that later, to nobody perhaps.)
    heard: Mutex<Heard>,
    /// Dropped after the pipe: it tells the giver that the pipe has ended.
    _keeper: Option<DeferredDrop>,
}

#[derive(Default)]
struct Heard {
    completions: VecDeque<Completion>,
    /// Messages that were read from the socket: they come in their order, so who saw one knows
    /// whether it is still the next.
    read: u64,
}

thread_local! {
    /// Whose completions this thread takes at the moment.
    #[allow(clippy::missing_const_for_thread_local)] // The model knows no constants here.
    static TAKING: Cell<usize> = Cell::new(0);
}

impl DescriptorServer {
    pub(super) fn new(
        socket: OwnedFd,
        may_carry: bool,
        pipe: RuntimePipe,
        place: u64,
        most: usize,
        keeper: Option<Box<dyn Any + Send + Sync>>,
    ) -> Result<Arc<DescriptorServer>> {
        let notifiers = rustix::io::fcntl_dupfd_cloexec(&socket, 0)
            .map_err(|e| Error::os("connect", e.raw_os_error(), "a second descriptor for a pipe's notifiers"))?;
        let notifier_socket = NotifierSocket::new(notifiers);
        Ok(Arc::new(DescriptorServer {
            socket: Arc::new(socket),
            may_carry,
            pipe,
            place,
            room: TransferSlots::new(most),
            unsent: Mutex::new(VecDeque::new()),
            closed: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            closed_here: AtomicBool::new(false),
            left: AtomicBool::new(false),
            notifier_socket,
            heard: Mutex::new(Heard::default()),
            _keeper: keeper.map(DeferredDrop::new),
        }))
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock()
    }

    /// Starts a transfer for this process: its completion is taken by [`take`](Self::take).
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub(super) fn accept_here(self: &Arc<Self>, request: TransferRequest) -> Result<()> {
        if self.room.most() > BELLS {
            return self.accept(request);
        }
        self.open_one()?;
        let TransferRequest { token, span } = request;
        let notifier = Arc::new(CompletionNotifier::new(self.notifier_socket.clone()));
        let (serving, rung) = (self.clone(), notifier.clone());
        let done = move |result| serving.hear(token, span, &rung, result);
        if let Err(refused) = self.pipe.try_transfer_notifying(span, &notifier, done) {
            self.hear(token, span, &notifier, Err(refused.error));
        }
        Ok(())
    }

    /// A transfer of this process is done.
    fn hear(self: &Arc<Self>, token: u64, span: Span, notifier: &CompletionNotifier, result: Result<()>) {
        let bytes = result.as_ref().map_or_else(Error::bytes_done, |()| span.len);
        self.heard().completions.push_back(Completion { token, place: self.place, result, bytes });
        // Nobody rang, or who heard the notifier may have looked before this was here. Who takes
        // completions here looks next.
        if notifier.rings() == 0 || TAKING.with(Cell::get) != Arc::as_ptr(self).addr() {
            self.notifier_socket.ring();
        }
        self.close_one();
    }

    /// A completion for this process, if there is one.
    ///
    /// # Errors
    /// `Unavailable` where the runtime is gone, or where the pipe was closed meanwhile.
    pub(super) fn take(self: &Arc<Self>, socket: &OwnedFd) -> Result<Option<Completion>> {
        // What is not ours is called when this is over, and not in the middle of it.
        let _hold = guard::defer_calls();
        let mut message = [0; MESSAGE_BYTES];
        // The next message, when it was seen to be a notifier that nothing was heard of.
        let mut seen = None;
        loop {
            self.look();
            let mut heard = self.heard();
            // Each completion takes a message out of the socket, so that it is readable while there
            // are others. One that has not arrived yet is one too many later.
            if !heard.completions.is_empty() {
                self.read(socket, &mut message, &mut heard);
                let completion = heard.completions.pop_front();
                if !heard.completions.is_empty() && !self.notifier_socket.is_readable() {
                    self.notifier_socket.ring();
                }
                return Ok(completion);
            }
            match rustix::net::recv(socket, &mut message, RecvFlags::DONTWAIT | RecvFlags::PEEK) {
                Ok((0, _)) => {
                    // Closing says so before it shuts the socket.
                    self.check_open("complete")?;
                    return Err(Error::new(ErrorKind::Unavailable, "complete", "the runtime was shut down"));
                }
                // It was there before the look, which found nothing: it is one too many. What rings
                // after the look stays.
                Ok((1, _)) if seen == Some(heard.read) => self.read(socket, &mut message, &mut heard),
                // It came before the look, or after.
                Ok((1, _)) => seen = Some(heard.read),
                Ok((len, _)) => {
                    heard.read += 1;
                    let _ = rustix::net::recv(socket, &mut message, RecvFlags::DONTWAIT);
                    let completion = Completion::from_bytes(&message[..len]);
                    let corrupt = || Error::new(ErrorKind::Corrupt, "complete", format!("a message of {len} bytes"));
                    return completion.map(Some).ok_or_else(corrupt);
                }
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(e) => return Err(Error::os("complete", e.raw_os_error(), "a pipe's descriptor")),
            }
        }
    }

    /// Takes what the device is done with: whoever is at it already takes it, and rings.
    fn look(self: &Arc<Self>) {
        let before = TAKING.with(|taking| taking.replace(Arc::as_ptr(self).addr()));
        self.pipe.look_for_sure();
        TAKING.with(|taking| taking.set(before));
    }

    /// Reads a message: a notifier, or a completion that came as a packet.
    fn read(&self, socket: &OwnedFd, message: &mut [u8; MESSAGE_BYTES], heard: &mut Heard) {
        let Ok((len, _)) = rustix::net::recv(socket, &mut *message, RecvFlags::DONTWAIT) else { return };
        heard.read += 1;
        match len {
            1 => self.notifier_socket.read(),
            _ => heard.completions.extend(Completion::from_bytes(&message[..len])),
        }
    }

    pub(super) fn socket(&self) -> Arc<OwnedFd> {
        self.socket.clone()
    }

    pub(super) fn pipe(&self) -> &RuntimePipe {
        &self.pipe
    }

    fn unsent(&self) -> MutexGuard<'_, VecDeque<Vec<u8>>> {
        self.unsent.lock()
    }

    /// Closes the end of this process, `socket`: who sleeps there wakes up, and nothing is started
    /// any more. What is under way goes on.
    pub(super) fn close_here(&self, socket: &OwnedFd) {
        self.closed_here.store(true, Ordering::SeqCst);
        // It fails only where the other end is gone already, of which the sleepers heard.
        let _ = rustix::net::shutdown(socket, Shutdown::Both);
    }

    /// Whether that end is open.
    ///
    /// # Errors
    /// `Unavailable` where it was closed.
    pub(super) fn check_open(&self, operation: &'static str) -> Result<()> {
        if self.closed_here.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, operation, "the pipe was closed"));
        }
        Ok(())
    }

    /// Takes no further request, and stops what was not begun; the other end hears no more.
    pub(super) fn end(&self) {
        // The socket is the parent's, too.
        if self.pipe.check_process("end").is_err() {
            return;
        }
        // Before the look at what is there: who starts a transfer now sees this, and stops it.
        self.ended.store(true, Ordering::SeqCst);
        self.closed.store(true, Ordering::SeqCst);
        // The coordinator sees a socket that is shut, and forgets it. It fails only where the other
        // end is gone already.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        self.pipe.cancel_all();
    }

    /// A transfer was started.
    fn stop_if_ended(&self) {
        if self.ended.load(Ordering::SeqCst) {
            self.pipe.cancel_all();
        }
    }

    /// Asks the coordinator to come back: for room while completions wait for it, otherwise for
    /// requests.
    fn rearm(&self) {
        // Under the lock: who keeps a completion and who finds no request may ask at the same time.
        let unsent = self.unsent();
        self.pipe.attend(self, if unsent.is_empty() { Interest::Read } else { Interest::Write });
    }

    /// Whether a transfer would be accepted.
    pub(super) fn has_room(&self) -> bool {
        self.room.is_there() && self.unsent().is_empty()
    }

    /// Starts a transfer whose completion goes out over the socket.
    ///
    /// # Errors
    /// `Busy` where there is no room; what starting meets goes out as a completion.
    pub(super) fn accept(self: &Arc<Self>, request: TransferRequest) -> Result<()> {
        self.open_one()?;
        let TransferRequest { token, span } = request;
        match self.pipe.try_transfer(span) {
            Ok(handle) => {
                let serving = self.clone();
                RuntimePipe::on_done_here(handle, move |result| serving.done(token, span, result));
                self.stop_if_ended();
            }
            Err(refused) => self.done(token, span, Err(refused.error)),
        }
        Ok(())
    }

    /// Sends a completion, or keeps it while the socket is full.
    fn done(self: &Arc<Self>, token: u64, span: Span, result: Result<()>) {
        let bytes = result.as_ref().map_or_else(Error::bytes_done, |()| span.len);
        let message = Completion { token, place: self.place, result, bytes }.to_bytes();
        let mut unsent = self.unsent();
        unsent.push_back(message);
        self.send(&mut unsent);
        drop(unsent);
        self.close_one();
    }

    fn open_one(&self) -> Result<()> {
        if !self.unsent().is_empty() || !self.room.take() {
            return Err(Error::new(ErrorKind::Busy, "submit", "the pipe takes no transfer now")
                .with_advice("wait until its descriptor is writable"));
        }
        Ok(())
    }

    fn close_one(&self) {
        let full = !self.unsent().is_empty();
        let plugged = self.room.give_back();
        if full {
            return self.rearm();
        }
        if plugged {
            self.unplug();
        }
        if self.left.swap(false, Ordering::SeqCst) {
            self.rearm();
        }
    }

    fn send(&self, unsent: &mut VecDeque<Vec<u8>>) {
        while let Some(message) = unsent.front() {
            match rustix::net::send(&self.socket, message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(_) => {}
                Err(Errno::AGAIN | Errno::NOBUFS) => return,
                Err(Errno::INTR) => continue,
                // The other end is gone: nobody wants to hear of it.
                Err(_) => self.closed.store(true, Ordering::SeqCst),
            }
            unsent.pop_front();
        }
    }

    /// The other end stays unwritable until a transfer is done.
    pub(super) fn plug(&self, other: &OwnedFd) {
        let fill = || while rustix::net::send(other, &PLUG, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_ok() {};
        self.room.plug(|| self.has_room(), fill);
    }

    /// The other end becomes writable, unless the room was taken again meanwhile.
    fn unplug(&self) {
        let mut message = [0; REQUEST_BYTES];
        let mut take = |flags| matches!(rustix::net::recv(&self.socket, &mut message, flags), Ok((1, _)));
        let drain = || while take(RecvFlags::DONTWAIT | RecvFlags::PEEK) && take(RecvFlags::DONTWAIT) {};
        self.room.unplug(|| self.has_room(), drain);
    }

    /// Takes requests while there is room.
    fn take_requests(self: &Arc<Self>) {
        let mut message = [0; REQUEST_BYTES + 1];
        for _ in 0..AT_ONCE {
            if !self.has_room() {
                // Said before the second look: either it finds room, or who makes room finds this.
                self.left.store(true, Ordering::SeqCst);
                if !self.has_room() || !self.left.swap(false, Ordering::SeqCst) {
                    return;
                }
            }
            if self.may_carry && passing::comes_with_descriptors(&self.socket) {
                // None is expected: who sends them does not speak this language.
                self.closed.store(true, Ordering::SeqCst);
                return;
            }
            match rustix::net::recv(&self.socket, &mut message, RecvFlags::DONTWAIT) {
                Ok((0, _)) => {
                    self.closed.store(true, Ordering::SeqCst);
                    return;
                }
                Ok((1, _)) => {}
                Ok((len, _)) => match TransferRequest::from_bytes(&message[..len]) {
                    Some(request) => {
                        if let Err(e) = self.accept(request) {
                            // Room was there and is taken: somebody submits beside the socket.
                            // Tell, rather than lose it.
                            self.room.take_anyway();
                            self.done(request.token, request.span, Err(e));
                        }
                    }
                    None => {
                        let context = format!("a message of {len} bytes on a pipe's descriptor");
                        let error = Error::new(ErrorKind::InvalidInput, "submit", context)
                            .with_advice(format!("a request is one packet of {REQUEST_BYTES} bytes"));
                        self.room.take_anyway();
                        self.done(u64::MAX, Span { source: 0, target: 0, len: 0 }, Err(error));
                    }
                },
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return self.rearm(),
                Err(_) => {
                    self.closed.store(true, Ordering::SeqCst);
                    return;
                }
            }
        }
        self.rearm();
    }
}

impl Drop for DescriptorServer {
    fn drop(&mut self) {
        // The socket is the parent's, too.
        if self.pipe.check_process("drop").is_err() {
            return;
        }
        // The other end hears the end, though the giver may keep the socket. It fails only where
        // that end is gone already.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        if self.may_carry {
            passing::abandon(&self.socket);
        }
    }
}

impl EventSource for DescriptorServer {
    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn ready(self: Arc<Self>) {
        let mut unsent = self.unsent();
        self.send(&mut unsent);
        let full = !unsent.is_empty();
        drop(unsent);
        if self.closed.load(Ordering::SeqCst) {
            self.pipe.forget(&*self);
            return;
        }
        if full {
            return self.rearm();
        }
        self.take_requests();
        if self.closed.load(Ordering::SeqCst) {
            self.pipe.forget(&*self);
        }
    }

    fn runtime_gone(&self) {
        self.closed.store(true, Ordering::SeqCst);
        // The other end hears what was sent to it, and then the end. It fails only where that end
        // is gone already.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }
}
