//! Starts a holder, and ends it.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use datapipes_core::{Error, ErrorKind, Result, packet, threads};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use rustix::time::Timespec;

use super::holder::{HOLDER_ARGUMENT, HolderSpec};
use crate::control::messages::ExporterAnswer;

/// The longest time until a holder must be ready.
const START: Duration = Duration::from_secs(8);
/// The longest packet of a holder.
const MAX_PACKET_BYTES: usize = 64 << 10;

/// The program that runs as the holder of an export for a client.
#[derive(Clone, Debug, Default)]
pub enum HolderProgram {
    /// This program, whose `main` begins with [`enter_holder`](crate::enter_holder).
    #[default]
    This,
    /// The program at a path, such as the crate's own `memory-holder`.
    At(PathBuf),
}

/// A holder that runs. It is killed when this is dropped, and waited for.
pub(super) struct HolderProcess {
    child: Child,
    socket: OwnedFd,
}

impl HolderProcess {
    /// Starts a holder of the memory behind a descriptor, and waits until it is ready. It ends the
    /// client's connection if this process dies.
    ///
    /// # Errors
    /// Errors of starting; what the holder says.
    pub(super) fn start(
        program: &HolderProgram,
        spec: &HolderSpec,
        memory: BorrowedFd<'_>,
        client: BorrowedFd<'_>,
    ) -> Result<(HolderProcess, ExporterAnswer)> {
        let path = match program {
            HolderProgram::This => PathBuf::from("/proc/self/exe"),
            HolderProgram::At(path) => path.clone(),
        };
        let shown = path.display().to_string();
        let os = |e: Errno| Error::os("export", e.raw_os_error(), "the socket of a holder");
        let (here, there) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).map_err(os)?;
        let spec = serde_json::to_vec(spec)
            .map_err(|e| Error::new(ErrorKind::System, "export", "what a holder is told").with_source(e))?;
        // It is there before the holder asks for it.
        packet::send(&here, &spec, &[memory, client], SendFlags::empty()).map_err(os)?;
        let mut command = Command::new(&path);
        command.arg(HOLDER_ARGUMENT).stdin(Stdio::from(there)).stdout(Stdio::null()).stderr(Stdio::null());
        // A client can read what the holder has, and this program's environment may have secrets.
        command.env_clear().envs(std::env::vars_os().filter(|(name, _)| is_needed(name)));
        let child = threads::start_program(&mut command).map_err(|e| Error::io("start", e, &shown))?;
        // The command has the other end of the socket, whose last copy tells of the holder's end.
        drop(command);
        // From here on the holder is ended whatever happens.
        let holder = HolderProcess { child, socket: here };
        let bytes = holder.first_packet().map_err(|e| {
            e.within(shown)
                .with_advice("its `main` must begin with `enter_holder`, or name the program `memory-holder`")
        })?;
        match ExporterAnswer::from_bytes(&bytes)? {
            answer @ (ExporterAnswer::Memory(..) | ExporterAnswer::Direct(..)) => Ok((holder, answer)),
            ExporterAnswer::Refused(why) => Err(Error::relayed(ErrorKind::Unavailable, why)),
            ExporterAnswer::Facts(_) => Err(Error::new(ErrorKind::Corrupt, "export", "a holder that says too little")),
        }
    }

    /// Ends the holder: when this returns, it maps nothing any more. Its number stays its own until
    /// this is dropped.
    pub(super) fn end(&mut self) {
        // It fails only where it has ended already.
        let _ = self.child.kill();
        let pid = Pid::from_child(&self.child);
        while let Err(Errno::INTR) = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {}
    }

    fn first_packet(&self) -> Result<Vec<u8>> {
        let until = Instant::now() + START;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
            match poll(&mut fds, Some(&timeout)) {
                Ok(0) => return Err(Error::new(ErrorKind::Unavailable, "start", "a holder that does not answer")),
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(e) => return Err(Error::os("start", e.raw_os_error(), "a holder")),
            }
        }
        let mut bytes = vec![0; MAX_PACKET_BYTES];
        let facts = packet::receive_into(&self.socket, &mut bytes, &mut [], RecvFlags::DONTWAIT)
            .map_err(|e| Error::os("start", e.raw_os_error(), "a holder"))?;
        if facts.bytes == 0 || facts.cut {
            return Err(Error::new(ErrorKind::Unavailable, "start", "a holder that ended before it was ready"));
        }
        bytes.truncate(facts.bytes);
        Ok(bytes)
    }
}

/// Whether a holder needs a variable of the environment: the settings of UCX, and where its
/// libraries are.
fn is_needed(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b"UCX_") || name == "LD_LIBRARY_PATH"
}

impl AsFd for HolderProcess {
    /// The socket to the holder, which hangs up when the holder ends.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for HolderProcess {
    fn drop(&mut self) {
        // After the wait its mappings are gone. It was started here, so it is no zombie of others.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
