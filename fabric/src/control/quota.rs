//! How much a device may have of what all processes share: memory and threads.
//!
//! ```text
//!            control group, where one can be made          otherwise
//! memory     all that is charged to the device             private memory that can be written (RLIMIT_DATA); address space
//! (RLIMIT_AS), for what was written and is not writable any more
//! threads    pids.max                                      RLIMIT_NPROC in a user namespace of its own, or one thread
//! ```
//!
//! RLIMIT_DATA is set in any case. There is no memory but private memory: the filter refuses shared
//! anonymous memory, mappings that grow and huge pages (see `sandbox`).
//!
//! Memory of channels is the controller's and is not charged to devices; the private copies that a
//! device needs for them are added to its limit while it has them.

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde::{Deserialize, Serialize};

use super::groups::{Group, Groups};
use super::protocol::Threads;
use crate::capability::Party;
use crate::device::DeviceRole;
use crate::process::status::figure;

/// The most that one device may have.
///
/// A control group keeps a device to them. Where none can be made ([`Charge::by`] says so), a
/// device that sets out to can have more: 8 MiB for the stack of each thread, and 1 GiB of
/// addresses for its program, for what allocators reserve and for files that its body maps.
/// [`Charge`] tells the sum. What the kernel takes for page tables of mappings far from each other
/// comes on top: half a GiB at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceLimits {
    /// Memory in bytes, beyond what its channels need.
    pub memory_bytes: u64,
    /// Threads, the first one included. Sources, transforms and sinks have one in any case.
    pub threads: u32,
}

impl Default for DeviceLimits {
    /// 256 MiB, 64 threads.
    fn default() -> Self {
        DeviceLimits { memory_bytes: 256 << 20, threads: 64 }
    }
}

/// What a device uses, and what it may use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charge {
    /// Which.
    pub device: u32,
    /// Memory in bytes: what its control group is charged; without a group its private memory,
    /// resident and in swap, and its page tables.
    pub memory_bytes: u64,
    /// The most of it: see [`DeviceLimits`].
    pub memory_limit_bytes: u64,
    /// Threads.
    pub threads: u64,
    /// The most of them.
    pub threads_limit: u32,
    /// What keeps it to these limits, for people.
    pub by: String,
}

/// What bounds one device.
pub(super) struct Quota {
    limits: DeviceLimits,
    group: Option<Group>,
    /// Why there is no group, or not for all.
    why: Option<String>,
    ends: Needs,
}

/// What a device needs for its ends of channels and for memories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Needs {
    /// Bytes of private copies.
    pub(super) private: u64,
    /// Bytes that are mapped.
    pub(super) mapped: u64,
    /// Descriptors that it keeps: sockets.
    pub(super) descriptors: usize,
}

impl Needs {
    pub(super) fn and(self, other: Needs) -> Needs {
        Needs {
            private: self.private.saturating_add(other.private),
            mapped: self.mapped.saturating_add(other.mapped),
            descriptors: self.descriptors.saturating_add(other.descriptors),
        }
    }
}

/// What a thread's stack may take of the limit on private memory.
pub(crate) const STACK_BYTES: u64 = 8 << 20;
/// Addresses of a device without a group, beside those of its ends and those that RLIMIT_DATA
/// counts.
///
/// They bound what is private memory and is not counted: what was written and then protected, and
/// what the first stack was moved to. They bound page tables, too, as far as mappings lie together;
/// far from each other, two pages of tables come with each of the 65530 mappings that the kernel
/// lets a process have. The C library does with fewer arenas where addresses are short.
const ADDRESS_BYTES: u64 = 1 << 30;

impl Quota {
    /// Limits for a device of this role, in a group of its own where one can be made.
    pub(super) fn new(groups: &Groups, party: Party, role: &DeviceRole, limits: DeviceLimits) -> Quota {
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

    /// Takes the process in, before it does anything.
    pub(super) fn take_in(&mut self, pid: u32) {
        if let Some(Err(why)) = self.group.as_ref().map(|group| group.take_in(pid)) {
            (self.group, self.why) = (None, Some(why));
        }
        self.limit_process(pid);
    }

    /// How the device must bound its threads itself.
    pub(super) fn threads(&self) -> Threads {
        match &self.group {
            _ if self.limits.threads == 1 => Threads::One,
            Some(group) if group.has_threads() => Threads::Grouped,
            _ => Threads::Limited(self.limits.threads),
        }
    }

    /// What its ends need has changed.
    pub(super) fn set_needs(&mut self, pid: u32, ends: Needs) {
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

    /// Private memory that it may write, with stacks.
    fn private_bytes(&self) -> u64 {
        let stacks = u64::from(self.limits.threads).saturating_mul(STACK_BYTES);
        self.memory_bytes().saturating_add(stacks)
    }

    fn limit_process(&self, pid: u32) {
        let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
        let limit = |resource, bytes| {
            let limit = Rlimit { current: Some(within_own(resource, bytes)), maximum: getrlimit(resource).maximum };
            // A device that has ended needs none.
            let _ = prlimit(Some(pid), resource, limit);
        };
        limit(Resource::Data, self.private_bytes());
        // A group is charged for all of it.
        if self.group.is_none() {
            limit(Resource::As, self.most_bytes().saturating_add(self.ends.mapped));
        }
    }

    /// Whether the kernel has ended it for its memory.
    pub(super) fn ran_out(&self) -> Option<String> {
        let killed = self.group.as_ref().is_some_and(Group::was_out_of_memory);
        killed.then(|| format!("it needed more than the {} bytes of memory that it may have", self.memory_bytes()))
    }

    pub(super) fn charge(&self, party: Party, pid: u32) -> Charge {
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

    /// Its process has ended and was waited for.
    pub(super) fn close(self, groups: &mut Groups) {
        self.group.into_iter().for_each(|group| groups.remove(group));
    }
}

/// What of it the controller's own hard limit lets it give: devices begin with the same.
fn within_own(resource: Resource, bytes: u64) -> u64 {
    getrlimit(resource).maximum.map_or(bytes, |own| own.min(bytes))
}
