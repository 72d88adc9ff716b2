//! Short reads and writes, of which one system call is quicker than the making of a pipe.
//!
//! Unsafe code: `preadv2` and `pwrite` at the address of leased memory.
#![allow(unsafe_code)]

use std::os::fd::AsRawFd;

use datapipes::memory::Access;
use datapipes::{Counters, Dram, Error, ErrorKind, FileAccess, Result, Ssd, WriteObservers};

/// Up to this many bytes one system call is quicker than the making of a pipe.
pub(crate) const SHORT: u64 = 64 << 10;

/// Where the page cache has so many bytes, they are copied at once. Another thread would not be
/// quicker: it would read them past the cache, or copy them twice.
pub(crate) const AT_ONCE: u64 = 1 << 20;

/// What one short read or write moved.
pub(crate) fn counters(len: u64) -> Counters {
    Counters::default().transfers(1).bytes(len).requests(1).system_calls(1).cached_bytes(len)
}

fn failed(operation: &'static str, ssd: &Ssd, offset: u64, done: usize) -> Error {
    let error = std::io::Error::last_os_error();
    let context = ssd.path().display().to_string();
    Error::io(operation, error, context).with_offset(offset + done as u64).with_bytes_done(done as u64)
}

fn is_interrupted() -> bool {
    std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
}

/// Reads as many bytes as there are in the target.
pub(crate) fn read(ssd: &Ssd, offset: u64, target: &Dram) -> Result<()> {
    let lease = target.memory().raw_lease(Access::Write)?;
    let mut done = 0;
    while done < lease.len() {
        // SAFETY: the lease gives the right to write `len` bytes from its address.
        match usize::try_from(unsafe { read_once(ssd, offset, &lease, done, 0) }) {
            Ok(0) => {
                let context = ssd.path().display().to_string();
                return Err(Error::end_of_source("read", context, offset + done as u64).with_bytes_done(done as u64));
            }
            Ok(n) => done += n,
            Err(_) if is_interrupted() => {}
            Err(_) => return Err(failed("read", ssd, offset, done)),
        }
    }
    Ok(())
}

/// Reads the bytes if the page cache has all of them, and returns whether it had. Where it has not,
/// some bytes of the target may have been written.
pub(crate) fn read_cached(ssd: &Ssd, offset: u64, target: &Dram) -> Result<bool> {
    let lease = target.memory().raw_lease(Access::Write)?;
    // An error is told by the read that follows.
    // SAFETY: the lease gives the right to write `len` bytes from its address.
    let n = unsafe { read_once(ssd, offset, &lease, 0, libc::RWF_NOWAIT) };
    Ok(usize::try_from(n) == Ok(lease.len()))
}

/// Fills the bytes at an address from a file, and returns their number, if the page cache has all
/// of them. Where it has not, some bytes may have been written.
///
/// # Safety
/// `len` bytes at `start` may be written, and stay valid until this returns.
pub(crate) unsafe fn read_cached_to(ssd: &Ssd, offset: u64, start: *mut u8, len: usize) -> Option<usize> {
    let at = libc::off_t::try_from(offset).ok()?;
    let part = libc::iovec { iov_base: start.cast(), iov_len: len };
    let fd = ssd.file().cached_fd().as_raw_fd();
    // SAFETY: the kernel writes only the bytes that the caller vouches for, and the descriptor is
    // open as long as `ssd`.
    let n = usize::try_from(unsafe { libc::preadv2(fd, &raw const part, 1, at, libc::RWF_NOWAIT) }).ok()?;
    // Fewer bytes are all of them where the file ends.
    (n == len || n > 0 && ssd.len().is_ok_and(|size| size == offset + n as u64)).then_some(n)
}

/// One system call, for the bytes of a lease from `done` on.
///
/// # Safety
/// The lease gives the right to write, and nobody else accesses the bytes.
unsafe fn read_once(
    ssd: &Ssd,
    offset: u64,
    lease: &datapipes::memory::RawLease,
    done: usize,
    flags: libc::c_int,
) -> libc::ssize_t {
    let fd = ssd.file().cached_fd().as_raw_fd();
    let at = (offset + done as u64) as libc::off_t;
    let len = lease.len() - done;
    // SAFETY: `done` bytes of the lease were read, so it has `len` more from there on. The kernel
    // writes only those, and the descriptor is open as long as `ssd`.
    unsafe {
        let part = libc::iovec { iov_base: lease.address().add(done).cast(), iov_len: len };
        libc::preadv2(fd, &raw const part, 1, at, flags)
    }
}

/// Ends the announcement of a change, however the change ends.
struct Change<'a>(&'a WriteObservers, u64);

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.0.end(self.1);
    }
}

/// Whether a short write through the page cache is what the file's opener asked for. Where it is
/// not, the planner says why.
pub(crate) fn may_write(ssd: &Ssd) -> bool {
    ssd.file().writable() && ssd.file().access() != FileAccess::Direct
}

/// Writes all bytes of the source.
pub(crate) fn write(ssd: &Ssd, offset: u64, source: &Dram) -> Result<()> {
    let lease = source.memory().raw_lease(Access::Read)?;
    let end = offset.checked_add(lease.len() as u64).filter(|end| i64::try_from(*end).is_ok());
    let Some(end) = end else {
        let context = format!("{} bytes at {offset} of {}", lease.len(), ssd.path().display());
        return Err(Error::new(ErrorKind::OutOfRange, "write", context));
    };
    let observers = ssd.write_observers();
    observers.check_process("write")?;
    let _change = Change(observers, observers.begin(offset..end));
    let fd = ssd.file().cached_fd().as_raw_fd();
    let mut done = 0;
    while done < lease.len() {
        let at = (offset + done as u64) as libc::off_t;
        // SAFETY: the lease gives the right to read `len` bytes from its address, of which `done`
        // were written. The descriptor is open as long as `ssd`.
        let n = unsafe { libc::pwrite(fd, lease.address().add(done).cast(), lease.len() - done, at) };
        match usize::try_from(n) {
            Ok(0) => {
                let context = format!("{}: the kernel takes no more bytes", ssd.path().display());
                return Err(Error::new(ErrorKind::System, "write", context).with_bytes_done(done as u64));
            }
            Ok(n) => done += n,
            Err(_) if is_interrupted() => {}
            Err(_) => return Err(failed("write", ssd, offset, done)),
        }
    }
    Ok(())
}
