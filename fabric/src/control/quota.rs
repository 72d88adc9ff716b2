//! How much a device may have of what all processes share: memory and threads.
//!
//! ```text
//!            control group, where one can be made          otherwise
//! memory     all that is charged to the device             private memory (RLIMIT_DATA), which is limited in any case;
//!                                                          there is no other: the filter refuses shared anonymous memory
//! threads    pids.max                                      RLIMIT_NPROC in a user namespace of its own, or one thread
//! ```
//!
//! Memory of channels is the controller's and is not charged to devices; the private copies that a device needs for them are
//! added to its limit while it has them.

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde::{Deserialize, Serialize};

use super::groups::{Group, Groups};
use super::protocol::Threads;
use crate::capability::Party;
use crate::device::Role;

/// The most that one device may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Memory in bytes, beyond what its channels need.
    pub memory_bytes: u64,
    /// Threads, the first one included. Sources, transforms and sinks have one in any case.
    pub threads: u32,
}

impl Default for Limits {
    /// 256 MiB, 64 threads.
    fn default() -> Self {
        Limits { memory_bytes: 256 << 20, threads: 64 }
    }
}

/// What a device uses, and what it may use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charge {
    /// Which.
    pub device: u32,
    /// Memory in bytes: what its control group is charged, or its private memory.
    pub memory_bytes: u64,
    /// The most of it.
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
    limits: Limits,
    group: Option<Group>,
    /// Why there is no group, or not for all.
    why: Option<String>,
    /// Bytes of private copies for its channels.
    channel_bytes: u64,
}

/// What a thread's stack may take of the limit on private memory.
const STACK_BYTES: u64 = 8 << 20;

impl Quota {
    /// Limits for a device of this role, in a group of its own where one can be made.
    pub(super) fn new(groups: &Groups, party: Party, role: &Role, limits: Limits) -> Quota {
        let threads = match role {
            Role::Source { .. } | Role::Transform { .. } | Role::Sink { .. } => 1,
            _ => limits.threads.max(1),
        };
        let limits = Limits { threads, ..limits };
        let (group, why) = match groups.make(&party.0.to_string(), &limits) {
            Ok(group) => (Some(group), None),
            Err(why) => (None, Some(why)),
        };
        Quota { limits, group, why, channel_bytes: 0 }
    }

    /// Takes the process in, before it does anything.
    pub(super) fn take_in(&mut self, pid: u32) {
        if let Some(Err(why)) = self.group.as_ref().map(|group| group.take_in(pid)) {
            (self.group, self.why) = (None, Some(why));
        }
        self.limit_data(pid);
    }

    /// How the device must bound its threads itself.
    pub(super) fn threads(&self) -> Threads {
        match &self.group {
            _ if self.limits.threads == 1 => Threads::One,
            Some(group) if group.has_threads() => Threads::Grouped,
            _ => Threads::Limited(self.limits.threads),
        }
    }

    /// What its channels need has changed.
    pub(super) fn set_channel_bytes(&mut self, pid: u32, bytes: u64) {
        if self.channel_bytes != bytes {
            self.channel_bytes = bytes;
            if let Some(group) = &self.group {
                group.set_memory(self.memory_bytes());
            }
            self.limit_data(pid);
        }
    }

    fn memory_bytes(&self) -> u64 {
        self.limits.memory_bytes.saturating_add(self.channel_bytes)
    }

    fn limit_data(&self, pid: u32) {
        let stacks = u64::from(self.limits.threads).saturating_mul(STACK_BYTES);
        let limit = Rlimit { current: Some(self.memory_bytes().saturating_add(stacks)), maximum: None };
        // A device that has ended needs none.
        let _ = i32::try_from(pid).ok().and_then(Pid::from_raw).map(|pid| prlimit(Some(pid), Resource::Data, limit));
    }

    /// Whether the kernel has ended it for its memory.
    pub(super) fn ran_out(&self) -> Option<String> {
        let killed = self.group.as_ref().is_some_and(Group::was_out_of_memory);
        killed.then(|| format!("it needed more than the {} bytes of memory that it may have", self.memory_bytes()))
    }

    pub(super) fn charge(&self, party: Party, pid: u32) -> Charge {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let figure = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<u64>().ok())
        };
        let in_group = self.group.as_ref().and_then(Group::memory_bytes);
        Charge {
            device: party.0,
            memory_bytes: in_group.unwrap_or_else(|| figure("RssAnon").unwrap_or(0) << 10),
            memory_limit_bytes: self.memory_bytes(),
            threads: figure("Threads").unwrap_or(0),
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
