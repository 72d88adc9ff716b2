//! Links whose controllers talk over TLS: who is believed, who is refused, and that an offer
//! outlives those who are not.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod scene;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use datapipes_core::ErrorKind;
use datapipes_fabric::capability::{Cap, Rights};
use datapipes_fabric::channel::{ChannelShape, Head, Patience, Trust};
use datapipes_fabric::control::{DeviceEvent, Key, Session, TlsIdentity};
use scene::*;

const SHAPE: ChannelShape = ChannelShape::new(2, 4096);
const SAID: &[u8] = b"what nobody on the way may read";

macro_rules! certificate {
    ($name:literal) => {
        (
            include_str!(concat!("../../tls/tests/certificates/", $name, ".pem")),
            include_str!(concat!("../../tls/tests/certificates/", $name, ".key")),
        )
    };
}

const AUTHORITY: &str = include_str!("../../tls/tests/certificates/authority.pem");

fn identity((certificate, key): (&str, &str)) -> TlsIdentity {
    TlsIdentity::from_pem(certificate, key, AUTHORITY).unwrap()
}

fn anywhere() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

fn secured(of: Option<&TlsIdentity>) -> Session {
    let mut session = session();
    if let Some(identity) = of {
        session.secure_links(identity).unwrap();
    }
    session
}

/// Sends a block over a link that is connected.
fn a_block_arrives(a: &mut Session, link: Cap, b: &mut Session, offered: Cap) {
    a.activate(link, "out", Rights::SEND, Trust::Copy).unwrap();
    b.activate(offered, "in", Rights::RECEIVE, Trust::Copy).unwrap();
    let mut sender = a.sender("out", LONG).unwrap().with_patience(LONG);
    let mut receiver = b.receiver("in", LONG).unwrap().with_patience(LONG);
    sender.send(SAID, Head::default()).unwrap();
    let block = receiver.receive().unwrap();
    assert_eq!(&*block, SAID);
    block.done().unwrap();
    sender.drain().unwrap();
}

/// Stands between two controllers, notes what they say, and passes on so many bytes at once.
struct Between {
    address: SocketAddr,
    heard: Arc<Mutex<Vec<u8>>>,
}

impl Between {
    fn before(to: SocketAddr, at_once: usize) -> Between {
        let listener = TcpListener::bind(anywhere()).unwrap();
        let (address, heard) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
        let noted = heard.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let far = TcpStream::connect(to).unwrap();
                for (from, into) in [(near.try_clone(), far.try_clone()), (Ok(far), Ok(near))] {
                    let (from, into, noted) = (from.unwrap(), into.unwrap(), noted.clone());
                    std::thread::spawn(move || pass_on(from, into, at_once, &noted));
                }
            }
        });
        Between { address, heard }
    }
}

fn pass_on(mut from: TcpStream, mut into: TcpStream, at_once: usize, noted: &Mutex<Vec<u8>>) {
    into.set_nodelay(true).unwrap();
    let mut bytes = vec![0; at_once];
    while let Ok(got @ 1..) = from.read(&mut bytes) {
        noted.lock().unwrap().extend_from_slice(&bytes[..got]);
        if into.write_all(&bytes[..got]).is_err() {
            break;
        }
    }
    let _ = into.shutdown(Shutdown::Write);
}

#[test]
fn controllers_that_believe_each_other_connect_a_link() {
    // As fast as it goes, and byte by byte.
    for at_once in [4096, 1] {
        let (mut a, mut b) =
            (secured(Some(&identity(certificate!("two")))), secured(Some(&identity(certificate!("one")))));
        let (before_a, before_b) = (a.status().unwrap(), b.status().unwrap());
        let key = Key::random().unwrap();
        let (offered, address) = b.offer(SHAPE, Rights::RECEIVE, anywhere(), &key).unwrap();
        let between = Between::before(address, at_once);
        let link = a.join(SHAPE, Rights::SEND, between.address, &key).unwrap();
        a.joined(link, LONG).unwrap();
        b.joined(offered, LONG).unwrap();
        a_block_arrives(&mut a, link, &mut b, offered);
        let heard = between.heard.lock().unwrap().clone();
        assert_eq!(heard.first(), Some(&22), "a handshake of TLS comes first");
        assert!(!heard.windows(SAID.len()).any(|part| part == SAID));
        assert!(key.bytes().chunks(8).all(|part| !heard.windows(8).any(|w| w == part)));
        // Certificates are not shown to those on the way.
        assert!(!heard.windows(8).any(|part| part == b"one.test"));
        a.revoke(link).unwrap();
        b.revoke(offered).unwrap();
        nothing_is_left(&mut a, &before_a);
        nothing_is_left(&mut b, &before_b);
    }
}

#[test]
fn who_is_not_believed_connects_nothing_and_uses_up_no_offer() {
    let key = Key::random().unwrap();
    let one = identity(certificate!("one"));
    let mut b = secured(Some(&one));
    let (offered, address) = b.offer(SHAPE, Rights::RECEIVE, anywhere(), &key).unwrap();
    for (name, of, words) in [
        ("a stranger", Some(identity(certificate!("stranger"))), ""),
        ("an expired one", Some(identity(certificate!("expired"))), ""),
        ("one without TLS", None, ""),
        ("one that expects another", Some(identity(certificate!("two")).with_peer_name("two.test")), "another name"),
    ] {
        let mut a = secured(of.as_ref());
        let link = a.join(SHAPE, Rights::SEND, address, &key).unwrap();
        let e = a.joined(link, LONG).unwrap_err();
        assert!(e.kind() == ErrorKind::Device && e.to_string().contains(words), "{name}: {e}");
    }
    let is_of_it = |e: &DeviceEvent| matches!(e, DeviceEvent::Link { cap, .. } if *cap == offered);
    assert_eq!(b.event_where(Patience::NONE, is_of_it).unwrap_err().kind(), ErrorKind::Busy);
    // Those that say half of a greeting, or nothing, and stay.
    let silent: Vec<_> = [&b""[..], &[22, 3, 1], &[22, 3, 1, 255, 255], &[22; 300]]
        .iter()
        .map(|said| {
            let mut socket = TcpStream::connect(address).unwrap();
            socket.write_all(said).unwrap();
            socket
        })
        .collect();
    // The certificate without the key is not enough either.
    let mut a = secured(Some(&identity(certificate!("two"))));
    let link = a.join(SHAPE, Rights::SEND, address, &Key::random().unwrap()).unwrap();
    assert_eq!(a.joined(link, LONG).unwrap_err().kind(), ErrorKind::Device);
    let link = a.join(SHAPE, Rights::SEND, address, &key).unwrap();
    a.joined(link, LONG).unwrap();
    b.joined(offered, LONG).unwrap();
    a_block_arrives(&mut a, link, &mut b, offered);
    drop(silent);
}

#[test]
fn a_controller_that_is_not_believed_is_not_joined() {
    let key = Key::random().unwrap();
    for (name, of, words) in [
        ("a stranger", Some(identity(certificate!("stranger"))), "is not trusted here"),
        ("an expired one", Some(identity(certificate!("expired"))), "has expired"),
        ("one without TLS", None, "in the middle of the handshake"),
    ] {
        let (mut a, mut b) = (secured(Some(&identity(certificate!("two")))), secured(of.as_ref()));
        let (_, address) = b.offer(SHAPE, Rights::RECEIVE, anywhere(), &key).unwrap();
        let link = a.join(SHAPE, Rights::SEND, address, &key).unwrap();
        let e = a.joined(link, LONG).unwrap_err();
        // A connection that is cut off may be reset before its end is read.
        let fits = e.to_string().contains(words) || e.to_string().contains("reset");
        assert!(e.kind() == ErrorKind::Device && fits, "{name}: {e}");
    }
}
