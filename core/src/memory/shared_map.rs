//! Regions over memory that another process has as well (a sealed memfd).

use std::any::Any;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use rustix::fs::{OFlags, SealFlags};
use rustix::io::Errno;

use super::file_map::Unmap;
use super::region::Region;
use super::table::Access;
use crate::error::{Error, ErrorKind, Result};

const SEAL_IT: &str = "seal it with fcntl(F_ADD_SEALS, F_SEAL_SHRINK) once it has its length";

impl Region {
    /// Maps the first `len` bytes of a memfd, which other processes may have mapped, too; `keeper` is dropped when nothing
    /// refers to them any more, just before they are unmapped. Leases regulate this process alone: what others do to the bytes meanwhile is theirs to agree on.
    ///
    /// The memfd must be sealed against shrinking, so that nobody can take its pages away while they are in use. Mapped for
    /// reading, no lease for writing is granted on it, ever.
    ///
    /// # Errors
    /// `InvalidInput` where it is not a memfd, has no such seal, or `len` is 0; `OutOfRange` where it is shorter;
    /// `PermissionDenied` where the descriptor or a seal does not permit the access; `OutOfMemory`.
    pub fn map_sealed(
        memory: BorrowedFd<'_>,
        len: u64,
        access: Access,
        keeper: Box<dyn Any + Send + Sync>,
    ) -> Result<Region> {
        let seals = rustix::fs::fcntl_get_seals(memory).map_err(|e| match e {
            Errno::INVAL => bad("the descriptor is not of a memfd").advice("make the memory by memfd_create"),
            e => os(e, "the seals of a descriptor"),
        })?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(bad("the memory is not sealed against shrinking").advice(SEAL_IT));
        }
        // It may grow from here on, and not shrink.
        let has = rustix::fs::fstat(memory).map_err(|e| os(e, "the length of a memfd"))?.st_size;
        let has = u64::try_from(has).unwrap_or(0);
        if len == 0 {
            return Err(bad("0 bytes of a memfd"));
        }
        if len > has {
            let context = format!("{len} bytes of a memfd that has {has}");
            return Err(Error::new(ErrorKind::OutOfRange, "map", context));
        }
        check_access(memory, seals, access)?;
        let whole = usize::try_from(len).ok().filter(|len| *len <= isize::MAX as usize);
        let whole = whole.ok_or_else(|| bad("more bytes than this process can address"))?;
        let protection = match access {
            Access::Read => libc::PROT_READ,
            Access::Write => libc::PROT_READ | libc::PROT_WRITE,
        };
        let base = match map_pages(memory, whole, protection, libc::MAP_SHARED) {
            // Kernels before 6.7 refuse to share what is sealed against writing; a private mapping that is never written
            // shows the same pages.
            Err(Errno::PERM) if access == Access::Read => {
                map_pages(memory, whole, protection, libc::MAP_PRIVATE | libc::MAP_NORESERVE)
            }
            other => other,
        };
        let base = base.map_err(|e| os(e, format!("{len} bytes of a memfd")))?;
        // SAFETY: the mapping was just made with this length; advice changes no byte, and is refused where it makes no sense.
        unsafe { libc::madvise(base.as_ptr().cast(), whole, libc::MADV_HUGEPAGE) };
        let keeper = Keeper { _first: keeper, _unmap: Unmap { base, len: whole } };
        // SAFETY: the mapping is valid until `Unmap` is dropped; the seal keeps its pages there; nobody else of this process
        // knows its address. That other processes may write the bytes is said in the module's promise. One for reading is
        // never written, for the lease below stands in the way of every other lease for writing.
        let region = unsafe { Region::foreign(base, whole, Box::new(keeper)) };
        if access == Access::Read {
            region.0.table.lock().add(0..whole, Access::Read);
        }
        Ok(region)
    }
}

/// Dropped in this order.
struct Keeper {
    _first: Box<dyn Any + Send + Sync>,
    _unmap: Unmap,
}

fn check_access(memory: BorrowedFd<'_>, seals: SealFlags, access: Access) -> Result<()> {
    let mode = rustix::fs::fcntl_getfl(memory).map_err(|e| os(e, "the mode of a descriptor"))? & OFlags::RWMODE;
    let denied = |why: &str| Err(Error::new(ErrorKind::PermissionDenied, "map", why));
    match access {
        Access::Read if mode == OFlags::RDONLY || mode == OFlags::RDWR => Ok(()),
        Access::Read => denied("the memfd's descriptor may not be read"),
        Access::Write if mode != OFlags::RDWR => denied("the memfd's descriptor may not be read and written"),
        Access::Write if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) => {
            denied("the memfd is sealed against writing")
        }
        Access::Write => Ok(()),
    }
}

fn map_pages(memory: BorrowedFd<'_>, len: usize, protection: i32, flags: i32) -> Result<NonNull<u8>, Errno> {
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, memory.as_raw_fd(), 0) };
    if base == libc::MAP_FAILED {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    NonNull::new(base.cast::<u8>()).ok_or(Errno::NOMEM)
}

fn bad(what: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, "map", what)
}

fn os(e: Errno, what: impl Into<String>) -> Error {
    Error::os("map", e.raw_os_error(), what)
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};
    use std::sync::Arc;

    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::*;

    fn memfd(len: u64, seals: SealFlags) -> OwnedFd {
        let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, len).unwrap();
        fcntl_add_seals(&fd, seals).unwrap();
        fd
    }

    fn map(fd: &OwnedFd, len: u64, access: Access) -> Result<Region> {
        Region::map_sealed(fd.as_fd(), len, access, Box::new(()))
    }

    #[test]
    fn two_mappings_show_the_same_bytes_and_the_keeper_goes_with_them() {
        let fd = memfd(10_000, SealFlags::SHRINK);
        let kept = Arc::new(());
        let one = Region::map_sealed(fd.as_fd(), 10_000, Access::Write, Box::new(kept.clone())).unwrap();
        let two = map(&fd, 5000, Access::Read).unwrap();
        one.range(0, 10_000).unwrap().lease_mut().unwrap()[4999] = 7;
        assert_eq!(two.range(0, 5000).unwrap().lease().unwrap()[4999], 7);
        assert_eq!(Arc::strong_count(&kept), 2);
        drop(one);
        assert_eq!(Arc::strong_count(&kept), 1);
    }

    #[test]
    fn mapped_for_reading_it_is_never_leased_for_writing() {
        let region = map(&memfd(4096, SealFlags::SHRINK | SealFlags::WRITE), 4096, Access::Read).unwrap();
        assert_eq!(region.range(8, 8).unwrap().lease_mut().unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(region.range(0, 4096).unwrap().lease().unwrap()[0], 0);
    }

    #[test]
    fn what_could_vanish_or_may_not_be_touched_is_refused() {
        let kind = |fd: &OwnedFd, len, access| map(fd, len, access).map(|_| ()).unwrap_err().kind();
        let open = memfd(4096, SealFlags::empty());
        assert_eq!(kind(&open, 4096, Access::Read), ErrorKind::InvalidInput);
        assert!(map(&open, 4096, Access::Read).unwrap_err().to_string().contains("F_SEAL_SHRINK"));
        let sealed = memfd(4096, SealFlags::SHRINK);
        assert_eq!(kind(&sealed, 4097, Access::Read), ErrorKind::OutOfRange);
        assert_eq!(kind(&sealed, 0, Access::Read), ErrorKind::InvalidInput);
        for seal in [SealFlags::WRITE, SealFlags::FUTURE_WRITE] {
            assert_eq!(kind(&memfd(4096, SealFlags::SHRINK | seal), 4096, Access::Write), ErrorKind::PermissionDenied);
        }
        let path = format!("/proc/self/fd/{}", sealed.as_raw_fd());
        let reader = OwnedFd::from(std::fs::File::open(path).unwrap());
        assert_eq!(kind(&reader, 4096, Access::Write), ErrorKind::PermissionDenied);
        assert!(map(&reader, 4096, Access::Read).is_ok());
        let file = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
        assert_eq!(kind(&file, 4096, Access::Read), ErrorKind::InvalidInput);
    }
}
