//! Regions over memory that another process maps as well (a sealed memfd).

use std::any::Any;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use rustix::fs::{OFlags, SealFlags};
use rustix::io::Errno;

use super::file_map::Unmap;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::Access;
use crate::memory::region::Region;

const SEAL_IT: &str = "seal it with fcntl(F_ADD_SEALS, F_SEAL_SHRINK) once it has its length";

impl Region {
    /// Maps the first `len` bytes of a memfd that other processes may have mapped too. `keeper` is
    /// dropped when nothing refers to the bytes any more, just before they are unmapped. Leases
    /// regulate only this mapping, so other processes must agree on their accesses by other means.
    /// So the region is [shared](Region::is_shared), unless the memfd is sealed against writing
    /// (`F_SEAL_WRITE`), which nobody can undo.
    ///
    /// The memfd must be sealed against shrinking, so that nobody can take its pages away while
    /// they are in use. A region that is mapped for reading never grants a lease for writing.
    ///
    /// # Errors
    /// `InvalidInput` where it is not a memfd, has no such seal, or `len` is 0. `OutOfRange` where
    /// it is shorter than `len`. `PermissionDenied` where the descriptor or a seal does not permit
    /// the access. `OutOfMemory` where the kernel lacks memory.
    pub fn map_sealed(
        memory: BorrowedFd<'_>,
        len: u64,
        access: Access,
        keeper: Box<dyn Any + Send + Sync>,
    ) -> Result<Region> {
        let seals = rustix::fs::fcntl_get_seals(memory).map_err(|e| match e {
            Errno::INVAL => bad("the descriptor is not of a memfd").with_advice("make the memory by memfd_create"),
            e => os(e, "the seals of a descriptor"),
        })?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(bad("the memory is not sealed against shrinking").with_advice(SEAL_IT));
        }
        // From here on, it may grow but not shrink.
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
        let sharing = match access {
            // A private mapping that is never written shows the same pages. Kernels before 6.7
            // refuse a shared mapping of a memfd that is sealed against writing. No kernel lets
            // userfaultfd watch for missing pages of a shared mapping that may not be written.
            Access::Read => libc::MAP_PRIVATE | libc::MAP_NORESERVE,
            Access::Write => libc::MAP_SHARED,
        };
        let base = map_pages(memory, whole, protection, sharing);
        let base = base.map_err(|e| os(e, format!("{len} bytes of a memfd")))?;
        // SAFETY: the mapping was just made with this length. The advice changes no byte, and is
        // refused where it makes no sense.
        unsafe { libc::madvise(base.as_ptr().cast(), whole, libc::MADV_HUGEPAGE) };
        let keeper = Keeper { _first: keeper, _unmap: Unmap::new(memory, base, whole) };
        let is_constant = access == Access::Read && seals.contains(SealFlags::WRITE);
        // SAFETY: the mapping is valid until `Unmap` is dropped, and the seal keeps its pages
        // there. The bytes of a memfd that is sealed against writing never change: the kernel sets
        // that seal only where no mapping for writing exists, and makes none afterwards. All others
        // may change, so they are shared. A mapping for reading is never written, since the lease
        // below conflicts with every lease for writing.
        let region = unsafe {
            match is_constant {
                true => Region::foreign(base, whole, Box::new(keeper)),
                false => Region::shared(base, whole, Box::new(keeper)),
            }
        };
        if access == Access::Read {
            // The region was just made, so nobody else holds its lock.
            if let Some(mut table) = region.0.table.lock() {
                table.add(0..whole, Access::Read);
            }
        }
        Ok(region)
    }
}

/// A keeper and a mapping, which are dropped in this order.
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
        one.range(0, 10_000).unwrap().write(4999, &[7]).unwrap();
        let mut seen = [0];
        two.range(0, 5000).unwrap().read(4999, &mut seen).unwrap();
        assert_eq!(seen, [7]);
        assert_eq!(Arc::strong_count(&kept), 2);
        drop(one);
        assert_eq!(Arc::strong_count(&kept), 1);
    }

    #[test]
    fn mapped_for_reading_it_is_never_leased_for_writing() {
        let region = map(&memfd(4096, SealFlags::SHRINK | SealFlags::WRITE), 4096, Access::Read).unwrap();
        assert_eq!(region.range(8, 8).unwrap().lease_mut().unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(region.range(8, 8).unwrap().write(0, &[1]).unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(region.range(0, 4096).unwrap().lease().unwrap()[0], 0);
    }

    #[test]
    fn bytes_that_others_may_change_are_given_by_copy_only() {
        let fd = memfd(4096, SealFlags::SHRINK);
        let (one, two) = (map(&fd, 4096, Access::Write).unwrap(), map(&fd, 4096, Access::Read).unwrap());
        // The memfd is sealed against new writers, but not against existing mappings.
        let later = memfd(4096, SealFlags::SHRINK | SealFlags::FUTURE_WRITE);
        let third = map(&later, 4096, Access::Read).unwrap();
        for region in [&one, &two, &third] {
            let range = region.range(0, 10).unwrap();
            assert!(region.is_shared());
            assert_eq!(range.lease().unwrap_err().kind(), ErrorKind::Unsupported);
            assert_eq!(range.lease_mut().unwrap_err().kind(), ErrorKind::Unsupported);
        }
        let range = one.range(0, 10).unwrap();
        // SAFETY: only `two` also maps this memory, and nobody uses it at this moment.
        unsafe { range.lease_mut_unchecked() }.unwrap().fill(5);
        // SAFETY: as above.
        assert_eq!(unsafe { two.range(0, 10).unwrap().lease_unchecked() }.unwrap()[..], [5; 10]);
        let constant = map(&memfd(4096, SealFlags::SHRINK | SealFlags::WRITE), 4096, Access::Read).unwrap();
        assert!(!constant.is_shared() && constant.range(0, 10).unwrap().lease().is_ok());
    }

    #[test]
    fn memory_that_could_vanish_or_is_inaccessible_is_refused() {
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

    #[test]
    fn huge_pages_are_unmapped_whatever_length_was_asked_for() {
        const HUGE: u64 = 2 << 20;
        let name = "huge-to-unmap";
        for len in [1000, HUGE, HUGE + 1] {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
            let there =
                |fd: OwnedFd| rustix::fs::fallocate(&fd, rustix::fs::FallocateFlags::empty(), 0, len).map(|()| fd);
            let fd = match memfd_create(name, flags).and_then(there) {
                Ok(fd) => fd,
                Err(e) => {
                    return println!("SKIPPED: huge_pages_are_unmapped_whatever_length_was_asked_for: {e}");
                }
            };
            fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
            let region = Region::map_sealed(fd.as_fd(), len, Access::Write, Box::new(())).unwrap();
            region.range(0, 1000).unwrap().write(0, &[1; 1000]).unwrap();
            let is_mapped = || std::fs::read_to_string("/proc/self/maps").unwrap().contains(name);
            assert!(is_mapped());
            drop(region);
            assert!(!is_mapped(), "{len} bytes");
        }
    }
}
