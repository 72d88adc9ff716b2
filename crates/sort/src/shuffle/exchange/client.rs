//! What tasks ask of those that keep blocks.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use datapipes_core::{Error, ErrorKind, Result, packet};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::input::Input;
use crate::shuffle::exchange::wire::{ANSWER_BYTES, Answer, BlockTicket, Request, What};

/// How long a keeper may take to take a connection, or to answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// A connection over which nothing comes is asked after for a sign of life: when, how often, and
/// how many times in vain.
const LIFE_SIGN: (Duration, Duration, u32) = (Duration::from_secs(20), Duration::from_secs(5), 4);

/// How tasks have their blocks kept, and get those of others.
#[derive(Clone, Copy, Debug)]
pub struct BlockClient {
    ticket: BlockTicket,
}

impl BlockClient {
    /// Takes the ticket of the sort.
    pub fn new(ticket: BlockTicket) -> BlockClient {
        BlockClient { ticket }
    }

    /// Has the keeper of this node keep a file. Returns the number that it has there.
    ///
    /// # Errors
    /// `Unavailable` if there is no such keeper, or if it does not answer.
    pub fn keep(&self, keeper: &str, file: impl AsFd) -> Result<u64> {
        let request = Request { what: What::Keep, file: 0, from: 0, to: 0 };
        Ok(self.ask_locally(keeper, request, Some(file.as_fd()))?.0.number)
    }

    /// Gets a file from the keeper of this node.
    ///
    /// # Errors
    /// `NotFound` if it has no such file; as [`keep`](Self::keep).
    pub fn open(&self, keeper: &str, file: u64) -> Result<File> {
        let request = Request { what: What::Open, file, from: 0, to: 0 };
        let (_, opened) = self.ask_locally(keeper, request, None)?;
        opened.map(File::from).ok_or_else(|| lost(keeper, "it sent no file".into()))
    }

    /// Connects to the keeper of another node, which sends these bytes of a file.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn fetch(&self, keeper: SocketAddr, file: u64, from: u64, to: u64) -> Result<Input> {
        let (connection, answer) = self.ask(keeper, Request { what: What::Send, file, from, to })?;
        let len = to.saturating_sub(from);
        if answer.number != len {
            return Err(lost(&keeper.to_string(), format!("it offers {} bytes of {len}", answer.number)));
        }
        let name = format!("bytes {from} to {to} of sorted part {file} of {keeper}").into();
        Ok(Input::Counted { name, fd: connection.into(), len })
    }

    /// Asks whether the keeper of another node has a file.
    ///
    /// # Errors
    /// As [`keep`](Self::keep).
    pub fn has(&self, keeper: SocketAddr, file: u64) -> Result<bool> {
        match self.ask(keeper, Request { what: What::Ask, file, from: 0, to: 0 }) {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn ask(&self, keeper: SocketAddr, request: Request) -> Result<(TcpStream, Answer)> {
        let name = keeper.to_string();
        let fail = |e: std::io::Error| lost(&name, e.to_string());
        let mut connection = TcpStream::connect_timeout(&keeper, PATIENCE).map_err(fail)?;
        connection.set_read_timeout(Some(PATIENCE)).map_err(fail)?;
        connection.set_write_timeout(Some(PATIENCE)).map_err(fail)?;
        let (idle, interval, count) = LIFE_SIGN;
        sockopt::set_socket_keepalive(&connection, true)
            .and_then(|()| sockopt::set_tcp_keepidle(&connection, idle))
            .and_then(|()| sockopt::set_tcp_keepintvl(&connection, interval))
            .and_then(|()| sockopt::set_tcp_keepcnt(&connection, count))
            .map_err(|e| fail(e.into()))?;
        connection.write_all(&request.to_bytes(&self.ticket)).map_err(fail)?;
        let mut bytes = [0; ANSWER_BYTES];
        connection.read_exact(&mut bytes).map_err(fail)?;
        let answer = checked(&name, &bytes)?;
        Ok((connection, answer))
    }

    fn ask_locally(
        &self,
        keeper: &str,
        request: Request,
        file: Option<std::os::fd::BorrowedFd<'_>>,
    ) -> Result<(Answer, Option<OwnedFd>)> {
        let fail = |e: Errno| lost(keeper, std::io::Error::from(e).to_string());
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).map_err(fail)?;
        sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE)).map_err(fail)?;
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE)).map_err(fail)?;
        connect(&socket, &SocketAddrUnix::new_abstract_name(keeper.as_bytes()).map_err(fail)?).map_err(fail)?;
        let files: Vec<_> = file.into_iter().collect();
        packet::send(&socket, &request.to_bytes(&self.ticket), &files, SendFlags::empty()).map_err(fail)?;
        let mut bytes = [0; ANSWER_BYTES];
        let (facts, files) = packet::receive(&socket, &mut bytes, 1, RecvFlags::empty()).map_err(fail)?;
        let answer = checked(keeper, bytes.get(..facts.bytes).unwrap_or_default())?;
        if facts.fds_cut {
            return Err(fail(Errno::MFILE));
        }
        Ok((answer, files.into_iter().next()))
    }
}

fn checked(keeper: &str, bytes: &[u8]) -> Result<Answer> {
    match Answer::parse(bytes) {
        Some(answer) if answer.errno == 0 => Ok(answer),
        Some(Answer { errno: libc::ENOENT, .. }) => {
            Err(Error::new(ErrorKind::NotFound, "get blocks", format!("{keeper} does not have them")))
        }
        Some(answer) => Err(Error::os("get blocks", answer.errno, keeper.to_owned())),
        None => Err(lost(keeper, "it did not answer".into())),
    }
}

fn lost(keeper: &str, why: String) -> Error {
    Error::new(ErrorKind::Unavailable, "get blocks", format!("{keeper}: {why}"))
}
