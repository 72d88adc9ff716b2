//! Main memory whose pages are those of a file.

use std::os::fd::AsFd;

use crate::error::{Error, ErrorKind, Result};
use crate::locator::{Dram, Ssd};
use crate::memory::{MappedFile, Region, Sharing};
use crate::process::page_size;

impl Dram {
    /// Makes memory of the `len` bytes at `offset` of a file without reading them (a private
    /// mapping). What the page cache has is used where it is; the rest is read when it is touched,
    /// or by [`prefault`](crate::memory::MemoryRange::prefault). Stores stay in this memory: a page
    /// is copied for it when it is first written, and the file never changes.
    ///
    /// It is for files that are complete. A page that was not written here shows what others write
    /// to the file. If the file is truncated, its pages are gone, those that were written here,
    /// too: transfers and [`read`](crate::memory::MemoryRange::read) return `Device` with the
    /// offset, and any other access raises `SIGBUS`. A file that is replaced by another of its name
    /// stays whole.
    ///
    /// ```
    /// use datapipes_core::{Dram, Ssd};
    /// # let path = std::env::temp_dir().join(format!("datapipes-map-file-{}", std::process::id()));
    /// # std::fs::write(&path, b"bytes of a file").map_err(|e| datapipes_core::Error::io("write", e, "a file"))?;
    /// let file = Ssd::open(&path)?;
    /// let memory = Dram::map_file(&file, 9, 6)?;
    /// memory.memory().write(0, b"A")?;
    /// assert_eq!(memory.memory().to_vec()?, b"A file");
    /// # std::fs::remove_file(&path).map_err(|e| datapipes_core::Error::io("remove", e, "a file"))?;
    /// # Ok::<(), datapipes_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` for 0 bytes; `OutOfRange` where the file has no such bytes; `Unsupported`
    /// where its file system maps no files; `PermissionDenied` where it is open for writing only;
    /// `OutOfMemory` where the process may map no more.
    pub fn map_file(file: &Ssd, offset: u64, len: usize) -> Result<Dram> {
        let context = || format!("{len} bytes at {offset} of {}", file.path().display());
        if len == 0 {
            return Err(Error::new(ErrorKind::InvalidInput, "map", context()));
        }
        let has = file.len()?;
        if offset > has || len as u64 > has - offset {
            let why = format!("{}, which has {has} bytes", context());
            return Err(Error::new(ErrorKind::OutOfRange, "map", why).with_offset(offset));
        }
        let skip = (offset % page_size() as u64) as usize;
        let Some(whole) = len.checked_add(skip).filter(|whole| *whole <= isize::MAX as usize) else {
            let why = format!("{}: more bytes than this process can address", context());
            return Err(Error::new(ErrorKind::OutOfMemory, "map", why));
        };
        let of = MappedFile {
            begins_at: offset - skip as u64,
            path: file.path().to_path_buf(),
            watchers: file.write_observers().clone(),
            sharing: Sharing::Private,
        };
        let region = Region::map_file(file.file().cached_fd().as_fd(), whole, of)
            .map_err(|e| Error::os("map", e.raw_os_error(), context()).with_offset(offset))?;
        Ok(Dram::over(region.range(skip, len)?))
    }
}
