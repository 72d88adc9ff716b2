//! Memory that several processes share: objects, and their mappings in this process.
//!
//! This module has unsafe code. It guarantees:
//! * An object is sealed against shrinking before anybody maps it, and its pages are reserved, so
//!   accessing a mapping never faults.
//! * A [`View`] shows a type whose fields are all atomics, so accesses of another process are not
//!   data races.
//! * Slots of a [`Payload`] are written only through the process's one writable mapping, and the
//!   ring gives each slot to one owner at a time. They are read in place only if the caller
//!   declared that the writer is trusted. Otherwise they are copied out by instructions that are
//!   opaque to the compiler.
#![allow(unsafe_code)]

use std::any::Any;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use datapipes_core::memory::allocate_all;
use datapipes_core::{Error, ErrorKind, Result};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use super::copy;
use super::layout::{ReceiverPage, SenderPage, StatePage};
use super::{ChannelShape, Copies};
use crate::sync::Arc;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

/// A kernel object of shared memory, made by the controller.
#[derive(Debug)]
pub(crate) struct Object {
    fd: OwnedFd,
    len: usize,
}

impl Object {
    /// Makes `len` zeroed bytes, which are allocated, and sealed against shrinking and growing.
    ///
    /// # Errors
    /// `OutOfMemory` where there are not so many, before anybody is killed for it.
    pub(crate) fn create(len: usize) -> Result<Object> {
        let os = |e: Errno| Error::os("create", e.raw_os_error(), format!("{len} bytes of shared memory"));
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = match rustix::fs::memfd_create("fabric", flags | MemfdFlags::NOEXEC_SEAL) {
            // Kernels before 6.3 do not know the flag.
            Err(Errno::INVAL) => rustix::fs::memfd_create("fabric", flags),
            other => other,
        };
        let fd = fd.map_err(os)?;
        allocate_all(fd.as_fd(), len)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).map_err(os)?;
        Ok(Object { fd, len })
    }

    /// Forbids new writable mappings and writes for ever. A party that has mapped it for writing
    /// keeps only that mapping. Reopening the descriptor through /proc does not help, with any
    /// rights. Nothing unseals it.
    pub(crate) fn seal_for_good(&self) -> Result<()> {
        let seals = SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&self.fd, seals).map_err(|e| Error::os("seal", e.raw_os_error(), "a shared memory"))
    }

    /// Opens another description of it, which is read-only.
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

/// A mapping of this process. It is unmapped with its last user.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
    /// The descriptor by which it can be separated from the shared memory.
    own: Mutex<Option<OwnedFd>>,
    is_apart: AtomicBool,
}

// SAFETY: a mapping belongs to the process, not to a thread. Each use states why it is sound.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps all of an object, and touches its pages so that later accesses do not wait.
    pub(crate) fn new(fd: BorrowedFd<'_>, len: usize, writable: bool) -> Result<Arc<Mapping>> {
        let os = |e: Errno| Error::os("map", e.raw_os_error(), format!("{len} bytes of shared memory"));
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address that the kernel chooses touches nothing that exists.
        let base = unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, fd, 0) }.map_err(os)?;
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| os(Errno::NOMEM))?;
        let (own, is_apart) = (Mutex::new(None), AtomicBool::new(false));
        let mapping = Mapping { base, len, writable, own, is_apart };
        let touch = if writable { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
        // SAFETY: the mapping was just made with this length, and populating changes no byte. A
        // kernel before 5.14 refuses, and pages then come with their first use.
        let _ = unsafe { madvise(base.as_ptr().cast(), len, touch) };
        Ok(Arc::new(mapping))
    }

    /// As [`new`](Self::new), for a mapping that may be separated later: it keeps the descriptor.
    pub(crate) fn new_apart(fd: OwnedFd, len: usize, writable: bool) -> Result<Arc<Mapping>> {
        let mapping = Mapping::new(fd.as_fd(), len, writable)?;
        *mapping.own.lock() = Some(fd);
        Ok(mapping)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Separates it from the shared memory for good: no other process sees what this process writes
    /// from now on, by any borrow. Its contents stay the same until it is written.
    pub(crate) fn part(&self) {
        self.is_apart.store(true, Ordering::SeqCst);
        let Some(fd) = self.own.lock().take() else { return };
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: this replaces the whole mapping, which exists as long as this value, by a private
        // one of the same bytes. Borrowed bytes stay mapped at their address. No byte changes,
        // because only this process could write it (see `Payload`, and `SharedMemory`, which shows
        // no bytes in place).
        let parted = unsafe { mmap(self.base.as_ptr().cast(), self.len, both, flags, &fd, 0) };
        // Without memory for the replacement it stays shared, and `is_apart` stops further users.
        let _: Result<_, Errno> = parted;
    }

    /// Whether it was separated, or should have been.
    pub(crate) fn is_apart(&self) -> bool {
        self.is_apart.load(Ordering::SeqCst)
    }

    /// Copies bytes out, even if others write them at the same time.
    ///
    /// # Safety
    /// The bytes lie within the mapping.
    pub(crate) unsafe fn read(&self, at: usize, target: &mut [u8]) {
        // SAFETY: the caller's promise, and private memory does not overlap a shared mapping.
        unsafe { copy::out_of_shared(self.base.as_ptr().add(at), target) }
    }

    /// Copies bytes in, even if others read or write them at the same time.
    ///
    /// # Safety
    /// The bytes lie within the mapping, which is writable.
    pub(crate) unsafe fn write(&self, at: usize, source: &[u8]) {
        // SAFETY: the caller's promise, and private memory does not overlap a shared mapping.
        unsafe { copy::move_bytes(source.as_ptr(), self.base.as_ptr().add(at), source.len()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: base and length are those of the mapping. Everything that shows its bytes holds
        // the `Arc`, and this is the last drop.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

mod sealed {
    /// # Safety
    /// All fields are atomics, and zeroed bytes are a valid value.
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

// SAFETY: a view only gives out `&T`, and `T` consists of atomics.
unsafe impl<T: sealed::Page> Send for View<T> {}
// SAFETY: as above.
unsafe impl<T: sealed::Page> Sync for View<T> {}

impl<T> Clone for View<T> {
    fn clone(&self) -> Self {
        View { at: self.at, _keeper: self._keeper.clone() }
    }
}

/// The bytes of the object that a page of this type needs.
pub(crate) const fn page_bytes<T>() -> usize {
    size_of::<T>().next_multiple_of(4096)
}

impl<T: sealed::Page> View<T> {
    /// Views the page at the start of a mapping. If the mapping is read-only, the user must not
    /// store.
    pub(crate) fn of(mapping: Arc<Mapping>) -> Result<View<T>> {
        if mapping.len() < size_of::<T>() {
            let context = format!("a page of {} bytes, shorter than {}", mapping.len(), size_of::<T>());
            return Err(Error::new(ErrorKind::OutOfRange, "map", context));
        }
        // A mapping starts at a page of the system, which meets every alignment in `layout.rs`.
        Ok(View { at: mapping.base.cast(), _keeper: mapping })
    }

    /// Makes a page of this process alone, for tests.
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
        // SAFETY: the keeper holds the memory, whose length and alignment were checked in `of`. Any
        // bytes are a valid `T`, and all fields are atomics.
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

// SAFETY: the pointer is into memory that the keeper holds. The ring decides who may access which
// slot.
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

    /// Makes memory of this process alone, for tests: two payloads over the same bytes. The first
    /// one may write.
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

    /// The bytes of a slot, for writing.
    pub(crate) fn slot_mut(&mut self, slot: u32) -> &mut [u8] {
        assert!(self.writable, "only the sender's payload is written");
        let (at, len) = (self.slot(slot), self.shape.block_bytes);
        // SAFETY: the range is valid by `slot`, and mapped for writing once by this process. The
        // exclusive borrow of the payload and the ring's list of free slots give the slot one
        // owner. Other processes have it mapped for reading only.
        unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), len) }
    }

    /// Copies bytes into a slot, bypassing the caches where that was found to be better.
    pub(crate) fn fill(&mut self, slot: u32, bytes: &[u8]) {
        let copies = self.copies;
        let target = self.slot_mut(slot);
        let target = &mut target[..bytes.len()];
        copy::into_shared(bytes, target, copies);
    }

    /// Copies the first bytes of a slot, even if its writer changes them at the same time. The
    /// result may be a mixture, but it does not change later.
    pub(crate) fn copy_out(&self, slot: u32, target: &mut [u8]) {
        assert!(target.len() <= self.shape.block_bytes, "the ring checked the length");
        // SAFETY: the range is valid by `slot` and the assertion. The target is borrowed
        // exclusively and not in the payload.
        unsafe { copy::across(self.slot(slot).as_ptr(), target, self.copies) }
    }

    /// The first bytes of a slot in shared memory, to be copied from there.
    pub(crate) fn remote_bytes(&self, slot: u32, len: usize) -> RemoteBytes {
        assert!(len <= self.shape.block_bytes, "the ring checked the length");
        RemoteBytes {
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
    /// Nobody may write them while the result is in use: the writer is trusted to follow the
    /// protocol.
    pub(crate) unsafe fn in_place(&self, slot: u32, len: usize) -> InPlace {
        InPlace(self.remote_bytes(slot, len))
    }
}

/// The bytes of a block in shared memory. The sender may change them.
pub(crate) struct RemoteBytes {
    at: NonNull<u8>,
    len: usize,
    room: usize,
    copies: Copies,
    _keeper: Arc<dyn Any + Send + Sync>,
}

impl RemoteBytes {
    /// Copies all bytes out, bypassing the caches where that was found to be better.
    ///
    /// # Panics
    /// If the target has another length.
    pub(crate) fn copy_across(&self, target: &mut [u8]) {
        assert_eq!(target.len(), self.len, "the caller cut the target");
        // SAFETY: the range is valid by the checks in `Payload::remote_bytes`, and mapped while the
        // keeper lives. The target is borrowed exclusively and is another mapping or private
        // memory.
        unsafe { copy::across(self.at.as_ptr(), target, self.copies) }
    }

    /// The bytes of the longest possible block.
    pub(crate) fn room(&self) -> usize {
        self.room
    }
}

// SAFETY: it is only read, by copies that tolerate concurrent writes.
unsafe impl Send for RemoteBytes {}
// SAFETY: as above.
unsafe impl Sync for RemoteBytes {}

/// The bytes of a block in shared memory, which the sender does not change.
pub(crate) struct InPlace(RemoteBytes);

impl Deref for InPlace {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the range is valid by the checks in `Payload::in_place`, mapped while the keeper
        // lives, and not written meanwhile, as the caller of `in_place` promised.
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
