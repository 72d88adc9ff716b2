//! What a user drops ends its upload before the drop returns, whatever is under way.
#![allow(clippy::unwrap_used)]

mod scene;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use datapipes_core::{Dram, Pipe, Span};
use datapipes_object::{CreateOptions, Object, ObjectClient};
use datapipes_objectserver::{FaultProxy, ProxyFault, ProxyRequest};
use datapipes_testkit::{output_of, until};
use scene::{Scene, machine, quick};

const LEN: usize = 11 << 20;
/// In the environment of a process that drops an object and ends: the server's settings.
const SETTINGS: &str = "DATAPIPES_TEST_DROPPED";

/// A server behind a proxy, and how many of the requests came that the test looks for.
struct Slow {
    scene: Scene,
    seen: Arc<AtomicU64>,
    proxy: FaultProxy,
    client: ObjectClient,
}

impl Slow {
    /// A proxy that does this to the requests that are picked.
    fn new(fault: ProxyFault, picks: fn(&ProxyRequest) -> bool) -> Slow {
        let (scene, seen) = (Scene::new(), Arc::new(AtomicU64::new(0)));
        let its = seen.clone();
        let (proxy, client) = scene.behind(quick(), move |request| match picks(request) {
            true => {
                its.fetch_add(1, SeqCst);
                fault.clone()
            }
            false => ProxyFault::Pass,
        });
        Slow { scene, seen, proxy, client }
    }

    /// An object that is written, a pipe to it, and its memory.
    fn begin(&self) -> (Object, Pipe, Dram) {
        let object = self.client.create("s3://box/k", CreateOptions::default()).unwrap();
        let memory = Dram::allocate(LEN).unwrap();
        let pipe = machine().connect(&memory, &object).unwrap();
        (object, pipe, memory)
    }

    fn sees(&self, count: u64) {
        until("the requests are under way", || self.seen.load(SeqCst) >= count);
    }

    #[track_caller]
    fn has_nothing(&self) {
        assert_eq!(self.scene.server.unfinished(), 0);
        assert!(!self.scene.server.has("box", "k"));
    }
}

fn is_part(request: &ProxyRequest) -> bool {
    request.target.contains("partNumber=")
}

fn is_begin(request: &ProxyRequest) -> bool {
    request.method == "POST" && request.target.contains("uploads")
}

#[test]
fn uploads_of_others_are_ended_by_a_pattern() {
    let scene = Scene::new();
    let (machine, client, memory) = (machine(), scene.client(), Dram::allocate(LEN).unwrap());
    let begun = ["a/1", "a/2", "a/b/3", "c"].map(|key| {
        let object = client.create(&format!("s3://box/{key}"), CreateOptions::default()).unwrap();
        let whole = Span { source: 0, target: 0, len: LEN as u64 };
        machine.connect(&memory, &object).unwrap().transfer(whole).unwrap();
        object
    });
    assert_eq!(scene.server.unfinished(), 4);
    assert_eq!(client.end_uploads("s3://box/a/*").unwrap(), 2);
    assert_eq!((client.end_uploads("s3://box/a/*").unwrap(), scene.server.unfinished()), (0, 2));
    let outcomes = begun.each_ref().map(|object| object.publish(LEN as u64).is_ok());
    assert_eq!(outcomes, [false, false, true, true]);
    assert!(client.end_uploads("s3://box/a").is_err());
}

#[test]
fn parts_on_their_way_from_buffers_are_cut() {
    let slow = Slow::new(ProxyFault::Stall(0), is_part);
    let (object, pipe, _memory) = slow.begin();
    for at in (0..LEN as u64).step_by(1 << 20) {
        pipe.transfer(Span { source: at, target: at, len: 1 << 20 }).unwrap();
    }
    slow.sees(2);
    drop(object);
    slow.has_nothing();
    let error = pipe.transfer(Span { source: 0, target: 0, len: 1 }).unwrap_err();
    assert!(error.to_string().contains("was dropped"), "{error}");
}

#[test]
fn jobs_in_flight_end_with_an_error_and_free_their_memory() {
    let slow = Slow::new(ProxyFault::Stall(0), is_part);
    let (object, pipe, memory) = slow.begin();
    let whole = pipe.start(Span { source: 0, target: 0, len: LEN as u64 }).unwrap();
    slow.sees(2);
    drop(object);
    slow.has_nothing();
    let error = whole.wait().unwrap_err();
    assert!(error.to_string().contains("was dropped"), "{error}");
    memory.lease_mut().unwrap();
}

#[test]
fn an_upload_that_just_begins_is_waited_for() {
    let slow = Slow::new(ProxyFault::Slow(Duration::from_millis(300)), is_begin);
    let (object, pipe, _memory) = slow.begin();
    let whole = pipe.start(Span { source: 0, target: 0, len: LEN as u64 }).unwrap();
    slow.sees(1);
    drop(object);
    slow.has_nothing();
    whole.wait().unwrap_err();
}

#[test]
fn an_upload_that_cannot_begin_is_not_tried_again() {
    let slow = Slow::new(ProxyFault::Refuse(503, "SlowDown".into()), is_begin);
    let (object, pipe, _memory) = slow.begin();
    let whole = pipe.start(Span { source: 0, target: 0, len: LEN as u64 }).unwrap();
    slow.sees(1);
    drop(object);
    whole.wait().unwrap_err();
    slow.has_nothing();
}

#[test]
fn a_process_that_ends_right_after_the_drop_leaves_no_upload() {
    let slow = Slow::new(ProxyFault::Stall(0), is_part);
    let settings = slow.client_settings();
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", "drops_and_ends", "--ignored", "--nocapture"]).env(SETTINGS, settings);
    let output = output_of(&mut again).unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stdout));
    slow.has_nothing();
}

impl Slow {
    fn client_settings(&self) -> String {
        let settings = datapipes_objectserver::S3Server::settings_at(self.proxy.address());
        settings.into_iter().map(|(name, value)| format!("{name}={value}\n")).collect()
    }
}

#[test]
#[ignore = "run by a_process_that_ends_right_after_the_drop_leaves_no_upload"]
fn drops_and_ends() {
    let settings = std::env::var(SETTINGS).expect("the parent says where the server is");
    let settings = settings.lines().filter_map(|line| line.split_once('='));
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let client = ObjectClient::with_settings(quick(), settings).unwrap();
    let object = client.create("s3://box/k", CreateOptions::default()).unwrap();
    let memory = Dram::allocate(LEN).unwrap();
    let pipe = machine().connect(&memory, &object).unwrap();
    let whole = pipe.start(Span { source: 0, target: 0, len: LEN as u64 }).unwrap();
    // Both whole parts are on their way, and none of them gets an answer.
    until("the parts are sent", || object.report().sent_bytes >= 10 << 20);
    drop(object);
    std::mem::forget((whole, pipe, memory, client));
    std::process::exit(7);
}
