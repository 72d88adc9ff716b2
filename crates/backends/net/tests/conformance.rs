//! The conformance suite over remote memory, by shared memory and by TCP, and all flavors of a
//! pipe.
#![allow(clippy::unwrap_used)]

mod scene;

use datapipes_core::{ConnectOptions, Dram, ErrorKind, Runtime, Span};
use datapipes_net::{NetworkOptions, RemoteRights};
use datapipes_testkit::{bounded, seed};
use scene::{BY_UCX, Scene, certify, connect, constraints, has_ucx, machine, networks, pattern};

#[test]
fn remote_memory_by_shared_memory_passes_the_suite() {
    if has_ucx("remote memory by shared memory") {
        let by_kernel: &[&[&str]] = &[&["vm-put"], &["vm-get"], &["vm-get", "vm-put"]];
        let ways = [by_kernel, BY_UCX].concat();
        certify("remote memory by shared memory", networks()[1].1.clone(), &ways, seed(0x0c5));
    }
}

#[test]
fn remote_memory_by_tcp_passes_the_suite() {
    if has_ucx("remote memory by TCP") {
        certify("remote memory by TCP", networks()[2].1.clone(), BY_UCX, seed(0x0c5));
    }
}

/// Parts of one transfer, out and back, by a runtime: its coordinator waits on the mover's event.
fn by_a_runtime(name: &str, network: &NetworkOptions) {
    let len = (3 << 20) + 7;
    let scene = Scene::new(network, len, RemoteRights::ReadWrite);
    let remote = scene.remote().unwrap();
    let runtime = Runtime::start(&machine()).unwrap();
    let (here, back) = (pattern(len, 5), Dram::allocate(len).unwrap());
    let options = ConnectOptions::default().constraints(constraints(name));
    let put = runtime.connect_with(&here, &remote, &options).unwrap();
    let get = runtime.connect_with(&remote, &back, &options).unwrap();
    let piece = len as u64 / 16;
    let spans: Vec<_> = (0..16).map(|i| Span { source: i * piece, target: i * piece, len: piece }).collect();
    for pipe in [&put, &get] {
        let handles: Vec<_> = spans.iter().map(|span| pipe.transfer(*span).unwrap()).collect();
        handles.into_iter().for_each(|handle| handle.wait().unwrap());
    }
    let moved = 16 * piece as usize;
    assert_eq!(scene.bytes()[..moved], here.lease().unwrap()[..moved]);
    assert_eq!(back.lease().unwrap()[..moved], here.lease().unwrap()[..moved]);
    // A transfer that nobody waits for.
    let span = Span { source: 1, target: 2, len: 1 << 20 };
    drop(put.transfer(span).unwrap());
    put.drain();
    assert_eq!(scene.bytes()[2..2 + (1 << 20)], here.lease().unwrap()[1..1 + (1 << 20)]);
    // The same as a descriptor.
    let descriptor = runtime.connect_fd(&here, &remote).unwrap();
    let token = descriptor.submit(Span { source: 3, target: 5, len: 100_000 }).unwrap();
    let done = descriptor.complete_wait().unwrap();
    assert_eq!((done.token, done.result.is_ok()), (token, true));
    assert_eq!(scene.bytes()[5..100_005], here.lease().unwrap()[3..100_003]);
}

#[test]
fn a_runtime_moves_remote_memory() {
    if has_ucx("a runtime moves remote memory") {
        for (name, network) in networks() {
            bounded("a runtime moves remote memory", move || by_a_runtime(name, &network));
        }
    }
}

#[test]
fn threads_share_a_pipe() {
    if !has_ucx("threads share a pipe") {
        return;
    }
    bounded("threads share a pipe", || {
        let (len, threads) = (1 << 20, 4);
        for (name, network) in &networks()[..2] {
            let scene = Scene::new(network, len, RemoteRights::ReadWrite);
            let remote = scene.remote().unwrap();
            let here = pattern(len, 9);
            let pipe = connect(name, &here, &remote).unwrap();
            let share = (len / threads) as u64;
            std::thread::scope(|scope| {
                for thread in 0..threads as u64 {
                    let pipe = &pipe;
                    scope.spawn(move || {
                        for at in (0..share).step_by(5000) {
                            let at = thread * share + at;
                            let len = 5000.min((thread + 1) * share - at);
                            pipe.transfer(Span { source: at, target: at, len }).unwrap();
                        }
                    });
                }
            });
            assert_eq!(scene.bytes(), here.lease().unwrap()[..], "{name}");
        }
    });
}

#[test]
fn what_lies_outside_is_refused() {
    if !has_ucx("what lies outside is refused") {
        return;
    }
    for (name, network) in &networks()[..2] {
        refuses_what_lies_outside(name, network);
    }
}

fn refuses_what_lies_outside(name: &str, network: &NetworkOptions) {
    let scene = Scene::new(network, 8192, RemoteRights::ReadWrite);
    let remote = scene.remote().unwrap();
    let here = Dram::allocate(8192).unwrap();
    let (put, get) = (connect(name, &here, &remote).unwrap(), connect(name, &remote, &here).unwrap());
    for far in [8191, 8192, u64::MAX - 1, u64::MAX] {
        for outcome in [
            put.transfer(Span { source: 0, target: far, len: 2 }),
            get.transfer(Span { source: far, target: 0, len: 2 }),
        ] {
            let kind = outcome.unwrap_err().kind();
            assert!(matches!(kind, ErrorKind::OutOfRange | ErrorKind::InvalidInput), "{far}: {kind:?}");
        }
    }
    put.transfer(Span { source: 0, target: 8190, len: 2 }).unwrap();
    assert_eq!((put.report().hops[0].counters.transfers, put.report().hops[0].counters.bytes), (1, 2));
}
