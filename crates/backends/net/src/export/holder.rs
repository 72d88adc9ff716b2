//! What runs in a holder: it maps the export's pages, is the peer of one client's UCX, and sleeps.
//!
//! It ends with the program that started it, if that did not kill it before.
//!
//! This module's unsafe code maps pages that stay mapped until the process ends, and takes the
//! descriptors that it was started with.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use datapipes_core::{Error, ErrorKind, Result, packet};
use datapipes_ucx::{
    Armed, ConfinedUse, MAX_BLOB_BYTES, PeerMemory, Ucx, UcxSettings, UcxUse, UcxWorker, confine_calls, confine_paths,
    confine_paths_if_possible,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{PidfdFlags, Resource, pidfd_open};
use rustix::time::Timespec;
use serde::{Deserialize, Serialize};

use crate::control::key::random;
use crate::control::messages::{ExportFacts, ExporterAnswer};
use crate::control::settings::{RemoteRights, RemoteTransport};
use crate::direct::peer::{self, DirectMemory};
use crate::pause::Pause;

/// The argument that makes a program a holder.
pub(super) const HOLDER_ARGUMENT: &str = "--datapipes-memory-holder";
/// A holder looks after this time, because an event of UCX's can be missing: a queue of a client
/// that was full has room again, and nobody says so.
const MAX_SLEEP: Duration = Duration::from_secs(1);

/// How long UCX may have something to do without doing it before the holder sleeps all the same.
const STUCK: Duration = Duration::from_micros(50);
/// The longest sleep until it looks again.
const MAX_STUCK_SLEEP: Duration = Duration::from_millis(4);

/// What a holder is told.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HolderSpec {
    pub(super) at: u64,
    pub(super) len: u64,
    pub(super) rights: RemoteRights,
    pub(super) transport: RemoteTransport,
    pub(super) peer: HolderPeer,
    /// The number of the exporter's process.
    pub(super) exporter: u32,
}

/// By what a holder is reached.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum HolderPeer {
    /// It is reached by UCX.
    Ucx(UcxSettings),
    /// It is reached by the kernel, for the process with this number.
    Kernel { client: i32 },
}

/// If this process was started as the holder of an export, runs as that, and returns the exit code
/// for `main`. Call it first in `main` of a program that exports its memory
/// ([`HolderProgram::This`](crate::HolderProgram::This)).
pub fn enter_holder() -> Option<ExitCode> {
    if !is_holder() {
        return None;
    }
    // What the exporting program left open for its children is nothing for a client.
    close_inherited();
    let stdin = std::io::stdin();
    let Ok(socket) = rustix::io::fcntl_dupfd_cloexec(stdin.as_fd(), 3) else { return Some(ExitCode::FAILURE) };
    Some(match hold(&socket) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            let said = ExporterAnswer::Refused(e.to_string()).to_bytes();
            let _ = packet::send(&socket, &said, &[], SendFlags::empty());
            ExitCode::FAILURE
        }
    })
}

/// Whether this process was started as a holder.
pub(super) fn is_holder() -> bool {
    std::env::args_os().nth(1).is_some_and(|argument| argument == HOLDER_ARGUMENT)
}

/// Closes what this process was started with, but the standard streams.
fn close_inherited() {
    // SAFETY: this is called first in `main`, before anything here has opened a descriptor.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
    if closed == 0 {
        return;
    }
    // A kernel before 5.9.
    for fd in 3..i32::try_from(rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(4096)).unwrap_or(4096) {
        // SAFETY: as above; a number that is not open is refused.
        unsafe { libc::close(fd) };
    }
}

/// What a holder hears the exporter's end by. Its socket alone does not tell: a child that the
/// exporter forked may have a copy of the other end, and of the client's connection.
struct ParentWatch<'a> {
    socket: &'a OwnedFd,
    process: OwnedFd,
    client: OwnedFd,
}

impl<'a> ParentWatch<'a> {
    fn of(socket: &'a OwnedFd, client: OwnedFd, number: u32) -> Result<ParentWatch<'a>> {
        let gone = || Error::new(ErrorKind::Device, "export", "the exporter has ended");
        let parent = rustix::process::getppid().ok_or_else(gone)?;
        let process = pidfd_open(parent, PidfdFlags::empty())
            .map_err(|e| Error::os("export", e.raw_os_error(), "the exporter's process"))?;
        // Looked at after the descriptor was made: an exporter that died before has another number
        // now, that of whoever adopted this process.
        let still =
            rustix::process::getppid().is_some_and(|parent| parent.as_raw_nonzero().get().unsigned_abs() == number);
        if still { Ok(ParentWatch { socket, process, client }) } else { Err(gone()) }
    }

    /// Waits for the exporter's end, or one more event; whether it was the end.
    fn wait(&self, event: Option<BorrowedFd<'_>>, timeout: Option<&Timespec>) -> Result<Option<usize>> {
        let mut fds = vec![PollFd::new(self.socket, PollFlags::IN), PollFd::new(&self.process, PollFlags::IN)];
        fds.extend(event.map(|event| PollFd::from_borrowed_fd(event, PollFlags::IN)));
        let ready = match poll(&mut fds, timeout) {
            Ok(ready) => ready,
            Err(Errno::INTR) => 1,
            Err(e) => return Err(Error::os("wait", e.raw_os_error(), "the events of a holder")),
        };
        let is_ready = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
        if is_ready(1) {
            // The client hears of it, whoever else has its connection. It may be ended already.
            let _ = rustix::net::shutdown(&self.client, rustix::net::Shutdown::Both);
        }
        // The exporter says nothing: what comes over its socket is its end.
        Ok(if is_ready(0) || is_ready(1) { None } else { Some(ready) })
    }
}

fn hold(socket: &OwnedFd) -> Result<()> {
    let (spec, memory, client) = told(socket)?;
    let exporter = ParentWatch::of(socket, client, spec.exporter)?;
    if matches!(spec.peer, HolderPeer::Ucx(_)) {
        Ucx::required("export")?;
    }
    match &spec.peer {
        HolderPeer::Ucx(_) => confine_paths()?,
        // Whom the kernel serves has no way into this process.
        HolderPeer::Kernel { .. } => confine_paths_if_possible()?,
    }
    let len = usize::try_from(spec.len).map_err(|_| wrong("a length"))?;
    let protection = match spec.rights {
        RemoteRights::Read => ProtFlags::READ,
        RemoteRights::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
    };
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists. The
    // memory cannot shrink, since the exporter sealed it.
    let start = unsafe { mmap(null_mut(), len, protection, MapFlags::SHARED, &memory, spec.at) };
    let start = start.map_err(|e| Error::os("map", e.raw_os_error(), format!("{len} bytes of an export")))?;
    // The mapping alone is what this process has of the program.
    drop(memory);
    let facts = ExportFacts { len: spec.len, rights: spec.rights, transport: spec.transport };
    let settings = match spec.peer {
        HolderPeer::Ucx(settings) => settings,
        HolderPeer::Kernel { client } => return hold_for_kernel(&exporter, facts, start.addr() as u64, client),
    };
    let mut worker = UcxWorker::open(&settings, UcxUse::Memory)?;
    // SAFETY: the pages stay mapped until the process ends, and nothing here refers to them.
    let key = unsafe { worker.expose(start.cast(), len, spec.rights == RemoteRights::ReadWrite) }?;
    let address = worker.address()?;
    if address.len() > MAX_BLOB_BYTES || key.len() > MAX_BLOB_BYTES {
        return Err(wrong("an address or key of UCX that is too long"));
    }
    let memory = PeerMemory { worker: address, key, start: start.addr() as u64 };
    confine_calls(ConfinedUse::Memory(&settings.transports))?;
    say(socket, &ExporterAnswer::Memory(facts, memory))?;
    serve(&mut worker, &exporter)
}

/// Lets a process of this machine reach the memory, and does nothing until the exporter goes.
fn hold_for_kernel(exporter: &ParentWatch<'_>, facts: ExportFacts, start: u64, client: i32) -> Result<()> {
    let proof = Box::new(random::<16>()?);
    peer::let_reach(client);
    let process = rustix::process::getpid().as_raw_nonzero().get();
    let memory = DirectMemory { process, start, proof_at: proof.as_ptr().addr() as u64, proof: *proof };
    // The proof stays where it is until the process ends.
    Box::leak(proof);
    confine_calls(ConfinedUse::Nothing)?;
    say(exporter.socket, &ExporterAnswer::Direct(facts, memory))?;
    while exporter.wait(None, None)?.is_some() {}
    Ok(())
}

fn say(socket: &OwnedFd, answer: &ExporterAnswer) -> Result<()> {
    packet::send(socket, &answer.to_bytes(), &[], SendFlags::empty())
        .map_err(|e| Error::os("export", e.raw_os_error(), "the socket of a holder"))
}

fn wrong(what: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, "export", what)
}

fn told(socket: &OwnedFd) -> Result<(HolderSpec, OwnedFd, OwnedFd)> {
    let mut bytes = vec![0; 8 << 10];
    let (facts, fds) = packet::receive(socket, &mut bytes, 2, RecvFlags::empty())
        .map_err(|e| Error::os("export", e.raw_os_error(), "standard input is no socket of an exporter"))?;
    let spec = bytes.get(..facts.bytes).filter(|_| !facts.cut).unwrap_or_default();
    let spec = serde_json::from_slice(spec).map_err(|e| wrong("what an exporter says").with_source(e))?;
    let [memory, client] = <[OwnedFd; 2]>::try_from(fds).map_err(|_| wrong("no memory to hold, or no client"))?;
    Ok((spec, memory, client))
}

/// Serves the client until the exporter goes.
fn serve(worker: &mut UcxWorker, exporter: &ParentWatch<'_>) -> Result<()> {
    let mut pause = Pause::default();
    let (mut sleep, mut stuck_since) = (Duration::from_millis(1), None);
    // Whether UCX's event called last, and since when it does so for nothing.
    let (mut was_called, mut called_since) = (false, None::<Instant>);
    loop {
        if worker.progress() {
            pause.worked();
            (sleep, stuck_since) = (Duration::from_millis(1), None);
            (was_called, called_since) = (false, None);
            continue;
        }
        if pause.spins() {
            continue;
        }
        let begun = Instant::now();
        if std::mem::take(&mut was_called) {
            called_since.get_or_insert(begun);
        }
        if worker.arm()? == Armed::Busy {
            // It also says so as long as the client's queue is full. Then its event is of no use.
            let stuck = stuck_since.get_or_insert(begun).elapsed();
            if stuck < STUCK {
                continue;
            }
            // As long as it has been stuck, so that the sleeps grow.
            std::thread::sleep(stuck.min(MAX_STUCK_SLEEP));
        } else {
            stuck_since = None;
            if let Some(since) = called_since {
                // As while a connection waits for the client's answer.
                std::thread::sleep(since.elapsed().min(MAX_STUCK_SLEEP));
            }
        }
        let listens = stuck_since.is_none() && called_since.is_none();
        let timeout = if listens { sleep } else { Duration::ZERO };
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
        match exporter.wait(Some(worker.event()).filter(|_| listens), Some(&timeout))? {
            None => return Ok(()),
            Some(0) => sleep = (sleep * 2).min(MAX_SLEEP),
            Some(_) => was_called = true,
        }
        pause.slept(begun.elapsed());
    }
}
