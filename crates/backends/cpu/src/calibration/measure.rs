//! Measuring which kernel copies which length best on this machine, and what operations on lines
//! cost.
//!
//! ```text
//! for each length: for each turn: for each kernel: time one batch
//!     (kernels take turns, so a noisy neighbour or a change of clock affects all of them)
//! cost = median over the turns
//! ```

use std::time::Instant;

use datapipes_core::Result;
use datapipes_core::memory::{Access, MapOptions, MemoryRange, Region};
use datapipes_core::topology::Topology;

use super::{CLASS_BITS, Calibration, CopyCost, LineCosts, SizeClass, VERSION, handoff, pyramid};
use crate::instructions::CopyInstructions;
use crate::kernel::{self, Copier, Kernel, LineInstruction, LineOp};

/// The longest copy that is measured, and the shortest that suffices where memory is scarce.
const MAX_BYTES: u64 = 64 << 20;
const MIN_BYTES: u64 = 1 << 20;
const TURNS: usize = 9;
/// The duration of a batch of short copies, approximately.
const BATCH_NS: f64 = 25_000.0;
const COLD_LENGTHS: [usize; 4] = [4 << 10, 64 << 10, 1 << 20, 16 << 20];
/// Longer copies find none of their own bytes in a cache, so they need no copy before the timed
/// one.
const MAX_HOT_BYTES: usize = 32 << 20;
/// The bytes that cold copies walk through.
const COLD_WALK: usize = 32 << 20;
/// Copies shorter than this stay in the caches in any case, where their next reader finds them.
/// (Measured alone, short non-temporal copies also vary by a factor of 30.)
const MIN_NON_TEMPORAL_BYTES: u64 = 256 << 10;
/// A kernel replaces that of the class before if it takes less than this share of its time.
const GAIN: f64 = 0.98;
const PREFETCH_DISTANCES: [usize; 6] = [0, 256, 512, 1024, 2048, 4096];

/// Two buffers of equal length, prefaulted, on huge pages if there are any.
pub(super) struct Buffers {
    pub(super) whole: MemoryRange,
    pub(super) source: MemoryRange,
    pub(super) target: MemoryRange,
}

impl Buffers {
    fn new(topology: &Topology) -> Result<Buffers> {
        let usable = topology.memory.usable_bytes().unwrap_or(MAX_BYTES * 16);
        let len = MAX_BYTES.min((usable / 16).next_power_of_two() / 2).max(MIN_BYTES) as usize;
        let whole = Region::map(2 * len, MapOptions::default())?.range(0, 2 * len)?;
        whole.lease_mut()?.fill(0x5a);
        Ok(Buffers { source: whole.range(0, len)?, target: whole.range(len, len)?, whole })
    }
}

pub(super) fn measure(topology: &Topology) -> Result<Calibration> {
    let started = Instant::now();
    let instructions = CopyInstructions::detect(&topology.cpu);
    let buffers = Buffers::new(topology)?;
    let prefetch_bytes = prefetch_distance(&buffers, &instructions)?;
    let copiers: Vec<(Kernel, Copier)> = Kernel::ALL
        .into_iter()
        .filter_map(|kernel| Some((kernel, Copier::fixed(kernel, prefetch_bytes, &instructions)?)))
        .collect();
    let mut copies = hot_copies(&buffers, &copiers)?;
    cold_copies(&buffers, &copiers, &mut copies)?;
    let lines = line_costs(&buffers, &instructions)?;
    let handoff = handoff::measure(topology, &buffers, &copiers, &instructions)?;
    let mut calibration = Calibration {
        version: VERSION,
        fingerprint: topology.fingerprint(),
        measured: true,
        took_ms: 0,
        classes: classes(&copies),
        copies,
        prefetch_bytes,
        handoff_nt_min_bytes: handoff.nt_min_bytes,
        handoff_rep_movsb_min_bytes: handoff.rep_movsb_min_bytes,
        lines,
        layers: Vec::new(),
        set: std::collections::BTreeMap::new(),
    };
    calibration.layers = pyramid::layers(topology, &buffers, &calibration, &instructions)?;
    calibration.took_ms = started.elapsed().as_millis() as u64;
    Ok(calibration)
}

/// Returns the fastest kernel of each class, if it gains enough over the kernel of the class
/// before, so that ties do not alternate. Classes beyond the measured lengths take the kernel of
/// the longest.
fn classes(copies: &[CopyCost]) -> Vec<SizeClass> {
    let mut last = Kernel::Memcpy;
    CLASS_BITS
        .map(|bits| {
            let from_bytes = 1u64 << bits;
            let eligible = |cost: &&CopyCost| {
                cost.len_bytes == from_bytes && (from_bytes >= MIN_NON_TEMPORAL_BYTES || !cost.kernel.non_temporal())
            };
            let best = copies.iter().filter(eligible).min_by(|a, b| a.hot_ns.total_cmp(&b.hot_ns));
            let present = copies.iter().filter(eligible).find(|cost| cost.kernel == last);
            match (best, present) {
                (Some(best), Some(present)) if best.hot_ns < present.hot_ns * GAIN => last = best.kernel,
                (Some(best), None) => last = best.kernel,
                _ => {}
            }
            SizeClass { from_bytes, kernel: last }
        })
        .collect()
}

fn hot_copies(buffers: &Buffers, copiers: &[(Kernel, Copier)]) -> Result<Vec<CopyCost>> {
    let mut copies = Vec::new();
    let longest = buffers.source.len().ilog2();
    for bits in *CLASS_BITS.start()..=longest {
        let len = 1usize << bits;
        let all: Vec<&Copier> = copiers.iter().map(|(_, copier)| copier).collect();
        let times = hot_times(buffers, &all, len, TURNS)?;
        let costs = copiers.iter().zip(times).map(|((kernel, _), hot_ns)| CopyCost {
            kernel: *kernel,
            len_bytes: len as u64,
            hot_ns,
            cold_ns: None,
        });
        copies.extend(costs);
    }
    Ok(copies)
}

/// Returns the median time of one copy of `len` bytes by each copier. The copiers take turns.
fn hot_times(buffers: &Buffers, copiers: &[&Copier], len: usize, turns: usize) -> Result<Vec<f64>> {
    let (source, target) = ((&buffers.source, 0), (&buffers.target, 0));
    let mut batches = Vec::new();
    for copier in copiers {
        copier.repeat(source, target, len, 1)?;
        let once = elapsed_ns(|| copier.repeat(source, target, len, 4))? / 4.0;
        batches.push((BATCH_NS / once.max(1.0)).clamp(1.0, 10_000.0) as u32);
    }
    let mut times = vec![Vec::with_capacity(turns); copiers.len()];
    for _ in 0..turns {
        for ((copier, batch), times) in copiers.iter().zip(&batches).zip(&mut times) {
            // The first copy finds the caches as another kernel left them, so it is not timed.
            if len <= MAX_HOT_BYTES {
                copier.repeat(source, target, len, 1)?;
            }
            times.push(elapsed_ns(|| copier.repeat(source, target, len, *batch))? / f64::from(*batch));
        }
    }
    Ok(times.into_iter().map(median).collect())
}

/// Measures copies that walk through more memory than the caches hold.
fn cold_copies(buffers: &Buffers, copiers: &[(Kernel, Copier)], costs: &mut [CopyCost]) -> Result<()> {
    let whole = buffers.source.len();
    for len in COLD_LENGTHS.into_iter().filter(|len| *len <= whole / 2) {
        let pieces = (COLD_WALK / len).clamp(1, whole / len);
        let mut at = 0;
        for (kernel, copier) in copiers {
            let elapsed = elapsed_ns(|| {
                for _ in 0..pieces {
                    copier.copy((&buffers.source, at), (&buffers.target, at), len)?;
                    at = (at + len) % whole;
                }
                Ok(())
            })?;
            let cost = costs.iter_mut().find(|cost| cost.kernel == *kernel && cost.len_bytes == len as u64);
            if let Some(cost) = cost {
                cost.cold_ns = Some(elapsed / pieces as f64);
            }
        }
    }
    Ok(())
}

fn prefetch_distance(buffers: &Buffers, instructions: &CopyInstructions) -> Result<usize> {
    let Some(kernel) =
        [Kernel::NtAvx512, Kernel::NtAvx2].into_iter().find(|kernel| kernel.available(instructions).is_ok())
    else {
        return Ok(0);
    };
    let copiers: Vec<Copier> =
        PREFETCH_DISTANCES.iter().filter_map(|bytes| Copier::fixed(kernel, *bytes, instructions)).collect();
    let all: Vec<&Copier> = copiers.iter().collect();
    let times = hot_times(buffers, &all, buffers.source.len().min(32 << 20), 5)?;
    let best = PREFETCH_DISTANCES.into_iter().zip(times).min_by(|a, b| a.1.total_cmp(&b.1));
    Ok(best.map_or(0, |(bytes, _)| bytes))
}

fn line_costs(buffers: &Buffers, instructions: &CopyInstructions) -> Result<LineCosts> {
    const DIRTY: usize = 256 << 10;
    let piece = buffers.source.range(0, DIRTY)?;
    let cost = |op: LineOp| -> Result<Option<f64>> {
        let Some(lines) = LineInstruction::new(op, instructions) else { return Ok(None) };
        let mut times = Vec::new();
        for turn in 0..5 {
            piece.lease_mut()?.fill(turn);
            let lease = piece.raw_lease(Access::Read)?;
            let elapsed = elapsed_ns(|| {
                lines.apply(&lease);
                Ok(())
            })?;
            times.push(elapsed / (DIRTY / 64) as f64);
        }
        Ok(Some(median(times)))
    };
    let (clwb_ns, clflushopt_ns, cldemote_ns) = (cost(LineOp::WriteBack)?, cost(LineOp::Flush)?, cost(LineOp::Demote)?);
    // A walk over all of both buffers meets cold lines: the caches hold only the end.
    let mut rates = Vec::new();
    for at in (0..buffers.whole.len()).step_by(DIRTY).take(256) {
        let lease = buffers.whole.range(at, DIRTY)?.raw_lease(Access::Read)?;
        rates.push(
            DIRTY as f64
                / elapsed_ns(|| {
                    kernel::load(&lease);
                    Ok(())
                })?
                * 1e9,
        );
    }
    Ok(LineCosts { load_bytes_per_s: median(rates), clwb_ns, clflushopt_ns, cldemote_ns })
}

/// Returns the nanoseconds that `work` took, and never 0, so that rates stay finite.
pub(super) fn elapsed_ns(mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    let started = Instant::now();
    work()?;
    Ok((started.elapsed().as_nanos() as f64).max(0.1))
}

pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(1.0)
}
