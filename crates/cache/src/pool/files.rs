//! Open files of a pool, held for a moment. The holder may become their last owner.

use std::sync::Weak;

use datapipes_core::threads;

use super::file::Inner;
use crate::coherence::outside::Look;
use crate::sync::Arc;

/// A file to look at, which may block.
pub(crate) struct Looked(Weak<Inner>);

impl Looked {
    pub(super) fn at(file: &Arc<Inner>) -> Looked {
        Looked(Arc::downgrade(file))
    }

    /// Looks at the file. While its file system does not answer, only the file's descriptors are
    /// held: the first request uses them alone, and a file that answers it answers the next one as
    /// well, unless it stops in between.
    pub(crate) fn look(self) {
        let open = || self.0.upgrade().map(|file| Files(vec![file]));
        let Some(ssd) = open().and_then(|files| files.first().and_then(|file| file.ssd.clone())) else { return };
        let answered = Look::at(&ssd);
        drop(ssd);
        if answered.is_ok()
            && let Some(files) = open()
        {
            files.iter().for_each(|file| file.look());
        }
    }
}

/// Open files, held for a moment.
pub(crate) struct Files(Vec<Arc<Inner>>);

impl Files {
    pub(super) fn open(files: impl Iterator<Item = Arc<Inner>>) -> Files {
        Files(files.collect())
    }
}

impl std::ops::Deref for Files {
    type Target = [Arc<Inner>];

    fn deref(&self) -> &[Arc<Inner>] {
        &self.0
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        for last in self.0.drain(..).filter_map(Arc::into_inner) {
            // The last handle went meanwhile. Closing its descriptors may wait for its file system,
            // and all files may need this thread. If no thread can be started, this thread closes
            // them.
            let _ = threads::spawn("fine-close", move || drop(last));
        }
    }
}
