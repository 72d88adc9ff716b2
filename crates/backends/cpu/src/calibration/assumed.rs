//! Figures for a machine that was not measured. They come from a Zen 4 virtual machine.

use std::collections::BTreeMap;

use datapipes_core::topology::Topology;

use super::{CLASS_BITS, Calibration, CopyCost, Layer, LineCosts, SizeClass, VERSION};
use crate::instructions::CopyInstructions;
use crate::kernel::Kernel;

/// Gigabytes per second of hot copies of 4 KiB, 64 KiB, 1 MiB, 16 MiB and 256 MiB.
const RATES: [(Kernel, [f64; 5]); 4] = [
    (Kernel::Memcpy, [99.0, 58.0, 49.0, 29.0, 14.0]),
    (Kernel::RepMovsb, [100.0, 58.0, 44.0, 30.0, 20.0]),
    (Kernel::NtAvx2, [18.0, 28.0, 29.0, 28.0, 21.0]),
    (Kernel::NtAvx512, [18.0, 28.0, 29.0, 28.0, 22.0]),
];
const LENGTHS: [u64; 5] = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20];
/// Nanoseconds of a hot copy of 64 bytes.
const SHORT_NS: [f64; 4] = [3.0, 8.0, 20.0, 20.0];

pub(super) fn assumed(topology: &Topology) -> Calibration {
    let instructions = CopyInstructions::detect(&topology.cpu);
    let mut copies = Vec::new();
    for ((kernel, rates), short_ns) in RATES.into_iter().zip(SHORT_NS) {
        if kernel.available(&instructions).is_err() {
            continue;
        }
        let short = (64, short_ns);
        let long = LENGTHS.into_iter().zip(rates).map(|(len, rate)| (len, len as f64 / rate));
        copies.extend(std::iter::once(short).chain(long).map(|(len_bytes, hot_ns)| CopyCost {
            kernel,
            len_bytes,
            hot_ns,
            cold_ns: None,
        }));
    }
    let core = topology.usable_cores().next().map_or(0, |core| core.index);
    let l3 = topology.l3_size(core).or(topology.l2_size(core)).unwrap_or(32 << 20);
    LineCosts::default_for(&instructions).into_calibration(topology, copies, classes(&instructions, l3))
}

/// Takes the C library up to half of the last cache, then `rep movsb` where it is fast, and stores
/// that bypass the caches from twice the size of the last cache.
fn classes(instructions: &CopyInstructions, last_cache_bytes: u64) -> Vec<SizeClass> {
    let there = |kernel: Kernel| kernel.available(instructions).is_ok();
    let microcode = instructions.rep_movsb().is_ok_and(|found| found.contains("ERMS"));
    let long = [Kernel::NtAvx512, Kernel::NtAvx2].into_iter().find(|kernel| there(*kernel));
    CLASS_BITS
        .map(|bits| 1u64 << bits)
        .map(|from_bytes| SizeClass {
            from_bytes,
            kernel: match (from_bytes, long) {
                (len, Some(long)) if len >= last_cache_bytes * 2 => long,
                (len, _) if len >= last_cache_bytes / 2 && microcode => Kernel::RepMovsb,
                _ => Kernel::Memcpy,
            },
        })
        .collect()
}

impl LineCosts {
    fn default_for(instructions: &CopyInstructions) -> LineCosts {
        LineCosts {
            load_bytes_per_s: 15e9,
            clwb_ns: instructions.clwb().is_ok().then_some(8.0),
            clflushopt_ns: instructions.clflushopt().is_ok().then_some(8.0),
            cldemote_ns: instructions.cldemote().is_ok().then_some(4.0),
        }
    }

    fn into_calibration(self, topology: &Topology, copies: Vec<CopyCost>, classes: Vec<SizeClass>) -> Calibration {
        Calibration {
            version: VERSION,
            fingerprint: topology.fingerprint(),
            measured: false,
            took_ms: 0,
            copies,
            classes,
            prefetch_bytes: 512,
            // On one of the processors known to us they are faster; on the other they are slower by
            // a factor of two to four.
            handoff_nt_min_bytes: None,
            // Likewise: on the one `rep movsb` takes twice as long from another core's lines.
            handoff_rep_movsb_min_bytes: None,
            lines: self,
            layers: layers(topology),
            set: BTreeMap::new(),
        }
    }
}

fn layers(topology: &Topology) -> Vec<Layer> {
    let core = topology.usable_cores().next().map_or(0, |core| core.index);
    let layer = |name: &str, size_bytes: Option<u64>, latency_ns: f64, read_bytes_per_s: f64| Layer {
        name: name.into(),
        size_bytes,
        over_bytes: 0,
        latency_ns,
        read_bytes_per_s,
        copy_bytes_per_s: None,
    };
    let mut layers = Vec::new();
    let caches = [
        ("L1", topology.l1_size(core), 1.2, 200e9),
        ("L2", topology.l2_size(core), 4.0, 90e9),
        ("L3", topology.l3_size(core), 14.0, 50e9),
    ];
    for (name, size, latency_ns, rate) in caches {
        if size.is_some() {
            layers.push(layer(name, size, latency_ns, rate));
        }
    }
    layers.push(layer("DRAM", None, 110.0, 20e9));
    layers
}
