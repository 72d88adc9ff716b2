//! A user namespace of a device's own, in which its threads are counted for themselves.
//!
//! This module is unsafe code. It promises that it takes a process apart from others in this only
//! while it has one thread.
#![allow(unsafe_code)]

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Lets this process have no more than so many threads, itself included. It must have one when this
/// is called.
///
/// A limit on processes counts those of a user in a namespace, so in one of its own a device is
/// counted alone.
pub(super) fn limit_threads(most: u32) -> Result<(), Errno> {
    // SAFETY: only the user namespace is taken apart, no table of descriptors and no memory; the
    // caller says that there is one thread, without which the kernel refuses.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER) }?;
    setrlimit(Resource::Nproc, Rlimit { current: Some(most.into()), maximum: Some(most.into()) })
}
