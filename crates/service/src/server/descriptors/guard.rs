//! Protection against missing pages of clients' memory, which must not end the service.
//!
//! The seal against shrinking keeps the memory's length, but pages that were never touched or were
//! punched out may be missing, and the kernel may have none to give: of huge pages when the reserve
//! is empty, of others when memory is not overcommitted. Then it raises `SIGBUS` in the process
//! that touches the page, which is the service. The handler maps zeros over that memory, for this
//! process only, and wakes the session that the memory belongs to, which cuts the client off.
//!
//! Without further measures, touching a missing page would add it, and the kernel would charge it
//! to the service for as long as any process has the memory. So the kernel is told to raise
//! `SIGBUS` for those pages too (`userfaultfd` with `UFFD_FEATURE_SIGBUS`; a system call that meets
//! one fails with `EFAULT`). If it cannot, pages that clients remove add to the memory that the
//! service uses.
//!
//! This module's unsafe code promises: the handler reads atomics, and replaces pages only in
//! watched ranges, which are mappings of clients' memory until [`PageWatch`] is cleared. Every
//! other `SIGBUS` goes to the former handler. The two structures of `userfaultfd` are laid out as
//! in `linux/userfaultfd.h`.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use datapipes_core::locks::Mutex;
use datapipes_core::memory::{Region, sigbus};
use datapipes_core::{Error, ErrorKind, Result};
use rustix::mm::{UserfaultfdFlags, userfaultfd};

/// The most mappings watched at a time: more than the clients of one user have by default (64 with
/// 64 pipes of two memories each).
const MAX_WATCHES: usize = 1 << 14;

struct Slot {
    /// 0 while nothing is watched. It is written last and cleared first.
    start: AtomicUsize,
    len: AtomicUsize,
    /// The session's wake event.
    bell: AtomicI32,
    hit: AtomicBool,
}

static SLOTS: [Slot; MAX_WATCHES] = [const {
    Slot { start: AtomicUsize::new(0), len: AtomicUsize::new(0), bell: AtomicI32::new(-1), hit: AtomicBool::new(false) }
}; MAX_WATCHES];

/// Whether each slot is taken.
static TAKEN: Mutex<[bool; MAX_WATCHES]> = Mutex::new([false; MAX_WATCHES]);

/// A slot of the table. The mapping set in it is watched until it is cleared, which must happen
/// before the memory is unmapped.
pub(in crate::server) struct PageWatch {
    at: usize,
    _bell: Arc<OwnedFd>,
}

impl PageWatch {
    /// Takes a slot. `bell` is signalled when a page is missed.
    ///
    /// # Errors
    /// `Busy` if no slot is left.
    pub(in crate::server) fn new(bell: Arc<OwnedFd>) -> Result<PageWatch> {
        let mut taken = TAKEN.lock();
        let Some(at) = taken.iter().position(|taken| !taken) else {
            return Err(Error::new(ErrorKind::Busy, "connect", format!("{MAX_WATCHES} pieces of memory are mapped")));
        };
        taken[at] = true;
        SLOTS[at].hit.store(false, Ordering::SeqCst);
        SLOTS[at].bell.store(bell.as_raw_fd(), Ordering::SeqCst);
        Ok(PageWatch { at, _bell: bell })
    }

    /// Watches a region with pages of `page` bytes, none of which was touched.
    ///
    /// # Errors
    /// Errors of the kernel, if it can keep the service from adding pages in general, but not in
    /// this region.
    pub(in crate::server) fn set(&self, region: &Region, page: usize) -> Result<()> {
        let slot = &SLOTS[self.at];
        // Mappings consist of whole pages.
        let len = region.len().next_multiple_of(page);
        slot.len.store(len, Ordering::SeqCst);
        let start = region.address().expose_provenance();
        slot.start.store(start, Ordering::SeqCst);
        adds_no_pages(start, len)
    }

    /// Stops watching.
    pub(in crate::server) fn clear(&self) {
        SLOTS[self.at].start.store(0, Ordering::SeqCst);
    }

    /// Returns whether a page was missed.
    pub(in crate::server) fn was_hit(&self) -> bool {
        SLOTS[self.at].hit.load(Ordering::SeqCst)
    }
}

impl Drop for PageWatch {
    fn drop(&mut self) {
        self.clear();
        TAKEN.lock()[self.at] = false;
    }
}

/// The argument of `UFFDIO_API`.
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

/// The userfaultfd of this process; `None` if the kernel does not provide what is needed.
fn faults() -> Option<&'static OwnedFd> {
    static FAULTS: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let open = || {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
        // Without privileges it only handles faults of user code; those in the kernel still fail.
        const USER_MODE_ONLY: UserfaultfdFlags = UserfaultfdFlags::from_bits_retain(1);
        // SAFETY: nothing is registered with it yet.
        let fd = unsafe { userfaultfd(flags | USER_MODE_ONLY) };
        // SAFETY: nothing is registered with it yet; kernels before 5.11 do not know the flag.
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
pub(in crate::server) fn can_refuse_pages() -> bool {
    faults().is_some()
}

/// Makes each touch of a missing page in this range raise `SIGBUS`, if the kernel can do that.
fn adds_no_pages(start: usize, len: usize) -> Result<()> {
    let Some(faults) = faults() else { return Ok(()) };
    let mut range =
        UffdioRegister { start: start as u64, len: len as u64, mode: UFFDIO_REGISTER_MODE_MISSING, ioctls: 0 };
    // SAFETY: the structure is live and laid out as the kernel has it. The range is a mapping of a
    // client's memory, and the slot prepares every thread that touches it for `SIGBUS`.
    if unsafe { libc::ioctl(faults.as_raw_fd(), UFFDIO_REGISTER, &raw mut range) } == 0 {
        return Ok(());
    }
    Err(Error::io(
        "map",
        std::io::Error::last_os_error(),
        format!("{len} bytes of a memfd, whose pages are its client's"),
    ))
}

/// Installs the handler of such faults.
///
/// # Errors
/// Errors of the kernel.
pub(in crate::server) fn install() -> Result<()> {
    // SAFETY: it reads atomics and calls `mmap` and `write`, which a handler may do.
    unsafe { sigbus::add_fault_handler(|address| SLOTS.iter().any(|slot| fill(slot, address))) }
}

/// Maps zeros over the whole memory of a slot if the missing page is in it. It is one mapping,
/// because the number of mappings of a process is limited and no other page is needed after the
/// first is missing.
fn fill(slot: &Slot, address: usize) -> bool {
    let start = slot.start.load(Ordering::SeqCst);
    let len = slot.len.load(Ordering::SeqCst);
    if start == 0 || address < start || address - start >= len {
        return false;
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    // SAFETY: it is a mapping of a client's memory that stays mapped while it is watched, and a
    // thread is just touching it. The client may change its bytes at any time, so also to zeros.
    let filled = unsafe { libc::mmap(std::ptr::with_exposed_provenance_mut(start), len, access, flags, -1, 0) };
    slot.hit.store(true, Ordering::SeqCst);
    let one = 1u64.to_ne_bytes();
    // SAFETY: the buffer outlives the call, which is allowed in a handler; the event is open while
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
        let bell = Arc::new(crate::server::wake::event().unwrap());
        let watch = PageWatch::new(bell.clone()).unwrap();
        watch.set(&region, 4096).unwrap();
        // The seal forbids truncation, so its second page is replaced by one of a file that has no
        // such page.
        let short = memfd_create("short", MemfdFlags::CLOEXEC).unwrap();
        let at = region.address().wrapping_add(4096);
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: it is a page of this test's own mapping, and no lease on it is held.
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
