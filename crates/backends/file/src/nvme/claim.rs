//! Claims of namespaces that are written.
//!
//! Commands go past the kernel's block layer, which would refuse to write to a mounted device. So a
//! namespace that is written is opened with `O_EXCL` first and stays open: the kernel refuses that
//! where the namespace or a part of it is mounted, or used by a volume manager or for swapping, and
//! refuses those uses while it is open. It is opened for reading, since the end of an opening for
//! writing would have the system look at the device's contents again.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Weak};

use datapipes_core::locator::FilePlace;
use datapipes_core::locks::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// The claims of the pipes of a backend. Pipes to one namespace share a claim, for the kernel gives
/// no second one.
#[derive(Default)]
pub(crate) struct Claims(Mutex<BTreeMap<u64, Weak<OwnedFd>>>);

impl Claims {
    /// Claims a block device for as long as the result lives, or says why that is refused.
    pub(crate) fn take(&self, file: &FilePlace) -> Result<Arc<OwnedFd>, String> {
        let mut claims = self.0.lock();
        claims.retain(|_, claim| claim.strong_count() > 0);
        if let Some(claim) = claims.get(&file.device()).and_then(Weak::upgrade) {
            return Ok(claim);
        }
        // By descriptor: the path may name another device by now.
        let path = format!("/proc/self/fd/{}", file.cached_fd().as_raw_fd());
        let opened = rustix::fs::open(path, OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty());
        let claim = Arc::new(opened.map_err(|e| match e {
            Errno::BUSY => "it is mounted or otherwise in use, and must not be written past the kernel".to_owned(),
            e => format!("it cannot be claimed for writing: {e}"),
        })?);
        claims.insert(file.device(), Arc::downgrade(&claim));
        Ok(claim)
    }
}
