//! `text::Order` compared with `LC_ALL=C sort`: the same bytes over seeded random inputs and option
//! sets.
//!
//! Each case sorts a few hundred short lines, to keep the number of processes low. Without GNU sort
//! on the machine the test says so and is skipped. `DATAPIPES_SEED` and `TEXT_CASES` choose another
//! seed and a longer run, `GNU_SORT` another sort.
// A failed test may panic; clippy's exception for tests covers only functions with #[test].
#![allow(clippy::expect_used, clippy::unwrap_used)]

mod cases;

use std::cmp::Ordering;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use cases::{Case, GnuSort, Random, SALT, setting};
use datapipes_sort::text::TextOrder;

/// The file of --random-source.
fn salt() -> &'static Path {
    static WRITTEN: std::sync::OnceLock<std::path::PathBuf> = std::sync::OnceLock::new();
    WRITTEN.get_or_init(|| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("salt");
        std::fs::write(&path, SALT).unwrap();
        path
    })
}

fn run(gnu: &GnuSort, case: &Case, extra: &[&str]) -> (Option<i32>, Vec<u8>) {
    let mut command = gnu.command();
    command.args(case.arguments()).args(extra).arg("--random-source").arg(salt());
    let piped = command.arg("--parallel=1").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = piped.spawn().expect("sort starts");
    let mut stdin = child.stdin.take().expect("it was piped");
    // Under -c, sort may exit before it has read everything.
    let _ = stdin.write_all(&case.input);
    drop(stdin);
    let output = child.wait_with_output().expect("sort ends");
    (output.status.code(), output.stdout)
}

#[test]
fn same_bytes_as_the_system_sort() {
    let Some(gnu) = GnuSort::find("same_bytes_as_the_system_sort") else { return };
    let (first, cases) = (datapipes_testkit::seed(1), setting("TEXT_CASES", 3000));
    for seed in first..first + cases {
        let case = Case::new(seed, &gnu);
        let order = case.options.compile().unwrap_or_else(|e| panic!("seed {seed}: {}: {e}", case.shown()));
        let (want, got) = (run(&gnu, &case, &[]).1, case.sorted(&order));
        if want != got {
            let lines = |bytes: &[u8]| bytes.split(|&b| b == case.terminator).map(<[u8]>::to_vec).collect::<Vec<_>>();
            let (want, got) = (lines(&want), lines(&got));
            let at = want.iter().zip(&got).position(|(a, b)| a != b).unwrap_or(want.len().min(got.len()));
            let show =
                |lines: &[Vec<u8>]| lines.get(at).map_or("(nothing)".into(), |line| line.escape_ascii().to_string());
            panic!(
                "seed {seed}: sort {}: line {at}: sort has {:?}, Order has {:?}",
                case.shown(),
                show(&want),
                show(&got)
            );
        }
    }
}

#[test]
fn same_verdict_as_sort_c() {
    let Some(gnu) = GnuSort::find("same_verdict_as_sort_c") else { return };
    let first = datapipes_testkit::seed(1);
    for seed in first..first + 300 {
        let mut case = Case::new(seed, &gnu);
        let order = case.options.compile().unwrap();
        if seed % 2 == 0 {
            case.input = case.sorted(&order);
        } else if let Some(third) = case.input.iter().enumerate().filter(|(_, b)| **b == case.terminator).nth(1) {
            // Short inputs are sometimes in order by chance.
            let len = third.0;
            case.input.truncate(len);
        }
        let in_order = case.lines().windows(2).all(|pair| order.in_order(pair[0], pair[1]));
        let want = if in_order { Some(0) } else { Some(1) };
        assert_eq!(run(&gnu, &case, &["-c"]).0, want, "seed {seed}: sort -c {}", case.shown());
    }
}

/// Compares the order with itself; it needs no sort.
#[test]
fn prefixes_follow_the_order() {
    let gnu = GnuSort { program: "sort".into(), version: "sort (GNU coreutils) 9.11".into() };
    let first = datapipes_testkit::seed(1);
    for seed in first..first + 4000 {
        let case = Case::new(seed, &gnu);
        let order = case.options.compile().unwrap();
        let lines = case.lines();
        let prefixes: Vec<u64> = lines.iter().map(|line| order.prefix(line)).collect();
        let random = &mut Random(seed);
        for _ in 0..lines.len() * 4 {
            let (i, j) = (random.below(lines.len()), random.below(lines.len()));
            let (full, keys) = (order.compare(lines[i], lines[j]), order.compare_keys(lines[i], lines[j]));
            let context = || {
                let (a, b) = (lines[i].escape_ascii(), lines[j].escape_ascii());
                format!("seed {seed}: {}: {a:?} {b:?}", case.shown())
            };
            match prefixes[i].cmp(&prefixes[j]) {
                Ordering::Equal if order.prefix_decides() => assert_eq!(keys, Ordering::Equal, "{}", context()),
                Ordering::Equal => {}
                other => assert_eq!((full, keys), (other, other), "{}", context()),
            }
            assert_eq!(order.compare(lines[j], lines[i]), full.reverse(), "{}", context());
            assert!(order.prefix_from(lines[i], 0) == prefixes[i] || !plain(&order), "{}", context());
        }
    }
}

/// Compares normalized keys with the order; it needs no sort.
#[test]
fn normalized_keys_have_the_order_of_lines() {
    let gnu = GnuSort { program: "sort".into(), version: "sort (GNU coreutils) 9.11".into() };
    let first = datapipes_testkit::seed(1);
    for seed in first..first + 4000 {
        let case = Case::new(seed, &gnu);
        let order = case.options.compile().unwrap();
        let lines = case.lines();
        let keys = |most: usize| {
            let of = |line: &&[u8]| {
                let mut key = Vec::new();
                order.push_key(line, most, &mut key);
                key.truncate(most);
                key
            };
            lines.iter().map(of).collect::<Vec<_>>()
        };
        let (whole, cut) = (keys(usize::MAX), keys(9));
        let random = &mut Random(seed);
        for _ in 0..lines.len() * 4 {
            let (i, j) = (random.below(lines.len()), random.below(lines.len()));
            let want = order.compare(lines[i], lines[j]);
            let (a, b) = (lines[i].escape_ascii(), lines[j].escape_ascii());
            assert_eq!(whole[i].cmp(&whole[j]), want, "seed {seed}: {}: {a:?} {b:?}", case.shown());
            assert_eq!(cut[i], whole[i][..whole[i].len().min(9)], "seed {seed}: {}: {a:?}, cut", case.shown());
        }
    }
}

fn plain(order: &TextOrder) -> bool {
    order.is_plain_bytes() || order.plain_reverse()
}
