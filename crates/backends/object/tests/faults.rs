//! Faults between client and server: nothing is lost, nothing is half visible, the errors are
//! clear, and no secret is in any of them.
#![allow(clippy::unwrap_used)]

mod scene;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use datapipes_core::{ErrorKind, Result, Span};
use datapipes_object::{CreateOptions, ObjectClient};
use datapipes_objectserver::{ProxyFault, ProxyRequest, S3Server};
use datapipes_testkit::until;
use scene::{Scene, clear, is_complete, is_part, machine, memory_of, quick, random, read_all, times, write_all};

const SIZE: usize = 1_500_000;
/// Nothing comes for so long, and the request is made again.
const IDLE: Duration = Duration::from_secs(3);
/// Where nothing stands still.
const LONG: Duration = Duration::from_secs(70);

/// Reads an object through faults. Returns the bytes that should have come, what came, and how many
/// requests were made again.
fn read_through(
    idle: Duration,
    choose: impl Fn(&ProxyRequest) -> ProxyFault + Send + Sync + 'static,
) -> (Vec<u8>, Result<Vec<u8>>, u64) {
    let (scene, machine) = (Scene::new(), machine());
    let bytes = random(SIZE, 11);
    write_all(&machine, &scene.client().create("s3://box/k", CreateOptions::default()).unwrap(), &bytes, SIZE).unwrap();
    let (_proxy, client) = scene.behind(quick().idle_time(idle), choose);
    let object = match client.open("s3://box/k") {
        Ok(object) => object,
        Err(error) => return (bytes, Err(error), 0),
    };
    let came = read_all(&machine, &object);
    (bytes, came, object.report().retries)
}

/// The same fault for the first so many ranges.
fn first(count: u64, fault: ProxyFault) -> impl Fn(&ProxyRequest) -> ProxyFault + Send + Sync + 'static {
    let ranges = AtomicU64::new(0);
    move |request| match request.ranged && ranges.fetch_add(1, SeqCst) < count {
        true => fault.clone(),
        false => ProxyFault::Pass,
    }
}

#[test]
fn reads_survive_what_passes() {
    let faults = [
        ProxyFault::CutRequest,
        ProxyFault::LoseAnswer,
        ProxyFault::CutAnswer(0),
        ProxyFault::CutAnswer(100_001),
        ProxyFault::Refuse(503, "SlowDown".into()),
        ProxyFault::Refuse(500, "InternalError".into()),
        ProxyFault::Refuse(429, "TooMany".into()),
        ProxyFault::ShortenAnswer(70_001),
        ProxyFault::Stall(0),
        ProxyFault::Stall(50_000),
        ProxyFault::Slow(Duration::from_millis(50)),
    ];
    for fault in faults {
        // Only where an answer stands still is that to be found out soon.
        let idle = if matches!(fault, ProxyFault::Stall(_)) { IDLE } else { LONG };
        let (bytes, came, retries) = read_through(idle, first(3, fault.clone()));
        assert!(came.unwrap_or_else(|e| panic!("{fault:?}: {e}")) == bytes, "{fault:?}");
        // A busy machine may make more of a stall.
        let is_right = match &fault {
            ProxyFault::Slow(_) => retries == 0,
            ProxyFault::Stall(_) => retries >= 3,
            _ => retries == 3,
        };
        assert!(is_right, "{fault:?}: {retries}");
    }
}

#[test]
fn reads_that_never_succeed_end_with_a_clear_error() {
    let always =
        |fault: ProxyFault| move |request: &ProxyRequest| if request.ranged { fault.clone() } else { ProxyFault::Pass };
    let cases = [
        (ProxyFault::CutRequest, ErrorKind::Device, "the connection broke"),
        (ProxyFault::CutAnswer(10), ErrorKind::Device, "the answer broke off"),
        (ProxyFault::ShortenAnswer(5), ErrorKind::Device, "end"),
        (ProxyFault::Refuse(503, "SlowDown".into()), ErrorKind::Device, "503 SlowDown"),
        (ProxyFault::Refuse(403, "ExpiredToken".into()), ErrorKind::PermissionDenied, "the credentials are expired"),
        (ProxyFault::Refuse(404, "NoSuchKey".into()), ErrorKind::NotFound, "404 NoSuchKey"),
        (ProxyFault::LengthenAnswer(3), ErrorKind::System, "longer than what was asked for"),
    ];
    for (fault, kind, words) in cases {
        let (_, came, _) = read_through(LONG, always(fault.clone()));
        let error = came.expect_err(&format!("{fault:?}"));
        // What is longer than asked for is refused as soon as it is seen, by whichever check.
        let kind = if matches!(fault, ProxyFault::LengthenAnswer(_)) { error.kind() } else { kind };
        clear(&error, kind, words);
        assert!(error.offset().is_some(), "{error:?}");
    }
}

#[test]
fn damaged_bytes_are_found_by_the_checksum() {
    let (_, came, _) = read_through(LONG, first(1, ProxyFault::DamageAnswer(1234)));
    clear(&came.unwrap_err(), ErrorKind::Corrupt, "CRC-64");
}

#[test]
fn answers_that_make_no_sense_are_errors() {
    let answer = |head: &str, body: &str| format!("HTTP/1.1 {head}\r\nConnection: close\r\n\r\n{body}").into_bytes();
    let ranged = |bytes: Vec<u8>| {
        move |request: &ProxyRequest| match request.ranged {
            true => ProxyFault::Answer(bytes.clone()),
            false => ProxyFault::Pass,
        }
    };
    let odd = [
        answer("200 OK\r\nContent-Length: 3\r\nLast-Modified: Thu, 26 Nov 2026 00:00:00 GMT", "abc"),
        answer("206 Partial\r\nContent-Length: 3", "abc"),
        answer("206 Partial\r\nContent-Range: bytes 0-18446744073709551615/5\r\nContent-Length: 3", "abc"),
        answer("206 Partial\r\nContent-Range: bytes x\r\nContent-Length: 3", "abc"),
        answer("206 Partial\r\nContent-Range: bytes 5-2/1500000\r\nContent-Length: 3\r\nETag: \"x\"", "abc"),
        answer("301 Moved\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0", ""),
        b"no HTTP at all\r\n\r\n".to_vec(),
    ];
    for bytes in odd {
        let shown = String::from_utf8_lossy(&bytes).into_owned();
        let (_, came, _) = read_through(LONG, ranged(bytes));
        let error = came.expect_err(&shown);
        clear(&error, error.kind(), "");
    }
    // Of the look at it.
    let heads = [
        "200 OK",
        "200 OK\r\nContent-Length: 99999999999999999999999",
        "200 OK\r\nContent-Length: 18446744073709551615\r\nLast-Modified: Thu, 26 Nov 2026 00:00:00 GMT",
    ];
    for head in heads {
        let bytes = answer(head, "");
        let look = move |request: &ProxyRequest| match request.method.as_str() {
            "HEAD" => ProxyFault::Answer(bytes.clone()),
            _ => ProxyFault::Pass,
        };
        let (_, came, _) = read_through(LONG, look);
        assert!(came.is_err(), "{head}");
    }
}

/// Writes 11 MiB through faults. Returns whether the object is whole at the server, or not there.
fn write_through(
    choose: impl Fn(&ProxyRequest) -> ProxyFault + Send + Sync + 'static,
    len: usize,
) -> (Result<()>, Option<bool>, usize) {
    let (scene, machine) = (Scene::new(), machine());
    let bytes = random(len, 12);
    let (_proxy, client) = scene.behind(quick().idle_time(LONG), choose);
    let object = client.create("s3://box/k", CreateOptions::default()).unwrap();
    let written = write_all(&machine, &object, &bytes, 3 << 20);
    drop(object);
    let whole = scene.server.bytes("box", "k").ok().map(|there| there == bytes);
    (written, whole, scene.server.unfinished())
}

fn is_begin(request: &ProxyRequest) -> bool {
    request.method == "POST" && request.target.contains("uploads")
}

#[test]
fn writes_survive_what_passes() {
    let faults = [
        ProxyFault::CutRequest,
        ProxyFault::LoseAnswer,
        ProxyFault::Refuse(503, "SlowDown".into()),
        ProxyFault::Refuse(500, "InternalError".into()),
    ];
    for fault in faults {
        for picks in [is_part as fn(&ProxyRequest) -> bool, is_begin, is_complete] {
            let (written, whole, unfinished) = write_through(times(2, fault.clone(), picks), 11 << 20);
            written.unwrap_or_else(|e| panic!("{fault:?}: {e}"));
            assert_eq!(whole, Some(true), "{fault:?}");
            // A begin whose answer was lost leaves an upload that nobody knows; the next writer of
            // the key removes it.
            let lost = if fault == ProxyFault::LoseAnswer { 2 } else { 0 };
            assert!(unfinished <= lost, "{fault:?}: {unfinished}");
        }
        let whole_object = |request: &ProxyRequest| request.method == "PUT" && !is_part(request);
        let (written, whole, _) = write_through(times(2, fault.clone(), whole_object), 100_000);
        written.unwrap_or_else(|e| panic!("{fault:?}: {e}"));
        assert_eq!(whole, Some(true), "{fault:?}");
    }
}

#[test]
fn writes_that_never_succeed_leave_nothing() {
    let always = u64::MAX;
    let refused = |status: u16, code: &str| ProxyFault::Refuse(status, code.into());
    type Case = (ProxyFault, fn(&ProxyRequest) -> bool, ErrorKind, &'static str);
    let cases: [Case; 6] = [
        (ProxyFault::CutRequest, is_part, ErrorKind::Device, "the connection broke"),
        (refused(403, "ExpiredToken"), is_part, ErrorKind::PermissionDenied, "expired"),
        (refused(503, "SlowDown"), is_begin, ErrorKind::Device, "503"),
        (refused(403, "AccessDenied"), is_complete, ErrorKind::PermissionDenied, "AccessDenied"),
        (ProxyFault::CutRequest, is_complete, ErrorKind::Device, "may be published"),
        (ProxyFault::DamageRequest(70_000), is_part, ErrorKind::Corrupt, "BadDigest"),
    ];
    for (fault, picks, kind, words) in cases {
        let (written, whole, unfinished) = write_through(times(always, fault.clone(), picks), 11 << 20);
        clear(&written.expect_err(&format!("{fault:?}")), kind, words);
        assert_eq!((whole, unfinished), (None, 0), "{fault:?}");
    }
}

/// A gateway before the server, or the server itself, fails after the work was done.
#[test]
fn a_refusal_after_publishing_says_that_it_may_be_published() {
    let whole_object = |request: &ProxyRequest| request.method == "PUT" && !is_part(request);
    let after = |status, code: &str| ProxyFault::RefuseAfter(status, code.into());
    for fault in [after(504, "GatewayTimeout"), after(500, "InternalError")] {
        let (written, whole, _) = write_through(times(u64::MAX, fault, whole_object), 100_000);
        clear(&written.unwrap_err(), ErrorKind::Device, "may be published");
        assert_eq!(whole, Some(true));
    }
    // An answer that begins well, and says then that it is none.
    for (code, kind) in [("InternalError", ErrorKind::Device), ("AccessDenied", ErrorKind::PermissionDenied)] {
        let (written, whole, _) = write_through(times(u64::MAX, after(200, code), is_complete), 11 << 20);
        clear(&written.unwrap_err(), kind, "may be published");
        assert_eq!(whole, Some(true), "{code}");
    }
}

#[test]
fn an_answer_to_publishing_that_nobody_can_read() {
    // The next attempt tells that the upload is gone, and a look what came of it.
    for fault in [ProxyFault::DamageAnswer(60), ProxyFault::DamageAnswer(150), ProxyFault::ShortenAnswer(0)] {
        for count in [1, u64::MAX] {
            let (written, whole, unfinished) = write_through(times(count, fault.clone(), is_complete), 11 << 20);
            written.unwrap_or_else(|e| panic!("{fault:?}: {e}"));
            assert_eq!((whole, unfinished), (Some(true), 0), "{fault:?}");
        }
    }
    // A server that never says what it stored.
    let whole_object = |request: &ProxyRequest| request.method == "PUT" && !is_part(request);
    let mute = ProxyFault::Answer(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_vec());
    let (written, ..) = write_through(times(u64::MAX, mute, whole_object), 100_000);
    let error = written.unwrap_err();
    clear(&error, error.kind(), "may be published");
}

/// The first request that publishes is refused by a server that fails, later ones by one that does
/// not know the upload.
#[test]
fn an_upload_that_is_gone_after_a_failure_may_be_published() {
    let completes = AtomicU64::new(0);
    let faults = move |request: &ProxyRequest| match is_complete(request) {
        true if completes.fetch_add(1, SeqCst) == 0 => ProxyFault::Refuse(500, "InternalError".into()),
        true => ProxyFault::Refuse(404, "NoSuchUpload".into()),
        false => ProxyFault::Pass,
    };
    let (written, whole, _) = write_through(faults, 11 << 20);
    let error = written.unwrap_err();
    clear(&error, ErrorKind::NotFound, "may be published");
    assert!(whole.is_none() && !error.to_string().contains("it was published"), "{error}");
}

#[test]
fn a_conflict_with_another_request_says_nothing_of_what_is_there() {
    let conflict = ProxyFault::Refuse(409, "ConditionalRequestConflict".into());
    let (written, whole, _) = write_through(times(1, conflict.clone(), is_complete), 11 << 20);
    written.unwrap();
    assert_eq!(whole, Some(true));
    let (written, ..) = write_through(times(u64::MAX, conflict, is_complete), 11 << 20);
    let error = written.unwrap_err();
    clear(&error, ErrorKind::Busy, "another program writes this object");
    assert!(!error.to_string().contains("exists"), "{error}");
}

/// The refusal of a server that says 200 first is shown as one.
#[test]
fn an_error_in_the_place_of_an_object_that_was_put_is_named() {
    let whole_object = |request: &ProxyRequest| request.method == "PUT" && !is_part(request);
    let late = ProxyFault::RefuseAfter(200, "AccessDenied".into());
    let (written, ..) = write_through(times(u64::MAX, late, whole_object), 100_000);
    clear(&written.unwrap_err(), ErrorKind::PermissionDenied, "AccessDenied");
}

#[test]
fn a_client_that_is_stopped_publishes_by_no_further_request() {
    // Before the refusal has come, and in the pause of 3 to 6 seconds after it.
    for later in [Duration::ZERO, Duration::from_millis(500)] {
        let (scene, machine) = (Scene::new(), machine());
        let completes = Arc::new(AtomicU64::new(0));
        let counted = completes.clone();
        let faults = move |request: &ProxyRequest| match is_complete(request) {
            true => {
                counted.fetch_add(1, SeqCst);
                ProxyFault::Refuse(503, "SlowDown".into())
            }
            false => ProxyFault::Pass,
        };
        let (_proxy, client) = scene.behind(quick().retries(8).longest_pause(Duration::from_secs(600)), faults);
        let object = client.create("s3://box/k", CreateOptions::default()).unwrap();
        let error = std::thread::scope(|scope| {
            scope.spawn(|| {
                until("it was refused", || completes.load(SeqCst) > 0);
                std::thread::sleep(later);
                client.stop();
            });
            write_all(&machine, &object, &random(11 << 20, 1), 11 << 20).unwrap_err()
        });
        clear(&error, ErrorKind::Device, "may be published");
        assert_eq!(completes.load(SeqCst), 1);
    }
}

#[test]
fn a_stop_waits_for_the_answer_to_a_request_that_publishes() {
    // Of one request, and of one that completes parts.
    for len in [100, 11 << 20] {
        let (scene, machine) = (Scene::new(), machine());
        let (has_come, may_go) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let its = (has_come.clone(), may_go.clone());
        let holds = move |request: &ProxyRequest| {
            if is_complete(request) || (request.method == "PUT" && !is_part(request)) {
                its.0.store(true, SeqCst);
                until("it may go on", || its.1.load(SeqCst));
            }
            ProxyFault::Pass
        };
        let (_proxy, client) = scene.behind(quick(), holds);
        let object = client.create("s3://box/k", CreateOptions::default()).unwrap();
        let object = &object;
        std::thread::scope(|scope| {
            let written = scope.spawn(move || write_all(&machine, object, &random(len, 1), 3 << 20));
            until("it is published", || has_come.load(SeqCst));
            assert!(client.is_publishing());
            client.stop();
            assert!(client.is_publishing());
            may_go.store(true, SeqCst);
            // Whether it is the new object is not looked at any more.
            let _ = written.join().unwrap();
        });
        assert!(!client.is_publishing());
        assert_eq!(scene.server.bytes("box", "k").unwrap().len(), len);
    }
}

/// Parts that stay at a server cost money until somebody removes them.
#[test]
fn uploads_that_may_be_left_are_counted() {
    let is_end = |request: &ProxyRequest| request.method == "DELETE";
    let left = |count, fault: ProxyFault, at: fn(&ProxyRequest) -> bool, publishes: bool| {
        let (scene, machine) = (Scene::new(), machine());
        let (_proxy, client) = scene.behind(quick(), times(count, fault, at));
        let object = client.create("s3://box/k", CreateOptions::default()).unwrap();
        match publishes {
            true => write_all(&machine, &object, &random(11 << 20, 1), 3 << 20).unwrap(),
            false => {
                let pipe = machine.connect(&memory_of(&random(11 << 20, 1)), &object).unwrap();
                pipe.transfer(Span { source: 0, target: 0, len: 11 << 20 }).unwrap();
            }
        }
        drop(object);
        (client.unfinished_uploads(), scene.server.unfinished())
    };
    assert_eq!(left(0, ProxyFault::LoseAnswer, is_end, true), (0, 0));
    assert_eq!(left(0, ProxyFault::LoseAnswer, is_end, false), (0, 0));
    assert_eq!(left(u64::MAX, ProxyFault::Refuse(403, "AccessDenied".into()), is_end, false), (1, 1));
    // The upload of the lost answer stays, and the next one is published.
    assert_eq!(left(1, ProxyFault::LoseAnswer, is_begin, true), (1, 1));
    // A server that knows no such upload has none.
    assert_eq!(left(u64::MAX, ProxyFault::Refuse(404, "NoSuchUpload".into()), is_end, false).0, 0);
}

#[test]
fn a_stopped_client_looks_no_further_at_what_it_published() {
    for len in [100, 11 << 20] {
        let (scene, machine) = (Scene::new(), machine());
        let looks = Arc::new(AtomicU64::new(0));
        let counted = looks.clone();
        let stalls = move |request: &ProxyRequest| match request.method.as_str() {
            "HEAD" => {
                counted.fetch_add(1, SeqCst);
                ProxyFault::Stall(0)
            }
            _ => ProxyFault::Pass,
        };
        let (_proxy, client) = scene.behind(quick().idle_time(Duration::from_secs(600)), stalls);
        let object = client.create("s3://box/k", CreateOptions::default()).unwrap();
        let object = &object;
        let error = std::thread::scope(|scope| {
            let written = scope.spawn(move || write_all(&machine, object, &random(len, 1), 3 << 20));
            until("it is looked at", || looks.load(SeqCst) > 0);
            client.stop();
            until("it is looked at no more", || written.is_finished());
            written.join().unwrap().unwrap_err()
        });
        clear(&error, ErrorKind::Interrupted, "it was published");
        assert!(object.may_be_published());
        assert_eq!((looks.load(SeqCst), scene.server.bytes("box", "k").unwrap().len()), (1, len));
    }
}

/// Requests without an answer are of no connection, and counted.
#[test]
fn connections_add_up_to_the_object_whatever_breaks() {
    for fault in [ProxyFault::CutRequest, ProxyFault::LoseAnswer, ProxyFault::Refuse(503, "SlowDown".into())] {
        let (scene, machine) = (Scene::new(), machine());
        let (_proxy, client) = scene.behind(quick(), times(3, fault.clone(), is_part));
        let object = client.create("s3://box/k", CreateOptions::default()).unwrap();
        write_all(&machine, &object, &random(30 << 20, 1), 30 << 20).unwrap();
        let report = object.report();
        let sum = |of: fn(&datapipes_object::ConnectionReport) -> u64| report.by_connection.iter().map(of).sum::<u64>();
        assert_eq!(sum(|one| one.requests), report.requests, "{fault:?}");
        assert_eq!(sum(|one| one.sent_bytes), report.sent_bytes, "{fault:?}");
        assert_eq!(sum(|one| one.received_bytes), report.received_bytes, "{fault:?}");
    }
}

#[test]
fn nothing_may_be_published_by_requests_that_reached_nobody() {
    let (scene, machine) = (Scene::new(), machine());
    let (proxy, client) = scene.behind(quick(), |_| ProxyFault::Pass);
    let object = client.create("s3://box/k", CreateOptions::default()).unwrap();
    drop(proxy);
    let error = write_all(&machine, &object, b"bytes", 5).unwrap_err();
    clear(&error, ErrorKind::Device, "no connection");
    assert!(!error.to_string().contains("may be"), "{error}");
}

#[test]
fn what_was_published_and_cannot_be_looked_at_is_told_so() {
    for (status, code) in [(403, "AccessDenied"), (404, "NoSuchKey"), (500, "InternalError")] {
        let looks = move |request: &ProxyRequest| match request.method.as_str() {
            "HEAD" | "GET" if !request.target.contains("uploads") => ProxyFault::Refuse(status, code.into()),
            _ => ProxyFault::Pass,
        };
        for len in [100, 11 << 20] {
            let (written, whole, unfinished) = write_through(looks, len);
            let error = written.unwrap_err();
            clear(&error, error.kind(), "it was published");
            assert_eq!((whole, unfinished), (Some(true), 0), "{error}");
        }
    }
}

#[test]
fn a_client_that_is_stopped_waits_for_no_server() {
    let (scene, machine) = (Scene::new(), machine());
    scene.server.put("box", "k", &random(SIZE, 13)).unwrap();
    let stalls = |request: &ProxyRequest| match request.ranged || is_part(request) {
        true => ProxyFault::Stall(0),
        false => ProxyFault::Pass,
    };
    let (proxy, client) = scene.behind(quick().idle_time(Duration::from_secs(600)), stalls);
    let memory = datapipes_core::Dram::allocate(11 << 20).unwrap();
    let (read, written) =
        (client.open("s3://box/k").unwrap(), client.create("s3://box/w", CreateOptions::default()).unwrap());
    let span = datapipes_core::Span { source: 0, target: 0, len: SIZE as u64 };
    let target = datapipes_core::Dram::allocate(SIZE).unwrap();
    let reading = machine.connect(&read, &target).unwrap().start(span).unwrap();
    let whole = datapipes_core::Span { source: 0, target: 0, len: 11 << 20 };
    let writing = machine.connect(&memory, &written).unwrap().start(whole).unwrap();
    let before = proxy.requests();
    datapipes_testkit::until("requests are under way", || proxy.requests() >= before.max(5));
    assert!(!client.is_publishing());
    client.stop();
    for stopped in [reading, writing] {
        assert_eq!(stopped.wait().unwrap_err().kind(), ErrorKind::Interrupted);
    }
    assert_eq!(client.open("s3://box/k").unwrap_err().kind(), ErrorKind::Interrupted);
    assert_eq!(written.publish(11 << 20).unwrap_err().kind(), ErrorKind::Interrupted);
    assert!(!written.may_be_published());
    drop(written);
    assert_eq!(scene.server.unfinished(), 0);
}

#[test]
fn an_object_that_another_writer_replaces_at_once_is_noticed() {
    let scene = Arc::new(Scene::new());
    let its = scene.clone();
    // Between the request that publishes and the look at it.
    let (_proxy, client) = scene.behind(quick(), move |request| {
        if request.method == "HEAD" {
            its.server.put("box", "k", b"of another writer").unwrap();
        }
        ProxyFault::Pass
    });
    let object = client.create("s3://box/k", CreateOptions::default()).unwrap();
    let error = write_all(&machine(), &object, b"mine, of other length", 100).unwrap_err();
    clear(&error, ErrorKind::Corrupt, "is not what was published");
}

#[test]
fn a_server_that_is_not_there_is_an_error_soon() {
    let free = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let client = ObjectClient::with_settings(quick().retries(2), S3Server::settings_at(free)).unwrap();
    clear(&client.open("s3://box/k").unwrap_err(), ErrorKind::Device, "no connection");
}
