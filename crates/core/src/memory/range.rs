//! Ranges of regions: leasing, copying and releasing their bytes.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::guarded;
use super::lease::{Keeper, Lease, LeaseMut, RawLease};
use super::map::pages::advise;
use super::region::{Inner, Region};
use super::table::Table;
use super::table::access::Access;
use crate::error::{Error, ErrorKind, Result};

/// Copies up to this size are made with the tables locked; longer ones register leases first.
const SHORT: usize = 4096;

impl Region {
    /// The range of `len` bytes at `at`.
    ///
    /// # Errors
    /// `OutOfRange` where it does not lie within the region.
    pub fn range(&self, at: usize, len: usize) -> Result<MemoryRange> {
        check_range("range", at, len, self.len())?;
        Ok(MemoryRange { region: self.clone(), at, len, cut: None })
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
    cut: Option<Keeper>,
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
    /// `OutOfRange` where it does not lie within this range.
    pub fn range(&self, at: usize, len: usize) -> Result<MemoryRange> {
        check_range("range", at, len, self.len)?;
        Ok(MemoryRange { region: self.region.clone(), at: self.at + at, len, cut: self.cut.clone() })
    }

    /// Marks the range as a part of a pool's allocation.
    pub(super) fn of_cut(self, cut: Keeper) -> MemoryRange {
        MemoryRange { cut: Some(cut), ..self }
    }

    /// The NUMA node that it is bound to.
    pub(super) fn node(&self) -> Option<u32> {
        self.region.options().node
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
            if self.region.is_anonymous() {
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
    let _change = match target.0.stored_file() {
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
    /// Makes an error of kind `Device`, with the offset in the file that the region maps (else in
    /// the region), and the bytes done.
    #[cold]
    pub fn error(self, operation: &'static str, region: &Region) -> Error {
        let (why, advice) = self.reason();
        let begins_at = region.file().map_or(0, |file| file.begins_at);
        let offset = begins_at.saturating_add(self.address.saturating_sub(region.address().addr()) as u64);
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
