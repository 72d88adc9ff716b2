//! The limits of a device for resources that all processes share: memory and threads.
//!
//! ```text
//!            with a control group         without one
//! memory     all memory of the device     writable private memory (RLIMIT_DATA), and address space
//!                                         (RLIMIT_AS) for memory that is not writable any more
//! threads    pids.max                     RLIMIT_NPROC in its own user namespace, or one thread
//! ```
//!
//! RLIMIT_DATA is set in any case. Devices have only private memory: the filter refuses shared
//! anonymous memory, mappings that grow, and huge pages (see `sandbox`).
//!
//! The memory of channels belongs to the controller and is not charged to devices. The private
//! copies that a device needs for its channels are added to its limit while it has them.

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use super::groups::{Group, Groups};
use crate::capability::Party;
use crate::control::limits::{Charge, DeviceLimits, STACK_BYTES, Threads};
use crate::device::DeviceRole;
use crate::process::status::figure;

/// The limits of one device, and what enforces them.
pub(crate) struct Quota {
    limits: DeviceLimits,
    group: Option<Group>,
    /// The reason why there is no group, or not for all limits.
    why: Option<String>,
    ends: Needs,
}

/// The needs of a device for its ends of channels and its memories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Bytes of private copies.
    pub(crate) private: u64,
    /// Bytes that are mapped.
    pub(crate) mapped: u64,
    /// The number of descriptors that it keeps, for sockets.
    pub(crate) descriptors: usize,
}

impl Needs {
    pub(crate) fn and(self, other: Needs) -> Needs {
        Needs {
            private: self.private.saturating_add(other.private),
            mapped: self.mapped.saturating_add(other.mapped),
            descriptors: self.descriptors.saturating_add(other.descriptors),
        }
    }
}

/// The address space of a device without a group, beside that of its ends and that which
/// RLIMIT_DATA counts.
///
/// It limits private memory that is not counted: memory that was written and then protected, and
/// the place to which the first stack was moved. It also limits page tables if mappings lie close
/// together. Scattered mappings need two pages of tables for each of the 65530 mappings that the
/// kernel allows a process. The C library uses fewer arenas if the address space is small.
const ADDRESS_BYTES: u64 = 1 << 30;

impl Quota {
    /// Makes limits for a device of this role, with its own group if one can be made.
    pub(crate) fn new(groups: &Groups, party: Party, role: &DeviceRole, limits: DeviceLimits) -> Quota {
        let threads = match role {
            DeviceRole::Source { .. } | DeviceRole::Transform { .. } | DeviceRole::Sink { .. } => 1,
            _ => limits.threads.max(1),
        };
        let limits = DeviceLimits { threads, ..limits };
        let (group, why) = match groups.make(&party.0.to_string(), &limits) {
            Ok(group) => (Some(group), None),
            Err(why) => (None, Some(why)),
        };
        Quota { limits, group, why, ends: Needs::default() }
    }

    /// Applies the limits to the process, before it does anything.
    pub(crate) fn take_in(&mut self, pid: u32) {
        if let Some(Err(why)) = self.group.as_ref().map(|group| group.take_in(pid)) {
            (self.group, self.why) = (None, Some(why));
        }
        self.limit_process(pid);
    }

    /// How the device must limit its own threads.
    pub(crate) fn threads(&self) -> Threads {
        match &self.group {
            _ if self.limits.threads == 1 => Threads::One,
            Some(group) if group.has_threads() => Threads::Grouped,
            _ => Threads::Limited(self.limits.threads),
        }
    }

    /// Applies changed needs of its ends.
    pub(crate) fn set_needs(&mut self, pid: u32, ends: Needs) {
        if self.ends != ends {
            self.ends = ends;
            if let Some(group) = &self.group {
                group.set_memory(self.memory_bytes());
            }
            self.limit_process(pid);
        }
    }

    fn memory_bytes(&self) -> u64 {
        self.limits.memory_bytes.saturating_add(self.ends.private)
    }

    /// The most memory that it can have as a process.
    fn most_bytes(&self) -> u64 {
        self.private_bytes().saturating_add(ADDRESS_BYTES)
    }

    /// The private memory that it may write, including stacks.
    fn private_bytes(&self) -> u64 {
        let stacks = u64::from(self.limits.threads).saturating_mul(STACK_BYTES);
        self.memory_bytes().saturating_add(stacks)
    }

    fn limit_process(&self, pid: u32) {
        let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
        let limit = |resource, bytes| {
            let limit = Rlimit { current: Some(within_own(resource, bytes)), maximum: getrlimit(resource).maximum };
            // A device that has ended needs no limit.
            let _ = prlimit(Some(pid), resource, limit);
        };
        limit(Resource::Data, self.private_bytes());
        // A group is charged for all memory.
        if self.group.is_none() {
            limit(Resource::As, self.most_bytes().saturating_add(self.ends.mapped));
        }
    }

    /// Whether the kernel has ended it because of its memory, with a text.
    pub(crate) fn ran_out(&self) -> Option<String> {
        let killed = self.group.as_ref().is_some_and(Group::was_out_of_memory);
        killed.then(|| format!("it needed more than the {} bytes of memory that it may have", self.memory_bytes()))
    }

    pub(crate) fn charge(&self, party: Party, pid: u32) -> Charge {
        let status = std::fs::read(format!("/proc/{pid}/status")).unwrap_or_default();
        let bytes = |name| figure(&status, name).unwrap_or(0) << 10;
        let in_group = self.group.as_ref().and_then(Group::memory_bytes);
        Charge {
            device: party.0,
            memory_bytes: in_group.unwrap_or_else(|| bytes("RssAnon") + bytes("VmSwap") + bytes("VmPTE")),
            memory_limit_bytes: if self.group.is_some() { self.memory_bytes() } else { self.most_bytes() },
            threads: figure(&status, "Threads").unwrap_or(0),
            threads_limit: self.limits.threads,
            by: match (&self.group, &self.why) {
                (Some(group), _) => group.to_string(),
                (None, why) => format!("limits of the process ({})", why.as_deref().unwrap_or("no control group")),
            },
        }
    }

    /// Releases the group after its process has ended and was waited for.
    pub(crate) fn close(self, groups: &mut Groups) {
        self.group.into_iter().for_each(|group| groups.remove(group));
    }
}

/// The part of a limit that the controller's own hard limit allows, because devices inherit it.
fn within_own(resource: Resource, bytes: u64) -> u64 {
    getrlimit(resource).maximum.map_or(bytes, |own| own.min(bytes))
}
