//! Memory that several processes have: objects, and what of them is mapped here.
//!
//! This module is unsafe code. It promises:
//! * an object is sealed against shrinking before anybody maps it, and its pages are reserved, so
//!   touching a mapping of it never faults;
//! * a [`View`] shows a type whose fields are all atomics, so what another process does to it
//!   meanwhile is no data race;
//! * slots of a [`Payload`] are written only through the process's one mapping for writing, whose
//!   slots the ring hands out to one owner at a time; they are read in place only by who said that
//!   the writer is trusted, and else copied out by instructions that the compiler does not look
//!   into.
#![allow(unsafe_code)]

use std::any::Any;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use datapipes_core::{Error, ErrorKind, Result};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use super::copy;
use super::layout::{ReceiverPage, SenderPage, StatePage};
use super::{ChannelShape, Copies};
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, lock};

/// A kernel object with bytes, as the controller makes them.
#[derive(Debug)]
pub(crate) struct Object {
    fd: OwnedFd,
    len: usize,
}

impl Object {
    /// Makes `len` bytes, zeroed, that are there (reserved) and stay there (sealed against
    /// shrinking and growing).
    pub(crate) fn create(len: usize) -> Result<Object> {
        let os = |e: Errno| Error::os("create", e.raw_os_error(), format!("{len} bytes of shared memory"));
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = match rustix::fs::memfd_create("fabric", flags | MemfdFlags::NOEXEC_SEAL) {
            // Kernels before 6.3 do not know the flag.
            Err(Errno::INVAL) => rustix::fs::memfd_create("fabric", flags),
            other => other,
        };
        let fd = fd.map_err(os)?;
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, len as u64).map_err(os)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).map_err(os)?;
        Ok(Object { fd, len })
    }

    /// From now on nobody can map or write it anew: who has mapped it for writing keeps that, and
    /// only that. Reopening the descriptor through /proc does not help either, with whatever
    /// rights. Nothing unseals it.
    pub(crate) fn seal_for_good(&self) -> Result<()> {
        let seals = SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&self.fd, seals).map_err(|e| Error::os("seal", e.raw_os_error(), "a shared memory"))
    }

    /// Another description of it, which can be read only.
    pub(crate) fn read_only(&self) -> Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| Error::os("open", e.raw_os_error(), "a shared memory for reading"))
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl AsFd for Object {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A mapping of this process; unmapped with its last user.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
    /// By which it can be taken apart from what others have of it.
    own: Mutex<Option<OwnedFd>>,
    is_apart: AtomicBool,
}

// SAFETY: a mapping belongs to the process, not to a thread; what is done through it is said at
// each use.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps all of an object, and touches its pages so that nobody waits for them later.
    pub(crate) fn new(fd: BorrowedFd<'_>, len: usize, writable: bool) -> Result<Arc<Mapping>> {
        let os = |e: Errno| Error::os("map", e.raw_os_error(), format!("{len} bytes of shared memory"));
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, fd, 0) }.map_err(os)?;
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| os(Errno::NOMEM))?;
        let (own, is_apart) = (Mutex::new(None), AtomicBool::new(false));
        let mapping = Mapping { base, len, writable, own, is_apart };
        let touch = if writable { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
        // SAFETY: the mapping was just made with this length; populating changes no byte. A kernel
        // before 5.14 refuses, and pages come with their first use.
        let _ = unsafe { madvise(base.as_ptr().cast(), len, touch) };
        Ok(Arc::new(mapping))
    }

    /// The same, to be taken apart some day: the descriptor is kept for that.
    pub(crate) fn new_apart(fd: OwnedFd, len: usize, writable: bool) -> Result<Arc<Mapping>> {
        let mapping = Mapping::new(fd.as_fd(), len, writable)?;
        *lock(&mapping.own) = Some(fd);
        Ok(mapping)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Takes it apart from what others have of it, for good: what this process writes from here on,
    /// by whatever borrow it has, nobody else sees. It shows what it showed, until it is written.
    pub(crate) fn part(&self) {
        self.is_apart.store(true, Ordering::SeqCst);
        let Some(fd) = lock(&self.own).take() else { return };
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: exchanges the whole of this mapping, which exists as long as this value, for a
        // private one of the same bytes: what is borrowed stays mapped, as it was and at its
        // address, and no byte changes, for this process was the one that could write it (see
        // `Payload`, and `SharedMemory`, which shows none in place).
        let parted = unsafe { mmap(self.base.as_ptr().cast(), self.len, both, flags, &fd, 0) };
        // Without memory for the exchange it stays shared, and `is_apart` stops who asks for it.
        let _: Result<_, Errno> = parted;
    }

    /// Whether it was taken apart, or should have been.
    pub(crate) fn is_apart(&self) -> bool {
        self.is_apart.load(Ordering::SeqCst)
    }

    /// Copies bytes out, whoever writes them meanwhile.
    ///
    /// # Safety
    /// They lie within the mapping.
    pub(crate) unsafe fn read(&self, at: usize, target: &mut [u8]) {
        // SAFETY: the caller's promise; private memory is outside of a mapping that is shared.
        unsafe { copy::out_of_shared(self.base.as_ptr().add(at), target) }
    }

    /// Copies bytes in, whoever reads or writes them meanwhile.
    ///
    /// # Safety
    /// They lie within the mapping, which is writable.
    pub(crate) unsafe fn write(&self, at: usize, source: &[u8]) {
        // SAFETY: the caller's promise; private memory is outside of a mapping that is shared.
        unsafe { copy::move_bytes(source.as_ptr(), self.base.as_ptr().add(at), source.len()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: base and len are those of the mapping, and whoever shows its bytes holds the
        // `Arc` whose last drop this is.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

mod sealed {
    /// # Safety
    /// All fields are atomics, and bytes of 0 are a value.
    pub(crate) unsafe trait Page {}
}
// SAFETY: see `layout.rs`: atomics only.
unsafe impl sealed::Page for SenderPage {}
// SAFETY: see `layout.rs`: atomics only.
unsafe impl sealed::Page for ReceiverPage {}
// SAFETY: see `layout.rs`: one atomic (in the model, which never maps it, also a mutex).
unsafe impl sealed::Page for StatePage {}

/// A page of a channel, shown in place.
pub(crate) struct View<T> {
    at: NonNull<T>,
    _keeper: Arc<dyn Any + Send + Sync>,
}

// SAFETY: all that a view gives is `&T`, and `T` is made of atomics.
unsafe impl<T: sealed::Page> Send for View<T> {}
// SAFETY: as above.
unsafe impl<T: sealed::Page> Sync for View<T> {}

impl<T> Clone for View<T> {
    fn clone(&self) -> Self {
        View { at: self.at, _keeper: self._keeper.clone() }
    }
}

/// Bytes of the object that a page of this type needs.
pub(crate) const fn page_bytes<T>() -> usize {
    size_of::<T>().next_multiple_of(4096)
}

impl<T: sealed::Page> View<T> {
    /// The page at the start of a mapping. Who views what is mapped for reading must not store.
    pub(crate) fn of(mapping: Arc<Mapping>) -> Result<View<T>> {
        if mapping.len() < size_of::<T>() {
            let context = format!("a page of {} bytes, shorter than {}", mapping.len(), size_of::<T>());
            return Err(Error::new(ErrorKind::OutOfRange, "map", context));
        }
        // A mapping starts at a page of the system, which suits every alignment in `layout.rs`.
        Ok(View { at: mapping.base.cast(), _keeper: mapping })
    }

    /// A page of this process alone, for tests.
    #[cfg(test)]
    pub(crate) fn local(page: T) -> View<T>
    where
        T: Send + Sync + 'static,
    {
        let page = Arc::new(page);
        View { at: NonNull::from(&*page), _keeper: page }
    }
}

impl<T> Deref for View<T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the keeper holds the memory, whose length and alignment were checked in `of`; its
        // bytes are a `T` whatever they are, and all fields are atomics.
        unsafe { self.at.as_ref() }
    }
}

/// The slots of a channel: `credits` times `block_bytes` bytes.
#[derive(Clone)]
pub(crate) struct Payload {
    base: NonNull<u8>,
    shape: ChannelShape,
    writable: bool,
    copies: Copies,
    _keeper: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the pointer is into memory of the process that the keeper holds; who may touch which slot
// is the ring's to say.
unsafe impl Send for Payload {}
// SAFETY: as above.
unsafe impl Sync for Payload {}

impl Payload {
    pub(crate) fn of(mapping: Arc<Mapping>, shape: ChannelShape, copies: Copies) -> Result<Payload> {
        shape.check()?;
        if shape.payload_bytes() > mapping.len() {
            let context = format!("{shape:?} in a memory of {} bytes", mapping.len());
            return Err(Error::new(ErrorKind::OutOfRange, "map", context));
        }
        let (base, writable) = (mapping.base, mapping.writable);
        Ok(Payload { base, shape, writable, copies, _keeper: mapping })
    }

    /// Memory of this process alone, for tests: two payloads over the same bytes, of which the
    /// first may write.
    #[cfg(test)]
    pub(crate) fn local(shape: ChannelShape) -> (Payload, Payload) {
        let bytes: Box<[u8]> = vec![0u8; shape.payload_bytes()].into();
        let keeper: Arc<Heap> = Arc::new(Heap(Box::into_raw(bytes)));
        // SAFETY: the address of a box is not null.
        let base = unsafe { NonNull::new_unchecked(keeper.0.cast::<u8>()) };
        let copies = Copies::ORDINARY;
        let one = |writable| Payload { base, shape, writable, copies, _keeper: keeper.clone() };
        (one(true), one(false))
    }

    fn slot(&self, slot: u32) -> NonNull<u8> {
        assert!(slot < self.shape.credits, "slot {slot} of {:?}: the ring hands out no other", self.shape);
        // SAFETY: the slot lies within the memory, by the assertion and the check in `of`.
        unsafe { self.base.add(slot as usize * self.shape.slot_bytes()) }
    }

    /// The bytes of a slot, to be written.
    pub(crate) fn slot_mut(&mut self, slot: u32) -> &mut [u8] {
        assert!(self.writable, "only the sender's payload is written");
        let (at, len) = (self.slot(slot), self.shape.block_bytes);
        // SAFETY: in range by `slot`; mapped for writing, by this process once; the exclusive
        // borrow of the payload and the ring's list of free slots keep the slot with one owner.
        // Other processes have it mapped for reading only.
        unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), len) }
    }

    /// Copies bytes into a slot, past the processor's caches where that was found to be better.
    pub(crate) fn fill(&mut self, slot: u32, bytes: &[u8]) {
        let copies = self.copies;
        let target = self.slot_mut(slot);
        let target = &mut target[..bytes.len()];
        copy::into_shared(bytes, target, copies);
    }

    /// Copies the first bytes of a slot out, whatever its writer does meanwhile: what arrives is
    /// some mixture, and stays.
    pub(crate) fn copy_out(&self, slot: u32, target: &mut [u8]) {
        assert!(target.len() <= self.shape.block_bytes, "the ring checked the length");
        // SAFETY: in range by `slot` and the assertion; the target is borrowed exclusively and is
        // not in the payload.
        unsafe { copy::across(self.slot(slot).as_ptr(), target, self.copies) }
    }

    /// The first bytes of a slot where they are, to be copied from there.
    pub(crate) fn there(&self, slot: u32, len: usize) -> There {
        assert!(len <= self.shape.block_bytes, "the ring checked the length");
        There {
            at: self.slot(slot),
            len,
            room: self.shape.block_bytes,
            copies: self.copies,
            _keeper: self._keeper.clone(),
        }
    }

    /// The first bytes of a slot in place.
    ///
    /// # Safety
    /// Nobody may write them while the result is in use: the writer is trusted to keep to the
    /// protocol.
    pub(crate) unsafe fn in_place(&self, slot: u32, len: usize) -> InPlace {
        InPlace(self.there(slot, len))
    }
}

/// Bytes of a block where the sender put them, and may be changing them.
pub(crate) struct There {
    at: NonNull<u8>,
    len: usize,
    room: usize,
    copies: Copies,
    _keeper: Arc<dyn Any + Send + Sync>,
}

impl There {
    /// Copies all of it out, past the caches where that was found to be better.
    ///
    /// # Panics
    /// Where the target has another length.
    pub(crate) fn copy_across(&self, target: &mut [u8]) {
        assert_eq!(target.len(), self.len, "the caller cut the target");
        // SAFETY: in range by the checks in `Payload::there`, mapped while the keeper lives; the
        // target is borrowed exclusively and is another mapping or private memory.
        unsafe { copy::across(self.at.as_ptr(), target, self.copies) }
    }

    /// Bytes of the longest block that can be there.
    pub(crate) fn room(&self) -> usize {
        self.room
    }
}

// SAFETY: it is read only, by copies that bear with whoever writes.
unsafe impl Send for There {}
// SAFETY: as above.
unsafe impl Sync for There {}

/// Bytes of a block where the sender put them, and lets them be.
pub(crate) struct InPlace(There);

impl Deref for InPlace {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: in range by the checks in `Payload::in_place`, mapped while the keeper lives, and
        // not written meanwhile, as the caller of `in_place` promised.
        unsafe { std::slice::from_raw_parts(self.0.at.as_ptr(), self.0.len) }
    }
}

#[cfg(test)]
struct Heap(*mut [u8]);
#[cfg(test)]
// SAFETY: an allocation belongs to the process.
unsafe impl Send for Heap {}
#[cfg(test)]
// SAFETY: as above.
unsafe impl Sync for Heap {}
#[cfg(test)]
impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw` in `local`, and freed once.
        drop(unsafe { Box::from_raw(self.0) });
    }
}
