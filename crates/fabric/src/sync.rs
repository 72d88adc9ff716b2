//! The types that the two sides of a ring share: the standard library's, or those of a model in
//! which every interleaving can be chosen (`--cfg shuttle`, `cargo xtask shuttle`).

#[cfg(not(shuttle))]
pub(crate) use {datapipes_core::locks::Mutex, std::sync::atomic};

#[cfg(shuttle)]
pub(crate) use {datapipes_core::locks::model::Mutex, shuttle::sync::atomic};

pub(crate) use std::sync::Arc;

/// The monotonic clock in nanoseconds, which all processes of a machine share.
pub(crate) fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}
