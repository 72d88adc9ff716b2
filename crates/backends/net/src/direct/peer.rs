//! The memory of a process, reached by its number.
//!
//! This module's unsafe code calls the kernel with addresses: those of this process, which the
//! caller leases, and those of the other, which the kernel checks.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};

use datapipes_core::{Error, ErrorKind, Result};
use rustix::io::Errno;

/// Where the memory of a holder is, as the exporter tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirectMemory {
    /// The holder's number.
    pub(crate) process: i32,
    /// The address of the export's first byte in the holder.
    pub(crate) start: u64,
    /// The address of the proof in the holder.
    pub(crate) proof_at: u64,
    /// Random bytes that are there. Who has them at that address is the holder.
    pub(crate) proof: [u8; 16],
}

/// A copy that the kernel ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CutShort {
    pub(crate) done: usize,
    pub(crate) errno: Errno,
}

/// Why the kernel does not copy between processes here; nothing where it does.
pub(crate) fn absence() -> Option<String> {
    // SAFETY: without buffers the call looks at nothing but the process, which is this one.
    let answer = unsafe { libc::process_vm_readv(own_number(), std::ptr::null(), 0, std::ptr::null(), 0, 0) };
    (answer != 0).then(|| format!("process_vm_readv: {}", std::io::Error::last_os_error()))
}

fn own_number() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// Lets a process reach this one's memory, where Yama asks for that. Where it does not, this
/// changes nothing.
pub(crate) fn let_reach(client: i32) {
    // SAFETY: the call sets a number of this process.
    let _ = unsafe { libc::prctl(libc::PR_SET_PTRACER, client, 0, 0, 0) };
}

/// The number of the process at the other end of a Unix socket. A process that cannot be seen from
/// here has none.
pub(crate) fn peer_number(socket: BorrowedFd<'_>) -> Option<i32> {
    peer_of(socket).map(|peer| peer.pid).filter(|number| *number > 0)
}

/// The user at the other end of a Unix socket.
pub(crate) fn peer_user(socket: BorrowedFd<'_>) -> Option<u32> {
    peer_of(socket).map(|peer| peer.uid)
}

fn peer_of(socket: BorrowedFd<'_>) -> Option<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into the structure.
    let answer = unsafe {
        let (into, fd) = ((&raw mut peer).cast(), socket.as_raw_fd());
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, into, &raw mut len)
    };
    (answer == 0).then_some(peer)
}

impl DirectMemory {
    /// Checks that the number is that of the holder, which may be another process here, and that
    /// the kernel permits to reach it.
    ///
    /// # Errors
    /// `Unavailable` where it is not or does not.
    pub(crate) fn prove(&self) -> Result<()> {
        let no = |why: String| Error::new(ErrorKind::Unavailable, "connect", why);
        let mut found = [0; 16];
        // SAFETY: the bytes are this function's.
        let read = unsafe { self.copy(found.as_mut_ptr(), found.len(), self.proof_at, libc::process_vm_readv) };
        read.map_err(|e| {
            no(format!("the kernel does not let this process reach the holder: {}", std::io::Error::from(e.errno)))
        })?;
        if found == self.proof {
            return Ok(());
        }
        Err(no("the holder has another number here: the exporter is in another container".to_owned()))
    }

    /// Copies this process's bytes to the export's at `offset`.
    ///
    /// # Safety
    /// `from..from + len` is readable and nobody writes it during the call.
    ///
    /// # Errors
    /// What the kernel says, and how much it copied before.
    pub(crate) unsafe fn write(&self, from: *const u8, len: usize, offset: u64) -> Result<(), CutShort> {
        let to = self.start.wrapping_add(offset);
        // SAFETY: the caller promises the bytes. The kernel writes only what the holder maps for
        // writing.
        unsafe { self.copy(from.cast_mut(), len, to, libc::process_vm_writev) }
    }

    /// Copies the export's bytes at `offset`.
    ///
    /// # Safety
    /// Nothing else accesses `to..to + len`, which is writable, during the call.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub(crate) unsafe fn read(&self, to: *mut u8, len: usize, offset: u64) -> Result<(), CutShort> {
        let from = self.start.wrapping_add(offset);
        // SAFETY: the caller promises the bytes.
        unsafe { self.copy(to, len, from, libc::process_vm_readv) }
    }

    /// # Safety
    /// As the two above, for the call that is given.
    unsafe fn copy(&self, here: *mut u8, len: usize, there: u64, call: VmCall) -> Result<(), CutShort> {
        let mut done = 0;
        while done < len {
            let Ok(there) = usize::try_from(there.wrapping_add(done as u64)) else {
                return Err(CutShort { done, errno: Errno::FAULT });
            };
            let local = libc::iovec { iov_base: here.wrapping_add(done).cast(), iov_len: len - done };
            let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(there), iov_len: len - done };
            // SAFETY: both structures live during the call; the local bytes are the caller's.
            let moved = unsafe { call(self.process, &raw const local, 1, &raw const remote, 1, 0) };
            match usize::try_from(moved) {
                Ok(0) => return Err(CutShort { done, errno: Errno::FAULT }),
                Ok(moved) => done += moved,
                Err(_) => {
                    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
                    let errno = Errno::from_raw_os_error(errno);
                    if errno != Errno::INTR {
                        return Err(CutShort { done, errno });
                    }
                }
            }
        }
        Ok(())
    }
}

type VmCall = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> libc::ssize_t;

#[cfg(test)]
mod tests {
    use super::*;

    fn of_this_process(memory: &mut [u8], proof: &[u8; 16]) -> DirectMemory {
        DirectMemory {
            process: own_number(),
            start: memory.as_mut_ptr().addr() as u64,
            proof_at: proof.as_ptr().addr() as u64,
            proof: *proof,
        }
    }

    #[test]
    fn a_number_is_believed_only_with_the_proof() {
        if let Some(why) = absence() {
            return println!("SKIPPED: copies between processes: {why}");
        }
        let proof = *b"sixteen of bytes";
        let memory = of_this_process(&mut [0; 8], &proof);
        memory.prove().unwrap();
        let other = DirectMemory { proof: [0; 16], ..memory };
        assert!(other.prove().unwrap_err().to_string().contains("another number"));
        // Nobody has this number.
        let nobody = DirectMemory { process: i32::MAX, ..memory };
        assert_eq!(nobody.prove().unwrap_err().kind(), ErrorKind::Unavailable);
    }

    #[test]
    fn a_copy_that_ends_early_says_how_much_was_copied() {
        if let Some(why) = absence() {
            return println!("SKIPPED: copies between processes: {why}");
        }
        let (mut there, mut here) = ([7; 64], [0; 64]);
        let memory = of_this_process(&mut there, &[0; 16]);
        // SAFETY: both arrays are this test's.
        unsafe {
            memory.read(here.as_mut_ptr(), 60, 4).unwrap();
            assert_eq!((here[59], here[60]), (7, 0));
            memory.write(here.as_ptr(), 0, 1 << 60).unwrap();
            let far = DirectMemory { start: 4096, ..memory };
            assert_eq!(far.read(here.as_mut_ptr(), 8, 0), Err(CutShort { done: 0, errno: Errno::FAULT }));
            let wraps = DirectMemory { start: u64::MAX - 2, ..memory };
            assert_eq!(wraps.write(here.as_ptr(), 8, 0).unwrap_err().errno, Errno::FAULT);
        }
    }
}
