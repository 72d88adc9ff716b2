//! Every call that the caller's code may make in the library's threads returns, or gives an error
//! that says why.
//!
//! This is a table of places (docs/runtime.md, "Code that is not ours") and calls. Every cell ends,
//! every transfer has an outcome, and the runtime keeps working or is gone.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

mod scene;

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};

use datapipes::graph::Graph;
use datapipes::locator::{Endpoint, PlaceFacts, Reader, WriteObserver};
use datapipes::runtime::{ConnectOptions, RuntimeOptions, RuntimePipe};
use datapipes::{ConnectFdOptions, Dram, ErrorKind, Handle, Locator, Persistence, Reach, Runtime, Span, Ssd};
use datapipes_testkit::PATIENCE;
use scene::{KIB, bounded, file_of, pattern};

const PIECE: u64 = 4 * KIB;
const PIECES: u64 = 64;

/// The calls that the caller's code makes.
const CALLS: [&str; 15] = [
    "drop the last runtime",
    "shut down the last runtime",
    "drain the runtime",
    "drain the pipe",
    "wait",
    "wait for itself",
    "await itself",
    "cancel itself",
    "transfer without room",
    "block_on",
    "graph",
    "descriptor",
    "join a thread",
    "drop the pipes",
    "panic",
];

/// The places from which it makes them.
const PLACES: [&str; 8] = [
    "a callback",
    "a waker",
    "a keeper's destructor",
    "a reader",
    "a watch of a ring",
    "a watch of a mover that blocks",
    "a closure that computes",
    "a closure that names a span",
];

/// Places in the middle of a transfer, which cannot be waited for there and cannot end there.
const IN_THE_MIDDLE: [&str; 3] = ["a reader", "a watch of a ring", "a watch of a mover that blocks"];

/// A place that reads its bytes itself, and calls the hook once.
struct Hooked(Arc<World>);

impl Reader for Hooked {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> datapipes::Result<()> {
        self.0.hook();
        let bytes = &self.0.bytes[offset as usize..][..into.len()];
        into.copy_from_slice(bytes);
        Ok(())
    }
}

struct HookedPlace(Arc<World>);

impl Locator for HookedPlace {
    fn endpoint(&self) -> Endpoint {
        let facts = PlaceFacts {
            kind: "hooked",
            name: "hooked".into(),
            reach: Reach::Reader,
            granularity: 1,
            alignment: 1,
            persistence: Persistence::Volatile,
            len: None,
            node: None,
            core: None,
        };
        let handle = datapipes::locator::EndpointHandle::Reader(Arc::new(Hooked(self.0.clone())));
        Endpoint { facts: Arc::new(facts), handle }
    }
}

struct Watches(Arc<World>);

impl WriteObserver for Watches {
    fn changing(&self, _: Range<u64>) {}

    fn changed(&self, _: Range<u64>) {
        self.0.hook();
    }
}

struct Wakes(Arc<World>);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.hook();
    }
}

struct Keeps(Arc<World>);

impl Drop for Keeps {
    fn drop(&mut self) {
        self.0.hook();
    }
}

/// All that the hook may use, each until it is taken.
struct World {
    call: &'static str,
    /// Whether a queue's mover calls the hook, which is then not within one known transfer.
    waits_for_none: bool,
    bytes: Vec<u8>,
    source: Dram,
    file: Ssd,
    /// The only reference to the runtime, except while a graph runs.
    runtime: Mutex<Option<Arc<Runtime>>>,
    /// The pipe of the transfer for which the hook is called.
    pipe: Mutex<Option<RuntimePipe>>,
    /// Another pipe that blocks, with a queue of one transfer.
    narrow: Mutex<Option<RuntimePipe>>,
    /// Another pipe.
    other: Mutex<Option<RuntimePipe>>,
    target: Dram,
    /// The handle of the transfer for which the hook is called.
    itself: Mutex<Option<Handle>>,
    is_armed: AtomicBool,
    ended: Mutex<Option<mpsc::Sender<Result<(), datapipes::Error>>>>,
}

fn span(i: u64) -> Span {
    Span { source: i * PIECE, target: i * PIECE, len: PIECE }
}

impl World {
    fn new(place: &str, call: &'static str) -> (Arc<World>, mpsc::Receiver<Result<(), datapipes::Error>>) {
        let machine = datapipes::discover();
        let mut config = RuntimeOptions::new(&machine);
        // Holding up one thread holds up all transfers.
        (config.copiers, config.blocking) = (1, 1);
        let runtime = Arc::new(Runtime::start_with(&machine, config).unwrap());
        let bytes = pattern(PIECES * PIECE);
        let (file, target) = (file_of(&bytes), Dram::allocate(bytes.len()).unwrap());
        let source = scene::memory_of(&bytes);
        let mut blocks = ConnectOptions::default();
        blocks.constraints.only = vec!["pread-cached".into()];
        let other = runtime.connect_with(&file, &target, &blocks).unwrap();
        blocks.queue = Some(1);
        let narrow = runtime.connect_with(&file, &target, &blocks).unwrap();
        let (sender, ended) = mpsc::channel();
        let world = World {
            call,
            waits_for_none: place.starts_with("a watch"),
            bytes,
            source,
            file,
            runtime: Mutex::new(Some(runtime)),
            pipe: Mutex::default(),
            narrow: Mutex::new(Some(narrow)),
            other: Mutex::new(Some(other)),
            target,
            itself: Mutex::default(),
            is_armed: AtomicBool::new(true),
            ended: Mutex::new(Some(sender)),
        };
        (Arc::new(world), ended)
    }

    fn runtime(&self) -> Arc<Runtime> {
        self.runtime.lock().unwrap().clone().unwrap()
    }

    /// The caller's code: once, it makes its call, and reports that the call returned.
    fn hook(&self) {
        if self.is_armed.swap(false, Ordering::SeqCst) {
            // The thread that started the transfer stores the handle a moment later.
            let result = self.call();
            let sender = self.ended.lock().unwrap().take().unwrap();
            sender.send(result).unwrap();
            assert_ne!(self.call, "panic", "the caller's code");
        }
    }

    fn other(&self) -> RuntimePipe {
        self.other.lock().unwrap().clone().unwrap()
    }

    fn call(&self) -> Result<(), datapipes::Error> {
        match self.call {
            "drop the last runtime" => drop(self.runtime.lock().unwrap().take()),
            "shut down the last runtime" => {
                let last = self.runtime.lock().unwrap().take().map(Arc::try_unwrap);
                if let Some(Ok(runtime)) = last {
                    runtime.shutdown();
                }
            }
            "drain the runtime" => {
                drop(self.other().transfer(span(40))?);
                self.runtime().drain();
                assert!(self.waits_for_none || self.other().under_way() == 0, "not drained");
            }
            "drain the pipe" => {
                let pipe = self.pipe.lock().unwrap().clone();
                pipe.iter().for_each(RuntimePipe::drain);
                drop(self.other().transfer(span(40))?);
                self.other().drain();
                assert!(self.waits_for_none || self.other().under_way() == 0, "not drained");
            }
            "wait" => self.other().transfer(span(40))?.wait()?,
            "wait for itself" => {
                if let Some(handle) = self.itself() {
                    handle.wait()?;
                }
            }
            "await itself" => {
                if let Some(handle) = self.itself() {
                    self.runtime().block_on(handle)?;
                }
            }
            "cancel itself" => {
                if let Some(handle) = self.itself() {
                    handle.cancel().map(drop)?;
                }
            }
            "transfer without room" => {
                let narrow = self.narrow.lock().unwrap().clone().unwrap();
                let pipe = self.pipe.lock().unwrap().clone().unwrap();
                (0..4).try_for_each(|n| narrow.transfer(span(40 + n)).map(drop))?;
                narrow.drain();
                (0..4).try_for_each(|n| pipe.transfer(span(50 + n)).map(drop))?;
            }
            "block_on" => {
                let (runtime, other) = (self.runtime(), self.other());
                runtime.block_on(async { other.transfer(span(40))?.await })?;
            }
            "graph" => {
                let (runtime, other) = (self.runtime(), self.other());
                let mut graph = Graph::new("within");
                let part = graph.pipe("move", &other, |item| Ok(span(40 + item.index())));
                let note = graph.compute("note", |_| Ok(()));
                graph.after(note, part)?;
                runtime.run(&graph, 4)?;
            }
            "descriptor" => {
                let ask = ConnectFdOptions::default().depth(4);
                let fd = self.runtime().connect_fd_with(&self.file, &self.target, &ask)?;
                fd.submit(span(40))?;
                fd.complete_wait()?.result?;
            }
            "join a thread" => {
                let other = self.other();
                let thread = datapipes::threads::spawn("other", move || other.transfer(span(40))?.wait())?;
                datapipes::threads::join(thread).unwrap()?;
            }
            "drop the pipes" => {
                drop((self.pipe.lock().unwrap().take(), self.narrow.lock().unwrap().take()));
                drop(self.other.lock().unwrap().take());
            }
            _ => {}
        }
        Ok(())
    }

    /// Takes the handle of the transfer for which the hook is called, if it was stored.
    fn itself(&self) -> Option<Handle> {
        self.itself.lock().unwrap().take()
    }
}

/// Starts the transfer for which the hook is called. Its outcome comes by the channel, if it is
/// reported.
fn start(place: &str, world: &Arc<World>) -> Option<mpsc::Receiver<Result<(), datapipes::Error>>> {
    let runtime = world.runtime();
    let one = || ConnectOptions::default().queue(1);
    let only = |primitive: &str| {
        let mut connect = one();
        connect.constraints.only = vec![primitive.into()];
        connect
    };
    let (sender, outcome) = mpsc::channel();
    let by = |source: &dyn Locator, target: &dyn Locator, connect: &ConnectOptions| {
        let pipe = runtime.connect_with(source, target, connect).unwrap();
        *world.pipe.lock().unwrap() = Some(pipe.clone());
        // The hook gets the handle only after the transfer was started.
        let mut itself = world.itself.lock().unwrap();
        let handle = pipe.transfer(span(0)).unwrap();
        if world.call.ends_with("itself") {
            *itself = Some(handle);
            drop(itself);
            // A thread must drive it.
            let runtime = runtime.clone();
            std::thread::spawn(move || runtime.drain());
            return None;
        }
        drop(itself);
        Some((pipe, handle))
    };
    let blocks = only("pread-cached");
    match place {
        "a callback" => {
            let (pipe, handle) = by(&world.file, &world.target, &blocks)?;
            let world = world.clone();
            handle.on_done(move |result| {
                world.hook();
                sender.send(result).unwrap();
            });
            drop(pipe);
            Some(outcome)
        }
        "a waker" => {
            let (_, mut handle) = by(&world.file, &world.target, &blocks)?;
            let waker = Waker::from(Arc::new(Wakes(world.clone())));
            if let Poll::Ready(result) = Pin::new(&mut handle).poll(&mut Context::from_waker(&waker)) {
                let hook = || world.hook();
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(hook));
                result.unwrap();
            } else {
                // The handle is leaked, because a dropped handle wakes no task.
                std::mem::forget(handle);
            }
            None
        }
        "a keeper's destructor" => {
            let mut bytes = vec![0; PIECE as usize];
            let (start, len) = (std::ptr::NonNull::new(bytes.as_mut_ptr()).unwrap(), bytes.len());
            let keeper = Box::new((Keeps(world.clone()), bytes));
            // SAFETY: the vector's bytes stay in place until the keeper, which owns it, is dropped;
            // nothing else uses it.
            let region = unsafe { datapipes_core::memory::Region::foreign(start, len, keeper) };
            let target = Dram::over(region.range(0, len).unwrap());
            drop(region);
            // The world does not have this pipe: the transfer holds the last reference to the
            // memory.
            let pipe = runtime.connect_with(&world.file, &target, &blocks).unwrap();
            let handle = pipe.transfer(span(0)).unwrap();
            *world.pipe.lock().unwrap() = world.other.lock().unwrap().clone();
            handle.on_done(move |result| sender.send(result).unwrap());
            drop((pipe, target));
            Some(outcome)
        }
        "a reader" => {
            let (pipe, handle) = by(&HookedPlace(world.clone()), &world.target, &one())?;
            handle.on_done(move |result| sender.send(result).unwrap());
            drop(pipe);
            Some(outcome)
        }
        "a watch of a ring" | "a watch of a mover that blocks" => {
            let watch: Arc<dyn WriteObserver> = Arc::new(Watches(world.clone()));
            let file = file_of(&world.bytes);
            file.write_observers().add(&watch);
            // It ends with its last reference, and must live whichever ends first.
            std::mem::forget(watch.clone());
            let ask = if place.ends_with("ring") { only("uring-cached") } else { only("pwrite-cached") };
            let (pipe, handle) = by(&world.source, &file, &ask)?;
            handle.on_done(move |result| {
                sender.send(result).unwrap();
            });
            drop(pipe);
            Some(outcome)
        }
        _ => {
            let other = world.other();
            let mut graph = Graph::new("with a hook");
            let part = graph.pipe("move", &other, |item| {
                if place.ends_with("span") {
                    world.hook();
                }
                Ok(span(item.index()))
            });
            let work = graph.compute("work", |_| {
                if place.ends_with("computes") {
                    world.hook();
                }
                Ok(())
            });
            graph.after(work, part).unwrap();
            *world.pipe.lock().unwrap() = Some(other.clone());
            let result = runtime.run(&graph, 4).map(drop);
            sender.send(result).unwrap();
            Some(outcome)
        }
    }
}

fn cell(place: &'static str, call: &'static str) {
    let (world, ended) = World::new(place, call);
    let outcome = start(place, &world);
    let result = match ended.recv_timeout(PATIENCE) {
        Ok(result) => result,
        Err(e) => panic!("{place}, {call}: it was not called: {e}"),
    };
    if let Err(e) = &result {
        println!("{place}, {call}: {e}");
        let may_fail = call.ends_with("itself") || call == "transfer without room";
        assert!(may_fail && matches!(e.kind(), ErrorKind::Busy | ErrorKind::InvalidInput), "{place}, {call}: {e}");
    }
    if let Some(outcome) = outcome {
        match outcome.recv_timeout(PATIENCE) {
            Ok(Ok(())) => {}
            Ok(Err(e)) => assert!(e.kind() == ErrorKind::Panicked && call == "panic", "{place}, {call}: {e}"),
            // The callback panicked before it reported.
            Err(e) => assert!(
                e == mpsc::RecvTimeoutError::Disconnected && place == "a callback" && call == "panic",
                "{place}, {call}: {e}"
            ),
        }
    }
    let runtime = world.runtime.lock().unwrap().take();
    match runtime {
        Some(runtime) => {
            runtime.drain();
            assert_eq!(runtime.report().under_way, 0, "{place}, {call}");
            let again = runtime.connect(&world.file, &world.target).unwrap();
            again.transfer(span(1)).unwrap().wait().unwrap();
            drop(runtime);
        }
        // The runtime ends when it has carried out what was in flight.
        None => assert!(call.ends_with("last runtime")),
    }
    if place == "a reader" && call != "panic" {
        assert!(
            world.target.lease().unwrap()[..PIECE as usize] == world.bytes[..PIECE as usize],
            "{call}: other bytes"
        );
    }
}

#[test]
fn every_call_in_every_place_returns_or_says_why() {
    let mut hung = Vec::new();
    for place in PLACES {
        let is_possible = |call: &&&str| !call.ends_with("itself") || IN_THE_MIDDLE.contains(&place);
        for call in CALLS.iter().filter(is_possible) {
            let (sender, ended) = mpsc::channel();
            let thread = std::thread::spawn(move || {
                cell(place, call);
                sender.send(()).unwrap();
            });
            match ended.recv_timeout(PATIENCE) {
                Ok(()) => thread.join().unwrap(),
                Err(e) => {
                    println!("FAILED: {place}, {call}: {e}");
                    hung.push(format!("{place}, {call}: {e}"));
                }
            }
        }
    }
    assert!(hung.is_empty(), "{hung:#?}");
}

/// Two readers, each of which starts what the other's pipe has no room for, and drains everything.
#[test]
fn readers_that_wait_for_each_other_end() {
    struct Meets(Arc<std::sync::Barrier>, Arc<Mutex<Vec<RuntimePipe>>>, Arc<Runtime>, usize);
    impl Reader for Meets {
        fn read_at(&self, offset: u64, into: &mut [u8]) -> datapipes::Result<()> {
            if offset == 0 {
                self.0.wait();
                let others = self.1.lock().unwrap()[1 - self.3].clone();
                self.2.drain();
                let refused = others.transfer(span(1)).map(drop);
                assert!(refused.is_ok() || refused.is_err_and(|e| e.kind() == ErrorKind::Busy));
                others.drain();
                self.2.drain();
            }
            into.fill(7);
            Ok(())
        }
    }
    impl Locator for Meets {
        fn endpoint(&self) -> Endpoint {
            let reader = Meets(self.0.clone(), self.1.clone(), self.2.clone(), self.3);
            let (world, _ended) = World::new("a reader", "wait");
            let facts = HookedPlace(world).endpoint().facts;
            Endpoint { facts, handle: datapipes::locator::EndpointHandle::Reader(Arc::new(reader)) }
        }
    }
    scene::bounded("readers that wait for each other", || {
        let machine = datapipes::discover();
        let config = RuntimeOptions::new(&machine).blocking(2);
        let runtime = Arc::new(Runtime::start_with(&machine, config).unwrap());
        let (meet, pipes) = (Arc::new(std::sync::Barrier::new(2)), Arc::new(Mutex::new(Vec::new())));
        let targets = [0, 1].map(|_| Dram::allocate(2 * PIECE as usize).unwrap());
        for (n, target) in targets.iter().enumerate() {
            let place = Meets(meet.clone(), pipes.clone(), runtime.clone(), n);
            let one = ConnectOptions::default().queue(1);
            let pipe = runtime.connect_with(&place, target, &one).unwrap();
            pipes.lock().unwrap().push(pipe);
        }
        let both = pipes.lock().unwrap().clone();
        let handles: Vec<_> = both.iter().map(|pipe| pipe.transfer(span(0)).unwrap()).collect();
        handles.into_iter().for_each(|handle| handle.wait().unwrap());
        runtime.drain();
        assert_eq!(runtime.report().under_way, 0);
    });
}

#[test]
fn a_graph_run_within_a_callback_knows_what_it_is_within() {
    bounded("a graph within a callback", || {
        let machine = datapipes::discover();
        let (outer, inner) = (Runtime::start(&machine).unwrap(), Runtime::start(&machine).unwrap());
        let (source, target) = (Dram::allocate(4096).unwrap(), Dram::allocate(4096).unwrap());
        let pipe = outer.connect(&source, &target).unwrap();
        let outer = Arc::new(Mutex::new(Some(outer)));
        let (done, told) = std::sync::mpsc::channel();
        let last = outer.clone();
        pipe.transfer(Span { source: 0, target: 0, len: 4096 }).unwrap().on_done(move |result| {
            let called = AtomicU64::new(0);
            let mut graph = Graph::new("within");
            graph.compute("drains and drops", |_| {
                // It waits for transfers, but not for the callback that it runs in.
                let mut outer = last.lock().unwrap();
                if let Some(runtime) = &*outer {
                    runtime.drain();
                }
                if called.fetch_add(1, Ordering::SeqCst) == 2 {
                    drop(outer.take());
                }
                Ok(())
            });
            graph.threads(2);
            let report = inner.run(&graph, 4).map(|_| ());
            done.send((result.is_ok(), report.is_ok(), called.load(Ordering::SeqCst))).unwrap();
        });
        assert_eq!(told.recv_timeout(PATIENCE).unwrap(), (true, true, 4));
        assert!(outer.lock().unwrap().is_none());
    });
}
