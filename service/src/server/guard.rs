//! A page of a client's memory that cannot be had must not end the service.
//!
//! The seal against shrinking keeps pages where they are, but the kernel may still have none to
//! give where one was never touched, or was punched out: of huge pages when the reserve is empty,
//! of others when memory is not overcommitted. Then it raises `SIGBUS` in whoever touches the page,
//! and that is the service. The handler puts zeros where that memory was, for this process alone,
//! tells the session whose memory it is, and the session cuts the client off.
//!
//! A page that is not there would otherwise be added by the touch, and the kernel charges it to the
//! service for as long as anybody has the memory. So the kernel is told to raise `SIGBUS` for
//! those, too (`userfaultfd` with `UFFD_FEATURE_SIGBUS`; a call of the kernel that meets one fails
//! with `EFAULT`). Where it does not do so, pages that clients take away add to what the service
//! uses.
//!
//! This module's unsafe code promises: the handler reads atomics, and replaces pages only in ranges
//! that are watched, which are mappings of clients' memory until [`PageWatch`] is cleared; every
//! other `SIGBUS` takes the course it would have taken. The two structures of `userfaultfd` are
//! laid out as in `linux/userfaultfd.h`.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use datapipes_core::memory::{Region, sigbus};
use datapipes_core::{Error, ErrorKind, Result};
use rustix::mm::{UserfaultfdFlags, userfaultfd};

/// Mappings watched at a time: more than the clients of one user have by default (64 with 64 pipes
/// of two memories each).
const MAX_WATCHES: usize = 1 << 14;

struct Slot {
    /// 0 while nothing is watched. Written last, cleared first.
    start: AtomicUsize,
    len: AtomicUsize,
    /// The session's event.
    bell: AtomicI32,
    hit: AtomicBool,
}

static SLOTS: [Slot; MAX_WATCHES] = [const {
    Slot { start: AtomicUsize::new(0), len: AtomicUsize::new(0), bell: AtomicI32::new(-1), hit: AtomicBool::new(false) }
}; MAX_WATCHES];

/// Which slots are taken.
static TAKEN: Mutex<[bool; MAX_WATCHES]> = Mutex::new([false; MAX_WATCHES]);

/// A place in the table: what is set in it is watched until it is cleared, which must be before the
/// memory is unmapped.
pub(super) struct PageWatch {
    at: usize,
    _bell: Arc<OwnedFd>,
}

impl PageWatch {
    /// Takes a place; `bell` is rung when a page is missed.
    ///
    /// # Errors
    /// `Busy` where there is none left.
    pub(super) fn new(bell: Arc<OwnedFd>) -> Result<PageWatch> {
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = taken.iter().position(|taken| !taken) else {
            return Err(Error::new(ErrorKind::Busy, "connect", format!("{MAX_WATCHES} pieces of memory are mapped")));
        };
        taken[at] = true;
        SLOTS[at].hit.store(false, Ordering::SeqCst);
        SLOTS[at].bell.store(bell.as_raw_fd(), Ordering::SeqCst);
        Ok(PageWatch { at, _bell: bell })
    }

    /// Watches a region of pages of so many bytes, of which none was touched.
    ///
    /// # Errors
    /// What the kernel says where it knows how to keep the service from adding pages, and does not
    /// for this region.
    pub(super) fn set(&self, region: &Region, page: usize) -> Result<()> {
        let slot = &SLOTS[self.at];
        // What is mapped is whole pages.
        let len = region.len().next_multiple_of(page);
        slot.len.store(len, Ordering::SeqCst);
        let start = region.address().expose_provenance();
        slot.start.store(start, Ordering::SeqCst);
        adds_no_pages(start, len)
    }

    /// Watches nothing any more.
    pub(super) fn clear(&self) {
        SLOTS[self.at].start.store(0, Ordering::SeqCst);
    }

    /// Whether a page was missed.
    pub(super) fn was_hit(&self) -> bool {
        SLOTS[self.at].hit.load(Ordering::SeqCst)
    }
}

impl Drop for PageWatch {
    fn drop(&mut self) {
        self.clear();
        TAKEN.lock().unwrap_or_else(PoisonError::into_inner)[self.at] = false;
    }
}

/// Asks for nothing but that.
#[repr(C)]
struct UffdioApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct UffdioRegister {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

const UFFD_API: u64 = 0xAA;
const UFFD_FEATURE_MISSING_HUGETLBFS: u64 = 1 << 4;
const UFFD_FEATURE_MISSING_SHMEM: u64 = 1 << 5;
const UFFD_FEATURE_SIGBUS: u64 = 1 << 7;
const UFFDIO_REGISTER_MODE_MISSING: u64 = 1;
/// `_IOWR(0xAA, 0x3F, struct uffdio_api)` and `_IOWR(0xAA, 0x00, struct uffdio_register)`.
const UFFDIO_API: libc::Ioctl = 0xC018_AA3F_u32 as libc::Ioctl;
const UFFDIO_REGISTER: libc::Ioctl = 0xC020_AA00_u32 as libc::Ioctl;

/// What the kernel is asked by; None where it does not know how.
fn faults() -> Option<&'static OwnedFd> {
    static FAULTS: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let open = || {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
        // Without privileges it serves faults of the program's own code alone; those of the kernel
        // fail all the same.
        const USER_MODE_ONLY: UserfaultfdFlags = UserfaultfdFlags::from_bits_retain(1);
        // SAFETY: nothing is registered with it yet.
        let fd = unsafe { userfaultfd(flags | USER_MODE_ONLY) };
        // SAFETY: as above; kernels before 5.11 do not know the flag.
        let fd = fd.or_else(|_| unsafe { userfaultfd(flags) }).ok()?;
        let features = UFFD_FEATURE_SIGBUS | UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_MISSING_HUGETLBFS;
        let mut api = UffdioApi { api: UFFD_API, features, ioctls: 0 };
        // SAFETY: the structure is live and laid out as the kernel has it.
        let known = unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_API, &raw mut api) } == 0;
        known.then_some(fd)
    };
    FAULTS.get_or_init(open).as_ref()
}

/// Whether the kernel keeps this service from adding pages to memory of clients.
pub(super) fn can_refuse_pages() -> bool {
    faults().is_some()
}

/// From here on a touch of a page that is not there is a `SIGBUS`, where the kernel knows how.
fn adds_no_pages(start: usize, len: usize) -> Result<()> {
    let Some(faults) = faults() else { return Ok(()) };
    let mut range =
        UffdioRegister { start: start as u64, len: len as u64, mode: UFFDIO_REGISTER_MODE_MISSING, ioctls: 0 };
    // SAFETY: the structure is live and laid out as the kernel has it. The range is a mapping of a
    // client's memory, and whoever touches it is prepared for `SIGBUS`: that is what the slot is
    // for.
    if unsafe { libc::ioctl(faults.as_raw_fd(), UFFDIO_REGISTER, &raw mut range) } == 0 {
        return Ok(());
    }
    Err(Error::io(
        "map",
        &std::io::Error::last_os_error(),
        format!("{len} bytes of a memfd, whose pages are its client's"),
    ))
}

/// Has such faults answered from here on.
///
/// # Errors
/// What the kernel says.
pub(super) fn install() -> Result<()> {
    // SAFETY: it reads atomics and calls `mmap` and `write`, which a handler may.
    unsafe { sigbus::add_fault_handler(|address| SLOTS.iter().any(|slot| fill(slot, address))) }
}

/// Puts zeros where the memory is that misses a page, if it is this slot's. All of it, in one
/// piece: the number of mappings of a process is limited, and after the first page nobody needs the
/// others.
fn fill(slot: &Slot, address: usize) -> bool {
    let start = slot.start.load(Ordering::SeqCst);
    let len = slot.len.load(Ordering::SeqCst);
    if start == 0 || address < start || address - start >= len {
        return false;
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    // SAFETY: a mapping of a client's memory that stays mapped while it is watched, and a thread is
    // just touching it. Its bytes are the client's to change at any time, to zeros as well.
    let filled = unsafe { libc::mmap(std::ptr::with_exposed_provenance_mut(start), len, access, flags, -1, 0) };
    slot.hit.store(true, Ordering::SeqCst);
    let one = 1u64.to_ne_bytes();
    // SAFETY: the buffer outlives the call, which may be made in a handler; the event is open while
    // the slot is watched.
    unsafe {
        libc::write(slot.bell.load(Ordering::SeqCst), one.as_ptr().cast(), one.len());
        *libc::__errno_location() = errno;
    }
    filled != libc::MAP_FAILED
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use datapipes_core::memory::Access;
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::*;

    #[test]
    fn a_page_that_is_gone_reads_as_zeros_and_rings_the_bell() {
        install().unwrap();
        let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, 4 * 4096).unwrap();
        fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        let region = Region::map_sealed(fd.as_fd(), 4 * 4096, Access::Write, Box::new(())).unwrap();
        region.range(0, 4 * 4096).unwrap().write(0, &[7; 4 * 4096]).unwrap();
        let bell = Arc::new(super::super::event().unwrap());
        let watch = PageWatch::new(bell.clone()).unwrap();
        watch.set(&region, 4096).unwrap();
        // The seal forbids to truncate it, so its second page is made one of a file that has no
        // such page.
        let short = memfd_create("short", MemfdFlags::CLOEXEC).unwrap();
        let at = region.address().wrapping_add(4096);
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: a page of this test's own mapping, of which no lease is held.
        let gone = unsafe { libc::mmap(at.cast(), 4096, libc::PROT_READ, flags, short.as_raw_fd(), 0) };
        assert_ne!(gone, libc::MAP_FAILED);
        assert!(!watch.was_hit());
        let seen = region.range(0, 4 * 4096).unwrap().to_vec().unwrap();
        assert!(seen[4096..].iter().all(|b| *b == 0), "what follows is gone, too");
        assert!(watch.was_hit());
        let mut counter = [0; 8];
        assert_eq!(rustix::io::read(&*bell, &mut counter), Ok(8), "the session is woken");
    }
}
