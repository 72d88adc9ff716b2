//! The portal of a device, by its character device. It has never run on hardware.
//!
//! The file is mapped, and descriptors are stored to the portal by MOVDIR64B or ENQCMD. Where the
//! kernel refuses the mapping, they are written to the file: since 6.9.1, engines with an erratum
//! may be mapped only with `CAP_SYS_RAWIO` (INTEL-SA-01084), and `write(2)` takes descriptors
//! instead (`drivers/dma/idxd/cdev.c`). By `write`, the first version of the engine takes no
//! batches.
//!
//! This module's unsafe code promises: the page is mapped from opening to `stop`, which unmaps it
//! and closes the file. The last close waits in the kernel for all descriptors in flight
//! (`idxd_file_dev_release`). But a child made by `fork` may have the file open too, so `stop` does
//! not rely on that: it is sure only where the driver has disabled the queue or the device, which
//! ends their descriptors. The mapping is not copied to a child (`VM_DONTCOPY`).
#![allow(unsafe_code)]

use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use datapipes_core::process::page_size;
use datapipes_core::topology::Topology;
use datapipes_core::{Error, Result};

use super::instructions::{Enqcmd, Movdir64b};
use super::{Portal, Submission, SubmitInstructions};
use crate::descriptor::DescriptorBytes;
use crate::discovery::{QueueMode, WorkQueueFacts};

/// How often ENQCMD is tried in a row before the queue counts as full.
const MAX_ENQUEUE_TRIES: u32 = 64;

/// The mapped page of a portal.
struct MappedPortal {
    start: NonNull<u8>,
    /// The next 64 bytes to store to. Stores to different addresses need not wait for each other.
    next: usize,
}

// SAFETY: the page belongs to this value alone, and any thread may store to it.
unsafe impl Send for MappedPortal {}

impl MappedPortal {
    fn next(&mut self) -> *mut u8 {
        let at = self.next;
        self.next = (at + 64) % page_size();
        // SAFETY: `at` is below the length of the page, which is mapped while the value lives.
        unsafe { self.start.as_ptr().add(at) }
    }
}

impl Drop for MappedPortal {
    fn drop(&mut self) {
        // SAFETY: the page was mapped when this value was made, and nothing else refers to it.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), page_size()) };
    }
}

/// How descriptors are handed over.
enum Way {
    Store(MappedPortal, Movdir64b),
    Enqueue(MappedPortal, Enqcmd),
    Write,
}

struct OpenPortal {
    // It is unmapped before the file is closed.
    way: Way,
    file: OwnedFd,
}

/// The portal of a work queue of the kernel's driver.
pub struct DevicePortal {
    open: Option<OpenPortal>,
    facts: WorkQueueFacts,
}

impl DevicePortal {
    /// Opens the queue's character device and maps its portal, or writes where that is refused.
    ///
    /// # Errors
    /// Errors of opening: `Busy` where another process has a dedicated queue.
    pub fn open(facts: &WorkQueueFacts, topology: &Topology) -> Result<DevicePortal> {
        let instructions = SubmitInstructions::detect(&topology.cpu);
        let shown = || facts.path.display().to_string();
        let file = rustix::fs::open(&facts.path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| Error::os("open", e.raw_os_error(), shown()))?;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let mapped = unsafe {
            let (access, flags) = (ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
            mmap(std::ptr::null_mut(), page_size(), access, flags, &file, 0)
        };
        let mapped = mapped.ok().and_then(|page| NonNull::new(page.cast::<u8>()));
        let mapped = mapped.map(|start| MappedPortal { start, next: 0 });
        let way = match (mapped, facts.mode) {
            (Some(page), QueueMode::Dedicated) => {
                instructions.movdir64b().map_or(Way::Write, |store| Way::Store(page, store))
            }
            (Some(page), QueueMode::Shared) => {
                instructions.enqcmd().map_or(Way::Write, |enqueue| Way::Enqueue(page, enqueue))
            }
            (None, _) => Way::Write,
        };
        let open = Some(OpenPortal { way, file });
        Ok(DevicePortal { open, facts: facts.clone() })
    }
}

// SAFETY: a device touches memory only for descriptors that it has and did not answer, as the
// architecture specification says, and it has none when the driver has disabled it. `stop` returns
// without an error only then.
unsafe impl Portal for DevicePortal {
    unsafe fn submit(&mut self, descriptor: &DescriptorBytes) -> Submission {
        let Some(OpenPortal { way, file }) = &mut self.open else { return Submission::Lost("it was closed".into()) };
        match way {
            Way::Store(page, movdir64b) => {
                // SAFETY: `next` returns 64 bytes of the portal, and the caller answers for the
                // descriptor.
                unsafe { movdir64b.store(page.next(), &descriptor.0) };
                Submission::Accepted
            }
            Way::Enqueue(page, enqcmd) => {
                for _ in 0..MAX_ENQUEUE_TRIES {
                    // SAFETY: as above.
                    if unsafe { enqcmd.store(page.next(), &descriptor.0) } {
                        return Submission::Accepted;
                    }
                    std::hint::spin_loop();
                }
                Submission::Full
            }
            Way::Write => loop {
                match rustix::io::write(&*file, &descriptor.0) {
                    Ok(64) => return Submission::Accepted,
                    Ok(written) => return Submission::Lost(format!("it took {written} of 64 bytes")),
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => return Submission::Full,
                    Err(Errno::INVAL) => return Submission::Lost("its driver takes no descriptors by write".into()),
                    Err(e) => return Submission::Lost(format!("write: {e}")),
                }
            },
        }
    }

    fn check(&mut self) -> Result<(), String> {
        let Some(OpenPortal { file, .. }) = &self.open else { return Err("it was closed".into()) };
        self.facts.check_enabled()?;
        let mut fds = [PollFd::new(file, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        match poll(&mut fds, Some(&now)) {
            Ok(n) if n > 0 => Err(format!("its driver reports an error of {}", self.facts.device)),
            _ => Ok(()),
        }
    }

    fn takes_batches(&self) -> bool {
        let direct = self.open.as_ref().is_some_and(|open| !matches!(open.way, Way::Write));
        direct && self.facts.max_batch > 1
    }

    fn stop(&mut self) -> Result<(), String> {
        // The mapping holds the file open, so both go.
        self.open = None;
        match self.facts.check_enabled() {
            Err(_) => Ok(()),
            Ok(()) => Err("it is still enabled, and descriptors that it did not answer may be in flight".into()),
        }
    }
}
