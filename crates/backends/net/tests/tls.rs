//! Remote memory whose conversation goes over TLS: who is believed, who is refused, and that
//! nothing hangs.
#![allow(clippy::unwrap_used)]

mod scene;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

use datapipes_core::{ErrorKind, Span};
use datapipes_net::{
    ExportAddress, ExportableMemory, Exporter, ExporterOptions, HolderProgram, NetworkOptions, Remote, RemoteOptions,
    RemoteRights, RemoteTicket, RemoteTransport, TlsIdentity,
};
use datapipes_testkit::bounded;
use scene::{HOLDER, has_ucx, machine, pattern};

macro_rules! certificate {
    ($name:literal) => {
        (
            include_str!(concat!("../../../tls/tests/certificates/", $name, ".pem")),
            include_str!(concat!("../../../tls/tests/certificates/", $name, ".key")),
        )
    };
}

const AUTHORITY: &str = include_str!("../../../tls/tests/certificates/authority.pem");

fn identity((certificate, key): (&str, &str)) -> TlsIdentity {
    TlsIdentity::from_pem(certificate, key, AUTHORITY).unwrap()
}

fn network(identity: Option<TlsIdentity>) -> NetworkOptions {
    let tcp = NetworkOptions::default().transport(RemoteTransport::Network).trusted_network(true);
    tcp.tls(identity)
}

struct Scene {
    exporter: Exporter,
    export: datapipes_net::Export,
    memory: ExportableMemory,
}

const LEN: usize = 1 << 16;

fn scene(identity: Option<TlsIdentity>) -> Scene {
    let memory = ExportableMemory::allocate(LEN).unwrap();
    let options = ExporterOptions::default().network(network(identity)).program(HolderProgram::At(HOLDER.into()));
    let exporter = Exporter::listen(&"127.0.0.1:0".parse().unwrap(), options).unwrap();
    let export = exporter.export(&memory, (0, LEN), RemoteRights::ReadWrite).unwrap();
    Scene { exporter, export, memory }
}

fn connect(ticket: &RemoteTicket, identity: Option<TlsIdentity>) -> datapipes_core::Result<Remote> {
    Remote::connect(ticket, RemoteOptions::default().network(network(identity)))
}

#[test]
fn machines_that_believe_each_other_move_bytes() {
    const TEST: &str = "machines that believe each other move bytes";
    if !has_ucx(TEST) {
        return;
    }
    bounded(TEST, || {
        let scene = scene(Some(identity(certificate!("one"))));
        // The name is the address, which the certificate has; then the one that was asked for.
        for client in [identity(certificate!("two")), identity(certificate!("two")).with_peer_name("one.test")] {
            let remote = connect(scene.export.ticket(), Some(client)).unwrap();
            let here = pattern(LEN, 4);
            let pipe = machine().connect(&here, &remote).unwrap();
            pipe.transfer(Span { source: 0, target: 0, len: LEN as u64 }).unwrap();
            assert_eq!(scene.memory.dram().memory().to_vec().unwrap(), here.lease().unwrap()[..]);
        }
        // What ends the export is told over TLS too.
        let remote = connect(scene.export.ticket(), Some(identity(certificate!("two")))).unwrap();
        let here = pattern(LEN, 4);
        let pipe = machine().connect(&here, &remote).unwrap();
        scene.export.revoke();
        let e = pipe.transfer(Span { source: 0, target: 0, len: 64 }).unwrap_err();
        assert!(e.kind() == ErrorKind::PermissionDenied && e.to_string().contains("revoked"), "{e}");
    });
}

#[test]
fn who_is_not_believed_learns_nothing() {
    const TEST: &str = "who is not believed learns nothing";
    if !has_ucx(TEST) {
        return;
    }
    bounded(TEST, || {
        let one = scene(Some(identity(certificate!("one"))));
        for (name, client, words) in [
            ("a stranger", Some(identity(certificate!("stranger"))), "does not believe"),
            ("an expired one", Some(identity(certificate!("expired"))), "has expired"),
            ("one without TLS", None, ""),
            (
                "one that expects another",
                Some(identity(certificate!("two")).with_peer_name("two.test")),
                "another name",
            ),
        ] {
            let e = connect(one.export.ticket(), client).unwrap_err();
            assert!(matches!(e.kind(), ErrorKind::PermissionDenied | ErrorKind::Device), "{name}: {e}");
            assert!(e.to_string().contains(words), "{name}: {e}");
        }
        // The key alone is not enough, and neither is the certificate.
        let text = one.export.ticket().secret_text();
        let other = if text.ends_with("0\n") { "1\n" } else { "0\n" };
        let wrong = RemoteTicket::from_secret_text(&format!("{}{other}", &text[..text.len() - 2])).unwrap();
        let e = connect(&wrong, Some(identity(certificate!("two")))).unwrap_err();
        assert!(e.kind() == ErrorKind::PermissionDenied && e.to_string().contains("the key"), "{e}");
        for (name, exporter) in [
            ("a stranger", Some(identity(certificate!("stranger")))),
            ("an expired one", Some(identity(certificate!("expired")))),
            ("one without TLS", None),
        ] {
            let scene = scene(exporter);
            let e = connect(scene.export.ticket(), Some(identity(certificate!("two")))).unwrap_err();
            assert!(matches!(e.kind(), ErrorKind::PermissionDenied | ErrorKind::Device), "{name}: {e}");
            assert_eq!(scene.export.clients(), 0);
        }
        connect(one.export.ticket(), Some(identity(certificate!("two")))).unwrap();
    });
}

#[test]
fn strangers_that_stop_in_the_middle_keep_nobody_out() {
    const TEST: &str = "strangers that stop in the middle keep nobody out";
    if !has_ucx(TEST) {
        return;
    }
    bounded(TEST, || {
        let scene = scene(Some(identity(certificate!("one"))));
        let ExportAddress::Tcp(address) = scene.exporter.address().clone() else { panic!("a port") };
        // A begun handshake, nonsense, nothing: all stay open.
        let hello = hello_of_a_client();
        let silent: Vec<TcpStream> = [&hello[..hello.len() / 2], &hello, b"GET / HTTP/1.1\r\n\r\n", b""]
            .iter()
            .map(|said| {
                let mut socket = TcpStream::connect(address).unwrap();
                socket.write_all(said).unwrap();
                socket
            })
            .collect();
        connect(scene.export.ticket(), Some(identity(certificate!("two")))).unwrap();
        // One that hangs up in the middle.
        drop(silent);
        connect(scene.export.ticket(), Some(identity(certificate!("two")))).unwrap();
    });
}

/// What a client of this crate says first over TLS.
fn hello_of_a_client() -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let text = scene(None).export.ticket().secret_text();
    let ticket = RemoteTicket::from_secret_text(&text).unwrap().at(ExportAddress::Tcp(address));
    let client = std::thread::spawn(move || connect(&ticket, Some(identity(certificate!("two")))).unwrap_err());
    let mut socket = listener.accept().unwrap().0;
    let mut hello = vec![0; 4096];
    let got = socket.read(&mut hello).unwrap();
    hello.truncate(got);
    socket.shutdown(Shutdown::Both).unwrap();
    drop(socket);
    assert_eq!(client.join().unwrap().kind(), ErrorKind::Device);
    hello
}

#[test]
fn an_exporter_that_says_nothing_is_not_waited_for_without_end() {
    const TEST: &str = "an exporter that says nothing is not waited for without end";
    if !has_ucx(TEST) {
        return;
    }
    bounded(TEST, || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let text = scene(None).export.ticket().secret_text();
        let address = ExportAddress::Tcp(listener.local_addr().unwrap());
        let ticket = RemoteTicket::from_secret_text(&text).unwrap().at(address);
        let e = connect(&ticket, Some(identity(certificate!("two")))).unwrap_err();
        assert!(e.to_string().contains("too long"), "{e}");
    });
}

#[test]
fn what_ucx_moves_still_needs_a_network_that_is_trusted() {
    let untrusted = network(Some(identity(certificate!("one")))).trusted_network(false);
    let options = ExporterOptions::default().network(untrusted);
    for address in ["127.0.0.1:0", "0.0.0.0:0"] {
        let e = Exporter::listen(&address.parse().unwrap(), options.clone()).err().unwrap();
        assert!(e.kind() == ErrorKind::PermissionDenied && e.to_string().contains("unencrypted"), "{e}");
    }
}
