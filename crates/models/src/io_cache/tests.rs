//! The cache compared with a list, the memory with a table, and the figures with the paper.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::dca::{DcaSetup, closed_form_amplification};
use super::ddio::{CHUNKS, DdioSetup};
use super::offload::OffloadRates;
use super::report::{DcaFigure, dca_figure, dca_findings, ddio_findings, fewer, replay};
use super::*;
use crate::pipette::report::Agreement;

fn accesses() -> impl Strategy<Value = Vec<LineAccess>> {
    let agent = prop_oneof![Just(AccessAgent::Device), Just(AccessAgent::Core), Just(AccessAgent::Load)];
    let kind = prop_oneof![Just(AccessKind::Read), Just(AccessKind::Write)];
    let one = (agent, kind, 0u64..60, any::<bool>());
    let access = one.prop_map(|(agent, kind, line, is_whole)| LineAccess { agent, kind, line, is_whole });
    proptest::collection::vec(access, 1..400)
}

/// The twin of the cache under LRU: for each set a list of ways with line, dirt and time.
struct Listed {
    sets: Vec<Vec<Option<(u64, bool, u64)>>>,
    mask: WayMask,
    is_inclusive: bool,
    written_back: u64,
    hits: u64,
}

impl Listed {
    fn access(&mut self, access: LineAccess, time: u64) {
        let sets = self.sets.len() as u64;
        let set = &mut self.sets[(access.line % sets) as usize];
        let is_device = access.agent == AccessAgent::Device;
        let is_write = access.kind == AccessKind::Write;
        let held = set.iter_mut().find(|way| way.is_some_and(|(line, ..)| line == access.line));
        if is_device && is_write && self.mask.is_none() {
            if let Some(way) = held {
                let (_, dirty, _) = way.take().unwrap();
                self.written_back += u64::from(dirty && !access.is_whole);
            }
            return;
        }
        if let Some(Some((_, dirty, used))) = held {
            self.hits += 1;
            *dirty |= is_write;
            *used = time;
            return;
        }
        if !is_write && (is_device || access.agent == AccessAgent::Core && !self.is_inclusive) {
            return;
        }
        let allowed = set.iter_mut().enumerate().filter(|(way, _)| !is_device || self.mask.has(*way)).map(|(_, w)| w);
        let oldest = allowed.min_by_key(|way| way.map_or(0, |(_, _, used)| used)).unwrap();
        self.written_back += u64::from(oldest.is_some_and(|(_, dirty, _)| dirty));
        *oldest = Some((access.line, is_write, time));
    }
}

proptest! {
    #[test]
    fn the_cache_is_what_a_list_would_be(accesses in accesses(), sets in 1u64..6, ways in 1u32..6, io in 0u32..6, is_inclusive: bool) {
        let shape = LlcShape { sets, ways, line_bytes: 64, replacement: Replacement::Lru, is_inclusive };
        let mask = WayMask::upper(io.min(ways), ways);
        let mut cache = LastLevelCache::new(shape, mask, 1);
        let mut list =
            Listed { sets: vec![vec![None; ways as usize]; sets as usize], mask, is_inclusive, written_back: 0, hits: 0 };
        for (time, access) in (1..).zip(&accesses) {
            cache.access(*access);
            list.access(*access, time);
        }
        for line in 0..60 {
            let set = &list.sets[(line % sets) as usize];
            let held = set.iter().position(|way| way.is_some_and(|(l, ..)| l == line));
            prop_assert_eq!(cache.way_of(line), held, "line {}", line);
        }
        let counts = cache.counts();
        prop_assert_eq!(counts.write_backs, list.written_back);
        prop_assert_eq!(counts.device.hits + counts.core.hits + counts.load.hits, list.hits);
    }

    #[test]
    fn nothing_is_lost_or_counted_twice(
        accesses in accesses(), sets in 1u64..6, ways in 1u32..6, io in 0u32..6, is_random: bool,
        is_inclusive: bool, seed: u64,
    ) {
        let replacement = if is_random { Replacement::Random } else { Replacement::Lru };
        let shape = LlcShape { sets, ways, line_bytes: 64, replacement, is_inclusive };
        let mask = WayMask::upper(io.min(ways), ways);
        let mut cache = LastLevelCache::new(shape, mask, seed);
        let (mut device_dirty, mut evicted) = (BTreeMap::new(), 0);
        for access in &accesses {
            let before = cache.way_of(access.line);
            let outcome = cache.access(*access);
            prop_assert_eq!(outcome.is_hit, before.is_some() && !outcome.is_written_past);
            if let Some(old) = outcome.written_back {
                evicted += 1;
                prop_assert!(device_dirty.remove(&old).is_some(), "line {} was not dirty", old);
            }
            if outcome.is_written_past {
                device_dirty.remove(&access.line);
            } else if access.kind == AccessKind::Write {
                device_dirty.insert(access.line, ());
            }
            // A device's write that missed is in its ways.
            if access.agent == AccessAgent::Device && access.kind == AccessKind::Write && !outcome.is_hit {
                prop_assert!(cache.way_of(access.line).is_none_or(|way| mask.has(way)));
            }
            prop_assert!(cache.cached_lines() <= shape.lines());
        }
        let counts = cache.counts();
        for agent in [counts.device, counts.core, counts.load] {
            prop_assert_eq!(agent.hits + agent.misses, agent.accesses());
            prop_assert!(agent.memory_reads <= agent.misses);
        }
        let all = counts.device.accesses() + counts.core.accesses() + counts.load.accesses();
        prop_assert_eq!(all, accesses.len() as u64);
        prop_assert_eq!(counts.write_backs, evicted);
        prop_assert_eq!(counts.dirtied, counts.write_backs + counts.dirty_dropped + cache.dirty_lines());
        prop_assert_eq!(cache.dirty_lines(), device_dirty.len() as u64);
        prop_assert_eq!(counts.memory_writes(), counts.write_backs + counts.written_past);
    }

    /// With all ways a device's write allocates as a core's does.
    #[test]
    fn a_mask_of_all_ways_is_no_mask(accesses in accesses(), sets in 1u64..6, ways in 1u32..6, seed: u64) {
        for replacement in [Replacement::Lru, Replacement::Random] {
            let shape = LlcShape { sets, ways, line_bytes: 64, replacement, is_inclusive: true };
            let mut masked = LastLevelCache::new(shape, WayMask::upper(ways, ways), seed);
            let mut free = LastLevelCache::new(shape, WayMask::NONE, seed);
            for access in accesses.iter().filter(|a| a.agent != AccessAgent::Device || a.kind == AccessKind::Write) {
                let outcome = masked.access(*access);
                let agent = AccessAgent::Core;
                prop_assert_eq!(outcome, free.access(LineAccess { agent, ..*access }));
            }
            prop_assert_eq!(masked.counts().write_backs, free.counts().write_backs);
        }
    }

    #[test]
    fn amplification_is_between_one_and_lines_of_a_block(
        lines in proptest::collection::vec(0u64..200, 1..500), block in 6u32..12, entries in 1u32..20,
        modules in 1u32..4,
    ) {
        let shape = PmemShape { block_bytes: 1 << block, buffer_entries: entries, modules, interleave_bytes: 4096 };
        shape.check(64).unwrap();
        let mut media = PmemMedia::new(shape, 64);
        for line in &lines {
            media.write(*line);
            prop_assert!(media.buffered_blocks() <= (entries * modules) as usize);
        }
        media.flush();
        let (counts, of_block) = (media.counts(), shape.block_bytes / 64);
        prop_assert_eq!(media.buffered_blocks(), 0);
        prop_assert_eq!(counts.lines, lines.len() as u64);
        let reached = counts.lines - counts.rewritten;
        prop_assert!(counts.blocks <= reached && counts.blocks * of_block >= reached);
        let amplification = media.amplification().unwrap();
        prop_assert!((1.0..=of_block as f64).contains(&amplification), "{}", amplification);
        // A block that the media need not read has all of its lines.
        prop_assert!(reached >= (counts.blocks - counts.partial_blocks) * of_block + counts.partial_blocks);
    }

    #[test]
    fn a_trace_is_read_as_it_was_written(
        list in proptest::collection::vec((any::<bool>(), any::<bool>(), any::<u32>(), 1u64..10_000), 1..50),
    ) {
        let accesses: Vec<TraceAccess> = list.into_iter().map(|(is_device, is_read, address, bytes)| TraceAccess {
            agent: if is_device { AccessAgent::Device } else { AccessAgent::Core },
            kind: if is_read { AccessKind::Read } else { AccessKind::Write },
            address: u64::from(address),
            bytes,
        }).collect();
        let text: String = accesses.iter().map(|access| format!("{access}\n# a remark\n\n")).collect();
        let trace = AccessTrace::read(text.as_bytes()).unwrap();
        prop_assert_eq!(trace.accesses(), &accesses[..]);
        prop_assert_eq!(trace.bytes(), accesses.iter().map(|a| a.bytes).sum::<u64>());
    }

    #[test]
    fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _ = AccessTrace::read(&bytes[..]);
    }
}

#[test]
fn a_wrong_trace_is_told_with_its_line() {
    let long = format!("device write 0 64{}", " ".repeat(300));
    for (text, told) in [
        ("", "without accesses"),
        ("# nothing\n\n", "without accesses"),
        ("device write 0 64\ngpu read 0 64", "line 2: `gpu` is neither device nor core"),
        ("device move 0 64", "line 1: `move` is neither read nor write"),
        ("device write 0", "line 1: it has 3 words instead of 4"),
        ("\n\ncore read +5 64", "line 3: the address `+5` is no number"),
        ("core read 0x+5 64", "line 1: the address `0x+5` is no number"),
        ("core read 0 -1", "line 1: the bytes `-1` are no number"),
        ("core read 0 0", "line 1: an access of 0 bytes"),
        ("core read 0xffffffffffffffff 1", "line 1: the access ends beyond the last address"),
        ("core read 0 99999999999999", "line 1: the trace is too long"),
        ("core read 0 99999999999999999999", "line 1: the bytes `99999999999999999999` are no number"),
        (&long, "line 1: it is longer than 256 bytes"),
    ] {
        let error = AccessTrace::read(text.as_bytes()).unwrap_err();
        assert!(error.to_string().contains(told), "{text:?}: {error}");
        assert!(error.advice().is_some(), "{text:?}: {error}");
    }
    assert!(AccessTrace::read(&b"core read 0 \xff"[..]).unwrap_err().to_string().contains("line 1: it is no text"));
}

/// Computed by hand: a device fills 4 KiB, the core reads it, and writes 8 bytes of one line.
#[test]
fn a_trace_by_hand() {
    let text = "device write 0x1000 4096\ncore read 4096 4096 # sum\ncore write 4100 8\ndevice read 0x1000 64\n";
    let trace = AccessTrace::read(text.as_bytes()).unwrap();
    for is_inclusive in [false, true] {
        let llc = LlcShape { is_inclusive, ..LlcShape::paper() };
        let points = replay(&trace, llc, PmemShape::paper(), &[0, 2]).unwrap();
        let [off, on] = points[..] else { panic!("{points:?}") };
        // Off: 64 lines to memory, read back by the core, and one again if its read did not keep
        // it.
        let again = u64::from(!is_inclusive);
        assert_eq!((off.memory_writes, off.memory_reads), (64, 64 + again));
        assert_eq!((off.llc.core.misses, off.llc.core.hits), (64 + again, 1 - again));
        assert_eq!((off.pmem.blocks, off.amplification, off.dirty_lines_left), (16, Some(1.0), 1));
        // On: nothing reaches memory.
        assert_eq!((on.memory_writes, on.memory_reads, on.llc.core.misses, on.llc.core.hits), (0, 0, 0, 65));
        assert_eq!((on.pmem.blocks, on.amplification, on.dirty_lines_left), (0, None, 64));
        for point in [off, on] {
            assert_eq!(point.llc.device.hits, 1, "the device reads what the core wrote");
        }
    }
}

/// A device's write of a part of a line needs the rest, and a part past the cache keeps the rest.
#[test]
fn parts_of_lines() {
    let trace = AccessTrace::read(&b"core write 0 64\ndevice write 8 8\n"[..]).unwrap();
    let points = replay(&trace, LlcShape::paper(), PmemShape::paper(), &[0, 2]).unwrap();
    assert_eq!((points[0].llc.write_backs, points[0].memory_writes, points[0].pmem.rewritten), (1, 2, 1));
    assert_eq!((points[1].memory_writes, points[1].llc.device.hits), (0, 1));
    // The middle, the beginning and the end of a line; all of it; the end of one and the next.
    for (text, reads, lines) in [
        ("device write 72 8", 1, 1),
        ("device write 64 8", 1, 1),
        ("device write 120 8", 1, 1),
        ("device write 64 64", 0, 1),
        ("device write 127 65", 1, 2),
    ] {
        let part = AccessTrace::read(text.as_bytes()).unwrap();
        let on = replay(&part, LlcShape::paper(), PmemShape::paper(), &[2]).unwrap();
        assert_eq!((on[0].memory_reads, on[0].dirty_lines_left), (reads, lines), "{text}");
    }
}

#[test]
fn the_papers_processor() {
    let shape = LlcShape::paper();
    assert_eq!(shape.size_bytes(), 36_608 << 10);
    assert_eq!((WayMask::upper(2, 11).bits(), WayMask::all(11).bits()), (0x600, 0x7ff));
    assert_eq!((WayMask::upper(0, 11), WayMask::upper(32, 32).bits()), (WayMask::NONE, u32::MAX));
    assert_eq!(WayMask::upper(11, 11), WayMask::all(11));
    // Two ways of it are what DDIO has: 6.5 MiB.
    assert_eq!(shape.bytes_of_ways(2), 6656 << 10);
}

#[test]
fn impossible_setups_are_refused() {
    let llc = LlcShape::paper();
    for wrong in [
        LlcShape { ways: 0, ..llc },
        LlcShape { ways: 33, ..llc },
        LlcShape { sets: 0, ..llc },
        LlcShape { sets: u64::MAX, ..llc },
        LlcShape { line_bytes: 48, ..llc },
        LlcShape { line_bytes: 0, ..llc },
    ] {
        assert!(wrong.check().unwrap_err().advice().is_some(), "{wrong:?}");
    }
    assert!(llc.resized(100, 11).is_err() && llc.resized(u64::MAX, 1).is_err());
    assert_eq!(llc.resized(llc.size_bytes(), 11).unwrap(), llc);
    let setup = DdioSetup::paper();
    for wrong in [
        DdioSetup { depth: 0, ..setup },
        DdioSetup { served_at_once: 0, ..setup },
        DdioSetup { served_at_once: setup.depth + 1, ..setup },
        DdioSetup { device_bytes_per_s: 0.0, ..setup },
        DdioSetup { core_bytes_per_s: f64::NAN, ..setup },
        DdioSetup { load_bytes_per_s: -1.0, ..setup },
        DdioSetup { load_bytes_per_s: 1e12, ..setup },
    ] {
        assert!(ddio::simulate(&wrong, 4096, 2).unwrap_err().advice().is_some(), "{wrong:?}");
    }
    assert!(ddio::simulate(&setup, 63, 2).is_err() && ddio::simulate(&setup, 4096, 12).is_err());
    let setup = DcaSetup::paper();
    for wrong in [
        DcaSetup { io_ways: 12, ..setup },
        DcaSetup { depth: 0, ..setup },
        DcaSetup { chunk_bytes: 100, ..setup },
        DcaSetup { chunk_bytes: 1 << 30, ..setup },
        DcaSetup { pmem: PmemShape { block_bytes: 32, ..setup.pmem }, ..setup },
        DcaSetup { pmem: PmemShape { block_bytes: 300, ..setup.pmem }, ..setup },
        DcaSetup { pmem: PmemShape { buffer_entries: 0, ..setup.pmem }, ..setup },
        DcaSetup { pmem: PmemShape { modules: 0, ..setup.pmem }, ..setup },
    ] {
        assert!(dca::simulate(&wrong).unwrap_err().advice().is_some(), "{wrong:?}");
    }
    assert!(OffloadRates { depth: 0, ..OffloadRates::paper() }.check().is_err());
}

/// A tenth of the cache, for tests.
fn small_dca(io_ways: u32, replacement: Replacement) -> DcaSetup {
    let paper = DcaSetup::paper();
    DcaSetup { llc: LlcShape { sets: 5200, replacement, ..paper.llc }, io_ways, region_bytes: 256 << 20, ..paper }
}

#[test]
fn the_closed_form_is_what_is_simulated() {
    // Worked out by hand: 4 - 6/(2w - 1) + ... for 1, 2, 4 and 11 ways.
    for (ways, by_hand) in [(1, 1.0), (2, 2.5048), (4, 3.2453), (11, 3.7255)] {
        let form = closed_form_amplification(ways, 4);
        assert!((form - by_hand).abs() < 0.001, "{ways} ways: {form}");
        let simulated = dca::simulate(&small_dca(ways, Replacement::Random)).unwrap().amplification.unwrap();
        assert!((simulated / form - 1.0).abs() < 0.02, "{ways} ways: {simulated}, not {form}");
        // In the order of writing, whole blocks arrive.
        let lru = dca::simulate(&small_dca(ways, Replacement::Lru)).unwrap().amplification.unwrap();
        assert!((1.0..1.01).contains(&lru), "{ways} ways: {lru}");
    }
    let larger = |block_bytes| {
        let setup = small_dca(4, Replacement::Random);
        let pmem = PmemShape { block_bytes, ..setup.pmem };
        dca::simulate(&DcaSetup { pmem, ..setup }).unwrap().amplification.unwrap()
    };
    assert_eq!(larger(64), 1.0);
    assert!((larger(1024) / closed_form_amplification(4, 16) - 1.0).abs() < 0.02);
}

/// Past the cache the buffer combines the lines of all requests, if it has an entry for each.
#[test]
fn the_buffer_combines_what_arrives_near_each_other() {
    let with = |buffer_entries| {
        let setup = small_dca(0, Replacement::Random);
        let pmem = PmemShape { buffer_entries, modules: 1, ..setup.pmem };
        dca::simulate(&DcaSetup { pmem, ..setup }).unwrap()
    };
    assert_eq!((with(8).amplification, with(7).amplification), (Some(1.0), Some(4.0)));
    assert_eq!(with(8).media_bytes_per_byte, 1.0);
    // A block that is complete leaves at once.
    let mut media = PmemMedia::new(PmemShape::paper(), 64);
    (0..5).for_each(|line| media.write(line));
    assert_eq!((media.counts().blocks, media.counts().partial_blocks, media.buffered_blocks()), (1, 0, 1));
}

/// Buffers that fit into the engine's ways are written in place, and do not reach the memory.
#[test]
fn buffers_that_are_used_again_stay_in_the_cache() {
    let setup = DcaSetup { io_ways: 2, ..DcaSetup::paper() };
    let with = |chunk_bytes| dca::simulate(&DcaSetup { chunk_bytes, ..setup }.reusing_buffers()).unwrap();
    let (fits, does_not) = (with(512 << 10), with(1 << 20));
    assert_eq!((fits.media_bytes_per_byte, fits.amplification), (0.0, None));
    assert!(does_not.media_bytes_per_byte > 0.5, "{does_not:?}");
}

#[test]
fn figure_5_beside_the_paper() {
    let figure = dca_figure(&DcaSetup::paper(), &OffloadRates::paper(), &[512 << 10, 1 << 20, 4 << 20]).unwrap();
    let findings = dca_findings(&figure).unwrap();
    let close = |what: &str, by: f64| {
        let found = findings.iter().find(|f| f.what.starts_with(what)).unwrap();
        let (ours, published) = (found.ours.unwrap(), found.published.unwrap());
        assert!((ours / published - 1.0).abs() <= by, "{what}: {ours}, not {published}");
    };
    close("engine's rate over one core's", 0.02);
    close("cores that copy", 0.0);
    close("largest write amplification", 0.0);
    close("write amplification with DCA", 0.02);
    close("engine's writes over its reads", 0.05);
    // Of another setup nothing is exact or calibrated.
    let other = DcaFigure { rates: OffloadRates { core_lines: 12, ..figure.rates }, ..figure.clone() };
    let standings = |figure: &DcaFigure| {
        let findings = dca_findings(figure).unwrap();
        findings.iter().filter(|f| matches!(f.standing, Agreement::Exact | Agreement::Calibrated)).count()
    };
    assert_eq!((standings(&figure), standings(&other)), (5, 0));
    // 2 and 11 ways bracket the published one.
    let random: Vec<f64> = figure.by_ways.iter().filter_map(|row| row.random).collect();
    assert!(random.is_sorted() && random[1] < 3.27 && *random.last().unwrap() > 3.27, "{random:?}");
}

#[test]
fn without_ddio_the_core_reads_all_from_memory() {
    for chunk in [4 << 10, 1 << 20] {
        let point = ddio::simulate(&DdioSetup::paper(), chunk, 0).unwrap();
        assert_eq!((point.core_misses, point.updated_in_place, point.memory_reads), (1.0, 0.0, 1.0));
        assert_eq!(point.counts.written_past, point.counts.device.writes);
    }
}

/// Without a load and with LRU, what fits stays, and what does not fit leaves.
#[test]
fn capacity_decides_under_lru() {
    let llc = LlcShape { replacement: Replacement::Lru, ..LlcShape::paper() };
    let quiet = DdioSetup { llc, load_bytes_per_s: 0.0, ..DdioSetup::paper() };
    // 32 chunks of 128 KiB fit into two ways (6.5 MiB), of 1 MiB into eleven (35.75 MiB).
    for (chunk, ways) in [(128 << 10, 2), (1 << 20, 11), (4 << 10, 1)] {
        assert_eq!(ddio::simulate(&quiet, chunk, ways).unwrap().core_misses, 0.0, "{chunk} {ways}");
    }
    assert!(ddio::simulate(&quiet, 4 << 20, 11).unwrap().core_misses > 0.5);
}

#[test]
fn a_sample_of_the_sets_is_as_all() {
    let setup = DdioSetup::paper();
    for (chunk, ways) in [(128 << 10, 2), (512 << 10, 11)] {
        let few = ddio::simulate(&setup, chunk, ways).unwrap();
        let all = ddio::sampled(&setup, chunk, ways, 1);
        assert!(few.sample > 8 && (few.core_misses - all.core_misses).abs() < 0.015, "{few:?} {all:?}");
    }
}

#[test]
fn figures_3_and_4_beside_the_paper() {
    let setup = DdioSetup::paper();
    let findings = ddio_findings(&setup).unwrap();
    let [below, above, all, one, _] = &findings[..] else { panic!("{findings:#?}") };
    assert!((below.ours.unwrap() - below.published.unwrap()).abs() < 2.0, "{below:?}");
    assert!(above.ours.unwrap() < below.ours.unwrap() / 2.0, "{above:?}");
    assert!(all.ours.unwrap() < one.ours.unwrap() && one.ours.unwrap() <= 64.0, "{all:?} {one:?}");
    // DDIO never has more misses than none, and more ways never more than fewer, by the noise.
    let figure = ddio::figure(&setup, &CHUNKS, &[0, 2, 4, 8, 11]).unwrap();
    for row in &figure.rows {
        let misses: Vec<f64> = row.iter().map(|point| point.core_misses).collect();
        assert!(misses.windows(2).all(|pair| pair[1] <= pair[0] + 0.01), "{} {misses:?}", row[0].chunk_bytes);
    }
    assert_eq!((fewer(0.0, 0.0), fewer(0.5, 0.25)), (0.0, 0.5));
}
