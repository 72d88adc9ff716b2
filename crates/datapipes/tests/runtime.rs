//! The runtime flavor on real files and memory (CIDR'23, figure 6b).
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

mod scene;

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use datapipes::runtime::{Cancelled, ConnectOptions, PriorityClass, RuntimeOptions, ServiceLevel};
use datapipes::{Constraints, CoreCache, Dram, ErrorKind, Runtime, RuntimePipe, Span};
use datapipes_core::topology::Topology;
use datapipes_file::{FaultInjector, FaultVerdict, FileBackend, Operation};
use datapipes_testkit::{PATIENCE, Random};
use scene::{MIB, empty_file, file_of, memory_of};

fn pattern(len: u64, seed: u64) -> Vec<u8> {
    Random(seed).bytes(len as usize)
}

fn every_way(pipe: &RuntimePipe, target: &Dram, expected: &[u8]) {
    let len = expected.len() as u64;
    let whole = Span { source: 0, target: 0, len };
    let check = |how: &str| {
        let mut lease = target.lease_mut().unwrap();
        assert!(lease[..] == *expected, "{how}: other bytes by {:?}", pipe.route().primitives());
        lease.fill(0);
    };
    pipe.transfer(whole).unwrap().wait().unwrap();
    check("wait");
    pollster::block_on(pipe.transfer(whole).unwrap()).unwrap();
    check("await");
    let (sender, receiver) = mpsc::channel();
    pipe.transfer(whole).unwrap().on_done(move |result| sender.send(result).unwrap());
    receiver.recv_timeout(PATIENCE).unwrap().unwrap();
    check("callback");
    let handle = pipe.transfer(whole).unwrap();
    while !handle.is_done() {
        std::thread::yield_now();
    }
    handle.wait().unwrap();
    check("test");
    drop(pipe.transfer(whole).unwrap());
    pipe.drain();
    check("drop and drain");
    // Pieces of odd lengths, many at once.
    let piece = 77_777;
    let spans = (0..len.div_ceil(piece)).map(|i| Span {
        source: i * piece,
        target: i * piece,
        len: piece.min(len - i * piece),
    });
    pipe.transfer_all(spans.clone()).unwrap().wait().unwrap();
    check("all, waited for");
    pollster::block_on(pipe.transfer_all(spans).unwrap()).unwrap();
    check("all, awaited");
}

/// A call for each would cost more than the bytes.
#[test]
fn transfers_that_are_started_together_are_submitted_together() {
    const COUNT: u64 = 32;
    let machine = datapipes::discover();
    let runtime = Runtime::start(&machine).unwrap();
    let bytes = pattern(COUNT * 4096, 5);
    let (ssd, target) = (file_of(&bytes), Dram::allocate(bytes.len()).unwrap());
    let ring = ConnectOptions::default().constraints(Constraints::default().only(vec!["uring-cached".into()]));
    let pipe = match runtime.connect_with(&ssd, &target, &ring) {
        Ok(pipe) => pipe,
        Err(error) => return println!("SKIPPED: transfers_that_are_started_together_are_submitted_together: {error}"),
    };
    let calls = || pipe.report().hops.iter().map(|hop| hop.counters.system_calls).sum::<u64>();
    let spans = || (0..COUNT).map(|i| Span { source: i * 4096, target: i * 4096, len: 4096 });
    let starts: [&dyn Fn() -> datapipes::runtime::Handles; 2] =
        [&|| pipe.transfer_all(spans()).unwrap(), &|| runtime.transfer_all(spans().map(|span| (&pipe, span))).unwrap()];
    for start in starts {
        target.lease_mut().unwrap().fill(0);
        let before = calls();
        start().wait().unwrap();
        let taken = calls() - before;
        assert!(target.lease().unwrap()[..] == bytes[..]);
        // One to submit, and a few to wait for what was not there at once.
        assert!(taken < COUNT / 2, "{taken} calls for {COUNT} transfers");
    }
    // Each hears of its own error, and the others are carried out.
    let far = Span { source: 0, target: u64::MAX, len: 4096 };
    target.lease_mut().unwrap().fill(0);
    let started = pipe.transfer_each(spans().take(1).chain([far]).chain(spans().skip(1)));
    assert_eq!(started.len() as u64, COUNT + 1);
    for (nth, started) in started.into_iter().enumerate() {
        match nth {
            1 => assert_eq!(started.unwrap_err().kind(), ErrorKind::OutOfRange),
            _ => started.unwrap().wait().unwrap(),
        }
    }
    assert!(target.lease().unwrap()[..] == bytes[..]);
}

/// Starting others looks at the device, where their bytes are held, and may so complete a transfer
/// whose waker drains: it must not wait for what is prepared and not started.
#[test]
fn a_waker_that_drains_while_others_are_started_ends() {
    struct Drains(RuntimePipe);
    impl std::task::Wake for Drains {
        fn wake(self: Arc<Self>) {
            self.0.drain();
        }
    }
    const LEN: u64 = 4096;
    let machine = datapipes::discover();
    let (ended, end) = mpsc::channel();
    let work = move || {
        let runtime = Runtime::start(&machine).unwrap();
        let (ssd, target) = (file_of(&pattern(64 * LEN, 6)), Dram::allocate(64 * LEN as usize).unwrap());
        let direct = ConnectOptions::default().constraints(Constraints::default().only(vec!["uring-direct".into()]));
        let Ok(pipe) = runtime.connect_with(&ssd, &target, &direct) else {
            println!("SKIPPED: a_waker_that_drains_while_others_are_started_ends: no direct access");
            return;
        };
        let span = |i: u64| Span { source: i * LEN, target: i * LEN, len: LEN };
        for round in 0..500 {
            let waker = std::task::Waker::from(Arc::new(Drains(pipe.clone())));
            let mut first = pipe.transfer(span(0)).unwrap();
            let polled = std::pin::Pin::new(&mut first).poll(&mut std::task::Context::from_waker(&waker));
            if polled.is_pending() {
                (0..round % 50 * 20).for_each(|_| std::hint::spin_loop());
                // The last one wants the bytes that the first one holds.
                if let Ok(all) = pipe.transfer_all([span(1), span(2), span(3), span(0)]) {
                    all.wait().unwrap();
                }
                let _ = first.wait();
            }
            pipe.drain();
        }
        ended.send(()).unwrap();
    };
    let thread = std::thread::spawn(work);
    match end.recv_timeout(PATIENCE) {
        Ok(()) => thread.join().unwrap(),
        Err(mpsc::RecvTimeoutError::Disconnected) => thread.join().unwrap(),
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the runtime waits for what nobody starts"),
    }
}

#[test]
fn iterators_that_do_not_know_their_length_may_wait_for_what_they_gave() {
    let machine = datapipes::discover();
    let runtime = Runtime::start(&machine).unwrap();
    let bytes = pattern(8 * 4096, 7);
    let (ssd, target) = (file_of(&bytes), Dram::allocate(bytes.len()).unwrap());
    let pipe = runtime.connect(&ssd, &target).unwrap();
    let mut next = 0;
    let spans = std::iter::from_fn(|| {
        // What was given before has arrived.
        pipe.drain();
        let before = next as usize * 4096;
        assert_eq!(target.range(0, before.max(1)).unwrap().lease().unwrap()[..before], bytes[..before]);
        next += 1;
        (next <= 8).then(|| Span { source: (next - 1) * 4096, target: (next - 1) * 4096, len: 4096 })
    });
    pipe.transfer_all(spans).unwrap().wait().unwrap();
    assert!(target.lease().unwrap()[..] == bytes[..]);
}

#[test]
fn every_way_to_hear_of_a_transfer_over_every_kind_of_route() {
    let machine = datapipes::discover();
    let runtime = Runtime::start(&machine).unwrap();
    let bytes = pattern(5 * MIB + 123, 1);
    let (ssd, dram, target) = (file_of(&bytes), memory_of(&bytes), Dram::allocate(bytes.len()).unwrap());
    every_way(&runtime.connect(&ssd, &target).unwrap(), &target, &bytes);
    every_way(&runtime.connect(&dram, &target).unwrap(), &target, &bytes);
    for primitive in ["pread-cached", "uring-cached", "uring-direct", "memcpy"] {
        let only = Constraints::default().only(vec![primitive.into()]);
        let ask = ConnectOptions::default().constraints(only);
        let pipe = match primitive {
            "memcpy" => runtime.connect_with(&dram, &target, &ask),
            _ => runtime.connect_with(&ssd, &target, &ask),
        };
        match pipe {
            Ok(pipe) => every_way(&pipe, &target, &bytes),
            Err(e) => println!("SKIPPED: {primitive}: {e}"),
        }
    }
    // Into a core's cache: a route of two hops on that core's thread.
    let core = machine.topology().usable_cores().next().unwrap().clone();
    let small = pattern(100_000, 2);
    let (ssd, backing) = (file_of(&small), Dram::allocate(small.len()).unwrap());
    let cache = CoreCache::over(&core, &backing).unwrap();
    let pipe = runtime.connect(&ssd, &cache).unwrap();
    every_way(&pipe, &backing, &small);
    assert_eq!(pipe.report().hops.iter().map(|hop| hop.counters.wrong_core).sum::<u64>(), 0);
    let report = runtime.report();
    assert_eq!((report.under_way, report.failed), (0, 0));
    assert!(report.completed > 0 && report.resources.len() >= 3, "{report:?}");
}

#[test]
fn from_file_to_file_and_back_to_memory() {
    let machine = datapipes::discover();
    let runtime = Runtime::start(&machine).unwrap();
    let bytes = pattern(9 * MIB, 3);
    let (source, target) = (file_of(&bytes), empty_file());
    let copy = runtime.connect(&source, &target).unwrap();
    copy.transfer(Span { source: 0, target: 0, len: bytes.len() as u64 }).unwrap().wait().unwrap();
    let back = Dram::allocate(bytes.len()).unwrap();
    let up = runtime.connect(&target, &back).unwrap();
    pollster::block_on(up.transfer(Span { source: 0, target: 0, len: bytes.len() as u64 }).unwrap()).unwrap();
    assert!(back.lease().unwrap()[..] == bytes[..]);
}

#[test]
fn bytes_under_way_are_leased_whatever_becomes_of_the_handle() {
    let machine = datapipes::discover();
    let runtime = Runtime::start(&machine).unwrap();
    let bytes = pattern(64 * MIB, 4);
    let (dram, target) = (memory_of(&bytes), Dram::allocate(bytes.len()).unwrap());
    let pipe = runtime.connect(&dram, &target).unwrap();
    let whole = Span { source: 0, target: 0, len: bytes.len() as u64 };
    let handle = pipe.transfer(whole).unwrap();
    // If the first one is done already, this one is let through, and moves the same bytes.
    let overlapping = pipe.transfer(Span { source: 64, target: 64, len: 5 * MIB });
    let was_busy = overlapping.is_err_and(|e| e.kind() == ErrorKind::Busy);
    drop(handle);
    pipe.drain();
    assert!(was_busy || target.lease().is_ok());
    assert!(target.lease().unwrap()[..] == bytes[..], "dropping the handle must not cancel");
    assert_eq!(
        pipe.transfer(Span { source: 1, target: 0, len: bytes.len() as u64 }).unwrap_err().kind(),
        ErrorKind::OutOfRange
    );
    assert_eq!(pipe.under_way(), 0);
}

#[test]
fn a_full_queue_gives_the_span_back_or_waits() {
    let machine = datapipes::discover();
    let runtime = Runtime::start(&machine).unwrap();
    let bytes = pattern(32 * MIB, 5);
    let (ssd, target) = (file_of(&bytes), Dram::allocate(bytes.len()).unwrap());
    let ask = ConnectOptions::default().queue(2);
    let pipe = runtime.connect_with(&ssd, &target, &ask).unwrap();
    let span = |i: u64| Span { source: i * MIB, target: i * MIB, len: MIB };
    let (first, second) = (pipe.transfer(span(0)).unwrap(), pipe.transfer(span(1)).unwrap());
    // No thread completes anything meanwhile, so the queue is full whatever the disk did.
    let refused = pipe.try_transfer(span(2)).unwrap_err();
    assert_eq!((refused.span, refused.error.kind()), (span(2), ErrorKind::Busy));
    assert!(!pipe.has_room());
    // `transfer` waits, and the coordinator completes the first two for it.
    let others: Vec<_> = (2..32).map(|i| pipe.transfer(span(i)).unwrap()).collect();
    assert!(pipe.under_way() <= 2);
    for handle in [first, second].into_iter().chain(others) {
        handle.wait().unwrap();
    }
    assert!(target.lease().unwrap()[..] == bytes[..]);
}

#[test]
fn cancelling_returns_when_the_bytes_are_free() {
    let machine = datapipes::discover();
    let mut config = RuntimeOptions::new(&machine);
    // Little is in flight at a time, so that there is something left to cancel.
    config.device.chunk_bytes = 64 << 10;
    config.device.outstanding_bytes = 64 << 10;
    let runtime = Runtime::start_with(&machine, config).unwrap();
    let bytes = pattern(64 * MIB, 6);
    let (ssd, dram, target) = (file_of(&bytes), memory_of(&bytes), Dram::allocate(bytes.len()).unwrap());
    let mut stopped = 0;
    for source in [&ssd as &dyn datapipes::Locator, &dram] {
        let pipe = runtime.connect(source, &target).unwrap();
        for _ in 0..20 {
            let handle = pipe.transfer(Span { source: 0, target: 0, len: bytes.len() as u64 }).unwrap();
            match handle.cancel().unwrap() {
                Cancelled::Stopped { bytes_moved } => {
                    assert!(bytes_moved < bytes.len() as u64);
                    stopped += 1;
                }
                Cancelled::Completed => {}
            }
            // The exclusive right to the bytes shows that nothing writes them any more.
            target.lease_mut().unwrap().fill(0);
            assert_eq!(pipe.under_way(), 0);
        }
        pipe.transfer(Span { source: 0, target: 0, len: bytes.len() as u64 }).unwrap().wait().unwrap();
        assert!(target.lease().unwrap()[..] == bytes[..], "the pipe serves on");
    }
    assert!(stopped > 0);
}

#[test]
fn shutting_down_loses_nothing() {
    let machine = datapipes::discover();
    let bytes = pattern(16 * MIB, 7);
    let (ssd, target) = (file_of(&bytes), Dram::allocate(bytes.len()).unwrap());
    let done = Arc::new(AtomicU64::new(0));
    let runtime = Runtime::start(&machine).unwrap();
    let pipe = runtime.connect(&ssd, &target).unwrap();
    for i in 0..16 {
        let done = done.clone();
        let handle = pipe.transfer(Span { source: i * MIB, target: i * MIB, len: MIB }).unwrap();
        if i % 2 == 0 {
            handle.on_done(move |result| {
                result.unwrap();
                done.fetch_add(1, Ordering::SeqCst);
            });
        }
    }
    runtime.shutdown();
    assert_eq!(done.load(Ordering::SeqCst), 8, "every callback was called");
    assert!(target.lease().unwrap()[..] == bytes[..]);
    let span = Span { source: 0, target: 0, len: 1 };
    assert_eq!(pipe.transfer(span).unwrap_err().kind(), ErrorKind::Unavailable);
}

#[test]
fn an_idle_runtime_uses_no_processor_time() {
    let sleeps = || {
        std::fs::read_dir("/proc/self/task")
            .unwrap()
            .filter_map(|task| {
                let path = task.unwrap().path();
                let name = std::fs::read_to_string(path.join("comm")).ok()?;
                let status = std::fs::read_to_string(path.join("status")).ok()?;
                let mut known =
                    status.lines().filter(|line| line.starts_with("State") || line.starts_with("voluntary"));
                name.starts_with("dp-idle").then(|| known.by_ref().collect::<Vec<_>>().join(", "))
            })
            .collect::<Vec<_>>()
    };
    // They are told apart from the threads of other tests by their names.
    let machine = datapipes::discover();
    let runtime = Runtime::start_with(&machine, RuntimeOptions::new(&machine).name("dp-idle")).unwrap();
    let (source, target) = (Dram::allocate(8 << 20).unwrap(), Dram::allocate(8 << 20).unwrap());
    let pipe = runtime.connect(&source, &target).unwrap();
    pipe.transfer(Span { source: 0, target: 0, len: 8 << 20 }).unwrap().wait().unwrap();
    // They may still be about to sleep.
    let mut before = sleeps();
    datapipes_testkit::until("all sleep", || {
        std::thread::sleep(std::time::Duration::from_millis(50));
        let now = sleeps();
        std::mem::replace(&mut before, now.clone()) == now && now.iter().all(|known| known.contains("\tS"))
    });
    assert_eq!(before.len(), 2, "a coordinator and a copier");
    std::thread::sleep(std::time::Duration::from_millis(300));
    // None of them woke up.
    assert_eq!(sleeps(), before);
}

#[test]
fn times_of_transfers_are_measured_by_class_where_that_is_asked_for() {
    const MIB: u64 = 1 << 20;
    let machine = datapipes::discover();
    let (source, target) = (Dram::allocate(8 << 20).unwrap(), Dram::allocate(8 << 20).unwrap());
    let moved = |runtime: &Runtime| {
        let urgent = ConnectOptions::default().service(ServiceLevel::of(PriorityClass::Latency));
        let urgent = runtime.connect_with(&source, &target, &urgent).unwrap();
        let normal = runtime.connect(&source, &target).unwrap();
        for _ in 0..100 {
            urgent.transfer(Span { source: 0, target: 0, len: 64 }).unwrap().wait().unwrap();
        }
        let long = (0..8).map(|i| Span { source: i * MIB, target: i * MIB, len: MIB });
        normal.transfer_all(long).unwrap().wait().unwrap();
        // Nothing is started, so nothing is timed.
        normal.transfer(Span { source: 0, target: 0, len: 9 * MIB }).unwrap_err();
        runtime.report().latencies
    };
    let quiet = RuntimeOptions::new(&machine).measure_latencies(false);
    assert!(moved(&Runtime::start_with(&machine, quiet).unwrap()).is_empty());
    let measured = RuntimeOptions::new(&machine).measure_latencies(true);
    let latencies = moved(&Runtime::start_with(&machine, measured).unwrap());
    let counts: Vec<_> = latencies.iter().map(|of| (of.class, of.times.count())).collect();
    assert_eq!(counts, [(PriorityClass::Latency, 100), (PriorityClass::Normal, 8), (PriorityClass::Bulk, 0)]);
    assert!(latencies[1].times.percentile_ns(0.0) > 0, "{latencies:?}");
}

#[test]
fn promises_are_checked_at_connect_and_classes_are_named() {
    let machine = datapipes::discover();
    let runtime = Runtime::start(&machine).unwrap();
    let (source, target) = (Dram::allocate(4096).unwrap(), Dram::allocate(4096).unwrap());
    let ask = |at_least| {
        ConnectOptions::default().service(ServiceLevel::default().class(PriorityClass::Normal).at_least(at_least))
    };
    let small = runtime.connect_with(&source, &target, &ask(1e6)).unwrap();
    assert_eq!(small.service().class, PriorityClass::Normal);
    let refused = runtime.connect_with(&source, &target, &ask(1e15)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
}

#[test]
fn a_pipe_with_a_limit_keeps_it() {
    let machine = datapipes::discover();
    let runtime = Runtime::start(&machine).unwrap();
    let (source, target) = (Dram::allocate(64 << 20).unwrap(), Dram::allocate(64 << 20).unwrap());
    let service = ServiceLevel::default().class(PriorityClass::Bulk).at_most(200e6);
    let pipe = runtime.connect_with(&source, &target, &ConnectOptions::default().service(service)).unwrap();
    let begun = std::time::Instant::now();
    pipe.transfer(Span { source: 0, target: 0, len: 40 << 20 }).unwrap().wait().unwrap();
    // It may be slower on a busy machine, but not faster, except for the burst.
    assert!(begun.elapsed().as_secs_f64() > 0.15, "{:?}", begun.elapsed());
}

/// Some requests are cut short or interrupted; those in a range fail.
struct Rough {
    seed: Mutex<u64>,
    bad: std::ops::Range<u64>,
}

impl FaultInjector for Rough {
    fn verdict(&self, op: &Operation) -> FaultVerdict {
        let mut seed = self.seed.lock().unwrap();
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        if op.offset < self.bad.end && self.bad.start < op.offset + u64::from(op.len) {
            return FaultVerdict::Errno(5);
        }
        match *seed >> 60 {
            0..3 => FaultVerdict::Short(1 + (*seed >> 33) as u32 % op.len),
            3 => FaultVerdict::Errno(4),
            _ => FaultVerdict::Pass,
        }
    }
}

#[test]
fn faults_hit_only_the_transfers_they_concern() {
    let seed = datapipes_testkit::seed(19);
    println!("DATAPIPES_SEED={seed}");
    let bad = 10 * MIB + 5000..10 * MIB + 5001;
    let rough = Rough { seed: Mutex::new(seed), bad: bad.clone() };
    let backend = FileBackend::with(datapipes_file::FileBackendOptions::default().faults(Arc::new(rough)));
    let machine = datapipes_core::Machine::new(Topology::discover(), vec![Arc::new(backend)]);
    let runtime = Runtime::start(&machine).unwrap();
    let bytes = pattern(24 * MIB, seed);
    let (ssd, target) = (file_of(&bytes), Dram::allocate(bytes.len()).unwrap());
    let pipe = runtime.connect(&ssd, &target).unwrap();
    let span = |i: u64| Span { source: i * MIB, target: i * MIB, len: MIB };
    let handles: Vec<_> = (0..24).map(|i| pipe.transfer(span(i)).unwrap()).collect();
    for (i, handle) in handles.into_iter().enumerate() {
        let result = if i % 2 == 0 { handle.wait() } else { pollster::block_on(handle) };
        match result {
            Ok(()) => assert_ne!(i, 10),
            Err(e) => {
                assert_eq!((i, e.kind(), e.errno()), (10, ErrorKind::Device, Some(5)), "{e}");
                assert!(e.bytes_done() <= 5000, "{e}");
            }
        }
    }
    let target_bytes = target.lease().unwrap();
    assert!(target_bytes[..10 * MIB as usize] == bytes[..10 * MIB as usize]);
    assert!(target_bytes[11 * MIB as usize..] == bytes[11 * MIB as usize..]);
    drop(target_bytes);
    // One long transfer goes over the bad range: the error says how far the bytes are good.
    let error = pipe.transfer(Span { source: 0, target: 0, len: 24 * MIB }).unwrap().wait().unwrap_err();
    assert!(error.bytes_done() <= bad.start && error.offset().is_some(), "{error}");
    let good = error.bytes_done() as usize;
    assert!(target.lease().unwrap()[..good] == bytes[..good]);
    assert_eq!(runtime.report().under_way, 0);
}

/// Starts transfers without end: each one's callback starts the next, until `stop`.
fn chain(pipe: &RuntimePipe, at: u64, stop: &Arc<AtomicU64>, called: &Arc<AtomicU64>) {
    let (again, stop, called) = (pipe.clone(), stop.clone(), called.clone());
    let handle = pipe.transfer(Span { source: at, target: at, len: 4096 }).unwrap();
    handle.on_done(move |result| {
        result.unwrap();
        called.fetch_add(1, Ordering::SeqCst);
        if stop.load(Ordering::SeqCst) == 0 {
            chain(&again, at, &stop, &called);
        }
    });
}

#[test]
fn a_drain_waits_for_what_was_under_way_and_for_nothing_that_follows() {
    let runtime = Arc::new(Runtime::start(&datapipes::discover()).unwrap());
    let (file, target) = (file_of(&pattern(MIB, 3)), Dram::allocate(MIB as usize).unwrap());
    let pipe = runtime.connect(&file, &target).unwrap();
    let (stop, called) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    for at in 0..8 {
        chain(&pipe, at * 4096, &stop, &called);
    }
    let threads: Vec<_> = (0..3)
        .map(|number| {
            let (runtime, pipe) = (runtime.clone(), pipe.clone());
            move || {
                for round in 0..50 {
                    let done = Arc::new(AtomicU64::new(0));
                    for at in 0..5 {
                        let (at, done) = ((8 + 5 * number + at) * 4096, done.clone());
                        let handle = pipe.transfer(Span { source: at, target: at, len: 4096 }).unwrap();
                        handle.on_done(move |result| {
                            result.unwrap();
                            done.fetch_add(1, Ordering::SeqCst);
                        });
                    }
                    if number == 2 {
                        pipe.drain();
                    }
                    runtime.drain();
                    assert_eq!(done.load(Ordering::SeqCst), 5, "thread {number}, round {round}");
                }
            }
        })
        .map(|work| std::thread::spawn(move || scene::bounded("drains", work)))
        .collect();
    threads.into_iter().for_each(datapipes_testkit::joined);
    // Within a callback likewise.
    let (tell, told) = mpsc::channel();
    let (inner, drains) = (runtime.clone(), pipe.clone());
    pipe.transfer(Span { source: 0, target: 200 * 4096, len: 4096 }).unwrap().on_done(move |_| {
        let handle = drains.transfer(Span { source: 0, target: 201 * 4096, len: 4096 }).unwrap();
        for _ in 0..100 {
            inner.drain();
        }
        tell.send(handle.is_done()).unwrap();
    });
    assert!(told.recv_timeout(PATIENCE).unwrap(), "a drain returned before what was under way had ended");
    stop.store(1, Ordering::SeqCst);
    // Each chain ends one transfer after the other, so the last one may follow the first drain.
    datapipes_testkit::until("the chains end", || {
        runtime.drain();
        runtime.report().under_way == 0
    });
    assert!(called.load(Ordering::SeqCst) > 8);
}
