//! What a child made by `fork` may do with its parent's objects: nothing that takes from the
//! parent, and nothing that waits for threads that it does not have. With its own objects it may do
//! everything. (Children are made by the C library's `fork`: in a child made by the system call
//! alone, beside other threads, even `malloc` may never return.)
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

mod scene;

use std::cell::RefCell;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use datapipes::graph::Graph;
use datapipes::memory::{MapOptions, Pool};
use datapipes::runtime::ConnectOptions;
use datapipes::{
    AtomicFile, ConnectFdOptions, Constraints, Dram, ErrorKind, Locator, Machine, Pmem, PmemOptions, Runtime, Span,
    Ssd, StagePlace, Staging,
};
use datapipes_testkit::TempFolder;
use datapipes_testkit::child::{assert_forked_error, end_copy, fork_here, in_child};
use scene::{KIB, MIB, ROUTES, Scene, bounded};

const PIECES: u64 = 16;

/// A child has everything that it needs of its own.
fn moves_by_itself(machine: &Machine) {
    for machine in [machine, &datapipes::discover()] {
        let bytes = scene::pattern(MIB);
        let (file, target) = (scene::file_of(&bytes), Dram::allocate(bytes.len()).unwrap());
        machine.connect(&file, &target).unwrap().transfer(Span { source: 0, target: 0, len: MIB }).unwrap();
        assert!(target.lease().unwrap()[..] == bytes[..]);
        target.lease_mut().unwrap().fill(0);
        let runtime = Runtime::start(machine).unwrap();
        let pipe = runtime.connect(&file, &target).unwrap();
        pipe.transfer(Span { source: 0, target: 0, len: MIB }).unwrap().wait().unwrap();
        assert!(target.lease().unwrap()[..] == bytes[..]);
    }
}

#[test]
fn a_blocking_pipe_and_what_it_started_stay_the_parents() {
    for route in ["uring-direct", "uring-cached", "pread-cached"] {
        let scene = Scene::new(8 * MIB);
        let constraints = Constraints::default().only(vec![route.into()]);
        let pipe = match scene.machine.connect_with(&scene.file, &scene.target, &constraints) {
            Ok(pipe) => RefCell::new(Some(pipe)),
            Err(e) => {
                println!("SKIPPED: a_blocking_pipe_and_what_it_started_stay_the_parents/{route}: {e}");
                continue;
            }
        };
        let span = |i: u64| Span { source: i * 256 * KIB, target: i * 256 * KIB, len: 256 * KIB };
        let start = |i| RefCell::new(Some(pipe.borrow().as_ref().unwrap().start(span(i)).unwrap()));
        let started: Vec<_> = (0..PIECES).map(start).collect();
        in_child(&|| {
            let pipe = pipe.take().unwrap();
            assert_forked_error(pipe.transfer(span(20)));
            assert_forked_error(pipe.start(span(20)));
            let mut batch = pipe.batch();
            batch.submit([(1, span(20))]);
            assert_forked_error(batch.next().and_then(|finished| finished.unwrap().result));
            drop(batch);
            assert_eq!(pipe.report().bytes(), 0);
            for (i, transfer) in started.iter().enumerate() {
                let transfer = transfer.take().unwrap();
                let _ = format!("{transfer:?}");
                assert!(transfer.is_done());
                // Every other one is dropped.
                if i % 2 == 0 {
                    assert_forked_error(transfer.wait());
                }
            }
            drop(pipe);
            moves_by_itself(&scene.machine);
        });
        // All started transfers come back here, and the ring's registrations are unchanged.
        started.into_iter().for_each(|transfer| transfer.into_inner().unwrap().wait().unwrap());
        let pipe = pipe.into_inner().unwrap();
        (PIECES..32).for_each(|i| pipe.transfer(span(i)).unwrap());
        assert!(scene.target.lease().unwrap()[..] == scene.bytes[..], "{route}");
        assert_eq!(pipe.report().bytes(), 8 * MIB);
    }
}

#[test]
fn a_batch_stays_the_parents() {
    let scene = Scene::new(MIB);
    let pipe = scene.machine.connect(&scene.file, &scene.target).unwrap();
    let batch = RefCell::new(Some(pipe.batch()));
    let spans = (0..PIECES).map(|i| (i, Span { source: i * 4 * KIB, target: i * 4 * KIB, len: 4 * KIB }));
    batch.borrow_mut().as_mut().unwrap().submit(spans);
    in_child(&|| {
        let mut batch = batch.take().unwrap();
        assert_forked_error(batch.next());
        assert!(batch.try_next().is_none());
        drop(batch);
    });
    let mut batch = batch.into_inner().unwrap();
    let mut done = 0;
    while let Some(finished) = batch.next().unwrap() {
        finished.result.unwrap();
        done += 1;
    }
    assert_eq!(done, PIECES);
}

/// Handles of transfers that the device has, or that are held back.
fn narrow() -> Scene {
    Scene::with(8 * MIB, |config| {
        config.device.outstanding_chunks = 1;
        config.device.chunk_bytes = 4 * KIB;
    })
}

#[test]
fn a_runtime_and_its_transfers_stay_the_parents() {
    for route in ROUTES {
        bounded(&format!("a runtime in a child, {route}"), move || {
            let scene = narrow();
            let pipe = RefCell::new(Some(scene.pipe(route)));
            let start = |i| pipe.borrow().as_ref().unwrap().transfer(scene.span(route, i)).unwrap();
            let handles: Vec<_> = (0..PIECES).map(|i| RefCell::new(Some(start(i)))).collect();
            let beside = Span { source: 6 * MIB, target: 6 * MIB, len: 4 * KIB };
            let finished = scene.pipe("at once").transfer(beside).unwrap();
            in_child(&|| {
                // What ended before the fork has ended.
                assert!(finished.is_done());
                let runtime = &scene.runtime;
                let pipe = pipe.take().unwrap();
                assert_forked_error(pipe.transfer(scene.span(route, 20)));
                assert_forked_error(pipe.try_transfer(scene.span(route, 20)).map_err(|refused| refused.error));
                assert_forked_error(pipe.transfer_all([scene.span(route, 20)]));
                assert_forked_error(runtime.connect(&scene.memory, &scene.target));
                assert_forked_error(runtime.connect_fd(&scene.memory, &scene.target));
                assert!(!pipe.has_room() && pipe.under_way() == 0 && pipe.report().bytes() == 0);
                pipe.drain();
                runtime.drain();
                assert_eq!((runtime.report().under_way, runtime.report().completed), (0, 0));
                let mut graph = Graph::new("child");
                graph.pipe("move", &pipe, |item| Ok(scene.span(route, item.index())));
                assert_forked_error(runtime.run(&graph, 4));
                drop(graph);
                let called = AtomicU64::new(0);
                let called: &'static AtomicU64 = Box::leak(Box::new(called));
                let is_over = |handle: &datapipes::Handle| format!("{handle:?}").starts_with("Handle(Ok");
                for (i, handle) in handles.iter().enumerate() {
                    let mut handle = handle.take().unwrap();
                    if is_over(&handle) {
                        // It is a short copy, or one that runs on the caller.
                        handle.wait().unwrap();
                        continue;
                    }
                    assert!(handle.is_done());
                    match i % 6 {
                        0 => assert_forked_error(handle.wait()),
                        1 => assert_forked_error(handle.cancel()),
                        2 => {
                            let polled = std::pin::Pin::new(&mut handle);
                            match std::future::Future::poll(polled, &mut Context::from_waker(Waker::noop())) {
                                Poll::Ready(result) => assert_forked_error(result),
                                Poll::Pending => panic!("nobody will wake it"),
                            }
                        }
                        3 => assert_forked_error(runtime.block_on(handle)),
                        4 => handle.on_done(|result| {
                            assert_forked_error(result);
                            called.fetch_add(1, Ordering::SeqCst);
                        }),
                        _ => drop(handle),
                    }
                }
                assert_eq!(runtime.block_on(async { 7 }), 7);
                drop(pipe);
                moves_by_itself(&scene.machine);
            });
            handles.into_iter().for_each(|handle| handle.into_inner().unwrap().wait().unwrap());
            finished.wait().unwrap();
            assert!(scene.has_arrived(route, PIECES), "{route}");
            drop(pipe);
            scene.runtime.drain();
            assert_eq!(scene.runtime.report().under_way, 0);
        });
    }
}

#[test]
fn a_child_that_drops_all_of_a_runtime_takes_nothing_from_its_parent() {
    for route in ROUTES {
        bounded(&format!("dropping a runtime in a child, {route}"), move || {
            let scene = narrow();
            let pipe = scene.pipe(route);
            let handles: Vec<_> =
                (0..PIECES).map(|i| RefCell::new(Some(pipe.transfer(scene.span(route, i)).unwrap()))).collect();
            let all = RefCell::new(Some((scene, pipe)));
            in_child(&|| {
                let (scene, pipe) = all.take().unwrap();
                let machine = scene.machine.clone();
                drop((scene, pipe));
                handles.iter().for_each(|handle| drop(handle.take()));
                moves_by_itself(&machine);
            });
            let (scene, pipe) = all.into_inner().unwrap();
            handles.into_iter().for_each(|handle| handle.into_inner().unwrap().wait().unwrap());
            // The epoll instance still knows the pipe's ring: a transfer that is not waited for is
            // completed.
            drop(pipe.transfer(scene.span(route, PIECES)).unwrap());
            pipe.drain();
            assert!(scene.has_arrived(route, PIECES + 1), "{route}");
        });
    }
}

#[test]
fn a_descriptor_and_its_completions_stay_the_parents() {
    for depth in [4, 200] {
        bounded("a descriptor in a child", move || {
            let scene = narrow();
            let ask = ConnectFdOptions::default().depth(depth);
            let pipe = RefCell::new(Some(scene.runtime.connect_fd_with(&scene.file, &scene.target, &ask).unwrap()));
            let raw = scene.runtime.connect_raw_fd(&scene.file, &scene.target, &ConnectFdOptions::default()).unwrap();
            let raw = RefCell::new(Some(raw));
            let (mut started, mut done) = (0, 0);
            let span = |i| scene.span("a ring", i);
            while pipe.borrow().as_ref().unwrap().submit(span(started)).is_ok() && started < 3 {
                started += 1;
            }
            started += 1;
            in_child(&|| {
                let pipe = pipe.take().unwrap();
                assert_forked_error(pipe.submit(span(20)));
                assert_forked_error(pipe.complete());
                assert_forked_error(pipe.complete_wait());
                drop(pipe);
                drop(raw.take());
            });
            let pipe = pipe.into_inner().unwrap();
            while done < PIECES {
                if started < PIECES && pipe.submit(span(started)).is_ok() {
                    started += 1;
                } else {
                    pipe.complete_wait().unwrap().result.unwrap();
                    done += 1;
                }
            }
            assert!(scene.has_arrived("a ring", PIECES));
        });
    }
}

#[test]
fn a_child_has_a_copy_of_memory_with_what_is_leased_of_it() {
    let dram = Dram::allocate(64 << 10).unwrap();
    let pool = Pool::new(64 << 10, MapOptions::default()).unwrap();
    let cut = RefCell::new(Some(Dram::from_pool(&pool, 4096).unwrap()));
    let held = RefCell::new(Some(dram.range(0, 4096).unwrap().lease_mut().unwrap()));
    held.borrow_mut().as_mut().unwrap().fill(1);
    in_child(&|| {
        // The lease is copied too, and with it the right to write.
        assert_eq!(dram.range(0, 4096).unwrap().lease().unwrap_err().kind(), ErrorKind::Busy);
        held.borrow_mut().as_mut().unwrap().fill(2);
        drop(held.take());
        assert_eq!(dram.range(0, 4096).unwrap().lease().unwrap()[..], [2; 4096]);
        let other = Dram::allocate(64 << 10).unwrap();
        let pipe = datapipes::discover().connect(&dram, &other).unwrap();
        pipe.transfer(Span { source: 0, target: 0, len: 64 << 10 }).unwrap();
        assert_eq!(other.lease().unwrap()[..4096], [2; 4096]);
        assert_forked_error(Dram::from_pool(&pool, 4096));
        assert_eq!(pool.available(), 0);
        drop(cut.take());
    });
    assert_eq!(held.borrow().as_ref().unwrap()[..], [1; 4096]);
    assert_eq!(pool.available(), 60 << 10);
}

#[test]
fn places_of_the_parent_must_be_opened_again_in_a_child() {
    let folder = TempFolder::under(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (path, mapped) = (folder.path("file"), folder.path("mapped"));
    let ssd = Ssd::create(&path).unwrap();
    ssd.preallocate(MIB).unwrap();
    let options = PmemOptions::default().len(MIB).emulated(true);
    let pmem = Pmem::open_with(&mapped, options).unwrap();
    let staging = Staging::open(vec![StagePlace::folder(folder.at())]).unwrap();
    let extent = staging.extent(4096).unwrap();
    let machine = datapipes::discover();
    let draft = AtomicFile::create(&folder.path("draft")).unwrap();
    in_child(&|| {
        assert_forked_error(draft.write(b"x"));
        assert_forked_error(ssd.set_len(0));
        assert_forked_error(ssd.reserve(0, 4096));
        assert_forked_error(ssd.punch(0, 4096));
        assert_forked_error(pmem.write(0, b"x"));
        assert_forked_error(pmem.sync());
        assert_forked_error(pmem.prefault());
        assert_forked_error(staging.extent(4096));
        staging.free(extent.offset, extent.len);
        assert!(staging.uses().is_empty());
        let memory = Dram::allocate(4096).unwrap();
        let places: [&dyn Locator; 3] = [&ssd, &pmem, &staging];
        for place in places {
            assert_forked_error(machine.connect(place, &memory));
            assert_forked_error(machine.connect(&memory, place));
            assert_forked_error(machine.explain(place, &memory, &Constraints::default()));
        }
        let again = Ssd::open_rw(&path).unwrap();
        memory.lease_mut().unwrap().fill(9);
        machine.connect(&memory, &again).unwrap().transfer(Span { source: 0, target: 0, len: 4096 }).unwrap();
        Pmem::open_with(&mapped, options).unwrap().write(0, &[8; 4096]).unwrap();
    });
    assert_eq!(std::fs::read(&path).unwrap()[..4096], [9; 4096]);
    let mut bytes = [0; 4096];
    pmem.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [8; 4096], "it is the same file");
    assert_eq!(staging.uses()[0].placed, 4096, "the child freed nothing");
    ssd.set_len(4096).unwrap();
}

#[test]
fn children_of_a_busy_parent_end_whatever_its_threads_were_at() {
    bounded("children of a busy parent", || {
        let scene = Scene::new(8 * MIB);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for route in ROUTES {
                let (scene, over) = (&scene, &over);
                scope.spawn(move || {
                    // Each has another part of the memory, so that they do not meet.
                    let at = ROUTES.iter().position(|r| *r == route).unwrap() as u64 * 2 * MIB;
                    while !over.load(Ordering::SeqCst) {
                        let pipe = scene.pipe_with(route, ConnectOptions::default().queue(3));
                        for i in 0..8 {
                            let span = scene.span(route, i);
                            drop(pipe.transfer(Span { source: span.source + at, target: span.target + at, ..span }));
                        }
                        pipe.drain();
                    }
                });
            }
            let ends = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                for i in 0..30 {
                    let pipe = scene.pipe(ROUTES[i % ROUTES.len()]);
                    let all = RefCell::new(Some((scene.runtime.clone(), pipe)));
                    in_child(&|| {
                        let (runtime, pipe) = all.take().unwrap();
                        assert_forked_error(pipe.transfer(Span { source: 0, target: 0, len: 4 * KIB }));
                        runtime.drain();
                        drop((pipe, runtime));
                        // A table of leases that was locked at that moment reports so; no one waits
                        // for it.
                        match scene.target.lease_mut().map_err(|e| e.kind()) {
                            Ok(_) | Err(ErrorKind::Busy | ErrorKind::Forked) => {}
                            Err(other) => panic!("{other:?}"),
                        }
                    });
                }
            }));
            over.store(true, Ordering::SeqCst);
            ends.unwrap();
        });
        scene.runtime.drain();
        let report = scene.runtime.report();
        assert_eq!((report.under_way, report.failed), (0, 0), "{report:?}");
    });
}

/// A closure of a graph forks, and both processes continue from there. The child has neither the
/// graph's threads nor, possibly, the thread that would release the graph's locks.
#[test]
fn a_closure_that_forks_in_the_middle_of_a_graph_leaves_a_child_that_is_told() {
    for threads in [0, 1, 3] {
        for place in ["span", "compute"] {
            if place == "compute" && threads > 0 {
                continue; // It forks on a thread of the graph, with which the child ends.
            }
            for round in 0..8 {
                let scene = Scene::new(8 * MIB);
                let pipe = scene.pipe(ROUTES[round % ROUTES.len()]);
                let pid = std::sync::atomic::AtomicI32::new(-1);
                let fork_at = |index: u64| {
                    if index == 5 + round as u64 {
                        pid.store(fork_here(), Ordering::SeqCst);
                    }
                };
                let mut graph = Graph::new("that forks");
                let part = graph.pipe("move", &pipe, |item| {
                    if place == "span" {
                        fork_at(item.index());
                    }
                    Ok(scene.span("a ring", item.index()))
                });
                let work = graph.compute("work", |item| {
                    if place == "compute" {
                        fork_at(item.index());
                    }
                    Ok(())
                });
                graph.after(work, part).unwrap();
                graph.threads(threads);
                let result = RefCell::new(Some(scene.runtime.run(&graph, 64)));
                end_copy(pid.load(Ordering::SeqCst), &|| assert_forked_error(result.take().unwrap()));
                result.take().unwrap().unwrap();
                assert!(scene.target.lease().unwrap()[..256 * KIB as usize] == scene.bytes[..256 * KIB as usize]);
            }
        }
    }
}

/// A waker forks. It is called by a thread that registered it and waits for another transfer, while
/// the runtime's threads are busy.
#[test]
fn a_waker_that_forks_in_a_wait_leaves_a_child_that_is_told() {
    struct Forks(std::sync::atomic::AtomicI32, std::thread::ThreadId);
    impl std::task::Wake for Forks {
        fn wake(self: std::sync::Arc<Self>) {
            if std::thread::current().id() == self.1 && self.0.load(Ordering::SeqCst) < 0 {
                self.0.store(fork_here(), Ordering::SeqCst);
            }
        }
    }
    let mut forked = 0;
    for round in 0..24 {
        let scene = Scene::with(8 * MIB, |config| config.device.outstanding_chunks = 1);
        let pipe = scene.pipe("a ring");
        // The runtime's own thread is kept busy for a moment, so that this one finds what is done.
        let span = scene.span("a ring", 100);
        let busy = || std::thread::sleep(std::time::Duration::from_millis(20));
        std::thread::scope(|scope| {
            let handle = pipe.transfer(span).unwrap();
            scope.spawn(|| handle.on_done(move |_| busy())).join().unwrap();
        });
        let forks = std::sync::Arc::new(Forks((-1).into(), std::thread::current().id()));
        let mut handles: Vec<_> = (0..16).map(|i| pipe.transfer(scene.span("a ring", i)).unwrap()).collect();
        let waker = Waker::from(forks.clone());
        let _ = std::pin::Pin::new(&mut handles[14]).poll(&mut Context::from_waker(&waker));
        let last = handles.pop().unwrap();
        let result = RefCell::new(Some(if round % 2 == 0 {
            last.wait()
        } else {
            pipe.drain();
            last.cancel().map(drop)
        }));
        let pid = forks.0.load(Ordering::SeqCst);
        if pid >= 0 {
            forked += 1;
            // What ended before has ended; the child waits for nothing.
            end_copy(pid, &|| match result.take().unwrap() {
                Ok(()) => {}
                Err(e) => assert_eq!(e.kind(), ErrorKind::Forked, "{e}"),
            });
        }
        result.take().unwrap().unwrap();
    }
    println!("{forked} of 24 forked");
}
