//! The process that a value belongs to.
//!
//! `fork` copies a process with only one of its threads. In the copy, runtimes, pipes and leases
//! describe threads that do not exist, locks that nobody will release, and rings and epoll
//! instances that it *shares* with the parent: a child that completed a queue would take the
//! parent's completions. So every owner of such things keeps an [`OwningProcess`]. In another
//! process its functions fail with [`ErrorKind::Forked`], and dropping it releases nothing of the
//! parent's.
//!
//! ```text
//! a page that the kernel wipes in a child (MADV_WIPEONFORK) holds this process's number
//! on a query:  not 0  -> that is the number                  two loads, no system call
//!              0      -> a new child: the next number becomes this process's
//! ```
//! (Rejected: `getpid`, a system call of 50 to 100 ns; `pthread_atfork` alone, which misses a child
//! that was made by the system call itself. It is used where the kernel does not know
//! `MADV_WIPEONFORK`.)
//!
//! docs/runtime.md says what a child may use of its parent's values.
//!
//! Unsafe code: the page is mapped, and read through a pointer that never changes once it is set.
//! Values of [`PerProcess`] are leaked before references to them are given out.
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::error::{Error, ErrorKind, Result};

/// The number of this process, in a page that is wiped in a child.
static MARK: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
/// The last number that was given out, in this process and its ancestors.
static LAST: AtomicU64 = AtomicU64::new(0);
/// Stands in for the page; a handler of `fork` wipes it.
static STAND_IN: AtomicU64 = AtomicU64::new(0);

/// The process that made a value, which can be checked after a fork.
///
/// ```
/// let owner = datapipes_core::process::OwningProcess::here();
/// assert!(owner.is_here() && owner.check("read").is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwningProcess(u64);

impl OwningProcess {
    /// Returns the calling process.
    #[inline]
    pub fn here() -> OwningProcess {
        OwningProcess(number())
    }

    /// Whether this is still the process that made the value. It costs two loads.
    #[inline]
    pub fn is_here(self) -> bool {
        self.0 == number()
    }

    /// Checks that this is still the process that made the value; every public function of such a
    /// value calls this first.
    ///
    /// # Errors
    /// `Forked` in a child of the process that made the value.
    #[inline]
    pub fn check(self, operation: &'static str) -> Result<()> {
        if self.is_here() { Ok(()) } else { Err(forked(operation)) }
    }
}

#[cold]
fn forked(operation: &'static str) -> Error {
    Error::new(ErrorKind::Forked, operation, "this was made by the parent process before the fork")
        .with_advice("make a new one here: a child can discover a machine, open places and start a runtime of its own")
}

#[inline]
fn number() -> u64 {
    let mark = MARK.load(Ordering::Acquire);
    // SAFETY: the pointer is null or was set by `mark`, and what it points to is never unmapped.
    match unsafe { mark.as_ref() }.map_or(0, |mark| mark.load(Ordering::Relaxed)) {
        0 => next_number(),
        number => number,
    }
}

#[cold]
fn next_number() -> u64 {
    let mark = mark();
    let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    // Another thread may have been first; then its number is used.
    mark.compare_exchange(0, next, Ordering::AcqRel, Ordering::Acquire).map_or_else(|seen| seen, |_| next)
}

/// Returns the page, and maps it on the first call.
fn mark() -> &'static AtomicU64 {
    // SAFETY: as in `number`.
    if let Some(mark) = unsafe { MARK.load(Ordering::Acquire).as_ref() } {
        return mark;
    }
    let made = wiped_page().unwrap_or_else(stand_in);
    match MARK.compare_exchange(std::ptr::null_mut(), made.as_ptr(), Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: `made` is a page that is never unmapped, or the static.
        Ok(_) => unsafe { made.as_ref() },
        // SAFETY: as in `number`. Two threads came first together; the page of this one is leaked,
        // once.
        Err(seen) => unsafe { &*seen },
    }
}

#[cfg(not(miri))]
fn wiped_page() -> Option<std::ptr::NonNull<AtomicU64>> {
    let len = page_size();
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the page was just mapped; the advice changes no byte in this process.
    if unsafe { libc::madvise(page, len, libc::MADV_WIPEONFORK) } != 0 {
        // SAFETY: the page was just mapped, and no other code has its address.
        unsafe { libc::munmap(page, len) };
        return None;
    }
    // The page is zeroed and aligned, so it holds an `AtomicU64` of 0.
    std::ptr::NonNull::new(page.cast())
}

#[cfg(miri)]
fn wiped_page() -> Option<std::ptr::NonNull<AtomicU64>> {
    None // There is no fork.
}

/// Returns the page size of this machine in bytes.
///
/// The C library knows it without a system call, which a sandboxed process might not be allowed
/// (rustix panics there).
pub fn page_size() -> usize {
    // SAFETY: the call takes a number and returns one.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    // It cannot fail for this name.
    usize::try_from(bytes).ok().filter(|bytes| bytes.is_power_of_two()).unwrap_or(4096)
}

/// Serves kernels before 4.14, which do not know the advice: the C library's `fork` calls a handler
/// in the child.
fn stand_in() -> std::ptr::NonNull<AtomicU64> {
    #[cfg(not(miri))]
    {
        extern "C" fn in_child() {
            STAND_IN.store(0, Ordering::Relaxed);
        }
        // SAFETY: the handler only stores a number, which is allowed between `fork` and `exec`. If
        // the registration fails for want of memory, children are not told from their parent.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    }
    std::ptr::NonNull::from(&STAND_IN)
}

/// A value that is dropped only by the process that made it. In a child, its destructor would undo
/// what the parent still uses (registrations of a ring that both share), or wait for a thread or a
/// lock that no child has.
///
/// A child keeps what the value owns until it ends or runs another program.
#[derive(Debug)]
pub struct DroppedHere<T> {
    value: ManuallyDrop<T>,
    owner: OwningProcess,
}

impl<T> DroppedHere<T> {
    /// Makes a value that belongs to this process.
    pub fn new(value: T) -> Self {
        DroppedHere { value: ManuallyDrop::new(value), owner: OwningProcess::here() }
    }

    /// The process that drops the value.
    #[inline]
    pub fn owner(this: &Self) -> OwningProcess {
        this.owner
    }
}

impl<T> Deref for DroppedHere<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Drop for DroppedHere<T> {
    fn drop(&mut self) {
        if self.owner.is_here() {
            // SAFETY: the value is dropped here and nowhere else; its holder is being dropped, so
            // nobody uses it later.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// A value of which each process has its own. For a `static` with a lock: a child makes a new one
/// and never finds the lock held by a thread of its parent.
#[derive(Debug)]
pub struct PerProcess<T: Send + Sync + 'static>(AtomicPtr<(OwningProcess, T)>);

impl<T: Send + Sync> PerProcess<T> {
    /// Makes an empty one; no process has its value yet.
    pub const fn new() -> Self {
        PerProcess(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// Returns this process's value. The first call makes it with `make`. If two threads come first
    /// together, both make one and one of the two is dropped. A parent's value stays where it is
    /// and is never dropped in a child.
    pub fn get(&'static self, make: impl FnOnce() -> T) -> &'static T {
        let before = self.0.load(Ordering::Acquire);
        // SAFETY: the pointer is null or a box that was leaked below and is never freed.
        if let Some((owner, value)) = unsafe { before.as_ref() }
            && owner.is_here()
        {
            return value;
        }
        let made = Box::into_raw(Box::new((OwningProcess::here(), make())));
        match self.0.compare_exchange(before, made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: the box was just made and is leaked, so every reader of the pointer finds it
            // whole for ever.
            Ok(_) => unsafe { &(*made).1 },
            Err(seen) => {
                // SAFETY: the box was just made, and no other thread saw its address.
                drop(unsafe { Box::from_raw(made) });
                // SAFETY: the pointer is not null, since a thread of this process set it after
                // `before` was read. The box is never freed.
                unsafe { &(*seen).1 }
            }
        }
    }
}

impl<T: Send + Sync> Default for PerProcess<T> {
    fn default() -> Self {
        PerProcess::new()
    }
}
