//! Observers of files that are opened several times, and what an open file knows of its device.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use super::Ssd;
use crate::locator::FileAccess;
use crate::watch::WriteObserver;

/// An observer that records the ranges about to change, in order.
#[derive(Default)]
struct Heard(Mutex<Vec<Range<u64>>>);

impl WriteObserver for Heard {
    fn changing(&self, range: Range<u64>) {
        self.0.lock().unwrap().push(range);
    }

    fn changed(&self, _: Range<u64>) {}
}

#[test]
fn two_places_of_one_file_share_their_watches() {
    let dir = std::env::temp_dir().join(format!("datapipes-watch-{}", std::process::id()));
    let a = Ssd::create(&dir).unwrap();
    let b = Ssd::open(&dir).unwrap();
    let heard = Arc::new(Heard::default());
    let watch: Arc<dyn WriteObserver> = heard.clone();
    b.write_observers().add(&watch);
    a.set_len(100).unwrap();
    a.set_len(40).unwrap();
    a.punch(0, 10).unwrap();
    let c = Ssd::create(&dir).unwrap();
    std::fs::remove_file(&dir).unwrap();
    assert!(Arc::ptr_eq(a.write_observers(), c.write_observers()));
    assert_eq!(*heard.0.lock().unwrap(), [0..u64::MAX, 40..u64::MAX, 0..10, 0..u64::MAX]);
}

#[test]
fn the_queue_is_that_of_the_device_and_is_looked_for_once() {
    let name = std::env::temp_dir().join(format!("datapipes-queue-{}", std::process::id()));
    let file = Ssd::create(&name).unwrap();
    let device = crate::topology::BlockDevice::behind(&name).unwrap().device;
    assert!(file.file().queue.get().is_none(), "opening a file asks for no queue");
    let found = file.file().queue();
    assert_eq!(found.map(|queue| queue.requests), device.as_ref().map(|device| device.nr_requests));
    let kib = found.map(|queue| queue.request_bytes.map(|bytes| bytes >> 10));
    assert_eq!(kib, device.map(|device| device.max_sectors_kb.map(u64::from)));
    // Another access to the same file knows it.
    let other = file.with_access(FileAccess::Cached).unwrap();
    assert_eq!(other.file().queue.get(), Some(&found));
    std::fs::remove_file(&name).unwrap();
}
