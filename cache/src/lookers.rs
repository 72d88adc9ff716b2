//! Who looks at files whose file systems may answer late, or never: a thread for each device that
//! has such files open.
//!
//! The maintenance thread takes events and ends the time to live for all files, so it never waits
//! for one of them. A thread of the device does, and keeps only files of that device waiting. It
//! ends with the last of them.

use std::collections::BTreeMap;
use std::time::Duration;

use datapipes_core::{Error, Result};

use crate::pool::{Looked, Pool};
use crate::sync::{Arc, Condvar, Mutex, PoisonError, Weak, lock};

/// The threads, by device.
#[derive(Default)]
pub(crate) struct Lookers(BTreeMap<u64, Looker>);

struct Looker {
    /// Files it looks at.
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
        *lock(&self.over) = true;
        self.rung.notify_all();
    }

    /// Whether it is over, after so long at most.
    fn wait(&self, time: Duration) -> bool {
        let over = lock(&self.over);
        if *over {
            return true;
        }
        *self.rung.wait_timeout(over, time).unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Lookers {
    /// Ends all of them; who waits for a file system does so for itself.
    pub(crate) fn end(&mut self) {
        std::mem::take(&mut self.0).into_values().for_each(|looker| looker.bell.ring());
    }
}

/// One more file of the device is looked at.
///
/// # Errors
/// Why there is no thread to be had.
pub(crate) fn more(pool: &Arc<Pool>, device: u64) -> Result<()> {
    let mut lookers = pool.lookers();
    if let Some(looker) = lookers.0.get_mut(&device) {
        looker.files += 1;
        return Ok(());
    }
    let bell = Arc::<Bell>::default();
    let (weak, theirs) = (Arc::downgrade(pool), bell.clone());
    std::thread::Builder::new()
        .name("fine-look".into())
        .spawn(move || run(&weak, device, &theirs))
        .map_err(|e| Error::io("start", &e, "the thread of a cache that looks at files which may wait"))?;
    lookers.0.insert(device, Looker { files: 1, bell });
    Ok(())
}

/// One less is.
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
        // Not for the time of the look: who drops the last handle ends the pool, and this thread
        // with it.
        let Some((files, next)) = pool.upgrade().map(|pool| pool.of_device(device)) else { return };
        tick = next;
        files.into_iter().for_each(Looked::look);
    }
}
