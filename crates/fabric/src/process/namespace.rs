//! A user namespace for a device, in which its threads are counted separately.
//!
//! This module has unsafe code. It unshares the namespace only while the process has one thread.
#![allow(unsafe_code)]

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Limits this process to `most` threads, itself included. It must have one thread when this is
/// called.
///
/// A limit on processes counts those of a user in a namespace, so a device in its own namespace is
/// counted alone.
pub(super) fn limit_threads(most: u32) -> Result<(), Errno> {
    // SAFETY: only the user namespace is unshared, not descriptors or memory. The caller promises
    // that there is one thread, and otherwise the kernel refuses.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER) }?;
    setrlimit(Resource::Nproc, Rlimit { current: Some(most.into()), maximum: Some(most.into()) })
}
