//! Answers of a server that were changed at random: each is a result that makes sense or an error,
//! and nothing panics, hangs or grows without bound.
#![allow(clippy::unwrap_used)]

mod scene;

use std::sync::{Arc, Mutex};

use datapipes_core::{Dram, Error, Span};
use datapipes_object::{CreateOptions, ObjectClient};
use datapipes_objectserver::{FaultProxy, ProxyFault, S3Server};
use datapipes_testkit::{Random, bounded, seed};
use scene::{Scene, machine, quick};

/// Changes per kind of answer. More are tried by other seeds.
const ROUNDS: usize = 150;

/// Pieces that readers of such answers trip over.
const ODD: [&str; 16] = [
    "18446744073709551616",
    "-1",
    "1e9",
    "<",
    ">",
    "</",
    "<!--",
    "<![CDATA[",
    "&amp;",
    "&#0;",
    "&x;",
    "\0",
    "\r\n\r\n",
    "\u{feff}",
    "\"",
    "9999999999999999999999999999",
];

/// A text with some of its bytes cut, doubled, replaced, or followed by something odd.
fn changed(random: &mut Random, text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len().max(1)).min(bytes.len());
        let len = random.below(40).min(bytes.len() - at);
        match random.below(5) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..at + len)),
            2 => {
                let again = bytes[at..at + len].to_vec();
                bytes.splice(at..at, again);
            }
            3 => bytes.splice(at..at, random.pick(&ODD).bytes()).for_each(drop),
            _ => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = random.next() as u8),
        }
    }
    bytes
}

fn with_head(body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// A server that gives whatever answer was put there.
struct Liar {
    answer: Arc<Mutex<Vec<u8>>>,
    _proxy: FaultProxy,
    client: ObjectClient,
}

impl Liar {
    /// It answers what is picked; the rest goes to the scene's server.
    fn before(scene: &Scene, picks: fn(&datapipes_objectserver::ProxyRequest) -> bool) -> Liar {
        let answer = Arc::new(Mutex::new(Vec::new()));
        let its = answer.clone();
        let (proxy, client) = scene.behind(quick().retries(0), move |request| match picks(request) {
            true => ProxyFault::Answer(its.lock().unwrap().clone()),
            false => ProxyFault::Pass,
        });
        Liar { answer, _proxy: proxy, client }
    }

    fn says(&self, answer: Vec<u8>) {
        *self.answer.lock().unwrap() = answer;
    }
}

/// An error that is about the answer: none of a task that panicked, and none with a secret.
#[track_caller]
fn sound(error: &Error, answer: &[u8], seed: u64) {
    let text = format!("{error} {error:?}");
    let shown = String::from_utf8_lossy(answer);
    assert!(!text.contains("ended early"), "{text}: {shown} (seed {seed})");
    assert!(!text.contains(S3Server::SECRET) && text.len() < 4000, "{text}: {shown} (seed {seed})");
    assert!(text.chars().all(|c| !c.is_control() || c == '\n'), "{text:?}: {shown} (seed {seed})");
}

#[test]
fn lists_that_were_changed_are_in_order_or_errors() {
    let seed = seed(181);
    bounded("lists that were changed are in order or errors", move || {
        let (scene, mut random) = (Scene::new(), Random(seed));
        let liar = Liar::before(&scene, |_| true);
        let object = |key: &str| {
            format!(
                "<Contents><Key>in/{key}</Key><Size>12</Size><LastModified>2026-11-26T00:00:00.000Z</LastModified>\
                 <ETag>&quot;x&quot;</ETag></Contents>"
            )
        };
        let list = format!(
            "<?xml version=\"1.0\"?><ListBucketResult><Name>box</Name><Prefix>in/</Prefix>{}{}{}\
             <CommonPrefixes><Prefix>in/f/</Prefix></CommonPrefixes><IsTruncated>false</IsTruncated></ListBucketResult>",
            object("a"),
            object("b"),
            object("c")
        );
        liar.says(with_head(list.as_bytes()));
        assert_eq!(liar.client.list("s3://box/in/*").unwrap().len(), 3);
        let mut fine = 0;
        for _ in 0..ROUNDS {
            let answer = with_head(&changed(&mut random, &list));
            liar.says(answer.clone());
            match liar.client.list("s3://box/in/*") {
                Err(error) => sound(&error, &answer, seed),
                Ok(found) => {
                    fine += 1;
                    let keys: Vec<&str> = found.iter().map(|found| found.address.key()).collect();
                    assert!(keys.iter().all(|key| key.starts_with("in/")), "{keys:?} (seed {seed})");
                    assert!(keys.is_sorted_by(|a, b| a < b), "{keys:?} (seed {seed})");
                }
            }
        }
        assert!(fine < ROUNDS, "no change was an error (seed {seed})");
    });
}

#[test]
fn looks_and_ranges_that_were_changed_are_right_or_errors() {
    let seed = seed(182);
    bounded("looks and ranges that were changed are right or errors", move || {
        let (scene, mut random, machine) = (Scene::new(), Random(seed), machine());
        let bytes = scene::random(1000, 3);
        scene.server.put("box", "k", &bytes).unwrap();
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nETag: \"abc\"\r\n\
                    Last-Modified: Thu, 26 Nov 2026 00:00:00 GMT\r\nx-amz-checksum-crc64nvme: AAAAAAAAAAE=\r\n\
                    x-amz-version-id: 7\r\nConnection: close\r\n\r\n";
        let looks = Liar::before(&scene, |request| request.method == "HEAD");
        for _ in 0..ROUNDS {
            let answer = changed(&mut random, head);
            looks.says(answer.clone());
            match looks.client.open("s3://box/k") {
                Err(error) => sound(&error, &answer, seed),
                // Whatever it says of itself, no bytes of another version or length come.
                Ok(object) => {
                    assert!(object.len() < 1 << 63, "{object:?} (seed {seed})");
                    let memory = Dram::allocate(1000).unwrap();
                    let len = object.len().min(1000);
                    let pipe = machine.connect(&object, &memory).unwrap();
                    if let Err(error) = pipe.transfer(Span { source: 0, target: 0, len }) {
                        sound(&error, &answer, seed);
                    } else {
                        assert!(memory.lease().unwrap()[..len as usize] == bytes[..len as usize], "(seed {seed})");
                    }
                }
            }
        }
        let ranges = Liar::before(&scene, |request| request.ranged);
        let object = ranges.client.open("s3://box/k").unwrap();
        let memory = Dram::allocate(16).unwrap();
        let pipe = machine.connect(&object, &memory).unwrap();
        let answer = "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-15/1000\r\nContent-Length: 16\r\n\
                      ETag: \"abc\"\r\nLast-Modified: Thu, 26 Nov 2026 00:00:00 GMT\r\nConnection: close\r\n\r\n\
                      0123456789abcdef";
        for _ in 0..ROUNDS {
            let answer = changed(&mut random, answer);
            ranges.says(answer.clone());
            // The tag is another one than that of the object, so nothing of it may count as read.
            let error = pipe.transfer(Span { source: 0, target: 0, len: 16 }).expect_err("bytes of nobody");
            sound(&error, &answer, seed);
        }
    });
}

#[test]
fn lists_of_uploads_that_were_changed_end_no_upload_and_stop_no_writer() {
    let seed = seed(183);
    bounded("lists of uploads that were changed end no upload and stop no writer", move || {
        let (scene, mut random) = (Scene::new(), Random(seed));
        let liar = Liar::before(&scene, |request| request.method == "GET");
        let list = "<ListMultipartUploadsResult><Bucket>box</Bucket><Upload><Key>k</Key><UploadId>7</UploadId>\
                    <Initiated>2020-01-01T00:00:00.000Z</Initiated></Upload><IsTruncated>false</IsTruncated>\
                    </ListMultipartUploadsResult>";
        for _ in 0..ROUNDS {
            let answer = with_head(&changed(&mut random, list));
            liar.says(answer.clone());
            // The server has no such upload, so whatever is said of it, none is removed.
            let object = liar.client.create("s3://box/k", CreateOptions::default()).unwrap();
            let found = object.leftovers().clone();
            assert_eq!(found.removed, 0, "{found:?}: {} (seed {seed})", String::from_utf8_lossy(&answer));
        }
    });
}
