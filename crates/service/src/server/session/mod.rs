//! The connection of a client.
//!
//! ```text
//! start    the client says hello in time, or it is cut off
//! running  a request     -> an answer
//!          a wake event  -> ended pipes are released; memory that failed ends the session
//! end      the client closed the connection, died or was cut off, or the service stops:
//!          its pipes end, and their transfers are stopped; the session remains until the last
//!          part that a device or a thread has is done
//! ```
//!
//! Memory and files of a pipe are released here and not by the coordinator, because unmapping and
//! closing can take long.

mod incoming;
mod status;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use datapipes_core::descriptor::{PassedPipe, passing};
use datapipes_core::packet::{self, PacketPeek};
use datapipes_core::{ConnectFdOptions, ConnectOptions, Error, ErrorKind, Result, STAGED_BYTES};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;

use incoming::parse;

use crate::protocol::{ClientRequest, MAX_REQUEST_BYTES, PipeSpec, ServiceAnswer, VERSION};
use crate::server::descriptors::intake::{ControlSockets, ReceiverProcess};
use crate::server::descriptors::places::{OpenedPlace, Opener, PassedDescriptors, Role};
use crate::server::entrance::hang_up::is_readable;
use crate::server::log::sanitize;
use crate::server::log_event::{LogEvent, LoggedClient};
use crate::server::quotas::account::{ClientQuota, NotifyOnDrop, SessionFacts, reached};
use crate::server::quotas::numbers::{self, bad};
use crate::server::quotas::token_bucket::TokenBucket;
use crate::server::shared::{Shared, stops};
use crate::server::wake::event;

/// Descriptors of a pipe besides those passed: its socket and at most two rings.
const PIPE_DESCRIPTORS: usize = 3;
/// The depth of a pipe whose client does not give one, as in the runtime.
const DEPTH: usize = 64;
const HELLO_FIRST: &str = "the first request must be a hello, without descriptors";
const UNHEARD: &str = "it does not read its answers";
/// The pauses between checks whether a client has read what was sent to it.
const MIN_PAUSE: Duration = Duration::from_millis(1);
const MAX_PAUSE: Duration = Duration::from_millis(200);
/// How many refusals of a client are logged one by one.
const COMPLAINTS: u32 = 16;

pub(super) struct Session {
    shared: Arc<Shared>,
    socket: OwnedFd,
    /// The socket by which a helper is told to close the connection. It is opened at the start, so
    /// that the end of the session needs no descriptor.
    words: ControlSockets,
    facts: Arc<SessionFacts>,
    /// Signalled when a pipe has ended, or memory failed.
    wake_event: Arc<OwnedFd>,
    slots: Vec<Slot>,
    /// Pipes that have ended, with completions that the client has not taken.
    unread: Vec<PassedPipe>,
    /// Helpers that received what this client passed, and may not have ended.
    receivers: Vec<ReceiverProcess>,
    /// Whether descriptors may come with its packets.
    may_pass: bool,
    refused: u32,
    pace: TokenBucket,
}

/// The descriptors that a session itself needs.
pub(super) struct SessionDescriptors {
    wake_event: OwnedFd,
    words: ControlSockets,
}

impl SessionDescriptors {
    /// # Errors
    /// Errors of the kernel if it has none left.
    pub(super) fn new() -> Result<SessionDescriptors> {
        Ok(SessionDescriptors { wake_event: event()?, words: ControlSockets::new()? })
    }
}

/// A pipe, and what it needs.
struct Slot {
    given: PassedPipe,
    over: Arc<AtomicBool>,
    places: [OpenedPlace; 2],
    depth: usize,
    promised: f64,
    _own: Option<ClientQuota>,
}

/// The reason why a session ends.
enum SessionEnd {
    /// The client closed the connection.
    Quiet,
    /// The service stops.
    Stops,
    /// The client is cut off.
    Cut(Error),
}

/// The end of a session whose client broke the rules.
fn cut(kind: ErrorKind, why: impl Into<String>) -> SessionEnd {
    SessionEnd::Cut(Error::new(kind, "serve", why))
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX), tv_nsec: time.subsec_nanos().into() }
}

enum SessionEvent {
    Packet,
    Bell,
    /// A helper has ended.
    Taker,
    Nothing,
}

impl Session {
    pub(super) fn new(
        shared: Arc<Shared>,
        socket: OwnedFd,
        facts: Arc<SessionFacts>,
        needs: SessionDescriptors,
    ) -> Session {
        let SessionDescriptors { wake_event: bell, words } = needs;
        let pace = TokenBucket::new(shared.config.limits.requests_per_s, Instant::now());
        Session {
            shared,
            socket,
            words,
            facts,
            wake_event: Arc::new(bell),
            slots: Vec::new(),
            unread: Vec::new(),
            receivers: Vec::new(),
            may_pass: false,
            refused: 0,
            pace,
        }
    }

    /// Serves the client until it is gone and nothing of it is left.
    pub(super) fn run(mut self) {
        let end = match self.greet() {
            Ok(()) => self.serve(),
            Err(end) => end,
        };
        match &end {
            SessionEnd::Cut(why) => {
                self.shared.turned_away.fetch_add(1, Ordering::Relaxed);
                self.log(LogEvent::ClientCutOff, format_args!("cut off: {}", sanitize(&why.to_string())));
                self.say(why);
            }
            SessionEnd::Stops => self.say(&stops()),
            SessionEnd::Quiet if self.slots.is_empty() => {}
            SessionEnd::Quiet => {
                self.log(LogEvent::ClientLeft, format_args!("left, with {} pipes", self.slots.len()));
            }
        }
        // This comes before waiting for the pipes, so that the client sees the end at once.
        let harmless = self.hang_up();
        self.end_pipes();
        self.wait_for_takers();
        self.wait_for_reader();
        self.part(harmless);
    }

    fn log(&self, event: LogEvent, what: std::fmt::Arguments<'_>) {
        let name = self.facts.name.lock().clone();
        let (number, peer) = (self.facts.number, self.facts.peer);
        let line = format_args!("client {number} ({name}, user {}, process {}) {what}", peer.uid, peer.pid);
        self.shared.config.log.of_client(event, LoggedClient { number, peer: Some(peer) }, line);
    }

    /// Sends the reason of the end, as the answer to the present or next request. A client that
    /// reads nothing does not receive it.
    fn say(&self, why: &Error) {
        let _ = self.answer(&ServiceAnswer::error(why), None);
    }

    /// Ends the pipes with their transfers in flight, and returns when they are gone.
    fn end_pipes(&mut self) {
        for slot in &self.slots {
            slot.given.end();
        }
        loop {
            self.forget_ended();
            if self.slots.is_empty() {
                return;
            }
            let _ = poll(&mut [PollFd::new(&*self.wake_event, PollFlags::IN)], None);
            self.drain_wake_event();
        }
    }

    fn drain_wake_event(&self) {
        let mut counter = [0; 8];
        // If it was not signalled after all, there is nothing to read.
        let _ = rustix::io::read(&*self.wake_event, &mut counter);
    }

    /// Handles the wake event, whatever else the session waits for: memory that failed is charged
    /// to the service until its pipes end.
    fn handle_wake_event(&self) -> Result<(), SessionEnd> {
        self.drain_wake_event();
        let mut memories = self.slots.iter().flat_map(|slot| &slot.places).filter_map(OpenedPlace::memory);
        if memories.any(|memory| memory.failed()) {
            // This comes first; the client is told after that.
            self.slots.iter().for_each(|slot| slot.given.end());
            return Err(cut(ErrorKind::OutOfMemory, "a page of its memory is missing (SIGBUS)"));
        }
        Ok(())
    }

    fn forget_ended(&mut self) {
        let over = self.slots.extract_if(.., |slot| slot.over.load(Ordering::SeqCst));
        self.unread.extend(over.map(|slot| slot.given).filter(PassedPipe::has_unread));
        self.unread.retain(PassedPipe::has_unread);
        self.facts.pipes.store(self.slots.len() as u64, Ordering::Relaxed);
    }

    /// Sleeps until there is something to do, or a time comes.
    fn wait(&self, until: Option<Instant>) -> Result<SessionEvent, SessionEnd> {
        loop {
            let mut fds = vec![
                PollFd::new(&self.socket, PollFlags::IN),
                PollFd::new(&*self.wake_event, PollFlags::IN),
                PollFd::new(&self.shared.ending, PollFlags::IN),
            ];
            fds.extend(self.receivers.iter().map(|taker| PollFd::new(taker, PollFlags::IN)));
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let timeout = left.map(timespec);
            match poll(&mut fds, timeout.as_ref()) {
                Ok(0) => return Ok(SessionEvent::Nothing),
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(e) => return Err(SessionEnd::Cut(Error::os("serve", e.raw_os_error(), "poll"))),
            }
            let due = |at: usize| !fds[at].revents().is_empty();
            return match (due(2), due(1), due(0)) {
                (true, ..) => Err(SessionEnd::Stops),
                (_, true, _) => Ok(SessionEvent::Bell),
                (.., true) => Ok(SessionEvent::Packet),
                _ => Ok(SessionEvent::Taker),
            };
        }
    }

    /// Waits until the client's next request may be carried out. Its further requests stay in its
    /// socket.
    fn wait_for_pace(&mut self) -> Result<(), SessionEnd> {
        let now = Instant::now();
        let until = now + self.pace.take(now);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            let timeout = timespec(left);
            // It also ends if the client closes the connection: POLLHUP is always reported.
            let mut fds = [
                PollFd::new(&self.shared.ending, PollFlags::IN),
                PollFd::new(&self.socket, PollFlags::empty()),
                PollFd::new(&*self.wake_event, PollFlags::IN),
            ];
            let _ = poll(&mut fds, Some(&timeout));
            match [0, 1, 2].map(|at: usize| !fds[at].revents().is_empty()) {
                [true, ..] => return Err(SessionEnd::Stops),
                [_, true, _] => return Err(SessionEnd::Quiet),
                [.., true] => self.handle_wake_event()?,
                _ => {}
            }
        }
    }

    /// Waits until the client has read what was sent to it, or has closed the connection: until
    /// then the kernel charges that to this process, with the descriptors in it. The client keeps
    /// its slot meanwhile, so this is bounded. A service that stops does not wait.
    ///
    /// The client may have passed its end of the connection or of a pipe back: what lies in the
    /// connection stays open, and nobody can read from it. So a helper empties the connection.
    fn wait_for_reader(&mut self) {
        let mut emptier: Option<ReceiverProcess> = None;
        let mut pause = MIN_PAUSE;
        while passing::has_unread(&self.socket) || self.unread.iter().any(PassedPipe::has_unread) {
            // No event reports this, so it is polled.
            let stops = poll(&mut [PollFd::new(&self.shared.ending, PollFlags::IN)], Some(&timespec(pause)));
            if stops == Ok(1) {
                return;
            }
            pause = (pause * 2).min(MAX_PAUSE);
            // A helper that was killed has not emptied it; one that could not be started is tried
            // again.
            if emptier.as_ref().is_none_or(|emptier| emptier.is_over() && is_readable(&self.socket)) {
                emptier = self.shared.intake.empty(self.socket.as_fd()).ok();
            }
        }
    }

    /// Waits until the client has read the answers that were sent to it: at most one descriptor is
    /// in flight to a client.
    fn wait_until_heard(&self) -> Result<(), SessionEnd> {
        let until = Instant::now() + Duration::from_millis(self.shared.config.limits.hello_ms);
        let mut pause = MIN_PAUSE;
        while passing::has_unread(&self.socket) {
            if Instant::now() > until {
                return Err(cut(ErrorKind::InvalidInput, UNHEARD));
            }
            let mut fds =
                [PollFd::new(&self.shared.ending, PollFlags::IN), PollFd::new(&*self.wake_event, PollFlags::IN)];
            let _ = poll(&mut fds, Some(&timespec(pause)));
            match [0, 1].map(|at: usize| !fds[at].revents().is_empty()) {
                [true, _] => return Err(SessionEnd::Stops),
                [_, true] => self.handle_wake_event()?,
                _ => {}
            }
            pause = (pause * 2).min(MAX_PAUSE);
        }
        Ok(())
    }

    /// Sends an answer. A client is cut off if it leaves so many answers unread that no other fits,
    /// or any if a descriptor is to be sent.
    fn answer(&self, answer: &ServiceAnswer, fd: Option<&OwnedFd>) -> Result<(), SessionEnd> {
        if fd.is_some() {
            self.wait_until_heard()?;
        }
        let bytes = serde_json::to_vec(answer).map_err(|e| cut(ErrorKind::System, format!("an answer: {e}")))?;
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        match packet::send(self.socket.as_fd(), &bytes, &fds, SendFlags::DONTWAIT) {
            Ok(()) => Ok(()),
            Err(Errno::AGAIN | Errno::NOBUFS) => Err(cut(ErrorKind::InvalidInput, UNHEARD)),
            Err(Errno::PIPE | Errno::CONNRESET) => Err(SessionEnd::Quiet),
            // The kernel limits descriptors that were sent and not received (ETOOMANYREFS).
            Err(e) => Err(SessionEnd::Cut(Error::os("serve", e.raw_os_error(), "sending an answer"))),
        }
    }

    fn refuse(&mut self, error: &Error) -> Result<(), SessionEnd> {
        self.refused += 1;
        match self.refused {
            ..COMPLAINTS => {
                self.log(LogEvent::RequestRefused, format_args!("refused: {}", sanitize(&error.to_string())))
            }
            COMPLAINTS => {
                let what = format_args!("refused for the {COMPLAINTS}th time; no more of this is logged");
                self.log(LogEvent::RequestRefused, what);
            }
            _ => {}
        }
        self.answer(&ServiceAnswer::error(error), None)
    }

    /// Receives the first request, which must be a hello and come soon.
    fn greet(&mut self) -> Result<(), SessionEnd> {
        let ms = self.shared.config.limits.hello_ms;
        let until = Instant::now() + Duration::from_millis(ms);
        let mut buffer = vec![0; MAX_REQUEST_BYTES];
        loop {
            if let SessionEvent::Nothing = self.wait(Some(until))? {
                return Err(cut(ErrorKind::Unavailable, format!("it said nothing for {ms} ms")));
            }
            let Some(PacketPeek { has_fds, .. }) = self.look()? else { continue };
            if has_fds {
                // The packet stays in the socket: reading it would close its descriptors.
                return Err(SessionEnd::Cut(bad(HELLO_FIRST)));
            }
            let Some(packet) = self.receive(&mut buffer)? else { continue };
            let error = match parse(&buffer, &packet) {
                Ok(ClientRequest::Hello { version: VERSION, name }) => {
                    // From here on only this thread receives packets.
                    self.may_pass = true;
                    passing::let_pass(&self.socket, true);
                    let name = sanitize(&name).chars().take(64).collect();
                    *self.facts.name.lock() = name;
                    let limits = self.shared.config.limits.clone();
                    return self.answer(&ServiceAnswer::Hello { version: VERSION, limits }, None);
                }
                Ok(ClientRequest::Hello { version, .. }) => {
                    let context = format!("version {version} of the protocol; this is version {VERSION}");
                    Error::new(ErrorKind::Unsupported, "connect", context)
                }
                Ok(_) => bad(HELLO_FIRST),
                Err(e) => e,
            };
            // The client does not speak the protocol.
            return Err(SessionEnd::Cut(error));
        }
    }

    fn serve(&mut self) -> SessionEnd {
        let mut buffer = vec![0; MAX_REQUEST_BYTES];
        loop {
            if let Err(end) = self.serve_one(&mut buffer) {
                return end;
            }
        }
    }

    fn serve_one(&mut self, buffer: &mut [u8]) -> Result<(), SessionEnd> {
        let due = self.wait(None)?;
        // The wake event may have been handled while something else was waited for.
        self.forget_ended();
        if let SessionEvent::Taker = due {
            self.receivers.retain(|taker| !taker.is_over());
            return Ok(());
        }
        if let SessionEvent::Bell = due {
            return self.handle_wake_event();
        }
        let Some(glance) = self.look()? else { return Ok(()) };
        self.wait_for_pace()?;
        let request = match glance.has_fds {
            true => self.take_in(buffer)?,
            false => match self.receive(buffer)? {
                Some(packet) => parse(buffer, &packet).map(|request| (request, Vec::new())),
                None => return Ok(()),
            },
        };
        let refusal = match request {
            Ok((ClientRequest::Connect(ask), fds)) => match self.connect(&ask, fds) {
                Ok((fd, route)) => return self.answer(&ServiceAnswer::pipe(route), Some(&fd)),
                Err(e) => e,
            },
            Ok((ClientRequest::Status, _)) => match self.status() {
                Ok(text) => return self.tell(&text),
                Err(e) => e,
            },
            Ok((ClientRequest::Hello { .. }, _)) => bad("a hello was sent before"),
            Err(e) => e,
        };
        self.refuse(&refusal)
    }

    fn connect(&mut self, ask: &PipeSpec, fds: Vec<OwnedFd>) -> Result<(OwnedFd, String)> {
        // This is a copy, because the session changes while the limits are read.
        let limits = self.shared.config.limits.clone();
        let depth = ask.depth.unwrap_or(DEPTH.min(limits.transfers));
        numbers::check(ask, depth)?;
        self.forget_ended();
        let has = self.slots.len() + self.unread.len();
        if has >= limits.pipes {
            return Err(reached(
                format!("{has} pipes, which is the limit of a client"),
                "close one, or have --pipes raised",
            ));
        }
        let transfers: usize = self.slots.iter().map(|slot| slot.depth).sum();
        if depth > limits.transfers.saturating_sub(transfers) {
            let context = format!(
                "a depth of {depth} in addition to {transfers}; a client may have {} transfers",
                limits.transfers
            );
            return Err(reached(context, "ask for a smaller depth, or have --transfers raised"));
        }
        let promised = ask.service.at_least.unwrap_or(0.0);
        let already: f64 = self.slots.iter().map(|slot| slot.promised).sum();
        if let Some(most) = limits.promised_bytes_per_s.filter(|most| promised + already > *most as f64) {
            let context = format!("{promised} bytes/s promised in addition to {already}; a client may have {most}");
            return Err(reached(context, "ask for less, or have --promised raised"));
        }
        let passed = PassedDescriptors::new(fds);
        let mut opener = Opener {
            passed: &passed,
            mapped: self.slots.iter().flat_map(|slot| &slot.places).filter_map(OpenedPlace::memory).cloned().collect(),
            ledger: &self.shared.ledger,
            facts: &self.facts,
            wake_event: &self.wake_event,
        };
        let places = [opener.open(&ask.source, Role::Source)?, opener.open(&ask.target, Role::Target)?];
        passed.all_used()?;
        let descriptors =
            |places: &[OpenedPlace; 2]| PIPE_DESCRIPTORS + places.iter().map(OpenedPlace::descriptors).sum::<usize>();
        let open: usize = self.slots.iter().map(|slot| descriptors(&slot.places)).sum();
        if open + descriptors(&places) > limits.descriptors {
            let context = format!("{open} descriptors; at most {} are kept for a client", limits.descriptors);
            return Err(reached(context, "close a pipe, or have --descriptors raised"));
        }
        // The pipe's own memory: a pipe between two files needs some for bytes in flight.
        let own = match places.iter().any(|place| place.memory().is_some()) {
            true => None,
            false => Some(ClientQuota::take(&self.shared.ledger, &self.facts, STAGED_BYTES as u64)?),
        };
        let over = Arc::new(AtomicBool::new(false));
        let keeper = NotifyOnDrop { flag: over.clone(), wake_event: self.wake_event.clone() };
        let connect = ConnectOptions::default()
            .constraints(ask.constraints.clone())
            .service(ask.service.clone())
            .queue(depth)
            .meter(self.facts.meter(ask.service.class));
        let ask = ConnectFdOptions::default().connect(connect).place(ask.place).depth(depth);
        let (fd, given) = self.shared.with_runtime(|runtime| {
            runtime.pass_fd(places[0].locator(), places[1].locator(), &ask, Box::new(keeper))
        })?;
        let route = given.pipe().map(|pipe| pipe.route().to_string()).unwrap_or_default();
        self.slots.push(Slot { given, over, places, depth, promised, _own: own });
        self.facts.pipes.store(self.slots.len() as u64, Ordering::Relaxed);
        Ok((fd, route))
    }
}
