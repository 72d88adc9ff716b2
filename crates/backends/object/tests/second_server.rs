//! The same promises before a second S3 server, of other authors: `versitygw`.
#![allow(clippy::unwrap_used)]

mod scene;

use std::path::Path;

use datapipes_core::{Dram, ErrorKind, Span};
use datapipes_object::{CreateOptions, ObjectClient};
use datapipes_objectserver::GatewayServer;
use datapipes_testkit::TempFolder;
use scene::{machine, quick, random, read_all, write_all};

struct Gateway {
    server: GatewayServer,
    _folder: TempFolder,
}

impl Gateway {
    /// A server with the bucket `box`, or `None` where it cannot be built or run.
    fn start(test: &str) -> Option<Gateway> {
        let cache = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let folder = TempFolder::under(cache).unwrap();
        let started = GatewayServer::program(cache).and_then(|program| {
            let server = GatewayServer::start(&program, &folder.path("buckets")).map_err(|e| e.to_string())?;
            server.make_bucket("box").map_err(|e| e.to_string())?;
            Ok(server)
        });
        match started {
            Ok(server) => Some(Gateway { server, _folder: folder }),
            Err(why) => {
                println!("SKIPPED: {test}: versitygw: {why}");
                None
            }
        }
    }

    fn client(&self) -> ObjectClient {
        ObjectClient::with_settings(quick(), self.server.settings()).unwrap()
    }
}

/// One test, because the server is built and started once.
#[test]
fn a_second_server_keeps_the_promises() {
    let Some(gateway) = Gateway::start("a second server keeps the promises") else { return };
    let client = gateway.client();
    whole_objects(&gateway, &client);
    parts(&gateway, &client);
    changes_and_conditions(&gateway, &client);
    drops_and_leftovers(&gateway, &client);
    lists_and_refusals(&gateway, &client);
}

fn whole_objects(gateway: &Gateway, client: &ObjectClient) {
    let machine = machine();
    for (key, len) in [("empty", 0), ("one", 1), ("a/b", 3_000_017)] {
        let (address, bytes) = (format!("s3://box/{key}"), random(len, 1));
        write_all(&machine, &client.create(&address, CreateOptions::default()).unwrap(), &bytes, 1 << 20).unwrap();
        assert!(gateway.server.bytes("box", key).unwrap() == bytes, "{key}");
        let object = client.open(&address).unwrap();
        assert!(read_all(&machine, &object).unwrap() == bytes, "{key}");
        assert!(len == 0 || object.report().read_verified, "{key}: {:?}", object.report());
    }
}

fn parts(gateway: &Gateway, client: &ObjectClient) {
    let (machine, bytes) = (machine(), random((12 << 20) + 4321, 2));
    let object = client.create("s3://box/large", CreateOptions::default()).unwrap();
    let memory = scene::memory_of(&bytes);
    let pipe = machine.connect(&memory, &object).unwrap();
    for (from, to) in [(5 << 20, 10 << 20), (0, 1000), (10 << 20, bytes.len()), (1000, 5 << 20)] {
        pipe.transfer(Span { source: from as u64, target: from as u64, len: (to - from) as u64 }).unwrap();
        assert!(!gateway.server.has("box", "large"));
    }
    let published = object.publish(bytes.len() as u64).unwrap();
    assert!(published.checksum_verified && published.len == bytes.len() as u64, "{published:?}");
    let object = client.open("s3://box/large").unwrap();
    assert!(read_all(&machine, &object).unwrap() == bytes);
    assert!(object.report().read_verified, "{:?}", object.report());
}

fn changes_and_conditions(gateway: &Gateway, client: &ObjectClient) {
    let machine = machine();
    let write = |bytes: &[u8], options: CreateOptions| {
        write_all(&machine, &client.create("s3://box/k", options).unwrap(), bytes, 6 << 20)
    };
    write(&random(1 << 20, 3), CreateOptions::default()).unwrap();
    let object = client.open("s3://box/k").unwrap();
    write(&random(1 << 20, 4), CreateOptions::default()).unwrap();
    let error = read_all(&machine, &object).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("changed since"), "{error}");
    let there = gateway.server.bytes("box", "k").unwrap();
    for len in [10, 6 << 20] {
        let error = write(&random(len, 5), CreateOptions::default().only_new(true)).unwrap_err();
        assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains("exists already"), "{error}");
        assert!(gateway.server.bytes("box", "k").unwrap() == there);
    }
}

fn drops_and_leftovers(gateway: &Gateway, client: &ObjectClient) {
    let (machine, memory) = (machine(), Dram::allocate(11 << 20).unwrap());
    let begin = |key: &str| {
        let object = client.create(&format!("s3://box/{key}"), CreateOptions::default()).unwrap();
        let pipe = machine.connect(&memory, &object).unwrap();
        let started = pipe.start(Span { source: 0, target: 0, len: 11 << 20 }).unwrap();
        (object, pipe, started)
    };
    // Dropped while parts are on their way.
    let (object, pipe, started) = begin("half");
    drop((object, pipe, started));
    let again = client.create("s3://box/half", CreateOptions::default()).unwrap();
    assert_eq!((again.leftovers().removed, again.leftovers().left), (0, 0), "{:?}", again.leftovers());
    assert!(!gateway.server.has("box", "half"));
    // What is alive is left; what is old is removed.
    let (object, _pipe, started) = begin("left");
    started.wait().unwrap();
    let second = client.create("s3://box/left", CreateOptions::default()).unwrap();
    assert_eq!((second.leftovers().removed, second.leftovers().left), (0, 1), "{:?}", second.leftovers());
    let impatient = quick().leftover_age(std::time::Duration::ZERO);
    let impatient = ObjectClient::with_settings(impatient, gateway.server.settings()).unwrap();
    let third = impatient.create("s3://box/left", CreateOptions::default()).unwrap();
    assert_eq!((third.leftovers().removed, third.leftovers().left), (1, 0), "{:?}", third.leftovers());
    let error = object.publish(11 << 20).unwrap_err();
    assert!(!gateway.server.has("box", "left"), "{error}");
    // All of some keys at once, however young they are.
    let begun = ["all/a", "all/b", "all/deep/c"].map(|key| {
        let (object, pipe, started) = begin(key);
        started.wait().unwrap();
        (object, pipe)
    });
    assert_eq!(client.end_uploads("s3://box/all/*").unwrap(), 2);
    assert_eq!(client.end_uploads("s3://box/all/*").unwrap(), 0);
    let outcomes = begun.each_ref().map(|(object, _)| object.publish(11 << 20).is_ok());
    assert_eq!(outcomes, [false, false, true]);
}

fn lists_and_refusals(gateway: &Gateway, client: &ObjectClient) {
    for (address, words) in
        [("s3://box/none", "there is no object of this key"), ("s3://no-box/none", "the bucket does not exist")]
    {
        let error = client.open(address).unwrap_err();
        assert!(error.kind() == ErrorKind::NotFound && error.to_string().contains(words), "{error}");
    }
    for key in ["in/part-2", "in/part-1", "in/other", "in/deep/part-3"] {
        let address = format!("s3://box/{key}");
        write_all(&machine(), &client.create(&address, CreateOptions::default()).unwrap(), b"bytes", 5).unwrap();
    }
    let found = client.list("s3://box/in/part-*").unwrap();
    let names: Vec<String> = found.iter().map(|found| format!("{} {}", found.address, found.len)).collect();
    assert_eq!(names, ["s3://box/in/part-1 5", "s3://box/in/part-2 5"]);
    client.remove("s3://box/in/part-1").unwrap();
    assert_eq!(client.list("s3://box/in/part-*").unwrap().len(), 1);
    let settings = gateway.server.settings().into_iter().map(|(name, value)| match name.as_str() {
        "AWS_SECRET_ACCESS_KEY" => (name, "another-secret-of-nobody".to_owned()),
        _ => (name, value),
    });
    let stranger = ObjectClient::with_settings(quick(), settings).unwrap();
    let error = stranger.open("s3://box/a/b").unwrap_err();
    assert!(error.kind() == ErrorKind::PermissionDenied && !error.to_string().contains("another-secret"), "{error}");
}
