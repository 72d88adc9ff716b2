//! Bytes of a connection between client and exporter, with a bound on length and time.

use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use datapipes_core::{Error, ErrorKind, Result};
#[cfg(feature = "tls")]
use datapipes_tls::{TlsProgress, TlsSession};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};
use rustix::time::Timespec;

use super::local::connect_by;
use super::settings::ExportAddress;
#[cfg(feature = "tls")]
use super::settings::NetworkOptions;

/// The longest that each of the two may take for the whole conversation.
pub(crate) const CONVERSATION: Duration = Duration::from_secs(10);
/// How long a side that is turned away may take to hang up.
#[cfg(feature = "tls")]
const FAREWELL: Duration = Duration::from_millis(500);
/// After this much silence of the other machine, the kernel asks whether it is still there.
const IDLE: Duration = Duration::from_secs(3);
/// How often it asks, and how often without an answer.
const INTERVAL: Duration = Duration::from_secs(1);
const PROBES: u32 = 4;

/// A connection that does not block.
pub(crate) struct ControlStream {
    socket: OwnedFd,
    /// Whether the other side has ended the connection.
    has_ended: bool,
    #[cfg(feature = "tls")]
    tls: Option<Box<TlsSession>>,
}

/// What the two sides say that TLS is used for.
#[cfg(feature = "tls")]
const PURPOSE: &str = "datapipes-remote/1";

impl ControlStream {
    /// Takes a connected socket.
    ///
    /// # Errors
    /// Errors of setting it up.
    pub(crate) fn over(socket: OwnedFd, is_tcp: bool) -> Result<ControlStream> {
        let os = |e: Errno| Error::os("connect", e.raw_os_error(), "the control connection");
        rustix::io::ioctl_fionbio(&socket, true).map_err(os)?;
        if is_tcp {
            // A machine that lost its power says nothing: after `IDLE + PROBES * INTERVAL` the
            // connection ends all the same, also while something was sent and not acknowledged.
            sockopt::set_socket_keepalive(&socket, true).map_err(os)?;
            sockopt::set_tcp_keepidle(&socket, IDLE).map_err(os)?;
            sockopt::set_tcp_keepintvl(&socket, INTERVAL).map_err(os)?;
            sockopt::set_tcp_keepcnt(&socket, PROBES).map_err(os)?;
            let bound = (IDLE + INTERVAL * PROBES).as_millis();
            sockopt::set_tcp_user_timeout(&socket, u32::try_from(bound).unwrap_or(u32::MAX)).map_err(os)?;
            sockopt::set_tcp_nodelay(&socket, true).map_err(os)?;
        }
        Ok(ControlStream {
            socket,
            has_ended: false,
            #[cfg(feature = "tls")]
            tls: None,
        })
    }

    /// Connects to an exporter.
    ///
    /// # Errors
    /// Errors of connecting, with the address.
    pub(crate) fn connect(address: &ExportAddress) -> Result<ControlStream> {
        let failed = |e| Error::io("connect", e, address.to_string());
        match address {
            ExportAddress::Unix(path) => {
                let socket = connect_by(path, Instant::now() + CONVERSATION).map_err(|e| match e.kind() {
                    std::io::ErrorKind::TimedOut => {
                        let why = format!("{address}: the other side takes too long to answer: {e}");
                        Error::new(ErrorKind::Device, "connect", why)
                    }
                    _ => failed(e),
                })?;
                ControlStream::over(socket, false)
            }
            ExportAddress::Tcp(address) => {
                let socket = TcpStream::connect_timeout(address, CONVERSATION).map_err(failed)?;
                ControlStream::over(socket.into(), true)
            }
        }
    }

    /// Reads exactly as many bytes as the buffer has.
    ///
    /// # Errors
    /// `Device` where the other side ends or takes too long.
    pub(crate) fn read_exact(&mut self, into: &mut [u8], until: Instant) -> Result<()> {
        let mut done = 0;
        while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.read(rest)? {
                Some(0) => {
                    self.has_ended = true;
                    return Err(Error::new(ErrorKind::Device, "connect", "the other side ended the connection"));
                }
                Some(got) => done += got,
                None => self.wait(PollFlags::IN, until)?,
            }
        }
        Ok(())
    }

    /// Whether the other side was heard to end the connection.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Reads what is there; `None` where nothing is yet, and 0 at the end.
    fn read(&mut self, into: &mut [u8]) -> Result<Option<usize>> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &mut self.tls {
            return tls.read(&self.socket, into);
        }
        loop {
            match recv(&self.socket, &mut *into, RecvFlags::empty()) {
                Ok((_, got)) => return Ok(Some(got)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(e) => return Err(Error::os("connect", e.raw_os_error(), "the control connection")),
            }
        }
    }

    /// Writes all bytes.
    ///
    /// # Errors
    /// As [`read_exact`](Self::read_exact).
    pub(crate) fn write_all(&mut self, bytes: &[u8], until: Instant) -> Result<()> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &mut self.tls {
            tls.write(bytes)?;
            return self.flush(until);
        }
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            match send(&self.socket, rest, SendFlags::NOSIGNAL) {
                Ok(sent) => done += sent,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, until)?,
                Err(e) => return Err(Error::os("connect", e.raw_os_error(), "the control connection")),
            }
        }
        Ok(())
    }

    /// Lets only a side talk whose certificate is believed, and shows it this side's own, if the
    /// options have one. From here on all bytes go by TLS.
    ///
    /// # Errors
    /// `PermissionDenied` where one side does not believe the other; `Device` where the other side
    /// ends or takes too long.
    #[cfg(feature = "tls")]
    pub(crate) fn secure(&mut self, options: &NetworkOptions, is_client: bool, until: Instant) -> Result<()> {
        let Some(identity) = &options.tls else { return Ok(()) };
        let mut tls = match is_client {
            true => TlsSession::client(identity, PURPOSE, self.peer_ip())?,
            false => TlsSession::server(identity, PURPOSE)?,
        };
        loop {
            match tls.greet(&self.socket) {
                Ok(TlsProgress::Done) => break,
                Ok(TlsProgress::AwaitsBytes) => self.wait(PollFlags::IN, until)?,
                Ok(TlsProgress::AwaitsRoom) => self.wait(PollFlags::OUT, until)?,
                Err(e) => {
                    self.hang_up();
                    return Err(e);
                }
            }
        }
        self.tls = Some(Box::new(tls));
        Ok(())
    }

    /// Ends the connection so that the other side can read why: closed with unread bytes in it, it
    /// would be reset.
    #[cfg(feature = "tls")]
    fn hang_up(&mut self) {
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Write);
        self.wait_for_end(Instant::now() + FAREWELL);
    }

    #[cfg(feature = "tls")]
    fn flush(&mut self, until: Instant) -> Result<()> {
        while let Some(tls) = &mut self.tls
            && !tls.flush(&self.socket)?
        {
            self.wait(PollFlags::OUT, until)?;
        }
        Ok(())
    }

    /// What only the two sides of this connection know; nothing without TLS.
    ///
    /// # Errors
    /// Those of TLS.
    #[cfg_attr(not(feature = "tls"), allow(clippy::unused_self, clippy::unnecessary_wraps))]
    pub(crate) fn binding(&self) -> Result<Vec<u8>> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return tls.binding().map(|secret| secret.to_vec());
        }
        Ok(Vec::new())
    }

    /// Waits until the other side ends the connection, whatever it says before.
    pub(crate) fn wait_for_end(&mut self, until: Instant) {
        let mut rest = [0; 512];
        loop {
            match self.read(&mut rest) {
                Ok(Some(0)) | Err(_) => return,
                Ok(Some(_)) if Instant::now() < until => {}
                Ok(Some(_)) => return,
                Ok(None) => {
                    if self.wait(PollFlags::IN, until).is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Whether there is something to read, or the end, now.
    pub(crate) fn is_readable(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    fn wait(&self, flags: PollFlags, until: Instant) -> Result<()> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::new(ErrorKind::Device, "connect", "the other side takes too long to answer"));
        }
        let timeout = Timespec { tv_sec: left.as_secs().min(60) as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let mut fds = [PollFd::new(&self.socket, flags)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(e) => Err(Error::os("connect", e.raw_os_error(), "the control connection")),
        }
    }

    /// The address of the other end, if it is a TCP connection.
    #[cfg(feature = "tls")]
    fn peer_ip(&self) -> Option<std::net::IpAddr> {
        let address = rustix::net::getpeername(&self.socket).ok().flatten()?;
        std::net::SocketAddr::try_from(address).ok().map(|address| address.ip().to_canonical())
    }

    /// The address of this end, if it is a TCP connection.
    pub(crate) fn local_ip(&self) -> Option<std::net::IpAddr> {
        let address = rustix::net::getsockname(&self.socket).ok()?;
        std::net::SocketAddr::try_from(address).ok().map(|address| address.ip().to_canonical())
    }
}

impl AsFd for ControlStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
