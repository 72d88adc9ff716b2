//! Calibration: what this backend's primitives cost on this machine, and which kernel copies which
//! length.
//!
//! A [`Calibration`] is a value. It is assumed from machines known to us, measured in less than 2
//! seconds, read from disk, or changed setting by setting. Opening the library never measures;
//! `dpipe calibrate` does.
//!
//! It does not know what other programs do to the caches. Only the core that it runs on is
//! measured.

mod assumed;
mod handoff;
mod knobs;
mod measure;
mod pyramid;
mod store;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use datapipes_core::topology::Topology;
use serde::{Deserialize, Serialize};

use crate::instructions::CopyInstructions;
use crate::kernel::{self, CLASSES, Copier, Kernel};

/// The shortest and the longest size class, by their highest bit: 64 B and 1 GiB. Other lengths
/// count with the nearest class.
const CLASS_BITS: std::ops::RangeInclusive<u32> = 6..=30;
/// The version of the file format. A file with another number is measured again.
const VERSION: u32 = 3;

/// Costs and choices of kernels; see the module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    version: u32,
    /// The machine it belongs to ([`Topology::fingerprint`]).
    pub fingerprint: String,
    /// Whether it was measured on that machine, rather than assumed.
    pub measured: bool,
    /// How long measuring took, in milliseconds.
    pub took_ms: u64,
    /// The costs of copies, by kernel and length.
    pub copies: Vec<CopyCost>,
    /// The kernel for each class of lengths, in ascending order.
    pub classes: Vec<SizeClass>,
    /// How far ahead non-temporal kernels prefetch, in bytes; 0 means not at all.
    pub prefetch_bytes: usize,
    /// The length from which stores that bypass the caches are better for bytes that another core
    /// reads next, for channels between processes. `None` where they are never better.
    pub handoff_nt_min_bytes: Option<u64>,
    /// The length from which `rep movsb` is better than vector instructions for copies out of
    /// memory that another core has written. `None` where it is never better.
    pub handoff_rep_movsb_min_bytes: Option<u64>,
    /// The costs of operations on lines.
    pub lines: LineCosts,
    /// The caches and the memory, nearest first: the storage pyramid.
    pub layers: Vec<Layer>,
    /// The settings that the user changed, with the given values.
    pub set: BTreeMap<String, String>,
}

/// The cost of one copy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CopyCost {
    /// The kernel.
    pub kernel: Kernel,
    /// The length in bytes.
    pub len_bytes: u64,
    /// Nanoseconds where the same bytes were copied just before.
    pub hot_ns: f64,
    /// Nanoseconds where neither source nor target was in a cache; measured for some lengths only.
    pub cold_ns: Option<f64>,
}

impl CopyCost {
    /// The rate of the hot copy, in bytes per second.
    pub fn bytes_per_s(&self) -> f64 {
        self.len_bytes as f64 / self.hot_ns.max(f64::MIN_POSITIVE) * 1e9
    }
}

/// The kernel for lengths from a power of two to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SizeClass {
    /// The shortest length of the class, in bytes: a power of two.
    pub from_bytes: u64,
    /// The kernel.
    pub kernel: Kernel,
}

/// The costs of operations on cache lines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LineCosts {
    /// Rate at which lines are loaded from memory into a core's cache, in bytes per second.
    #[serde(rename = "load_bytes_per_second", alias = "load_bytes_per_s")]
    pub load_bytes_per_s: f64,
    /// Nanoseconds to write a modified line back and keep it; `None` where CLWB is absent.
    pub clwb_ns: Option<f64>,
    /// Nanoseconds to write a modified line back and drop it; `None` where CLFLUSHOPT is absent.
    pub clflushopt_ns: Option<f64>,
    /// Nanoseconds to demote a modified line; `None` where CLDEMOTE is absent.
    pub cldemote_ns: Option<f64>,
}

/// One layer of the storage pyramid, as a core sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Layer {
    /// The name: "L1", "L2", "L3" or "DRAM".
    pub name: String,
    /// Its size in bytes, if known.
    pub size_bytes: Option<u64>,
    /// The bytes over which it was measured.
    pub over_bytes: u64,
    /// Latency of a dependent load, in nanoseconds.
    pub latency_ns: f64,
    /// Rate of reading by one core, in bytes per second.
    #[serde(rename = "read_bytes_per_second", alias = "read_bytes_per_s")]
    pub read_bytes_per_s: f64,
    /// Rate of the best copy within the layer by one core, in bytes per second.
    #[serde(rename = "copy_bytes_per_second", alias = "copy_bytes_per_s")]
    pub copy_bytes_per_s: Option<f64>,
}

impl Calibration {
    /// Returns the assumed costs of a machine like this one, for use until it is measured.
    pub fn assumed(topology: &Topology) -> Calibration {
        assumed::assumed(topology).rounded()
    }

    /// Measures this machine, which takes less than 2 seconds. Nothing is written to disk: see
    /// [`save`](Self::save).
    ///
    /// # Errors
    /// `OutOfMemory` where the buffers cannot be allocated.
    pub fn measure(topology: &Topology) -> datapipes_core::Result<Calibration> {
        measure::measure(topology).map(Calibration::rounded)
    }

    /// Returns the kernel that the classes give for a length.
    pub fn kernel(&self, len: u64) -> Kernel {
        let after = self.classes.partition_point(|class| class.from_bytes <= len);
        self.classes.get(after.saturating_sub(1)).map_or(Kernel::Memcpy, |class| class.kernel)
    }

    /// Returns the faster of the kernels that leave the bytes in the caches.
    pub fn ordinary_kernel(&self, len: u64) -> Kernel {
        let of_class = self.kernel(len);
        if !of_class.non_temporal() {
            return of_class;
        }
        match (self.copy_ns(Kernel::Memcpy, len), self.copy_ns(Kernel::RepMovsb, len)) {
            (Some(libc), Some(microcode)) if microcode < libc => Kernel::RepMovsb,
            _ => Kernel::Memcpy,
        }
    }

    /// Returns the non-temporal kernel of the longest class that has one, else the widest kernel of
    /// the machine.
    pub fn non_temporal_kernel(&self, instructions: &CopyInstructions) -> Option<Kernel> {
        let chosen = self.classes.iter().rev().map(|class| class.kernel).find(|kernel| kernel.non_temporal());
        let widest = Kernel::ALL.into_iter().rev().filter(|kernel| kernel.non_temporal());
        chosen.into_iter().chain(widest).find(|kernel| kernel.available(instructions).is_ok())
    }

    /// Returns the nanoseconds of a hot copy of `len` bytes, from the nearest known length, if
    /// there is one.
    pub fn copy_ns(&self, kernel: Kernel, len: u64) -> Option<f64> {
        let of_kernel = self.copies.iter().filter(|cost| cost.kernel == kernel);
        let nearest = of_kernel.min_by_key(|cost| cost.len_bytes.max(1).ilog2().abs_diff(len.max(1).ilog2()))?;
        // Below the shortest known length, the time does not shrink. Elsewhere it is proportional
        // to the length.
        let scale = (len as f64 / nearest.len_bytes.max(1) as f64).max(if len < nearest.len_bytes { 1.0 } else { 0.0 });
        Some(nearest.hot_ns * scale)
    }

    /// Rounds to a thousandth of a nanosecond and to whole bytes per second. More digits are noise,
    /// and a short decimal is read from the file exactly as it was written.
    fn rounded(mut self) -> Calibration {
        let ns = |value: &mut f64| *value = ((*value * 1e3).round() / 1e3).max(1e-3);
        let rate = |value: &mut f64| *value = value.round().max(1.0);
        for cost in &mut self.copies {
            ns(&mut cost.hot_ns);
            cost.cold_ns.as_mut().map(ns);
        }
        rate(&mut self.lines.load_bytes_per_s);
        let lines = &mut self.lines;
        [&mut lines.clwb_ns, &mut lines.clflushopt_ns, &mut lines.cldemote_ns].into_iter().flatten().for_each(ns);
        for layer in &mut self.layers {
            ns(&mut layer.latency_ns);
            rate(&mut layer.read_bytes_per_s);
            layer.copy_bytes_per_s.as_mut().map(rate);
        }
        self
    }

    /// Makes the copier that picks by length. `ordinary` allows only stores that leave the lines in
    /// the caches.
    pub(crate) fn by_size(&self, instructions: &CopyInstructions, ordinary: bool) -> Copier {
        let mut kernels = [Kernel::Memcpy; CLASSES];
        for (bits, kernel) in kernels.iter_mut().enumerate() {
            let len = 1 << bits;
            debug_assert_eq!(kernel::class(len), bits);
            *kernel = if ordinary { self.ordinary_kernel(len as u64) } else { self.kernel(len as u64) };
        }
        Copier::by_size(kernels, self.prefetch_bytes, instructions)
    }
}
