//! What runs in a bridge: it gets a socket, opens UCX, meets its peer, confines itself, and moves
//! bytes until both directions have ended.
//!
//! It ends with its controller, if that did not kill it before.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use datapipes_core::{Error, ErrorKind, Result};
use datapipes_ucx::{
    ConfinedUse, PeerMessages, Ucx, UcxSettings, UcxUse, UcxWorker, confine_calls, confine_paths,
    take_segments_from_group,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};

use super::pump::Pump;
use super::spec::{BridgeSaid, BridgeTold, BridgedBytes, MAX_ADDRESS_BYTES};
use crate::control::packet::{self, Arrived, PACKET_BYTES};
use crate::process::sandbox::become_nobody;

/// How long a bridge waits to be ended with its controller.
const FAREWELL: Duration = Duration::from_secs(1);
/// The most descriptors of a bridge. UCX has some for each interface.
const MAX_DESCRIPTORS: u64 = 256;
/// The most bytes of its own memory, the stacks of UCX's threads included.
const MAX_MEMORY_BYTES: u64 = 512 << 20;

/// Runs a bridge.
///
/// # Errors
/// What it has told its controller.
pub(crate) fn live(controller: OwnedFd) -> Result<()> {
    let (said, outcome) = match bridge(controller.as_fd()) {
        Ok(bytes) => (BridgeSaid::Ended(bytes), Ok(())),
        Err(e) => (BridgeSaid::failed(&e), Err(e)),
    };
    if packet::send(controller.as_fd(), &said, &[]).is_err() {
        // The controller is about to be dead, and this process with it (see `limit`). Its
        // application has learned that by then, so it does not take the end of this bridge's socket
        // for that of the other side.
        std::thread::sleep(FAREWELL);
    }
    outcome
}

fn bridge(controller: BorrowedFd<'_>) -> Result<BridgedBytes> {
    let mut buffer = vec![0; PACKET_BYTES + 1];
    let (settings, socket) = match told(controller, &mut buffer)? {
        (BridgeTold::Begin(settings), fds) => match <[OwnedFd; 1]>::try_from(fds) {
            Ok([socket]) => (settings, socket),
            Err(_) => return Err(wrong("no socket")),
        },
        (BridgeTold::Peer(_), _) => return Err(wrong("a peer before anything else")),
    };
    // It is looked for where the loader looks, also outside of system folders.
    Ucx::required("connect")?;
    limit()?;
    confine_paths()?;
    let mut worker = UcxWorker::open(&settings, UcxUse::Messages)?;
    let address = worker.address()?;
    if address.len() > MAX_ADDRESS_BYTES {
        let what = format!("an address of UCX of {} bytes, where {MAX_ADDRESS_BYTES} can be", address.len());
        return Err(Error::new(ErrorKind::Unsupported, "connect", what)
            .with_advice("name one device (`devices`), so that the address has one interface"));
    }
    // Once its address is out, peers and strangers can reach it.
    confine_calls(ConfinedUse::Meeting(&settings.transports))?;
    packet::send(controller, &BridgeSaid::Address(address), &[])?;
    let (BridgeTold::Peer(peer), _) = told(controller, &mut buffer)? else { return Err(wrong("no peer")) };
    move_bytes(controller, socket, worker, &settings, &peer)
}

fn move_bytes(
    controller: BorrowedFd<'_>,
    socket: OwnedFd,
    worker: UcxWorker,
    settings: &UcxSettings,
    peer: &[u8],
) -> Result<BridgedBytes> {
    let mut pump = Pump::new(controller, socket, PeerMessages::connect(worker, settings, peer)?);
    pump.meet()?;
    // Those that were made to meet.
    take_segments_from_group();
    // From here on it connects to nobody.
    confine_calls(ConfinedUse::Messages(&settings.transports))?;
    packet::send(controller, &BridgeSaid::Met, &[])?;
    let outcome = pump.run();
    // The process ends now, and the kernel takes back what UCX has. Its own way to the end makes
    // calls that the filter may not know.
    std::mem::forget(pump);
    outcome
}

/// Gives up what a bridge does not need. It is the only thread.
fn limit() -> Result<()> {
    let limit = |what, resource, most: u64| {
        // A limit that is lower already cannot be raised by everybody, and is as good.
        let value = getrlimit(resource).maximum.map_or(most, |hard| hard.min(most));
        let limit = Rlimit { current: Some(value), maximum: Some(value) };
        let refused =
            |e: Errno| Error::os("confine", e.raw_os_error(), format!("a bridge's {what}, limited to {value}"));
        setrlimit(resource, limit).map_err(refused)
    };
    // RDMA registers its buffers. Where this is refused, the limit of the user holds.
    let _ = setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None });
    limit("descriptors", Resource::Nofile, MAX_DESCRIPTORS)?;
    limit("bytes of memory", Resource::Data, MAX_MEMORY_BYTES)?;
    // Both bridges within a machine become the same user, as shared memory needs it.
    become_nobody()?;
    // This comes after a change of the user, which resets it.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|e| Error::os("confine", e.raw_os_error(), "a bridge"))
}

/// Waits for what the controller says next.
fn told(controller: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<(BridgeTold, Vec<OwnedFd>)> {
    loop {
        match packet::receive::<BridgeTold>(controller, buffer, true)? {
            Arrived::Packet(told, fds) => return Ok((told, fds)),
            Arrived::End => {
                return Err(Error::new(ErrorKind::Unavailable, "wait", "the controller of this bridge has ended"));
            }
            Arrived::Nothing => match poll(&mut [PollFd::from_borrowed_fd(controller, PollFlags::IN)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(Error::os("wait", e.raw_os_error(), "for the controller of a bridge")),
            },
        }
    }
}

fn wrong(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, "start", format!("a controller that gives a bridge {what}"))
}
