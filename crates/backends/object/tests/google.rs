//! The same promises before a model of Google's server.
#![allow(clippy::unwrap_used)]

mod scene;

use datapipes_core::{Dram, ErrorKind, Span};
use datapipes_object::{CreateOptions, ObjectClient};
use datapipes_objectserver::{FaultProxy, GoogleModel, ProxyFault, ProxyRequest};
use datapipes_testkit::TempFolder;
use scene::{is_complete, is_part, machine, memory_of, quick, random, read_all, times, write_all};

/// A model with the bucket `box`.
struct Google {
    model: GoogleModel,
    client: ObjectClient,
    _folder: TempFolder,
}

impl Google {
    fn start() -> Google {
        let folder = TempFolder::under(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let model = GoogleModel::start(&folder.path("buckets")).unwrap();
        model.server().make_bucket("box").unwrap();
        let settings = GoogleModel::settings_at(model.server().address());
        let client = ObjectClient::with_settings(quick(), settings).unwrap();
        Google { model, client, _folder: folder }
    }

    fn behind(
        &self,
        choose: impl Fn(&ProxyRequest) -> ProxyFault + Send + Sync + 'static,
    ) -> (FaultProxy, ObjectClient) {
        let proxy = FaultProxy::start(self.model.server().address(), choose).unwrap();
        let client = ObjectClient::with_settings(quick(), GoogleModel::settings_at(proxy.address())).unwrap();
        (proxy, client)
    }
}

#[test]
fn objects_are_written_and_read_as_a_whole_and_by_their_checksums() {
    let google = Google::start();
    for (key, len) in [("empty", 0), ("one", 1), ("a/b", 3_000_017), ("parts", (12 << 20) + 4321)] {
        let (address, bytes) = (format!("gs://box/{key}"), random(len, 1));
        let object = google.client.create(&address, CreateOptions::default()).unwrap();
        write_all(&machine(), &object, &bytes, 5 << 20).unwrap();
        assert!(google.model.server().bytes("box", key).unwrap() == bytes, "{key}");
        let object = google.client.open(&address).unwrap();
        assert!(read_all(&machine(), &object).unwrap() == bytes, "{key}");
        assert!(len == 0 || object.report().read_verified, "{key}: {:?}", object.report());
    }
    let found = google.client.list("gs://box/*").unwrap();
    let names: Vec<&str> = found.iter().map(|found| found.address.key()).collect();
    assert_eq!(names, ["empty", "one", "parts"]);
    google.client.remove("gs://box/one").unwrap();
    assert!(!google.model.server().has("box", "one"));
    let error = google.client.open("gs://box/one").unwrap_err();
    assert!(error.kind() == ErrorKind::NotFound && error.to_string().contains("no object of this key"), "{error}");
    // The address says the bucket, whatever a variable says.
    let mut settings = GoogleModel::settings_at(google.model.server().address());
    settings.push(("GOOGLE_BUCKET".into(), "other".into()));
    let client = ObjectClient::with_settings(quick(), settings).unwrap();
    assert_eq!(client.open("gs://box/a/b").unwrap().len(), 3_000_017);
}

#[test]
fn an_object_that_changed_is_an_error_and_a_new_one_replaces_none() {
    let google = Google::start();
    for len in [1 << 20, 6 << 20] {
        let (mine, its) = (random(len, 3), random(len, 4));
        let write = |bytes: &[u8], options: CreateOptions| {
            write_all(&machine(), &google.client.create("gs://box/k", options).unwrap(), bytes, 5 << 20)
        };
        write(&mine, CreateOptions::default()).unwrap();
        let object = google.client.open("gs://box/k").unwrap();
        write(&its, CreateOptions::default()).unwrap();
        let error = read_all(&machine(), &object).unwrap_err();
        assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("changed since"), "{error}");
        // By the look, and by the condition.
        let looks = |request: &ProxyRequest| request.method == "HEAD";
        for blind in [0, 1] {
            let (_proxy, client) = google.behind(times(blind, ProxyFault::Refuse(404, "NoSuchKey".into()), looks));
            let object = client.create("gs://box/k", CreateOptions::default().only_new(true)).unwrap();
            let error = write_all(&machine(), &object, &mine, 5 << 20).unwrap_err();
            assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains("exists already"), "{error}");
            assert!(google.model.server().bytes("box", "k").unwrap() == its);
        }
        google.client.remove("gs://box/k").unwrap();
        write(&mine, CreateOptions::default().only_new(true)).unwrap();
        google.client.remove("gs://box/k").unwrap();
    }
}

#[test]
fn uploads_end_with_their_objects_and_faults_are_overcome() {
    let google = Google::start();
    let (machine, memory) = (machine(), Dram::allocate(11 << 20).unwrap());
    let object = google.client.create("gs://box/half", CreateOptions::default()).unwrap();
    let pipe = machine.connect(&memory, &object).unwrap();
    let started = pipe.start(Span { source: 0, target: 0, len: 11 << 20 }).unwrap();
    drop((object, pipe, started));
    assert_eq!(google.model.server().unfinished(), 0);
    assert!(!google.model.server().has("box", "half"));
    let bytes = random((12 << 20) + 99, 12);
    for (fault, picks) in [
        (ProxyFault::CutRequest, is_part as fn(&ProxyRequest) -> bool),
        (ProxyFault::LoseAnswer, is_part),
        (ProxyFault::Refuse(503, "ServiceUnavailable".into()), is_part),
        (ProxyFault::CutRequest, is_complete),
    ] {
        let (_proxy, client) = google.behind(times(2, fault.clone(), picks));
        let object = client.create("gs://box/faults", CreateOptions::default()).unwrap();
        write_all(&machine, &object, &bytes, 5 << 20).unwrap_or_else(|e| panic!("{fault:?}: {e}"));
        assert!(google.model.server().bytes("box", "faults").unwrap() == bytes, "{fault:?}");
    }
    // Damage on the way there is found by the checksum of the whole object.
    let (_proxy, client) = google.behind(times(1, ProxyFault::DamageRequest(77), is_part));
    let object = client.create("gs://box/damaged", CreateOptions::default()).unwrap();
    let error = write_all(&machine, &object, &bytes, 5 << 20).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("another CRC-32C"), "{error}");
    // And damage on the way back.
    let (_proxy, client) = google.behind(times(1, ProxyFault::DamageAnswer(77), |request| request.ranged));
    let object = client.open("gs://box/faults").unwrap();
    let memory = memory_of(&bytes);
    let pipe = machine.connect(&object, &memory).unwrap();
    let error = pipe.transfer(Span { source: 0, target: 0, len: bytes.len() as u64 }).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("CRC-32C"), "{error}");
}
