//! Which files the kernel tells of: their marks in the pool's queue of events, and who closes them.
//!
//! To mark a file or to remove its mark asks its file system, and so does to close it; a file
//! system of a network or of a program may answer late, or never. Nobody waits for that but who
//! opens a file there: a thread of its own removes the mark and closes.

use std::collections::{BTreeMap, BTreeSet};

use datapipes_core::process::OwningProcess;
use datapipes_core::{Result, Ssd};

use crate::events::{Events, FileName};
use crate::outside::is_steady;
use crate::sync::{Arc, Mutex, lock};

/// What a pool's queue listens to.
#[derive(Default)]
pub(crate) struct Marks {
    listening: Mutex<Listening>,
    /// Held while files of a device are marked, or their marks removed, which may wait for their
    /// file system: never together with what others need.
    marking: Mutex<BTreeMap<u64, Arc<Mutex<()>>>>,
}

/// Whether the kernel tells of changes.
#[derive(Default)]
struct Listening {
    queue: Option<Arc<Events>>,
    /// How often each file is open that is listened to: it has one mark.
    marks: BTreeMap<FileName, usize>,
    /// Files that are closed, of which events may still come.
    gone: BTreeSet<FileName>,
}

impl Marks {
    fn marking(&self, ssd: &Ssd) -> Arc<Mutex<()>> {
        lock(&self.marking).entry(ssd.file().device()).or_default().clone()
    }

    /// Listens to a file; by which name it is told.
    pub(crate) fn listen(&self, ssd: &Ssd) -> Result<Option<FileName>> {
        let queue = {
            let mut listening = lock(&self.listening);
            match &listening.queue {
                Some(queue) => queue.clone(),
                // Asked again with each file: what was short may be there by then.
                None => listening.queue.insert(Arc::new(Events::new()?)).clone(),
            }
        };
        let marking = self.marking(ssd);
        let _only = lock(&marking);
        let name = queue.add(ssd)?;
        if let Some(name) = &name {
            let mut listening = lock(&self.listening);
            *listening.marks.entry(name.clone()).or_default() += 1;
            listening.gone.remove(name);
        }
        Ok(name)
    }

    /// One that listened to a file does not any more. A file without a name keeps its mark. It may
    /// wait for the file system.
    pub(crate) fn listen_no_more(&self, ssd: &Ssd, name: Option<&FileName>) {
        let Some(name) = name else { return };
        let marking = self.marking(ssd);
        let _only = lock(&marking);
        let queue = {
            let mut listening = lock(&self.listening);
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

    /// The queue of events, where there is one.
    pub(crate) fn queue(&self) -> Option<Arc<Events>> {
        lock(&self.listening).queue.clone()
    }

    /// The names of files that were closed since this was last asked, of which events may still
    /// come.
    pub(crate) fn gone(&self) -> BTreeSet<FileName> {
        std::mem::take(&mut lock(&self.listening).gone)
    }

    /// Whether a file of this name is listened to, or is being closed.
    pub(crate) fn has(&self, name: &FileName) -> bool {
        lock(&self.listening).marks.contains_key(name)
    }
}

/// Closes a file whose file system may not answer, after everything else of it is gone: the last
/// field of what has it open.
pub(crate) struct Closer {
    file: Option<(Ssd, Option<FileName>)>,
    marks: Arc<Marks>,
    owner: OwningProcess,
}

impl Closer {
    /// Of a file that may wait; of no other.
    pub(crate) fn of(ssd: Option<&Ssd>, name: Option<&FileName>, marks: &Arc<Marks>) -> Closer {
        let file = ssd.filter(|ssd| !is_steady(ssd)).map(|ssd| (ssd.clone(), name.cloned()));
        Closer { file, marks: marks.clone(), owner: OwningProcess::here() }
    }

    /// Whether there is anything to do for it.
    pub(crate) fn waits(&self) -> bool {
        self.file.is_some()
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        let Some((ssd, name)) = self.file.take().filter(|_| self.owner.is_here()) else { return };
        let marks = self.marks.clone();
        // It keeps nothing of the pool but the queue. Without another thread the mark stays until
        // the pool ends, and this thread closes.
        let _ = std::thread::Builder::new().name("fine-close".into()).spawn(move || {
            marks.listen_no_more(&ssd, name.as_ref());
            drop(ssd);
        });
    }
}
