//! A pipe of the service, on the client's side.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use datapipes_core::descriptor::wire::{Completion, MESSAGE_BYTES, TransferRequest};
use datapipes_core::locks::{Mutex, MutexGuard};
use datapipes_core::memory::{Access, MemoryRange, RawLease};
use datapipes_core::process::OwningProcess;
use datapipes_core::{Error, ErrorKind, Result, Span};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::Client;

type Leases = (Option<RawLease>, Option<RawLease>);

/// A pipe that the service carries out. It is a file descriptor like [`datapipes_core::PipeFd`]:
/// writable when it can take a transfer, and readable when one is done. Several threads may use it
/// at once.
///
/// A transfer leases its bytes in this process until its completion is taken. Dropping the pipe
/// waits for transfers in flight. If the service dies, the bytes of transfers in flight stay leased
/// for ever, because it cannot be known when they are no longer accessed.
pub struct ClientPipe {
    socket: OwnedFd,
    /// Keeps the connection open: the service ends the pipes of a closed connection.
    _client: Client,
    route: String,
    /// The ranges that transfers lease, in the source and in the target.
    ranges: (Option<MemoryRange>, Option<MemoryRange>),
    next: AtomicU64,
    /// The leases of transfers in flight, by token.
    held: Mutex<HashMap<u64, Leases>>,
    /// Completions taken while `transfer` waited for another.
    early: Mutex<VecDeque<Completion>>,
    owner: OwningProcess,
}

impl ClientPipe {
    pub(super) fn new(
        socket: OwnedFd,
        client: Client,
        route: String,
        ranges: (Option<MemoryRange>, Option<MemoryRange>),
    ) -> ClientPipe {
        let (held, early) = (Mutex::default(), Mutex::default());
        let (next, owner) = (AtomicU64::new(0), OwningProcess::here());
        ClientPipe { socket, _client: client, route, ranges, next, held, early, owner }
    }

    fn held(&self) -> MutexGuard<'_, HashMap<u64, Leases>> {
        self.held.lock()
    }

    fn early(&self) -> MutexGuard<'_, VecDeque<Completion>> {
        self.early.lock()
    }

    /// Starts a transfer. Returns the token that comes back with its completion.
    ///
    /// # Errors
    /// `Busy` while the descriptor is not writable, or if the bytes are leased in this process;
    /// `OutOfRange`; `Unavailable` if the service is gone. An error of starting the transfer in the
    /// service comes as its completion.
    pub fn submit(&self, span: Span) -> Result<u64> {
        self.owner.check("submit")?;
        let source = lease(self.ranges.0.as_ref(), span.source, span.len, Access::Read)?;
        let target = lease(self.ranges.1.as_ref(), span.target, span.len, Access::Write)?;
        let token = self.next.fetch_add(1, Ordering::Relaxed);
        // The leases are stored before the request is sent: another thread may take the completion
        // at once.
        self.held().insert(token, (source, target));
        let sent = loop {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::send(&self.socket, &TransferRequest { token, span }.to_bytes(), flags) {
                Err(Errno::INTR) => {}
                other => break other,
            }
        };
        let Err(e) = sent else { return Ok(token) };
        self.held().remove(&token);
        Err(match e {
            Errno::AGAIN => Error::new(ErrorKind::Busy, "submit", "the pipe takes no transfer now")
                .with_advice("wait until its descriptor is writable"),
            e => gone("submit", e),
        })
    }

    /// Returns a finished transfer, if there is one. It does not block.
    ///
    /// # Errors
    /// `Unavailable` if the service is gone.
    pub fn complete(&self) -> Result<Option<Completion>> {
        self.owner.check("complete")?;
        let early = self.early().pop_front();
        match early {
            Some(completion) => Ok(Some(completion)),
            None => self.receive(),
        }
    }

    fn receive(&self) -> Result<Option<Completion>> {
        let mut message = [0; MESSAGE_BYTES];
        loop {
            return match rustix::net::recv(&self.socket, &mut message, RecvFlags::DONTWAIT) {
                Ok((0, _)) => Err(gone("complete", Errno::PIPE)),
                Ok((len, _)) => match Completion::from_bytes(&message[..len]) {
                    Some(completion) => {
                        let leases = self.held().remove(&completion.token);
                        drop(leases);
                        Ok(Some(completion))
                    }
                    None => Err(Error::new(ErrorKind::Corrupt, "complete", format!("a message of {len} bytes"))),
                },
                Err(Errno::AGAIN) => Ok(None),
                Err(Errno::INTR) => continue,
                Err(e) => Err(gone("complete", e)),
            };
        }
    }

    /// Sleeps until a transfer is done.
    ///
    /// # Errors
    /// The same as for [`complete`](Self::complete).
    pub fn complete_wait(&self) -> Result<Completion> {
        loop {
            if let Some(completion) = self.complete()? {
                return Ok(completion);
            }
            self.sleep(PollFlags::IN)?;
        }
    }

    /// Carries out one transfer, and returns when it is done. Completions of others that come first
    /// are kept for [`complete`](Self::complete), although the descriptor is not readable for them;
    /// so either use this or `submit` at a time.
    ///
    /// # Errors
    /// The same as for [`submit`](Self::submit), but it waits for room; the transfer's own error.
    pub fn transfer(&mut self, span: Span) -> Result<()> {
        self.owner.check("transfer")?;
        // No other thread submits, so a descriptor that is writable now still is below.
        self.sleep(PollFlags::OUT)?;
        let token = self.submit(span)?;
        loop {
            match self.receive()? {
                Some(completion) if completion.token == token => return completion.result,
                Some(other) => self.early().push_back(other),
                None => self.sleep(PollFlags::IN)?,
            }
        }
    }

    fn sleep(&self, flags: PollFlags) -> Result<()> {
        match poll(&mut [PollFd::new(&self.socket, flags)], None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(e) => Err(Error::os("wait", e.raw_os_error(), "poll of a pipe's descriptor")),
        }
    }

    /// Returns the route of the pipe with reasons, as the service describes it.
    pub fn route(&self) -> &str {
        &self.route
    }

    /// Returns the number of transfers that were submitted and whose completion was not taken.
    pub fn under_way(&self) -> usize {
        if self.owner.is_here() { self.held().len() } else { 0 }
    }
}

impl Drop for ClientPipe {
    fn drop(&mut self) {
        // In a child the number is 0: a completion taken there would be lost to the parent.
        while self.under_way() > 0 {
            if !matches!(self.receive(), Ok(Some(_)))
                && self.sleep(PollFlags::IN).and_then(|()| self.receive()).is_err()
            {
                // The service is gone without an answer: its transfers may still write these bytes.
                std::mem::forget(std::mem::take(&mut *self.held()));
            }
        }
    }
}

impl AsFd for ClientPipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for ClientPipe {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl fmt::Debug for ClientPipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let route = self.route.lines().next().unwrap_or("");
        write!(f, "ClientPipe({}, {route})", self.socket.as_raw_fd())
    }
}

fn lease(range: Option<&MemoryRange>, at: u64, len: u64, access: Access) -> Result<Option<RawLease>> {
    let Some(range) = range else { return Ok(None) };
    let beyond = || {
        let context = format!("{len} bytes at {at} of a place of {} bytes", range.len());
        Error::new(ErrorKind::OutOfRange, "transfer", context)
    };
    let (at, len) = (usize::try_from(at).map_err(|_| beyond())?, usize::try_from(len).map_err(|_| beyond())?);
    range.range(at, len).map_err(|_| beyond())?.raw_lease(access).map(Some)
}

fn gone(operation: &'static str, e: Errno) -> Error {
    match e {
        Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => {
            Error::new(ErrorKind::Unavailable, operation, "the service ended the pipe").with_advice("connect again")
        }
        e => Error::os(operation, e.raw_os_error(), "a pipe's descriptor"),
    }
}
