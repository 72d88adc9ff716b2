//! Two bridges of this process, and peers that break their protocol. Skipped where UCX is absent.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use datapipes_core::{ErrorKind, Result};
use datapipes_testkit::{bounded, joined};
use datapipes_ucx::{MAX_MESSAGE_BYTES, PeerMessages, Ucx, UcxSettings, UcxUse, UcxWorker};

use super::pump::Pump;
use super::spec::BridgedBytes;
use super::words::{WINDOW, Word};

/// Whether UCX is there; says so where it is not.
pub(crate) fn has_ucx(test: &str) -> bool {
    match Ucx::get() {
        Ok(_) => true,
        Err(why) => {
            println!("SKIPPED: {test}: {why}");
            false
        }
    }
}

/// Two peers that do not know of each other yet.
fn peers(settings: &UcxSettings) -> (PeerMessages, PeerMessages) {
    let mut one = UcxWorker::open(settings, UcxUse::Messages).unwrap();
    let mut two = UcxWorker::open(settings, UcxUse::Messages).unwrap();
    let (of_one, of_two) = (one.address().unwrap(), two.address().unwrap());
    let one = PeerMessages::connect(one, settings, &of_two).unwrap();
    (one, PeerMessages::connect(two, settings, &of_one).unwrap())
}

/// A bridge in a thread.
struct BridgeThread {
    /// Ends the bridge when it is dropped.
    controller: UnixStream,
    thread: JoinHandle<Result<BridgedBytes>>,
}

/// Starts a bridge. One whose end nobody waits for leaves UCX as it is, as a process does: no
/// thread may take UCX down while the process ends.
fn bridge(peer: PeerMessages, is_waited_for: bool) -> (UnixStream, BridgeThread) {
    let (ours, socket) = UnixStream::pair().unwrap();
    let (controller, theirs) = UnixStream::pair().unwrap();
    let thread = thread::spawn(move || {
        let mut pump = Pump::new(theirs.as_fd(), socket.into(), peer);
        let outcome = pump.meet().and_then(|()| pump.run());
        if !is_waited_for {
            std::mem::forget(pump);
        }
        outcome
    });
    (ours, BridgeThread { controller, thread })
}

impl BridgeThread {
    fn outcome(self) -> Result<BridgedBytes> {
        let outcome = joined(self.thread);
        drop(self.controller);
        outcome
    }
}

fn bridged(settings: &UcxSettings) -> [(UnixStream, BridgeThread); 2] {
    let (one, two) = peers(settings);
    [bridge(one, true), bridge(two, true)]
}

/// Two sockets between which two bridges of this process move the bytes, for as long as both are
/// open.
pub(crate) fn sockets_by_ucx() -> (OwnedFd, OwnedFd) {
    let (one, two) = peers(&UcxSettings::shared_memory());
    let ((a, one), (b, two)) = (bridge(one, false), bridge(two, false));
    // Its end is that of its sockets.
    thread::spawn(move || (one.outcome(), two.outcome()));
    (a.into(), b.into())
}

fn each_way(test: &'static str, run: impl Fn(&UcxSettings) + Send + Sync + Copy + 'static) {
    if !has_ucx(test) {
        return;
    }
    let tcp = UcxSettings::network(None, Some("lo"), None, "connect").unwrap();
    for settings in [UcxSettings::shared_memory(), tcp] {
        bounded(test, move || run(&settings));
    }
}

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) ^ (i >> 8) ^ seed) as u8).collect()
}

#[test]
fn bytes_go_both_ways_at_once_and_each_end_is_passed_on() {
    each_way("bytes both ways", |settings| {
        for (there, back) in [(0, 0), (1, 0), (0, 7), (65_535, 65_537), ((3 << 20) + 1, (5 << 20) - 3)] {
            let [(a, one), (b, two)] = bridged(settings);
            let (to, from) = (bytes(1, there), bytes(2, back));
            thread::scope(|scope| {
                for (mut socket, sent, expected) in [(a, &to, &from), (b, &from, &to)] {
                    let mut writes = socket.try_clone().unwrap();
                    scope.spawn(move || {
                        writes.write_all(sent).unwrap();
                        writes.shutdown(Shutdown::Write).unwrap();
                    });
                    scope.spawn(move || {
                        let mut came = Vec::new();
                        socket.read_to_end(&mut came).unwrap();
                        assert!(came == *expected, "{} bytes of {}", came.len(), expected.len());
                    });
                }
            });
            let (there, back) = (there as u64, back as u64);
            assert_eq!(one.outcome().unwrap(), BridgedBytes { sent: there, received: back }, "{settings:?}");
            assert_eq!(two.outcome().unwrap(), BridgedBytes { sent: back, received: there }, "{settings:?}");
        }
    });
}

/// One direction goes on after the other has ended.
#[test]
fn a_side_that_has_said_its_last_word_still_listens() {
    each_way("half of a connection", |settings| {
        let [(mut a, one), (mut b, two)] = bridged(settings);
        a.write_all(b"all").unwrap();
        a.shutdown(Shutdown::Write).unwrap();
        let mut came = Vec::new();
        b.read_to_end(&mut came).unwrap();
        assert_eq!(came, b"all");
        for n in 0..50u8 {
            b.write_all(&[n; 100]).unwrap();
            let mut back = [0; 100];
            a.read_exact(&mut back).unwrap();
            assert_eq!(back, [n; 100]);
        }
        drop(b);
        assert_eq!(a.read(&mut [0; 1]).unwrap(), 0);
        drop(a);
        assert_eq!(one.outcome().unwrap(), BridgedBytes { sent: 3, received: 5000 });
        two.outcome().unwrap();
    });
}

#[test]
fn a_socket_that_takes_no_more_stops_its_sender() {
    each_way("a socket that takes no more", |settings| {
        let [(mut a, one), (mut b, two)] = bridged(settings);
        a.write_all(b"some").unwrap();
        b.read_exact(&mut [0; 4]).unwrap();
        drop(b);
        let error = loop {
            if let Err(e) = a.write_all(&[1; 10_000]) {
                break e;
            }
        };
        // A bridge that has ended with bytes that it did not take resets the connection. For the
        // ends of a channel both mean the same.
        use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
        assert!(matches!(error.kind(), BrokenPipe | ConnectionReset), "{error}");
        let read = a.read(&mut [0; 1]).map_err(|e| e.kind());
        assert!(matches!(read, Ok(0) | Err(ConnectionReset)), "{read:?}");
        drop(a);
        // Both sides know what became of the bytes.
        let (one, two) = (one.outcome().unwrap(), two.outcome().unwrap());
        assert!(one.sent == two.received && one.sent >= 4, "{one:?} {two:?}");
    });
}

/// What is under way is bounded, and none of it is lost.
#[test]
fn a_slow_receiver_holds_its_sender_back() {
    each_way("a slow receiver", |settings| {
        let [(mut a, one), (mut b, two)] = bridged(settings);
        a.set_nonblocking(true).unwrap();
        let all = bytes(3, 16 << 20);
        let (mut sent, mut since) = (0usize, Instant::now());
        while since.elapsed() < Duration::from_millis(500) && sent < all.len() {
            match a.write(&all[sent..(sent + 50_000).min(all.len())]) {
                Ok(count) => (sent, since) = (sent + count, Instant::now()),
                Err(e) => {
                    assert_eq!(e.kind(), std::io::ErrorKind::WouldBlock);
                    thread::sleep(Duration::from_millis(10));
                }
            }
        }
        // The window, and what the kernel holds of the two sockets.
        let most = WINDOW * MAX_MESSAGE_BYTES + (4 << 20);
        assert!(sent > 64 << 10 && sent < most, "{sent} bytes were taken");
        a.shutdown(Shutdown::Write).unwrap();
        let mut came = Vec::new();
        b.read_to_end(&mut came).unwrap();
        assert!(came == all[..sent]);
        drop((a, b));
        assert_eq!((one.outcome().unwrap().sent, two.outcome().unwrap().received), (sent as u64, sent as u64));
    });
}

#[test]
fn a_bridge_ends_with_its_controller() {
    each_way("a bridge without its controller", |settings| {
        let [(mut a, one), (_b, two)] = bridged(settings);
        a.write_all(b"some").unwrap();
        let BridgeThread { controller, thread } = one;
        drop(controller);
        let error = joined(thread).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        // Its socket is closed. The other bridge is ended by its own controller, or by UCX.
        while matches!(a.write(&[0; 100]), Ok(1..)) {}
        let BridgeThread { controller, thread } = two;
        drop(controller);
        assert!(joined(thread).is_err());
    });
}

/// A peer that says something else than a bridge does.
#[test]
fn a_peer_that_breaks_the_protocol_is_cut_off() {
    each_way("a peer that breaks the protocol", |settings| {
        // Nobody reads what the socket holds, so there are no credits for all of these.
        let too_many = vec![(Word::Bytes.words(), MAX_MESSAGE_BYTES); 3 * WINDOW];
        let cases = [
            too_many,
            vec![(Word::Bytes.words(), 0)],
            vec![([99, 0], 0)],
            vec![(Word::Hello.words(), 0)],
            vec![(Word::Credit(1).words(), 0)],
            vec![(Word::End(1).words(), 0)],
            vec![(Word::End(0).words(), 1)],
            vec![(Word::End(0).words(), 0), (Word::Bytes.words(), 5)],
            vec![(Word::End(0).words(), 0), (Word::End(0).words(), 0)],
            vec![(Word::Done.words(), 0)],
        ];
        for said in cases {
            let (one, mut liar) = peers(settings);
            let (ours, one) = bridge(one, true);
            liar.send(Word::Hello.words(), Vec::new()).unwrap();
            for (words, len) in &said {
                liar.send(*words, vec![1; *len]).unwrap();
            }
            while !one.thread.is_finished() {
                liar.progress();
                if liar.settle().is_err() || liar.receive().is_err() {
                    break;
                }
            }
            let error = one.outcome().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{settings:?} {said:?}: {error}");
            drop(ours);
        }
    });
}
