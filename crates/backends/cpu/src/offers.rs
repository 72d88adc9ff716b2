//! The offers for a pair of places, and the reasons against the other primitives.
//!
//! ```text
//! places in memory
//!     share bytes, target is a core's cache     load-into-cache
//!     share bytes, source is a core's cache     cldemote, else clwb; others on request
//!                                               neither, if unflushed bytes are to be persistent
//!     one of them is persistent                 none: nothing is flushed, a bad page would kill
//!     else                                      copy-by-size, and the four kernels it picks from
//! ```

use datapipes_core::Persistence;
use datapipes_core::backend::{Offer, OfferQuery, Primitive, Quality};
use datapipes_core::memory::MemoryRange;
use datapipes_core::topology::Size;

use crate::calibration::Calibration;
use crate::instructions::CopyInstructions;
use crate::kernel::{Kernel, LineOp};

pub(crate) const COPY_BY_SIZE: &str = "copy-by-size";
pub(crate) const LOAD: &str = "load-into-cache";
pub(crate) const LEAVE: &str = "leave";
pub(crate) const READ: &str = "read-itself";

const TYPICAL_LEN: u64 = 1 << 20;
const LINE: f64 = 64.0;

/// How two ranges of memory are related.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relation {
    /// They share no bytes: bytes are copied.
    Separate,
    /// They share bytes, and the target is a core's cache.
    Load,
    /// They share bytes, and only the source is a core's cache.
    HandBack,
    /// One of them is persistent, or shows a file that may lose pages.
    Persistent,
}

impl Relation {
    pub(crate) fn of(ask: &OfferQuery<'_>, source: &MemoryRange, target: &MemoryRange) -> Relation {
        let keeps = [ask.source, ask.target].map(|end| end.facts.persistence);
        // Lines that another primitive must flush.
        let unflushed =
            keeps[1] == Persistence::OnCompletion && (ask.target.facts.core.is_none() || keeps[0] != keeps[1]);
        match (source.overlaps(target), ask.source.facts.core, ask.target.facts.core) {
            (true, _, Some(_)) if !unflushed => Relation::Load,
            (true, Some(_), None) if !unflushed => Relation::HandBack,
            _ if keeps.iter().any(|keeps| *keeps != Persistence::Volatile) => Relation::Persistent,
            _ if source.region().maps_file() || target.region().maps_file() => Relation::Persistent,
            _ => Relation::Separate,
        }
    }
}

pub(crate) fn primitives(instructions: &CopyInstructions) -> Vec<Primitive> {
    let always = |name, what| Primitive { name, what, available: Ok("any processor".into()) };
    let copies = Kernel::ALL.into_iter().map(|kernel| Primitive {
        name: kernel.name(),
        what: match kernel {
            Kernel::Memcpy => "copy by the C library",
            Kernel::RepMovsb => "copy by the processor's microcode",
            Kernel::NtAvx2 => "copy by 32-byte loads and stores that bypass the caches",
            Kernel::NtAvx512 => "copy by 64-byte loads and stores that bypass the caches",
        },
        available: kernel.available(instructions),
    });
    let lines = [LineOp::Demote, LineOp::WriteBack, LineOp::Flush].into_iter().map(|op| Primitive {
        name: op.name(),
        what: match op {
            LineOp::Demote => "hint to move lines to the cache that the cores share",
            LineOp::WriteBack => "write lines back to memory and keep them",
            LineOp::Flush => "write lines back to memory and drop them from every cache",
        },
        available: op.available(instructions),
    });
    let composed = always(COPY_BY_SIZE, "copy by the kernel that is fastest for the length and the target");
    let load = always(LOAD, "load the lines of a range into the core's caches");
    let leave = always(LEAVE, "do nothing: lines leave a cache when other lines need the space");
    let read = always(READ, "let a place that reads its own bytes (a cache) read into memory");
    std::iter::once(composed).chain(copies).chain([load]).chain(lines).chain([leave, read]).collect()
}

pub(crate) fn offers(
    ask: &OfferQuery<'_>,
    relation: Relation,
    calibration: &Calibration,
    instructions: &CopyInstructions,
) -> Vec<Offer> {
    match relation {
        Relation::Separate => copies(ask, calibration, instructions),
        Relation::Load => vec![load(calibration), nothing_to_copy()],
        Relation::Persistent => persistent(ask),
        Relation::HandBack => {
            let mut offers = hand_backs(ask, calibration, instructions);
            offers.push(nothing_to_copy());
            offers
        }
    }
}

/// Offers to let the source read into the target on the caller's core.
pub(crate) fn read(ask: &OfferQuery<'_>) -> Offer {
    let verdict = match ask.target.facts.persistence {
        Persistence::OnCompletion => Err("it does not flush what it stores".into()),
        // The cost of a read depends on what is cached. These figures assume a hit of a few bytes
        // and the rate of a copy. Into shared memory, it copies with protection against missing
        // pages.
        _ => Ok(Quality {
            latency_ns: 200.0,
            bytes_per_s: 1e9,
            cpu_share: 1.0,
            offload: false,
            fills_processor_cache: true,
            fills_page_cache: false,
            measured: false,
        }),
    };
    Offer { primitive: READ, verdict, why: "the source knows best how its bytes are read".into() }
}

/// Rejects copies, which would not keep the place's promise.
fn persistent(ask: &OfferQuery<'_>) -> Vec<Offer> {
    let why = match ask.target.facts.persistence {
        Persistence::Volatile => "its loads and stores are not guarded: a page that a file lost would end the process",
        _ => "it does not flush what it stores, and a bad page of the target would end the process",
    };
    let refused = |primitive| Offer { primitive, verdict: Err(why.into()), why: String::new() };
    std::iter::once(COPY_BY_SIZE).chain(Kernel::ALL.into_iter().map(Kernel::name)).map(refused).collect()
}

fn nothing_to_copy() -> Offer {
    let why = "source and target are the same bytes: there is nothing to copy";
    Offer { primitive: COPY_BY_SIZE, verdict: Err(why.into()), why: String::new() }
}

/// Whether the copy is to be in the core's cache: that is the target, or the caller demands it.
pub(crate) fn is_for_cache(ask: &OfferQuery<'_>) -> bool {
    ask.target.facts.core.is_some() || ask.constraints.fill_processor_cache
}

fn copies(ask: &OfferQuery<'_>, calibration: &Calibration, instructions: &CopyInstructions) -> Vec<Offer> {
    let typical = ask.constraints.typical_len.unwrap_or(TYPICAL_LEN).max(1);
    let into_cache = is_for_cache(ask);
    let mut offers: Vec<Offer> = Vec::new();
    for kernel in Kernel::ALL {
        let verdict = kernel.available(instructions).and_then(|_| {
            if into_cache && kernel.non_temporal() {
                return Err("its stores bypass the caches: the lines would not be in the core's cache".into());
            }
            Ok(copy_quality(calibration, kernel, typical))
        });
        offers.push(Offer { primitive: kernel.name(), verdict, why: why_kernel(kernel).into() });
    }
    let good =
        |kernel: Kernel| offers.iter().find(|o| o.primitive == kernel.name()).and_then(|o| o.verdict.as_ref().ok());
    let kernels: Vec<Kernel> = match ask.constraints.bypass_processor_cache {
        true => calibration.non_temporal_kernel(instructions).into_iter().collect(),
        false => Kernel::ALL.into_iter().collect(),
    };
    let candidates: Vec<&Quality> = kernels.iter().filter_map(|kernel| good(*kernel)).collect();
    // It picks the best of its kernels for each length, so its latency and its rate are those of
    // the best kernels.
    let verdict = match candidates.first() {
        None => Err("no kernel of this processor can bypass the caches for this target".into()),
        Some(first) => Ok(Quality {
            latency_ns: candidates.iter().map(|q| q.latency_ns).fold(f64::INFINITY, f64::min),
            bytes_per_s: candidates.iter().map(|q| q.bytes_per_s).fold(0.0, f64::max),
            fills_processor_cache: candidates.iter().any(|q| q.fills_processor_cache),
            ..(*first).clone()
        }),
    };
    let why = why_by_size(ask, calibration, instructions);
    offers.insert(0, Offer { primitive: COPY_BY_SIZE, verdict, why });
    offers
}

fn copy_quality(calibration: &Calibration, kernel: Kernel, typical: u64) -> Quality {
    let ns = |len| calibration.copy_ns(kernel, len);
    Quality {
        latency_ns: ns(64).unwrap_or(20.0),
        bytes_per_s: ns(typical).map_or(1e9, |ns| typical as f64 / ns * 1e9),
        cpu_share: 1.0,
        offload: false,
        fills_processor_cache: !kernel.non_temporal(),
        fills_page_cache: false,
        measured: calibration.measured,
    }
}

fn why_kernel(kernel: Kernel) -> &'static str {
    match kernel {
        Kernel::Memcpy => "ordinary stores: the copy is in the caches afterwards",
        Kernel::RepMovsb => "microcode: the copy is in the caches afterwards, unless it is long",
        Kernel::NtAvx2 | Kernel::NtAvx512 => {
            "stores past the caches; the lines at both ends, and copies of less than two lines, by ordinary stores"
        }
    }
}

fn why_by_size(ask: &OfferQuery<'_>, calibration: &Calibration, instructions: &CopyInstructions) -> String {
    let origin = if calibration.measured { "measured here" } else { "assumed until `dpipe calibrate` is run" };
    if ask.constraints.bypass_processor_cache {
        let kernel = calibration.non_temporal_kernel(instructions).map_or("none", Kernel::name);
        return format!("the processor's caches are to be bypassed, so every length takes {kernel} ({origin})");
    }
    let into_cache = is_for_cache(ask);
    let copier = calibration.by_size(instructions, into_cache);
    let mut ranges: Vec<(u64, Kernel)> = Vec::new();
    for class in &calibration.classes {
        // A copier has no kernel for lengths up to its `short_max`.
        let Some(kernel) = copier.kernel(class.from_bytes as usize) else { continue };
        if ranges.last().is_none_or(|last| last.1 != kernel) {
            ranges.push((class.from_bytes, kernel));
        }
    }
    let kernels = ranges.iter().enumerate().map(|(i, (from, kernel))| match i {
        0 => kernel.name().to_owned(),
        _ => format!("{} from {}", kernel.name(), Size(*from)),
    });
    let shown: Vec<String> = std::iter::once("inline moves up to 64 B".to_owned()).chain(kernels).collect();
    let target = if into_cache { "only stores that leave the lines in the core's cache; " } else { "" };
    format!("{target}the fastest kernel of each length ({origin}): {}", shown.join(", "))
}

fn in_place(latency_ns: f64, bytes_per_s: f64, fills: bool, calibration: &Calibration) -> Quality {
    Quality {
        latency_ns,
        bytes_per_s,
        cpu_share: 1.0,
        offload: false,
        fills_processor_cache: fills,
        fills_page_cache: false,
        measured: calibration.measured,
    }
}

fn load(calibration: &Calibration) -> Offer {
    let quality = in_place(100.0, calibration.lines.load_bytes_per_s, true, calibration);
    let why = "the cache lies over the same bytes: their lines are read on the core that runs the transfer, nothing is \
               copied";
    Offer { primitive: LOAD, verdict: Ok(quality), why: why.into() }
}

/// The first available primitive that is not denied is offered. The others are offered only by
/// name, because by cost alone doing nothing would always win.
fn hand_backs(ask: &OfferQuery<'_>, calibration: &Calibration, instructions: &CopyInstructions) -> Vec<Offer> {
    let lines = &calibration.lines;
    let ways = [
        (LineOp::Demote, lines.cldemote_ns, "lines move to the cache that the cores share, where any core finds them"),
        (
            LineOp::WriteBack,
            lines.clwb_ns,
            "memory has the bytes; the core's cache keeps clean lines, which are evicted for free",
        ),
        (
            LineOp::Flush,
            lines.clflushopt_ns,
            "memory has the bytes, and no cache has them: the next reader waits for memory",
        ),
    ];
    let named = |name: &str| ask.constraints.only.iter().any(|only| only == name);
    let denied = |name: &str| ask.constraints.deny.iter().any(|deny| deny == name);
    let mut taken: Option<&str> = None;
    let mut absent = Vec::new();
    let mut offers = Vec::new();
    for (op, ns, effect) in ways {
        let name = op.name();
        let verdict = match op.available(instructions) {
            Err(why) => {
                absent.push(why.clone());
                Err(why)
            }
            Ok(_) => match taken {
                Some(first) if !named(name) => Err(format!("{first} is preferred; name {name} in `only` to use it")),
                _ => {
                    if !denied(name) && (named(name) || ask.constraints.only.is_empty()) {
                        taken = Some(name);
                    }
                    let rate = LINE / ns.unwrap_or(10.0).max(0.01) * 1e9;
                    Ok(in_place(20.0, rate, false, calibration))
                }
            },
        };
        let because = if absent.is_empty() { String::new() } else { format!("; {}", absent.join("; ")) };
        offers.push(Offer { primitive: name, verdict, why: format!("the same bytes: {effect}{because}") });
    }
    let verdict = match taken {
        Some(first) if !named(LEAVE) => Err(format!("{first} is preferred; name {LEAVE} in `only` to use it")),
        _ => Ok(in_place(1.0, 1e15, false, calibration)),
    };
    let why = "the same bytes: caches are coherent, and lines leave this one when other lines need the space".into();
    offers.push(Offer { primitive: LEAVE, verdict, why });
    offers
}
