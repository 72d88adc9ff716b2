//! A mapped piece of memory.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use super::headroom;
use super::map::mapped_file::MappedFile;
use super::map::pages::{advise, bind_pages, last_os_error, map_pages, unmap_pages};
use super::table::Table;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::DeferredDrop;

/// The size of a huge page on the machines we know; mappings are aligned to it.
const HUGE: usize = 2 << 20;
/// The page size that a mapping asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pages {
    /// The system's ordinary pages.
    Small,
    /// Huge pages by `madvise(MADV_HUGEPAGE)`. The kernel may give ordinary pages instead, which is
    /// no error.
    #[default]
    Huge,
}

/// How a region is mapped.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct MapOptions {
    /// The page size to ask for.
    pub pages: Pages,
    /// Touches every page now, so that no transfer pays for a first touch (0.3 to 1.5 GB/s on
    /// virtual machines). Mapping then fails where the machine or a limit does not leave enough
    /// memory. Without it, a transfer touches the pages first; nothing checks for memory then, and
    /// the kernel may end the process where there is none.
    pub prefault: bool,
    /// The NUMA node to bind to (`mbind`, strict). `None` leaves it to the first touch.
    pub node: Option<u32>,
}

crate::setters! {
    MapOptions {
        pages: Pages,
        prefault: bool,
        node: into Option<u32>,
    }
}

impl Default for MapOptions {
    fn default() -> Self {
        MapOptions { pages: Pages::Huge, prefault: true, node: None }
    }
}

enum Owner {
    /// Unmapped on drop, by the base and length of the whole mapping.
    Mapped { base: NonNull<u8>, len: usize },
    /// Kept alive by a value of its owner.
    Foreign { _keeper: DeferredDrop },
}

pub(super) struct Inner {
    pub(super) start: NonNull<u8>,
    len: usize,
    owner: Owner,
    pub(super) table: Table,
    id: u64,
    options: MapOptions,
    /// Whether bytes may be changed without a lease.
    shared: bool,
    /// The file that it maps, if any.
    file: Option<Box<MappedFile>>,
    /// How often pages were returned to the kernel.
    pub(super) generation: AtomicU64,
}

// SAFETY: the pointers refer to a mapping that belongs to the process, not to a thread. Access to
// the bytes is regulated by `table`, which is Sync.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Owner::Mapped { base, len } = self.owner {
            // SAFETY: base and len are those of the mmap in `Region::map`. Nothing refers to the
            // mapping any more, because every range and lease holds the Arc whose last drop this
            // is.
            unsafe { unmap_pages(base.as_ptr(), len) };
        }
    }
}

/// A mapped piece of memory. A clone refers to the same bytes.
#[derive(Clone)]
pub struct Region(pub(super) Arc<Inner>);

impl Region {
    /// Maps `len` bytes of anonymous memory, zeroed.
    ///
    /// # Errors
    /// `InvalidInput` for a length of 0. `OutOfMemory` where the kernel refuses or, with
    /// `prefault`, where the machine, a control group or the node lacks the memory. `Unavailable`
    /// where binding to the node is refused.
    pub fn map(len: usize, options: MapOptions) -> Result<Region> {
        if len == 0 || len > isize::MAX as usize - HUGE {
            return Err(Error::new(ErrorKind::InvalidInput, "map", format!("{len} bytes of memory")));
        }
        if options.prefault {
            headroom::check(len, options.node)?;
        }
        let align = if len >= HUGE && options.pages == Pages::Huge { HUGE } else { 0 };
        let whole = len + align;
        let base = map_pages(whole);
        if base == libc::MAP_FAILED {
            return Err(not_mapped(len));
        }
        let Some(base) = NonNull::new(base.cast::<u8>()) else {
            return Err(Error::new(ErrorKind::OutOfMemory, "map", "the kernel returned address 0"));
        };
        let skip = if align == 0 { 0 } else { base.addr().get().wrapping_neg() % HUGE };
        // SAFETY: skip is less than HUGE, by which the mapping is longer than len.
        let start = unsafe { base.add(skip) };
        let region = Region(Arc::new(Inner {
            start,
            len,
            owner: Owner::Mapped { base, len: whole },
            table: Table::new(),
            id: next_id(),
            options,
            shared: false,
            file: None,
            generation: AtomicU64::new(0),
        }));
        if align != 0 {
            // Only advice: a kernel without transparent huge pages answers EINVAL, and ordinary
            // pages serve. SAFETY: start and len lie within the mapping made above.
            unsafe { advise(start.as_ptr().cast(), len, libc::MADV_HUGEPAGE) };
        }
        if let Some(node) = options.node {
            region.bind(node)?;
        }
        if options.prefault {
            region.range(0, len)?.prefault()?;
        }
        Ok(region)
    }

    /// Takes memory of another owner. `keeper` is dropped with the last reference to the region; a
    /// thread of a runtime drops it where a transfer was the last user. A panic of its destructor
    /// is caught and counted ([`guard::panics`](crate::guard::panics)).
    ///
    /// # Safety
    /// `start..start + len` must stay valid for reads and writes until `keeper` is dropped. Nothing
    /// else may access it while a lease or a transfer holds it.
    pub unsafe fn foreign(start: NonNull<u8>, len: usize, keeper: Box<dyn Any + Send + Sync>) -> Region {
        Region::over((start, len), keeper, false, None)
    }

    /// As [`foreign`](Self::foreign), for memory that others access without a lease: other
    /// processes, other mappings of the same pages, holders of the file's descriptor. Transfers
    /// move its bytes; nobody gets a reference to them. If it maps a file, the library does not
    /// know that: caches in front of the file are not told of changes, and a page that the file
    /// loses may end the process by `SIGBUS`. [`Pmem`](../struct.Pmem.html) maps files.
    ///
    /// # Safety
    /// `start..start + len` must stay valid for reads and writes until `keeper` is dropped.
    pub unsafe fn shared(start: NonNull<u8>, len: usize, keeper: Box<dyn Any + Send + Sync>) -> Region {
        Region::over((start, len), keeper, true, None)
    }

    /// As [`shared`](Self::shared), for the first bytes of a file.
    ///
    /// # Safety
    /// As for [`shared`](Self::shared).
    pub(super) unsafe fn of_file(
        start: NonNull<u8>,
        len: usize,
        (keeper, file): (Box<dyn Any + Send + Sync>, MappedFile),
    ) -> Region {
        Region::over((start, len), keeper, true, Some(Box::new(file)))
    }

    fn over(
        (start, len): (NonNull<u8>, usize),
        keeper: Box<dyn Any + Send + Sync>,
        shared: bool,
        file: Option<Box<MappedFile>>,
    ) -> Region {
        Region(Arc::new(Inner {
            start,
            len,
            owner: Owner::Foreign { _keeper: DeferredDrop::new(keeper) },
            table: Table::new(),
            id: next_id(),
            options: MapOptions { pages: Pages::Small, prefault: false, node: None },
            shared,
            file,
            generation: AtomicU64::new(0),
        }))
    }

    /// Whether the bytes may be changed at any time without a lease.
    /// [`MemoryRange::lease`](super::MemoryRange::lease) is then refused.
    pub fn is_shared(&self) -> bool {
        self.0.shared
    }

    /// Whether its bytes are those of a file (persistent memory). A file may lose pages while they
    /// are mapped or pinned. Code that pins pages (registers them with a ring or a device) must not
    /// pin these, or it may hold pages of another file or of none.
    pub fn maps_file(&self) -> bool {
        self.0.file.is_some()
    }

    /// The file that it maps.
    pub(crate) fn file(&self) -> Option<&MappedFile> {
        self.0.file.as_deref()
    }

    /// The name of the region in errors.
    pub(super) fn name(&self) -> String {
        self.file().map_or_else(|| "shared memory".to_owned(), |file| file.path.display().to_string())
    }

    /// Whether the library mapped it, as anonymous memory.
    pub(super) fn is_anonymous(&self) -> bool {
        matches!(self.0.owner, Owner::Mapped { .. })
    }

    /// The length in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// A number that no other region of this process has or had.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// How often [`MemoryRange::release`](super::MemoryRange::release) returned pages of this
    /// region to the kernel. A user that pinned pages (registered them with a ring or a device)
    /// must pin them anew when this has changed: the pinned pages are no longer those at the
    /// addresses.
    pub fn generation(&self) -> u64 {
        self.0.generation.load(Ordering::Acquire)
    }

    /// The options by which it was mapped.
    pub fn options(&self) -> MapOptions {
        self.0.options
    }

    /// The address of the first byte. It gives no right to the bytes, which are reached through
    /// leases.
    pub fn address(&self) -> *mut u8 {
        self.0.start.as_ptr()
    }

    fn bind(&self, node: u32) -> Result<()> {
        const MPOL_BIND: libc::c_int = 2;
        let mut mask = [0u64; 16];
        let Some(word) = mask.get_mut(node as usize / 64) else {
            return Err(Error::new(ErrorKind::InvalidInput, "bind", format!("NUMA node {node}")));
        };
        *word = 1 << (node % 64);
        if !bind_pages((self.address(), self.len()), &mask, MPOL_BIND) {
            let e = last_os_error("bind", format!("{} bytes to NUMA node {node}", self.len()));
            return Err(e.with_advice("see `dpipe machine` for the nodes that exist"));
        }
        Ok(())
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes, id {})", self.len(), self.id())
    }
}

/// The error of a refused mapping; usually the process may not map so much.
#[cold]
fn not_mapped(len: usize) -> Error {
    let e = last_os_error("map", format!("{len} bytes of memory"));
    match rustix::process::getrlimit(rustix::process::Resource::As).current {
        Some(limit) => e.with_advice(format!(
            "the process may map only {limit} bytes (RLIMIT_AS, `ulimit -v` in KiB): ask for less, or raise the limit"
        )),
        None => e.with_advice("ask for less memory"),
    }
}

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
