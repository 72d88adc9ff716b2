//! Starts a bridge, hears it, and ends it.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use datapipes_core::{Error, ErrorKind, Result, threads};
use datapipes_ucx::UcxSettings;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::spec::{BridgeSaid, BridgeTold};
use crate::control::packet::{self, Arrived};
use crate::control::protocol::BRIDGE;

/// How long a bridge whose socket has ended may take to end.
const LAST_BREATH: Duration = Duration::from_millis(100);

/// A bridge that runs. It is killed when this is dropped, and waited for.
pub(crate) struct BridgeProcess {
    child: Child,
    socket: OwnedFd,
}

impl BridgeProcess {
    /// Starts a bridge for the bytes of a socket, whose other end a device has. It opens UCX, and
    /// then says its address.
    ///
    /// # Errors
    /// Errors of starting a process.
    pub(crate) fn start(settings: &UcxSettings, end: OwnedFd) -> Result<BridgeProcess> {
        let os = |e: Errno| Error::os("start", e.raw_os_error(), "the socket of a bridge");
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = pair.map_err(os)?;
        // The controller runs the program that the application chose, as for devices.
        let mut command = Command::new("/proc/self/exe");
        command.arg(BRIDGE).stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        // A peer can read what the bridge has, and the environment may have secrets.
        command.env_clear().envs(std::env::vars_os().filter(|(name, _)| is_needed(name)));
        // It is there before the bridge asks for it.
        packet::send(ours.as_fd(), &BridgeTold::Begin(settings.clone()), &[end.as_fd()])?;
        let child = threads::start_program(&mut command).map_err(|e| Error::io("start", e, "a bridge of a link"))?;
        Ok(BridgeProcess { child, socket: ours })
    }

    /// Tells the bridge where its peer is.
    ///
    /// # Errors
    /// `Device` where the bridge has ended.
    pub(crate) fn tell_peer(&self, address: &[u8]) -> Result<()> {
        packet::send(self.socket.as_fd(), &BridgeTold::Peer(address.to_vec()), &[])
    }

    /// What the bridge said, if it said something.
    ///
    /// # Errors
    /// `Device` where it has ended. `Corrupt` for what no bridge says.
    pub(crate) fn hear(&mut self, buffer: &mut [u8]) -> Result<Option<BridgeSaid>> {
        match packet::receive::<BridgeSaid>(self.socket.as_fd(), buffer, false)? {
            Arrived::Packet(said, _) => Ok(Some(said)),
            Arrived::Nothing => Ok(None),
            Arrived::End => Err(self.death()),
        }
    }

    /// The error of a bridge that said nothing more, with how it ended, if it is seen to end now.
    fn death(&mut self) -> Error {
        let until = Instant::now() + LAST_BREATH;
        let status = loop {
            match self.child.try_wait() {
                Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
                ended => break ended.ok().flatten(),
            }
        };
        let how = status.map_or_else(|| "it closed its socket and runs on".to_owned(), |status| status.to_string());
        let error = Error::new(ErrorKind::Device, "bridge", format!("a bridge of the link has died ({how})"));
        match status.and_then(|status| status.signal()) {
            Some(libc::SIGABRT) => {
                error.with_advice("UCX gave up: both sides need UCX of the same kind, and settings that it takes")
            }
            Some(libc::SIGKILL) => error.with_advice("somebody killed it, or the kernel did for lack of memory"),
            _ => error,
        }
    }
}

/// Whether a bridge needs a variable of the environment: the settings of UCX, and where its
/// libraries are.
fn is_needed(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b"UCX_") || name == "LD_LIBRARY_PATH"
}

impl AsFd for BridgeProcess {
    /// The socket to the bridge, which hangs up when the bridge ends.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for BridgeProcess {
    fn drop(&mut self) {
        // After the wait its socket is closed. It was started here, so it is no zombie of others.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
