//! The caller's code in our threads panics, blocks, calls back, or forks. All others still get
//! their outcome, and the runtime's report says what panicked. The places are listed in
//! docs/runtime.md.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

mod scene;

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Wake, Waker};

use datapipes::graph::{BufferSet, Graph};
use datapipes::runtime::RuntimePipe;
use datapipes::{ConnectFdOptions, Dram, ErrorKind, Handle, Runtime, Span};
use datapipes_testkit::{PATIENCE, joined};
use scene::{KIB, MIB, ROUTES, Scene, block_on, bounded};

const PIECES: u64 = 64;

/// Returns the number of panics that a runtime reports, and the first one.
fn caught(runtime: &Runtime) -> (u64, String) {
    let report = runtime.report();
    (report.panics, report.first_panic.unwrap_or_default())
}

/// Runs `work`, which may hang, for each route, and checks that nothing is left behind.
fn on_every_route(what: &str, work: impl Fn(&Scene, &str, &RuntimePipe) + Send + Sync + 'static) {
    let work = Arc::new(work);
    for route in ROUTES {
        let work = work.clone();
        bounded(&format!("{what}, {route}"), move || {
            // There is one thread that copies and one that blocks: holding it up holds up all
            // transfers.
            let scene = Scene::with(PIECES * 128 * KIB, |config| (config.copiers, config.blocking) = (1, 1));
            let pipe = scene.pipe(route);
            work(&scene, route, &pipe);
            scene.runtime.drain();
            let report = scene.runtime.report();
            assert_eq!((report.under_way, pipe.under_way()), (0, 0), "{route}");
            assert!(scene.target.lease_mut().is_ok(), "{route}: a lease was left behind");
            // The pipe keeps working.
            pipe.transfer(scene.span(route, 0)).unwrap().wait().unwrap();
        });
    }
}

#[test]
fn a_callback_that_panics_takes_nobody_along() {
    on_every_route("a callback that panics", |scene, route, pipe| {
        let (sender, told) = mpsc::channel();
        for i in 0..PIECES {
            let sender = sender.clone();
            pipe.transfer(scene.span(route, i)).unwrap().on_done(move |result| {
                result.unwrap();
                assert_ne!(i % 10, 3, "callback {i} panics");
                sender.send(i).unwrap();
            });
        }
        drop(sender);
        let mut told: Vec<u64> = told.iter().collect();
        told.sort_unstable();
        assert_eq!(told, (0..PIECES).filter(|i| i % 10 != 3).collect::<Vec<_>>(), "{route}");
        scene.runtime.drain();
        let (panics, first) = caught(&scene.runtime);
        assert!(panics == 7 && first.contains("a callback panicked") && first.contains("panics"), "{panics} {first}");
        assert!(scene.has_arrived(route, PIECES));
    });
}

#[test]
fn a_callback_whose_values_panic_when_dropped_takes_nobody_along() {
    struct Bad;
    impl Drop for Bad {
        fn drop(&mut self) {
            panic!("a value of a callback");
        }
    }
    on_every_route("a callback with values that panic", |scene, route, pipe| {
        let (sender, told) = mpsc::channel();
        for i in 0..PIECES {
            let (sender, bad) = (sender.clone(), Bad);
            pipe.transfer(scene.span(route, i)).unwrap().on_done(move |result| {
                let _bad = bad;
                sender.send(result.is_ok()).unwrap();
            });
        }
        assert_eq!((0..PIECES).filter(|_| told.recv_timeout(PATIENCE).unwrap()).count() as u64, PIECES);
        scene.runtime.drain();
        assert_eq!(caught(&scene.runtime).0, PIECES);
    });
}

/// Returns a waker that panics when it is woken, cloned or dropped, according to `on`.
fn panicking_waker(on: &'static str) -> Waker {
    fn table(on: &'static str) -> &'static RawWakerVTable {
        fn nothing(_: *const ()) {}
        fn clone_quiet(data: *const ()) -> RawWaker {
            RawWaker::new(data, table("nothing"))
        }
        fn clone_to_wake(data: *const ()) -> RawWaker {
            RawWaker::new(data, table("woken"))
        }
        fn clone_to_drop(data: *const ()) -> RawWaker {
            RawWaker::new(data, table("dropped"))
        }
        fn clone_panics(_: *const ()) -> RawWaker {
            panic!("a waker that is cloned")
        }
        fn wake_panics(_: *const ()) {
            panic!("a waker that is woken")
        }
        fn drop_panics(_: *const ()) {
            panic!("a waker that is dropped")
        }
        static QUIET: RawWakerVTable = RawWakerVTable::new(clone_quiet, nothing, nothing, nothing);
        static CLONE: RawWakerVTable = RawWakerVTable::new(clone_panics, nothing, nothing, nothing);
        static TO_WAKE: RawWakerVTable = RawWakerVTable::new(clone_to_wake, nothing, nothing, nothing);
        static WAKE: RawWakerVTable = RawWakerVTable::new(clone_to_wake, wake_panics, wake_panics, nothing);
        static TO_DROP: RawWakerVTable = RawWakerVTable::new(clone_to_drop, nothing, nothing, nothing);
        static DROP: RawWakerVTable = RawWakerVTable::new(clone_to_drop, nothing, nothing, drop_panics);
        match on {
            "clone" => &CLONE,
            "wake" => &TO_WAKE,
            "woken" => &WAKE,
            "drop" => &TO_DROP,
            "dropped" => &DROP,
            _ => &QUIET,
        }
    }
    // SAFETY: no function of the tables uses the data.
    unsafe { Waker::from_raw(RawWaker::new(std::ptr::null(), table(on))) }
}

fn poll(handle: &mut Handle, waker: &Waker) -> Poll<datapipes::Result<()>> {
    Pin::new(handle).poll(&mut Context::from_waker(waker))
}

#[test]
fn a_waker_that_panics_takes_nobody_along() {
    for on in ["wake", "clone", "drop"] {
        on_every_route(&format!("a waker that panics: {on}"), move |scene, route, pipe| {
            let mut handles: Vec<_> = (0..PIECES).map(|i| pipe.transfer(scene.span(route, i)).unwrap()).collect();
            let waker = panicking_waker(on);
            for handle in handles.iter_mut().step_by(3) {
                // In the caller's own call it is the caller's own panic.
                let poll = || poll(handle, &waker).is_ready();
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(poll));
            }
            // Another waker replaces the first one, which is dropped.
            for handle in handles.iter_mut().step_by(6) {
                let poll = || poll(handle, &panicking_waker("nothing")).is_ready();
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(poll));
            }
            for (i, handle) in handles.into_iter().enumerate() {
                if i % 3 > 0 { block_on(handle).unwrap() } else { drop(handle) }
            }
            scene.runtime.drain();
            assert!(scene.has_arrived(route, PIECES));
        });
    }
}

/// Everything that a callback may call, by name.
const CALLS: [&str; 10] =
    ["wait", "try_transfer", "cancel", "drop", "drain", "room", "block_on", "graph", "descriptor", "connect"];

/// Calls back into the runtime.
fn call_back(call: &str, scene: &Scene, route: &str, pipe: &RuntimePipe, i: u64) {
    let span = scene.span(route, i);
    let start = || pipe.transfer(span).unwrap();
    match call {
        "wait" => start().wait().unwrap(),
        "try_transfer" => drop(pipe.try_transfer(span).unwrap()),
        "cancel" => _ = start().cancel().unwrap(),
        "drop" => drop(start()),
        "drain" => {
            drop(start());
            pipe.drain();
            scene.runtime.drain();
        }
        "room" => {
            let narrow = scene.pipe_with(route, datapipes::ConnectOptions::default().queue(1));
            (0..4).for_each(|n| drop(narrow.transfer(scene.span(route, i + n)).unwrap()));
            narrow.drain();
        }
        "block_on" => scene.runtime.block_on(async { start().await }).unwrap(),
        "graph" => {
            let mut graph = Graph::new("within a callback");
            let part = graph.pipe("move", pipe, |item| Ok(scene.span(route, i + item.index())));
            let note = graph.compute("note", |_| Ok(()));
            graph.after(note, part).unwrap();
            scene.runtime.run(&graph, 4).unwrap();
        }
        "descriptor" => {
            let ask = ConnectFdOptions::default().depth(4);
            let fd = scene.runtime.connect_fd_with(&scene.memory, &scene.target, &ask).unwrap();
            fd.submit(span).unwrap();
            fd.complete_wait().unwrap().result.unwrap();
        }
        _ => {
            let another = scene.pipe(route);
            another.transfer(span).unwrap().wait().unwrap();
            assert!(scene.runtime.report().resources.iter().any(|resource| !resource.name.is_empty()));
        }
    }
}

#[test]
fn a_callback_may_call_whatever_there_is() {
    for call in CALLS {
        on_every_route(&format!("a callback that calls {call}"), move |scene, route, pipe| {
            let (sender, told) = mpsc::channel();
            // Several transfers are done together: one that a callback waits for may be among those
            // that the same thread reports next.
            std::thread::scope(|scope| {
                let (scene, pipe) = (&scene, &pipe);
                // A callback outlives every borrow, so it gets the address of a scene that the
                // scope keeps alive.
                let context = Arc::new(Leaked(std::ptr::from_ref::<Scene>(scene).expose_provenance()));
                for i in 0..8 {
                    let (sender, pipe, context) = (sender.clone(), RuntimePipe::clone(pipe), context.clone());
                    let route = route.to_owned();
                    pipe.clone().transfer(scene.span(&route, i)).unwrap().on_done(move |result| {
                        result.unwrap();
                        call_back(call, context.scene(), &route, &pipe, 8 + 4 * i);
                        sender.send(()).unwrap();
                    });
                }
                scope.spawn(move || (0..8).for_each(|_| told.recv_timeout(PATIENCE).unwrap())).join().unwrap();
            });
            assert_eq!(caught(&scene.runtime), (0, String::new()), "{call} {route}");
        });
    }
}

/// The address of a scene that outlives the callbacks that use it.
struct Leaked(usize);

impl Leaked {
    fn scene(&self) -> &Scene {
        // SAFETY: the test waits for all callbacks before the scene is dropped.
        unsafe { &*std::ptr::with_exposed_provenance(self.0) }
    }
}

#[test]
fn a_waker_may_call_whatever_there_is() {
    struct Calls {
        call: &'static str,
        route: String,
        pipe: RuntimePipe,
        scene: Leaked,
        i: u64,
        told: mpsc::Sender<()>,
    }
    impl Wake for Calls {
        fn wake(self: Arc<Self>) {
            call_back(self.call, self.scene.scene(), &self.route, &self.pipe, 8 + 4 * self.i);
            let _ = self.told.send(());
        }
    }
    for call in CALLS {
        on_every_route(&format!("a waker that calls {call}"), move |scene, route, pipe| {
            let (told, woken) = mpsc::channel();
            let mut pending = 0;
            for i in 0..8 {
                let mut handle = pipe.transfer(scene.span(route, i)).unwrap();
                let (scene_at, told) = (Leaked(std::ptr::from_ref::<Scene>(scene).expose_provenance()), told.clone());
                let (route, pipe) = (route.to_owned(), pipe.clone());
                let waker = Waker::from(Arc::new(Calls { call, route, pipe, scene: scene_at, i, told }));
                match poll(&mut handle, &waker) {
                    Poll::Ready(result) => result.unwrap(),
                    Poll::Pending => {
                        pending += 1;
                        // The handle is leaked, because a dropped handle wakes no task.
                        std::mem::forget(handle);
                    }
                }
            }
            (0..pending).for_each(|_| woken.recv_timeout(PATIENCE).unwrap());
            assert_eq!(caught(&scene.runtime), (0, String::new()), "{call} {route}");
        });
    }
}

#[test]
fn the_last_runtime_may_be_dropped_in_a_callback() {
    for route in ROUTES {
        for shut_down in [false, true] {
            bounded(&format!("the last runtime is dropped in a callback, {route}"), move || {
                let scene = Scene::new(PIECES * 128 * KIB);
                let pipe = scene.pipe(route);
                let spans: Vec<_> = (0..PIECES).map(|i| scene.span(route, i)).collect();
                let (sender, told) = mpsc::channel();
                let Scene { runtime, target, bytes, .. } = scene;
                let last = Arc::new(Mutex::new(Some(runtime)));
                for (i, span) in spans.iter().enumerate() {
                    let (sender, last) = (sender.clone(), last.clone());
                    // After the runtime is gone nothing can be started.
                    let Ok(handle) = pipe.transfer(*span) else { break };
                    handle.on_done(move |result| {
                        if i == 3 {
                            let runtime = last.lock().unwrap().take().unwrap();
                            match (shut_down, Arc::try_unwrap(runtime)) {
                                (true, Ok(runtime)) => runtime.shutdown(),
                                (_, runtime) => drop(runtime),
                            }
                        }
                        sender.send(result.is_ok()).unwrap();
                    });
                }
                drop(sender);
                let told: Vec<bool> = told.iter().collect();
                assert!(told.iter().all(|good| *good) && told.len() > 3, "{route}: {}", told.len());
                assert_eq!(pipe.transfer(spans[0]).unwrap_err().kind(), ErrorKind::Unavailable);
                let end = spans[told.len() - 1];
                let end = (end.target + end.len) as usize;
                assert!(target.lease().unwrap()[..end] == bytes[..end]);
            });
        }
    }
}

#[test]
fn a_hundred_thousand_chained_callbacks_are_no_deeper_than_one() {
    struct Chain {
        pipe: RuntimePipe,
        spans: Vec<Span>,
        left: AtomicU64,
        ended: mpsc::Sender<()>,
    }
    fn go(chain: &Arc<Chain>) {
        let left = chain.left.fetch_sub(1, Ordering::SeqCst);
        if left == 0 {
            return chain.ended.send(()).unwrap();
        }
        let span = chain.spans[left as usize % chain.spans.len()];
        let again = chain.clone();
        chain.pipe.transfer(span).unwrap().on_done(move |result| {
            result.unwrap();
            go(&again);
        });
    }
    for route in ROUTES {
        let links = if route == "at once" || route == "a ring" { 100_000 } else { 5_000 };
        bounded(&format!("a chain of callbacks, {route}"), move || {
            let scene = Scene::new(PIECES * 128 * KIB);
            let (ended, end) = mpsc::channel();
            let spans = (0..PIECES).map(|i| scene.span(route, i)).collect();
            let chain = Chain { pipe: scene.pipe(route), spans, left: AtomicU64::new(links), ended };
            let chain = Arc::new(chain);
            // The stack is short, so that a recursion would overflow it.
            let begin = std::thread::Builder::new().stack_size(256 << 10);
            joined(begin.spawn(move || go(&chain)).unwrap());
            end.recv_timeout(PATIENCE).unwrap();
            scene.runtime.drain();
            assert_eq!(scene.runtime.report().completed, links);
        });
    }
}

#[test]
fn a_chain_of_wakers_is_no_deeper_than_one() {
    /// An executor that polls the next future from the waker of the last one.
    struct Inline {
        pipe: RuntimePipe,
        spans: Vec<Span>,
        current: Mutex<Option<Handle>>,
        left: AtomicU64,
        ended: Mutex<mpsc::Sender<()>>,
    }
    impl Wake for Inline {
        fn wake(self: Arc<Self>) {
            let waker = Waker::from(self.clone());
            let mut current = self.current.lock().unwrap();
            loop {
                if let Some(handle) = &mut *current {
                    match poll(handle, &waker) {
                        Poll::Ready(result) => result.unwrap(),
                        Poll::Pending => return,
                    }
                }
                let left = self.left.fetch_sub(1, Ordering::SeqCst);
                if left == 0 {
                    return self.ended.lock().unwrap().send(()).unwrap();
                }
                *current = Some(self.pipe.transfer(self.spans[left as usize % self.spans.len()]).unwrap());
            }
        }
    }
    for route in ["a ring", "copiers"] {
        bounded(&format!("a chain of wakers, {route}"), move || {
            let scene = Scene::new(PIECES * 128 * KIB);
            let (ended, end) = mpsc::channel();
            let spans = (0..PIECES).map(|i| scene.span(route, i)).collect();
            let (pipe, left, ended) = (scene.pipe(route), AtomicU64::new(5_000), Mutex::new(ended));
            let executor = Arc::new(Inline { pipe, spans, current: Mutex::new(None), left, ended });
            executor.wake();
            end.recv_timeout(PATIENCE).unwrap();
            scene.runtime.drain();
            assert_eq!(scene.runtime.report().completed, 5_000);
        });
    }
}

#[test]
fn a_callback_that_blocks_holds_up_callbacks_and_nobody_else() {
    for route in ROUTES {
        bounded(&format!("a callback that blocks, {route}"), move || {
            let scene = Scene::with(PIECES * 128 * KIB, |config| {
                (config.copiers, config.blocking) = (1, 1);
                config.device.outstanding_chunks = 1;
            });
            let pipe = scene.pipe(route);
            let (go, blocked) = mpsc::channel::<()>();
            let (blocking, blocks) = mpsc::channel();
            let handle = pipe.transfer(scene.span(route, 0)).unwrap();
            std::thread::scope(|scope| {
                // This is a thread of its own, because a transfer that is done at once calls back
                // at once.
                scope.spawn(move || {
                    handle.on_done(move |result| {
                        result.unwrap();
                        blocking.send(()).unwrap();
                        blocked.recv_timeout(PATIENCE).unwrap();
                    });
                });
                blocks.recv_timeout(PATIENCE).unwrap();
                let handles: Vec<_> = (1..PIECES).map(|i| pipe.transfer(scene.span(route, i)).unwrap()).collect();
                let (waited, awaited): (Vec<_>, Vec<_>) = handles.into_iter().enumerate().partition(|(i, _)| i % 2 > 0);
                awaited.into_iter().rev().for_each(|(_, handle)| block_on(handle).unwrap());
                waited.into_iter().rev().for_each(|(_, handle)| handle.wait().unwrap());
                pipe.drain();
                go.send(()).unwrap();
            });
            scene.runtime.drain();
            assert!(scene.has_arrived(route, PIECES));
        });
    }
}

#[test]
fn a_keeper_whose_destructor_panics_or_calls_back_takes_nobody_along() {
    struct Keeper(Box<dyn FnMut() + Send + Sync>);
    impl Drop for Keeper {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    bounded("a keeper", || {
        let scene = Scene::new(4 * MIB);
        let pipe = scene.pipe("a ring");
        let dropped = Arc::new(AtomicU64::new(0));
        for round in 0..4 {
            // A keeper of a pipe's descriptor.
            let (count, other, span) = (dropped.clone(), pipe.clone(), scene.span("a ring", round));
            let keeper = Keeper(Box::new(move || {
                count.fetch_add(1, Ordering::SeqCst);
                other.transfer(span).unwrap().wait().unwrap();
                assert!(round % 2 == 0, "the keeper of a descriptor panics");
            }));
            let ask = ConnectFdOptions::default();
            let (fd, given) = scene.runtime.pass_fd(&scene.memory, &scene.target, &ask, Box::new(keeper)).unwrap();
            drop(fd);
            while given.pipe().is_some() || dropped.load(Ordering::SeqCst) <= round {
                std::thread::yield_now();
            }
        }
        scene.runtime.drain();
        assert!(datapipes_core::guard::panics() >= 2);
        assert!(scene.has_arrived("a ring", 4));
    });
}

#[test]
fn foreign_memory_whose_keeper_panics_ends_with_the_transfer_that_used_it() {
    struct Keeper(Vec<u8>, mpsc::Sender<()>);
    impl Drop for Keeper {
        fn drop(&mut self) {
            let _ = self.1.send(());
            panic!("the keeper of {} bytes", self.0.len());
        }
    }
    for route in ["a ring", "copiers", "a mover that blocks"] {
        bounded(&format!("memory whose keeper panics, {route}"), move || {
            let scene = Scene::new(4 * MIB);
            let (gone, keeper_gone) = mpsc::channel();
            let mut bytes = vec![0; 128 * KIB as usize];
            let (start, len) = (std::ptr::NonNull::new(bytes.as_mut_ptr()).unwrap(), bytes.len());
            // SAFETY: the vector's bytes stay in place until the keeper, which owns it, is dropped;
            // nothing else uses it.
            let region = unsafe { datapipes_core::memory::Region::foreign(start, len, Box::new(Keeper(bytes, gone))) };
            let target = Dram::over(region.range(0, len).unwrap());
            let source: &dyn datapipes::Locator = if route == "copiers" { &scene.memory } else { &scene.file };
            let only = if route == "a ring" { "uring-cached" } else { "pread-cached" };
            let mut ask = datapipes::ConnectOptions::default();
            if route != "copiers" {
                ask.constraints.only = vec![only.into()];
            }
            let pipe = match scene.runtime.connect_with(source, &target, &ask) {
                Ok(pipe) => pipe,
                Err(e) => return println!("SKIPPED: {route}: {e}"),
            };
            let others = scene.pipe(route);
            let handles: Vec<_> = (0..8).map(|i| others.transfer(scene.span(route, i)).unwrap()).collect();
            let (sender, told) = mpsc::channel();
            let span = Span { source: 0, target: 0, len: len as u64 };
            pipe.transfer(span).unwrap().on_done(move |result| sender.send(result.is_ok()).unwrap());
            // The transfer and its route hold the last reference.
            drop((region, target, pipe));
            assert!(told.recv_timeout(PATIENCE).unwrap());
            keeper_gone.recv_timeout(PATIENCE).unwrap();
            handles.into_iter().for_each(|handle| block_on(handle).unwrap());
            scene.runtime.drain();
        });
    }
}

#[test]
fn closures_of_a_graph_that_panic_fail_their_item_and_end_the_graph() {
    for threads in [1, 3] {
        for bad in ["compute", "span"] {
            bounded(&format!("a {bad} closure that panics, {threads} threads"), move || {
                let scene = Scene::new(PIECES * 128 * KIB);
                let pipe = scene.pipe("a ring");
                let slots = BufferSet::new(2);
                let mut graph = Graph::new("with a bug");
                let part = graph.pipe("move", &pipe, |item| {
                    assert!(bad != "span" || item.index() != 5, "no span for item 5");
                    Ok(scene.span("a ring", item.index()))
                });
                let work = graph.compute("work", |item| {
                    assert!(bad != "compute" || item.index() != 5, "no work on item 5");
                    Ok(())
                });
                graph.after(work, part).unwrap();
                graph.uses(part, slots).unwrap();
                graph.uses(work, slots).unwrap();
                graph.threads(threads);
                let error = scene.runtime.run(&graph, PIECES).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Panicked, "{error}");
                let stage = if bad == "span" { "move, item 5" } else { "work, item 5" };
                assert!(error.to_string().contains(stage) && error.to_string().contains("item 5"), "{error}");
                let (panics, first) = caught(&scene.runtime);
                assert!(panics == 1 && first.contains("on item 5") || first.contains("for item 5"), "{panics} {first}");
                // Transfers in flight have ended, and the pipe keeps working.
                scene.runtime.drain();
                assert_eq!(scene.runtime.report().under_way, 0);
                pipe.transfer(scene.span("a ring", 0)).unwrap().wait().unwrap();
            });
        }
    }
}

#[test]
fn an_iterator_that_panics_leaves_a_batch_as_it_was() {
    for route in ROUTES {
        bounded(&format!("a batch whose iterator panics, {route}"), move || {
            let scene = Scene::new(PIECES * 128 * KIB);
            let source: &dyn datapipes::Locator =
                if route == "a ring" || route.contains("blocks") { &scene.file } else { &scene.memory };
            let pipe = scene.machine.connect(source, &scene.target).unwrap();
            let spans = |n: u64| {
                (0..n).map(|i| {
                    assert_ne!(i, 5, "the iterator panics");
                    (i, scene.span(route, i))
                })
            };
            let mut batch = pipe.batch();
            batch.submit(spans(3));
            let submit = || batch.submit(spans(PIECES).skip(3));
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(submit)).is_err());
            // Transfers from before the panic may have been started or not; those that were come
            // back once.
            let mut tags = Vec::new();
            while let Some(done) = batch.next().unwrap() {
                done.result.unwrap();
                tags.push(done.tag);
            }
            tags.sort_unstable();
            assert!(tags.starts_with(&[0, 1, 2]) && tags.len() <= 5, "{tags:?}");
            assert_eq!(batch.under_way(), 0);
            batch.submit([(9, scene.span(route, 9))]);
            assert_eq!(batch.next().unwrap().unwrap().tag, 9);
            // Here the batch is dropped with the panic.
            let mut batch = pipe.batch();
            let submit = || batch.submit(spans(PIECES));
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(submit)).is_err());
            drop(batch);
            assert!(scene.target.lease_mut().is_ok());
        });
    }
}

#[test]
fn iterators_of_transfers_that_panic_leave_what_was_started_to_the_runtime() {
    on_every_route("an iterator of transfers that panics", |scene, route, pipe| {
        let spans = || {
            (0..PIECES).map(|i| {
                assert_ne!(i, 5, "the iterator panics");
                scene.span(route, i)
            })
        };
        let start = || pipe.transfer_all(spans());
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(start)).is_err());
        let start = || scene.runtime.transfer_all(spans().map(|span| (pipe, span)));
        let again = std::panic::catch_unwind(std::panic::AssertUnwindSafe(start));
        // The second call may have met bytes of the first that were still in flight.
        assert!(again.is_err() || again.is_ok_and(|r| r.is_err_and(|e| e.kind() == ErrorKind::Busy)));
        scene.runtime.drain();
        assert!(scene.has_arrived(route, 5));
    });
}

#[test]
fn a_future_that_panics_in_block_on_leaves_the_runtime_whole() {
    on_every_route("a future that panics", |scene, route, pipe| {
        for i in 0..4 {
            let future = async {
                pipe.transfer(scene.span(route, i)).unwrap().await.unwrap();
                panic!("a future");
            };
            let run = || scene.runtime.block_on(future);
            let payload: Result<(), _> = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
            // It is the caller's own panic, and continues in the caller.
            assert!(payload.is_err());
        }
        scene.runtime.block_on(pipe.transfer(scene.span(route, 9)).unwrap()).unwrap();
        block_on(pipe.transfer(scene.span(route, 10)).unwrap()).unwrap();
    });
}

#[test]
fn whoever_waits_in_the_middle_of_a_lock_is_not_made_to_call_back() {
    // A callback wants a lock that a thread holds while it waits for a transfer of the same pipe.
    on_every_route("a callback that wants a lock", |scene, route, pipe| {
        let lock = Arc::new(Mutex::new(()));
        let called = Arc::new(AtomicBool::new(false));
        for i in 0..16 {
            let (wants, called) = (lock.clone(), called.clone());
            pipe.transfer(scene.span(route, 2 * i)).unwrap().on_done(move |result| {
                result.unwrap();
                drop(wants.lock().unwrap());
                called.store(true, Ordering::SeqCst);
            });
            let guard = lock.lock().unwrap();
            pipe.transfer(scene.span(route, 2 * i + 1)).unwrap().wait().unwrap();
            pipe.drain();
            drop(guard);
            scene.runtime.drain();
        }
        assert!(called.load(Ordering::SeqCst));
    });
}

#[test]
fn whoever_waits_in_the_middle_of_a_lock_is_not_made_to_wake_others() {
    /// A waker that wants a lock, as those of an executor with a queue do.
    struct Wants(Arc<Mutex<()>>, AtomicBool);
    impl Wake for Wants {
        fn wake(self: Arc<Self>) {
            drop(self.0.lock().unwrap());
            self.1.store(true, Ordering::SeqCst);
        }
    }
    for call in ["wait", "cancel", "drain", "is_done", "transfer"] {
        bounded(&format!("a waker that wants a lock, {call}"), move || {
            let route = "a ring";
            // One part is in flight at a time, so that polled transfers are pending, and end while
            // a thread waits.
            let scene = Scene::with(PIECES * 128 * KIB, |config| config.device.outstanding_chunks = 1);
            let pipe = scene.pipe(route);
            let lock = Arc::new(Mutex::new(()));
            let mut woken = 0;
            for _ in 0..8 {
                let wants = || Arc::new(Wants(lock.clone(), AtomicBool::new(false)));
                let mut handles: Vec<_> = (0..16).map(|i| pipe.transfer(scene.span(route, i)).unwrap()).collect();
                // Another thread, with its own tasks, polls the last ones, because each poll
                // completes what is done.
                let polled = handles.split_off(14).into_iter().map(|handle| (handle, wants())).collect::<Vec<_>>();
                let polls = std::thread::spawn(move || {
                    let mut pending = Vec::new();
                    for (mut handle, wants) in polled {
                        if poll(&mut handle, &Waker::from(wants.clone())).is_pending() {
                            pending.push((handle, wants));
                        }
                    }
                    pending
                });
                let pending = polls.join().unwrap();
                let guard = lock.lock().unwrap();
                let next = pipe.transfer(scene.span(route, 17)).unwrap();
                match call {
                    "wait" => next.wait().unwrap(),
                    "cancel" => drop(next.cancel().unwrap()),
                    "drain" => {
                        drop(next);
                        pipe.drain();
                    }
                    "is_done" => {
                        while !next.is_done() {
                            std::thread::yield_now();
                        }
                    }
                    // It looks for room among completed transfers.
                    _ => {
                        drop(next);
                        while pipe.transfer(scene.span(route, 17)).map(drop).is_err() {
                            std::thread::yield_now();
                        }
                    }
                }
                drop(guard);
                for (handle, wants) in pending {
                    woken += 1;
                    while !wants.1.load(Ordering::SeqCst) {
                        std::thread::yield_now();
                    }
                    drop(handle);
                }
                scene.runtime.drain();
            }
            println!("{call}: {woken} were woken");
        });
    }
}
