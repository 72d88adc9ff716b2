//! Objects of a real S3 server, read and written without faults.
#![allow(clippy::unwrap_used)]

mod scene;

use std::time::Duration;

use datapipes_core::{Dram, ErrorKind, Locator, Machine, Span};
use datapipes_object::{CreateOptions, ObjectClient, escaped_key};
use datapipes_objectserver::ProxyFault;
use scene::{Scene, machine, memory_of, quick, random, read_all, write_all};

#[test]
fn an_object_is_read_in_ranges_and_checked() {
    let (scene, machine) = (Scene::new(), machine());
    let client = scene.client();
    let bytes = random(3_000_017, 1);
    write_all(&machine, &client.create("s3://box/a/b", CreateOptions::default()).unwrap(), &bytes, 1 << 20).unwrap();
    let object = client.open("s3://box/a/b").unwrap();
    assert_eq!(object.len(), 3_000_017);
    assert!(read_all(&machine, &object).unwrap() == bytes);
    let report = object.report();
    assert!(report.read_verified && report.retries == 0 && report.requests == 1 + 12, "{report:?}");
    assert_eq!(report.received_bytes, 3_000_017);
    // All of it went over connections that are known.
    let by = &report.by_connection;
    let sums = by.iter().fold((0, 0), |sums, one| (sums.0 + one.requests, sums.1 + one.received_bytes));
    assert_eq!(sums, (report.requests, report.received_bytes), "{by:?}");
    assert!(by.iter().all(|one| one.addresses.is_some() && one.bytes_per_second() > 0.0), "{by:?}");
    // Connections are used again. One that is not free yet is not waited for, so how many there are
    // depends on the schedule.
    assert!((by.len() as u64) < report.requests, "{by:?}");
    // What the server has is a file.
    assert!(scene.server.bytes("box", "a/b").unwrap() == bytes);
}

#[test]
fn an_object_of_parts_appears_as_a_whole() {
    let (scene, machine) = (Scene::new(), machine());
    let client = scene.client();
    let bytes = random((12 << 20) + 4321, 2);
    let object = client.create("s3://box/large", CreateOptions::default()).unwrap();
    let memory = memory_of(&bytes);
    let pipe = machine.connect(&memory, &object).unwrap();
    // Whole parts from where they are, the others through buffers, not in order.
    let part = 5 << 20;
    let spans = [(part, 2 * part), (0, 1000), (2 * part + 7, bytes.len()), (1000, part), (2 * part, 2 * part + 7)];
    for (from, to) in spans {
        let span = Span { source: from as u64, target: from as u64, len: (to - from) as u64 };
        pipe.transfer(span).unwrap();
        assert!(!scene.server.has("box", "large"));
    }
    assert_eq!(scene.server.unfinished(), 1);
    let published = object.publish(bytes.len() as u64).unwrap();
    assert!(published.checksum_verified && published.len == bytes.len() as u64, "{published:?}");
    assert_eq!(published.e_tag.as_deref().map(|tag| tag.ends_with("-3\"")), Some(true), "{published:?}");
    assert!(scene.server.bytes("box", "large").unwrap() == bytes);
    assert_eq!(scene.server.unfinished(), 0);
    let counters = pipe.report().hops[0].counters.clone();
    let report = object.report();
    assert_eq!(report.by_connection.iter().map(|one| one.sent_bytes).sum::<u64>(), report.sent_bytes, "{report:?}");
    assert!(report.sent_bytes >= bytes.len() as u64, "{report:?}");
    assert_eq!((counters.bytes, counters.bounced_bytes), (bytes.len() as u64, (bytes.len() - part) as u64));
    assert!(object.publish(bytes.len() as u64).unwrap() == published, "once more");
    assert_eq!(object.publish(1).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn a_server_that_is_far_gets_longer_ranges() {
    let (scene, machine) = (Scene::new(), machine());
    let bytes = random(80 << 20, 3);
    scene.server.put("box", "far", &bytes).unwrap();
    let options = || quick().read_bytes(None).connections(2);
    let requests = |client: &ObjectClient| {
        let object = client.open("s3://box/far").unwrap();
        assert!(read_all(&machine, &object).unwrap() == bytes);
        // One of them is the look when it was opened.
        object.report().requests - 1
    };
    let (_proxy, far) = scene.behind(options(), |_| ProxyFault::Late(Duration::from_millis(150)));
    // Each of two connections has two ranges, of at most 20 MiB and so of 16. Near servers are not
    // told apart here: on a busy machine each of them may be far.
    assert_eq!(requests(&far), 5);
    let set = scene.client_with(options().read_bytes(8u64 << 20));
    assert_eq!(requests(&set), 10, "what is set is taken");
}

#[test]
fn a_server_that_has_only_crc32c_is_checked_by_that() {
    let (scene, machine) = (Scene::new(), machine());
    scene.server.know_only_crc32c();
    let settings = || scene.server.settings().into_iter().chain([("AWS_CHECKSUM_ALGORITHM".into(), "crc32c".into())]);
    let client = ObjectClient::with_settings(quick(), settings()).unwrap();
    for len in [0, 100_000, (11 << 20) + 5] {
        let bytes = random(len, 8);
        let target = client.create("s3://box/k", CreateOptions::default()).unwrap();
        let memory = memory_of(&bytes);
        let pipe = machine.connect(&memory, &target).unwrap();
        if len > 0 {
            pipe.transfer(Span { source: 0, target: 0, len: len as u64 }).unwrap();
        }
        assert!(target.publish(len as u64).unwrap().checksum_verified, "{len}");
        assert!(target.report().write_checksum.starts_with("crc32c"));
        let object = client.open("s3://box/k").unwrap();
        assert!(read_all(&machine, &object).unwrap() == bytes && (len == 0 || object.report().read_verified), "{len}");
    }
    let (_proxy, damaging) = scene.behind(quick(), |request| match request.ranged {
        true => ProxyFault::DamageAnswer(1234),
        false => ProxyFault::Pass,
    });
    let error = read_all(&machine, &damaging.open("s3://box/k").unwrap()).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("CRC-32C"), "{error}");
}

#[test]
fn what_is_not_published_is_gone() {
    let (scene, machine) = (Scene::new(), machine());
    let client = scene.client();
    let memory = Dram::allocate(6 << 20).unwrap();
    for drops_pipe_first in [true, false] {
        let object = client.create("s3://box/half", CreateOptions::default()).unwrap();
        let pipe = machine.connect(&memory, &object).unwrap();
        pipe.transfer(Span { source: 0, target: 0, len: 6 << 20 }).unwrap();
        assert_eq!(scene.server.unfinished(), 1);
        if drops_pipe_first {
            drop((pipe, object));
        } else {
            drop((object, pipe));
        }
        assert_eq!(scene.server.unfinished(), 0);
        assert!(!scene.server.has("box", "half"));
    }
}

#[test]
fn what_was_not_written_is_not_published() {
    let (scene, machine) = (Scene::new(), machine());
    let client = scene.client();
    let memory = Dram::allocate(11 << 20).unwrap();
    let part = 5 << 20;
    let object = client.create("s3://box/gap", CreateOptions::default()).unwrap();
    let pipe = machine.connect(&memory, &object).unwrap();
    pipe.transfer(Span { source: 0, target: 0, len: part }).unwrap();
    pipe.transfer(Span { source: 0, target: 2 * part, len: 10 }).unwrap();
    let short = object.publish(2 * part).unwrap_err();
    assert_eq!(short.kind(), ErrorKind::InvalidInput);
    let missing = object.publish(2 * part + 10).unwrap_err();
    assert!(missing.kind() == ErrorKind::InvalidInput && missing.offset() == Some(part), "{missing}");
    assert!(!scene.server.has("box", "gap") && scene.server.unfinished() == 0);
    // Each byte once.
    let object = client.create("s3://box/twice", CreateOptions::default()).unwrap();
    let pipe = machine.connect(&memory, &object).unwrap();
    pipe.transfer(Span { source: 0, target: 0, len: part }).unwrap();
    let twice = pipe.transfer(Span { source: 0, target: 100, len: 10 }).unwrap_err();
    assert_eq!(twice.kind(), ErrorKind::InvalidInput, "{twice}");
}

#[test]
fn an_empty_object_and_one_with_a_small_gap() {
    let (scene, machine) = (Scene::new(), machine());
    let client = scene.client();
    let object = client.create("s3://box/empty", CreateOptions::default()).unwrap();
    object.publish(0).unwrap();
    assert_eq!(scene.server.bytes("box", "empty").unwrap(), b"");
    let empty = client.open("s3://box/empty").unwrap();
    assert!(read_all(&machine, &empty).unwrap().is_empty());

    let object = client.create("s3://box/small", CreateOptions::default()).unwrap();
    let memory = memory_of(b"abc");
    let pipe = machine.connect(&memory, &object).unwrap();
    pipe.transfer(Span { source: 0, target: 2, len: 3 }).unwrap();
    object.publish(5).unwrap();
    assert_eq!(scene.server.bytes("box", "small").unwrap(), b"\0\0abc");
    // It is still in memory, and can be written on.
    pipe.transfer(Span { source: 0, target: 0, len: 2 }).unwrap();
    object.publish(5).unwrap();
    assert_eq!(scene.server.bytes("box", "small").unwrap(), b"ababc");
}

#[test]
fn a_new_object_is_new() {
    let (scene, machine) = (Scene::new(), machine());
    let client = scene.client();
    scene.server.put("box", "there", b"old").unwrap();
    for bytes in [random(10, 3), random(6 << 20, 4)] {
        let object = client.create("s3://box/there", CreateOptions::default().only_new(true)).unwrap();
        let error = write_all(&machine, &object, &bytes, 6 << 20).unwrap_err();
        assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains("exists already"), "{error}");
        assert_eq!(scene.server.bytes("box", "there").unwrap(), b"old");
        assert_eq!(scene.server.unfinished(), 0);
        let key = format!("s3://box/new{}", bytes.len());
        write_all(&machine, &client.create(&key, CreateOptions::default().only_new(true)).unwrap(), &bytes, 6 << 20)
            .unwrap();
    }
}

#[test]
fn an_object_that_changes_is_an_error_and_no_mixture() {
    let (scene, machine) = (Scene::new(), machine());
    let client = scene.client();
    scene.server.put("box", "k", &random(1 << 20, 5)).unwrap();
    let object = client.open("s3://box/k").unwrap();
    let memory = Dram::allocate(1 << 20).unwrap();
    let pipe = machine.connect(&object, &memory).unwrap();
    pipe.transfer(Span { source: 0, target: 0, len: 1000 }).unwrap();
    scene.server.put("box", "k", &random(1 << 20, 6)).unwrap();
    let error = pipe.transfer(Span { source: 1000, target: 1000, len: 1000 }).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("changed since"), "{error}");
    assert_eq!(client.open("s3://box/k").unwrap().len(), 1 << 20);
}

#[test]
fn leftovers_of_ended_processes_are_removed() {
    let (scene, machine) = (Scene::new(), machine());
    let client = scene.client_with(quick().leftover_age(Duration::from_secs(600)));
    let memory = Dram::allocate(5 << 20).unwrap();
    // Two writers of one key, which both have begun; the first counts as alive.
    let first = client.create("s3://box/left", CreateOptions::default()).unwrap();
    machine.connect(&memory, &first).unwrap().transfer(Span { source: 0, target: 0, len: 5 << 20 }).unwrap();
    let other = client.create("s3://box/left2", CreateOptions::default()).unwrap();
    machine.connect(&memory, &other).unwrap().transfer(Span { source: 0, target: 0, len: 5 << 20 }).unwrap();
    let second = client.create("s3://box/left", CreateOptions::default()).unwrap();
    assert_eq!((second.leftovers().removed, second.leftovers().left), (0, 1), "{:?}", second.leftovers());
    scene.server.age_uploads(Duration::from_secs(601));
    let third = client.create("s3://box/left", CreateOptions::default()).unwrap();
    assert_eq!((third.leftovers().removed, third.leftovers().left), (1, 0), "{:?}", third.leftovers());
    // The upload to the other key is not touched.
    assert_eq!(scene.server.unfinished(), 1);
    let error = first.publish(5 << 20).unwrap_err();
    assert!(!scene.server.has("box", "left"), "{error}");
}

#[test]
fn a_listing_is_a_set_of_objects() {
    let scene = Scene::new();
    let client = scene.client();
    for key in ["in/part-2", "in/part-1", "in/other", "in/deep/part-3", "out"] {
        scene.server.put("box", key, key.as_bytes()).unwrap();
    }
    let names = |pattern: &str| -> Vec<String> {
        client.list(pattern).unwrap().into_iter().map(|found| format!("{} {}", found.address, found.len)).collect()
    };
    assert_eq!(names("s3://box/in/part-*"), ["s3://box/in/part-1 9", "s3://box/in/part-2 9"]);
    assert_eq!(names("s3://box/in/*").len(), 3, "{:?}", names("s3://box/in/*"));
    assert_eq!(names("s3://box/*"), ["s3://box/out 3"]);
    assert!(names("s3://box/none/*").is_empty());
    // What a list names can be opened: also a key that ends like a pattern.
    for key in ["stars/a*", "stars/b%2A"] {
        let address = format!("s3://box/{}", escaped_key(key));
        write_all(&machine(), &client.create(&address, CreateOptions::default()).unwrap(), key.as_bytes(), 64).unwrap();
        assert!(scene.server.bytes("box", key).unwrap() == key.as_bytes());
    }
    let stars: Vec<String> =
        client.list("s3://box/stars/*").unwrap().into_iter().map(|found| found.address.to_string()).collect();
    assert_eq!(stars, ["s3://box/stars/a%2A", "s3://box/stars/b%252A"]);
    for address in stars {
        let object = client.open(&address).unwrap();
        assert!(read_all(&machine(), &object).unwrap() == object.address().key().as_bytes(), "{address}");
    }
    client.remove("s3://box/stars/a%2A").unwrap();
    assert_eq!(names("s3://box/stars/*").len(), 1);
    // The text in the place of the `*` may be none, and odd characters of keys are characters.
    for key in ["in/part", "in/part?3#1"] {
        scene.server.put("box", key, key.as_bytes()).unwrap();
    }
    let parts = names("s3://box/in/part*");
    assert_eq!(parts.len(), 4, "{parts:?}");
    assert!(parts.contains(&"s3://box/in/part 7".to_owned()) && parts.contains(&"s3://box/in/part?3#1 11".to_owned()));
    assert_eq!(client.open("s3://box/in/part?3#1").unwrap().address().file_name(), Some("part?3#1"));
    scene.server.put("box", "out", b"out").unwrap();
    for wrong in ["s3://box/in", "s3://box/*/x*", "https://host/x*"] {
        assert_eq!(client.list(wrong).unwrap_err().kind(), ErrorKind::InvalidInput, "{wrong}");
    }
    let few = scene.client_with(quick().max_listed(2));
    assert_eq!(few.list("s3://box/in/*").unwrap_err().kind(), ErrorKind::OutOfRange);
    assert_eq!(client.open("s3://box/in/*").unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn what_is_removed_is_gone() {
    let scene = Scene::new();
    let client = scene.client();
    scene.server.put("box", "in/k", b"bytes").unwrap();
    client.remove("s3://box/in/k").unwrap();
    assert!(!scene.server.has("box", "in/k"));
    for wrong in ["s3://box/in/*", "https://host/x"] {
        assert_eq!(client.remove(wrong).unwrap_err().kind(), ErrorKind::Unsupported, "{wrong}");
    }
}

#[test]
fn what_is_not_there_or_not_allowed_says_so() {
    let scene = Scene::new();
    let client = scene.client();
    assert_eq!(client.open("s3://box/none").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(client.open("s3://nobox/none").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(client.create("https://host/x", CreateOptions::default()).unwrap_err().kind(), ErrorKind::Unsupported);
    let settings = scene.server.settings().into_iter().map(|(name, value)| match name.as_str() {
        "AWS_SECRET_ACCESS_KEY" => (name, "another-secret-of-nobody".to_owned()),
        _ => (name, value),
    });
    let stranger = ObjectClient::with_settings(quick(), settings).unwrap();
    scene.server.put("box", "k", b"x").unwrap();
    let error = stranger.open("s3://box/k").unwrap_err();
    assert!(error.kind() == ErrorKind::PermissionDenied, "{error}");
    assert!(
        !error.to_string().contains("another-secret") && !format!("{error:?}").contains("another-secret"),
        "{error}"
    );
}

#[test]
fn offers_say_what_an_object_is_for() {
    let (scene, machine) = (Scene::new(), machine());
    let client = scene.client();
    scene.server.put("box", "k", b"bytes").unwrap();
    let (read, written) =
        (client.open("s3://box/k").unwrap(), client.create("s3://box/w", CreateOptions::default()).unwrap());
    let memory = Dram::allocate(5).unwrap();
    let refused = |machine: &Machine, from: &dyn Locator, to: &dyn Locator| {
        let error = machine.connect(from, to).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        error.to_string()
    };
    assert!(refused(&machine, &memory, &read).contains("object-put: the object is open for reading only"));
    assert!(refused(&machine, &written, &memory).contains("object-get: the object is being written"));
    let route = machine.explain(&read, &memory, &Default::default()).unwrap().to_string();
    assert!(route.contains("object-get") && route.contains("pinned by its ETag"), "{route}");
    let between = machine.explain(&read, &written, &Default::default()).unwrap();
    assert_eq!(between.primitives(), ["object-get", "object-put"]);
}
