//! The contract over all transports, and a sender or receiver that breaks it.
#![allow(clippy::unwrap_used)]

use std::os::fd::OwnedFd;
use std::thread;
use std::time::Duration;

use datapipes_core::{ErrorKind, Result};
use proptest::prelude::*;

use super::bare::Pages;
use super::*;
use crate::channel::layout::{Descriptor, ReplyRecord, State};
use crate::channel::{BlockOutcome, Trust, WORDS};
use crate::sync::atomic::Ordering;

/// Every sender of these tests belongs to this crate, or the test does not look at its bytes.
#[allow(unsafe_code)]
// SAFETY: see above.
const IN_PLACE: Trust = unsafe { Trust::in_place() };
#[allow(unsafe_code)]
// SAFETY: see above.
const CHECKED: Trust = unsafe { Trust::in_place_checked() };

const SOON: Patience = Patience::up_to(Duration::from_millis(30));

fn shared(shape: ChannelShape, trust: Trust) -> (Sender, Receiver) {
    Pages::new().ends(shape, trust)
}

fn sockets() -> (OwnedFd, OwnedFd) {
    let (a, b) = std::os::unix::net::UnixStream::pair().unwrap();
    (a.into(), b.into())
}

fn over_socket(shape: ChannelShape) -> (Sender, Receiver) {
    let (a, b) = sockets();
    let outlet = SocketOutlet::new(a, shape, [5; 16]).unwrap();
    (Sender::new(Box::new(outlet)), Receiver::new(Box::new(SocketInlet::new(b, shape, [5; 16]).unwrap())))
}

/// Makes an encrypted connection, as between machines.
fn sealed(shape: ChannelShape, (a, b): (OwnedFd, OwnedFd)) -> (Sender, Receiver) {
    let ours = seal::Keys { out: [1; 32], into: [2; 32] };
    let theirs = seal::Keys { out: [2; 32], into: [1; 32] };
    let outlet = SocketOutlet::sealed(a, shape, [5; 16], Some(&ours)).unwrap();
    let inlet = SocketInlet::sealed(b, shape, [5; 16], Some(&theirs)).unwrap();
    (Sender::new(Box::new(outlet)), Receiver::new(Box::new(inlet)))
}

fn each_transport(shape: ChannelShape) -> Vec<(&'static str, Sender, Receiver)> {
    let mut all = Vec::new();
    for (name, trust) in [("copy", Trust::Copy), ("in place", IN_PLACE), ("checked", CHECKED)] {
        if trust != CHECKED || shape.checked {
            let (s, r) = shared(shape, trust);
            all.push((name, s, r));
        }
    }
    let (s, r) = over_socket(shape);
    all.push(("socket", s, r));
    let (s, r) = sealed(shape, sockets());
    all.push(("sealed", s, r));
    if crate::bridge::tests::has_ucx("the contract of transports by UCX") {
        let (a, b) = crate::bridge::tests::sockets_by_ucx();
        let outlet = SocketOutlet::new(a, shape, [5; 16]).unwrap();
        let inlet = SocketInlet::new(b, shape, [5; 16]).unwrap();
        all.push(("UCX", Sender::new(Box::new(outlet)), Receiver::new(Box::new(inlet))));
    }
    all
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ seed.wrapping_mul(31)).to_le_bytes()[3]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// For all credits, sizes and words, and over every transport, the received blocks equal the
    /// sent ones, in order.
    #[test]
    fn blocks_words_and_ends_arrive_as_sent(
        credits in 1u32..9, block_bytes in 1usize..20_000, checked: bool,
        blocks in proptest::collection::vec((0usize..20_000, any::<[u64; WORDS]>(), any::<bool>()), 0..30),
    ) {
        let shape = ChannelShape { credits, block_bytes, checked };
        let blocks: Vec<_> = blocks.into_iter().map(|(len, words, end)| (len.min(block_bytes), words, end)).collect();
        for (name, mut sender, mut receiver) in each_transport(shape) {
            let sent = blocks.clone();
            let sending = thread::spawn(move || -> Result<Reply> {
                for (i, (len, words, end)) in sent.iter().enumerate() {
                    let head = Head { words: *words, end: *end };
                    if i % 2 == 0 {
                        sender.send(&bytes(i as u64, *len), head)?;
                    } else {
                        let mut grant = sender.grant()?;
                        grant.bytes()[..*len].copy_from_slice(&bytes(i as u64, *len));
                        grant.send(*len, head)?;
                    }
                }
                sender.finish([9; WORDS])
            });
            for (i, (len, words, end)) in blocks.iter().enumerate() {
                let block = receiver.receive().unwrap();
                prop_assert_eq!(block.head(), Head { words: *words, end: *end }, "{}", name);
                prop_assert!(*block == bytes(i as u64, *len)[..], "{}", name);
                block.done().unwrap();
            }
            let last = receiver.receive().unwrap();
            prop_assert!(last.head().end && last.is_empty());
            last.reply(Reply { outcome: BlockOutcome::Done, word: 77 }).unwrap();
            prop_assert_eq!(sending.join().unwrap().unwrap(), Reply { outcome: BlockOutcome::Done, word: 77 });
        }
    }

    /// Credits limit memory: with any delay and order of replies, no slot is written while its
    /// block is held.
    #[test]
    fn a_block_that_is_held_is_never_overwritten(credits in 1u32..7, order in proptest::collection::vec(any::<u8>(), 1..60)) {
        let (mut sender, mut receiver) = shared(ChannelShape::new(credits, 64), IN_PLACE);
        sender.set_patience(Patience::NONE);
        let (mut held, mut next) = (Vec::new(), 0u64);
        for choice in order {
            match sender.send(&next.to_le_bytes(), Head { words: [next; WORDS], end: false }) {
                Ok(()) => { held.push(receiver.receive().unwrap()); next += 1; }
                Err(e) => prop_assert_eq!((e.kind(), held.len() as u32), (ErrorKind::Busy, credits)),
            }
            for block in &held {
                prop_assert_eq!(&**block, &block.head().words[0].to_le_bytes()[..]);
            }
            if choice % 3 != 0 {
                held.swap_remove(usize::from(choice) % held.len()).done().unwrap();
            }
        }
    }
}

#[test]
fn without_a_credit_the_sender_waits_and_no_longer_than_it_said() {
    for (name, sender, mut receiver) in each_transport(ChannelShape::new(2, 100)) {
        let mut sender = sender.with_patience(SOON);
        sender.send(b"one", Head::default()).unwrap();
        drop(sender.grant().unwrap());
        sender.send(b"two", Head::default()).unwrap();
        let e = sender.send(b"three", Head::default()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Busy, "{name}: {e}");
        receiver.receive().unwrap().done().unwrap();
        sender.set_patience(Patience::default());
        sender.send(b"three", Head::default()).unwrap();
        for expected in [&b"two"[..], b"three"] {
            let block = receiver.receive().unwrap();
            assert_eq!(&*block, expected, "{name}");
            block.done().unwrap();
        }
        assert_eq!(receiver.inlet.await_block(SOON).unwrap_err().kind(), ErrorKind::Busy, "{name}");
    }
}

#[test]
fn the_outcome_of_a_block_is_reported_once() {
    for (name, mut sender, mut receiver) in each_transport(ChannelShape::new(4, 100)) {
        sender.send(b"x", Head::default()).unwrap();
        drop(receiver.receive().unwrap());
        assert_eq!(sender.drain().unwrap_err().kind(), ErrorKind::Device, "{name}");
        sender.send(b"x", Head::default()).unwrap();
        receiver.receive().unwrap().reply(Reply { outcome: BlockOutcome::NoSpace, word: 3 }).unwrap();
        assert_eq!(sender.drain().unwrap_err().kind(), ErrorKind::NoSpace, "{name}");
        sender.send(b"x", Head::default()).unwrap();
        receiver.receive().unwrap().reply(Reply { outcome: BlockOutcome::Done, word: 9 }).unwrap();
        let returned = sender.reply().unwrap();
        assert_eq!((returned.sequence, returned.reply.word), (2, 9), "{name}");
        assert_eq!(sender.reply().unwrap_err().kind(), ErrorKind::InvalidInput, "{name}");
        assert_eq!(sender.send(&[0; 101], Head::default()).unwrap_err().kind(), ErrorKind::OutOfRange, "{name}");
    }
}

#[test]
fn a_closed_end_differs_from_a_waiting_one() {
    for (name, mut sender, mut receiver) in each_transport(ChannelShape::new(2, 10)) {
        sender.send(b"last", Head::default()).unwrap();
        drop(sender);
        receiver.receive().unwrap().done().unwrap();
        assert_eq!(receiver.receive().unwrap_err().kind(), ErrorKind::EndOfFile, "{name}");
    }
    for (name, mut sender, receiver) in each_transport(ChannelShape::new(2, 10)) {
        sender.send(b"unread", Head::default()).unwrap();
        drop(receiver);
        let e = sender.drain().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Device, "{name}: {e}");
    }
}

#[test]
fn the_controller_s_word_ends_a_channel_also_in_the_middle_of_a_wait() {
    for (state, of_sender, of_receiver) in [
        (State::Revoked, ErrorKind::PermissionDenied, ErrorKind::PermissionDenied),
        (State::ControllerGone, ErrorKind::Unavailable, ErrorKind::Unavailable),
        (State::SenderGone, ErrorKind::Busy, ErrorKind::Device),
        (State::ReceiverGone, ErrorKind::Device, ErrorKind::Busy),
    ] {
        let pages = Pages::new();
        let (sender, receiver) = pages.ends(ChannelShape::new(1, 10), Trust::Copy);
        let patience = |expected| match expected {
            ErrorKind::Busy => Patience::up_to(Duration::from_millis(300)),
            _ => Patience::up_to(datapipes_testkit::PATIENCE),
        };
        let mut sender = sender.with_patience(patience(of_sender));
        let mut receiver = receiver.with_patience(patience(of_receiver));
        sender.send(b"held", Head::default()).unwrap();
        let held = receiver.receive().unwrap();
        // Neither end is dropped before the other one was used.
        let waits = thread::spawn(move || (receiver.receive().unwrap_err().kind(), receiver));
        let sends = thread::spawn(move || (sender.send(b"more", Head::default()).unwrap_err().kind(), sender));
        pages.set(state);
        let ((sent, _sender), (received, _receiver)) = (sends.join().unwrap(), waits.join().unwrap());
        assert_eq!((sent, received), (of_sender, of_receiver), "{state:?}");
        // A received block stays readable until it is given back.
        assert_eq!(&*held, b"held");
        held.done().unwrap();
    }
}

#[test]
fn blocks_sent_before_the_sender_died_are_given_out_and_not_after_a_revocation() {
    let pages = Pages::new();
    let (mut sender, mut receiver) = pages.ends(ChannelShape::new(2, 10), Trust::Copy);
    sender.send(b"1", Head::default()).unwrap();
    sender.send(b"2", Head::default()).unwrap();
    pages.set(State::SenderGone);
    receiver.receive().unwrap().done().unwrap();
    pages.set(State::Revoked);
    assert_eq!(receiver.receive().unwrap_err().kind(), ErrorKind::PermissionDenied);
}

/// Values that a sender could write into its own page to harm the receiver.
#[test]
fn no_descriptor_of_a_hostile_sender_is_believed() {
    let good = Descriptor { epoch: 7, len: 4, ..Descriptor::default() };
    let bad = [
        Descriptor { slot: 2, ..good },
        Descriptor { slot: u32::MAX, ..good },
        Descriptor { len: 11, ..good },
        Descriptor { len: u32::MAX, ..good },
        Descriptor { sequence: 1, ..good },
        Descriptor { flags: 4, ..good },
        Descriptor { epoch: 6, ..good },
    ];
    for d in bad {
        let pages = Pages::new();
        let (_sender, mut receiver) = pages.ends(ChannelShape::new(2, 10), IN_PLACE);
        pages.sender.ring[0].store(&d);
        pages.sender.sent.0.store(1, Ordering::SeqCst);
        assert_eq!(receiver.receive().unwrap_err().kind(), ErrorKind::Corrupt, "{d:?}");
        assert_eq!(receiver.try_receive().unwrap_err().kind(), ErrorKind::Corrupt, "once broken it stays broken");
    }
    // A counter runs ahead, or back.
    for count in [3, u32::MAX, 1 << 31] {
        let pages = Pages::new();
        let (_sender, mut receiver) = pages.ends(ChannelShape::new(2, 10), IN_PLACE);
        pages.sender.ring[0].store(&good);
        pages.sender.sent.0.store(count, Ordering::SeqCst);
        assert_eq!(receiver.receive().unwrap_err().kind(), ErrorKind::Corrupt, "{count}");
    }
    // A slot is still being processed.
    let pages = Pages::new();
    let (_sender, mut receiver) = pages.ends(ChannelShape::new(2, 10), IN_PLACE);
    pages.sender.ring[0].store(&good);
    pages.sender.ring[1].store(&Descriptor { sequence: 1, ..good });
    pages.sender.sent.0.store(2, Ordering::SeqCst);
    let held = receiver.receive().unwrap();
    let e = receiver.receive().unwrap_err();
    assert!(e.kind() == ErrorKind::Corrupt && e.to_string().contains("still being processed"), "{e}");
    held.done().unwrap();
}

/// Values that a receiver could write into its own page to harm the sender.
#[test]
fn no_reply_of_a_hostile_receiver_is_believed() {
    let good = ReplyRecord { epoch: 7, ..ReplyRecord::default() };
    for (count, reply) in [
        (2, good),
        (u32::MAX, good),
        (1, ReplyRecord { slot: 1, ..good }),
        (1, ReplyRecord { slot: 400, ..good }),
        (1, ReplyRecord { epoch: 8, ..good }),
    ] {
        let pages = Pages::new();
        let (mut sender, _receiver) = pages.ends(ChannelShape::new(2, 10), IN_PLACE);
        sender.send(b"x", Head::default()).unwrap();
        pages.receiver.ring[0].store(&reply);
        pages.receiver.replied.0.store(count, Ordering::SeqCst);
        assert_eq!(sender.drain().unwrap_err().kind(), ErrorKind::Corrupt, "{count} {reply:?}");
        assert_eq!(sender.send(b"x", Head::default()).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}

/// The effect of each mode of trust if a sender writes after it sent.
#[test]
fn overwriting_after_send_changes_no_copy_and_is_found_where_it_is_checked() {
    let shape = ChannelShape { credits: 1, block_bytes: 10, checked: true };
    for (trust, seen, outcome) in [
        (Trust::Copy, &b"true"[..], BlockOutcome::Done),
        (IN_PLACE, b"fals", BlockOutcome::Done),
        (CHECKED, b"fals", BlockOutcome::Damaged),
    ] {
        let (mut sender, mut receiver) = shared(shape, trust);
        sender.send(b"true", Head::default()).unwrap();
        let block = receiver.receive().unwrap();
        assert_eq!(&*block, b"true");
        // This is the sender's own mapping, which nothing protects.
        sender.outlet_mut().memory(0)[..4].copy_from_slice(b"fals");
        assert_eq!(&*block, seen, "{trust:?}");
        assert_eq!(block.done().is_ok(), outcome == BlockOutcome::Done, "{trust:?}");
        assert_eq!(sender.reply().unwrap().reply.outcome, outcome, "{trust:?}");
    }
}

/// A copy is made at the first look and does not change later. A receiver that does not look gets
/// the present bytes.
#[test]
fn what_was_looked_at_once_stays_and_what_was_not_is_carried() {
    let (mut sender, mut receiver) = shared(ChannelShape::new(2, 10), Trust::Copy);
    sender.send(b"true", Head::default()).unwrap();
    sender.send(b"next", Head::default()).unwrap();
    let (one, two) = (receiver.receive().unwrap(), receiver.receive().unwrap());
    assert_eq!(&*one, b"true");
    for slot in 0..2 {
        sender.outlet_mut().memory(slot)[..4].copy_from_slice(b"fals");
    }
    let (mut to, mut short) = ([0; 10], [0; 3]);
    assert_eq!(&*one, b"true");
    two.copy_to(&mut to).unwrap();
    assert_eq!((&to[..5], &*two), (&b"fals\0"[..], &b"fals"[..]));
    assert_eq!(two.copy_to(&mut short).unwrap_err().kind(), ErrorKind::OutOfRange);
    // A relay passes bytes on without looking, to a channel of either kind.
    for (mut onward, mut last) in [shared(ChannelShape::new(2, 10), Trust::Copy), over_socket(ChannelShape::new(2, 10))]
    {
        onward.forward(&one, Head::default()).unwrap();
        let block = last.receive().unwrap();
        assert_eq!((&*block, block.len()), (&b"true"[..], 4));
        block.done().unwrap();
        onward.drain().unwrap();
    }
    one.done().unwrap();
    two.done().unwrap();
}

#[test]
fn bytes_that_changed_on_the_way_are_not_given_out() {
    let shape = ChannelShape { credits: 1, block_bytes: 10, checked: true };
    let pages = Pages::new();
    let (mut sender, mut receiver) = pages.ends(shape, Trust::Copy);
    let mut d = Descriptor { epoch: 7, len: 4, check: 1, ..Descriptor::default() };
    sender.send(b"true", Head::default()).unwrap();
    d.check ^= 1;
    pages.sender.ring[0].store(&d);
    assert_eq!(receiver.receive().unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(sender.reply().unwrap().reply.outcome, BlockOutcome::Damaged);
}

#[test]
fn whichever_of_several_channels_has_a_block_is_received_and_none_is_starved() {
    for socket in [false, true] {
        let make = || {
            if socket { over_socket(ChannelShape::new(4, 16)) } else { shared(ChannelShape::new(4, 16), Trust::Copy) }
        };
        let (mut senders, receivers): (Vec<_>, Vec<_>) = (0..3).map(|_| make()).unzip();
        let mut receivers: Vec<_> = receivers.into_iter().map(Some).collect();
        for sender in &mut senders {
            sender.send(b"a", Head::default()).unwrap();
            sender.send(b"b", Head::default()).unwrap();
        }
        let mut last = 0;
        let mut turns = Vec::new();
        for _ in 0..6 {
            let (at, block) = receive_any(&mut receivers, last, Patience::default()).unwrap();
            block.unwrap().done().unwrap();
            (last, turns) = (at, [turns, vec![at]].concat());
        }
        assert_eq!(turns, [1, 2, 0, 1, 2, 0]);
        assert_eq!(receive_any(&mut receivers, last, SOON).unwrap_err().kind(), ErrorKind::Busy);
        let late = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            senders[1].send(b"late", Head::default()).unwrap();
            senders
        });
        let (at, block) = receive_any(&mut receivers, last, Patience::default()).unwrap();
        assert_eq!((at, &*block.unwrap()), (1, &b"late"[..]));
        drop(late.join().unwrap());
        let (_, ended) = receive_any(&mut receivers, last, Patience::default()).unwrap();
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::EndOfFile);
    }
}

/// Bytes that come over a socket before or instead of a block.
#[test]
fn a_stranger_and_a_sender_without_credit_are_cut_off() {
    use std::io::Write;
    let shape = ChannelShape::new(1, 10);
    let (a, b) = sockets();
    let _outlet = SocketOutlet::new(a, shape, [6; 16]).unwrap();
    let mut inlet = SocketInlet::new(b, shape, [5; 16]).unwrap();
    assert_eq!(inlet.await_block(SOON).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(inlet.await_block(SOON).unwrap_err().kind(), ErrorKind::Device);

    let garbage: [&[u8]; 3] =
        [&[0xFF; 64], b"GET / HTTP/1.1\r\n\r\n......................................................", &[0; 64]];
    for bytes in garbage {
        let (a, b) = sockets();
        let mut inlet = SocketInlet::new(b, shape, [5; 16]).unwrap();
        std::os::unix::net::UnixStream::from(a).write_all(bytes).unwrap();
        assert_eq!(inlet.await_block(SOON).unwrap_err().kind(), ErrorKind::Corrupt);
    }
    // Two blocks use one credit, or a block is too long.
    for (slot, len, twice) in [(0u32, 4u32, true), (0, 11, false), (1, 4, false)] {
        let (a, b) = sockets();
        let mut outlet = SocketOutlet::new(a.try_clone().unwrap(), shape, [5; 16]).unwrap();
        let mut inlet = SocketInlet::new(b, shape, [5; 16]).unwrap();
        let mut raw = std::os::unix::net::UnixStream::from(a);
        let mut first = None;
        if twice {
            let own = outlet.take().unwrap();
            outlet.push(own, 4, Head::default(), Patience::default()).unwrap();
            first = Some(inlet.await_block(SOON).unwrap());
        }
        let mut header = [0u8; 64];
        header[..4].copy_from_slice(&0x6461_7402u32.to_le_bytes());
        header[4..8].copy_from_slice(&slot.to_le_bytes());
        header[8..12].copy_from_slice(&len.to_le_bytes());
        header[16] = u8::from(twice);
        raw.write_all(&header).unwrap();
        assert_eq!(inlet.await_block(SOON).unwrap_err().kind(), ErrorKind::Corrupt);
        drop(first);
    }
}

/// A call with a short patience returns in time, and a block that was begun is neither lost, sent
/// twice, nor torn.
#[test]
fn a_block_that_does_not_fit_now_is_sent_once_however_often_patience_ends() {
    for is_sealed in [false, true] {
        let shape = ChannelShape::new(3, 300_000);
        let (a, b) = sockets();
        // The buffer is much smaller than a block, so every block is begun and continued later.
        rustix::net::sockopt::set_socket_send_buffer_size(&a, 8 << 10).unwrap();
        let (mut sender, mut receiver) = if is_sealed {
            sealed(shape, (a, b))
        } else {
            let outlet = SocketOutlet::new(a, shape, [5; 16]).unwrap();
            let inlet = SocketInlet::new(b, shape, [5; 16]).unwrap();
            (Sender::new(Box::new(outlet)), Receiver::new(Box::new(inlet)))
        };
        sender.set_patience(Patience::up_to(Duration::from_millis(1)));
        const BLOCKS: u64 = 24;
        let receiving = thread::spawn(move || {
            for n in 0..BLOCKS {
                // The delay makes the sender's patience end within blocks and between them.
                thread::sleep(Duration::from_millis(if n % 5 == 0 { 20 } else { 1 }));
                let block = receiver.receive().unwrap();
                assert_eq!((block.head().words[0], block.len()), (n, 300_000));
                assert!(*block == bytes(n, 300_000)[..], "block {n}");
                block.done().unwrap();
            }
            assert_eq!(receiver.receive().unwrap_err().kind(), ErrorKind::EndOfFile);
        });
        let mut ends = 0;
        let mut patiently = |call: &mut dyn FnMut() -> Result<()>| {
            while let Err(e) = call() {
                assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
                ends += 1;
            }
        };
        for n in 0..BLOCKS {
            let (data, head) = (bytes(n, 300_000), Head { words: [n; WORDS], end: false });
            patiently(&mut || match n % 2 {
                0 => sender.send(&data, head),
                _ => {
                    let mut grant = sender.grant()?;
                    grant.bytes().copy_from_slice(&data);
                    grant.send(data.len(), head)
                }
            });
        }
        patiently(&mut || sender.drain().map(|_| ()));
        drop(sender);
        receiving.join().unwrap();
        assert!(ends > 0, "patience never ended: nothing was tried");
    }
}

/// A sender that reads no replies neither blocks its receiver nor exhausts its memory: it is cut
/// off.
#[test]
fn a_receiver_does_not_wait_for_a_sender_that_reads_no_replies() {
    let (a, b) = sockets();
    rustix::net::sockopt::set_socket_send_buffer_size(&b, 4 << 10).unwrap();
    let shape = ChannelShape::new(256, 16);
    let mut inlet = SocketInlet::new(b, shape, [5; 16]).unwrap();
    let _says_hello = SocketOutlet::new(a.try_clone().unwrap(), shape, [5; 16]).unwrap();
    let raw = std::os::unix::net::UnixStream::from(a);
    // It takes slots as if all were free, and reads no reply. The waiting replies are bounded, so
    // this ends.
    let mut sequence = 0u64;
    let error = loop {
        let mut header = [0u8; 68];
        header[..4].copy_from_slice(&0x6461_7402u32.to_le_bytes());
        header[4..8].copy_from_slice(&((sequence % 256) as u32).to_le_bytes());
        header[8..12].copy_from_slice(&4u32.to_le_bytes());
        header[16..24].copy_from_slice(&sequence.to_le_bytes());
        std::io::Write::write_all(&mut &raw, &header).unwrap();
        match inlet.await_block(SOON) {
            Ok(block) => block.done().unwrap(),
            Err(e) => break e,
        }
        sequence += 1;
    };
    assert!(error.kind() == ErrorKind::Corrupt && sequence > 256, "after {sequence} blocks: {error}");
}

#[test]
fn times_of_blocks_are_measured_from_the_push_to_the_reply() {
    const SLOW: Duration = Duration::from_millis(20);
    for (name, mut sender, mut receiver) in each_transport(ChannelShape::new(4, 64)) {
        assert_eq!(sender.latencies(), None, "{name}");
        sender.send(b"before", Head::default()).unwrap();
        sender.measure_latencies(true);
        let other = thread::spawn(move || {
            let first = receiver.receive().unwrap();
            let second = receiver.receive().unwrap();
            let third = receiver.receive().unwrap();
            // The replies come in another order than the blocks.
            third.done().unwrap();
            thread::sleep(SLOW);
            first.done().unwrap();
            second.done().unwrap();
            receiver
        });
        let mut grant = sender.grant().unwrap();
        grant.bytes()[..1].fill(1);
        grant.send(1, Head::default()).unwrap();
        sender.send(b"third", Head::default()).unwrap();
        sender.drain().unwrap();
        let times = sender.latencies().unwrap();
        // The first block was pushed before times were measured.
        assert_eq!(times.count(), 2, "{name}");
        assert!(times.max_ns() >= SLOW.as_nanos() as u64, "{name}: {times:?}");
        sender.measure_latencies(false);
        assert_eq!(sender.latencies(), None);
        drop(other.join().unwrap());
    }
}

/// A sender that is idle, as one of a slow source, finds out late that the receiver has replied.
#[test]
fn a_sender_that_looks_late_knows_when_the_receiver_replied() {
    const IDLE: Duration = Duration::from_millis(300);
    let (mut sender, mut receiver) = shared(ChannelShape::new(4, 64), Trust::Copy);
    sender.measure_latencies(true);
    let begin = std::time::Instant::now();
    sender.send(b"block", Head::default()).unwrap();
    receiver.receive().unwrap().done().unwrap();
    let replied = begin.elapsed();
    thread::sleep(IDLE);
    sender.drain().unwrap();
    let times = sender.latencies().unwrap();
    // A figure of a histogram is at most a sixteenth too high.
    let most = replied.as_nanos() as u64 * 17 / 16 + 1;
    assert!(times.count() == 1 && times.max_ns() <= most, "{times:?} after {replied:?}");
    // The block that ends a stream is none of its blocks.
    let other = thread::spawn(move || receiver.receive().unwrap().done().unwrap());
    sender.finish([0; 4]).unwrap();
    other.join().unwrap();
    assert_eq!(sender.latencies().unwrap().count(), 1);
}

/// What a hostile receiver says of the time of its reply is taken as far as it can be.
#[test]
fn a_reply_was_made_between_the_push_and_now() {
    for at_ns in [1, u64::MAX] {
        let pages = Pages::new();
        let (mut sender, _receiver) = pages.ends(ChannelShape::new(2, 10), IN_PLACE);
        sender.measure_latencies(true);
        let begin = std::time::Instant::now();
        sender.send(b"x", Head::default()).unwrap();
        pages.receiver.ring[0].store(&ReplyRecord { epoch: 7, at_ns, ..ReplyRecord::default() });
        pages.receiver.replied.0.store(1, Ordering::SeqCst);
        sender.drain().unwrap();
        let (times, most) = (sender.latencies().unwrap(), begin.elapsed().as_nanos() as u64 * 17 / 16 + 1);
        assert!(times.count() == 1 && times.max_ns() <= most, "{at_ns}: {times:?}");
    }
}
