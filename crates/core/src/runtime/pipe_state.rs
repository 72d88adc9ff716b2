//! What the transfers of one pipe of the runtime have in common.

use super::schedule::Flow;
use super::shared_resource::SharedResource;
use super::transfer_counts::TransferCounts;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::reentry;
use crate::pipe::Pipe;
use crate::span::CheckedSpan;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Arc, Condvar, Mutex, MutexGuard};

/// A pipe, its resource and its place in the queue there.
pub(crate) struct PipeState {
    pub(crate) pipe: Pipe,
    pub(crate) resource: Arc<SharedResource>,
    pub(crate) flow: Flow,
    /// Parts begin at multiples of a part's length in the file, not in the transfer: offset of the
    /// target or the source.
    pub(crate) anchor: AlignmentEnd,
    room: Mutex<Room>,
    freed: Condvar,
    /// Of those under way, transfers whose threads sleep in the library, called by what carries
    /// them out.
    stuck: AtomicUsize,
    /// Transfers under way for which no thread waits.
    attended: AtomicU64,
    tally: Arc<TransferCounts>,
    next: Arc<AtomicU64>,
}

/// Whether a thread that waits for transfers of a pipe would wait for itself.
struct SelfWait {
    in_the_middle: bool,
    at_queue: bool,
}

impl SelfWait {
    fn here() -> SelfWait {
        SelfWait { in_the_middle: reentry::is_in_operation(), at_queue: reentry::is_in_queue() }
    }

    fn is_so(&self, room: &Room, line: &PipeState) -> bool {
        self.at_queue || self.in_the_middle && room.taken <= line.stuck.load(Ordering::SeqCst)
    }
}

/// Which offset parts are aligned to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AlignmentEnd {
    Source,
    Target,
}

struct Room {
    taken: usize,
    most: usize,
    sleepers: u32,
}

/// Transfers that begin off this are cut so that their later parts begin on it.
const ALIGN: u64 = 4096;

impl PipeState {
    pub(crate) fn new(
        pipe: Pipe,
        resource: Arc<SharedResource>,
        flow: Flow,
        anchor: AlignmentEnd,
        most: usize,
        tally: Arc<TransferCounts>,
        next: Arc<AtomicU64>,
    ) -> PipeState {
        let room = Mutex::new(Room { taken: 0, most: most.max(1), sleepers: 0 });
        PipeState {
            pipe,
            resource,
            flow,
            anchor,
            room,
            freed: Condvar::new(),
            stuck: AtomicUsize::new(0),
            attended: AtomicU64::new(0),
            tally,
            next,
        }
    }

    /// A name for the scheduler.
    pub(crate) fn name(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Bytes by which a transfer begins after a border of parts.
    pub(crate) fn misalignment(&self, span: CheckedSpan) -> u64 {
        match self.anchor {
            AlignmentEnd::Source => span.source % ALIGN,
            AlignmentEnd::Target => span.target % ALIGN,
        }
    }

    /// Takes a place in the pipe's queue.
    ///
    /// # Errors
    /// `Busy` where it is full and the caller does not want to wait.
    pub(crate) fn acquire_slot(&self, wait: bool) -> Result<()> {
        let mut room = self.lock();
        if room.taken >= room.most {
            if !wait {
                return Err(Error::new(
                    ErrorKind::Busy,
                    "transfer",
                    format!("{} transfers are under way on {:?}", room.taken, self.pipe),
                )
                .with_advice("wait for one of them, or call `transfer`, which waits"));
            }
            // Whoever waits here drives nothing: the coordinator must.
            drop(room);
            let coordinator = &self.resource.coordinator;
            let _leaning = coordinator.begin_blocked_wait();
            self.resource.arm_all();
            let hopeless = SelfWait::here();
            let over = |r: &Room| r.taken < r.most || hopeless.is_so(r, self);
            let slept = coordinator.sleep_until(&self.room, &self.freed, |r| &mut r.sleepers, over);
            // What it called meanwhile may have forked.
            room = match slept {
                Some(room) => room,
                None => return coordinator.owner.check("transfer"),
            };
            if room.taken >= room.most {
                let why = format!(
                    "{} transfers are under way on {:?}, and this is called by what carries one out",
                    room.taken, self.pipe
                );
                return Err(Error::new(ErrorKind::Busy, "transfer", why).with_advice("give the pipe a longer queue"));
            }
        }
        room.taken += 1;
        drop(room);
        self.tally.began();
        Ok(())
    }

    /// A transfer that had entered was not started after all.
    pub(crate) fn count_refused(&self) {
        self.release_slot();
        self.tally.ended(None, &self.resource.coordinator);
    }

    /// A transfer that left is finished.
    pub(crate) fn ended(&self, good: bool) {
        self.tally.ended(Some(good), &self.resource.coordinator);
    }

    /// A transfer is to call back: before it is handed over to be called, and has
    /// [`ended`](Self::ended).
    pub(crate) fn calls_back(&self) {
        self.tally.calls_back();
    }

    /// It has called back.
    pub(crate) fn called_back(&self) {
        self.tally.called_back(&self.resource.coordinator);
    }

    /// One more transfer is left to the coordinator. To be called before what is out already is
    /// attended.
    pub(crate) fn add_attended(&self) {
        self.attended.fetch_add(1, Ordering::SeqCst);
    }

    /// One that was left to the coordinator is finished.
    pub(crate) fn end_attended(&self) {
        self.attended.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether parts that set out must be attended.
    pub(crate) fn has_attended(&self) -> bool {
        self.attended.load(Ordering::SeqCst) > 0
    }

    /// What carries out a transfer of this pipe sleeps in the library.
    pub(crate) fn worker_blocked(&self) {
        self.stuck.fetch_add(1, Ordering::SeqCst);
        // With the lock, so that who is about to sleep sees it or is woken.
        let sleepers = self.lock().sleepers;
        if sleepers > 0 {
            self.freed.notify_all();
            self.resource.coordinator.wake_blocked_waiters();
        }
        self.tally.worker_blocked(&self.resource.coordinator);
    }

    /// It goes on.
    pub(crate) fn worker_resumed(&self) {
        // Without the lock, which the thread may have: it has what it slept for.
        self.stuck.fetch_sub(1, Ordering::SeqCst);
        self.tally.worker_resumed();
    }

    /// Gives the place in the queue back.
    pub(crate) fn release_slot(&self) {
        let mut room = self.lock();
        room.taken -= 1;
        let sleepers = room.sleepers;
        drop(room);
        if sleepers > 0 {
            self.freed.notify_all();
            self.resource.coordinator.wake_blocked_waiters();
        }
    }

    /// Whether another transfer would be taken now.
    pub(crate) fn has_room(&self) -> bool {
        let room = self.lock();
        room.taken < room.most
    }

    /// Transfers under way.
    pub(crate) fn taken(&self) -> usize {
        self.lock().taken
    }

    /// Sleeps until no transfer of this pipe is under way.
    pub(crate) fn drain(&self) {
        let coordinator = &self.resource.coordinator;
        let _leaning = coordinator.begin_blocked_wait();
        self.resource.arm_all();
        let hopeless = SelfWait::here();
        let over = |r: &Room| r.taken == 0 || hopeless.is_so(r, self);
        drop(coordinator.sleep_until(&self.room, &self.freed, |r| &mut r.sleepers, over));
    }

    fn lock(&self) -> MutexGuard<'_, Room> {
        self.room.lock()
    }
}

impl Drop for PipeState {
    fn drop(&mut self) {
        // The epoll instance is the parent's, too, and the resource has a lock.
        if !self.resource.coordinator.owner.is_here() {
            return;
        }
        if let Some(queue) = self.pipe.queue() {
            self.resource.coordinator.remove_queue(queue);
        }
        self.resource.leave(self.flow);
    }
}
