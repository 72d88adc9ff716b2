//! Finds requests that the kernel does not answer, and has those that it never began given back.
//!
//! What a ring cannot do at once is done by worker threads that the kernel makes for each thread
//! that submits. Where it gets no thread now and then (a limit on processes), Linux can lose a
//! request. A worker that leaves still counts as one that runs, so no other is made for what
//! arrives meanwhile; the worker that was to stay may be the one that could not be made. The
//! request stays in the queue of its thread until another one is put there, which may be never. A
//! soak met this once in some 10,000 processes (three writes, unanswered for two minutes); see also
//! `iowq_keepalive.rs`.
//!
//! So each ring with requests under way has a timer at the kernel. It makes an answer like any
//! other, so that whoever waits for the ring looks at it, however they wait. A request that was
//! unanswered for a whole period is then asked back (`IORING_OP_ASYNC_CANCEL`). The kernel gives
//! one back that was not begun (`ECANCELED`), and it is made again. One that a worker or a device
//! is busy with stays there; at most a wait that a signal may end is ended, with `EINTR`, and that
//! is made again, too. Slow devices are asked seldom: after twice the time, each time.

use io_uring::{opcode, squeue, types};

/// The number of the timer's answers. No request has it.
pub(super) const TIMER: u64 = u64::MAX - 1;
/// The number of answers that say nothing.
pub(super) const NOTICE: u64 = u64::MAX;

/// How often it is looked: so long, or up to twice as long, a lost request waits.
static PERIOD: types::Timespec = types::Timespec::new().sec(2);

/// When a request is asked back, in periods.
#[derive(Clone, Copy)]
struct Sent {
    at: u64,
    due: u64,
}

/// Which requests of a ring are under way, and since when.
pub(super) struct Watchdog {
    /// Periods that ended.
    now: u64,
    armed: bool,
    /// The kernel knows no timers.
    refused: bool,
    sent: Vec<Option<Sent>>,
    under_way: usize,
}

impl Watchdog {
    /// For requests with numbers below this.
    pub(super) fn new(requests: usize) -> Watchdog {
        Watchdog { now: 0, armed: false, refused: false, sent: vec![None; requests], under_way: 0 }
    }

    /// A request is on its way.
    pub(super) fn sent(&mut self, number: usize) {
        // The present period began before it.
        let sent = Sent { at: self.now, due: self.now.saturating_add(2) };
        if let Some(place) = self.sent.get_mut(number) {
            self.under_way += usize::from(place.replace(sent).is_none());
        }
    }

    /// A request was answered.
    pub(super) fn answered(&mut self, number: usize) {
        if let Some(place) = self.sent.get_mut(number) {
            self.under_way -= usize::from(place.take().is_some());
        }
    }

    /// The timer that is to be put into the ring, if one is; before it, by `push`, what asks
    /// requests back. There may be no room for that, of which `push` tells.
    pub(super) fn timer(&mut self, mut push: impl FnMut(squeue::Entry) -> bool) -> Option<squeue::Entry> {
        if self.armed || self.refused || self.under_way == 0 {
            return None;
        }
        for (number, place) in self.sent.iter_mut().enumerate() {
            let Some(sent) = place.as_mut().filter(|sent| sent.due <= self.now) else { continue };
            if !push(opcode::AsyncCancel::new(number as u64).build().user_data(NOTICE)) {
                break;
            }
            // After twice the time that it is under way by now.
            sent.due = self.now.saturating_add(self.now.saturating_sub(sent.at));
        }
        Some(opcode::Timeout::new(&PERIOD).build().user_data(TIMER))
    }

    /// The timer is in the ring.
    pub(super) fn armed(&mut self) {
        self.armed = true;
    }

    /// The timer was answered.
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

/// A request as tests want it that the kernel loses: it is answered when it is asked back.
pub(super) fn lost() -> squeue::Entry {
    static LONG: types::Timespec = types::Timespec::new().sec(1 << 30);
    opcode::Timeout::new(&LONG).build()
}
