//! The storage pyramid of this machine (the paper's figure 1): latencies and rates of its caches
//! and its memory.

use datapipes_core::Result;
use datapipes_core::memory::Access;
use datapipes_core::topology::Topology;

use super::measure::{Buffers, elapsed_ns, median};
use super::{Calibration, Layer};
use crate::instructions::CopyInstructions;
use crate::kernel;

const LINE_WORDS: usize = 8;
const STEPS: usize = 8_000;
const CHASES: usize = 15;
const READS: usize = 5;
/// Layers up to this size are read completely before each turn.
const MAX_REFRESH_BYTES: usize = 16 << 20;

pub(super) fn layers(
    topology: &Topology,
    buffers: &Buffers,
    calibration: &Calibration,
    instructions: &CopyInstructions,
) -> Result<Vec<Layer>> {
    let core = topology.usable_cores().next().map_or(0, |core| core.index);
    // A shared cache is measured over an eighth of it, because unseen neighbours use it too.
    let caches =
        [("L1", topology.l1_size(core), 2), ("L2", topology.l2_size(core), 2), ("L3", topology.l3_size(core), 8)];
    let mut layers = Vec::new();
    for (name, size_bytes, part) in caches {
        let Some(size) = size_bytes else { continue };
        let over = ((size / part) as usize).max(4096).min(buffers.whole.len());
        // A copy uses two ranges, which must both fit.
        let copied = Some((over as u64 / 2).max(64));
        layers.push(layer(name, Over { size_bytes, bytes: over, copied }, buffers, calibration, instructions)?);
    }
    let over = buffers.whole.len();
    let copied = Some(buffers.source.len() as u64);
    let dram = Over { size_bytes: topology.memory.total_bytes, bytes: over, copied };
    layers.push(layer("DRAM", dram, buffers, calibration, instructions)?);
    Ok(layers)
}

struct Over {
    size_bytes: Option<u64>,
    bytes: usize,
    copied: Option<u64>,
}

fn layer(
    name: &str,
    over: Over,
    buffers: &Buffers,
    calibration: &Calibration,
    instructions: &CopyInstructions,
) -> Result<Layer> {
    let latency_ns = chase(buffers, over.bytes, instructions)?;
    let lease = buffers.whole.range(0, over.bytes / 256 * 256)?.raw_lease(Access::Read)?;
    let times = ((4 << 20) / lease.len()).clamp(1, 1000);
    kernel::read(&lease, instructions);
    let mut rates = Vec::new();
    for _ in 0..READS {
        let ns = elapsed_ns(|| {
            for _ in 0..times {
                kernel::read(&lease, instructions);
            }
            Ok(())
        })?;
        rates.push((lease.len() * times) as f64 / ns * 1e9);
    }
    let best_copy = |len: u64| {
        let of_length = calibration.copies.iter().filter(|cost| cost.len_bytes.ilog2() == len.ilog2());
        of_length.map(|cost| cost.bytes_per_s()).reduce(f64::max)
    };
    Ok(Layer {
        name: name.into(),
        size_bytes: over.size_bytes,
        over_bytes: over.bytes as u64,
        latency_ns,
        read_bytes_per_s: median(rates),
        copy_bytes_per_s: over.copied.and_then(best_copy),
    })
}

/// Follows a chain through every line of the first `bytes` bytes. Each load waits for the one
/// before.
///
/// The chain is the full cycle of a linear congruential generator. It is written in the order of
/// the addresses, which is quick, and read in an order that no prefetcher guesses. A busy neighbour
/// can empty a shared cache during a slow chase, so turns are short, and each begins with a quick
/// read of all of it.
fn chase(buffers: &Buffers, bytes: usize, instructions: &CopyInstructions) -> Result<f64> {
    // The generator has a full cycle for a power of two when the increment is odd and the factor is
    // 1 modulo 4.
    const FACTOR: usize = 0x5851_f42d;
    const INCREMENT: usize = 0x2545_f491;
    let lines = 1usize << (bytes / 64).max(1).ilog2();
    let range = buffers.whole.range(0, lines * 64)?;
    for (line, words) in range.lease_mut()?.as_slice_of::<u64>()?.chunks_exact_mut(LINE_WORDS).enumerate() {
        let next = line.wrapping_mul(FACTOR).wrapping_add(INCREMENT) % lines;
        words[0] = (next * LINE_WORDS) as u64;
    }
    let (mut at, mut shortest) = (0, f64::INFINITY);
    for _ in 0..CHASES {
        if range.len() <= MAX_REFRESH_BYTES {
            kernel::read(&range.raw_lease(Access::Read)?, instructions);
        }
        let lease = range.lease()?;
        let words = lease.as_slice_of::<u64>()?;
        let ns = elapsed_ns(|| {
            for _ in 0..STEPS {
                at = words[at] as usize;
            }
            std::hint::black_box(at);
            Ok(())
        })?;
        // Neighbours can only add to a latency, so the shortest is the layer's own.
        shortest = shortest.min(ns / STEPS as f64);
    }
    Ok(shortest)
}
