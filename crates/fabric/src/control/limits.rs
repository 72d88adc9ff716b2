//! What a device may have of what all processes share, and what it has.

use serde::{Deserialize, Serialize};

/// The limits of one device.
///
/// A control group enforces them. Where none can be made ([`Charge::by`] tells it), a malicious
/// device can have more: 8 MiB for the stack of each thread, and 1 GiB of addresses for its
/// program, for memory that allocators reserve, and for files that its body maps. [`Charge`] shows
/// the sum. The kernel may use another half GiB at most for page tables of scattered mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct DeviceLimits {
    /// Memory in bytes, beyond the needs of its channels.
    pub memory_bytes: u64,
    /// The number of threads, including the first one. Sources, transforms and sinks always have
    /// one.
    pub threads: u32,
}

datapipes_core::setters! {
    DeviceLimits {
        memory_bytes: u64,
        threads: u32,
    }
}

impl Default for DeviceLimits {
    /// Returns 256 MiB and 64 threads.
    fn default() -> Self {
        DeviceLimits { memory_bytes: 256 << 20, threads: 64 }
    }
}

/// The use and the limits of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Charge {
    /// The device.
    pub device: u32,
    /// Memory in bytes: the charge of its control group; or without a group its private memory,
    /// resident and in swap, and its page tables.
    pub memory_bytes: u64,
    /// The limit of the memory in bytes: see [`DeviceLimits`].
    pub memory_limit_bytes: u64,
    /// The number of threads.
    pub threads: u64,
    /// The limit of threads.
    pub threads_limit: u32,
    /// What enforces these limits, for display.
    pub by: String,
}

/// How a device limits its own threads, before it runs foreign code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Threads {
    /// It has one thread and makes no other.
    One,
    /// A control group of the controller limits them.
    Grouped,
    /// A limit on processes in its own user namespace.
    Limited(u32),
}

/// The part of the limit on private memory that a thread's stack may use.
pub(crate) const STACK_BYTES: u64 = 8 << 20;
