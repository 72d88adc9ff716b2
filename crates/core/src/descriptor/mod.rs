//! The descriptor flavor: a pipe is a file descriptor (CIDR'23, section 5.2, figure 6c).
//!
//! ```text
//! writable   it can take a transfer          write(fd, request)      or submit
//! readable   a transfer is done              read(fd, completion)    or complete
//! ```
//!
//! It is one end of a `SOCK_SEQPACKET` pair, so that both conditions are the kernel's own, and
//! `select`, `poll`, `epoll` (level- and edge-triggered), and every event loop know them, for every
//! pair of places. The descriptor may be passed to another thread or process, and inherited; the
//! messages ([`wire`]) are plain packets, for any language. The other end is the runtime's, which
//! carries the transfers out.
//!
//! (The paper asks the kernel for such pipes. An io_uring's own descriptor would be readable at the
//! same moments, but only for pipes that are rings, and it cannot be sent to another process.)

mod given;
pub mod passing;
mod room;
#[cfg(all(test, shuttle))]
mod schedules;
mod server;
pub mod wire;

use std::any::Any;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};

use crate::backend::check_count;
use crate::error::{Error, Result};
use crate::locator::Locator;
use crate::machine::Machine;
use crate::plan::Route;
use crate::runtime::{ConnectOptions, Runtime, RuntimePipe};
use crate::span::Span;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicU64, Ordering};
pub use given::PassedPipe;
use server::DescriptorServer;
pub use wire::{Completion, TransferRequest};

/// Transfers that a descriptor takes before it stops being writable, if the caller does not say.
const DEPTH: usize = 64;
/// Bytes of the buffer of the program's end: so little that two unread requests make it unwritable.
const REQUESTS_BUFFER: usize = 1;

/// A pipe as a file descriptor. It may be used by several threads at once.
///
/// A thread that connected a pipe may see one `epoll_wait` end with `EINTR` after the pipe is gone:
/// the kernel interrupts each thread that opened or entered an io_uring when that ring is closed.
/// Waits that the kernel restarts (`poll`, `select`, `read`) do not show it. An event loop looks
/// again, as for a signal.
///
/// ```
/// use std::os::fd::AsFd;
/// use datapipes::{Dram, Span};
///
/// fn main() -> datapipes::Result<()> {
///     let machine = datapipes::discover();
///     let (source, target) = (Dram::allocate(1 << 20)?, Dram::allocate(1 << 20)?);
///     source.lease_mut()?.fill(7);
///
///     let pipe = machine.connect_fd(&source, &target)?; // or a runtime's: many pipes then share it
///     println!("for poll and epoll: {:?}", pipe.as_fd());
///     let token = pipe.submit(Span { source: 0, target: 0, len: 1 << 20 })?;
///     let done = pipe.complete_wait()?; // or `complete`, when the descriptor is readable
///     assert_eq!(done.token, token);
///     done.result?;
///     assert_eq!(target.lease()?[12_345], 7);
///     Ok(())
/// }
/// ```
pub struct PipeFd {
    socket: OwnedFd,
    serving: Arc<DescriptorServer>,
    next: AtomicU64,
    /// Its own runtime, where it was not connected by another.
    _runtime: Option<Runtime>,
}

/// How a descriptor is connected.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ConnectFdOptions {
    /// Route, class and rates.
    pub connect: ConnectOptions,
    /// What completions call this pipe's place: [`Completion::place`].
    pub place: u64,
    /// Transfers that it takes before it stops being writable; 64 if not given.
    pub depth: Option<usize>,
}

crate::setters! {
    ConnectFdOptions {
        connect: ConnectOptions,
        place: u64,
        depth: into Option<usize>,
    }
}

impl Runtime {
    /// Connects two places by a pipe that is a descriptor.
    ///
    /// # Errors
    /// As [`connect`](Runtime::connect); `System` where there are no descriptors left.
    pub fn connect_fd(&self, source: &dyn Locator, target: &dyn Locator) -> Result<PipeFd> {
        self.connect_fd_with(source, target, &ConnectFdOptions::default())
    }

    /// Connects two places by a pipe that is a descriptor, as told.
    ///
    /// # Errors
    /// As [`connect_fd`](Runtime::connect_fd).
    pub fn connect_fd_with(
        &self,
        source: &dyn Locator,
        target: &dyn Locator,
        ask: &ConnectFdOptions,
    ) -> Result<PipeFd> {
        let (socket, serving) = self.connect_kept(source, target, ask, None)?;
        Ok(PipeFd { socket, serving, next: AtomicU64::new(0), _runtime: None })
    }

    /// `keeper` is dropped when the pipe has ended.
    fn connect_kept(
        &self,
        source: &dyn Locator,
        target: &dyn Locator,
        ask: &ConnectFdOptions,
        keeper: Option<Box<dyn Any + Send + Sync>>,
    ) -> Result<(OwnedFd, Arc<DescriptorServer>)> {
        check_count("depth", ask.depth.map(|depth| depth as u64))?;
        let depth = ask.depth.unwrap_or(DEPTH);
        let connect =
            ConnectOptions { queue: Some(ask.connect.queue.unwrap_or(depth).max(depth)), ..ask.connect.clone() };
        let pipe = self.connect_with(source, target, &connect)?;
        let (socket, ours) = pair()?;
        // The runtime's threads read there, for all pipes.
        let may_carry = !passing::let_pass(&ours, false);
        let serving = DescriptorServer::new(ours, may_carry, pipe, ask.place, depth, keeper)?;
        serving.pipe().add_attended(serving.clone())?;
        Ok((socket, serving))
    }

    /// Connects two places by a pipe and gives its descriptor away: to another process, say. The
    /// pipe ends when the last copy of the descriptor is closed.
    ///
    /// # Errors
    /// As [`connect_fd`](Runtime::connect_fd).
    pub fn connect_raw_fd(
        &self,
        source: &dyn Locator,
        target: &dyn Locator,
        ask: &ConnectFdOptions,
    ) -> Result<(OwnedFd, RuntimePipe)> {
        let (socket, serving) = self.connect_kept(source, target, ask, None)?;
        Ok((socket, serving.pipe().clone()))
    }
}

impl Machine {
    /// Connects two places by a pipe that is a descriptor, with a runtime of its own.
    ///
    /// # Errors
    /// As [`Runtime::connect_fd`].
    pub fn connect_fd(&self, source: &dyn Locator, target: &dyn Locator) -> Result<PipeFd> {
        let runtime = Runtime::start(self)?;
        let mut pipe = runtime.connect_fd(source, target)?;
        pipe._runtime = Some(runtime);
        Ok(pipe)
    }
}

/// The program's end and the runtime's.
fn pair() -> Result<(OwnedFd, OwnedFd)> {
    let os = |e: Errno| Error::os("connect", e.raw_os_error(), "a pair of sockets for a pipe's descriptor");
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (socket, ours) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(os)?;
    // The kernel takes the least it can. With more, a full pipe would stay writable until many
    // requests are unread.
    sockopt::set_socket_send_buffer_size(&socket, REQUESTS_BUFFER).map_err(os)?;
    Ok((socket, ours))
}

impl PipeFd {
    /// Starts a transfer; the number comes back with its completion. A refused call uses a number
    /// up, so numbers may have gaps.
    ///
    /// # Errors
    /// `Busy` while the descriptor is not writable; `Unavailable` after [`close`](Self::close).
    /// What starting the transfer meets comes as its completion.
    pub fn submit(&self, span: Span) -> Result<u64> {
        self.serving.pipe().check_process("submit")?;
        self.serving.check_open("submit")?;
        let token = self.next.fetch_add(1, Ordering::Relaxed);
        // What a request through the socket does, without waking the coordinator for it.
        self.serving.accept_here(TransferRequest { token, span })?;
        if !self.serving.has_room() {
            self.serving.plug(&self.socket);
            // Who waits until it is writable takes no completions.
            self.serving.pipe().attend_all();
        }
        Ok(token)
    }

    /// A transfer that is done, if there is one; it does not block.
    ///
    /// # Errors
    /// `Unavailable` where the runtime is gone, and after [`close`](Self::close).
    pub fn complete(&self) -> Result<Option<Completion>> {
        self.serving.pipe().check_process("complete")?;
        self.serving.check_open("complete")?;
        self.serving.take(&self.socket)
    }

    /// Sleeps until a transfer is done: what an event loop does, for one descriptor.
    ///
    /// # Errors
    /// As [`complete`](Self::complete).
    pub fn complete_wait(&self) -> Result<Completion> {
        loop {
            if let Some(completion) = self.complete()? {
                return Ok(completion);
            }
            self.serving.pipe().sleep_beside(self.socket.as_fd());
        }
    }

    /// Ends the pipe, while other threads may use it. Those in
    /// [`complete_wait`](Self::complete_wait) wake up, and every other call fails from now on, with
    /// `Unavailable`; the descriptor is at its end. Transfers under way are carried out, and nobody
    /// hears of them. In a child of the process that connected it this does nothing.
    pub fn close(&self) {
        if self.serving.pipe().check_process("close").is_err() {
            return;
        }
        self.serving.close_here(&self.socket);
        self.serving.pipe().attend_all();
    }

    /// The route, with reasons.
    pub fn route(&self) -> &Route {
        self.serving.pipe().route()
    }

    /// The pipe behind it.
    pub fn pipe(&self) -> &RuntimePipe {
        self.serving.pipe()
    }
}

impl Drop for PipeFd {
    fn drop(&mut self) {
        if self.serving.pipe().check_process("drop").is_err() {
            return;
        }
        // What it has under way is completed by the coordinator from now on.
        self.serving.pipe().attend_all();
    }
}

impl AsFd for PipeFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for PipeFd {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl fmt::Debug for PipeFd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PipeFd({}, {:?})", self.socket.as_raw_fd(), self.serving.pipe())
    }
}
