//! Servers that say what is not so: lists that are cut or none, damaged bytes, conditions that are
//! ignored, objects that are not kept.
#![allow(clippy::unwrap_used)]

mod scene;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use datapipes_core::{Dram, ErrorKind, Span};
use datapipes_object::CreateOptions;
use datapipes_objectserver::{ProxyFault, ProxyRequest};
use scene::{Scene, clear, is_complete, is_part, machine, quick, random, read_all, times, write_all};

#[test]
fn a_list_that_does_not_end_or_lies_is_an_error() {
    let scene = Scene::new();
    let answer = |xml: &str| {
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{xml}", xml.len()).into_bytes()
    };
    let whole = |inner: &str| answer(&format!("<ListBucketResult><Name>box</Name>{inner}</ListBucketResult>"));
    let key = |key: &str| {
        format!(
            "<Contents><Key>{key}</Key><Size>1</Size><LastModified>2026-11-26T00:00:00.000Z</LastModified>\
             <ETag>\"x\"</ETag></Contents>"
        )
    };
    let page = |keys: &[&str], next: &str| {
        let contents: String = keys.iter().map(|name| key(name)).collect();
        whole(&format!("{contents}<IsTruncated>{}</IsTruncated>{next}", !next.is_empty()))
    };
    let more = "<NextContinuationToken>t</NextContinuationToken>";
    let lies = [
        page(&["in/b", "in/a"], ""),
        page(&["elsewhere"], ""),
        page(&["in/a"], more),
        page(&[], more),
        // It is not whole, and does not go on.
        page(&["in/a"], " "),
        // It says so in other XML, and some server may.
        whole(&format!("<s3:IsTruncated>true</s3:IsTruncated>{}", key("in/a"))),
        whole(&format!("<IsTruncated>tru&#101;</IsTruncated>{}", key("in/a"))),
        whole(&format!("<!--<IsTruncated>false</IsTruncated>--><IsTruncated>true</IsTruncated>{}", key("in/a"))),
        whole(&format!("<IsTruncated>false</IsTruncated><KeyCount>2</KeyCount>{}", key("in/a"))),
        // It says nothing, or is no list at all.
        whole(&key("in/a")),
        answer("<html><body>Log in</body></html>"),
        answer("<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>garbage"),
        answer("{}"),
        answer("<a><b"),
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\nConnection: close\r\n\r\n<a>".to_vec(),
    ];
    for lie in lies {
        let shown = String::from_utf8_lossy(&lie).into_owned();
        let (_proxy, client) = scene.behind(quick(), move |_| ProxyFault::Answer(lie.clone()));
        let error = client.list("s3://box/in/*").expect_err(&shown);
        clear(&error, error.kind(), "");
    }
}

#[test]
fn damage_that_a_reader_passed_over_stays_damage() {
    let (scene, machine) = (Scene::new(), machine());
    let bytes = random(300_000, 14);
    write_all(&machine, &scene.client().create("s3://box/k", CreateOptions::default()).unwrap(), &bytes, 300_000)
        .unwrap();
    let damages = Arc::new(AtomicU64::new(0));
    let its = damages.clone();
    let (_proxy, client) =
        scene.behind(quick().read_bytes(1 << 20), move |request| match request.ranged && its.load(SeqCst) > 0 {
            true => ProxyFault::DamageAnswer(77),
            false => ProxyFault::Pass,
        });
    let object = client.open("s3://box/k").unwrap();
    let memory = Dram::allocate(300_000).unwrap();
    let pipe = machine.connect(&object, &memory).unwrap();
    let read = |from: u64, to: u64| pipe.transfer(Span { source: from, target: from, len: to - from });
    // It was right once, and is read again.
    read(0, 300_000).unwrap();
    assert!(object.report().read_verified);
    damages.store(1, SeqCst);
    for _ in 0..2 {
        clear(&read(0, 300_000).unwrap_err(), ErrorKind::Corrupt, "CRC-64");
    }
    assert!(!object.report().read_verified);
    // In other ranges, too.
    clear(&read(0, 100_000).and_then(|()| read(100_000, 300_000)).unwrap_err(), ErrorKind::Corrupt, "CRC-64");
    damages.store(0, SeqCst);
    assert!(read_all(&machine, &client.open("s3://box/k").unwrap()).unwrap() == bytes);
}

#[test]
fn a_server_that_ignores_the_condition_keeps_what_is_there() {
    let (scene, machine) = (Scene::new(), machine());
    let publishes = |request: &ProxyRequest| is_complete(request) || request.method == "PUT" && !is_part(request);
    let ignores = move |request: &ProxyRequest| match publishes(request) {
        true => ProxyFault::LeaveOut("if-none-match"),
        false => ProxyFault::Pass,
    };
    let (_proxy, client) = scene.behind(quick(), ignores);
    for len in [1000, 6 << 20] {
        let (mine, its) = (random(len, 31), random(len, 32));
        let key = format!("s3://box/new{len}");
        let create = || client.create(&key, CreateOptions::default().only_new(true)).unwrap();
        // Both began before either was there.
        let (first, second) = (create(), create());
        write_all(&machine, &first, &mine, len).unwrap();
        let error = write_all(&machine, &second, &its, len).unwrap_err();
        clear(&error, ErrorKind::InvalidInput, "exists already");
        assert!(scene.server.bytes("box", &format!("new{len}")).unwrap() == mine);
        assert_eq!(scene.server.unfinished(), 0);
    }
    // Who may not look is not kept from publishing.
    let (_proxy, client) = scene.behind(quick(), |request| match request.method.as_str() {
        "HEAD" => ProxyFault::Refuse(403, "AccessDenied".into()),
        _ => ProxyFault::Pass,
    });
    let object = client.create("s3://box/dark", CreateOptions::default().only_new(true)).unwrap();
    write_all(&machine, &object, b"bytes", 5).unwrap();
    assert_eq!(scene.server.bytes("box", "dark").unwrap(), b"bytes");
}

#[test]
fn what_a_server_does_not_keep_and_where_a_part_failed_is_told_so() {
    let machine = machine();
    let scene = Scene::new();
    // The request is answered, and the server never sees it.
    let (_proxy, client) = scene.behind(quick(), |request| match request.method == "PUT" && !is_part(request) {
        true => ProxyFault::Answer(
            b"HTTP/1.1 200 OK\r\nETag: \"x\"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec(),
        ),
        false => ProxyFault::Pass,
    });
    let object = client.create("s3://box/k", CreateOptions::default()).unwrap();
    let error = write_all(&machine, &object, b"bytes", 5).unwrap_err();
    clear(&error, ErrorKind::NotFound, "the server does not have it");
    assert!(!error.to_string().contains("it is visible"), "{error}");
    // The last part is shorter than the others.
    let expired = times(u64::MAX, ProxyFault::Refuse(403, "ExpiredToken".into()), |request| {
        request.target.contains("partNumber=3")
    });
    let (_proxy, client) = scene.behind(quick(), expired);
    let object = client.create("s3://box/k", CreateOptions::default()).unwrap();
    let error = write_all(&machine, &object, &random((10 << 20) + 77, 12), 3 << 20).unwrap_err();
    clear(&error, ErrorKind::PermissionDenied, "ExpiredToken");
    assert_eq!(error.offset(), Some(10 << 20));
}

#[test]
fn an_upload_with_parts_on_later_pages_is_alive() {
    let (scene, machine) = (Scene::new(), machine());
    let client = scene.client();
    let object = client.create("s3://box/k", CreateOptions::default()).unwrap();
    let memory = Dram::allocate(5 << 20).unwrap();
    let span = Span { source: 0, target: 0, len: 5 << 20 };
    machine.connect(&memory, &object).unwrap().transfer(span).unwrap();
    scene.server.age_uploads(Duration::from_secs(601));
    let page = |time: &str, more: &str| {
        let xml = format!(
            "<ListPartsResult><Part><PartNumber>1</PartNumber><LastModified>{time}</LastModified></Part>{more}\
             </ListPartsResult>"
        );
        format!("HTTP/1.1 200 OK\r\nDate: Thu, 26 Nov 2026 02:00:00 GMT\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{xml}", xml.len())
            .into_bytes()
    };
    let is_list = |request: &ProxyRequest| request.method == "GET" && request.target.contains("uploadId=");
    let more =
        |marker: u32| format!("<IsTruncated>true</IsTruncated><NextPartNumberMarker>{marker}</NextPartNumberMarker>");
    let old = "2020-01-01T00:00:00.000Z";
    // The later page has a part of now; or the list does not go on.
    for (first, second) in [
        (page(old, &more(1)), page("2999-01-01T00:00:00.000Z", "")),
        (page(old, &more(0)), page(old, "")),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\n<html/>".to_vec(), Vec::new()),
    ] {
        let (_proxy, other) = scene.behind(quick(), move |request| match is_list(request) {
            true if request.target.contains("part-number-marker=1") => ProxyFault::Answer(second.clone()),
            true => ProxyFault::Answer(first.clone()),
            false => ProxyFault::Pass,
        });
        let found = other.create("s3://box/k", CreateOptions::default()).unwrap().leftovers().clone();
        assert_eq!((found.removed, scene.server.unfinished()), (0, 1), "{found:?}");
    }
}
