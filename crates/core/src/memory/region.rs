//! A mapped piece of memory, and ranges in it.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use super::file_map::MappedFile;
use super::guarded;
use super::lease::{Lease, LeaseMut, RawLease};
use super::pool::Cut;
use super::prefault;
use super::table::{Access, Table};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::DeferredDrop;

/// The size of a huge page on the machines we know; mappings are aligned to it.
const HUGE: usize = 2 << 20;
/// Copies up to this size are made with the tables locked; longer ones register leases first.
const SHORT: usize = 4096;

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
    start: NonNull<u8>,
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
    generation: AtomicU64,
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
            prefault::check(len, options.node)?;
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

    /// Whether the bytes may be changed at any time without a lease. [`MemoryRange::lease`] is then
    /// refused.
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

    /// The length in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// A number that no other region of this process has or had.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// How often [`MemoryRange::release`] returned pages of this region to the kernel. A user that
    /// pinned pages (registered them with a ring or a device) must pin them anew when this has
    /// changed: the pinned pages are no longer those at the addresses.
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

    /// The range of `len` bytes at `at`.
    ///
    /// # Errors
    /// `OutOfRange` where it does not lie within the region.
    pub fn range(&self, at: usize, len: usize) -> Result<MemoryRange> {
        check_range("range", at, len, self.len())?;
        Ok(MemoryRange { region: self.clone(), at, len, cut: None })
    }

    fn bind(&self, node: u32) -> Result<()> {
        const MPOL_BIND: libc::c_int = 2;
        let mut mask = [0u64; 16];
        let Some(word) = mask.get_mut(node as usize / 64) else {
            return Err(Error::new(ErrorKind::InvalidInput, "bind", format!("NUMA node {node}")));
        };
        *word = 1 << (node % 64);
        if !bind_pages(self, &mask, MPOL_BIND) {
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

/// A range of a region, as held by locators in memory. It gives no right to the bytes; those are
/// leased.
#[derive(Clone, Debug)]
pub struct MemoryRange {
    region: Region,
    at: usize,
    len: usize,
    /// The allocation of a pool that the range belongs to. The pool reuses the bytes only when
    /// nothing refers to them.
    cut: Option<Arc<Cut>>,
}

impl MemoryRange {
    /// The region it lies in.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Offset of its first byte in the region.
    pub fn at(&self) -> usize {
        self.at
    }

    /// The length in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The address of its first byte, which gives no right to the bytes.
    pub fn address(&self) -> *mut u8 {
        // SAFETY: `at` was checked to lie within the region when the range was made.
        unsafe { self.region.0.start.as_ptr().add(self.at) }
    }

    /// The sub-range of `len` bytes at `at` of this range.
    ///
    /// # Errors
    /// # Errors
    pub fn range(&self, at: usize, len: usize) -> Result<MemoryRange> {
        check_range("range", at, len, self.len)?;
        Ok(MemoryRange { region: self.region.clone(), at: self.at + at, len, cut: self.cut.clone() })
    }

    /// Marks the range as a part of a pool's allocation.
    pub(super) fn of_cut(self, cut: Cut) -> MemoryRange {
        MemoryRange { cut: Some(Arc::new(cut)), ..self }
    }

    /// The NUMA node that it is bound to.
    pub(super) fn node(&self) -> Option<u32> {
        self.region.0.options.node
    }

    /// Whether both ranges are the same bytes.
    pub fn same_bytes(&self, other: &MemoryRange) -> bool {
        self.region.id() == other.region.id() && self.at == other.at && self.len == other.len
    }

    /// Whether the ranges have bytes in common.
    pub fn overlaps(&self, other: &MemoryRange) -> bool {
        self.region.id() == other.region.id() && self.at < other.at + other.len && other.at < self.at + self.len
    }

    /// Leases the whole range for reading.
    ///
    /// # Errors
    /// `Busy` while another lease may write any of these bytes. `Unsupported` where others may
    /// change them without a lease (a mapped file, shared memory): there, [`read`](Self::read) and
    /// [`write`](Self::write) copy, and pipes move.
    pub fn lease(&self) -> Result<Lease> {
        self.check_own()?;
        Ok(Lease(self.raw_lease(Access::Read)?))
    }

    /// Leases the whole range for writing.
    ///
    /// # Errors
    /// `Busy` while another lease holds any of these bytes; `Unsupported` as for
    /// [`lease`](Self::lease).
    pub fn lease_mut(&self) -> Result<LeaseMut> {
        self.check_own()?;
        Ok(LeaseMut { lease: self.raw_lease(Access::Write)?, _change: None })
    }

    /// As [`lease`](Self::lease), also for bytes that others could change. Touching a page that a
    /// mapped file lost raises `SIGBUS`; [`read`](Self::read) returns an error instead.
    ///
    /// # Safety
    /// While the lease lives, the bytes are changed only under leases of this region: by no other
    /// process, no other mapping, no write through a descriptor of the file, no pipe to that file.
    ///
    /// # Errors
    /// `Busy` while another lease may write any of these bytes.
    pub unsafe fn lease_unchecked(&self) -> Result<Lease> {
        Ok(Lease(self.raw_lease(Access::Read)?))
    }

    /// As [`lease_mut`](Self::lease_mut), also for bytes that others could access. Where the memory
    /// maps a file, a change is in progress as long as the lease lives: reads of these bytes
    /// through caches in front of the file wait for its end or are refused. Touching a page that
    /// the file lost raises `SIGBUS`.
    ///
    /// # Safety
    /// While the lease lives, the bytes are read and changed only under leases of this region, as
    /// for [`lease_unchecked`](Self::lease_unchecked).
    ///
    /// # Errors
    /// `Busy` while another lease holds any of these bytes; `Forked` where the memory maps a file
    /// that a parent of this process opened.
    pub unsafe fn lease_mut_unchecked(&self) -> Result<LeaseMut> {
        let change = self.lasting_change("lease")?;
        Ok(LeaseMut { lease: self.raw_lease(Access::Write)?, _change: change })
    }

    /// Copies the bytes at `at` into a buffer, also from memory that others may change. The copy
    /// may mix old and new bytes if they change meanwhile.
    ///
    /// # Errors
    /// `OutOfRange`; `Busy` while a lease of this process may write them; `Device`, with the offset
    /// in the file and the bytes done, where a mapped file has lost a page (on x86-64; elsewhere
    /// `SIGBUS` ends the process).
    pub fn read(&self, at: usize, into: &mut [u8]) -> Result<()> {
        let lease = self.range(at, into.len())?.raw_lease(Access::Read)?;
        // SAFETY: the lease gives the right to read as many bytes as the buffer has, and the buffer
        // is mutably borrowed.
        let outcome = unsafe { guarded::copy(lease.address().cast_const(), into.as_mut_ptr(), into.len()) };
        outcome.map_err(|gone| gone.error("read", &self.region))
    }

    /// Copies all of its bytes into a vector, as by [`read`](Self::read).
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.len];
        self.read(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Copies a buffer over the bytes at `at`, also in memory that others may change. Where it maps
    /// a file, caches in front of the file are told of the change.
    ///
    /// # Errors
    /// `OutOfRange`; `Busy` while a lease of this process holds them; `Device` as for
    /// [`read`](Self::read); `Forked` where the memory maps a file that a parent of this process
    /// opened.
    pub fn write(&self, at: usize, from: &[u8]) -> Result<()> {
        let part = self.range(at, from.len())?;
        let _change = part.change("write")?;
        let lease = part.raw_lease(Access::Write)?;
        // SAFETY: the lease gives the right to write as many bytes as the buffer has. A borrowed
        // buffer cannot overlap leased bytes.
        let outcome = unsafe { guarded::copy(from.as_ptr(), lease.address(), from.len()) };
        outcome.map_err(|gone| gone.error("write", &self.region))
    }

    /// Refuses references to bytes that may be changed without a lease.
    fn check_own(&self) -> Result<()> {
        if self.region.is_shared() {
            return Err(Error::new(ErrorKind::Unsupported, "lease", "bytes that others may change without a lease")
                .with_advice("copy them with `read` and `write`, or move them by a pipe"));
        }
        Ok(())
    }

    /// Leases the whole range for a transfer. Where it maps a file, the pipe tells the file's
    /// observers what it writes under such a lease. Nobody tells them of stores through its address
    /// by other means.
    ///
    /// # Errors
    /// `Busy` as for [`lease`](Self::lease) and [`lease_mut`](Self::lease_mut).
    pub fn raw_lease(&self, access: Access) -> Result<RawLease> {
        let range = self.bytes();
        let mut table = self.region.0.table.lock().ok_or_else(locked_for_ever)?;
        if let Some(other) = table.conflict(&range, access) {
            drop(table);
            return Err(busy(&range, &other));
        }
        table.add(range.clone(), access);
        drop(table);
        // SAFETY: `at` was checked to lie within the region when the range was made.
        let start = unsafe { self.region.0.start.add(self.at) };
        Ok(RawLease { start, region: self.region.clone(), range, access, whole: None, _cut: self.cut.clone() })
    }

    /// Returns the whole pages of the range to the kernel; their bytes read as zero afterwards.
    /// Bytes of pages that lie only partly in the range keep their values. So does memory that the
    /// library did not map, or that maps a file.
    ///
    /// # Errors
    /// `Busy` while a lease holds any of these bytes.
    pub fn release(&self) -> Result<()> {
        let lease = self.lease_mut()?;
        let page = crate::process::page_size();
        let skip = self.address().align_offset(page).min(self.len);
        let len = (self.len - skip) / page * page;
        if len > 0 {
            // Foreign memory may belong to a file, so it is left alone.
            if matches!(self.region.0.owner, Owner::Mapped { .. }) {
                // SAFETY: these are whole pages of a range that is leased for writing; anonymous
                // pages read as zero afterwards.
                unsafe { advise(self.address().add(skip).cast(), len, libc::MADV_DONTNEED) };
                // This comes after the pages are gone and before the lease ends, so that the next
                // lease of these bytes sees the change.
                self.region.0.generation.fetch_add(1, Ordering::Release);
            }
        }
        drop(lease);
        Ok(())
    }

    /// The range in the region, for the table.
    #[inline]
    pub(super) fn bytes(&self) -> Range<usize> {
        self.at..self.at + self.len
    }
}

/// Leases `len` bytes at `source_at` of `source` for reading and at `target_at` of `target` for
/// writing, and calls `work` with their addresses. The leases end when it returns. `work` may do
/// anything; an incompatible lease of the same bytes is refused as `Busy`. Where the target maps a
/// file, caches in front of it are told of the change.
///
/// # Errors
/// `OutOfRange`, `Busy`; `InvalidInput` where the two overlap; `Forked` where the target maps a
/// file that a parent of this process opened.
pub fn lease_pair<R>(
    source: (&MemoryRange, usize),
    target: (&MemoryRange, usize),
    len: usize,
    work: impl FnOnce(*const u8, *mut u8) -> R,
) -> Result<R> {
    let _change = match target.0.file() {
        Some(_) => target.0.range(target.1, len)?.lasting_change("transfer")?,
        None => None,
    };
    with_pair::<R, 0>(source, target, len, work)
}

/// As [`lease_pair`], for the kernel of a mover, which only moves the bytes. The tables of both
/// regions stay locked during a short copy, which costs one atomic exchange a region instead of
/// two. A kernel that leased memory there would wait for ever, and so would others. The mover's
/// pipe, not this function, tells the observers of a file that the target maps.
///
/// # Errors
/// As [`lease_pair`].
#[inline]
pub fn copy_pair<R>(
    source: (&MemoryRange, usize),
    target: (&MemoryRange, usize),
    len: usize,
    kernel: impl FnOnce(*const u8, *mut u8) -> R,
) -> Result<R> {
    with_pair::<R, SHORT>(source, target, len, kernel)
}

/// The tables stay locked during copies of up to `LOCKED` bytes; longer copies register leases.
#[inline]
fn with_pair<R, const LOCKED: usize>(
    source: (&MemoryRange, usize),
    target: (&MemoryRange, usize),
    len: usize,
    copy: impl FnOnce(*const u8, *mut u8) -> R,
) -> Result<R> {
    let ((source, source_at), (target, target_at)) = (source, target);
    if source_at > source.len || len > source.len - source_at {
        return Err(out_of_range("transfer from", source_at, len, source.len));
    }
    if target_at > target.len || len > target.len - target_at {
        return Err(out_of_range("transfer to", target_at, len, target.len));
    }
    let from = source.at + source_at..source.at + source_at + len;
    let to = target.at + target_at..target.at + target_at + len;
    let (a, b) = (&source.region.0, &target.region.0);
    // SAFETY: both offsets were checked to lie within their regions.
    let (from_ptr, to_ptr) = unsafe { (a.start.as_ptr().add(from.start).cast_const(), b.start.as_ptr().add(to.start)) };
    let same = std::ptr::eq(Arc::as_ptr(a), Arc::as_ptr(b));
    if same && from.start < to.end && to.start < from.end && len > 0 {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            "transfer",
            format!("{len} bytes at {} overlap their target at {} in the same memory", from.start, to.start),
        ));
    }
    if LOCKED > 0 && len <= LOCKED {
        // The locks are always taken in the order of the addresses, so that two threads cannot
        // deadlock.
        let (first, second) = if Arc::as_ptr(a) <= Arc::as_ptr(b) { (a, b) } else { (b, a) };
        let first_lock = first.table.lock().ok_or_else(locked_for_ever)?;
        let second_lock = if same { None } else { Some(second.table.lock().ok_or_else(locked_for_ever)?) };
        let (source_lock, target_lock) = match &second_lock {
            None => (&first_lock, &first_lock),
            Some(second_lock) if std::ptr::eq(first, a) => (&first_lock, second_lock),
            Some(second_lock) => (second_lock, &first_lock),
        };
        if let Some(other) = source_lock.conflict(&from, Access::Read) {
            return Err(busy(&from, &other));
        }
        if let Some(other) = target_lock.conflict(&to, Access::Write) {
            return Err(busy(&to, &other));
        }
        return Ok(copy(from_ptr, to_ptr));
    }
    // These hold the regions by borrow. A `RawLease` would count references to each region, which
    // costs more than a copy of 8 KiB.
    let source_held = hold(a, from, Access::Read)?;
    let target_held = hold(b, to, Access::Write)?;
    let result = copy(from_ptr, to_ptr);
    drop((source_held, target_held));
    Ok(result)
}

/// Bytes of a borrowed region, freed on drop.
struct Hold<'a> {
    table: &'a Table,
    range: Range<usize>,
    access: Access,
}

#[inline]
fn hold(region: &Inner, range: Range<usize>, access: Access) -> Result<Hold<'_>> {
    let mut table = region.table.lock().ok_or_else(locked_for_ever)?;
    if let Some(other) = table.conflict(&range, access) {
        drop(table);
        return Err(busy(&range, &other));
    }
    table.add(range.clone(), access);
    drop(table);
    Ok(Hold { table: &region.table, range, access })
}

impl Drop for Hold<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(mut table) = self.table.lock() {
            table.remove(&self.range, self.access);
        }
    }
}

#[cold]
fn locked_for_ever() -> Error {
    let why = "a thread of the parent process held the lock of this memory at the fork, so it stays locked here";
    Error::new(ErrorKind::Forked, "lease", why).with_advice("allocate memory of this process")
}

#[cold]
fn busy(wanted: &Range<usize>, held: &Range<usize>) -> Error {
    Error::new(
        ErrorKind::Busy,
        "lease",
        format!(
            "bytes {}..{} of the region are wanted, bytes {}..{} are held by another lease or transfer",
            wanted.start, wanted.end, held.start, held.end
        ),
    )
    .with_advice("drop the other lease, or wait for the transfer")
}

impl guarded::AccessFault {
    /// Makes an error of kind `Device`, with the offset in the region and the bytes done.
    #[cold]
    pub fn error(self, operation: &'static str, region: &Region) -> Error {
        let (why, advice) = self.reason();
        let offset = self.address.saturating_sub(region.address().addr()) as u64;
        let context = format!("a page of {} is gone: {why}", region.name());
        Error::new(ErrorKind::Device, operation, context)
            .with_offset(offset)
            .with_bytes_done(self.done as u64)
            .with_advice(advice)
    }
}

#[cold]
fn out_of_range(operation: &'static str, at: usize, len: usize, whole: usize) -> Error {
    Error::new(ErrorKind::OutOfRange, operation, format!("{len} bytes at {at} of a place of {whole} bytes"))
}

fn check_range(operation: &'static str, at: usize, len: usize, whole: usize) -> Result<()> {
    if at > whole || len > whole - at {
        return Err(out_of_range(operation, at, len, whole));
    }
    Ok(())
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

pub(super) fn last_os_error(operation: &'static str, context: String) -> Error {
    Error::io(operation, std::io::Error::last_os_error(), context)
}

#[cfg(not(miri))]
pub(super) use libc::madvise as advise;

/// Binds all of a region's pages by the policy. Returns whether the kernel accepted it; errno says
/// why not.
#[cfg(not(miri))]
fn bind_pages(region: &Region, mask: &[u64; 16], policy: libc::c_int) -> bool {
    let bits = mask.len() * 64;
    // SAFETY: the range is this region's mapping, and the mask is an array of that many bits that
    // outlives the call.
    let rc =
        unsafe { libc::syscall(libc::SYS_mbind, region.address(), region.len(), policy, mask.as_ptr(), bits, 0u32) };
    rc == 0
}

/// Maps anonymous private pages at an address of the kernel's choice. Returns `MAP_FAILED` and sets
/// errno where the kernel refuses.
#[cfg(not(miri))]
fn map_pages(len: usize) -> *mut libc::c_void {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: such a mapping touches nothing that exists.
    unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, -1, 0) }
}

/// # Safety
/// The pages must be a mapping that `map_pages` returned, and nothing may refer to it any more.
#[cfg(not(miri))]
unsafe fn unmap_pages(base: *mut u8, len: usize) {
    // SAFETY: as above.
    unsafe { libc::munmap(base.cast(), len) };
}

/// Miri supports neither `MAP_NORESERVE` nor advice nor NUMA. Under it, memory comes from the
/// allocator, and binding is refused as by a kernel without NUMA.
#[cfg(miri)]
mod miri {
    use std::alloc::{Layout, alloc_zeroed, dealloc};

    pub(super) fn bind_pages(_: &super::Region, _: &[u64; 16], _: libc::c_int) -> bool {
        // SAFETY: the pointer is that of this thread's errno.
        unsafe { *libc::__errno_location() = libc::ENOSYS };
        false
    }

    fn layout(len: usize) -> Option<Layout> {
        Layout::from_size_align(len, crate::process::page_size()).ok()
    }

    pub(super) fn map_pages(len: usize) -> *mut libc::c_void {
        // SAFETY: `Region::map` refuses a length of 0.
        layout(len).map_or(libc::MAP_FAILED, |layout| unsafe { alloc_zeroed(layout) }.cast())
    }

    pub(super) unsafe fn unmap_pages(base: *mut u8, len: usize) {
        if let Some(layout) = layout(len) {
            // SAFETY: the caller passes a mapping that `map_pages` returned, and its length.
            unsafe { dealloc(base, layout) };
        }
    }

    pub(in crate::memory) unsafe fn advise(address: *mut libc::c_void, len: usize, advice: libc::c_int) -> libc::c_int {
        if advice != libc::MADV_DONTNEED {
            return -1; // A kernel that does not know the advice also fails.
        }
        // SAFETY: the caller holds the sole lease on these pages.
        unsafe { address.write_bytes(0, len) };
        0
    }
}
#[cfg(miri)]
pub(super) use miri::advise;
#[cfg(miri)]
use miri::{bind_pages, map_pages, unmap_pages};

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
