//! Web servers as sources, and TLS with an authority of one's own, for web servers and for S3.
#![allow(clippy::unwrap_used)]

mod scene;

use std::io::Write;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use datapipes_core::ErrorKind;
use datapipes_object::{CreateOptions, ObjectClient};
use datapipes_objectserver::{FaultProxy, ProxyFault, S3Server, ServerCertificate, WebServer};
use datapipes_testkit::TempFolder;
use scene::{machine, quick, random, read_all, write_all};

fn folder() -> TempFolder {
    TempFolder::under(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// A client that trusts the authority of this file alone, as the cloud's tools do.
fn trusting(settings: Vec<(String, String)>, bundle: &std::path::Path) -> datapipes_core::Result<ObjectClient> {
    let bundle = ("AWS_CA_BUNDLE".to_owned(), bundle.display().to_string());
    ObjectClient::with_settings(quick().retries(1), settings.into_iter().chain([bundle]))
}

#[test]
fn a_web_server_is_read_in_ranges_with_and_without_tls() {
    let (folder, machine) = (folder(), machine());
    let bytes = random(3_000_017, 1);
    std::fs::create_dir(folder.path("www")).unwrap();
    std::fs::write(folder.path("www/data.bin"), &bytes).unwrap();
    let certificate = ServerCertificate::new(&["localhost", "127.0.0.1"]).unwrap();
    std::fs::write(folder.path("authority.pem"), certificate.authority()).unwrap();
    let client = trusting(Vec::new(), &folder.path("authority.pem")).unwrap();
    for (scheme, tls) in [("http", None), ("https", Some(&certificate))] {
        let server = WebServer::start(&folder.path("www"), tls).unwrap();
        let address = format!("{scheme}://localhost:{}/data.bin?key=hidden", server.address().port());
        let object = client.open(&address).unwrap();
        assert_eq!(object.len(), bytes.len() as u64);
        assert!(read_all(&machine, &object).unwrap() == bytes, "{scheme}");
        assert!(object.report().requests > 10, "{:?}", object.report());
        // Another file under the same name.
        std::fs::write(folder.path("www/next"), random(3_000_017, 2)).unwrap();
        std::fs::rename(folder.path("www/next"), folder.path("www/data.bin")).unwrap();
        let error = read_all(&machine, &object).unwrap_err();
        assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("changed since"), "{error}");
        assert!(!format!("{error} {error:?}").contains("hidden"), "{error}");
        std::fs::write(folder.path("www/data.bin"), &bytes).unwrap();
        let missing = address.replace("data.bin", "none");
        assert_eq!(client.open(&missing).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(client.create(&address, CreateOptions::default()).unwrap_err().kind(), ErrorKind::Unsupported);
    }
}

#[test]
fn odd_web_servers_are_read_or_refused_by_name() {
    let (folder, machine) = (folder(), machine());
    let bytes = random(300_000, 3);
    let server = WebServer::start(folder.at(), None).unwrap();
    let client = ObjectClient::with_settings(quick().retries(1), Vec::new()).unwrap();
    let address = |name: &str| format!("http://127.0.0.1:{}/{name}", server.address().port());
    // As an address that is signed for GET alone; and a name of a file that is no ASCII.
    for name in ["no-head", "umlaut", "no-head-umlaut"] {
        std::fs::write(folder.path(name), &bytes).unwrap();
        let object = client.open(&address(name)).unwrap();
        assert!(object.len() == bytes.len() as u64 && read_all(&machine, &object).unwrap() == bytes, "{name}");
    }
    std::fs::write(folder.path("no-range"), &bytes).unwrap();
    let error = read_all(&machine, &client.open(&address("no-range")).unwrap()).unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("gives no ranges"), "{error}");
    // A range in chunks has no length of its own.
    let head = "Last-Modified: Thu, 26 Nov 2026 00:00:00 GMT\r\nETag: \"x\"\r\nConnection: close\r\n";
    let proxy = FaultProxy::start(server.address(), move |request| {
        let answer = match request.ranged {
            true => format!(
                "HTTP/1.1 206 Partial\r\n{head}Content-Range: bytes 0-4/5\r\nTransfer-Encoding: chunked\r\n\r\n\
                 3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
            ),
            false => format!("HTTP/1.1 200 OK\r\n{head}Content-Length: 5\r\n\r\n"),
        };
        ProxyFault::Answer(answer.into_bytes())
    });
    let proxy = proxy.unwrap();
    let chunked = client.open(&format!("http://{}/x", proxy.address())).unwrap();
    assert_eq!(read_all(&machine, &chunked).unwrap(), b"abcde");
    std::fs::write(folder.path("zero-head"), b"page").unwrap();
    let error = client.open(&address("zero-head")).unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("no bytes"), "{error}");
    std::fs::write(folder.path("zero-head"), b"").unwrap();
    assert_eq!(client.open(&address("zero-head")).unwrap().len(), 0);
    let named = client.open(&address("x").replace("127.0.0.1", "user:pass@127.0.0.1")).unwrap_err();
    assert!(named.kind() == ErrorKind::InvalidInput && !named.to_string().contains("pass@"), "{named}");
}

#[test]
fn a_server_that_nobody_vouches_for_is_refused_at_once() {
    let folder = folder();
    let (ours, other) = (ServerCertificate::new(&["localhost"]).unwrap(), ServerCertificate::new(&["else"]).unwrap());
    std::fs::write(folder.path("authority.pem"), ours.authority()).unwrap();
    std::fs::write(folder.path("data.bin"), b"bytes").unwrap();
    let client = trusting(Vec::new(), &folder.path("authority.pem")).unwrap();
    // Of another authority; and of ours, but for another name.
    let stranger = WebServer::start(folder.at(), Some(&other)).unwrap();
    let named = WebServer::start(folder.at(), Some(&ours)).unwrap();
    for address in [
        format!("https://localhost:{}/data.bin", stranger.address().port()),
        format!("https://127.0.0.1:{}/data.bin", named.address().port()),
    ] {
        let error = client.open(&address).unwrap_err();
        assert!(error.kind() == ErrorKind::PermissionDenied && error.to_string().contains("certificate"), "{error}");
    }
    // One that has run out: neither the name nor the authority is to blame.
    let yesterday = SystemTime::now() - Duration::from_secs(86_400);
    let old = ServerCertificate::expired(&["localhost"], yesterday).unwrap();
    std::fs::write(folder.path("old.pem"), old.authority()).unwrap();
    let server = WebServer::start(folder.at(), Some(&old)).unwrap();
    let trusts = trusting(Vec::new(), &folder.path("old.pem")).unwrap();
    let error = trusts.open(&format!("https://localhost:{}/data.bin", server.address().port())).unwrap_err();
    assert!(error.kind() == ErrorKind::PermissionDenied && error.to_string().contains("expired"), "{error}");
    let advice = error.advice().unwrap();
    assert!(advice.contains("clock") && !advice.contains("AWS_CA_BUNDLE"), "{advice}");
    assert!(client.open(&format!("https://localhost:{}/data.bin", named.address().port())).is_ok());
    // Without a file of authorities, with an empty one, and with one that has none.
    assert_eq!(trusting(Vec::new(), &folder.path("none.pem")).unwrap_err().kind(), ErrorKind::Unavailable);
    for text in ["", "no certificate at all"] {
        std::fs::write(folder.path("odd.pem"), text).unwrap();
        let error = trusting(Vec::new(), &folder.path("odd.pem")).unwrap_err();
        assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("odd.pem"), "{error}");
    }
}

#[test]
fn a_port_without_tls_is_soon_given_up() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let speaks_http = TcpListener::bind("127.0.0.1:0").unwrap();
    for (listener, answer) in [(silent, ""), (speaks_http, "HTTP/1.1 400 Bad Request\r\n\r\n")] {
        let address = format!("https://{}/x", listener.local_addr().unwrap());
        let accepted = Arc::new(AtomicUsize::new(0));
        let counted = accepted.clone();
        std::thread::spawn(move || {
            let mut open = Vec::new();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                counted.fetch_add(1, Ordering::SeqCst);
                stream.write_all(answer.as_bytes()).unwrap();
                open.push(stream);
            }
        });
        let options = quick().idle_time(Duration::from_millis(1500)).retries(8);
        let client = ObjectClient::with_settings(options, Vec::new()).unwrap();
        let error = client.open(&address).unwrap_err();
        assert!(error.kind() == ErrorKind::Device && error.advice().unwrap().contains("one of TLS"), "{error}");
        // Two more attempts, and not eight: each of them may take ten seconds.
        datapipes_testkit::until("all were accepted", || accepted.load(Ordering::SeqCst) >= 3);
        assert_eq!(accepted.load(Ordering::SeqCst), 3, "{error}");
    }
}

#[test]
fn s3_by_tls_is_read_and_written() {
    let (folder, machine) = (folder(), machine());
    let certificate = ServerCertificate::new(&["127.0.0.1"]).unwrap();
    std::fs::write(folder.path("authority.pem"), certificate.authority()).unwrap();
    let server = S3Server::start_with(&folder.path("buckets"), Some(&certificate)).unwrap();
    server.make_bucket("box").unwrap();
    let settings = server.settings().into_iter().map(|(name, value)| (name, value.replace("http://", "https://")));
    let client = trusting(settings.collect(), &folder.path("authority.pem")).unwrap();
    let bytes = random((6 << 20) + 1, 7);
    write_all(&machine, &client.create("s3://box/k", CreateOptions::default()).unwrap(), &bytes, 2 << 20).unwrap();
    assert!(server.bytes("box", "k").unwrap() == bytes);
    let object = client.open("s3://box/k").unwrap();
    assert!(read_all(&machine, &object).unwrap() == bytes && object.report().read_verified);
}
