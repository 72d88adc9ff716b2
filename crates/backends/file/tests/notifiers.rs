//! Notifiers: the ring sends a byte behind the last request of a job. None may be missing, and they
//! are counted as they come.
#![allow(clippy::unwrap_used, clippy::expect_used)] // Helpers of tests may unwrap.

mod common;

use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use common::{bytes, file, memory};
use datapipes_core::backend::{Backend, CompletionNotifier, Job, Mover, NotifierSocket, OfferQuery, QueuedMover};
use datapipes_core::memory::Access;
use datapipes_core::topology::Topology;
use datapipes_core::{Constraints, Dram, FileAccess, Locator, Span, Ssd};
use datapipes_file::{FaultInjector, FaultVerdict, FileBackend, FileBackendOptions, Operation};
use datapipes_testkit::{bounded, poll_until};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The first request is made short.
struct FirstShort(u32);

impl FaultInjector for FirstShort {
    fn verdict(&self, op: &Operation) -> FaultVerdict {
        if op.nth == 0 { FaultVerdict::Short(self.0) } else { FaultVerdict::Pass }
    }
}

/// Opens a ring that reads past the page cache. Prints a line and returns `None` where there is
/// none.
fn ring(ssd: &Ssd, dram: &Dram, faults: Option<Arc<dyn FaultInjector>>) -> Option<Box<dyn QueuedMover>> {
    let mut options = FileBackendOptions::default();
    options.faults = faults;
    let backend = FileBackend::with(options);
    let (topology, constraints) = (Topology::discover(), Constraints::default());
    let (source, target) = (ssd.endpoint(), dram.endpoint());
    let ask = OfferQuery { source: &source, target: &target, constraints: &constraints, topology: &topology };
    let verdict = backend.offers(&ask).into_iter().find(|offer| offer.primitive == "uring-direct")?.verdict;
    if let Err(why) = verdict {
        println!("SKIPPED: notifiers: {why}");
        return None;
    }
    match backend.open(&ask, "uring-direct").unwrap() {
        Mover::Queued(ring) => Some(ring),
        Mover::Inline(_) => unreachable!("a ring is queued"),
    }
}

fn notifier_socket() -> (UnixStream, Arc<NotifierSocket>) {
    let (near, far) = UnixStream::pair().unwrap();
    (near, NotifierSocket::new(OwnedFd::from(far)))
}

/// A notifier that nobody hears.
fn silent() -> Arc<CompletionNotifier> {
    Arc::new(CompletionNotifier::new(notifier_socket().1))
}

fn job(dram: &Dram, span: Span, notifier: &Arc<CompletionNotifier>) -> Job {
    let memory = dram.range(span.target as usize, span.len as usize).unwrap();
    let target = Some(memory.memory().raw_lease(Access::Write).unwrap());
    Job { token: 1, span, source: None, target, notifier: Some(notifier.clone()) }
}

/// Completes as a thread does that waits for notifiers: only after one came.
fn complete_by_ear(ring: &dyn QueuedMover, near: &mut UnixStream) {
    let mut done = Vec::new();
    while done.is_empty() {
        near.read_exact(&mut [0]).expect("no notifier rang");
        ring.complete(false, &mut done).unwrap();
    }
    done.pop().unwrap().result.unwrap();
}

#[test]
fn later_requests_of_a_job_that_rang_ring_too() {
    let source = bytes(256 << 10, 3);
    let Some(ssd) = file(&common::disk(), &source, FileAccess::Direct) else { return };
    let dram = memory(256 << 10);
    // First comes one bounce, because nothing is aligned. The rest is aligned, in memory too, and
    // becomes a middle and a tail, in flight together.
    let span = Span { source: 4096 + 100, target: 100, len: 40_000 };
    let Some(ring) = ring(&ssd, &dram, Some(Arc::new(FirstShort(4096)))) else { return };
    let ((mut near, notifier_socket), before) = (notifier_socket(), span.target as usize);
    let notifier = Arc::new(CompletionNotifier::new(notifier_socket.clone()));
    ring.submit(job(&dram, span, &notifier)).unwrap();
    assert_eq!(notifier.rings(), 1, "one request");
    // It would sleep for ever if the last answer were not followed by a notifier.
    complete_by_ear(&*ring, &mut near);
    assert_eq!(ring.counters().requests, 3, "the rest was to be cut in two");
    let end = before + span.len as usize;
    assert!(dram.lease().unwrap()[before..end] == source[span.source as usize..][..span.len as usize]);
}

#[test]
fn a_bell_that_could_not_be_rung_is_not_counted() {
    let Some(ssd) = file(&common::disk(), &bytes(64 << 10, 4), FileAccess::Direct) else { return };
    let dram = memory(64 << 10);
    let Some(ring) = ring(&ssd, &dram, None) else { return };
    let (near, notifier_socket) = notifier_socket();
    drop(near);
    let notifier = Arc::new(CompletionNotifier::new(notifier_socket.clone()));
    ring.submit(job(&dram, Span { source: 0, target: 0, len: 4096 }, &notifier)).unwrap();
    let mut done = Vec::new();
    ring.complete(true, &mut done).unwrap();
    // The byte's own answer comes next, at once or soon. An answer makes the ring readable.
    while notifier.rings() > 0 {
        poll_until(ring.event().unwrap(), PollFlags::IN);
        ring.complete(false, &mut done).unwrap();
    }
    assert_eq!(done.len(), 1);
}

/// The first request is lost.
struct FirstLost;

impl FaultInjector for FirstLost {
    fn verdict(&self, op: &Operation) -> FaultVerdict {
        if op.nth == 0 { FaultVerdict::Lost } else { FaultVerdict::Pass }
    }
}

#[test]
fn a_lost_request_is_heard_of_by_a_bell() {
    // The ring waits for requests that it does not get back, even when it is dropped.
    bounded("a bell", lost_and_heard_of_by_a_bell);
}

fn lost_and_heard_of_by_a_bell() {
    let source = bytes(64 << 10, 3);
    let Some(ssd) = file(&common::disk(), &source, FileAccess::Direct) else { return };
    let dram = memory(64 << 10);
    let Some(ring) = ring(&ssd, &dram, Some(Arc::new(FirstLost))) else { return };
    let (mut near, notifier_socket) = notifier_socket();
    let notifier = Arc::new(CompletionNotifier::new(notifier_socket));
    ring.submit(job(&dram, Span { source: 0, target: 0, len: 4096 }, &notifier)).unwrap();
    complete_by_ear(&*ring, &mut near);
    assert_eq!(ring.counters().retries, 1);
    assert_eq!(dram.lease().unwrap()[..4096], source[..4096]);
}

#[test]
fn a_lost_request_is_heard_of_by_the_event() {
    bounded("the event", lost_and_heard_of_by_the_event);
}

fn lost_and_heard_of_by_the_event() {
    let source = bytes(64 << 10, 3);
    let Some(ssd) = file(&common::disk(), &source, FileAccess::Direct) else { return };
    let dram = memory(64 << 10);
    let Some(ring) = ring(&ssd, &dram, Some(Arc::new(FirstLost))) else { return };
    ring.submit(Job { notifier: None, ..job(&dram, Span { source: 0, target: 0, len: 4096 }, &silent()) }).unwrap();
    let mut done = Vec::new();
    while done.is_empty() {
        poll_until(ring.event().unwrap(), PollFlags::IN);
        ring.complete(false, &mut done).unwrap();
    }
    done.pop().unwrap().result.unwrap();
    assert_eq!(dram.lease().unwrap()[..4096], source[..4096]);
    // Nothing is in flight, so the timer is not set again and the ring falls silent.
    let mut fds = [PollFd::from_borrowed_fd(ring.event().unwrap(), PollFlags::IN)];
    while poll(&mut fds, Some(&Timespec { tv_sec: 5, tv_nsec: 0 })).unwrap() == 1 {
        ring.complete(false, &mut done).unwrap();
    }
}
