//! The right to read or write bytes, for as long as a lease is held.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

use super::map::mapped_file::FileChange;
use super::region::Region;
use super::table::access::Access;
use crate::error::{Error, ErrorKind, Result};

/// Keeps bytes from being handed out by their pool again.
pub(super) type Keeper = Arc<dyn fmt::Debug + Send + Sync>;

/// A lease without a view of the bytes, which a transfer in flight holds.
pub struct RawLease {
    /// The first byte. It is kept here so that viewing the bytes needs no access to the region.
    pub(super) start: NonNull<u8>,
    pub(super) region: Region,
    pub(super) range: Range<usize>,
    pub(super) access: Access,
    /// The lease that holds the bytes, where this is a part of it.
    pub(super) whole: Option<Arc<RawLease>>,
    /// Keeps the bytes from being handed out by their pool again.
    pub(super) _cut: Option<Keeper>,
}

// SAFETY: the pointer is into the region, which is itself Send and Sync and is kept alive by the
// lease. The table decides which accesses the lease permits.
unsafe impl Send for RawLease {}
// SAFETY: as above; a shared reference to a lease only gives out the address.
unsafe impl Sync for RawLease {}

impl RawLease {
    /// The address of the first byte. It is valid for the lease's access and length while the lease
    /// lives.
    #[inline]
    pub fn address(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Makes a lease on `len` bytes at `at` of this one. The bytes are free when the whole lease
    /// and all its parts are gone. It is private because parts are not checked against each other;
    /// the runtime makes only parts that do not overlap.
    ///
    /// # Errors
    /// `OutOfRange` where the bytes do not lie within the lease.
    pub(crate) fn part(self: &Arc<RawLease>, at: u64, len: u64) -> Result<RawLease> {
        let end = at.checked_add(len).filter(|end| *end <= self.len() as u64);
        let (Some(end), Ok(at)) = (end.and_then(|end| usize::try_from(end).ok()), usize::try_from(at)) else {
            let context = format!("{len} bytes at {at} of a lease on {}", self.len());
            return Err(Error::new(ErrorKind::OutOfRange, "lease", context));
        };
        // SAFETY: `at` was just checked to lie within the leased bytes.
        let start = unsafe { self.start.add(at) };
        let range = self.range.start + at..self.range.start + end;
        let (region, access) = (self.region.clone(), self.access);
        Ok(RawLease { start, region, range, access, whole: Some(self.clone()), _cut: None })
    }

    /// The length in bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.range.end - self.range.start
    }

    /// The region and the offset in it.
    pub fn place(&self) -> (&Region, usize) {
        (&self.region, self.range.start)
    }

    /// The access that it permits.
    pub fn access(&self) -> Access {
        self.access
    }
}

impl Drop for RawLease {
    fn drop(&mut self) {
        if self.whole.is_none() {
            // In a child the copy of the table may be locked for ever. The lease then stays, since
            // nobody could lease the bytes anyway.
            if let Some(mut table) = self.region.0.table.lock() {
                table.remove(&self.range, self.access);
            }
        }
    }
}

impl fmt::Debug for RawLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RawLease({:?} of {:?} in {:?})", self.access, self.range, self.region)
    }
}

/// The right to read bytes; it is a `&[u8]`.
///
/// It borrows nothing and keeps the memory alive, so a view that is given to other code (another
/// language, a thread) holds one, or an `Arc` of one, for as long as it lives. Any number of leases
/// for reading exist side by side, and transfers read the bytes meanwhile; a writer is `Busy` until
/// the last of them is gone.
#[derive(Debug)]
pub struct Lease(pub(super) RawLease);

/// The exclusive right to bytes; it is a `&mut [u8]`. The fields drop in order: first the bytes are
/// free, then the change of a file ends.
#[derive(Debug)]
pub struct LeaseMut {
    pub(super) lease: RawLease,
    /// The announced change of the file, where the bytes belong to a file.
    pub(super) _change: Option<FileChange>,
}

mod sealed {
    pub trait Sealed {}
}

/// Numbers of which every bit pattern is a valid value, so that bytes may be viewed as them.
pub trait Plain: sealed::Sealed + Copy + 'static {}

macro_rules! plain {
    ($($t:ty)*) => { $(impl sealed::Sealed for $t {} impl Plain for $t {})* };
}
plain!(u8 u16 u32 u64 u128 i8 i16 i32 i64 f32 f64);

impl Lease {
    /// Views the bytes as numbers in the machine's byte order.
    ///
    /// # Errors
    /// `Misaligned` where the address or the length is not a multiple of the number's size.
    pub fn as_slice_of<T: Plain>(&self) -> Result<&[T]> {
        check_cast::<T>(&self.0)?;
        // SAFETY: the lease gives the right to read len() bytes at address(), which check_cast
        // found to be aligned and a whole number of T; every pattern of bits is a T (the trait is
        // sealed to such types).
        Ok(unsafe { std::slice::from_raw_parts(self.0.address().cast(), self.0.len() / size_of::<T>()) })
    }
}

impl LeaseMut {
    /// Views the bytes as numbers in the machine's byte order.
    ///
    /// # Errors
    /// `Misaligned` where the address or the length is not a multiple of the number's size.
    pub fn as_slice_of<T: Plain>(&mut self) -> Result<&mut [T]> {
        check_cast::<T>(&self.lease)?;
        // SAFETY: as in `Lease::as_slice_of`; a lease for writing is the only one on its bytes.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.lease.address().cast(), self.lease.len() / size_of::<T>()) })
    }
}

/// Views numbers as their bytes, in the machine's byte order.
pub fn as_bytes<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: the sealed trait admits only numbers, which have no padding, so every byte is
    // initialized.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

fn check_cast<T>(lease: &RawLease) -> Result<()> {
    if lease.address().align_offset(align_of::<T>()) != 0 || !lease.len().is_multiple_of(size_of::<T>()) {
        return Err(Error::new(
            ErrorKind::Misaligned,
            "view",
            format!("{} bytes at {:p} as numbers of {} bytes", lease.len(), lease.address(), size_of::<T>()),
        )
        .with_advice("lease a range whose start and length are multiples of the number's size"));
    }
    Ok(())
}

impl Deref for Lease {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the lease gives the right to read these bytes, and the table admits no writer
        // beside it; mapped memory is initialized.
        unsafe { std::slice::from_raw_parts(self.0.address(), self.0.len()) }
    }
}

impl Deref for LeaseMut {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: as for `Lease`.
        unsafe { std::slice::from_raw_parts(self.lease.address(), self.lease.len()) }
    }
}

impl DerefMut for LeaseMut {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the table admits no other lease beside a lease for writing.
        unsafe { std::slice::from_raw_parts_mut(self.lease.address(), self.lease.len()) }
    }
}
