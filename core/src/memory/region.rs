//! A mapped piece of memory, and ranges of it.

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
/// Copies up to this size are made while the tables are locked; longer ones register leases first.
const SHORT: usize = 4096;

/// Which pages a mapping asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pages {
    /// The system's ordinary pages.
    Small,
    /// Huge pages by `madvise(MADV_HUGEPAGE)`; the kernel may give ordinary ones, which is not an
    /// error.
    #[default]
    Huge,
}

/// How a region is mapped.
#[derive(Clone, Copy, Debug)]
pub struct MapOptions {
    /// Which pages to ask for.
    pub pages: Pages,
    /// Touch every page now, so that no transfer pays for a first touch (0.3 to 1.5 GB/s on virtual
    /// machines). Memory that is not there, or that a limit does not leave, is an error then;
    /// memory that is touched later, by a transfer, is not looked for, and the kernel may end the
    /// process where there is none.
    pub prefault: bool,
    /// Bind to this NUMA node (`mbind`, strict); `None` leaves it to the first touch.
    pub node: Option<u32>,
}

impl Default for MapOptions {
    fn default() -> Self {
        MapOptions { pages: Pages::Huge, prefault: true, node: None }
    }
}

enum Owner {
    /// Unmapped on drop: the base and length of the whole mapping.
    Mapped { base: NonNull<u8>, len: usize },
    /// Kept alive by somebody else's value.
    Foreign { _keeper: DeferredDrop },
}

pub(super) struct Inner {
    start: NonNull<u8>,
    len: usize,
    owner: Owner,
    pub(super) table: Table,
    id: u64,
    options: MapOptions,
    /// Others than those who lease may change the bytes.
    shared: bool,
    /// What it maps, where it is a file.
    file: Option<Box<MappedFile>>,
    /// How often pages were given back.
    generation: AtomicU64,
}

// SAFETY: the pointers refer to a mapping that belongs to the process, not to a thread; access to
// the bytes is regulated by `table`, which is Sync.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Owner::Mapped { base, len } = self.owner {
            // SAFETY: base and len are what mmap returned and was given in `Region::map`, and
            // nothing refers to the mapping any more, because every range and lease holds the Arc
            // whose last drop this is.
            unsafe { unmap_pages(base.as_ptr(), len) };
        }
    }
}

/// A mapped piece of memory. Cloning it makes another reference to the same bytes.
#[derive(Clone)]
pub struct Region(pub(super) Arc<Inner>);

impl Region {
    /// Maps `len` bytes of anonymous memory, zeroed.
    ///
    /// # Errors
    /// `InvalidInput` for a length of 0; `OutOfMemory` where the kernel refuses, or, with
    /// `prefault`, where the machine, a control group or the node has not so much to give;
    /// `Unavailable` where binding to the node is refused.
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
        // SAFETY: skip is smaller than HUGE, by which the mapping is longer than len.
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
            // Advice: a kernel without transparent huge pages answers EINVAL and ordinary pages
            // serve. SAFETY: start and len lie within the mapping made above.
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

    /// Takes memory that somebody else owns; `keeper` is dropped when the last reference to the
    /// region is: by a thread of a runtime, where a transfer was the last to use it. A panic of its
    /// destructor is caught and counted ([`guard::panics`](crate::guard::panics)).
    ///
    /// # Safety
    /// `start..start + len` must stay valid for reads and writes until `keeper` is dropped, and
    /// must not be reached by any other way while a lease or a transfer holds it.
    pub unsafe fn foreign(start: NonNull<u8>, len: usize, keeper: Box<dyn Any + Send + Sync>) -> Region {
        Region::over((start, len), keeper, false, None)
    }

    /// As [`foreign`](Self::foreign), of memory that others reach as well, without asking: other
    /// processes, other mappings of the same pages, whoever has the descriptor of the file.
    /// Transfers move its bytes; nobody gets a reference to them. That it maps a file is not known
    /// here: caches in front of the file hear of no change, and a page that the file loses may end
    /// the process by `SIGBUS`. [`Pmem`](../struct.Pmem.html) maps files.
    ///
    /// # Safety
    /// `start..start + len` must stay valid for reads and writes until `keeper` is dropped.
    pub unsafe fn shared(start: NonNull<u8>, len: usize, keeper: Box<dyn Any + Send + Sync>) -> Region {
        Region::over((start, len), keeper, true, None)
    }

    /// As [`shared`](Self::shared), of the first bytes of a file.
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

    /// Whether others than those who lease may change the bytes at any time: then
    /// [`MemoryRange::lease`] is refused.
    pub fn is_shared(&self) -> bool {
        self.0.shared
    }

    /// Whether its bytes are those of a file (persistent memory): the file may lose pages that stay
    /// mapped, or pinned, elsewhere, so that whoever keeps pages (registers them with a ring or a
    /// device) keeps those of another file, or of none.
    pub fn maps_file(&self) -> bool {
        self.0.file.is_some()
    }

    /// The file that it maps.
    pub(crate) fn file(&self) -> Option<&MappedFile> {
        self.0.file.as_deref()
    }

    /// What an error calls it.
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

    /// How often [`MemoryRange::release`] gave pages of this region back. Whoever pinned pages
    /// (registered them with a ring or a device) must pin anew when it changed: the pinned pages
    /// are no longer those at the addresses.
    pub fn generation(&self) -> u64 {
        self.0.generation.load(Ordering::Acquire)
    }

    /// How it was mapped.
    pub fn options(&self) -> MapOptions {
        self.0.options
    }

    /// The address of the first byte. Having it permits nothing: bytes are reached through leases.
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
            return Err(e.advice("see `dpipe machine` for the nodes that exist"));
        }
        Ok(())
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes, id {})", self.len(), self.id())
    }
}

/// A range of a region: what locators in memory hold. It permits nothing by itself; ask it for a
/// lease.
#[derive(Clone, Debug)]
pub struct MemoryRange {
    region: Region,
    at: usize,
    len: usize,
    /// What the range was taken from a pool by: the pool gives the bytes to nobody else while
    /// anything refers to them.
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

    /// The address of its first byte. Having it permits nothing.
    pub fn address(&self) -> *mut u8 {
        // SAFETY: at lies within the region, checked when the range was made.
        unsafe { self.region.0.start.as_ptr().add(self.at) }
    }

    /// The sub-range of `len` bytes at `at` of this range.
    ///
    /// # Errors
    /// `OutOfRange` where it does not lie within.
    pub fn range(&self, at: usize, len: usize) -> Result<MemoryRange> {
        check_range("range", at, len, self.len)?;
        Ok(MemoryRange { region: self.region.clone(), at: self.at + at, len, cut: self.cut.clone() })
    }

    /// The range, which belongs to a cut of a pool.
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
    /// `Busy` while somebody may write any of these bytes; `Unsupported` where others may change
    /// them whatever is leased (a mapped file, shared memory): [`read`](Self::read) and
    /// [`write`](Self::write) copy, and pipes move.
    pub fn lease(&self) -> Result<Lease> {
        self.check_own()?;
        Ok(Lease(self.raw_lease(Access::Read)?))
    }

    /// Leases the whole range for writing.
    ///
    /// # Errors
    /// `Busy` while anybody else holds any of these bytes; `Unsupported` as for
    /// [`lease`](Self::lease).
    pub fn lease_mut(&self) -> Result<LeaseMut> {
        self.check_own()?;
        Ok(LeaseMut { lease: self.raw_lease(Access::Write)?, _change: None })
    }

    /// As [`lease`](Self::lease), also of bytes that others could change. A page that a mapped file
    /// lost raises `SIGBUS` in whoever touches it through the lease: [`read`](Self::read) answers
    /// with an error.
    ///
    /// # Safety
    /// While the lease lives, nobody changes the bytes who does not lease them here: no other
    /// process, no other mapping, no write through a descriptor of the file, no pipe to that file.
    ///
    /// # Errors
    /// `Busy`.
    pub unsafe fn lease_unchecked(&self) -> Result<Lease> {
        Ok(Lease(self.raw_lease(Access::Read)?))
    }

    /// As [`lease_mut`](Self::lease_mut), also of bytes that others could reach. Memory that maps a
    /// file changes as long as the lease lives, for caches in front of the file: reads of these
    /// bytes through them wait for its end, or are refused. A page that the file lost raises
    /// `SIGBUS` in whoever touches it through the lease.
    ///
    /// # Safety
    /// While the lease lives, nobody reads or changes the bytes who does not lease them here, as
    /// for
    /// [`lease_unchecked`](Self::lease_unchecked).
    ///
    /// # Errors
    /// `Busy`; `Forked` where the memory maps a file that a parent of this process opened.
    pub unsafe fn lease_mut_unchecked(&self) -> Result<LeaseMut> {
        let change = self.lasting_change("lease")?;
        Ok(LeaseMut { lease: self.raw_lease(Access::Write)?, _change: change })
    }

    /// Copies the bytes at `at` into a buffer, also of memory that others may change: what they
    /// change meanwhile is there in any part.
    ///
    /// # Errors
    /// `OutOfRange`; `Busy` while somebody of this process may write them; `Device`, with the
    /// offset in the file and the bytes done, where a mapped file has lost a page (on x86-64;
    /// elsewhere `SIGBUS` ends the process).
    pub fn read(&self, at: usize, into: &mut [u8]) -> Result<()> {
        let lease = self.range(at, into.len())?.raw_lease(Access::Read)?;
        // SAFETY: the lease gives the right to read as many bytes as the buffer has, and the buffer
        // is borrowed for writing.
        let outcome = unsafe { guarded::copy(lease.address().cast_const(), into.as_mut_ptr(), into.len()) };
        outcome.map_err(|gone| gone.error("read", &self.region))
    }

    /// A copy of all of its bytes, as by [`read`](Self::read).
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.len];
        self.read(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Copies a buffer over the bytes at `at`, also of memory that others may change. Where it maps
    /// a file, caches in front of the file hear of the change.
    ///
    /// # Errors
    /// `OutOfRange`; `Busy` while anybody of this process holds them; `Device` as for
    /// [`read`](Self::read); `Forked` where the memory maps a file that a parent of this process
    /// opened.
    pub fn write(&self, at: usize, from: &[u8]) -> Result<()> {
        let part = self.range(at, from.len())?;
        let _change = part.change("write")?;
        let lease = part.raw_lease(Access::Write)?;
        // SAFETY: the lease gives the right to write as many bytes as the buffer has; a buffer that
        // is borrowed is not leased.
        let outcome = unsafe { guarded::copy(from.as_ptr(), lease.address(), from.len()) };
        outcome.map_err(|gone| gone.error("write", &self.region))
    }

    /// References are given to bytes only that nobody changes who does not lease them.
    fn check_own(&self) -> Result<()> {
        if self.region.is_shared() {
            return Err(Error::new(ErrorKind::Unsupported, "lease", "bytes that others may change whatever is leased")
                .advice("copy them with `read` and `write`, or move them by a pipe"));
        }
        Ok(())
    }

    /// Leases the whole range for a transfer. Of a file that is mapped, watches hear of what a pipe
    /// does under such a lease from the pipe; of what is stored through its address by other means
    /// nobody hears.
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
        // SAFETY: at lies within the region, checked when the range was made.
        let start = unsafe { self.region.0.start.add(self.at) };
        Ok(RawLease { start, region: self.region.clone(), range, access, whole: None, _cut: self.cut.clone() })
    }

    /// Gives the whole pages of the range back to the kernel: their bytes read as zero afterwards.
    /// Bytes of pages that lie in the range in part keep their values, and so does all memory that
    /// this library did not map, or that maps a file.
    ///
    /// # Errors
    /// `Busy` while anybody holds any of these bytes.
    pub fn release(&self) -> Result<()> {
        let lease = self.lease_mut()?;
        let page = crate::process::page_size();
        let skip = self.address().align_offset(page).min(self.len);
        let len = (self.len - skip) / page * page;
        if len > 0 {
            // Foreign memory may be a file's: it is left alone.
            if matches!(self.region.0.owner, Owner::Mapped { .. }) {
                // SAFETY: the whole pages of a range that is leased for writing; anonymous pages
                // read as zero afterwards.
                unsafe { advise(self.address().add(skip).cast(), len, libc::MADV_DONTNEED) };
                // After the pages went and before the lease ends: who leases these bytes next sees
                // the change.
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
/// writing, and calls `work` with their addresses; the leases end when it returns. It may do
/// anything: what it leases of the same bytes is refused as `Busy`, as for everybody else. Where
/// the target maps a file, caches in front of it hear of the change.
///
/// # Errors
/// `OutOfRange`, `Busy`; `InvalidInput` where the two overlap each other; `Forked` where the target
/// maps a file that a parent of this process opened.
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

/// As [`lease_pair`], for the kernel of a mover, which does nothing but move the bytes: while it
/// makes a short copy the tables of both regions are locked, which costs one atomic exchange a
/// region instead of two. A kernel that leased in there would wait for ever, and so would others.
/// The pipe of the mover tells the watches of a file that the target maps; this does not.
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

/// Up to `LOCKED` bytes the tables stay locked during the copy; longer ones register leases.
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
        // Always in the order of the addresses, so that two threads cannot wait for each other.
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
    // Held by borrow: a `RawLease` would count references to each region, which costs more than the
    // copy of 8 KiB.
    let source_held = hold(a, from, Access::Read)?;
    let target_held = hold(b, to, Access::Write)?;
    let result = copy(from_ptr, to_ptr);
    drop((source_held, target_held));
    Ok(result)
}

/// Bytes of a region that stays borrowed, given back on drop.
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
    let why = "a thread of the process that forked this one was at this memory then, and is not here to leave it";
    Error::new(ErrorKind::Forked, "lease", why).advice("allocate memory of this process")
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
    .advice("drop the other lease, or wait for the transfer")
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

/// Why the kernel made no mapping: the process may not map so much, as a rule.
#[cold]
fn not_mapped(len: usize) -> Error {
    let e = last_os_error("map", format!("{len} bytes of memory"));
    match rustix::process::getrlimit(rustix::process::Resource::As).current {
        Some(limit) => e.advice(format!(
            "the process may map {limit} bytes in all (RLIMIT_AS, `ulimit -v` in KiB): ask for less, or raise the limit"
        )),
        None => e.advice("ask for less memory"),
    }
}

pub(super) fn last_os_error(operation: &'static str, context: String) -> Error {
    Error::io(operation, &std::io::Error::last_os_error(), context)
}

#[cfg(not(miri))]
pub(super) use libc::madvise as advise;

/// Whether the kernel takes the policy for all of a region; errno says why not.
#[cfg(not(miri))]
fn bind_pages(region: &Region, mask: &[u64; 16], policy: libc::c_int) -> bool {
    let bits = mask.len() * 64;
    // SAFETY: the range is this region's mapping; the mask is an array of so many bits that
    // outlives the call.
    let rc =
        unsafe { libc::syscall(libc::SYS_mbind, region.address(), region.len(), policy, mask.as_ptr(), bits, 0u32) };
    rc == 0
}

/// Anonymous private pages at an address of the kernel's choice; `MAP_FAILED` and errno where it
/// refuses.
#[cfg(not(miri))]
fn map_pages(len: usize) -> *mut libc::c_void {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: such a mapping touches nothing that exists.
    unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, -1, 0) }
}

/// # Safety
/// What `map_pages` gave, and nothing refers to it any more.
#[cfg(not(miri))]
unsafe fn unmap_pages(base: *mut u8, len: usize) {
    // SAFETY: as above.
    unsafe { libc::munmap(base.cast(), len) };
}

/// Miri knows neither `MAP_NORESERVE` nor advice, and no NUMA: there, memory comes from the
/// allocator, and binding is refused as by a kernel without NUMA.
#[cfg(miri)]
mod miri {
    use std::alloc::{Layout, alloc_zeroed, dealloc};

    pub(super) fn bind_pages(_: &super::Region, _: &[u64; 16], _: libc::c_int) -> bool {
        // SAFETY: the address is that of this thread's errno.
        unsafe { *libc::__errno_location() = libc::ENOSYS };
        false
    }

    fn layout(len: usize) -> Option<Layout> {
        Layout::from_size_align(len, crate::process::page_size()).ok()
    }

    pub(super) fn map_pages(len: usize) -> *mut libc::c_void {
        // SAFETY: `Region::map` asks for more than no bytes.
        layout(len).map_or(libc::MAP_FAILED, |layout| unsafe { alloc_zeroed(layout) }.cast())
    }

    pub(super) unsafe fn unmap_pages(base: *mut u8, len: usize) {
        if let Some(layout) = layout(len) {
            // SAFETY: the caller gives back what `map_pages` gave, and its length.
            unsafe { dealloc(base, layout) };
        }
    }

    pub(in crate::memory) unsafe fn advise(address: *mut libc::c_void, len: usize, advice: libc::c_int) -> libc::c_int {
        if advice != libc::MADV_DONTNEED {
            return -1; // As a kernel that does not know the advice.
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
