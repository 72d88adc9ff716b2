//! Tests against the paper's tables: the exact figures exactly, the fitted ones within their
//! tolerances. The library is tested against its twin of a few lines.

use datapipes_cache::CachePolicy;
use datapipes_data::access::{ItemLayout, Items, Mixed, Popularity, ReadRequest, Recommender, Workload};

use super::experiment::*;
use super::library::{Library, budget_for};
use super::page_cache::{PAGE, PageCache};
use super::published::{RECOMMENDER, TABLE_2, TABLE_3};
use super::report::Agreement;
use super::system::{System, SystemCounters, SystemKind};
use super::timing::Timing;

const FULL: u64 = 2_500_000;

fn reads(fit: &FittedParameters, workload: Workload, popularity: Popularity) -> Mixed {
    Mixed::new(fit.layout(fit.small_bytes), fit.large_bytes, workload, popularity, 1)
}

fn run(kind: SystemKind, workload: Workload, popularity: Popularity, count: u64) -> SystemCounters {
    let fit = FittedParameters::fitted().for_reads(popularity);
    let reads = reads(&fit, workload, popularity);
    let system = System::new(kind, fit.timing, fit.page_cache(kind, workload, &reads), fit.fine_items);
    let mut system = system.asking_pages(fit.small_reads_ask_pages);
    reads.take(count as usize).for_each(|r| system.read(r));
    system.account()
}

/// Tables 2 and 3, the three systems without cache: the traffic is the sum of the bytes read, exact
/// to the byte and to the printed digit.
#[test]
fn without_cache_the_traffic_is_exact() {
    for (nth, workload) in Workload::ALL.into_iter().enumerate() {
        let large = FULL * workload.large_percent() / 100;
        let bytes = large * 4096 + (FULL - large) * 128;
        let account = run(SystemKind::PipetteUncached, workload, Popularity::Uniform, FULL);
        assert_eq!(account.host_bytes, bytes);
        assert_eq!((account.traffic_mib() * 10.0).round() / 10.0, TABLE_2.uncached[nth], "{workload:?}");
        // The other two systems, and zipf, move the same bytes; fewer reads show it.
        let few = |kind, popularity| run(kind, workload, popularity, 10_000).host_bytes;
        let expected = few(SystemKind::PipetteUncached, Popularity::Uniform);
        assert_eq!(few(SystemKind::Mmio, ZIPF), expected);
        assert_eq!(few(SystemKind::Dma, ZIPF), expected);
    }
    assert_eq!((FULL * 128) as f64 / f64::from(1 << 20), 305.17578125);
}

fn near(ours: f64, published: f64, tolerance: f64, what: &str) {
    let off = ours / published - 1.0;
    assert!(off.abs() <= tolerance, "{what}: {ours:.1} instead of {published}, {:+.1} %", off * 100.0);
}

/// The fitted rows. If the page cache alone decides, a tenth of the reads gives a tenth of the
/// traffic.
#[test]
fn the_fit_gives_tables_2_and_3_within_its_tolerances() {
    for (popularity, table, tolerance) in [(Popularity::Uniform, &TABLE_2, 0.031), (ZIPF, &TABLE_3, 0.025)] {
        let tenth = |kind, workload| run(kind, workload, popularity, FULL / 10).traffic_mib() * 10.0;
        near(tenth(SystemKind::BlockIo, Workload::E), table.block[4], tolerance, "block I/O");
        near(tenth(SystemKind::Pipette, Workload::A), table.pipette[0], tolerance, "Pipette A");
        for (nth, workload) in Workload::ALL.into_iter().enumerate().skip(1) {
            let ours = run(SystemKind::Pipette, workload, popularity, FULL).traffic_mib();
            near(ours, table.pipette[nth], tolerance, &format!("Pipette {workload:?} {popularity:?}"));
        }
    }
}

/// Shows why the two tables need different orders of look-up for small reads: each order meets one
/// table and not the other.
#[test]
fn one_way_of_small_reads_for_both_tables_is_out_of_reach() {
    let pipette_d = |popularity: Popularity, asks: bool| {
        let fit = FittedParameters::fitted();
        let reads = reads(&fit, Workload::D, popularity);
        let pages = fit.page_cache(SystemKind::Pipette, Workload::D, &reads);
        let mut system = System::new(SystemKind::Pipette, fit.timing, pages, fit.fine_items).asking_pages(asks);
        reads.take(FULL as usize).for_each(|r| system.read(r));
        system.account().traffic_mib()
    };
    near(pipette_d(Popularity::Uniform, true), TABLE_2.pipette[3], 0.031, "D, uniform, asking");
    near(pipette_d(ZIPF, false), TABLE_3.pipette[3], 0.025, "D, zipf, not asking");
    assert!(pipette_d(Popularity::Uniform, false) > 1.15 * TABLE_2.pipette[3]);
    assert!(pipette_d(ZIPF, true) < 0.8 * TABLE_3.pipette[3]);
}

/// A page cache that learns is far from table 3: at an exponent of 0.8, no cache that a kernel
/// could have reaches 748.
#[test]
fn a_real_page_cache_does_not_give_table_3() {
    let scale = Scale { reads: 500_000, ..Scale::default() };
    let ours = realistic_block_io(&FittedParameters::fitted(), ZIPF, &scale) * 5.0;
    assert!(ours > 861.0, "{ours}");
}

/// The library on the modelled device compared with its twin: the same hits, and the right bytes
/// (each read checks them).
#[test]
fn the_library_moves_what_its_twin_moves() {
    let fit = FittedParameters::fitted();
    let budget = budget_for(fit.fine_items, fit.small_bytes, CachePolicy::Pipette).unwrap();
    let library = |workload, popularity, count: u64| {
        let fit = fit.for_reads(popularity);
        let reads = reads(&fit, workload, popularity);
        let page_cache = fit.page_cache(SystemKind::Pipette, workload, &reads);
        let file_bytes = fit.layout(fit.small_bytes).file_bytes();
        let library = Library::new(fit.timing, file_bytes, page_cache, CachePolicy::Pipette, budget).unwrap();
        let mut library = library.asking_pages(fit.small_reads_ask_pages);
        reads.take(count as usize).for_each(|r| library.read(r).unwrap());
        library
    };
    for (popularity, published) in [(Popularity::Uniform, TABLE_2.pipette[4]), (ZIPF, TABLE_3.pipette[4])] {
        let of_library = library(Workload::E, popularity, FULL);
        let twin = run(SystemKind::Pipette, Workload::E, popularity, FULL);
        near(of_library.account().traffic_mib(), twin.traffic_mib(), 0.01, "library, E");
        near(of_library.account().traffic_mib(), published, 0.03, "library, E, paper");
        let items = of_library.metrics().items;
        assert!(items.abs_diff(fit.fine_items) * 100 <= fit.fine_items, "{items} items");
    }
    // Here large and small reads meet. A small read is never served from a block that is not kept,
    // so both move the same bytes.
    let ours = library(Workload::C, ZIPF, FULL).account().traffic_mib();
    near(ours, run(SystemKind::Pipette, Workload::C, ZIPF, FULL).traffic_mib(), 0.01, "library, C");
    near(ours, TABLE_3.pipette[2], 0.03, "library, C, paper");
}

/// Reads of any length at any place, across pages and in small budgets, under each policy, return
/// the right bytes.
#[test]
fn the_library_gives_the_right_bytes_of_a_modelled_device() {
    let file_bytes = 3 << 20;
    for policy in CachePolicy::ALL {
        let mut library =
            Library::new(Timing::calibrated(), file_bytes, PageCache::recent(50), policy, 2 << 20).unwrap();
        let layout = ItemLayout { items: file_bytes / 64 - 200, item_bytes: 0, stride_bytes: 64 };
        let drifting = Popularity::Drifting { exponent: 0.9, period: 20, step: 7 };
        for (nth, at) in Items::new(layout, drifting, 5).take(30_000).enumerate() {
            let len = [8, 128, 100, 1, 512, 3000, 4096, 9000][nth % 8];
            library.read(ReadRequest { offset: at.offset + nth as u64 % 3, len }).unwrap();
        }
        let account = library.account();
        assert!(account.fine_hits > 1000 && account.host_bytes > 0, "{policy:?}: {account:?}");
    }
    let mut library =
        Library::new(Timing::calibrated(), 100, PageCache::empty(), CachePolicy::Pipette, 2 << 20).unwrap();
    assert!(library.read(ReadRequest { offset: 90, len: 20 }).is_err(), "beyond the end of the file");
}

/// Figure 8: distances, slope and crossings are within what the text says. Pipette's 2 us hold
/// within 10 % at each size, and block I/O's 33.8 times that lies between the extremes over the
/// sizes, which are within 10 % of it.
#[test]
fn latencies_have_the_distances_of_figure_8() {
    let scale = Scale { reads: 200_000, ..Scale::default() };
    let by_size: Vec<[SystemCounters; 5]> =
        SIZES.iter().map(|&s| latencies(&FittedParameters::fitted(), s, &scale)).collect();
    let relations = super::figures::relations(&by_size);
    for relation in &relations {
        let (low, high) = relation.published;
        let within = match relation.what {
            // The text has one number; the model has two, at neighbouring sizes or as extremes over
            // all sizes.
            what if what.contains("passes") || what.contains("(times)") => {
                relation.ours.0 <= low && low < relation.ours.1
            }
            _ => relation.ours.0 >= low && relation.ours.1 <= high,
        };
        assert!(within && relation.standing != Agreement::OutOfReach, "{relation:?}");
        if relation.what.contains("(times)") {
            near(relation.ours.0, low, 0.1, relation.what);
            near(relation.ours.1, low, 0.1, relation.what);
        }
    }
    for column in &by_size {
        let [block, _, dma, uncached, pipette] = column.map(|a| a.latency_us());
        assert!(pipette < uncached && uncached < dma && dma < block);
        near(pipette, 2.0, 0.1, "Pipette's latency");
    }
}

/// Figures 6 and 7: the first and the last system, and where the lines rise.
#[test]
fn throughput_has_the_order_of_figures_6_and_7() {
    let (fit, scale) = (FittedParameters::fitted(), Scale { reads: 100_000, ..Scale::default() });
    let budget = budget_for(fit.fine_items, fit.small_bytes, CachePolicy::Pipette).unwrap();
    for popularity in [Popularity::Uniform, ZIPF] {
        let fit = fit.for_reads(popularity);
        let over_block = |workload| {
            let column = synthetic(&fit, workload, popularity, &scale, budget).unwrap();
            column.map(|a| a.reads_per_s() / column[0].reads_per_s())
        };
        let (a, b, c) = (over_block(Workload::A), over_block(Workload::B), over_block(Workload::C));
        // In A there is no overhead, and MMIO is last. Then Pipette rises and stays first.
        assert!((a[4] - 1.0).abs() < 0.01 && (a[5] - 1.0).abs() < 0.01 && a[1] < a[2] && a[1] < 1.0, "{a:?}");
        assert!(b[4] > a[4] && c[4] > b[4] && c[5] > b[5], "{b:?} {c:?}");
        let e = over_block(Workload::E);
        assert!(e[4] > e[3] && e[5] > e[3] && e[1] > e[2], "{e:?}");
    }
}

/// The numbers in the text, with as many reads as the paper: 31.2 at E in figure 6 within 7 %, 1.1
/// at B in figure 7 within 2 %. The 1.4 at E in figure 7 is out of reach with these costs.
#[test]
fn throughput_has_the_numbers_of_figures_6_and_7() {
    let over_block = |workload, popularity| {
        let [pipette, block] =
            [SystemKind::Pipette, SystemKind::BlockIo].map(|kind| run(kind, workload, popularity, FULL).reads_per_s());
        pipette / block
    };
    near(over_block(Workload::E, Popularity::Uniform), 31.2, 0.07, "figure 6, E");
    near(over_block(Workload::B, ZIPF), 1.1, 0.02, "figure 7, B");
    let e = over_block(Workload::E, ZIPF);
    assert!(e > 10.0, "figure 7, E, where the paper has 1.4: {e}");
}

/// What follows about the applications from the text alone, and where it contradicts itself.
#[test]
fn the_applications_figures_that_can_be_checked() {
    assert_eq!(Recommender::file_bytes(), 33_762_577 * 128);
    let hit_ratio = 1.0 - TABLE_3.pipette[4] / (FULL as f64 * 128.0 / f64::from(1 << 20));
    assert_eq!((hit_ratio * 1e4).round() / 100.0, 89.09);
    let by_hits = (100.0 - RECOMMENDER.block.0) * 4096.0 / ((100.0 - RECOMMENDER.pipette.0) * 128.0);
    assert!((by_hits - 174.8).abs() < 0.1 && (1.0 / RECOMMENDER.traffic_part - 22.7).abs() < 0.1);
    // "9.4 times" for workload E should be 9.74.
    assert_eq!((TABLE_2.block[4] / TABLE_2.uncached[4] * 100.0).round() / 100.0, 9.74);
}

#[test]
fn an_application_is_run_with_the_memory_that_it_is_given() {
    let scale = Scale { reads: 100_000, nodes: 50_000, seed: 3 };
    let memory = MemoryBudget { page_mib: 16.0, fine_mib: 4.0 };
    for run in [
        application(recommender(&scale), memory, &FittedParameters::fitted(), &scale).unwrap(),
        application(recommender_by_table(&scale), memory, &FittedParameters::fitted(), &scale).unwrap(),
        application(social_graph(&scale), memory, &FittedParameters::fitted(), &scale).unwrap(),
    ] {
        assert!(run.page_mib <= 16.0 && run.fine_mib <= 4.0 && run.library_mib <= 4.1, "{run:?}");
        let columns = run.columns();
        assert!(columns.iter().all(|a| a.reads == 100_000 && a.elapsed > Default::default()));
        assert!(columns[4].host_bytes < columns[3].host_bytes && columns[3].host_bytes < columns[0].host_bytes);
    }
}

#[test]
fn equal_runs_give_equal_figures() {
    let fit = FittedParameters::fitted();
    let scale = Scale { reads: 20_000, nodes: 1000, seed: 9 };
    let one = || synthetic(&fit, Workload::C, ZIPF, &scale, 4 << 20).unwrap();
    assert_eq!(one(), one());
    let other = synthetic(&fit, Workload::C, ZIPF, &Scale { seed: 10, ..scale }, 4 << 20).unwrap();
    assert_ne!(one()[4], other[4]);
    assert_eq!(PageCache::ideal(0..3).bytes(), 3 * PAGE);
}
