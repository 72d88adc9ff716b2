//! The best copies of bytes that go from one core to another, as between processes.
//!
//! ```text
//! one core     copies a block into lines that the other has read: by ordinary stores,
//!              or by stores that bypass the caches, in turns
//! the other    reads all of it
//!
//! one core     copies a block into lines that the other has read
//! the other    copies it into its own memory: by vector instructions or by `rep movsb`, in turns
//! ```
//! The reader may find the lines in its neighbour's cache or fetch them from memory, and the writer
//! pays for taking them back. Between processors stores past the caches differ by a factor of four
//! in either direction, and `rep movsb` by a factor of two. So both are measured, or not used.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use datapipes_core::Result;
use datapipes_core::memory::{Access, MemoryRange};
use datapipes_core::threads;
use datapipes_core::topology::Topology;

use super::measure::{Buffers, median};
use crate::instructions::CopyInstructions;
use crate::kernel::{self, Copier, Kernel};

/// Shorter blocks stay in the caches in any case.
const MIN_BITS: u32 = 14;
const MAX_BITS: u32 = 22;
const TURNS: usize = 7;
/// The bytes copied in one turn, approximately.
const TURN_BYTES: usize = 8 << 20;
/// The other way is used if it takes less than this share of the time. Where it is better at all,
/// it is so by much more; figures of a busy machine differ by more than a tenth.
const GAIN: f64 = 0.8;
/// A turn on a busy machine is given up after this time. Then nothing is changed.
const TURN_LIMIT: Duration = Duration::from_secs(1);

/// The shortest lengths from which every length is faster the other way; `None` where there is
/// none, or only one core.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HandoffLengths {
    /// With stores that bypass the caches, into shared memory.
    pub(super) nt_min_bytes: Option<u64>,
    /// With `rep movsb`, out of shared memory.
    pub(super) rep_movsb_min_bytes: Option<u64>,
}

/// What a block goes through.
#[derive(Clone, Copy)]
struct Handoff<'a> {
    /// The writer's copy.
    fill: &'a Copier,
    /// The reader's; without one it only reads.
    take: Option<&'a Copier>,
}

pub(super) fn measure(
    topology: &Topology,
    buffers: &Buffers,
    copiers: &[(Kernel, Copier)],
    instructions: &CopyInstructions,
) -> Result<HandoffLengths> {
    let mut cores = topology.usable_cores().map(|core| core.index);
    let (Some(one), Some(other)) = (cores.next(), cores.next()) else { return Ok(HandoffLengths::default()) };
    let cores = [one, other];
    let copier = |kernel: Kernel| copiers.iter().find(|(other, _)| *other == kernel).map(|(_, copier)| copier);
    let Some(ordinary) = copier(Kernel::Memcpy) else { return Ok(HandoffLengths::default()) };
    let past = copiers.iter().rev().find(|(kernel, _)| kernel.non_temporal());
    let mut found = HandoffLengths::default();
    if let Some((_, past)) = past {
        let ways = [ordinary, past].map(|fill| Handoff { fill, take: None });
        found.nt_min_bytes = faster_from(ways, cores, buffers, instructions)?;
    }
    if let Some(string) = copier(Kernel::RepMovsb) {
        let ways = [ordinary, string].map(|take| Handoff { fill: ordinary, take: Some(take) });
        found.rep_movsb_min_bytes = faster_from(ways, cores, buffers, instructions)?;
    }
    Ok(found)
}

/// Returns the shortest length from which every length is faster by the second way.
fn faster_from(
    ways: [Handoff<'_>; 2],
    cores: [usize; 2],
    buffers: &Buffers,
    instructions: &CopyInstructions,
) -> Result<Option<u64>> {
    let mut from = None;
    // The reader's own memory is the second half of the source.
    let longest = (buffers.source.len() / 2).ilog2().min(MAX_BITS);
    for bits in (MIN_BITS..=longest).rev() {
        let len = 1usize << bits;
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..TURNS {
            for (way, times) in ways.into_iter().zip(&mut times) {
                match turn(cores, buffers, way, len, instructions)? {
                    Some(ns) => times.push(ns),
                    None => return Ok(None),
                }
            }
        }
        let [first, second] = times.map(median);
        if second > first * GAIN {
            break;
        }
        from = Some(len as u64);
    }
    Ok(from)
}

/// Returns the nanoseconds of a block that goes from one core to the other; `None` where it took
/// too long.
fn turn(
    cores: [usize; 2],
    buffers: &Buffers,
    way: Handoff<'_>,
    len: usize,
    instructions: &CopyInstructions,
) -> Result<Option<f64>> {
    let blocks = (TURN_BYTES / len).max(4) as u32;
    let (filled, taken) = (AtomicU32::new(0), AtomicU32::new(0));
    let until = Instant::now() + TURN_LIMIT;
    let own = buffers.source.len() / 2;
    let target: MemoryRange = buffers.target.range(0, len)?;
    std::thread::scope(|scope| {
        let reader = || -> Result<bool> {
            bind(cores[1]);
            for block in 1..=blocks {
                if !reached(&filled, block, until) {
                    return Ok(false);
                }
                match way.take {
                    Some(copier) => copier.copy((&buffers.target, 0), (&buffers.source, own), len)?,
                    None => kernel::read(&target.raw_lease(Access::Read)?, instructions),
                }
                taken.store(block, Ordering::Release);
            }
            Ok(true)
        };
        let Ok(reader) = threads::spawn_scoped(scope, "reader", reader) else { return Ok(None) };
        let writer = || -> Result<Option<f64>> {
            bind(cores[0]);
            let mut since = Instant::now();
            for block in 1..=blocks {
                // The first block finds the lines as the previous turn left them.
                if block == 2 {
                    since = Instant::now();
                }
                way.fill.copy((&buffers.source, 0), (&buffers.target, 0), len)?;
                filled.store(block, Ordering::Release);
                if !reached(&taken, block, until) {
                    return Ok(None);
                }
            }
            Ok(Some(since.elapsed().as_nanos() as f64 / f64::from(blocks - 1)))
        };
        let written = match threads::spawn_scoped(scope, "writer", writer) {
            Ok(writer) => writer.join().unwrap_or(Ok(None)),
            Err(_) => Ok(None),
        };
        let read = reader.join().unwrap_or(Ok(false))?;
        Ok(written?.filter(|_| read))
    })
}

/// Waits for a counter; returns false when the time is over.
fn reached(counter: &AtomicU32, value: u32, until: Instant) -> bool {
    for looks in 0u32.. {
        if counter.load(Ordering::Acquire) >= value {
            return true;
        }
        std::hint::spin_loop();
        // The other thread may need this core.
        if looks % 1024 == 1023 {
            std::thread::yield_now();
            if Instant::now() >= until {
                return false;
            }
        }
    }
    false
}

/// Binds this thread to a core. Where that is refused, the figures are less certain.
fn bind(core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    if core < rustix::thread::CpuSet::MAX_CPU {
        set.set(core);
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}
