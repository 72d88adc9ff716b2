//! Pipes of real processes through a real service.
#![allow(clippy::unwrap_used)]

mod scene;

use std::io::{BufRead, BufReader};

use datapipes::descriptor::wire::{Completion, TransferRequest};
use datapipes::{ConnectFdOptions, ConnectOptions, ErrorKind, PriorityClass, ServiceLevel as Asked, Span, Ssd};
use datapipes_service::{Client, ClientPlace, SharedMemory};
use datapipes_testkit::poll_until;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::retry_on_intr;
use scene::{MIB, Service, content, file_of, memory_of, pattern};

fn whole(len: u64) -> Span {
    Span { source: 0, target: 0, len }
}

/// Moves and checks bytes: memory to memory, file to memory, memory to file, file to file.
fn every_pair(client: &Client, seed: u64, rounds: u64) {
    let len = 4 * MIB;
    for round in 0..rounds {
        let bytes = pattern(len as usize, seed * 1000 + round);
        let (memory, file) = (memory_of(&bytes), file_of(&bytes));
        let (to_memory, from_file) =
            (SharedMemory::create(len as usize).unwrap(), SharedMemory::create(len as usize).unwrap());
        let (to_file, copy) = (Ssd::unlinked_in(scene::disk()).unwrap(), Ssd::unlinked_in(scene::disk()).unwrap());
        let pairs = [
            (ClientPlace::memory(&memory), ClientPlace::memory(&to_memory)),
            (ClientPlace::file(&file), ClientPlace::memory(&from_file)),
            (ClientPlace::memory(&memory), ClientPlace::file(&to_file)),
            (ClientPlace::file(&file), ClientPlace::file(&copy)),
        ];
        for (source, target) in &pairs {
            let mut pipe = client.connect_pipe(source, target, &ConnectFdOptions::default()).unwrap();
            // The pieces begin anywhere, and the last one comes first.
            for (at, end) in [(len / 2 + 4097, len), (1234, len / 2 + 4097), (0, 1234)] {
                pipe.transfer(Span { source: at, target: at, len: end - at }).unwrap();
            }
            assert!(!pipe.route().is_empty());
        }
        for memory in [&to_memory, &from_file] {
            assert!(memory.to_vec().unwrap()[..] == bytes[..], "seed {seed}, round {round}");
        }
        for file in [&to_file, &copy] {
            assert!(content(file, bytes.len()) == bytes, "seed {seed}, round {round}");
        }
    }
}

#[test]
#[ignore = "run by two_processes_at_once_move_every_pair"]
fn child_that_moves_every_pair() {
    let (socket, seed) = scene::told();
    every_pair(&Client::connect(socket).unwrap(), seed, 3);
    println!("verified");
}

#[test]
fn two_processes_at_once_move_every_pair() {
    let service = Service::start(&[]);
    let before = service.with(0);
    let children = [1, 2].map(|seed| scene::child("child_that_moves_every_pair", &service.socket, seed));
    for mut child in children {
        let lines: Vec<String> = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok).collect();
        assert!(child.wait().unwrap().success(), "{lines:?}");
        assert!(lines.iter().any(|line| line.contains("verified")), "{lines:?}");
    }
    let after = service.until("their memory goes", |now| now.mapped_bytes == 0 && now.connected == 1);
    let completed = |status: &datapipes_service::ServiceStatus| status.runtime.completed;
    assert!(completed(&after) >= completed(&before) + 2 * 3 * 4 * 3, "{after:?}");
}

#[test]
fn the_descriptor_works_in_an_event_loop() {
    let service = Service::start(&[]);
    let client = service.client();
    let bytes = pattern(8 * MIB as usize, 5);
    let (file, source) = (file_of(&bytes), memory_of(&bytes));
    let targets = [SharedMemory::create(bytes.len()).unwrap(), SharedMemory::create(bytes.len()).unwrap()];
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let places = [ClientPlace::file(&file), ClientPlace::memory(&source)];
    let pipes: Vec<_> = (0..2)
        .map(|i| {
            let ask = ConnectFdOptions::default().depth(3).place(70 + i as u64);
            let pipe = client.connect_pipe(&places[i], &ClientPlace::memory(&targets[i]), &ask).unwrap();
            epoll::add(&epoll, &pipe, EventData::new_u64(i as u64), EventFlags::IN | EventFlags::OUT).unwrap();
            pipe
        })
        .collect();
    let (pieces, len) = (16, bytes.len() as u64 / 16);
    let (mut started, mut done) = ([0; 2], [0; 2]);
    let mut events = Vec::with_capacity(4);
    while done != [pieces; 2] {
        events.clear();
        poll_until(&epoll, rustix::event::PollFlags::IN);
        retry_on_intr(|| epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None)).unwrap();
        for event in &events {
            let (i, flags) = (event.data.u64() as usize, event.flags);
            if flags.contains(EventFlags::IN) {
                let completion = pipes[i].complete().unwrap().unwrap();
                assert_eq!((completion.place, completion.bytes), (70 + i as u64, len));
                completion.result.unwrap();
                done[i] += 1;
            }
            if flags.contains(EventFlags::OUT) && started[i] < pieces {
                pipes[i].submit(Span { source: started[i] * len, target: started[i] * len, len }).unwrap();
                started[i] += 1;
                if started[i] == pieces {
                    epoll::modify(&epoll, &pipes[i], event.data, EventFlags::IN).unwrap();
                }
            }
        }
    }
    for target in &targets {
        assert!(target.to_vec().unwrap()[..] == bytes[..]);
    }
}

#[test]
fn plain_packets_suffice_and_errors_have_their_kind() {
    let service = Service::start(&[]);
    let client = service.client();
    let bytes = pattern(MIB as usize, 9);
    let (source, target) = (memory_of(&bytes), SharedMemory::create(2 * MIB as usize).unwrap());
    // The target is the second half of the memory.
    let half = ClientPlace::memory_range(&target, MIB as usize, MIB as usize).unwrap();
    let pipe = client.connect_pipe(&ClientPlace::memory(&source), &half, &ConnectFdOptions::default()).unwrap();
    let ask = |token, span: Span| {
        rustix::io::write(&pipe, &TransferRequest { token, span }.to_bytes()).unwrap();
        let mut message = [0; 1024];
        poll_until(&pipe, rustix::event::PollFlags::IN);
        let len = rustix::io::read(&pipe, &mut message).unwrap();
        let completion = Completion::from_bytes(&message[..len]).unwrap();
        assert_eq!(completion.token, token);
        completion.result
    };
    ask(77, whole(MIB)).unwrap();
    assert_eq!(ask(78, Span { source: 1, target: 0, len: MIB }).unwrap_err().kind(), ErrorKind::OutOfRange);
    assert_eq!(
        ask(79, Span { source: u64::MAX, target: u64::MAX, len: u64::MAX }).unwrap_err().kind(),
        ErrorKind::OutOfRange
    );
    let held = target.to_vec().unwrap();
    assert!(held[MIB as usize..] == bytes[..] && held[..MIB as usize].iter().all(|b| *b == 0));
    // A file that is shorter than the span, and one that is cut while it is used, give errors, and
    // the service lives.
    let file = file_of(&bytes[..5000]);
    let mut pipe = client
        .connect_pipe(&ClientPlace::file(&file), &ClientPlace::memory(&target), &ConnectFdOptions::default())
        .unwrap();
    assert_eq!(pipe.transfer(whole(MIB)).unwrap_err().kind(), ErrorKind::EndOfFile);
    pipe.transfer(whole(5000)).unwrap();
    file.set_len(100).unwrap();
    assert_eq!(pipe.transfer(whole(5000)).unwrap_err().kind(), ErrorKind::EndOfFile);
    pipe.transfer(whole(100)).unwrap();
    assert!(target.to_vec().unwrap()[..100] == bytes[..100]);
}

#[test]
fn bytes_are_leased_here_while_they_move_there() {
    let service = Service::start(&[]);
    let client = service.client();
    let bytes = pattern(32 * MIB as usize, 3);
    let (source, target) = (memory_of(&bytes), SharedMemory::create(bytes.len()).unwrap());
    // The transfer is so slow that it is in flight during the checks.
    let asked = Asked::of(PriorityClass::Bulk).at_most(64e6);
    let ask = ConnectFdOptions::default().connect(ConnectOptions::default().service(asked));
    let pipe = client.connect_pipe(&ClientPlace::memory(&source), &ClientPlace::memory(&target), &ask).unwrap();
    pipe.submit(whole(bytes.len() as u64)).unwrap();
    assert_eq!(target.to_vec().unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(source.write(0, &[0]).unwrap_err().kind(), ErrorKind::Busy);
    assert!(source.to_vec().is_ok(), "others may read what is read");
    assert_eq!(pipe.submit(whole(1)).unwrap_err().kind(), ErrorKind::Busy);
    // Dropping waits until the bytes are there.
    drop(pipe);
    assert!(target.to_vec().unwrap()[..] == bytes[..]);
    drop((client, source));
}

#[test]
fn the_same_memory_is_mapped_once_and_overlaps_are_refused() {
    let service = Service::start(&[]);
    let client = service.client();
    let memory = memory_of(&pattern(2 * MIB as usize, 4));
    let (all, whole_of) = (ClientPlace::memory(&memory), ConnectFdOptions::default());
    let mut one = client.connect_pipe(&all, &all, &whole_of).unwrap();
    let _two = client.connect_pipe(&all, &all, &whole_of).unwrap();
    assert_eq!(client.status().unwrap().mapped_bytes, 2 * MIB);
    one.transfer(Span { source: 0, target: MIB, len: MIB }).unwrap();
    let bytes = memory.to_vec().unwrap();
    assert!(bytes[..MIB as usize] == bytes[MIB as usize..]);
}

#[test]
fn past_the_page_cache_by_the_descriptor_that_was_passed_for_it() {
    let service = Service::start(&[]);
    let client = service.client();
    let bytes = pattern(MIB as usize, 8);
    let (file, target) = (file_of(&bytes), SharedMemory::create(bytes.len()).unwrap());
    let mut ask = ConnectFdOptions::default();
    ask.connect.constraints.bypass_page_cache = true;
    // The service opens nothing: without such a descriptor it has no route.
    let cached = Ssd::from_fds(file.file().cached_fd().try_clone_to_owned().unwrap(), None, "cached").unwrap();
    let e =
        client.connect_pipe(&ClientPlace::file(&cached), &ClientPlace::memory(&target), &ask).map(|_| ()).unwrap_err();
    assert!(e.kind() == ErrorKind::Unsupported && e.to_string().contains("no descriptor that goes past"), "{e}");
    if let Err(why) = file.file().direct_fd() {
        return println!("SKIPPED: past_the_page_cache_by_the_descriptor_that_was_passed_for_it: {why}");
    }
    let mut pipe = client.connect_pipe(&ClientPlace::file(&file), &ClientPlace::memory(&target), &ask).unwrap();
    assert!(pipe.route().contains("direct"), "{}", pipe.route());
    pipe.transfer(whole(MIB)).unwrap();
    assert!(target.to_vec().unwrap()[..] == bytes[..]);
}
