//! Finds requests that the kernel leaves unanswered, and cancels those that it never began.
//!
//! Requests that a ring cannot complete at once are carried out by worker threads, which the kernel
//! makes for each submitting thread. If it sometimes cannot make a thread (a limit on processes),
//! Linux can lose a request. A worker that exits still counts as running, so no other is made for
//! requests that arrive meanwhile; the worker that should have stayed may be the one that could not
//! be made. The request stays in its thread's queue until another one is added, which may never
//! happen. A long test met three writes that were unanswered for two minutes; see also
//! `iowq_keepalive.rs`.
//!
//! So each ring with requests in flight has a timer in the kernel. Its answer is like any other, so
//! every thread that waits for the ring looks at it, in whatever way it waits. A request that was
//! unanswered for a whole period is then cancelled (`IORING_OP_ASYNC_CANCEL`). The kernel returns
//! one that was not begun (`ECANCELED`), and it is made again. One that a worker or a device is
//! handling stays there; at most an interruptible wait ends with `EINTR`, and that request is made
//! again, too. The interval between attempts doubles, so slow devices are seldom disturbed.

use io_uring::{opcode, squeue, types};

/// The `user_data` of the timer's answers; no request has it.
pub(super) const TIMER: u64 = u64::MAX - 1;
/// The `user_data` of answers that carry no information.
pub(super) const NOTICE: u64 = u64::MAX;

/// The period of the timer. A lost request waits for one to two periods.
static PERIOD: types::Timespec = types::Timespec::new().sec(2);

/// When a request was sent and when it is to be cancelled, in periods.
#[derive(Clone, Copy)]
struct Sent {
    at: u64,
    due: u64,
}

/// The requests of a ring in flight, and since when.
pub(super) struct Watchdog {
    /// The number of periods that ended.
    now: u64,
    armed: bool,
    /// Whether the kernel has no timers.
    refused: bool,
    sent: Vec<Option<Sent>>,
    under_way: usize,
}

impl Watchdog {
    /// Watches requests with numbers below `requests`.
    pub(super) fn new(requests: usize) -> Watchdog {
        Watchdog { now: 0, armed: false, refused: false, sent: vec![None; requests], under_way: 0 }
    }

    /// Notes that a request was sent.
    pub(super) fn sent(&mut self, number: usize) {
        // The present period began before the request.
        let sent = Sent { at: self.now, due: self.now.saturating_add(2) };
        if let Some(place) = self.sent.get_mut(number) {
            self.under_way += usize::from(place.replace(sent).is_none());
        }
    }

    /// Notes that a request was answered.
    pub(super) fn answered(&mut self, number: usize) {
        if let Some(place) = self.sent.get_mut(number) {
            self.under_way -= usize::from(place.take().is_some());
        }
    }

    /// Returns the timer to put into the ring, if one is due. Before that, it cancels overdue
    /// requests by `push`, which returns false where there is no room.
    pub(super) fn timer(&mut self, mut push: impl FnMut(squeue::Entry) -> bool) -> Option<squeue::Entry> {
        if self.armed || self.refused || self.under_way == 0 {
            return None;
        }
        for (number, place) in self.sent.iter_mut().enumerate() {
            let Some(sent) = place.as_mut().filter(|sent| sent.due <= self.now) else { continue };
            if !push(opcode::AsyncCancel::new(number as u64).build().user_data(NOTICE)) {
                break;
            }
            // The next attempt comes when the request is twice as old as now.
            sent.due = self.now.saturating_add(self.now.saturating_sub(sent.at));
        }
        Some(opcode::Timeout::new(&PERIOD).build().user_data(TIMER))
    }

    /// Notes that the timer is in the ring.
    pub(super) fn armed(&mut self) {
        self.armed = true;
    }

    /// Notes the answer of the timer.
    pub(super) fn heard(&mut self, result: i32) {
        self.armed = false;
        match -result {
            libc::ETIME => self.now = self.now.saturating_add(1),
            // The thread that armed it ended.
            libc::ECANCELED => {}
            _ => self.refused = true,
        }
    }
}

/// Stands in for a request that the kernel loses, in tests: it is answered only when it is
/// cancelled.
pub(super) fn lost() -> squeue::Entry {
    static LONG: types::Timespec = types::Timespec::new().sec(1 << 30);
    opcode::Timeout::new(&LONG).build()
}
