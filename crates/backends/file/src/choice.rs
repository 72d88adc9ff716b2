//! The choice to bypass the page cache or to use it, and the quality of each primitive.
//!
//! The figures are assumptions for a solid-state drive that moves a few GB/s (`measured` is false);
//! they rank the primitives. If the file's access is `Auto`, they follow this choice: bytes in the
//! page cache are read from there, small files go through it, and large ones past it.

use datapipes_core::FileAccess;
use datapipes_core::backend::{Constraints, Quality};
use datapipes_core::locator::FilePlace;
use datapipes_core::topology::Size;

use crate::mover::{CacheMode, Direction};
use crate::residency;

/// Files smaller than this go through the page cache: they are likely to be used again, and take
/// little space in it.
const SMALL: u64 = 1 << 20;
/// A file of which the page cache holds at least this share is moved through it.
const RESIDENT: f64 = 0.5;

/// The choice for one file.
pub(crate) struct Choice {
    /// The cache mode that serves better.
    pub(crate) lane: CacheMode,
    /// Whether a read finds its bytes in the page cache.
    pub(crate) resident: bool,
    /// The reason, as the end of a sentence.
    pub(crate) why: String,
}

/// How a request is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    /// io_uring.
    Ring,
    /// A system call that blocks.
    Blocking,
    /// io_uring, with direct requests as commands to an NVMe namespace.
    Commands,
}

/// Returns the cache mode that serves a file better: by the caller's wish, else by residency and
/// size.
pub(crate) fn choose(file: &FilePlace, direction: Direction, constraints: &Constraints) -> Choice {
    let len = file.len().unwrap_or(0);
    let share = residency::share(file, len);
    let resident = share.is_some_and(|s| s >= RESIDENT);
    let held = match share {
        Some(share) => format!("the page cache holds {:.0}% of {}", share * 100.0, Size(len)),
        None => format!("{}, and the kernel does not report how much of it the page cache holds", Size(len)),
    };
    let (lane, why) = match (file.access(), file.direct_fd()) {
        (FileAccess::Direct, _) => (CacheMode::Direct, "direct access was asked for".into()),
        (FileAccess::Cached, _) => (CacheMode::Cached, "cached access was asked for".into()),
        (FileAccess::Auto, Err(why)) => (CacheMode::Cached, why.to_owned()),
        (FileAccess::Auto, Ok(_)) if resident => (CacheMode::Cached, held),
        (FileAccess::Auto, Ok(_)) => {
            // A file that is about to be written may not have its length yet.
            let hint = if direction == Direction::Write { constraints.typical_len.unwrap_or(0) } else { 0 };
            match (len.max(hint) < SMALL, direction) {
                (false, _) => (CacheMode::Direct, held),
                (true, Direction::Read) => (CacheMode::Cached, format!("a small file: {held}")),
                (true, Direction::Write) => {
                    (CacheMode::Cached, format!("a small file: {held} (preallocate it, or name a typical length)"))
                }
            }
        }
    };
    Choice { lane, resident, why }
}

/// Returns the quality of a primitive, or why it does not serve.
pub(crate) fn quality(
    file: &FilePlace,
    choice: &Choice,
    direction: Direction,
    (engine, lane): (Engine, CacheMode),
) -> Result<Quality, String> {
    match (direction, file.readable(), file.not_writable()) {
        (Direction::Read, false, _) => return Err("the file is open for writing only".into()),
        (Direction::Write, _, Some(why)) => return Err(why.into()),
        _ => {}
    }
    match (file.access(), lane) {
        (FileAccess::Direct, CacheMode::Cached) => return Err("direct access was asked for".into()),
        (FileAccess::Cached, CacheMode::Direct) => return Err("cached access was asked for".into()),
        _ => {}
    }
    if lane == CacheMode::Direct
        && let Err(why) = file.direct_fd()
    {
        return Err(why.to_owned());
    }
    let chosen = lane == choice.lane;
    // (latency of an empty transfer in us, GB/s of a long transfer, core seconds per second)
    let (latency_us, rate, cpu) = match (lane, direction, engine) {
        (CacheMode::Cached, Direction::Read, Engine::Ring) if choice.resident => (3.0, 9.0, 1.0),
        (CacheMode::Cached, Direction::Read, Engine::Blocking) if choice.resident => (1.0, 8.0, 1.0),
        (CacheMode::Direct, Direction::Read, Engine::Ring) => (80.0, 2.5, 0.01),
        (CacheMode::Direct, Direction::Read, Engine::Blocking) => (80.0, 1.4, 0.02),
        (CacheMode::Cached, Direction::Read, Engine::Ring) => (80.0, 1.3, 0.4),
        (CacheMode::Cached, Direction::Read, Engine::Blocking) => (80.0, 1.2, 0.4),
        // Nobody has measured it: a little below io_uring past the page cache.
        (_, Direction::Read, Engine::Commands) => (81.0, 2.4, 0.01),
        (_, Direction::Write, Engine::Commands) => (61.0, 2.1, 0.01),
        (CacheMode::Direct, Direction::Write, Engine::Ring) => (60.0, 2.2, 0.01),
        (CacheMode::Direct, Direction::Write, Engine::Blocking) => (60.0, 1.2, 0.02),
        (CacheMode::Cached, Direction::Write, Engine::Ring) => (60.0, 0.9, 0.6),
        (CacheMode::Cached, Direction::Write, Engine::Blocking) => (59.0, 0.8, 0.6),
    };
    // A primitive against the choice must not win by the planner's arithmetic for some length,
    // unless it is the only one.
    let penalty = if chosen { 1.0 } else { 4.0 };
    Ok(Quality {
        latency_ns: latency_us * 1e3 * penalty,
        bytes_per_s: rate * 1e9 / penalty,
        cpu_share: cpu,
        // The device moves the bytes of a direct transfer; a cached one is a copy by a core.
        offload: lane == CacheMode::Direct,
        fills_processor_cache: lane == CacheMode::Cached,
        fills_page_cache: lane == CacheMode::Cached,
        measured: false,
    })
}
