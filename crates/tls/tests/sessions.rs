//! Who is believed, and what happens to those that are not, that are slow, or that stop in the
//! middle.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use datapipes_core::{Error, ErrorKind, Result};
use datapipes_testkit::TempFolder;
use datapipes_tls::{TlsIdentity, TlsProgress, TlsSession};

macro_rules! certificate {
    ($name:literal) => {
        (include_str!(concat!("certificates/", $name, ".pem")), include_str!(concat!("certificates/", $name, ".key")))
    };
}

const AUTHORITY: &str = include_str!("certificates/authority.pem");
const ONE: (&str, &str) = certificate!("one");
const TWO: (&str, &str) = certificate!("two");
const STRANGER: (&str, &str) = certificate!("stranger");
const EXPIRED: (&str, &str) = certificate!("expired");
const PINNED: (&str, &str) = certificate!("pinned");

fn identity((certificate, key): (&str, &str), trusted: &str) -> TlsIdentity {
    TlsIdentity::from_pem(certificate, key, trusted).unwrap()
}

/// The side that connects: it expects the name of the certificate `one`.
fn client(of: (&str, &str)) -> TlsIdentity {
    identity(of, AUTHORITY).with_peer_name("one.test")
}

fn server(of: (&str, &str)) -> TlsIdentity {
    identity(of, AUTHORITY)
}

struct Pair {
    ours: (TlsSession, UnixStream),
    theirs: (TlsSession, UnixStream),
}

fn pair(client: &TlsIdentity, server: &TlsIdentity) -> Pair {
    let (here, there) = UnixStream::pair().unwrap();
    let ours = TlsSession::client(client, "test/1", None).unwrap();
    Pair { ours: (ours, here), theirs: (TlsSession::server(server, "test/1").unwrap(), there) }
}

impl Pair {
    /// The outcome of both handshakes, and of a first byte each way: a client hears after its
    /// handshake whether it is believed.
    fn greet(&mut self) -> (Result<()>, Result<()>) {
        let (mut outcomes, mut said) = ([None, None], [false, false]);
        for _ in 0..50 {
            for (at, (session, socket)) in [&mut self.ours, &mut self.theirs].into_iter().enumerate() {
                if outcomes[at].is_none() {
                    outcomes[at] = step(session, socket, &mut said[at]).transpose();
                }
            }
        }
        outcomes.map(Option::unwrap).into()
    }
}

fn step(session: &mut TlsSession, socket: &UnixStream, said: &mut bool) -> Result<Option<()>> {
    if session.greet(socket)? != TlsProgress::Done {
        return Ok(None);
    }
    if !std::mem::replace(said, true) {
        session.write(b"!")?;
        assert!(session.flush(socket)?);
    }
    let mut byte = [0];
    match session.read(socket, &mut byte)? {
        None => Ok(None),
        Some(1) if byte == *b"!" => Ok(Some(())),
        _ => Err(Error::new(ErrorKind::Device, "read", "the end")),
    }
}

#[test]
fn those_who_believe_each_other_share_a_secret() {
    for (ours, theirs) in [(client(TWO), server(ONE)), (pinned(), server(PINNED))] {
        let mut pair = pair(&ours, &theirs);
        let (one, two) = pair.greet();
        one.unwrap();
        two.unwrap();
        assert_eq!(pair.ours.0.binding().unwrap(), pair.theirs.0.binding().unwrap());
    }
    let bindings = [0, 1].map(|_| {
        let mut pair = pair(&client(TWO), &server(ONE));
        let _ = pair.greet();
        pair.ours.0.binding().unwrap()
    });
    assert_ne!(bindings[0], bindings[1]);
    assert!(!format!("{:?}", client(ONE)).contains("PRIVATE"));
}

/// A certificate that signed itself, believed because it is named.
fn pinned() -> TlsIdentity {
    identity(TWO, PINNED.0).with_peer_name("pinned.test")
}

#[test]
fn those_who_are_not_believed_are_refused_with_the_reason() {
    for (name, ours, theirs, client_says, server_says) in [
        ("a stranger connects", client(STRANGER), server(ONE), "does not believe", "is not trusted here"),
        ("a stranger listens", client(TWO), server(STRANGER), "is not trusted here", "does not believe"),
        ("an expired one connects", client(EXPIRED), server(ONE), "has expired, says", "certificate has expired"),
        ("an expired one listens", client(TWO), server(EXPIRED), "certificate has expired", "has expired, says"),
        ("another machine listens", client(ONE), server(TWO), "another name", "does not believe"),
        ("a certificate that nobody named", client(TWO), server(PINNED), "is not trusted here", "does not believe"),
    ] {
        let (one, two) = pair(&ours, &theirs).greet();
        for (side, outcome, words) in [("client", one, client_says), ("server", two, server_says)] {
            let e = outcome.unwrap_err();
            assert!(e.kind() == ErrorKind::PermissionDenied && e.to_string().contains(words), "{name}, {side}: {e}");
        }
    }
}

#[test]
fn another_purpose_is_refused() {
    let (here, there) = UnixStream::pair().unwrap();
    let ours = TlsSession::client(&client(TWO), "link/1", None).unwrap();
    let theirs = TlsSession::server(&server(ONE), "remote/1").unwrap();
    let (one, two) = Pair { ours: (ours, here), theirs: (theirs, there) }.greet();
    assert_eq!(
        (one.unwrap_err().kind(), two.unwrap_err().kind()),
        (ErrorKind::PermissionDenied, ErrorKind::PermissionDenied)
    );
}

#[test]
fn one_that_speaks_no_tls_is_refused_by_both_sides() {
    for said in [
        &b"DPREMOT1 and more than five bytes"[..],
        &[0; 400],
        &[255; 400],
        b"GET / HTTP/1.1\r\n\r\n",
        &[22, 3, 3, 0, 0],
    ] {
        let Pair { ours: (mut client, here), theirs: (mut server, there) } = pair(&client(TWO), &server(ONE));
        assert_eq!(client.greet(&here).unwrap(), TlsProgress::AwaitsBytes);
        (&there).write_all(said).unwrap();
        let e = client.greet(&here).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{said:?}: {e}");
        drop((here, there));
        let (here, there) = UnixStream::pair().unwrap();
        (&here).write_all(said).unwrap();
        let e = server.greet(&there).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{said:?}: {e}");
    }
}

/// Carries bytes from one socket to another, at most so many; what there was.
fn carry(from: &UnixStream, to: &UnixStream, most: usize) -> usize {
    let mut bytes = vec![0; most];
    from.set_nonblocking(true).unwrap();
    let got = (&mut &*from).read(&mut bytes).unwrap_or(0);
    (&mut &*to).write_all(&bytes[..got]).unwrap();
    got
}

/// A client and a server whose bytes go through the test's hands.
struct Relay {
    client: (TlsSession, UnixStream, UnixStream),
    server: (TlsSession, UnixStream, UnixStream),
}

fn relay() -> Relay {
    let ((a, b), (c, d)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
    let Pair { ours, theirs } = pair(&client(TWO), &server(ONE));
    Relay { client: (ours.0, a, b), server: (theirs.0, c, d) }
}

#[test]
fn a_slow_side_is_waited_for_byte_by_byte() {
    let mut relay = relay();
    let (mut steps, mut done) = (0, [false, false]);
    while done != [true, true] {
        done[0] = relay.client.0.greet(&relay.client.1).unwrap() == TlsProgress::Done;
        done[1] = relay.server.0.greet(&relay.server.1).unwrap() == TlsProgress::Done;
        steps += carry(&relay.client.2, &relay.server.2, 1) + carry(&relay.server.2, &relay.client.2, 1);
        assert!(steps < 20_000);
    }
    assert!(steps > 1000, "{steps}");
    assert_eq!(relay.client.0.binding().unwrap(), relay.server.0.binding().unwrap());
}

#[test]
fn a_handshake_that_is_cut_short_or_changed_opens_nothing() {
    // How many bytes a whole handshake has each way.
    let whole = {
        let mut relay = relay();
        let mut bytes = [0, 0];
        for _ in 0..20 {
            let _ = (relay.client.0.greet(&relay.client.1).unwrap(), relay.server.0.greet(&relay.server.1).unwrap());
            bytes[0] += carry(&relay.client.2, &relay.server.2, 9999);
            bytes[1] += carry(&relay.server.2, &relay.client.2, 9999);
        }
        bytes
    };
    for cut in (1..whole[1]).step_by(97).chain([whole[1]]) {
        let mut relay = relay();
        relay.client.0.greet(&relay.client.1).unwrap();
        carry(&relay.client.2, &relay.server.2, 9999);
        relay.server.0.greet(&relay.server.1).unwrap();
        // Signatures differ in length: at most, the last byte of this handshake is missing.
        let mut bytes = vec![0; 9999];
        let got = relay.server.2.read(&mut bytes).unwrap();
        relay.client.2.write_all(&bytes[..cut.min(got - 1)]).unwrap();
        relay.client.2.shutdown(std::net::Shutdown::Write).unwrap();
        let e = relay.client.0.greet(&relay.client.1).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Device, "{cut}: {e}");
        assert!(relay.client.0.binding().is_err());
    }
    for at in (0..whole[1]).step_by(61) {
        let mut relay = relay();
        relay.client.0.greet(&relay.client.1).unwrap();
        carry(&relay.client.2, &relay.server.2, 9999);
        relay.server.0.greet(&relay.server.1).unwrap();
        let mut bytes = vec![0; 9999];
        let got = relay.server.2.read(&mut bytes).unwrap();
        bytes[at.min(got - 1)] ^= 1;
        relay.client.2.write_all(&bytes[..got]).unwrap();
        // A length that was changed makes it wait for bytes that do not come.
        match relay.client.0.greet(&relay.client.1) {
            Ok(progress) => assert_eq!(progress, TlsProgress::AwaitsBytes, "{at}"),
            Err(e) => assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{at}: {e}"),
        }
        assert!(relay.client.0.binding().is_err(), "{at}");
    }
}

#[test]
fn not_a_byte_behind_a_record_is_read() {
    let mut pair = pair(&client(TWO), &server(ONE));
    let (one, two) = pair.greet();
    one.and(two).unwrap();
    let ((ours, here), (theirs, there)) = (&mut pair.ours, &mut pair.theirs);
    theirs.write(b"the last record").unwrap();
    assert!(theirs.flush(&*there).unwrap());
    there.write_all(b"without TLS").unwrap();
    let mut bytes = [0; 64];
    assert_eq!(ours.read(&*here, &mut bytes).unwrap(), Some(15));
    assert_eq!(&bytes[..15], b"the last record");
    let got = here.read(&mut bytes).unwrap();
    assert_eq!(&bytes[..got], b"without TLS");
}

#[test]
fn files_of_an_identity_are_checked() {
    let folder = TempFolder::new().unwrap();
    let write = |name: &str, text: &str, mode: u32| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    };
    let (certificate, trusted) = (write("one.pem", ONE.0, 0o644), write("trusted.pem", AUTHORITY, 0o644));
    let load = |key: &std::path::Path| TlsIdentity::load(&certificate, key, &trusted);
    let key = write("one.key", ONE.1, 0o600);
    assert_eq!(load(&key).unwrap(), identity(ONE, AUTHORITY));
    for (name, text, mode, kind, words) in [
        ("open.key", ONE.1, 0o640, ErrorKind::PermissionDenied, "chmod 600"),
        ("two.key", TWO.1, 0o600, ErrorKind::InvalidInput, "one.pem"),
        ("none.key", "none", 0o600, ErrorKind::InvalidInput, "the private key"),
    ] {
        let e = load(&write(name, text, mode)).unwrap_err();
        assert!(e.kind() == kind && e.to_string().contains(words), "{name}: {e}");
    }
    let long = write("long.pem", &AUTHORITY.repeat(40), 0o644);
    assert_eq!(TlsIdentity::load(&certificate, &key, &long).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert!(load(&folder.join("absent")).is_err());
}
