//! What a mover moves between, and what a job needs of it.

use std::sync::Arc;

use datapipes_core::backend::Job;
use datapipes_core::memory::{Access, MemoryRange, RawLease};
use datapipes_core::{Error, ErrorKind, Result};

use crate::driver::Driver;
use crate::driver::device::Device;
use crate::hbm::{Hbm, HbmHold};
use crate::registered::{HostReach, RegisteredRegion};

/// What a mover moves between.
pub(crate) enum GpuPath {
    Upload(HostSide, Hbm),
    Download(Hbm, HostSide),
    Copy(Hbm, Hbm),
    Peer(Hbm, Hbm),
}

/// Memory of this process.
pub(crate) struct HostSide {
    /// `None` where it must not be registered.
    registered: Option<Arc<RegisteredRegion>>,
}

impl HostSide {
    pub(crate) fn of(range: &MemoryRange, device: &'static Device) -> HostSide {
        let registered = may_be_registered(range).then(|| RegisteredRegion::of(range.region(), device));
        HostSide { registered }
    }

    /// How a copy engine reaches the leased bytes now. Of memory whose pages may go the driver must
    /// not touch any: that would end the process.
    pub(super) fn reach(&self, driver: &Driver, lease: &RawLease, may_be_plain: bool) -> HostReach {
        let (_, at) = lease.place();
        match &self.registered {
            Some(region) => region.reach(driver, (at, lease.len()), may_be_plain),
            None => HostReach::Staged,
        }
    }
}

/// Whether memory may be registered: a file or others may take pages from a mapping.
pub(crate) fn may_be_registered(range: &MemoryRange) -> bool {
    !range.region().maps_file() && !range.region().is_shared()
}

impl GpuPath {
    /// The device whose engines copy.
    pub(super) fn device(&self) -> &'static Device {
        match self {
            GpuPath::Upload(_, hbm) | GpuPath::Download(hbm, _) | GpuPath::Copy(hbm, _) | GpuPath::Peer(hbm, _) => {
                hbm.on()
            }
        }
    }

    /// Leases what a job needs of devices' memory.
    pub(super) fn holds(&self, job: &Job) -> Result<[Option<HbmHold>; 2]> {
        let span = &job.span;
        let source = |hbm: &Hbm| hbm.hold(span.source, span.len, Access::Read, "transfer");
        let target = |hbm: &Hbm| hbm.hold(span.target, span.len, Access::Write, "transfer");
        Ok(match self {
            GpuPath::Upload(_, to) => [None, Some(target(to)?)],
            GpuPath::Download(from, _) => [Some(source(from)?), None],
            GpuPath::Copy(from, to) | GpuPath::Peer(from, to) => {
                let (a, b) = (from.offset_in_memory(span.source), to.offset_in_memory(span.target));
                if from.is_of_same_memory(to) && a < b.saturating_add(span.len) && b < a.saturating_add(span.len) {
                    let context = format!("{span:?} overlaps itself in {}", from.name());
                    return Err(Error::new(ErrorKind::InvalidInput, "transfer", context)
                        .with_advice("move no more bytes than lie between the two offsets"));
                }
                [Some(source(from)?), Some(target(to)?)]
            }
        })
    }

    /// Why a job does not fit, if so.
    pub(super) fn refusal(&self, job: &Job) -> Option<Error> {
        let (lease, access) = match self {
            GpuPath::Upload(..) => (&job.source, Access::Read),
            GpuPath::Download(..) => (&job.target, Access::Write),
            GpuPath::Copy(..) | GpuPath::Peer(..) => return None,
        };
        let fits = |lease: &RawLease| {
            lease.len() as u64 == job.span.len && (access == Access::Read || lease.access() == Access::Write)
        };
        if lease.as_ref().is_some_and(fits) {
            return None;
        }
        let why = "a job whose lease is missing or does not fit its span";
        Some(Error::new(ErrorKind::InvalidInput, "transfer", why))
    }
}
