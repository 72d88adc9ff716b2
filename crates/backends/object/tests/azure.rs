//! The same promises before an emulator of Azure's Blob Storage, by its maker: `azurite`.
#![allow(clippy::unwrap_used)]

mod scene;

use std::net::SocketAddr;
use std::path::Path;

use datapipes_core::{Dram, Error, ErrorKind, Span};
use datapipes_object::{CreateOptions, ObjectClient};
use datapipes_objectserver::{AzuriteServer, FaultProxy, ProxyFault, ProxyRequest};
use datapipes_testkit::TempFolder;
use scene::{machine, memory_of, quick, random, read_all, times, write_all};

/// A server with the container `box`, and a client of it.
struct Azure {
    server: AzuriteServer,
    is_loose: bool,
    client: ObjectClient,
    _folder: TempFolder,
}

impl Azure {
    /// Nothing where it cannot be installed or run.
    fn start(test: &str, is_loose: bool) -> Option<Azure> {
        let cache = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let folder = TempFolder::under(cache).unwrap();
        let started = AzuriteServer::program(cache).and_then(|program| {
            let server = AzuriteServer::start(&program, &folder.path("data"), is_loose).map_err(|e| e.to_string())?;
            server.make_bucket("box").map_err(|e| e.to_string())?;
            Ok(server)
        });
        match started {
            Ok(server) => {
                let client = ObjectClient::with_settings(quick(), settings_at(server.address(), is_loose)).unwrap();
                Some(Azure { server, is_loose, client, _folder: folder })
            }
            Err(why) => {
                println!("SKIPPED: {test}: azurite: {why}");
                None
            }
        }
    }

    fn write(&self, key: &str, bytes: &[u8], options: CreateOptions) -> Result<(), Error> {
        write_all(&machine(), &self.client.create(&format!("az://box/{key}"), options)?, bytes, 5 << 20)
    }

    /// A client behind a proxy.
    fn behind(
        &self,
        choose: impl Fn(&ProxyRequest) -> ProxyFault + Send + Sync + 'static,
    ) -> (FaultProxy, ObjectClient) {
        let proxy = FaultProxy::start(self.server.address(), choose).unwrap();
        let client = ObjectClient::with_settings(quick(), settings_at(proxy.address(), self.is_loose)).unwrap();
        (proxy, client)
    }
}

/// A loose server takes checksums of requests, which are stated to the cloud itself.
fn settings_at(address: SocketAddr, is_loose: bool) -> Vec<(String, String)> {
    let sum = is_loose.then(|| ("AZURE_CHECKSUM_ALGORITHM".to_owned(), "crc64nvme".to_owned()));
    AzuriteServer::settings_at(address).into_iter().chain(sum).collect()
}

fn is_block(request: &ProxyRequest) -> bool {
    request.target.contains("comp=block&")
}

fn publishes(request: &ProxyRequest) -> bool {
    request.method == "PUT" && !is_block(request)
}

/// One test, because the server is installed and started once.
#[test]
fn azure_keeps_the_promises() {
    // Where checksums of requests are taken.
    let Some(azure) = Azure::start("Azure keeps the promises", true) else { return };
    whole_objects(&azure);
    only_new_objects(&azure);
    faults(&azure);
    stated_sums(&azure);
    drop(azure);
    let Some(azure) = Azure::start("Azure keeps the promises", false) else { return };
    whole_objects(&azure);
    only_new_objects(&azure);
    changes(&azure);
    two_writers(&azure);
    drops(&azure);
    lists_and_refusals(&azure);
    sums_of_answers(&azure);
    faults(&azure);
}

fn whole_objects(azure: &Azure) {
    for (key, len) in [("empty", 0), ("one", 1), ("a/b c%+", 3_000_017), ("parts", (12 << 20) + 4321)] {
        let bytes = random(len, 1);
        azure.write(key, &bytes, CreateOptions::default()).unwrap();
        let path = key.replace('%', "%25").replace(' ', "%20");
        assert!(azure.server.bytes("box", &path).unwrap() == bytes, "{key}");
        let object = azure.client.open(&format!("az://box/{key}")).unwrap();
        assert!(read_all(&machine(), &object).unwrap() == bytes, "{key}");
    }
    // In any order, and not there before it is published.
    let bytes = random(12 << 20, 2);
    let object = azure.client.create("az://box/large", CreateOptions::default()).unwrap();
    let memory = memory_of(&bytes);
    let pipe = machine().connect(&memory, &object).unwrap();
    for (from, to) in [(5 << 20, 10 << 20), (0, 1000), (10 << 20, 12 << 20), (1000, 5 << 20)] {
        pipe.transfer(Span { source: from, target: from, len: to - from }).unwrap();
        assert!(!azure.server.has("box", "large"));
    }
    object.publish(12 << 20).unwrap();
    assert!(azure.server.bytes("box", "large").unwrap() == bytes);
    // The address says the container, whatever a variable says.
    let mut settings = AzuriteServer::settings_at(azure.server.address());
    settings.push(("AZURE_CONTAINER_NAME".into(), "other".into()));
    let client = ObjectClient::with_settings(quick(), settings).unwrap();
    assert_eq!(client.open("az://box/large").unwrap().len(), 12 << 20);
}

/// The checksum of a request is stated, and signed: without it the signature is wrong.
fn stated_sums(azure: &Azure) {
    let (_proxy, client) = azure.behind(|request| match publishes(request) {
        true => ProxyFault::LeaveOut("x-ms-content-crc64"),
        false => ProxyFault::Pass,
    });
    let object = client.create("az://box/unsummed", CreateOptions::default()).unwrap();
    assert_eq!(object.report().write_checksum, "crc64nvme");
    // Short, so that all of it went before the server refuses.
    let error = write_all(&machine(), &object, &random(1000, 14), 1000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
}

fn only_new_objects(azure: &Azure) {
    for len in [10, 6 << 20] {
        let (key, bytes) = (format!("new{len}"), random(len, 5));
        azure.write(&key, &bytes, CreateOptions::default().only_new(true)).unwrap();
        // By the look; and by the condition, where both began before either was there.
        let error = azure.write(&key, &random(len, 6), CreateOptions::default().only_new(true)).unwrap_err();
        assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains("exists already"), "{error}");
        assert!(azure.server.bytes("box", &key).unwrap() == bytes);
        let looks = |request: &ProxyRequest| request.method == "HEAD";
        let (_proxy, client) = azure.behind(times(1, ProxyFault::Refuse(404, "BlobNotFound".into()), looks));
        let again = client.create(&format!("az://box/{key}"), CreateOptions::default().only_new(true)).unwrap();
        let error = write_all(&machine(), &again, &random(len, 7), 5 << 20).unwrap_err();
        assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains("exists already"), "{error}");
        assert!(azure.server.bytes("box", &key).unwrap() == bytes);
    }
}

fn changes(azure: &Azure) {
    for len in [1 << 20, 6 << 20] {
        azure.write("k", &random(len, 3), CreateOptions::default()).unwrap();
        let object = azure.client.open("az://box/k").unwrap();
        azure.write("k", &random(len, 4), CreateOptions::default()).unwrap();
        let error = read_all(&machine(), &object).unwrap_err();
        assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("changed since"), "{error}");
    }
}

/// Azure knows no uploads: blocks of all writers lie beside each other until one publishes.
fn two_writers(azure: &Azure) {
    let (machine, mine, its) = (machine(), random(11 << 20, 8), random(11 << 20, 9));
    let begin = |bytes: &[u8]| {
        let object = azure.client.create("az://box/both", CreateOptions::default()).unwrap();
        let memory = memory_of(bytes);
        machine.connect(&memory, &object).unwrap().transfer(Span { source: 0, target: 0, len: 11 << 20 }).unwrap();
        object
    };
    let (first, second) = (begin(&mine), begin(&its));
    first.publish(11 << 20).unwrap();
    // Its blocks are gone, or it replaces the first one as a whole.
    let published = second.publish(11 << 20);
    let expected = if published.is_ok() { &its } else { &mine };
    assert!(azure.server.bytes("box", "both").unwrap() == *expected, "{published:?}");
    if let Err(error) = published {
        assert!(error.to_string().contains("another program wrote this object"), "{error}");
    }
}

fn drops(azure: &Azure) {
    let (machine, memory) = (machine(), Dram::allocate(11 << 20).unwrap());
    let object = azure.client.create("az://box/half", CreateOptions::default()).unwrap();
    let pipe = machine.connect(&memory, &object).unwrap();
    let started = pipe.start(Span { source: 0, target: 0, len: 11 << 20 }).unwrap();
    drop((object, pipe, started));
    assert!(!azure.server.has("box", "half"));
    assert_eq!(azure.client.list("az://box/half*").unwrap().len(), 0);
    azure.write("half", b"bytes", CreateOptions::default()).unwrap();
    assert_eq!(azure.server.bytes("box", "half").unwrap(), b"bytes");
}

fn lists_and_refusals(azure: &Azure) {
    for (address, words) in
        [("az://box/none", "there is no object of this key"), ("az://no-box/none", "the bucket does not exist")]
    {
        let error = azure.client.open(address).unwrap_err();
        assert!(error.kind() == ErrorKind::NotFound && error.to_string().contains(words), "{error}");
    }
    for key in ["in/part-2", "in/part-1", "in/other", "in/deep/part-3"] {
        azure.write(key, b"bytes", CreateOptions::default()).unwrap();
    }
    let found = azure.client.list("az://box/in/part-*").unwrap();
    let names: Vec<String> = found.iter().map(|found| format!("{} {}", found.address, found.len)).collect();
    assert_eq!(names, ["az://box/in/part-1 5", "az://box/in/part-2 5"]);
    azure.client.remove("az://box/in/part-1").unwrap();
    assert_eq!(azure.client.list("az://box/in/part-*").unwrap().len(), 1);
    // By a signature in place of the key.
    let signed = ObjectClient::with_settings(quick(), azure.server.signed_settings()).unwrap();
    for len in [1000, 6 << 20] {
        let address = format!("az://box/signed{len}");
        let object = signed.create(&address, CreateOptions::default().only_new(true)).unwrap();
        write_all(&machine(), &object, &random(len, 13), 5 << 20).unwrap();
        assert!(read_all(&machine(), &signed.open(&address).unwrap()).unwrap() == random(len, 13));
        let error = signed.open("az://box/none").unwrap_err().to_string();
        assert!(!error.contains("sig=") && !error.contains("pYlYx5"), "{error}");
    }
    let mut settings = AzuriteServer::settings_at(azure.server.address());
    let key = "c2VjcmV0LW9mLW5vYm9keQ==";
    settings[0].1 = settings[0]
        .1
        .split(';')
        .map(|pair| if pair.starts_with("AccountKey") { format!("AccountKey={key};") } else { format!("{pair};") })
        .collect();
    let stranger = ObjectClient::with_settings(quick(), settings).unwrap();
    let error = stranger.open("az://box/one").unwrap_err();
    assert!(error.kind() == ErrorKind::PermissionDenied && !error.to_string().contains(key), "{error}");
}

/// Azure's answers state the CRC-64 of what came; the emulator's do not, so a proxy adds it.
fn sums_of_answers(azure: &Azure) {
    for (len, picks) in [(1000, publishes as fn(&ProxyRequest) -> bool), (11 << 20, is_block)] {
        let bytes = random(len, 10);
        let (_proxy, client) = azure.behind(move |request| match picks(request) {
            true => ProxyFault::StateSum(None),
            false => ProxyFault::Pass,
        });
        let object = client.create("az://box/summed", CreateOptions::default()).unwrap();
        write_all(&machine(), &object, &bytes, 5 << 20).unwrap();
        assert_eq!(object.report().retries, 0);
        // Damage on the way is found, and what was damaged is sent again.
        let (_proxy, client) = azure.behind(times(2, ProxyFault::StateSum(Some(77)), picks));
        let object = client.create("az://box/damaged", CreateOptions::default()).unwrap();
        write_all(&machine(), &object, &bytes, 5 << 20).unwrap();
        assert_eq!(object.report().retries, 2);
        assert!(azure.server.bytes("box", "damaged").unwrap() == bytes);
    }
    let (_proxy, client) = azure.behind(|request| match publishes(request) {
        true => ProxyFault::StateSum(Some(7)),
        false => ProxyFault::Pass,
    });
    let object = client.create("az://box/damaged", CreateOptions::default()).unwrap();
    let error = write_all(&machine(), &object, &random(1000, 11), 1000).unwrap_err();
    assert!(error.to_string().contains("checksum is not that of the bytes"), "{error}");
    assert!(error.to_string().contains("may be published"), "{error}");
}

fn faults(azure: &Azure) {
    let bytes = random((12 << 20) + 99, 12);
    for (fault, picks) in [
        (ProxyFault::CutRequest, is_block as fn(&ProxyRequest) -> bool),
        (ProxyFault::LoseAnswer, is_block),
        (ProxyFault::Refuse(503, "ServerBusy".into()), is_block),
        (ProxyFault::CutRequest, publishes),
        (ProxyFault::Refuse(500, "InternalError".into()), publishes),
    ] {
        let (_proxy, client) = azure.behind(times(2, fault.clone(), picks));
        let object = client.create("az://box/faults", CreateOptions::default()).unwrap();
        write_all(&machine(), &object, &bytes, 5 << 20).unwrap_or_else(|e| panic!("{fault:?}: {e}"));
        assert_eq!(object.report().retries, 2, "{fault:?}");
        assert!(azure.server.bytes("box", "faults").unwrap() == bytes, "{fault:?}");
        azure.client.remove("az://box/faults").unwrap();
    }
    // The answer to the request that publishes is lost: what is said does not deny the object.
    let (_proxy, client) = azure.behind(times(1, ProxyFault::LoseAnswer, publishes));
    let object = client.create("az://box/faults", CreateOptions::default()).unwrap();
    let published = write_all(&machine(), &object, &bytes, 5 << 20);
    assert!(published.as_ref().map_or_else(|e| e.to_string().contains("may be published"), |()| true), "{published:?}");
    assert!(azure.server.bytes("box", "faults").unwrap() == bytes);
    for fault in [ProxyFault::CutAnswer(1000), ProxyFault::LoseAnswer, ProxyFault::Refuse(503, "ServerBusy".into())] {
        let (_proxy, client) = azure.behind(times(3, fault.clone(), |request| request.ranged));
        let object = client.open("az://box/faults").unwrap();
        assert!(read_all(&machine(), &object).unwrap() == bytes, "{fault:?}");
    }
}
