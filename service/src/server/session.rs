//! A client's connection.
//!
//! ```text
//! hello within its time, or it is cut off
//! then: a request -> an answer;  the bell -> pipes that ended are let go, memory that failed ends the session
//! end (it hung up, died, was cut off; the service stops): its pipes end, and what they had under way is stopped; it stays
//! until the last part is back that a device or a thread has
//! ```
//!
//! Memory and files of a pipe are let go here, not by the coordinator: unmapping and closing can take long.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use datapipes::descriptor::{GivenPipe, passing};
use datapipes::{Connect, ConnectFd, Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::account::{Over, SessionFacts, reached};
use super::farewell::part;
use super::log::tame;
use super::numbers::{self, bad};
use super::pace::Pace;
use super::places::{Opener, Passed, Place, Role};
use super::{Shared, stops};
use crate::packet::{self, Packet};
use crate::protocol::{Answer, Ask, MOST_DESCRIPTORS, REQUEST_BYTES, Request, STATUS_PIECE, VERSION};
use crate::status::{ClientStatus, Status};

/// Descriptors of a pipe beside those passed: its socket and at most two rings.
const PIPE_DESCRIPTORS: usize = 3;
/// Transfers of a pipe whose client does not say: as in the runtime.
const DEPTH: usize = 64;
/// Refusals of a client that are logged one by one.
const COMPLAINTS: u32 = 16;

pub(super) struct Session {
    shared: Arc<Shared>,
    socket: OwnedFd,
    facts: Arc<SessionFacts>,
    /// Rung when a pipe has ended, or memory failed.
    bell: Arc<OwnedFd>,
    slots: Vec<Slot>,
    refused: u32,
    pace: Pace,
}

/// A pipe, and what it needs.
struct Slot {
    given: GivenPipe,
    over: Arc<AtomicBool>,
    places: [Place; 2],
    depth: usize,
    promised: f64,
}

/// Why a session ends.
enum End {
    /// The client hung up.
    Quiet,
    /// The service stops.
    Stops,
    /// The client is cut off.
    Cut(Error),
}

/// The end of a client that does not keep to what was agreed.
fn cut(kind: ErrorKind, why: impl Into<String>) -> End {
    End::Cut(Error::new(kind, "serve", why))
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX), tv_nsec: time.subsec_nanos().into() }
}

enum Due {
    Packet,
    Bell,
    Nothing,
}

impl Session {
    pub(super) fn new(shared: Arc<Shared>, socket: OwnedFd, facts: Arc<SessionFacts>, bell: OwnedFd) -> Session {
        let pace = Pace::new(shared.config.limits.requests_per_s, Instant::now());
        Session { shared, socket, facts, bell: Arc::new(bell), slots: Vec::new(), refused: 0, pace }
    }

    /// Serves the client until it is gone and nothing of it is left.
    pub(super) fn run(mut self) {
        let end = match self.greet() {
            Ok(()) => self.serve(),
            Err(end) => end,
        };
        match &end {
            End::Cut(why) => {
                self.shared.turned_away.fetch_add(1, Ordering::Relaxed);
                self.log(format_args!("cut off: {}", tame(&why.to_string())));
                self.say(why);
            }
            End::Stops => self.say(&stops()),
            End::Quiet if self.slots.is_empty() => {}
            End::Quiet => self.log(format_args!("left, with {} pipes", self.slots.len())),
        }
        // Before the pipes are waited for: the client sees at once that it is over.
        part(&self.socket);
        self.let_go();
    }

    fn log(&self, what: std::fmt::Arguments<'_>) {
        let name = self.facts.name.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (number, peer) = (self.facts.number, self.facts.peer);
        self.shared
            .config
            .log
            .of_client(format_args!("client {number} ({name}, user {}, process {}) {what}", peer.uid, peer.pid));
    }

    /// Why it is over: the answer to what the client asks next, or is asking. One that reads nothing does not hear it.
    fn say(&self, why: &Error) {
        let _ = self.answer(&Answer::error(why), None);
    }

    /// Ends the pipes with all that they have under way, and returns when they are gone.
    fn let_go(&mut self) {
        for slot in &self.slots {
            slot.given.end();
        }
        loop {
            self.forget_ended();
            if self.slots.is_empty() {
                return;
            }
            let _ = poll(&mut [PollFd::new(&*self.bell, PollFlags::IN)], None);
            self.quiet_bell();
        }
    }

    fn quiet_bell(&self) {
        let mut counter = [0; 8];
        // Not rung after all: fine.
        let _ = rustix::io::read(&*self.bell, &mut counter);
    }

    fn forget_ended(&mut self) {
        self.slots.retain(|slot| !slot.over.load(Ordering::SeqCst));
        self.facts.pipes.store(self.slots.len() as u64, Ordering::Relaxed);
    }

    /// Sleeps until something is due, or a time comes.
    fn wait(&self, until: Option<Instant>) -> Result<Due, End> {
        loop {
            let mut fds = [
                PollFd::new(&self.socket, PollFlags::IN),
                PollFd::new(&*self.bell, PollFlags::IN),
                PollFd::new(&self.shared.ending, PollFlags::IN),
            ];
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let timeout = left.map(timespec);
            match poll(&mut fds, timeout.as_ref()) {
                Ok(0) => return Ok(Due::Nothing),
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(e) => return Err(End::Cut(Error::os("serve", e.raw_os_error(), "poll"))),
            }
            let due = |at: usize| !fds[at].revents().is_empty();
            return match (due(2), due(1)) {
                (true, _) => Err(End::Stops),
                (_, true) => Ok(Due::Bell),
                _ => Ok(Due::Packet),
            };
        }
    }

    /// Waits until the client may have its next request carried out. What it asks meanwhile stays in its socket.
    fn rest(&mut self) -> Result<(), End> {
        let now = Instant::now();
        let until = now + self.pace.take(now);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            let timeout = timespec(left);
            // Its hanging up, too, ends the rest: POLLHUP is told without being asked for.
            let mut fds =
                [PollFd::new(&self.shared.ending, PollFlags::IN), PollFd::new(&self.socket, PollFlags::empty())];
            let _ = poll(&mut fds, Some(&timeout));
            match (fds[0].revents().is_empty(), fds[1].revents().is_empty()) {
                (true, true) => {}
                (false, _) => return Err(End::Stops),
                (true, false) => return Err(End::Quiet),
            }
        }
    }

    fn receive(&self, buffer: &mut [u8]) -> Result<Option<Packet>, End> {
        match packet::receive(self.socket.as_fd(), buffer, RecvFlags::DONTWAIT) {
            Ok(packet) if packet.bytes == 0 => Err(End::Quiet),
            Ok(packet) => Ok(Some(packet)),
            Err(Errno::AGAIN) => Ok(None),
            Err(Errno::CONNRESET) => Err(End::Quiet),
            Err(e) => Err(End::Cut(Error::os("serve", e.raw_os_error(), "receiving a request"))),
        }
    }

    /// Answers; a client that leaves so many answers unread that no other fits is cut off.
    fn answer(&self, answer: &Answer, fd: Option<&OwnedFd>) -> Result<(), End> {
        let bytes = serde_json::to_vec(answer).map_err(|e| cut(ErrorKind::System, format!("an answer: {e}")))?;
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        match packet::send(self.socket.as_fd(), &bytes, &fds, SendFlags::DONTWAIT) {
            Ok(()) => Ok(()),
            Err(Errno::AGAIN | Errno::NOBUFS) => Err(cut(ErrorKind::InvalidInput, "it does not read its answers")),
            Err(Errno::PIPE | Errno::CONNRESET) => Err(End::Quiet),
            // The kernel counts descriptors that are on their way and were not taken (ETOOMANYREFS).
            Err(e) => Err(End::Cut(Error::os("serve", e.raw_os_error(), "sending an answer"))),
        }
    }

    fn refuse(&mut self, error: &Error) -> Result<(), End> {
        self.refused += 1;
        match self.refused {
            ..COMPLAINTS => self.log(format_args!("refused: {}", tame(&error.to_string()))),
            COMPLAINTS => self.log(format_args!("refused for the {COMPLAINTS}th time; no more of this is logged")),
            _ => {}
        }
        self.answer(&Answer::error(error), None)
    }

    /// The first request, which must be a hello and come soon.
    fn greet(&mut self) -> Result<(), End> {
        let ms = self.shared.config.limits.hello_ms;
        let until = Instant::now() + Duration::from_millis(ms);
        let mut buffer = vec![0; REQUEST_BYTES];
        loop {
            if let Due::Nothing = self.wait(Some(until))? {
                return Err(cut(ErrorKind::Unavailable, format!("it said nothing for {ms} ms")));
            }
            let Some(packet) = self.receive(&mut buffer)? else { continue };
            let fds = packet.fds.len();
            let error = match parse(&buffer, packet) {
                Ok((Request::Hello { version: VERSION, name }, _)) if fds == 0 => {
                    // From here on this thread alone reads what comes.
                    passing::let_pass(&self.socket, true);
                    let name = tame(&name).chars().take(64).collect();
                    *self.facts.name.lock().unwrap_or_else(PoisonError::into_inner) = name;
                    let limits = self.shared.config.limits.clone();
                    return self.answer(&Answer::Hello { version: VERSION, limits }, None);
                }
                Ok((Request::Hello { version, .. }, _)) if fds == 0 => {
                    let context = format!("version {version} of the protocol; this is version {VERSION}");
                    Error::new(ErrorKind::Unsupported, "connect", context)
                }
                Ok(_) => bad("the first request must be a hello, without descriptors"),
                Err(e) => e,
            };
            // What it says is not what is expected here: there is no sense in going on.
            return Err(End::Cut(error));
        }
    }

    fn serve(&mut self) -> End {
        let mut buffer = vec![0; REQUEST_BYTES];
        loop {
            if let Err(end) = self.serve_one(&mut buffer) {
                return end;
            }
        }
    }

    fn serve_one(&mut self, buffer: &mut [u8]) -> Result<(), End> {
        if let Due::Bell = self.wait(None)? {
            self.quiet_bell();
            let mut memories = self.slots.iter().flat_map(|slot| &slot.places).filter_map(Place::memory);
            if memories.any(|memory| memory.failed()) {
                return Err(cut(ErrorKind::OutOfMemory, "a page of its memory could not be had (SIGBUS)"));
            }
            self.forget_ended();
            return Ok(());
        }
        let Some(packet) = self.receive(buffer)? else { return Ok(()) };
        self.rest()?;
        let refusal = match parse(buffer, packet) {
            Ok((Request::Connect(ask), fds)) => match self.connect(&ask, fds) {
                Ok((fd, route)) => return self.answer(&Answer::pipe(route), Some(&fd)),
                Err(e) => e,
            },
            Ok((Request::Status, fds)) if fds.is_empty() => match self.status() {
                Ok(text) => return self.tell(&text),
                Err(e) => e,
            },
            Ok((Request::Status, _)) => bad("a status needs no descriptors"),
            Ok((Request::Hello { .. }, _)) => bad("a hello was said already"),
            Err(e) => e,
        };
        self.refuse(&refusal)
    }

    /// Answers by a status, piece by piece as the client reads.
    fn tell(&self, text: &[u8]) -> Result<(), End> {
        self.answer(&Answer::Status { len: text.len() as u64 }, None)?;
        let until = Instant::now() + Duration::from_millis(self.shared.config.limits.hello_ms);
        for piece in text.chunks(STATUS_PIECE) {
            loop {
                match packet::send(self.socket.as_fd(), piece, &[], SendFlags::DONTWAIT) {
                    Ok(()) => break,
                    Err(Errno::AGAIN | Errno::NOBUFS) => self.await_room(until)?,
                    Err(Errno::PIPE | Errno::CONNRESET) => return Err(End::Quiet),
                    Err(e) => return Err(End::Cut(Error::os("serve", e.raw_os_error(), "sending a status"))),
                }
            }
        }
        Ok(())
    }

    fn await_room(&self, until: Instant) -> Result<(), End> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(cut(ErrorKind::InvalidInput, "it does not read its answers"));
        }
        let timeout = timespec(left);
        let mut fds = [PollFd::new(&self.shared.ending, PollFlags::IN), PollFd::new(&self.socket, PollFlags::OUT)];
        // An interrupted wait is a short one.
        let _ = poll(&mut fds, Some(&timeout));
        if fds[0].revents().is_empty() { Ok(()) } else { Err(End::Stops) }
    }

    fn connect(&mut self, ask: &Ask, fds: Vec<OwnedFd>) -> Result<(OwnedFd, String)> {
        // Its own copy: the limits are read while the session changes.
        let limits = self.shared.config.limits.clone();
        let depth = ask.depth.unwrap_or(DEPTH.min(limits.transfers));
        numbers::check(ask, depth)?;
        self.forget_ended();
        let has = self.slots.len();
        if has >= limits.pipes {
            return Err(reached(
                format!("{has} pipes, which is the most of a client"),
                "close one, or have --pipes raised",
            ));
        }
        let transfers: usize = self.slots.iter().map(|slot| slot.depth).sum();
        if depth > limits.transfers.saturating_sub(transfers) {
            let context =
                format!("a depth of {depth} beside {transfers}, of {} transfers of a client", limits.transfers);
            return Err(reached(context, "ask for a smaller depth, or have --transfers raised"));
        }
        let promised = ask.service.at_least.unwrap_or(0.0);
        let already: f64 = self.slots.iter().map(|slot| slot.promised).sum();
        if let Some(most) = limits.promised_bytes_per_s.filter(|most| promised + already > *most as f64) {
            let context = format!("{promised} bytes/s promised beside {already}, of {most} for a client");
            return Err(reached(context, "ask for less, or have --promised raised"));
        }
        let passed = Passed::new(fds);
        let mut opener = Opener {
            passed: &passed,
            mapped: self.slots.iter().flat_map(|slot| &slot.places).filter_map(Place::memory).cloned().collect(),
            ledger: &self.shared.ledger,
            facts: &self.facts,
            bell: &self.bell,
            any_filesystem: self.shared.config.any_filesystem,
        };
        let places = [opener.open(&ask.source, Role::Source)?, opener.open(&ask.target, Role::Target)?];
        passed.all_used()?;
        let descriptors = |places: &[Place; 2]| PIPE_DESCRIPTORS + places.iter().map(Place::descriptors).sum::<usize>();
        let open: usize = self.slots.iter().map(|slot| descriptors(&slot.places)).sum();
        if open + descriptors(&places) > limits.descriptors {
            let context = format!("{open} descriptors, of {} that are kept for a client", limits.descriptors);
            return Err(reached(context, "close a pipe, or have --descriptors raised"));
        }
        let over = Arc::new(AtomicBool::new(false));
        let keeper = Over { flag: over.clone(), bell: self.bell.clone() };
        let connect =
            Connect { constraints: ask.constraints.clone(), service: ask.service.clone(), queue: Some(depth) };
        let ask = ConnectFd { connect, place: ask.place, depth: Some(depth) };
        let (fd, given) = self.shared.with_runtime(|runtime| {
            runtime.give_fd(places[0].locator(), places[1].locator(), &ask, Box::new(keeper))
        })?;
        let route = given.pipe().map(|pipe| pipe.route().to_string()).unwrap_or_default();
        self.slots.push(Slot { given, over, places, depth, promised });
        self.facts.pipes.store(self.slots.len() as u64, Ordering::Relaxed);
        Ok((fd, route))
    }

    /// What the service does.
    fn status(&self) -> Result<Vec<u8>> {
        let shared = &self.shared;
        let report = shared.with_runtime(|runtime| Ok(runtime.report()))?;
        let broken = |e: serde_json::Error| Error::new(ErrorKind::System, "report", e.to_string());
        let me = self.facts.peer.uid;
        let sees_all = me == 0 || me == rustix::process::getuid().as_raw();
        let sessions: Vec<_> = shared.sessions().values().cloned().collect();
        let seen = sessions.iter().filter(|other| sees_all || other.peer.uid == me);
        let mut runtime = serde_json::to_value(&report).map_err(broken)?;
        if !sees_all {
            without_flows(&mut runtime);
        }
        let status = Status {
            pid: std::process::id(),
            up_s: shared.began.elapsed().as_secs(),
            descriptors: own_descriptors(),
            mapped_bytes: shared.ledger.mapped(),
            turned_away: shared.turned_away.load(Ordering::Relaxed),
            connected: sessions.len() as u64,
            clients: seen.map(|facts| client_status(facts)).collect(),
            limits: shared.config.limits.clone(),
            runtime,
        };
        serde_json::to_vec(&status).map_err(broken)
    }
}

/// What each pipe of others asks for and does is nobody's business.
fn without_flows(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(fields) => {
            fields.iter_mut().for_each(|(name, value)| match name.as_str() {
                "flows" => *value = serde_json::Value::Array(Vec::new()),
                _ => without_flows(value),
            });
        }
        serde_json::Value::Array(values) => values.iter_mut().for_each(without_flows),
        _ => {}
    }
}

fn client_status(facts: &SessionFacts) -> ClientStatus {
    ClientStatus {
        number: facts.number,
        name: facts.name.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        uid: facts.peer.uid,
        pid: facts.peer.pid,
        pipes: facts.pipes.load(Ordering::Relaxed),
        mapped_bytes: facts.mapped.load(Ordering::Relaxed),
    }
}

/// The request of a packet, with its descriptors; those of a packet that is refused are closed here.
fn parse(buffer: &[u8], packet: Packet) -> Result<(Request, Vec<OwnedFd>)> {
    if packet.fds_cut {
        return Err(bad(&format!("more than {MOST_DESCRIPTORS} descriptors, or more than the service can have now")));
    }
    if packet.cut {
        return Err(bad(&format!("more than {REQUEST_BYTES} bytes")));
    }
    let request = serde_json::from_slice(&buffer[..packet.bytes]).map_err(|e| bad(&format!("no request: {e}")))?;
    Ok((request, packet.fds))
}

/// Descriptors that this process has open, but for the one that looks.
fn own_descriptors() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count().saturating_sub(1) as u64)
}
