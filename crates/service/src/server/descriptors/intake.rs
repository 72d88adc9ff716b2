//! Receiving clients' descriptors in helper processes.
//!
//! Closing a descriptor, and asking for its file system, may wait for the process that serves that
//! file system, and only its answer ends such a wait: no signal does, and not the end of the
//! waiting process. So a helper process receives a client's descriptors first, and the service gets
//! them only if both are known to be harmless.
//!
//! ```text
//! service                       parent                    a helper for each packet
//! looks whether the packet has
//!   descriptors
//! asks   --client's socket-->   forks  ---------------->  receives the packet
//!                                                         asks for the file system of each
//!                                                           descriptor (may wait)
//!        <----------------------------- bytes and facts
//! judges ------------------------------ verdict ------->  passes the descriptors on, or not
//!        <----------------------------- descriptors
//!                                                         closes its own (may wait), ends
//! ```
//!
//! A helper that blocks for ever costs its client the connection, and keeps the client's slot among
//! those of its user, so the number of such helpers is bounded. The service can go on, and end,
//! without it.
//!
//! The parent is forked by a first process, which is forked when the service starts and forks
//! another parent if one was killed. All of them only make system calls: no allocation, no lock.
//! They have the service's rights, but none of its descriptors. Of its memory they have a copy made
//! at the start, with nothing of a client's.
//!
//! Unsafe code: `fork`, twice, and the calls by which the parent closes what it inherited.
#![allow(unsafe_code)]

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use datapipes_core::locks::Mutex;
use datapipes_core::packet::{self, PacketFacts};
use datapipes_core::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, StatxFlags, fstat, fstatfs, statx};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, recv, send, sendmsg, socketpair,
};

use crate::protocol::{MAX_DESCRIPTORS, MAX_REQUEST_BYTES};

/// The first byte of each message to and from a helper.
const TAKE: u8 = 1;
const DISCARD: u8 = 2;
const FACTS: u8 = 3;
const DESCRIPTORS: u8 = 4;
const FAILED: u8 = 5;
const HERE: u8 = 6;
/// The verdict: pass the descriptors on.
const PASS: u8 = 7;
const PARENT: u8 = 8;

/// The most packets without bytes that may be in a socket; each takes hundreds of bytes of its
/// sender's buffer.
const EMPTY_PACKETS: usize = 4096;
/// As many packets without bytes as an honest client could have sent.
const FEW_EMPTY_PACKETS: usize = 8;
/// How often a busy parent is asked, and the pauses between.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(2);

/// Bytes before the facts: the kind of message, whether the packet and its descriptors were cut,
/// and the number of descriptors.
const HEAD: usize = 4;
const FACT: usize = 32;
const BEFORE_BYTES: usize = HEAD + MAX_DESCRIPTORS * FACT;

/// The facts of a descriptor that another process has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::server) struct DescriptorFacts {
    /// The magic number of its file system (statfs(2)).
    pub(in crate::server) file_system: u64,
    /// Its type and permissions (`st_mode`).
    pub(in crate::server) mode: u32,
    /// 0, or the error because of which the rest is not known.
    pub(in crate::server) errno: i32,
    /// Its device number, if it is a device (`st_rdev`).
    pub(in crate::server) device: u64,
    /// The mount through which it was opened; `u64::MAX` if the kernel does not say.
    pub(in crate::server) mount: u64,
}

impl DescriptorFacts {
    /// Reads the facts. This may wait for the process that serves the file system.
    fn of(fd: BorrowedFd<'_>) -> DescriptorFacts {
        let (system, stat) = match (fstatfs(fd), fstat(fd)) {
            (Ok(system), Ok(stat)) => (system, stat),
            (Err(e), _) | (_, Err(e)) => {
                return DescriptorFacts { errno: e.raw_os_error(), ..DescriptorFacts::default() };
            }
        };
        let found = statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID);
        let mount = found.ok().filter(|x| x.stx_mask & StatxFlags::MNT_ID.bits() != 0).map(|x| x.stx_mnt_id);
        DescriptorFacts {
            file_system: system.f_type as u64 & 0xFFFF_FFFF,
            mode: stat.st_mode,
            errno: 0,
            device: stat.st_rdev,
            mount: mount.unwrap_or(u64::MAX),
        }
    }

    fn to_bytes(self) -> [u8; FACT] {
        let mut bytes = [0; FACT];
        bytes[..8].copy_from_slice(&self.file_system.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.mode.to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.errno.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.device.to_ne_bytes());
        bytes[24..].copy_from_slice(&self.mount.to_ne_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<DescriptorFacts> {
        let eight = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes);
        let four = |at: usize| bytes.get(at..at + 4)?.try_into().ok();
        Some(DescriptorFacts {
            file_system: eight(0)?,
            mode: u32::from_ne_bytes(four(8)?),
            errno: i32::from_ne_bytes(four(12)?),
            device: eight(16)?,
            mount: eight(24)?,
        })
    }
}

/// The parent of the helper processes, and the process that replaces it.
pub(in crate::server) struct Intake {
    /// Forks parents. It is forked before the service has anything of a client's: a later copy of
    /// the service would keep its mappings.
    first: OwnedFd,
    parent: Mutex<OwnedFd>,
    left: Mutex<Vec<Left>>,
}

/// A connection that is not closed yet.
struct Left {
    socket: OwnedFd,
    closer: Closer,
}

/// The state of closing such a connection.
enum Closer {
    /// A helper is still to be found.
    Wanted(Option<ControlSockets>),
    Asked(ReceiverProcess),
}

/// The two ends of the socket between the service and a helper.
pub(in crate::server) struct ControlSockets {
    ours: OwnedFd,
    theirs: OwnedFd,
}

impl ControlSockets {
    /// # Errors
    /// Errors of the kernel if it gives no socket.
    pub(in crate::server) fn new() -> Result<ControlSockets> {
        let (ours, theirs) = pair()?;
        Ok(ControlSockets { ours, theirs })
    }
}

impl Intake {
    /// Starts the first process and a parent.
    ///
    /// # Errors
    /// Errors of the kernel if it gives no process or socket.
    pub(in crate::server) fn start() -> Result<Intake> {
        let first = start_first()?;
        let parent = Mutex::new(next_parent(&first)?);
        Ok(Intake { first, parent, left: Mutex::default() })
    }

    /// Returns a socket that is shut (`POLLHUP`) when the first process was killed: no descriptor
    /// can be received any more then.
    pub(in crate::server) fn first(&self) -> BorrowedFd<'_> {
        self.first.as_fd()
    }

    /// Keeps a connection that this process must not close, until a helper has it.
    pub(in crate::server) fn leave(&self, socket: OwnedFd, words: Option<ControlSockets>) {
        let left = Left { socket, closer: Closer::Wanted(words) };
        self.left.lock().push(left);
        self.close_unclosed();
    }

    /// Has the connections closed that were left, as far as there are helpers. It does not wait for
    /// them.
    pub(in crate::server) fn close_unclosed(&self) {
        let mut left = self.left.lock();
        left.retain_mut(|Left { socket, closer }| {
            if let Closer::Wanted(words) = closer
                && let Some(words) = words.take().or_else(|| ControlSockets::new().ok())
            {
                *closer = match self.ask(DISCARD, socket.as_fd(), words, 1) {
                    Ok(taker) => Closer::Asked(taker),
                    Err((_, words)) => Closer::Wanted(Some(words)),
                };
            }
            if let Closer::Asked(taker) = closer {
                match taker.receive(&mut []) {
                    // The helper has the connection. The copy here is dropped now, so the helper is
                    // the last process that has it, and closes it.
                    Ok(_) => return false,
                    Err(e) if e.errno() == Some(libc::EAGAIN) => {}
                    Err(_) => *closer = Closer::Wanted(None),
                }
            }
            true
        });
    }

    /// Returns a helper that receives the next packet of a client, which must be there.
    ///
    /// # Errors
    /// Errors of the kernel if it gives no socket, or no new parent for one that was killed; `Busy`
    /// if the parent is too busy.
    pub(in crate::server) fn take(&self, client: BorrowedFd<'_>) -> Result<ReceiverProcess> {
        let taker = self.ask(TAKE, client, ControlSockets::new()?, TRIES).map_err(|(e, _)| e)?;
        self.close_unclosed();
        Ok(taker)
    }

    /// Returns a helper that reads and closes what is in a client's connection, which is shut, and
    /// ends.
    ///
    /// # Errors
    /// As [`take`](Intake::take).
    pub(in crate::server) fn empty(&self, client: BorrowedFd<'_>) -> Result<ReceiverProcess> {
        let helper = self.ask(DISCARD, client, ControlSockets::new()?, TRIES).map_err(|(e, _)| e)?;
        helper.dismiss();
        Ok(helper)
    }

    /// Returns a helper that shares a client's connection once it says so, and closes it when told:
    /// as the last one, if the service has closed its own end before. If it is left alone, it reads
    /// and closes what is in it. `None` if there was no helper: the connection is closed later.
    pub(in crate::server) fn discard(
        &self,
        client: OwnedFd,
        words: ControlSockets,
    ) -> Option<(OwnedFd, ReceiverProcess)> {
        match self.ask(DISCARD, client.as_fd(), words, TRIES) {
            Ok(taker) => Some((client, taker)),
            Err((_, words)) => {
                self.leave(client, Some(words));
                None
            }
        }
    }

    fn ask(
        &self,
        what: u8,
        client: BorrowedFd<'_>,
        words: ControlSockets,
        tries: u32,
    ) -> std::result::Result<ReceiverProcess, (Error, ControlSockets)> {
        let fds = [client, words.theirs.as_fd()];
        let mut full = Errno::AGAIN;
        for _ in 0..tries {
            let mut parent = self.parent.lock();
            let mut sent = packet::send(parent.as_fd(), &[what], &fds, SendFlags::DONTWAIT);
            if let Err(Errno::PIPE | Errno::CONNRESET) = sent {
                // The parent was killed.
                *parent = match next_parent(&self.first) {
                    Ok(parent) => parent,
                    Err(e) => return Err((e, words)),
                };
                sent = packet::send(parent.as_fd(), &[what], &fds, SendFlags::DONTWAIT);
            }
            match sent {
                Ok(()) => return Ok(ReceiverProcess(words.ours)),
                // Many threads ask at once. A `poll` cannot wait for this, because the socket may
                // be replaced meanwhile.
                Err(e @ (Errno::AGAIN | Errno::TOOMANYREFS)) => full = e,
                Err(e) => {
                    let context = "asking for a helper process";
                    return Err((Error::os("connect", e.raw_os_error(), context), words));
                }
            }
            drop(parent);
            std::thread::sleep(PAUSE);
        }
        if full == Errno::TOOMANYREFS {
            let context = "this user has too many descriptors in flight, which were sent and not received";
            return Err((
                Error::os("connect", full.raw_os_error(), context).with_advice("try again when others have left"),
                words,
            ));
        }
        let busy = Error::new(ErrorKind::Busy, "connect", "no helper process receives descriptors")
            .with_advice("try again, and see whether the process dpiped-intake was stopped");
        Err((busy, words))
    }
}

/// A helper process, seen from the service. The helper ends when this socket does.
pub(in crate::server) struct ReceiverProcess(OwnedFd);

impl AsFd for ReceiverProcess {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A message of a helper.
pub(in crate::server) enum ReceiverMessage {
    /// A packet: its bytes are in the buffer, and its descriptors are still in the helper.
    Facts(PacketFacts, Vec<DescriptorFacts>),
    /// The descriptors themselves.
    Descriptors(Vec<OwnedFd>),
    /// The helper has the connection, and only the service has it too.
    Here,
}

impl ReceiverProcess {
    /// Receives the helper's message, which must be there.
    ///
    /// # Errors
    /// Errors that the kernel returned to the helper; `System` if it ended, or could not be
    /// started.
    pub(in crate::server) fn receive(&self, buffer: &mut [u8]) -> Result<ReceiverMessage> {
        let fail = |e: Errno| Error::os("connect", e.raw_os_error(), "a helper process for descriptors");
        let broken = || Error::new(ErrorKind::System, "connect", "the helper process for descriptors ended");
        let mut said = [0; BEFORE_BYTES + MAX_REQUEST_BYTES];
        let (got, fds) =
            packet::receive(self.as_fd(), &mut said, MAX_DESCRIPTORS, RecvFlags::DONTWAIT).map_err(fail)?;
        let said = said.get(..got.bytes).filter(|_| !got.cut).ok_or_else(broken)?;
        match said {
            [FACTS, cut, fds_cut, count, ..] if said.len() >= BEFORE_BYTES => {
                let facts =
                    (0..usize::from(*count)).map(|at| DescriptorFacts::from_bytes(said.get(HEAD + at * FACT..)?));
                let facts: Option<Vec<DescriptorFacts>> = facts.collect();
                let bytes = &said[BEFORE_BYTES..];
                buffer.get_mut(..bytes.len()).ok_or_else(broken)?.copy_from_slice(bytes);
                let (cut, fds_cut) = (*cut != 0, *fds_cut != 0);
                let packet = PacketFacts { bytes: bytes.len(), fds: 0, cut, fds_cut };
                Ok(ReceiverMessage::Facts(packet, facts.ok_or_else(broken)?))
            }
            [DESCRIPTORS] if !got.fds_cut => Ok(ReceiverMessage::Descriptors(fds)),
            [DESCRIPTORS] => Err(fail(Errno::MFILE)),
            [HERE] => Ok(ReceiverMessage::Here),
            [FAILED, errno @ ..] => {
                let errno = errno.try_into().map_or(0, i32::from_ne_bytes);
                Err(Error::os("connect", errno, "a helper process for descriptors")
                    .with_advice("try again when others have left"))
            }
            _ => Err(broken()),
        }
    }

    /// Returns whether the helper has ended, as far as can be seen. Other messages of it are
    /// skipped.
    pub(in crate::server) fn is_over(&self) -> bool {
        let mut byte = [0];
        loop {
            match recv(&self.0, &mut byte, RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
                Ok((_, len)) if len > 0 => {}
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return false,
                _ => return true,
            }
        }
    }

    /// Tells the helper to go on: to pass on its descriptors, or to close its connection.
    pub(in crate::server) fn go_on(&self) {
        // This fails if the helper has ended, which is noticed next.
        let _ = send(&self.0, &[PASS], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }

    /// Tells the helper that it is no longer needed: it closes what it has, and ends.
    pub(in crate::server) fn dismiss(&self) {
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Write);
    }
}

fn pair() -> Result<(OwnedFd, OwnedFd)> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(|e| Error::os("connect", e.raw_os_error(), "a socket for a helper process"))
}

/// Asks for another parent. Returns its socket.
fn next_parent(first: &OwnedFd) -> Result<OwnedFd> {
    let gone = |e: Errno| {
        Error::os("connect", e.raw_os_error(), "the process that starts helper processes")
            .with_advice("start the service again: that process was killed")
    };
    let (ours, theirs) = pair()?;
    packet::send(first.as_fd(), &[PARENT], &[theirs.as_fd()], SendFlags::DONTWAIT).map_err(gone)?;
    Ok(ours)
}

/// Forks the first process, and returns the socket by which it is asked. It ends with that socket.
fn start_first() -> Result<OwnedFd> {
    let (ours, theirs) = pair()?;
    // No signal handler of this process may run in the copies.
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises the set, and pthread_sigmask the former one; both are live.
    unsafe {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    // SAFETY: the copy only makes system calls, as this module says, and never returns.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: as for the first fork; `_exit` runs no registered functions. The process is
        // forked twice so that this process need not wait for its end.
        unsafe {
            match libc::fork() {
                0 => first(theirs.as_raw_fd()),
                -1 => libc::_exit(last_errno()),
                _ => libc::_exit(0),
            }
        }
    }
    let failed = std::io::Error::last_os_error();
    let mut status = 0;
    // SAFETY: the former mask was initialised above; the child is our own, and `status` is live.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        // ECHILD: this program ignores its children, or another thread waits for all of them.
        // Whether the fork worked is noticed later then.
        while pid > 0 && libc::waitpid(pid, &raw mut status, 0) < 0 && last_errno() == libc::EINTR {}
    }
    let context = "a helper process for descriptors";
    if pid < 0 {
        return Err(Error::io("start the service", failed, context));
    }
    match libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)) {
        Some(0) => Ok(ours),
        other => Err(Error::os("start the service", other.unwrap_or(libc::EAGAIN), context)),
    }
}

/// The last error number of this thread.
fn last_errno() -> i32 {
    // SAFETY: the C library's own variable of this thread.
    unsafe { *libc::__errno_location() }
}

/// The first process: forks parents until the service is gone. It does so little that there is no
/// reason to kill it.
fn first(socket: i32) -> ! {
    // SAFETY: these are system calls on numbers and constants. Nothing else in this process uses
    // what is closed.
    let socket = unsafe {
        libc::prctl(libc::PR_SET_NAME, c"dpiped-first".as_ptr());
        // Children that end leave no zombies.
        libc::signal(libc::SIGCHLD, libc::SIG_IGN);
        libc::dup2(socket, 0);
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for output in [1, 2] {
            libc::dup2(if null < 0 { 0 } else { null }, output);
        }
        close_from(3);
        OwnedFd::from_raw_fd(0)
    };
    loop {
        let mut passed = [const { None }; 1];
        match packet::receive_into(&socket, &mut [0], &mut passed, RecvFlags::empty()) {
            Ok(got) if got.bytes == 0 => exit(),
            Ok(_) | Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {}
            Err(_) => exit(),
        }
        let [Some(theirs)] = passed else { continue };
        // SAFETY: this process has one thread; the copy only makes system calls. If the fork fails,
        // the service sees the end of the socket.
        if unsafe { libc::fork() } == 0 {
            drop(socket);
            parent(theirs);
        }
    }
}

/// The parent: forks a helper for each request, until the service is gone.
fn parent(socket: OwnedFd) -> ! {
    // SAFETY: a system call with a static string.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"dpiped-intake".as_ptr()) };
    loop {
        let mut what = [0];
        let mut passed = [const { None }; 2];
        match packet::receive_into(&socket, &mut what, &mut passed, RecvFlags::empty()) {
            Ok(got) if got.bytes == 0 => exit(),
            Ok(_) => {}
            // There are no descriptors left, for example: the request is lost, and its socket with
            // it, which the service notices.
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => continue,
            Err(_) => exit(),
        }
        let [Some(client), Some(reply)] = passed else { continue };
        // SAFETY: this process has one thread; the copy only makes system calls.
        match unsafe { libc::fork() } {
            0 => {
                drop(socket);
                match what {
                    [TAKE] => take(client, &reply),
                    _ => discard(client, &reply),
                }
                exit();
            }
            -1 => fail(&reply, last_errno()),
            _ if what == [DISCARD] => {
                // From here on only the helper has it, besides the service.
                drop(client);
                let _ = send(&reply, &[HERE], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
            }
            _ => {}
        }
    }
}

fn exit() -> ! {
    // SAFETY: it ends the process and runs nothing else.
    unsafe { libc::_exit(0) }
}

/// Closes all descriptors from a number on.
///
/// # Safety
/// Nothing in this process uses one of them any more.
unsafe fn close_from(first: u32) {
    // SAFETY: the caller promises that none of them is used.
    unsafe {
        if libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) == 0 {
            return;
        }
        // Kernels before 5.9 have no close_range.
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        for fd in first as i32..i32::try_from(limit.rlim_cur).unwrap_or(i32::MAX) {
            libc::close(fd);
        }
    }
}

fn fail(reply: &OwnedFd, errno: i32) {
    let [a, b, c, d] = errno.to_ne_bytes();
    let _ = send(reply, &[FAILED, a, b, c, d], SendFlags::NOSIGNAL);
}

/// Receives a client's packet, reports it, and passes it on if the service wants that.
fn take(client: OwnedFd, reply: &OwnedFd) {
    let mut bytes = [0; MAX_REQUEST_BYTES];
    let mut fds = [const { None }; MAX_DESCRIPTORS];
    // It allocates nothing, as this copy of the process must not.
    let got = match packet::receive_into(&client, &mut bytes, &mut fds, RecvFlags::DONTWAIT) {
        Ok(got) => got,
        Err(e) => return fail(reply, e.raw_os_error()),
    };
    drop(client);
    let mut head = [0; BEFORE_BYTES];
    head[..HEAD].copy_from_slice(&[FACTS, got.cut.into(), got.fds_cut.into(), got.fds as u8]);
    for (fd, fact) in fds.iter().flatten().zip(head[HEAD..].chunks_exact_mut(FACT)) {
        fact.copy_from_slice(&DescriptorFacts::of(fd.as_fd()).to_bytes());
    }
    let parts = [IoSlice::new(&head), IoSlice::new(bytes.get(..got.bytes).unwrap_or(&[]))];
    if sendmsg(reply, &parts, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL).is_err() || !is_told(reply) {
        return;
    }
    let mut lent = [reply.as_fd(); MAX_DESCRIPTORS];
    for (place, fd) in lent.iter_mut().zip(fds.iter().flatten()) {
        *place = fd.as_fd();
    }
    let lent = lent.get(..got.fds).unwrap_or(&[]);
    if let Err(e) = packet::send(reply, &[DESCRIPTORS], lent, SendFlags::empty()) {
        // ETOOMANYREFS, for example.
        fail(reply, e.raw_os_error());
    }
}

/// Keeps a connection until the service has closed its own end of it, then closes it with all that
/// is in it.
fn discard(client: OwnedFd, reply: &OwnedFd) {
    // If it was told, it is the last process with this connection, and what is left in it is closed
    // with it. Then it is read only so that the client is not reset and can read the reason. If it
    // was left alone, others may have the connection, so nothing must be left in it.
    let mut left = if is_told(reply) { FEW_EMPTY_PACKETS } else { EMPTY_PACKETS };
    // No buffer for descriptors is given, so the kernel closes them. The end of the connection
    // reads like a packet without bytes.
    while left > 0 && recv(&client, &mut [0], RecvFlags::DONTWAIT | RecvFlags::TRUNC).is_ok() {
        if !crate::server::entrance::hang_up::is_readable(&client) {
            left -= 1;
        }
    }
}

/// Waits for the verdict.
fn is_told(reply: &OwnedFd) -> bool {
    let mut verdict = [0];
    loop {
        match recv(reply, &mut verdict, RecvFlags::empty()) {
            Ok((1, _)) => return verdict == [PASS],
            Err(Errno::INTR) => {}
            _ => return false,
        }
    }
}
