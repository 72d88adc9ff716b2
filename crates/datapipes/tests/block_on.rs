//! Everything that blocks may be called within `Runtime::block_on`: the thread that does the
//! coordinator's work keeps doing it while it waits.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

mod scene;

use std::sync::Arc;

use datapipes::graph::Graph;
use datapipes::runtime::ConnectOptions;
use datapipes::{ConnectFdOptions, Locator};
use datapipes_testkit::PATIENCE;
use scene::{KIB, MIB, ROUTES, Scene, block_on, bounded};

/// Little is in flight at a time, so that most of what is started is held back.
fn narrow() -> Scene {
    Scene::with(8 * MIB, |config| {
        config.device.outstanding_chunks = 1;
        config.device.chunk_bytes = 4 * KIB;
    })
}

const PIECES: u64 = 24;

/// Runs `work` within `block_on`, on every route, on a runtime whose device takes one part at a
/// time.
fn within_block_on(what: &str, work: impl Fn(&Scene, &str) + Send + Sync + 'static) {
    let work = Arc::new(work);
    for route in ROUTES {
        let work = work.clone();
        bounded(&format!("{what}, {route}"), move || {
            let scene = narrow();
            scene.runtime.block_on(async { work(&scene, route) });
            // A pipe is drained a moment before its last transfer is counted as ended.
            scene.runtime.drain();
            assert_eq!(scene.runtime.report().under_way, 0);
            assert!(scene.has_arrived(route, PIECES), "{route}: other bytes");
        });
    }
}

#[test]
fn waiting_for_transfers_that_are_held_back() {
    within_block_on("wait", |scene, route| {
        let pipe = scene.pipe(route);
        let handles: Vec<_> = (0..PIECES).map(|i| pipe.transfer(scene.span(route, i)).unwrap()).collect();
        // The last one is waited for first: no thread drives the runtime for those before it.
        handles.into_iter().rev().for_each(|handle| handle.wait().unwrap());
    });
}

#[test]
fn draining_a_runtime_and_a_pipe() {
    within_block_on("drain", |scene, route| {
        let pipe = scene.pipe(route);
        for i in 0..PIECES / 2 {
            drop(pipe.transfer(scene.span(route, i)).unwrap());
        }
        scene.runtime.drain();
        assert_eq!(pipe.under_way(), 0);
        for i in PIECES / 2..PIECES {
            drop(pipe.transfer(scene.span(route, i)).unwrap());
        }
        pipe.drain();
    });
}

#[test]
fn waiting_for_room() {
    within_block_on("room", |scene, route| {
        let pipe = scene.pipe_with(route, ConnectOptions::default().queue(2));
        for i in 0..PIECES {
            drop(pipe.transfer(scene.span(route, i)).unwrap());
        }
        pipe.drain();
    });
}

#[test]
fn cancelling() {
    within_block_on("cancel", |scene, route| {
        let pipe = scene.pipe(route);
        for i in 0..PIECES {
            pipe.transfer(scene.span(route, i)).unwrap().cancel().unwrap();
        }
        for i in 0..PIECES {
            pipe.transfer(scene.span(route, i)).unwrap().wait().unwrap();
        }
    });
}

#[test]
fn running_a_graph() {
    within_block_on("graph", |scene, route| {
        let pipe = scene.pipe(route);
        let mut graph = Graph::new("within");
        let part = graph.pipe("move", &pipe, |item| Ok(scene.span(route, item.index())));
        let note = graph.compute("note", |_| Ok(()));
        graph.after(note, part).unwrap();
        graph.threads(1);
        scene.runtime.run(&graph, PIECES).unwrap();
    });
}

#[test]
fn completing_by_a_descriptor() {
    within_block_on("descriptor", |scene, route| {
        let source: &dyn Locator =
            if route.contains("ring") || route.contains("blocks") { &scene.file } else { &scene.memory };
        // With a small depth a byte in the socket reports each completion, with a large one a
        // packet.
        for depth in [4, 200] {
            let ask = ConnectFdOptions::default().depth(depth);
            let pipe = scene.runtime.connect_fd_with(source, &scene.target, &ask).unwrap();
            let (mut started, mut done) = (0, 0);
            while done < PIECES {
                if started < PIECES && pipe.submit(scene.span(route, started)).is_ok() {
                    started += 1;
                } else {
                    pipe.complete_wait().unwrap().result.unwrap();
                    done += 1;
                }
            }
        }
    });
}

#[test]
fn another_future_within_and_others_beside() {
    within_block_on("block_on", |scene, route| {
        let pipe = scene.pipe(route);
        std::thread::scope(|scope| {
            let beside = scope.spawn(|| {
                for i in PIECES / 2..PIECES {
                    scene.runtime.block_on(async { pipe.transfer(scene.span(route, i)).unwrap().await }).unwrap();
                }
            });
            for i in 0..PIECES / 2 {
                scene.runtime.block_on(async { pipe.transfer(scene.span(route, i)).unwrap().await }).unwrap();
            }
            beside.join().unwrap();
        });
    });
}

#[test]
fn what_others_await_is_not_held_up_by_a_future_that_blocks() {
    for route in ROUTES {
        bounded(&format!("a future that blocks, {route}"), move || {
            let scene = narrow();
            let pipe = scene.pipe(route);
            let (go, wait) = std::sync::mpsc::channel::<()>();
            std::thread::scope(|scope| {
                let scene = &scene;
                let blocks =
                    scope.spawn(move || scene.runtime.block_on(async move { wait.recv_timeout(PATIENCE).unwrap() }));
                let handles: Vec<_> = (0..PIECES).map(|i| pipe.transfer(scene.span(route, i)).unwrap()).collect();
                handles.into_iter().rev().for_each(|handle| block_on(handle).unwrap());
                go.send(()).unwrap();
                blocks.join().unwrap();
            });
            assert!(scene.has_arrived(route, PIECES));
        });
    }
}
