//! The conformance suite between objects of a real S3 server and memory, both ways, and the three
//! flavors of a pipe.
#![allow(clippy::unwrap_used)]

mod scene;

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

use datapipes_core::locator::Endpoint;
use datapipes_core::{Dram, Error, Locator, Result, Runtime, Span};
use datapipes_object::{CreateOptions, Object, ObjectClient};
use datapipes_testkit::conformance::{CASE_BYTES, CaseVerdict, PlaceContent, PlaceKind, TestPlace, run};
use datapipes_testkit::{bounded, poll_until, seed};
use rustix::event::PollFlags;
use scene::{Scene, machine, memory_of, random, read_all};

/// An object that is opened anew when it is filled.
#[derive(Clone)]
struct Renewed {
    scene: Arc<Scene>,
    client: ObjectClient,
    key: String,
    object: Arc<Mutex<Object>>,
    is_target: bool,
}

impl Renewed {
    fn new(scene: &Arc<Scene>, client: &ObjectClient, number: usize, is_target: bool) -> Result<Renewed> {
        let (key, client) = (format!("case{number}"), client.clone());
        let put = |bytes: &[u8]| scene.server.put("box", &key, bytes).map_err(|e| Error::io("put", e, "an object"));
        put(&[0; CASE_BYTES])?;
        let address = format!("s3://box/{key}");
        let object = match is_target {
            true => client.create(&address, CreateOptions::default())?,
            false => client.open(&address)?,
        };
        Ok(Renewed { scene: scene.clone(), client, key, object: Arc::new(Mutex::new(object)), is_target })
    }
}

impl Locator for Renewed {
    fn endpoint(&self) -> Endpoint {
        self.object.lock().unwrap().endpoint()
    }
}

impl PlaceContent for Renewed {
    fn bytes(&self) -> Result<Vec<u8>> {
        let object = self.object.lock().unwrap();
        if self.is_target && object.len() > 0 {
            // What counts is what the server has.
            object.publish(object.len())?;
        }
        self.scene.server.bytes("box", &self.key).map_err(|e| Error::io("read", e, "an object"))
    }

    fn fill(&self, bytes: &[u8]) -> Result<()> {
        let address = format!("s3://box/{}", self.key);
        let mut object = self.object.lock().unwrap();
        if self.is_target {
            *object = self.client.create(&address, CreateOptions::default())?;
            let memory = memory_of(bytes);
            let span = Span { source: 0, target: 0, len: bytes.len() as u64 };
            machine().connect(&memory, &*object)?.transfer(span)?;
        } else {
            self.scene.server.put("box", &self.key, bytes).map_err(|e| Error::io("put", e, "an object"))?;
            *object = self.client.open(&address)?;
        }
        Ok(())
    }
}

/// One kind of end: an object that is read, or one that is written.
fn kind(scene: &Arc<Scene>, client: &ObjectClient, is_target: bool) -> PlaceKind {
    let (scene, client, number) = (scene.clone(), client.clone(), std::cell::Cell::new(usize::from(is_target) * 1000));
    let name = if is_target { "object-written" } else { "object-read" };
    PlaceKind::new(name, move || {
        number.set(number.get() + 1);
        let place = Renewed::new(&scene, &client, number.get(), is_target)?;
        Ok(TestPlace::seen_by(place.clone(), place))
    })
}

#[test]
fn the_conformance_suite_passes() {
    let seed = seed(18);
    let outcomes = bounded("the conformance suite passes", move || {
        let machine = machine();
        let scene = Arc::new(Scene::new());
        let client = scene.client();
        let memory = || PlaceKind::of_memory(machine.topology());
        // As a source an object is one that is read, as a target one that is written.
        let mut outcomes = Vec::new();
        let mut kinds = memory();
        kinds.truncate(1);
        kinds.push(kind(&scene, &client, false).read_only());
        outcomes.extend(run(&machine, &kinds, seed));
        let mut kinds = memory();
        kinds.truncate(1);
        kinds.push(kind(&scene, &client, true));
        let of_written = run(&machine, &kinds, seed);
        // An object that is written has no bytes to read: refused, as the suite sees too.
        outcomes.extend(of_written.into_iter().filter(|outcome| outcome.source != "object-written"));
        outcomes
    });
    let mut passed = Vec::new();
    for outcome in &outcomes {
        match &outcome.verdict {
            CaseVerdict::Failed(_) => panic!("{outcome}"),
            CaseVerdict::Passed => passed.extend(outcome.way.iter().copied()),
            CaseVerdict::Skipped(_) | CaseVerdict::NotApplicable(_) => println!("{outcome}"),
        }
    }
    assert!(passed.contains(&"object-get") && passed.contains(&"object-put"), "{passed:?}");
}

#[test]
fn a_runtime_and_a_descriptor_move_objects_too() {
    let (scene, machine) = (Scene::new(), machine());
    let client = scene.client();
    let bytes = random(2_500_000, 9);
    scene.server.put("box", "k", &bytes).unwrap();
    let object = client.open("s3://box/k").unwrap();
    // Futures of a runtime.
    let runtime = Runtime::start(&machine).unwrap();
    let memory = Dram::allocate(bytes.len()).unwrap();
    let pipe = runtime.connect(&object, &memory).unwrap();
    let half = bytes.len() as u64 / 2;
    let first = pipe.transfer(Span { source: 0, target: 0, len: half }).unwrap();
    let second = pipe.transfer(Span { source: half, target: half, len: half }).unwrap();
    second.wait().unwrap();
    first.wait().unwrap();
    assert!(memory.lease().unwrap()[..] == bytes[..]);
    let target = client.create("s3://box/by-runtime", CreateOptions::default()).unwrap();
    let pipe = runtime.connect(&memory, &target).unwrap();
    pipe.transfer(Span { source: 0, target: 0, len: bytes.len() as u64 }).unwrap().wait().unwrap();
    target.publish(bytes.len() as u64).unwrap();
    assert!(read_all(&machine, &client.open("s3://box/by-runtime").unwrap()).unwrap() == bytes);
    // A file descriptor.
    let again = Dram::allocate(bytes.len()).unwrap();
    let pipe = runtime.connect_fd(&object, &again).unwrap();
    pipe.submit(Span { source: 0, target: 0, len: bytes.len() as u64 }).unwrap();
    poll_until(pipe.as_fd(), PollFlags::IN);
    pipe.complete().unwrap().unwrap().result.unwrap();
    assert!(again.lease().unwrap()[..] == bytes[..]);
}

#[test]
fn a_child_of_fork_is_refused() {
    let scene = Scene::new();
    let client = scene.client();
    scene.server.put("box", "k", b"x").unwrap();
    datapipes_testkit::child::in_child(&|| {
        datapipes_testkit::child::assert_forked_error(client.open("s3://box/k"));
    });
    assert!(client.open("s3://box/k").is_ok());
}
