//! Which process a value belongs to.
//!
//! `fork` copies a process with one of its threads. What the copy has of runtimes, pipes and leases
//! are descriptions of threads that are not there, of locks that nobody will release, and of rings
//! and epoll instances that it *shares* with the parent: a child that completed a queue would take
//! the parent's completions. So everything that owns such things keeps an
//! [`OwningProcess`]: in another process its functions fail with [`ErrorKind::Forked`], and dropping it gives nothing back that is
//! the parent's.
//!
//! ```text
//! a page that the kernel wipes in a child (MADV_WIPEONFORK):  number of this process, 0 in a child that did not ask yet
//! asked:   not 0  -> that is the number                        two loads, no system call
//!          0      -> the next number becomes this process's
//! ```
//! (Rejected: `getpid`, which is a system call of 50 to 100 ns; `pthread_atfork` alone, which does
//! not see a child that was made by the system call itself. It serves where the kernel does not
//! know the advice.)
//!
//! What of a parent's a child may use, and what it may not, is in docs/runtime.md.
//!
//! Unsafe code: the page is mapped, and read through a pointer that never changes once it is set;
//! values of [`PerProcess`] are leaked before they are given out.
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::error::{Error, ErrorKind, Result};

/// The number of this process in a page that is wiped in a child.
static MARK: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
/// The last number that was given out, in this process and in those that it is a copy of.
static LAST: AtomicU64 = AtomicU64::new(0);
/// The page's stand-in, wiped by a handler of `fork`.
static STAND_IN: AtomicU64 = AtomicU64::new(0);

/// The process that made a value.
///
/// ```
/// let owner = datapipes_core::process::OwningProcess::here();
/// assert!(owner.is_here() && owner.check("read").is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwningProcess(u64);

impl OwningProcess {
    /// This process.
    #[inline]
    pub fn here() -> OwningProcess {
        OwningProcess(number())
    }

    /// Whether this is still the process that made the value. It costs two loads.
    #[inline]
    pub fn is_here(self) -> bool {
        self.0 == number()
    }

    /// What every public function of such a value begins with.
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
    Error::new(ErrorKind::Forked, operation, "this was made by the process that forked this one")
        .advice("make a new one here: a child can discover a machine, open places and start a runtime of its own")
}

#[inline]
fn number() -> u64 {
    let mark = MARK.load(Ordering::Acquire);
    // SAFETY: the pointer is null, or what `mark` made, which is never unmapped.
    match unsafe { mark.as_ref() }.map_or(0, |mark| mark.load(Ordering::Relaxed)) {
        0 => next_number(),
        number => number,
    }
}

#[cold]
fn next_number() -> u64 {
    let mark = mark();
    let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    // Another thread may have been faster: the number is one for all.
    mark.compare_exchange(0, next, Ordering::AcqRel, Ordering::Acquire).map_or_else(|seen| seen, |_| next)
}

/// The page, which is mapped when it is first asked for.
fn mark() -> &'static AtomicU64 {
    // SAFETY: as in `number`.
    if let Some(mark) = unsafe { MARK.load(Ordering::Acquire).as_ref() } {
        return mark;
    }
    let made = wiped_page().unwrap_or_else(stand_in);
    match MARK.compare_exchange(std::ptr::null_mut(), made.as_ptr(), Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: `made` is a page that is never unmapped, or the static.
        Ok(_) => unsafe { made.as_ref() },
        // SAFETY: as in `number`. What this thread made is left: two threads were first, a page is
        // lost, once.
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
        // SAFETY: the page was just mapped, and nobody else knows it.
        unsafe { libc::munmap(page, len) };
        return None;
    }
    // Zeroed and aligned to a page, it is an `AtomicU64` of 0.
    std::ptr::NonNull::new(page.cast())
}

#[cfg(miri)]
fn wiped_page() -> Option<std::ptr::NonNull<AtomicU64>> {
    None // There is no fork.
}

/// Bytes of a page of this machine.
///
/// As the C library knows it, without asking the kernel: a process that was locked down may ask
/// nothing (rustix panics there).
pub fn page_size() -> usize {
    // SAFETY: it takes a number and returns one.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    // It cannot fail for this name.
    usize::try_from(bytes).ok().filter(|bytes| bytes.is_power_of_two()).unwrap_or(4096)
}

/// Kernels before 4.14 do not know the advice: the C library calls us in a child, if it made it.
fn stand_in() -> std::ptr::NonNull<AtomicU64> {
    #[cfg(not(miri))]
    {
        extern "C" fn in_child() {
            STAND_IN.store(0, Ordering::Relaxed);
        }
        // SAFETY: the handler does what is allowed between `fork` and `exec`: it stores a number.
        // Refused for want of memory, children are not told from their parent, as on every kernel
        // before this.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    }
    std::ptr::NonNull::from(&STAND_IN)
}

/// A value that is dropped by the process that made it, and by no child: its destructor would undo
/// what the parent still uses (registrations of a ring that both share), or wait for a thread or a
/// lock that no child has.
///
/// What it owns stays with a child until the child ends or becomes another program.
#[derive(Debug)]
pub struct DroppedHere<T> {
    value: ManuallyDrop<T>,
    owner: OwningProcess,
}

impl<T> DroppedHere<T> {
    /// Of this process.
    pub fn new(value: T) -> Self {
        DroppedHere { value: ManuallyDrop::new(value), owner: OwningProcess::here() }
    }

    /// Who drops it.
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
            // SAFETY: the value is dropped here and nowhere else, and this is the drop of what
            // holds it.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// A value of which each process has its own: a `static` that a child makes anew, rather than find
/// a lock in it that a thread of its parent held when it was forked.
#[derive(Debug)]
pub struct PerProcess<T: Send + Sync + 'static>(AtomicPtr<(OwningProcess, T)>);

impl<T: Send + Sync> PerProcess<T> {
    /// One that no process has asked for.
    pub const fn new() -> Self {
        PerProcess(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// This process's value, which `make` makes when it is asked for first. Where two threads are
    /// first together both make one, and one of the two is dropped. What a parent had made stays
    /// where it is, and is never dropped in a child.
    pub fn get(&'static self, make: impl FnOnce() -> T) -> &'static T {
        let before = self.0.load(Ordering::Acquire);
        // SAFETY: null, or a box that was leaked below: it is never freed.
        if let Some((owner, value)) = unsafe { before.as_ref() }
            && owner.is_here()
        {
            return value;
        }
        let made = Box::into_raw(Box::new((OwningProcess::here(), make())));
        match self.0.compare_exchange(before, made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: the box was just made, and is leaked: whoever reads the pointer finds it
            // whole, for ever.
            Ok(_) => unsafe { &(*made).1 },
            Err(seen) => {
                // SAFETY: the box was just made, and nobody else saw its address.
                drop(unsafe { Box::from_raw(made) });
                // SAFETY: not null, for it was set by a thread of this process since `before` was
                // read; never freed.
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
