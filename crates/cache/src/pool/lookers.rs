//! Threads that look at files whose file systems may answer late, or never: one for each device
//! with such open files.
//!
//! The maintenance thread takes events and applies the time to live for all files, so it never
//! waits for one file. The thread of a device does, and delays only files of that device. It ends
//! with the last of them.

use std::collections::BTreeMap;
use std::time::Duration;

use datapipes_core::Result;
use datapipes_core::threads;

use super::Pool;
use super::files::Looked;
use crate::sync::{Arc, Condvar, Mutex, Weak};

/// The threads, by device.
#[derive(Default)]
pub(crate) struct Lookers(BTreeMap<u64, Looker>);

struct Looker {
    /// The number of files that it looks at.
    files: usize,
    bell: Arc<Bell>,
}

#[derive(Default)]
struct Bell {
    over: Mutex<bool>,
    rung: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.over.lock() = true;
        self.rung.notify_all();
    }

    /// Waits at most `time`. Returns whether the thread must end.
    fn wait(&self, time: Duration) -> bool {
        let over = self.over.lock();
        if *over {
            return true;
        }
        *self.rung.wait_timeout(over, time).0
    }
}

impl Lookers {
    /// Ends all of them. A thread that waits for a file system does not delay the caller.
    pub(crate) fn end(&mut self) {
        std::mem::take(&mut self.0).into_values().for_each(|looker| looker.bell.ring());
    }
}

/// Adds a file of the device.
///
/// # Errors
/// The reason why a thread cannot be started.
pub(crate) fn more(pool: &Arc<Pool>, device: u64) -> Result<()> {
    let mut lookers = pool.lookers();
    if let Some(looker) = lookers.0.get_mut(&device) {
        looker.files += 1;
        return Ok(());
    }
    let bell = Arc::<Bell>::default();
    let (weak, theirs) = (Arc::downgrade(pool), bell.clone());
    threads::spawn("fine-look", move || run(&weak, device, &theirs))
        .map_err(|e| e.within("the thread of a cache for files whose file system may block"))?;
    lookers.0.insert(device, Looker { files: 1, bell });
    Ok(())
}

/// Removes a file of the device.
pub(crate) fn fewer(pool: &Pool, device: u64) {
    let mut lookers = pool.lookers();
    let Some(looker) = lookers.0.get_mut(&device) else { return };
    looker.files -= 1;
    if looker.files == 0
        && let Some(looker) = lookers.0.remove(&device)
    {
        looker.bell.ring();
    }
}

fn run(pool: &Weak<Pool>, device: u64, bell: &Bell) {
    let mut tick = Duration::from_millis(1);
    while !bell.wait(tick) {
        // The pool is not held during the look: dropping the last handle ends the pool and this
        // thread.
        let Some((files, next)) = pool.upgrade().map(|pool| pool.of_device(device)) else { return };
        tick = next;
        files.into_iter().for_each(Looked::look);
    }
}
