//! A connection over a socket that is never waited for here: the caller waits, as long as it likes.
//!
//! Not a byte is read beyond the record that is asked for, so a connection can go on without TLS
//! after both sides have agreed on that: links do, whose ends seal their bytes themselves.

use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use datapipes_core::{Error, ErrorKind, Result};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, ClientConnection, Connection, ServerConnection};

use crate::identity::TlsIdentity;

/// The bytes before a record: its type, version and length.
const HEAD_BYTES: usize = 5;
/// The longest record.
const MAX_RECORD_BYTES: usize = (16 << 10) + 256;
/// The label under which both sides derive the same secret.
const BINDING_LABEL: &[u8] = b"EXPORTER-datapipes-binding";

/// What a handshake waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsProgress {
    /// Nothing: both sides are known to each other.
    Done,
    /// Bytes of the other side.
    AwaitsBytes,
    /// Room for bytes in the socket.
    AwaitsRoom,
}

/// A connection over TLS.
pub struct TlsSession {
    connection: Connection,
    /// The begun record.
    record: Vec<u8>,
}

impl TlsSession {
    /// The side that connects. The other side must have the identity's peer name, or else this
    /// address. Both sides must name the same purpose.
    ///
    /// # Errors
    /// `InvalidInput` where no name is expected, or one that no certificate has.
    pub fn client(identity: &TlsIdentity, purpose: &str, address: Option<IpAddr>) -> Result<TlsSession> {
        let wrong = |what: String| Error::new(ErrorKind::InvalidInput, "connect", what);
        let name = match (identity.peer_name(), address) {
            (Some(name), _) => ServerName::try_from(name.to_owned())
                .map_err(|e| wrong(format!("the name {name:?} of the other side's certificate: {e}")))?,
            (None, Some(address)) => ServerName::from(address),
            (None, None) => {
                return Err(wrong("a connection that tells no address".to_owned())
                    .with_advice("say which name the other side's certificate has (`with_peer_name`)"));
            }
        };
        let connection = ClientConnection::new(identity.client(purpose)?, name).map_err(|e| refused(&e))?;
        Ok(TlsSession { connection: connection.into(), record: Vec::new() })
    }

    /// The side that is connected to.
    ///
    /// # Errors
    /// Those of the identity.
    pub fn server(identity: &TlsIdentity, purpose: &str) -> Result<TlsSession> {
        let connection = ServerConnection::new(identity.server(purpose)?).map_err(|e| refused(&e))?;
        Ok(TlsSession { connection: connection.into(), record: Vec::new() })
    }

    /// Goes on with the handshake as far as possible without waiting.
    ///
    /// # Errors
    /// `PermissionDenied` where one side does not believe the other, or it speaks no TLS; `Device`
    /// where it ends the connection; errors of the socket.
    pub fn greet(&mut self, socket: impl AsFd) -> Result<TlsProgress> {
        let socket = socket.as_fd();
        loop {
            if !self.flush(socket)? {
                return Ok(TlsProgress::AwaitsRoom);
            }
            if !self.connection.is_handshaking() {
                return Ok(TlsProgress::Done);
            }
            match self.receive_record(socket)? {
                Received::Record => {}
                Received::Nothing => return Ok(TlsProgress::AwaitsBytes),
                Received::End => {
                    let what = "the other side ended the connection in the middle of the handshake of TLS";
                    return Err(Error::new(ErrorKind::Device, "connect", what)
                        .with_advice("both sides need TLS and a certificate, or neither"));
                }
            }
        }
    }

    /// Reads what is there; `None` where nothing is yet, and 0 where the other side has ended.
    ///
    /// # Errors
    /// `PermissionDenied` for bytes that the other side did not seal, or where it does not believe
    /// this side's certificate, which is told after the handshake; errors of the socket.
    pub fn read(&mut self, socket: impl AsFd, into: &mut [u8]) -> Result<Option<usize>> {
        loop {
            match self.connection.reader().read(into) {
                Ok(got) => return Ok(Some(got)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(Error::io("read", e, "a connection over TLS")),
            }
            match self.receive_record(socket.as_fd())? {
                Received::Record => {}
                Received::Nothing => return Ok(None),
                Received::End => return Ok(Some(0)),
            }
        }
    }

    /// Takes bytes to send. [`flush`](Self::flush) sends them.
    ///
    /// # Errors
    /// `NoSpace` for more than 64 KiB at once.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.connection.writer().write_all(bytes).map_err(|e| {
            Error::new(ErrorKind::NoSpace, "send", format!("{} bytes over TLS", bytes.len())).with_source(e)
        })
    }

    /// Sends what was taken; whether all of it was sent.
    ///
    /// # Errors
    /// Errors of the socket.
    pub fn flush(&mut self, socket: impl AsFd) -> Result<bool> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut Socket(socket.as_fd())) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::io("send", e, "a connection over TLS")),
            }
        }
        Ok(true)
    }

    /// A secret that the two sides of this very connection share and nobody else has. What is
    /// proved over the connection includes it, so that nothing can be relayed from another one.
    ///
    /// # Errors
    /// `System` before the handshake is done.
    pub fn binding(&self) -> Result<[u8; 32]> {
        self.connection
            .export_keying_material([0; 32], BINDING_LABEL, None)
            .map_err(|e| Error::new(ErrorKind::System, "connect", format!("TLS: {e}")).with_source(e))
    }

    /// Receives the rest of a record, and lets TLS look at it.
    fn receive_record(&mut self, socket: BorrowedFd<'_>) -> Result<Received> {
        loop {
            let len = match self.record.get(3..HEAD_BYTES) {
                Some(&[high, low]) => HEAD_BYTES + usize::from(u16::from_be_bytes([high, low])),
                _ => HEAD_BYTES,
            };
            if self.record.get(..HEAD_BYTES).is_some_and(|head| !is_head(head)) || len > HEAD_BYTES + MAX_RECORD_BYTES {
                return Err(no_tls());
            }
            let have = self.record.len();
            if have >= HEAD_BYTES && have == len {
                return self.take_record(socket).map(|()| Received::Record);
            }
            self.record.resize(len, 0);
            let got = recv(socket, self.record.get_mut(have..).unwrap_or_default(), RecvFlags::DONTWAIT);
            self.record.truncate(have + got.as_ref().map_or(0, |(_, got)| *got));
            match got {
                // One that is cut off with bytes in it is reset.
                Ok((_, 0)) | Err(Errno::CONNRESET) => return Ok(Received::End),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(Received::Nothing),
                Err(e) => return Err(Error::os("read", e.raw_os_error(), "a connection over TLS")),
            }
        }
    }

    fn take_record(&mut self, socket: BorrowedFd<'_>) -> Result<()> {
        let record = std::mem::take(&mut self.record);
        let mut rest = record.as_slice();
        while !rest.is_empty() {
            let taken =
                self.connection.read_tls(&mut rest).map_err(|e| Error::io("read", e, "a connection over TLS"))?;
            if let Err(e) = self.connection.process_new_packets() {
                // The alert says why; whether it arrives does not matter.
                let _ = self.flush(socket);
                return Err(refused(&e));
            }
            if taken == 0 {
                return Err(no_tls());
            }
        }
        Ok(())
    }
}

/// Whether these may be the first bytes of a record. What TLS itself would find only behind as many
/// bytes as they announce is found at once.
fn is_head(head: &[u8]) -> bool {
    matches!(head, [20..=23, 3, 1 | 3, ..])
}

enum Received {
    Record,
    Nothing,
    End,
}

/// A socket as rustls writes to it.
struct Socket<'a>(BorrowedFd<'a>);

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(self.0, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn no_tls() -> Error {
    Error::new(ErrorKind::PermissionDenied, "connect", "the other side speaks no TLS")
        .with_advice("both sides need TLS and a certificate, or neither")
}

/// Why there is no connection, in words that say whose certificate is meant.
fn refused(e: &rustls::Error) -> Error {
    let theirs = |what: &str| format!("the other side's certificate {what}");
    let what = match e {
        rustls::Error::InvalidCertificate(why) => match why {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => theirs("has expired"),
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => theirs("is not valid yet"),
            CertificateError::UnknownIssuer => theirs("is not trusted here, nor what signed it"),
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                theirs("has another name than was expected")
            }
            other => theirs(&format!("is refused: {other}")),
        },
        rustls::Error::NoCertificatesPresented => "the other side shows no certificate".to_owned(),
        rustls::Error::AlertReceived(AlertDescription::CertificateExpired) => {
            "this side's certificate has expired, says the other side".to_owned()
        }
        rustls::Error::AlertReceived(
            why @ (AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateRequired
            | AlertDescription::AccessDenied),
        ) => format!("the other side does not believe this side's certificate: {why:?}"),
        rustls::Error::InvalidMessage(_) | rustls::Error::InappropriateMessage { .. } => return no_tls(),
        other => format!("TLS: {other}"),
    };
    Error::new(ErrorKind::PermissionDenied, "connect", what)
}
