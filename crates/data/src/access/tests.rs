//! Tests of the patterns against their promises, and against naive twins.

use std::collections::{HashMap, HashSet};

use super::*;

/// Zipf's law by a table of all probabilities, as the naive twin.
fn shares(count: u64, exponent: f64) -> Vec<f64> {
    let weights: Vec<f64> = (1..=count).map(|r| (r as f64).powf(-exponent)).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|w| w / total).collect()
}

#[test]
fn zipf_draws_as_the_table_of_probabilities_says() {
    const DRAWS: u64 = 400_000;
    for (count, exponent) in [(1, 0.8), (2, 1.0), (7, 0.0), (50, 0.3), (50, 0.8), (50, 1.0), (50, 2.5)] {
        let (zipf, mut random) = (Zipf::new(count, exponent), Random::new(5, count));
        let mut seen = vec![0u64; count as usize];
        (0..DRAWS).for_each(|_| seen[zipf.draw(&mut random) as usize] += 1);
        // Chi-squared: its mean is the degrees of freedom, its variance twice that.
        let expected = shares(count, exponent).into_iter().map(|s| s * DRAWS as f64);
        let chi: f64 = expected.zip(&seen).map(|(e, &s)| (s as f64 - e).powi(2) / e).sum();
        let freedom = (count - 1) as f64;
        assert!(chi <= freedom + 5.0 * (2.0 * freedom).sqrt() + 1e-9, "{count} ranks, {exponent}: chi squared {chi}");
    }
}

#[test]
fn zipf_over_millions_keeps_its_head_and_its_tail() {
    let (count, exponent) = (33_000_000u64, 0.8);
    let (zipf, mut random) = (Zipf::new(count, exponent), Random::new(1, 1));
    let draws = 300_000;
    // The share of ranks below r is near (r/n)^0.2, with a correction from the harmonic sums.
    let sum = |n: f64| n.powf(0.2) / 0.2 - 4.437_538;
    for limit in [1000u64, 100_000, 10_000_000] {
        let below = (0..draws).filter(|_| zipf.draw(&mut random) < limit).count() as f64 / f64::from(draws);
        let expected = sum(limit as f64) / sum(count as f64);
        assert!((below - expected).abs() < 0.005, "below {limit}: {below} instead of {expected}");
    }
}

#[test]
fn scattering_is_a_permutation_that_leaves_no_neighbours() {
    for count in [1u64, 2, 3, 64, 1000, 65_537] {
        let scatter = Scatter::new(count, 9);
        let places: Vec<u64> = (0..count).map(|i| scatter.place(i)).collect();
        assert_eq!(places.iter().collect::<HashSet<_>>().len() as u64, count, "{count} is no permutation");
        assert!(places.iter().all(|&p| p < count));
        if count >= 1000 {
            let near = places.windows(2).filter(|w| w[0].abs_diff(w[1]) * 100 < count).count();
            assert!(near < count as usize / 10, "{near} of {count} stayed near their neighbours");
        }
    }
    assert_ne!(Scatter::new(1000, 1).place(7), Scatter::new(1000, 2).place(7));
    assert_eq!(Scatter::new(10, 1).place(12), 12);
}

const PAGES: ItemLayout = ItemLayout { items: 160_000, item_bytes: 128, stride_bytes: 4096 };

#[test]
fn a_seed_is_a_pattern() {
    for popularity in [
        Popularity::Uniform,
        Popularity::Zipf { exponent: 0.8 },
        Popularity::Drifting { exponent: 0.9, period: 10, step: 3 },
    ] {
        let reads = |seed| Items::new(PAGES, popularity, seed).take(1000).collect::<Vec<_>>();
        assert_eq!(reads(3), reads(3));
        assert_ne!(reads(3), reads(4));
        assert!(
            reads(3).iter().all(|r| r.len == 128 && r.offset.is_multiple_of(4096) && r.offset < PAGES.file_bytes())
        );
    }
}

#[test]
fn workloads_have_their_proportions_and_the_same_places() {
    for workload in Workload::ALL {
        let mixed = Mixed::new(PAGES, 4096, workload, Popularity::Uniform, 7);
        let reads: Vec<ReadRequest> = mixed.take(10_000).collect();
        let large = reads.iter().filter(|r| r.len == 4096).count() as u64;
        assert_eq!(large, workload.large_percent() * 100);
        assert!(reads.iter().all(|r| r.len == 4096 || r.len == 128));
        let items = Items::new(PAGES, Popularity::Uniform, 7).take(10_000).map(|r| r.offset);
        assert!(reads.iter().map(|r| r.offset).eq(items), "the sizes must not change the places");
    }
}

#[test]
fn the_hot_set_drifts() {
    let popularity = Popularity::Drifting { exponent: 0.9, period: 100, step: 10 };
    let mut items = Items::new(PAGES, popularity, 1);
    let hottest = |items: &mut Items| {
        let mut counts = HashMap::new();
        (0..20_000).for_each(|_| *counts.entry(items.next_index()).or_insert(0u32) += 1);
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|&(item, count)| (std::cmp::Reverse(count), item));
        counts.into_iter().take(500).map(|c| c.0).collect::<HashSet<_>>()
    };
    let (first, second) = (hottest(&mut items), hottest(&mut items));
    // 20,000 reads move the ranks by 2000: part of the hottest items are new, and after ten times
    // as many reads all of them.
    (0..8).for_each(|_| drop(hottest(&mut items)));
    let tenth = hottest(&mut items);
    let common = |other: &HashSet<u64>| first.intersection(other).count();
    assert!(common(&tenth) < 50 && common(&tenth) <= common(&second), "{} {}", common(&second), common(&tenth));
    let mut still = Items::new(PAGES, Popularity::Zipf { exponent: 0.9 }, 1);
    let first = hottest(&mut still);
    assert!(first.intersection(&hottest(&mut still)).count() > 200, "without drift the head stays");
}

#[test]
fn the_tables_are_those_of_the_paper() {
    assert_eq!(Recommender::rows(), 33_762_577);
    assert_eq!(Recommender::file_bytes() >> 20, 4121);
    for skew in [Skew::PerTable { exponent: 1.05 }, Skew::Traces { reads: 10_000 }] {
        let in_file =
            |r: ReadRequest| r.len == 128 && r.offset.is_multiple_of(128) && r.offset < Recommender::file_bytes();
        assert!(Recommender::new(skew, 1).take(10_000).all(in_file));
    }
    // One row of each table is read for a sample.
    let rows: Vec<u64> =
        Recommender::new(Skew::PerTable { exponent: 1.05 }, 1).take(26).map(|r| r.offset / 128).collect();
    let mut first = 0;
    for (row, count) in rows.iter().zip(CRITEO_ROWS) {
        assert!((first..first + count).contains(row));
        first += count;
    }
}

#[test]
fn hot_rows_take_their_share() {
    const READS: u64 = 500_000;
    let mut counts: HashMap<u64, u64> = HashMap::new();
    let reads = Recommender::new(Skew::Traces { reads: READS }, 3).take(READS as usize);
    reads.for_each(|r| *counts.entry(r.offset).or_default() += 1);
    let hot: Vec<u64> = counts.values().copied().filter(|&c| c > 32).collect();
    let (rows, reads) = (hot.len() as f64 / counts.len() as f64, hot.iter().sum::<u64>() as f64 / READS as f64);
    assert!((rows - 0.047).abs() < 0.002 && (reads - 0.62).abs() < 0.01, "{rows} of rows, {reads} of reads");
}

#[test]
fn the_social_graph_reads_as_linkbench_does() {
    let mut graph = SocialGraph::new(100_000, 11);
    let file_bytes = graph.file_bytes();
    let mut lens: HashMap<SocialRequest, Vec<u32>> = HashMap::new();
    for _ in 0..100_000 {
        let (request, read) = graph.next_request();
        assert!(read.offset + u64::from(read.len) <= file_bytes && read.len > 0, "{request:?} {read:?}");
        lens.entry(request).or_default().push(read.len);
    }
    for (request, share) in [
        (SocialRequest::LinkList, 50.7),
        (SocialRequest::Node, 12.9),
        (SocialRequest::LinkCount, 4.9),
        (SocialRequest::Link, 0.5),
    ] {
        let found = lens[&request].len() as f64 / 1e5;
        assert!((found - share / 69.0).abs() < 0.005, "{request:?}: {found}");
    }
    assert!(lens[&SocialRequest::LinkCount].iter().all(|&l| l == 16));
    let mut median = |request| {
        let lens = lens.get_mut(&request).unwrap();
        lens.sort_unstable();
        lens[lens.len() / 2]
    };
    // The sizes of reads, weighted by popularity, are near those of the graph.
    assert!((100..160).contains(&median(SocialRequest::Node)), "{}", median(SocialRequest::Node));
    assert!((28..36).contains(&median(SocialRequest::Link)), "{}", median(SocialRequest::Link));
}

/// Offsets computed in groups are those of packing all records one after the other.
#[test]
fn records_of_the_graph_are_packed_without_gaps() {
    let graph = SocialGraph::new(1000, 2);
    let spans = graph.spans();
    assert_eq!((spans.len(), spans[0].0), (3000, 0));
    assert!(spans.windows(2).all(|w| w[0].0 + w[0].1 == w[1].0));
    let (last, len) = spans[2999];
    assert_eq!(last + len, graph.file_bytes());
}

#[test]
fn sizes_have_the_median_and_the_spread_of_a_log_normal() {
    let mut lens: Vec<u64> = SocialGraph::new(100_000, 5).spans().into_iter().take(100_000).map(|s| s.1).collect();
    lens.sort_unstable();
    // The values are 128, and 128 e and 128 / e one sigma away (at 84.13 % and 15.87 %).
    for (quantile, expected) in [(0.5, 128.0), (0.8413, 347.9), (0.1587, 47.1)] {
        let found = lens[(quantile * 1e5) as usize] as f64;
        assert!((found / expected - 1.0).abs() < 0.03, "{quantile}: {found} instead of {expected}");
    }
}
