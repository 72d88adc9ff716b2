//! A sorted part as a file without a name, which its keeper gives to others.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use datapipes_core::locator::Endpoint;
use datapipes_core::{Error, ErrorKind, Locator, Result, Ssd};

use crate::place::OutputPlace;

/// A file without a name as the output of a sort. The kernel frees it with its last descriptor.
#[derive(Debug)]
pub struct UnnamedOutput {
    ssd: Ssd,
    name: PathBuf,
}

impl UnnamedOutput {
    /// Makes one in a folder, with room for so many bytes.
    ///
    /// # Errors
    /// `NoSpace` if the room is not there; errors of making files in the folder.
    pub fn in_folder(folder: &Path, room: u64) -> Result<UnnamedOutput> {
        let ssd = match Ssd::unlinked_in(folder) {
            Err(e) if e.kind() == ErrorKind::Unavailable => named_for_a_moment(folder)?,
            made => made?,
        };
        ssd.preallocate(room)?;
        Ok(UnnamedOutput { ssd, name: folder.join("(a sorted part)") })
    }

    /// The file.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn file(&self) -> Result<File> {
        let again = self.ssd.file().cached_fd().try_clone_to_owned();
        again.map(File::from).map_err(|e| Error::io("open", e, self.name.display().to_string()))
    }
}

/// For file systems that have no files without names.
fn named_for_a_moment(folder: &Path) -> Result<Ssd> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let name = format!(".datapipes-part-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
    let path = folder.join(name);
    let ssd = Ssd::create_new(&path)?;
    std::fs::remove_file(&path).map_err(|e| Error::io("remove", e, path.display().to_string()))?;
    Ok(ssd)
}

impl Locator for UnnamedOutput {
    fn endpoint(&self) -> Endpoint {
        self.ssd.endpoint()
    }
}

impl OutputPlace for UnnamedOutput {
    fn name(&self) -> &Path {
        &self.name
    }

    fn publish(&self, len: u64) -> Result<()> {
        self.ssd.set_len(len)
    }
}
