//! The descriptor flavor with select, poll and epoll, and the other two flavors made from it
//! (CIDR'23, figure 6c).
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

mod scene;

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc;

use datapipes::descriptor::wire::{COMPLETION_BYTES, Completion, TransferRequest};
use datapipes::{
    ConnectFdOptions, ConnectOptions, CoreCache, Dram, ErrorKind, FileAccess, Locator, PipeFd, Runtime, ServiceLevel,
    Span,
};
use datapipes_testkit::{PATIENCE, joined, poll_until};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use scene::{MIB, empty_file, file_of, memory_of, pattern};

const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

fn readiness(fd: BorrowedFd<'_>) -> PollFlags {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN | PollFlags::OUT)];
    poll(&mut fds, Some(&NOW)).unwrap();
    fds[0].revents()
}

#[test]
fn writable_when_it_can_take_a_transfer_readable_when_one_is_done_for_every_pair() {
    let machine = datapipes::discover();
    let runtime = Runtime::start(&machine).unwrap();
    let bytes = pattern(4 * MIB);
    let (file, memory) = (file_of(&bytes), memory_of(&bytes));
    let core = machine.topology().usable_cores().next().unwrap().clone();
    let small = Dram::allocate(128 << 10).unwrap();
    let cache = CoreCache::over(&core, &small).unwrap();
    let targets: Vec<(&dyn Locator, u64)> = vec![(&cache, 128 << 10)];
    let (into_memory, into_file) = (Dram::allocate(bytes.len()).unwrap(), empty_file());
    let pairs = [(&into_memory as &dyn Locator, bytes.len() as u64), (&into_file, bytes.len() as u64)];
    for source in [&file as &dyn Locator, &memory] {
        for (target, len) in targets.iter().chain(&pairs).copied() {
            let ask = ConnectFdOptions::default().depth(2).place(42);
            let pipe = runtime.connect_fd_with(source, target, &ask).unwrap();
            assert_eq!(readiness(pipe.as_fd()), PollFlags::OUT, "{pipe:?}");
            assert!(pipe.complete().unwrap().is_none());
            let token = pipe.submit(Span { source: 0, target: 0, len }).unwrap();
            poll_until(pipe.as_fd(), PollFlags::IN);
            let done = pipe.complete().unwrap().unwrap();
            done.result.unwrap();
            assert_eq!((done.token, done.place, done.bytes), (token, 42, len));
            assert!(readiness(pipe.as_fd()).contains(PollFlags::OUT) && pipe.complete().unwrap().is_none());
        }
    }
    assert!(into_memory.lease().unwrap()[..] == bytes[..] && small.lease().unwrap()[..] == bytes[..128 << 10]);
}

#[test]
fn a_full_pipe_is_not_writable_until_one_is_done_and_taken_or_not() {
    let machine = datapipes::discover();
    let runtime = Runtime::start(&machine).unwrap();
    let bytes = pattern(64 * MIB);
    let (file, target) = (file_of(&bytes), Dram::allocate(bytes.len()).unwrap());
    let ask = ConnectFdOptions::default().depth(3);
    let pipe = runtime.connect_fd_with(&file, &target, &ask).unwrap();
    let mut next = 0;
    let mut taken = 0;
    while taken < 64 {
        while next < 64 && readiness(pipe.as_fd()).contains(PollFlags::OUT) {
            match pipe.submit(Span { source: next * MIB, target: next * MIB, len: MIB }) {
                Ok(_) => next += 1,
                Err(e) => panic!("writable, and {e}"),
            }
        }
        if next < 64 {
            // It was not writable a moment ago; a transfer that ended since then made room.
            match pipe.submit(Span { source: next * MIB, target: next * MIB, len: MIB }) {
                Ok(_) => next += 1,
                Err(e) => assert_eq!(e.kind(), ErrorKind::Busy),
            }
        }
        pipe.complete_wait().unwrap().result.unwrap();
        taken += 1;
    }
    assert!(target.lease().unwrap()[..] == bytes[..]);
}

#[test]
fn who_waits_for_room_and_takes_no_completion_is_let_in_when_one_is_done() {
    let machine = datapipes::discover();
    let runtime = Runtime::start(&machine).unwrap();
    let bytes = pattern(8 * MIB);
    let (file, target) = (file_of(&bytes), Dram::allocate(bytes.len()).unwrap());
    // The pipe is so slow that three transfers are in flight for longer than the check takes.
    let service = ServiceLevel::default().at_most(20e6);
    let connect = ConnectOptions::default().service(service);
    let ask = ConnectFdOptions::default().depth(3).connect(connect);
    let pipe = runtime.connect_fd_with(&file, &target, &ask).unwrap();
    for i in 0..8 {
        if i >= 3 {
            // A busy machine may look so late that one of the three is done.
            let ready = readiness(pipe.as_fd());
            assert!(i > 3 || !ready.contains(PollFlags::OUT) || ready.contains(PollFlags::IN), "three are under way");
            poll_until(pipe.as_fd(), PollFlags::OUT);
        }
        pipe.submit(Span { source: i * MIB, target: i * MIB, len: MIB }).unwrap();
    }
    for _ in 0..8 {
        poll_until(pipe.as_fd(), PollFlags::IN);
        let done = pipe.complete().unwrap().expect("readable, and nothing is done");
        done.result.unwrap();
    }
    assert!(pipe.complete().unwrap().is_none());
    assert!(target.lease().unwrap()[..] == bytes[..]);
}

#[test]
fn level_and_edge_triggered_over_many_pipes_each_event_names_the_place() {
    let machine = datapipes::discover();
    let runtime = Runtime::start(&machine).unwrap();
    let bytes = pattern(8 * MIB);
    for edge in [EventFlags::empty(), EventFlags::ET] {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let targets: Vec<Dram> = (0..4).map(|_| Dram::allocate(bytes.len()).unwrap()).collect();
        let (file, memory) = (file_of(&bytes), memory_of(&bytes));
        let pipes: Vec<PipeFd> = (0..4)
            .map(|i| {
                let source: &dyn Locator = if i % 2 == 0 { &file } else { &memory };
                let ask = ConnectFdOptions::default().depth(4).place(i as u64);
                let pipe = runtime.connect_fd_with(source, &targets[i], &ask).unwrap();
                epoll::add(&epoll, &pipe, EventData::new_u64(i as u64), EventFlags::IN | EventFlags::OUT | edge)
                    .unwrap();
                pipe
            })
            .collect();
        let pieces = 32;
        let len = bytes.len() as u64 / pieces;
        let (mut started, mut done) = ([0u64; 4], [0u64; 4]);
        let mut events = Vec::with_capacity(8);
        while done.iter().sum::<u64>() < 4 * pieces {
            events.clear();
            // The kernel ends a wait of a thread that opened a ring when the ring of an earlier
            // pipe is closed.
            poll_until(&epoll, PollFlags::IN);
            retry_on_intr(|| epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None)).unwrap();
            for event in &events {
                let i = event.data.u64() as usize;
                // An edge-triggered program must read until there is nothing more.
                while let Some(completion) = pipes[i].complete().unwrap() {
                    completion.result.unwrap();
                    assert_eq!(completion.place, i as u64);
                    done[i] += 1;
                }
                while started[i] < pieces {
                    match pipes[i].submit(Span { source: started[i] * len, target: started[i] * len, len }) {
                        Ok(_) => started[i] += 1,
                        Err(e) => {
                            assert_eq!(e.kind(), ErrorKind::Busy);
                            break;
                        }
                    }
                }
                if started[i] == pieces && edge.is_empty() {
                    // A level-triggered program drops its interest in writing when it has nothing
                    // to write.
                    epoll::modify(&epoll, &pipes[i], event.data, EventFlags::IN).unwrap();
                }
            }
        }
        for target in &targets {
            assert!(target.lease().unwrap()[..] == bytes[..]);
        }
    }
}

#[test]
fn plain_packets_from_another_thread_that_knows_nothing_but_the_descriptor() {
    let machine = datapipes::discover();
    let runtime = Runtime::start(&machine).unwrap();
    let bytes = pattern(16 * MIB);
    let (file, target) = (file_of(&bytes), Dram::allocate(bytes.len()).unwrap());
    let ask = ConnectFdOptions::default().depth(4).place(9);
    let (fd, pipe) = runtime.connect_raw_fd(&file, &target, &ask).unwrap();
    let thread = std::thread::spawn(move || {
        let mut completions = HashMap::new();
        let mut sent = 0;
        while completions.len() < 18 {
            poll_until(fd.as_fd(), if sent < 18 { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN });
            // Two of them do not fit: 16 MiB at 15.5 and at 16.
            let at = if sent < 16 { sent * MIB } else { (15 + (sent - 15)) * MIB };
            let request = TransferRequest { token: 100 + sent, span: Span { source: at, target: at, len: MIB } };
            if sent < 18 && rustix::io::write(&fd, &request.to_bytes()).is_ok() {
                sent += 1;
            }
            let mut message = [0; 1024];
            while let Ok(len) = rustix::io::read(&fd, &mut message) {
                assert!(len >= COMPLETION_BYTES);
                let done = Completion::from_bytes(&message[..len]).unwrap();
                assert!(completions.insert(done.token, done.result.map_err(|e| (e.kind(), e.to_string()))).is_none());
            }
        }
        // An invalid message is answered, not ignored.
        rustix::io::write(&fd, b"hello").unwrap();
        poll_until(fd.as_fd(), PollFlags::IN);
        let mut message = [0; 1024];
        let len = rustix::io::read(&fd, &mut message).unwrap();
        let answer = Completion::from_bytes(&message[..len]).unwrap();
        assert_eq!((answer.token, answer.result.unwrap_err().kind()), (u64::MAX, ErrorKind::InvalidInput));
        completions
    });
    let completions = joined(thread);
    for token in 100..118 {
        match &completions[&token] {
            Ok(()) => assert!(token < 116),
            Err((kind, text)) => {
                assert!(token >= 116 && *kind == ErrorKind::OutOfRange && text.contains("bytes at"), "{text}")
            }
        }
    }
    assert!(target.lease().unwrap()[..] == bytes[..]);
    pipe.drain();
}

#[test]
fn whoever_waits_hears_that_the_runtime_is_gone() {
    scene::bounded("the end of a runtime", || {
        let machine = datapipes::discover();
        let bytes = pattern(MIB);
        let (file, target) = (file_of(&bytes), Dram::allocate(bytes.len()).unwrap());
        for round in 0..20 {
            let runtime = Runtime::start(&machine).unwrap();
            let pipe = runtime.connect_fd(&file, &target).unwrap();
            pipe.submit(Span { source: 0, target: 0, len: MIB }).unwrap();
            let waits = || {
                let mut done = 0;
                loop {
                    match pipe.complete_wait() {
                        Ok(completion) => done += usize::from(completion.result.is_ok()),
                        Err(e) => return (done, e.kind()),
                    }
                }
            };
            std::thread::scope(|scope| {
                let waiting = scope.spawn(waits);
                if round % 2 == 0 {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
                drop(runtime);
                // Completions from before are reported first.
                assert_eq!(waiting.join().unwrap(), (1, ErrorKind::Unavailable), "round {round}");
            });
            assert_eq!(pipe.complete().unwrap_err().kind(), ErrorKind::Unavailable);
            assert!(readiness(pipe.as_fd()).contains(PollFlags::IN), "its end is to be read");
            let late = pipe.submit(Span { source: 0, target: 0, len: MIB });
            assert!(late.is_err() || pipe.complete().unwrap().unwrap().result.is_err(), "round {round}");
        }
    });
}

#[test]
fn several_threads_that_come_and_go_take_each_completion() {
    scene::bounded("threads in complete_wait", || {
        let machine = datapipes::discover();
        let runtime = Runtime::start(&machine).unwrap();
        let bytes = pattern(MIB);
        let (file, target) = (file_of(&bytes), Dram::allocate(bytes.len()).unwrap());
        file.sync().unwrap();
        // Past the page cache a device signals completions; if that is not possible, the file is
        // used as it is.
        for access in [FileAccess::Direct, FileAccess::Cached] {
            let file = file.clone().with_access(access).unwrap_or_else(|_| file.clone());
            let ask = ConnectFdOptions::default().depth(64);
            let pipe = runtime.connect_fd_with(&file, &target, &ask).unwrap();
            for round in 0..100 {
                let submit = |thread: u64| {
                    for n in 0..16 {
                        let at = (thread * 16 + n) * 4096;
                        pipe.submit(Span { source: at, target: at, len: 4096 }).unwrap();
                    }
                };
                std::thread::scope(|scope| {
                    for thread in 0..4u64 {
                        let (pipe, submit) = (&pipe, &submit);
                        scope.spawn(move || {
                            // In turns, one thread that ends before they are done submits for all,
                            // or each submits for itself.
                            if round % 2 == 0 {
                                submit(thread);
                            } else if thread == 0 {
                                scope.spawn(move || (0..4).for_each(submit));
                            }
                            for _ in 0..16 {
                                pipe.complete_wait().unwrap().result.unwrap();
                            }
                        });
                    }
                });
                assert!(pipe.complete().unwrap().is_none(), "round {round}");
                let end = 64 * 4096;
                assert!(target.lease().unwrap()[..end] == bytes[..end]);
                target.lease_mut().unwrap().fill(0);
            }
        }
    });
}

#[test]
fn a_descriptor_that_is_closed_ends_its_pipe_and_loses_no_byte() {
    let machine = datapipes::discover();
    let runtime = Runtime::start(&machine).unwrap();
    let bytes = pattern(32 * MIB);
    let (file, target) = (file_of(&bytes), Dram::allocate(bytes.len()).unwrap());
    let pipe = runtime.connect_fd(&file, &target).unwrap();
    for i in 0..32 {
        pipe.submit(Span { source: i * MIB, target: i * MIB, len: MIB }).unwrap();
    }
    drop(pipe);
    runtime.drain();
    assert!(target.lease().unwrap()[..] == bytes[..]);
}

#[test]
fn a_pipe_that_its_giver_ends_stops_what_was_not_begun() {
    let runtime = Runtime::start(&datapipes::discover()).unwrap();
    let bytes = pattern(8 << 20);
    let (memory, file) = (memory_of(&bytes), file_of(&bytes));
    let into = Dram::allocate(bytes.len()).unwrap();
    let (copy, target) = (empty_file(), empty_file());
    let pairs: [(&dyn Locator, &dyn Locator); 4] =
        [(&memory, &into), (&file, &into), (&memory, &target), (&file, &copy)];
    for (source, over) in pairs {
        for turn in 0..20u64 {
            let mut ask = ConnectFdOptions::default();
            // Either a byte per second, which never ends, or full speed while it is ended.
            let slow = turn % 2 == 0;
            ask.connect.service.at_most = slow.then_some(1.0);
            let (told, ended) = std::sync::mpsc::channel::<()>();
            let (socket, given) = runtime.pass_fd(source, over, &ask, Box::new(std::sync::Mutex::new(told))).unwrap();
            for token in 0..8 {
                let span = Span { source: token << 20, target: token << 20, len: 1 << 20 };
                let request = TransferRequest { token, span }.to_bytes();
                poll_until(socket.as_fd(), PollFlags::OUT);
                rustix::net::send(&socket, &request, rustix::net::SendFlags::NOSIGNAL).unwrap();
            }
            std::thread::sleep(std::time::Duration::from_micros(turn * 200));
            given.end();
            // Its keeper is dropped when nothing of it is left.
            let outcome = ended.recv_timeout(std::time::Duration::from_secs(60));
            assert_eq!(outcome, Err(std::sync::mpsc::RecvTimeoutError::Disconnected), "turn {turn}: it does not end");
            assert!(given.pipe().is_none());
        }
        runtime.drain();
        assert_eq!(runtime.report().under_way, 0);
    }
    // The leases are gone with the transfers.
    memory.lease_mut().unwrap().fill(1);
    into.lease_mut().unwrap().fill(1);
}

/// The blocking flavor made from a descriptor: "encapsulating lines 15 - 28 into a transfer method"
/// (section 5.2).
fn transfer(pipe: &PipeFd, span: Span) -> datapipes::Result<()> {
    poll_until(pipe.as_fd(), PollFlags::OUT);
    let token = pipe.submit(span)?;
    poll_until(pipe.as_fd(), PollFlags::IN);
    let done = pipe.complete()?.unwrap();
    assert_eq!(done.token, token);
    done.result
}

/// The inversion of control made from a descriptor: "adding a request to a queue before epolling on
/// a separate thread".
struct Inverted {
    queue: mpsc::Sender<(Span, mpsc::Sender<datapipes::Result<()>>)>,
    thread: std::thread::JoinHandle<()>,
}

impl Inverted {
    fn over(pipe: PipeFd) -> Inverted {
        let (queue, requests) = mpsc::channel::<(Span, mpsc::Sender<_>)>();
        let thread = std::thread::spawn(move || {
            let mut promises = HashMap::new();
            let mut closed = false;
            while !closed || !promises.is_empty() {
                let next = if promises.is_empty() { requests.recv().ok() } else { requests.try_recv().ok() };
                match next {
                    Some((span, promise)) => {
                        poll_until(pipe.as_fd(), PollFlags::OUT);
                        promises.insert(pipe.submit(span).unwrap(), promise);
                    }
                    None if promises.is_empty() => closed = true,
                    None => _ = poll_until(pipe.as_fd(), PollFlags::IN),
                }
                while let Some(done) = pipe.complete().unwrap() {
                    promises.remove(&done.token).unwrap().send(done.result).unwrap();
                }
            }
        });
        Inverted { queue, thread }
    }

    fn transfer(&self, span: Span) -> mpsc::Receiver<datapipes::Result<()>> {
        let (promise, future) = mpsc::channel();
        self.queue.send((span, promise)).unwrap();
        future
    }
}

#[test]
fn both_other_flavors_can_be_had_from_the_descriptor() {
    let machine = datapipes::discover();
    let bytes = pattern(8 * MIB);
    let (file, target) = (file_of(&bytes), Dram::allocate(bytes.len()).unwrap());
    let pipe = machine.connect_fd(&file, &target).unwrap();
    for i in 0..8 {
        transfer(&pipe, Span { source: i * MIB, target: i * MIB, len: MIB }).unwrap();
    }
    assert_eq!(transfer(&pipe, Span { source: 8 * MIB, target: 0, len: 1 }).unwrap_err().kind(), ErrorKind::EndOfFile);
    assert!(target.lease().unwrap()[..] == bytes[..]);
    target.lease_mut().unwrap().fill(0);
    let inverted = Inverted::over(pipe);
    let futures: Vec<_> =
        (0..8).map(|i| inverted.transfer(Span { source: i * MIB, target: i * MIB, len: MIB })).collect();
    for future in futures {
        future.recv_timeout(PATIENCE).unwrap().unwrap();
    }
    drop(inverted.queue);
    joined(inverted.thread);
    assert!(target.lease().unwrap()[..] == bytes[..]);
}

#[test]
fn closing_a_pipe_wakes_who_waits_for_its_completions() {
    let runtime = Runtime::start(&datapipes::discover()).unwrap();
    let (file, target) = (file_of(&pattern(MIB)), Dram::allocate(MIB as usize).unwrap());
    for sleeps in [false, true] {
        let pipe = std::sync::Arc::new(runtime.connect_fd(&file, &target).unwrap());
        let waits: Vec<_> = (0..2)
            .map(|_| {
                let pipe = pipe.clone();
                std::thread::spawn(move || pipe.complete_wait().unwrap_err().kind())
            })
            .collect();
        if sleeps {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        pipe.close();
        for thread in waits {
            assert_eq!(joined(thread), ErrorKind::Unavailable);
        }
        let span = Span { source: 0, target: 0, len: MIB };
        assert_eq!(pipe.submit(span).unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(pipe.complete().unwrap_err().kind(), ErrorKind::Unavailable);
    }
    // Whenever the pipe is closed, the reason is that. The runtime is there.
    for _ in 0..2000 {
        let pipe = std::sync::Arc::new(runtime.connect_fd(&file, &target).unwrap());
        let asked = pipe.clone();
        let (started, starts) = mpsc::channel();
        let asks = std::thread::spawn(move || {
            started.send(()).unwrap();
            loop {
                if let Err(e) = asked.complete() {
                    return e;
                }
            }
        });
        starts.recv_timeout(PATIENCE).unwrap();
        pipe.close();
        let error = joined(asks);
        assert!(error.to_string().contains("the pipe was closed"), "{error}");
    }
    // What was under way goes on.
    let pipe = runtime.connect_fd(&file, &target).unwrap();
    pipe.submit(Span { source: 0, target: 0, len: MIB }).unwrap();
    pipe.close();
    runtime.drain();
    assert!(target.lease().unwrap()[..] == pattern(MIB)[..]);
}
