//! Closing files after the end of this process.

// A fork, and what its child may call.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};

/// Leaves the last close of these files, which may take long, to another process. It closes them
/// when this process has ended, does nothing else, and holds nothing else open. If it cannot be
/// started, the files are closed here, and this returns false.
pub(crate) fn close_afterwards(files: Vec<OwnedFd>) -> bool {
    if files.is_empty() {
        return true;
    }
    // A process that cannot close what it inherited would hold it for ever, this pipe included.
    // The call is not in a kernel before 5.9, and not allowed under some filters.
    if !close_range(u32::MAX, u32::MAX) {
        return false;
    }
    let Ok((ended, held)) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC) else { return false };
    let mut kept: Vec<u32> = files.iter().map(|fd| fd.as_raw_fd().unsigned_abs()).collect();
    kept.push(ended.as_raw_fd().unsigned_abs());
    kept.sort_unstable();
    let ended_fd = ended.as_raw_fd();
    // SAFETY: the child of a process with several threads may call only what is safe in a signal
    // handler. It makes system calls on memory that was allocated before, and exits.
    let child = unsafe {
        let child = libc::fork();
        if child == 0 {
            let mut from = 0;
            let mut alone = true;
            for fd in &kept {
                alone &= from == *fd || close_range(from, *fd - 1);
                from = *fd + 1;
            }
            alone &= close_range(from, u32::MAX);
            let mut byte = 0_u8;
            if alone {
                // It returns when nobody holds the other end any more.
                libc::read(ended_fd, (&raw mut byte).cast(), 1);
            }
            libc::_exit(0);
        }
        child
    };
    // The end of this process closes this.
    std::mem::forget(held);
    child > 0
}

/// Closes all descriptors of a range.
fn close_range(first: u32, last: u32) -> bool {
    // SAFETY: it is called for no descriptor at all, or in a child that uses none of them any more.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) == 0 }
}
