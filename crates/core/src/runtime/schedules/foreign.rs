//! Foreign code that blocks, calls back and panics in threads that do the coordinator's work.

use super::places::{CHUNK, Far, block_on, dram, runtime, span};
use super::{over, queue};
use crate::error::ErrorKind;
use crate::runtime::{Runtime, RuntimePipe};
use crate::span::Span;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, thread};
use datapipes_testkit::schedules;

#[test]
fn a_future_may_drain_wait_and_want_room_in_the_thread_that_does_the_work() {
    schedules(|| {
        // One part out at a time: what is started is held back.
        let runtime = Arc::new(runtime(1));
        let (far, near) = (Far::evented("a", None), dram(4096));
        let hardware = far.device.run();
        let pipe = runtime.connect_with(&far, &near, &queue(2)).unwrap();
        let threads: Vec<_> = (0..3)
            .map(|i| {
                let (runtime, pipe) = (runtime.clone(), pipe.clone());
                thread::spawn(move || {
                    runtime.block_on(async {
                        let handle = pipe.transfer(span(2 * i, 2)).unwrap();
                        match i {
                            0 => handle.wait().unwrap(),
                            1 => {
                                drop(handle);
                                pipe.drain();
                            }
                            _ => runtime.block_on(handle).unwrap(),
                        }
                        // Room is made by nobody but the coordinator.
                        pipe.transfer(span(2 * i + 1, 1)).unwrap().await.unwrap();
                    });
                })
            })
            .collect();
        let beside = {
            let pipe = pipe.clone();
            thread::spawn(move || block_on(pipe.transfer(span(7, 2)).unwrap()).unwrap())
        };
        threads.into_iter().for_each(|t| t.join().unwrap());
        beside.join().unwrap();
        runtime.drain();
        assert_eq!(runtime.report().under_way, 0);
        drop((pipe, runtime));
        over([(&far, hardware)]);
    });
}

/// Starts a transfer whose callback starts the next one and waits for it in some way.
fn call_back(pipe: &RuntimePipe, runtime: &Arc<Mutex<Option<Runtime>>>, i: u64, called: &Arc<AtomicU64>) {
    let (again, runtime, called) = (pipe.clone(), runtime.clone(), called.clone());
    pipe.transfer(span(2 * i, 2)).unwrap().on_done(move |result| {
        result.unwrap();
        let next = again.transfer(span(2 * i + 1, 2));
        match (i, next) {
            (0, Ok(next)) => next.wait().unwrap(),
            (1, Ok(next)) => {
                drop(next);
                again.drain();
            }
            (_, next) => {
                drop(next);
                // Without the lock: another callback may want it, and in the model nobody stands in
                // for one that blocks.
                let runtime = runtime.lock().take();
                drop(runtime);
            }
        }
        called.fetch_add(1, Ordering::SeqCst);
    });
}

#[test]
fn callbacks_may_wait_drain_and_drop_the_runtime() {
    schedules(|| {
        let runtime = runtime(1);
        let (far, near) = (Far::evented("a", None), dram(4096));
        let hardware = far.device.run();
        let pipe = runtime.connect(&far, &near).unwrap();
        let (runtime, called) = (Arc::new(Mutex::new(Some(runtime))), Arc::new(AtomicU64::new(0)));
        for i in 0..3 {
            call_back(&pipe, &runtime, i, &called);
        }
        let polls = {
            let pipe = pipe.clone();
            thread::spawn(move || match pipe.transfer(span(7, 2)) {
                Ok(handle) => block_on(handle).unwrap(),
                // The runtime is gone.
                Err(e) => assert_eq!(e.kind(), ErrorKind::Unavailable),
            })
        };
        polls.join().unwrap();
        // The callback that drops it may not have run yet.
        while called.load(Ordering::SeqCst) < 3 {
            thread::yield_now();
        }
        assert!(runtime.lock().is_none());
        assert_eq!(pipe.under_way(), 0);
        assert!(near.lease_mut().is_ok(), "a lease was left behind");
        drop((pipe, runtime));
        over([(&far, hardware)]);
    });
}

#[test]
fn a_worker_pool_of_one_serves_a_waker_that_waits_for_it() {
    schedules(|| {
        let mut config = super::places::config(1);
        config.copiers = 1;
        let runtime = Arc::new(super::places::runtime_with(config));
        let (source, target) = (dram(4096), dram(4096));
        let pipe = runtime.connect(&source, &target).unwrap();
        /// Waits for another transfer of the same worker pool, on the worker pool's thread.
        struct Waits(RuntimePipe, Arc<AtomicU64>);
        impl std::task::Wake for Waits {
            fn wake(self: Arc<Self>) {
                let at = Span { source: 0, target: 256, len: 2 * CHUNK };
                self.0.transfer(at).unwrap().wait().unwrap();
                self.1.fetch_add(1, Ordering::SeqCst);
            }
        }
        let woken = Arc::new(AtomicU64::new(0));
        let waker = std::task::Waker::from(Arc::new(Waits(pipe.clone(), woken.clone())));
        let mut handle = pipe.transfer(Span { source: 0, target: 0, len: 2 * CHUNK }).unwrap();
        let mut context = std::task::Context::from_waker(&waker);
        let ready = std::future::Future::poll(std::pin::Pin::new(&mut handle), &mut context).is_ready();
        while !ready && woken.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        drop((handle, waker));
        runtime.drain();
        assert!(target.lease_mut().is_ok());
        drop((pipe, runtime));
    });
}
