//! Descriptors of clients are taken in by a process that can be done without.
//!
//! Closing a descriptor, and asking what file system it is of, may wait for whoever serves that
//! file system, and nothing ends such a wait but an answer: no signal, and not the end of the
//! process. So what a client passes is first received by a process of its own, and comes to the
//! service only where both are known to be harmless.
//!
//! ```text
//! service                      parent                        a process for each packet with descriptors
//! looks: are there any?
//! asks  --client's socket-->   forks  -------------------->  receives the packet
//!                                                            asks each descriptor what it is of (may wait)
//!   <-------------------------------- bytes and facts -----
//! judges  ---------------------------- verdict ----------->  passes them on, or not
//!   <-------------------------------- descriptors ---------
//!                                                            closes its own (may wait), ends
//! ```
//!
//! A process that waits for ever costs its client its connection, and keeps the client's place
//! among those of its user, so that there is a bound. The service goes on, and ends, without it.
//!
//! The parent is forked by a first process, which is forked when the service starts and gives
//! another parent where one was killed. All of them call nothing but the kernel: no allocation, no
//! lock. They have the service's rights and none of its descriptors. Of its memory they have a copy
//! of what was there at the start, and nothing of a client's.
//!
//! Unsafe code: `fork`, twice, and the calls by which the parent gets rid of what it inherited.
#![allow(unsafe_code)]

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use datapipes_core::{Error, ErrorKind, Result};
use rustix::cmsg_space;
use rustix::fs::{AtFlags, StatxFlags, fstat, fstatfs, statx};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv, recvmsg, send, sendmsg, socketpair,
};

use crate::packet::{self, Packet};
use crate::protocol::{MAX_DESCRIPTORS, MAX_REQUEST_BYTES};

/// What a process is asked for, and what it says: the first byte of each message.
const TAKE: u8 = 1;
const DISCARD: u8 = 2;
const FACTS: u8 = 3;
const DESCRIPTORS: u8 = 4;
const FAILED: u8 = 5;
const HERE: u8 = 6;
/// The verdict.
const PASS: u8 = 7;
const PARENT: u8 = 8;

/// Packets without bytes that may lie in a socket; each takes hundreds of bytes of its sender's
/// buffer.
const EMPTY_PACKETS: usize = 4096;
/// As many as an honest client could have sent.
const FEW_EMPTY_PACKETS: usize = 8;
/// How often the parent is asked where it has too much to do, and how long the pauses are.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(2);

/// Bytes before the facts: what it is, whether the packet and its descriptors were cut, how many
/// descriptors there are.
const HEAD: usize = 4;
const FACT: usize = 32;
const BEFORE_BYTES: usize = HEAD + MAX_DESCRIPTORS * FACT;

/// What is known of a descriptor without having it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DescriptorFacts {
    /// The magic number of its file system (statfs(2)).
    pub(super) file_system: u64,
    /// Its type and permissions (`st_mode`).
    pub(super) mode: u32,
    /// 0, or why the rest is not known.
    pub(super) errno: i32,
    /// Which device it is, where it is one (`st_rdev`).
    pub(super) device: u64,
    /// Which mount it was opened by; `u64::MAX` where the kernel does not say.
    pub(super) mount: u64,
}

impl DescriptorFacts {
    /// Asks. This may wait for whoever serves the file system.
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

/// The parent of the processes that take descriptors in, and who replaces it.
pub(super) struct Intake {
    /// Forks parents. Forked before the service has anything of a client's: a later copy of the
    /// service would keep its mappings.
    first: OwnedFd,
    parent: Mutex<OwnedFd>,
    left: Mutex<Vec<Left>>,
}

/// A connection that nobody closed.
struct Left {
    socket: OwnedFd,
    closer: Closer,
}

/// Who is to close a connection that was left.
enum Closer {
    /// A process, once one is to be had.
    Wanted(Option<ControlSockets>),
    Asked(ReceiverProcess),
}

/// The two ends of a socket for what a process is told and says.
pub(super) struct ControlSockets {
    ours: OwnedFd,
    theirs: OwnedFd,
}

impl ControlSockets {
    /// # Errors
    /// What the kernel says where it gives no socket.
    pub(super) fn new() -> Result<ControlSockets> {
        let (ours, theirs) = pair()?;
        Ok(ControlSockets { ours, theirs })
    }
}

impl Intake {
    /// Starts it.
    ///
    /// # Errors
    /// What the kernel says where it gives no process or socket.
    pub(super) fn start() -> Result<Intake> {
        let first = start_first()?;
        let parent = Mutex::new(next_parent(&first)?);
        Ok(Intake { first, parent, left: Mutex::default() })
    }

    /// Shut (`POLLHUP`) once what starts the processes was killed: no descriptor can be taken in
    /// any more, then.
    pub(super) fn first(&self) -> BorrowedFd<'_> {
        self.first.as_fd()
    }

    /// Keeps a connection that this process must not close, until another one has it.
    pub(super) fn leave(&self, socket: OwnedFd, words: Option<ControlSockets>) {
        let left = Left { socket, closer: Closer::Wanted(words) };
        self.left.lock().unwrap_or_else(PoisonError::into_inner).push(left);
        self.close_unclosed();
    }

    /// Has the connections closed that were left, as far as there are processes. It does not wait
    /// for them.
    pub(super) fn close_unclosed(&self) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
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
                    // From here on it is the last one to have it: told so when the copy here is
                    // closed, or left alone then.
                    Ok(_) => return false,
                    Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => {}
                    Err(_) => *closer = Closer::Wanted(None),
                }
            }
            true
        });
    }

    /// A process that receives the next packet of a client, which must be there.
    ///
    /// # Errors
    /// What the kernel says where it gives no socket, or no new parent for one that was killed;
    /// `Busy` where the parent does not get to it.
    pub(super) fn take(&self, client: BorrowedFd<'_>) -> Result<ReceiverProcess> {
        let taker = self.ask(TAKE, client, ControlSockets::new()?, TRIES).map_err(|(e, _)| e)?;
        self.close_unclosed();
        Ok(taker)
    }

    /// A process that has a client's connection, too, once it says so, and closes it when told: as
    /// the last one, if the service has closed its own end before. Left alone, it reads and closes
    /// what is in it. None where no process was to be had: the connection is closed later.
    pub(super) fn discard(&self, client: OwnedFd, words: ControlSockets) -> Option<(OwnedFd, ReceiverProcess)> {
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
            let mut parent = self.parent.lock().unwrap_or_else(PoisonError::into_inner);
            let mut sent = packet::send(parent.as_fd(), &[what], &fds, SendFlags::DONTWAIT);
            if let Err(Errno::PIPE | Errno::CONNRESET) = sent {
                // Somebody killed it.
                *parent = match next_parent(&self.first) {
                    Ok(parent) => parent,
                    Err(e) => return Err((e, words)),
                };
                sent = packet::send(parent.as_fd(), &[what], &fds, SendFlags::DONTWAIT);
            }
            match sent {
                Ok(()) => return Ok(ReceiverProcess(words.ours)),
                // Many ask at once. Not waited for by poll: the socket may be replaced meanwhile.
                Err(e @ (Errno::AGAIN | Errno::TOOMANYREFS)) => full = e,
                Err(e) => {
                    let context = "asking for a process that takes descriptors in";
                    return Err((Error::os("connect", e.raw_os_error(), context), words));
                }
            }
            drop(parent);
            std::thread::sleep(PAUSE);
        }
        if full == Errno::TOOMANYREFS {
            let context = "this user has too many descriptors on their way, which were sent and not received";
            return Err((
                Error::os("connect", full.raw_os_error(), context).advice("try again when others have left"),
                words,
            ));
        }
        let busy = Error::new(ErrorKind::Busy, "connect", "no process takes descriptors in")
            .advice("try again, and see whether the process dpiped-intake was stopped");
        Err((busy, words))
    }
}

/// A process that takes descriptors in, as the service sees it. Its end is the end of this socket.
pub(super) struct ReceiverProcess(OwnedFd);

impl AsFd for ReceiverProcess {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What a process says.
pub(super) enum ReceiverMessage {
    /// A packet, its bytes in the buffer and its descriptors not passed on yet.
    Facts(Packet, Vec<DescriptorFacts>),
    /// The descriptors themselves.
    Descriptors(Vec<OwnedFd>),
    /// It has the connection, and nobody else but the service has it.
    Here,
}

impl ReceiverProcess {
    /// What it says, which must be there.
    ///
    /// # Errors
    /// What the kernel said to it; `System` where it ended, or there was no such process to be had.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> Result<ReceiverMessage> {
        let fail = |e: Errno| Error::os("connect", e.raw_os_error(), "what takes descriptors in");
        let broken = || Error::new(ErrorKind::System, "connect", "the process that takes descriptors in ended");
        let mut said = [0; BEFORE_BYTES + MAX_REQUEST_BYTES];
        let got = packet::receive(self.as_fd(), &mut said, RecvFlags::DONTWAIT).map_err(fail)?;
        let said = said.get(..got.bytes).filter(|_| !got.cut).ok_or_else(broken)?;
        match said {
            [FACTS, cut, fds_cut, count, ..] if said.len() >= BEFORE_BYTES => {
                let facts =
                    (0..usize::from(*count)).map(|at| DescriptorFacts::from_bytes(said.get(HEAD + at * FACT..)?));
                let facts: Option<Vec<DescriptorFacts>> = facts.collect();
                let bytes = &said[BEFORE_BYTES..];
                buffer.get_mut(..bytes.len()).ok_or_else(broken)?.copy_from_slice(bytes);
                let (cut, fds_cut) = (*cut != 0, *fds_cut != 0);
                let packet = Packet { bytes: bytes.len(), fds: Vec::new(), cut, fds_cut };
                Ok(ReceiverMessage::Facts(packet, facts.ok_or_else(broken)?))
            }
            [DESCRIPTORS] if !got.fds_cut => Ok(ReceiverMessage::Descriptors(got.fds)),
            [DESCRIPTORS] => Err(fail(Errno::MFILE)),
            [HERE] => Ok(ReceiverMessage::Here),
            [FAILED, errno @ ..] => {
                let errno = errno.try_into().map_or(0, i32::from_ne_bytes);
                Err(Error::os("connect", errno, "a process that takes descriptors in")
                    .advice("try again when others have left"))
            }
            _ => Err(broken()),
        }
    }

    /// Whether it has ended, as far as it has said. What else it said is passed over.
    pub(super) fn is_over(&self) -> bool {
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

    /// Tells it to go on: to pass on what it took in, or to close the connection that it was given.
    pub(super) fn go_on(&self) {
        // It fails where the process ended, which is heard next.
        let _ = send(&self.0, &[PASS], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }

    /// Tells it that nothing is wanted of it any more: it lets go of what it has, and ends.
    pub(super) fn dismiss(&self) {
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Write);
    }
}

fn pair() -> Result<(OwnedFd, OwnedFd)> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(|e| Error::os("connect", e.raw_os_error(), "a socket for what takes descriptors in"))
}

/// Another parent, by its socket.
fn next_parent(first: &OwnedFd) -> Result<OwnedFd> {
    let gone = |e: Errno| {
        Error::os("connect", e.raw_os_error(), "the process that starts those that take descriptors in")
            .advice("start the service again: that process was killed")
    };
    let (ours, theirs) = pair()?;
    packet::send(first.as_fd(), &[PARENT], &[theirs.as_fd()], SendFlags::DONTWAIT).map_err(gone)?;
    Ok(ours)
}

/// Forks who forks parents, and gives the socket by which it is asked. It ends with that.
fn start_first() -> Result<OwnedFd> {
    let (ours, theirs) = pair()?;
    // No handler of this process runs in the copies.
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises the set, and pthread_sigmask the former one; both are live.
    unsafe {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    // SAFETY: the copy calls the kernel alone, as this module says, and never returns.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // A copy of the copy, so that nobody here has to wait for its end.
        // SAFETY: as above; `_exit` runs nothing of what the process registered.
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
        // ECHILD: the program takes no interest in its children, or waits for all of them; whether
        // it worked is seen later then.
        while pid > 0 && libc::waitpid(pid, &raw mut status, 0) < 0 && last_errno() == libc::EINTR {}
    }
    let context = "a process that takes descriptors in";
    if pid < 0 {
        return Err(Error::io("start the service", &failed, context));
    }
    match libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)) {
        Some(0) => Ok(ours),
        other => Err(Error::os("start the service", other.unwrap_or(libc::EAGAIN), context)),
    }
}

/// The number of the last error of this thread.
fn last_errno() -> i32 {
    // SAFETY: the C library's own variable of this thread.
    unsafe { *libc::__errno_location() }
}

/// The first process: forks parents, until the service is gone. It does so rarely that nobody has a
/// reason to kill it.
fn first(socket: i32) -> ! {
    // SAFETY: calls of the kernel on numbers and constants. Nobody else is in this process who
    // could have a use for what is closed.
    let socket = unsafe {
        libc::prctl(libc::PR_SET_NAME, c"dpiped-first".as_ptr());
        // Children that end leave nothing behind.
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
        match receive(socket.as_fd(), &mut [0], &mut passed, RecvFlags::empty()) {
            Ok(got) if got.bytes == 0 => exit(),
            Ok(_) | Err(Errno::INTR | Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {}
            Err(_) => exit(),
        }
        let [Some(theirs)] = passed else { continue };
        // SAFETY: this process has one thread; the copy calls the kernel alone. Refused, the
        // service sees the socket's end.
        if unsafe { libc::fork() } == 0 {
            drop(socket);
            parent(theirs);
        }
    }
}

/// The parent: forks a process for each request, until the service is gone.
fn parent(socket: OwnedFd) -> ! {
    // SAFETY: a call of the kernel with a string that lives for ever.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"dpiped-intake".as_ptr()) };
    loop {
        let mut what = [0];
        let mut passed = [const { None }; 2];
        match receive(socket.as_fd(), &mut what, &mut passed, RecvFlags::empty()) {
            Ok(got) if got.bytes == 0 => exit(),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            // No descriptors, for example: the request is lost, and its socket with it, which the
            // service sees.
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => continue,
            Err(_) => exit(),
        }
        let [Some(client), Some(reply)] = passed else { continue };
        // SAFETY: this process has one thread; the copy calls the kernel alone.
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
                // From here on its process alone has it, beside the service.
                drop(client);
                let _ = send(&reply, &[HERE], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
            }
            _ => {}
        }
    }
}

fn exit() -> ! {
    // SAFETY: it ends the process and runs nothing.
    unsafe { libc::_exit(0) }
}

/// Closes all descriptors from a number on.
///
/// # Safety
/// Nobody in this process uses one of them any more.
unsafe fn close_from(first: u32) {
    // SAFETY: what the caller says.
    unsafe {
        if libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) == 0 {
            return;
        }
        // Kernels before 5.9.
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

/// What came, but for the descriptors.
struct Got {
    bytes: usize,
    fds: usize,
    cut: bool,
    fds_cut: bool,
}

/// Receives a packet without allocating.
fn receive(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    fds: &mut [Option<OwnedFd>],
    flags: RecvFlags,
) -> std::result::Result<Got, Errno> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags | RecvFlags::CMSG_CLOEXEC)?;
    let mut places = fds.iter_mut();
    let mut count = 0;
    for message in control.drain() {
        let RecvAncillaryMessage::ScmRights(passed) = message else { continue };
        for fd in passed {
            if let Some(place) = places.next() {
                *place = Some(fd);
                count += 1;
            }
        }
    }
    let (cut, fds_cut) = (got.flags.contains(ReturnFlags::TRUNC), got.flags.contains(ReturnFlags::CTRUNC));
    Ok(Got { bytes: got.bytes, fds: count, cut, fds_cut })
}

/// Receives a client's packet, says what came, and passes it on if that is wanted.
fn take(client: OwnedFd, reply: &OwnedFd) {
    let mut bytes = [0; MAX_REQUEST_BYTES];
    let mut fds = [const { None }; MAX_DESCRIPTORS];
    let got = loop {
        match receive(client.as_fd(), &mut bytes, &mut fds, RecvFlags::DONTWAIT) {
            Ok(got) => break got,
            Err(Errno::INTR) => {}
            Err(e) => return fail(reply, e.raw_os_error()),
        }
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
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let lent = lent.get(..got.fds).unwrap_or(&[]);
    if (lent.is_empty() || control.push(SendAncillaryMessage::ScmRights(lent)))
        && let Err(e) = sendmsg(reply, &[IoSlice::new(&[DESCRIPTORS])], &mut control, SendFlags::NOSIGNAL)
    {
        // ETOOMANYREFS, say.
        fail(reply, e.raw_os_error());
    }
}

/// Has a connection until the service has closed its own end of it, and closes it then, with all
/// that is in it.
fn discard(client: OwnedFd, reply: &OwnedFd) {
    // Told, it is the last one to have it, and what is left in there is closed with it: it is read
    // only so that the client is not reset and hears why. Left alone, it need not be the last, so
    // nothing may be left for the others.
    let mut left = if is_told(reply) { FEW_EMPTY_PACKETS } else { EMPTY_PACKETS };
    // Without room for them, descriptors are closed by the kernel. The end reads as a packet
    // without bytes does.
    while left > 0 && recv(&client, &mut [0], RecvFlags::DONTWAIT | RecvFlags::TRUNC).is_ok() {
        if !super::lingering_close::is_readable(&client) {
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
