//! The conversation that only those have who know the key, and sealed messages after it: the Noise
//! pattern `NNpsk0`.
//!
//! The key is never sent. Recorded messages open nothing, since each side answers to fresh data of
//! the other, and who gets the key later cannot read earlier conversations. An unknown number is
//! treated as a wrong key, so that nobody can try numbers.

use std::time::Instant;

use datapipes_core::{Error, ErrorKind, Result};
use snow::{Builder, HandshakeState, TransportState};

use super::key::{ExportKey, ExportNumber, RemoteTicket};
use super::messages::EndReason;
use super::wire::ControlStream;

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_SHA256";
const MARK: &[u8; 8] = b"DPREMOT1";
/// The bytes of each of the first two messages: a public key and a tag.
const GREETING_BYTES: usize = 48;
const TAG_BYTES: usize = 16;
/// The longest sealed message.
const MAX_SEALED_BYTES: usize = 60 << 10;

/// A connection whose messages are sealed.
pub(crate) struct SealedStream {
    pub(crate) stream: ControlStream,
    state: TransportState,
}

impl SealedStream {
    /// The client's side.
    ///
    /// # Errors
    /// `PermissionDenied` where the exporter has another key or does not know the number.
    pub(crate) fn open(mut stream: ControlStream, ticket: &RemoteTicket, until: Instant) -> Result<SealedStream> {
        let mut state = handshake(&ticket.key, &ticket.number, &stream.binding()?, true)?;
        let mut greeting = [0; MARK.len() + 16 + GREETING_BYTES];
        let (mark, rest) = greeting.split_at_mut(MARK.len());
        let (number, message) = rest.split_at_mut(16);
        mark.copy_from_slice(MARK);
        number.copy_from_slice(&ticket.number.0);
        state.write_message(&[], message).map_err(failed)?;
        stream.write_all(&greeting, until)?;
        let mut answer = [0; GREETING_BYTES];
        // An exporter that does not know the key ends the connection without a word.
        stream.read_exact(&mut answer, until).map_err(|e| if stream.has_ended() { stranger() } else { e })?;
        state.read_message(&answer, &mut []).map_err(|_| stranger())?;
        Ok(SealedStream { stream, state: state.into_transport_mode().map_err(failed)? })
    }

    /// The exporter's side. `key_of` returns the key of a number.
    ///
    /// # Errors
    /// `PermissionDenied` for a stranger.
    pub(crate) fn accept(
        mut stream: ControlStream,
        key_of: impl FnOnce(&ExportNumber) -> Option<ExportKey>,
        until: Instant,
    ) -> Result<(SealedStream, ExportNumber)> {
        let mut greeting = [0; MARK.len() + 16 + GREETING_BYTES];
        stream.read_exact(&mut greeting, until)?;
        let (mark, rest) = greeting.split_at(MARK.len());
        let (digits, message) = rest.split_at(16);
        let mut number = ExportNumber([0; 16]);
        number.0.copy_from_slice(digits);
        if mark != MARK {
            return Err(stranger());
        }
        // A key that nobody has takes the place of one that does not exist.
        let key = key_of(&number).map_or_else(ExportKey::random, Ok)?;
        let mut state = handshake(&key, &number, &stream.binding()?, false)?;
        state.read_message(message, &mut []).map_err(|_| stranger())?;
        let mut answer = [0; GREETING_BYTES];
        state.write_message(&[], &mut answer).map_err(failed)?;
        stream.write_all(&answer, until)?;
        Ok((SealedStream { stream, state: state.into_transport_mode().map_err(failed)? }, number))
    }

    /// Sends a message.
    ///
    /// # Errors
    /// Errors of sending; `InvalidInput` for a message that is too long.
    pub(crate) fn send(&mut self, message: &[u8], until: Instant) -> Result<()> {
        if message.len() + TAG_BYTES > MAX_SEALED_BYTES {
            return Err(Error::new(ErrorKind::InvalidInput, "send", format!("a message of {} bytes", message.len())));
        }
        let mut sealed = vec![0; 2 + message.len() + TAG_BYTES];
        let (head, body) = sealed.split_at_mut(2);
        let len = self.state.write_message(message, body).map_err(failed)?;
        head.copy_from_slice(&(len as u16).to_le_bytes());
        self.stream.write_all(&sealed, until)
    }

    /// Why the export has ended for this client, if the exporter says so or ends within a time.
    pub(crate) fn reason_of_end(&mut self, until: Instant) -> Option<(ErrorKind, &'static str)> {
        let said = self.receive(until);
        Some(match said.map(|said| EndReason::from_bytes(&said)) {
            Ok(Some(EndReason::Revoked)) => (ErrorKind::PermissionDenied, "the export was revoked"),
            Ok(Some(EndReason::HolderEnded)) => (ErrorKind::Device, "the process that held the memory has ended"),
            Err(_) if !self.stream.has_ended() => return None,
            _ => (ErrorKind::Device, "the exporter has gone"),
        })
    }

    /// Receives a message.
    ///
    /// # Errors
    /// `Device` where the other side ends; `PermissionDenied` for a message that is not sealed by
    /// it.
    pub(crate) fn receive(&mut self, until: Instant) -> Result<Vec<u8>> {
        let mut head = [0; 2];
        self.stream.read_exact(&mut head, until)?;
        let len = usize::from(u16::from_le_bytes(head));
        if !(TAG_BYTES..=MAX_SEALED_BYTES).contains(&len) {
            return Err(stranger());
        }
        let mut sealed = vec![0; len];
        self.stream.read_exact(&mut sealed, until)?;
        let mut message = vec![0; len - TAG_BYTES];
        self.state.read_message(&sealed, &mut message).map_err(|_| stranger())?;
        Ok(message)
    }
}

/// The binding is that of a connection over TLS: over another one, nothing opens.
fn handshake(key: &ExportKey, number: &ExportNumber, binding: &[u8], is_client: bool) -> Result<HandshakeState> {
    let pattern = PATTERN.parse().map_err(failed)?;
    let prologue = [&MARK[..], &number.0[..], binding].concat();
    let builder = Builder::new(pattern).prologue(&prologue).and_then(|b| b.psk(0, &key.0)).map_err(failed)?;
    if is_client { builder.build_initiator() } else { builder.build_responder() }.map_err(failed)
}

fn stranger() -> Error {
    let what = "the exporter has no such export, or the key is another one";
    Error::new(ErrorKind::PermissionDenied, "connect", what)
        .with_advice("ask for a new ticket: an export that was revoked or has ended is not found either")
}

fn failed(e: snow::Error) -> Error {
    Error::new(ErrorKind::System, "connect", format!("the handshake: {e}")).with_source(e)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::control::wire::CONVERSATION;

    fn ticket() -> RemoteTicket {
        let address = "127.0.0.1:7".parse().unwrap();
        RemoteTicket::new(address, ExportNumber::random().unwrap(), ExportKey::random().unwrap())
    }

    fn streams() -> (ControlStream, ControlStream) {
        let (a, b) = UnixStream::pair().unwrap();
        (ControlStream::over(a.into(), false).unwrap(), ControlStream::over(b.into(), false).unwrap())
    }

    fn until() -> Instant {
        Instant::now() + CONVERSATION
    }

    fn converse(client: &RemoteTicket, exporter: &RemoteTicket) -> (Result<SealedStream>, Result<SealedStream>) {
        let (ours, theirs) = streams();
        let exporter = exporter.clone();
        let other = std::thread::spawn(move || {
            let key_of = |number: &ExportNumber| (*number == exporter.number).then(|| exporter.key.clone());
            SealedStream::accept(theirs, key_of, until()).map(|(stream, _)| stream)
        });
        (SealedStream::open(ours, client, until()), other.join().unwrap())
    }

    #[test]
    fn only_the_same_key_and_number_open_a_conversation() {
        let one = ticket();
        let (ours, theirs) = converse(&one, &one);
        let (mut ours, mut theirs) = (ours.unwrap(), theirs.unwrap());
        ours.send(b"there", until()).unwrap();
        assert_eq!(theirs.receive(until()).unwrap(), b"there");
        theirs.send(&[], until()).unwrap();
        assert_eq!(ours.receive(until()).unwrap(), b"");
        let (mut another_key, mut another_number) = (one.clone(), one.clone());
        another_key.key = ExportKey::random().unwrap();
        another_number.number = ExportNumber::random().unwrap();
        for wrong in [another_key, another_number] {
            let (ours, theirs) = converse(&wrong, &one);
            for outcome in [ours, theirs] {
                assert_eq!(outcome.err().map(|e| e.kind()), Some(ErrorKind::PermissionDenied));
            }
        }
    }

    #[test]
    fn a_message_that_was_changed_or_repeated_is_refused() {
        let one = ticket();
        let (ours, theirs) = converse(&one, &one);
        let (mut ours, mut theirs) = (ours.unwrap(), theirs.unwrap());
        // Sealed by the exporter for the client, and sent back.
        let mut sealed = vec![0; 64];
        let len = theirs.state.write_message(b"back", &mut sealed).unwrap();
        ours.stream.write_all(&(len as u16).to_le_bytes(), until()).unwrap();
        ours.stream.write_all(&sealed[..len], until()).unwrap();
        assert_eq!(theirs.receive(until()).unwrap_err().kind(), ErrorKind::PermissionDenied);
        // A length that no message has.
        theirs.stream.write_all(&[3, 0], until()).unwrap();
        assert_eq!(ours.receive(until()).unwrap_err().kind(), ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_side_that_says_nothing_is_not_waited_for() {
        let (mut ours, _theirs) = streams();
        let e = ours.read_exact(&mut [0; 8], Instant::now()).unwrap_err();
        assert!(e.to_string().contains("too long"), "{e}");
    }
}
