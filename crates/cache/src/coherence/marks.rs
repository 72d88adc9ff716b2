//! The files about which the kernel sends events: their marks in the pool's queue, and how they are
//! closed.
//!
//! Adding a mark, removing it, and closing a file all ask the file system. A network or FUSE file
//! system may answer late, or never. Only a thread that opens a file there waits for that. A
//! separate thread removes the mark and closes the file.

use std::collections::{BTreeMap, BTreeSet};

use datapipes_core::process::OwningProcess;
use datapipes_core::threads;
use datapipes_core::{Result, Ssd};

use super::events::{Events, FileName};
use super::outside::is_steady;
use crate::sync::{Arc, Mutex};

/// The files that a pool's queue listens to.
#[derive(Default)]
pub(crate) struct Marks {
    listening: Mutex<Listening>,
    /// Held while files of a device are marked, or their marks removed, which may wait for the file
    /// system. It is never held together with a lock that others need.
    marking: Mutex<BTreeMap<u64, Arc<Mutex<()>>>>,
}

/// The queue of events and its marks.
#[derive(Default)]
struct Listening {
    queue: Option<Arc<Events>>,
    /// How often each marked file is open; it has one mark.
    marks: BTreeMap<FileName, usize>,
    /// Files that were closed, of which events may still come.
    gone: BTreeSet<FileName>,
}

impl Marks {
    fn marking(&self, ssd: &Ssd) -> Arc<Mutex<()>> {
        self.marking.lock().entry(ssd.file().device()).or_default().clone()
    }

    /// Listens to a file. Returns its name in events.
    pub(crate) fn listen(&self, ssd: &Ssd) -> Result<Option<FileName>> {
        let queue = {
            let mut listening = self.listening.lock();
            match &listening.queue {
                Some(queue) => queue.clone(),
                // It is tried again with each file: resources that were short may be available by
                // then.
                None => listening.queue.insert(Arc::new(Events::new()?)).clone(),
            }
        };
        let marking = self.marking(ssd);
        let _only = marking.lock();
        let name = queue.add(ssd)?;
        if let Some(name) = &name {
            let mut listening = self.listening.lock();
            *listening.marks.entry(name.clone()).or_default() += 1;
            listening.gone.remove(name);
        }
        Ok(name)
    }

    /// Stops listening for one opening of a file. A file without a name keeps its mark. This may
    /// wait for the file system.
    pub(crate) fn listen_no_more(&self, ssd: &Ssd, name: Option<&FileName>) {
        let Some(name) = name else { return };
        let marking = self.marking(ssd);
        let _only = marking.lock();
        let queue = {
            let mut listening = self.listening.lock();
            let left = listening.marks.get_mut(name).map(|n| {
                *n -= 1;
                *n
            });
            if left != Some(0) {
                return;
            }
            listening.marks.remove(name);
            listening.gone.insert(name.clone());
            listening.queue.clone()
        };
        if let Some(queue) = queue {
            queue.remove(ssd);
        }
    }

    /// Returns the queue of events, if there is one.
    pub(crate) fn queue(&self) -> Option<Arc<Events>> {
        self.listening.lock().queue.clone()
    }

    /// Returns the names of files closed since the last call, of which events may still come.
    pub(crate) fn gone(&self) -> BTreeSet<FileName> {
        std::mem::take(&mut self.listening.lock().gone)
    }

    /// Whether a file of this name is listened to, or is being closed.
    pub(crate) fn has(&self, name: &FileName) -> bool {
        self.listening.lock().marks.contains_key(name)
    }
}

/// Closes a file whose file system may not answer, after everything else of the file is dropped. It
/// is the last field of its owner.
pub(crate) struct Closer {
    file: Option<(Ssd, Option<FileName>)>,
    marks: Arc<Marks>,
    owner: OwningProcess,
}

impl Closer {
    /// Makes a closer. It has work only for a file whose file system may block.
    pub(crate) fn of(ssd: Option<&Ssd>, name: Option<&FileName>, marks: &Arc<Marks>) -> Closer {
        let file = ssd.filter(|ssd| !is_steady(ssd)).map(|ssd| (ssd.clone(), name.cloned()));
        Closer { file, marks: marks.clone(), owner: OwningProcess::here() }
    }

    /// Whether closing the file may block.
    pub(crate) fn waits(&self) -> bool {
        self.file.is_some()
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        let Some((ssd, name)) = self.file.take().filter(|_| self.owner.is_here()) else { return };
        let marks = self.marks.clone();
        // It holds nothing of the pool but the queue. If no thread can be started, the mark stays
        // until the pool ends, and this thread closes the file.
        let _ = threads::spawn("fine-close", move || {
            marks.listen_no_more(&ssd, name.as_ref());
            drop(ssd);
        });
    }
}
