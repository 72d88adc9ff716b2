//! Room for transfers in a descriptor, and the plug that makes it unwritable while there is none.

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

pub(super) struct TransferSlots {
    /// Transfers accepted whose completion was not sent yet.
    open: AtomicUsize,
    most: usize,
    /// The other end was made unwritable on purpose.
    plugged: AtomicBool,
    /// Held by who makes it so or ends it.
    plugs: Mutex<()>,
}

impl TransferSlots {
    pub(super) fn new(most: usize) -> TransferSlots {
        TransferSlots {
            open: AtomicUsize::new(0),
            most: most.max(1),
            plugged: AtomicBool::new(false),
            plugs: Mutex::new(()),
        }
    }

    pub(super) fn most(&self) -> usize {
        self.most
    }

    pub(super) fn is_there(&self) -> bool {
        self.open.load(Ordering::SeqCst) < self.most
    }

    /// Takes a place; false where there is none. It is not taken first and given back: whoever
    /// frees one meanwhile would find none, and leave the descriptor unwritable for good.
    pub(super) fn take(&self) -> bool {
        let more = |open: usize| (open < self.most).then_some(open + 1);
        self.open.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
    }

    /// Takes a place whether there is one or not, for what is refused by a completion.
    pub(super) fn take_anyway(&self) {
        self.open.fetch_add(1, Ordering::SeqCst);
    }

    /// Gives a place back; true if the descriptor may be plugged, and is to be
    /// [`unplug`](Self::unplug)ged.
    pub(super) fn give_back(&self) -> bool {
        self.open.fetch_sub(1, Ordering::SeqCst);
        self.plugged.load(Ordering::SeqCst)
    }

    /// Has the descriptor made unwritable by `fill`, unless there is room again.
    pub(super) fn plug(&self, is_free: impl Fn() -> bool, fill: impl FnOnce()) {
        let _plugs = self.plugs.lock();
        // Before the look for room: either a transfer that ends sees it, or its room is seen here.
        self.plugged.store(true, Ordering::SeqCst);
        if is_free() {
            self.plugged.store(false, Ordering::SeqCst);
            return;
        }
        fill();
    }

    /// Has it made writable by `drain`, unless the room was taken again meanwhile.
    pub(super) fn unplug(&self, is_free: impl Fn() -> bool, drain: impl FnOnce()) {
        let _plugs = self.plugs.lock();
        if is_free() && self.plugged.swap(false, Ordering::SeqCst) {
            drain();
        }
    }
}

#[cfg(all(test, shuttle))]
mod tests {
    use super::*;
    use crate::sync::{Arc, Condvar, thread};
    use datapipes_testkit::schedules;

    /// Whether the model descriptor is writable, and transfers that are under way.
    #[derive(Default)]
    struct Model {
        plugged: Mutex<bool>,
        changed: Condvar,
        under_way: Mutex<usize>,
        started: Condvar,
    }

    #[test]
    fn who_is_refused_while_a_transfer_ends_finds_the_descriptor_writable_again() {
        schedules(|| {
            let (room, model) = (Arc::new(TransferSlots::new(1)), Arc::new(Model::default()));
            let device = {
                let (room, model) = (room.clone(), model.clone());
                thread::spawn(move || {
                    for _ in 0..2 {
                        let mut under_way = model.under_way.lock();
                        while *under_way == 0 {
                            under_way = model.started.wait(under_way);
                        }
                        *under_way -= 1;
                        drop(under_way);
                        if room.give_back() {
                            room.unplug(
                                || room.is_there(),
                                || {
                                    *model.plugged.lock() = false;
                                    model.changed.notify_all();
                                },
                            );
                        }
                    }
                })
            };
            for _ in 0..2 {
                while !room.take() {
                    let mut plugged = model.plugged.lock();
                    while *plugged {
                        plugged = model.changed.wait(plugged);
                    }
                }
                *model.under_way.lock() += 1;
                model.started.notify_all();
                if !room.is_there() {
                    room.plug(|| room.is_there(), || *model.plugged.lock() = true);
                }
            }
            device.join().unwrap();
        });
    }
}
