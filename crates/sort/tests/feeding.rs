//! How many threads sort: as many as the job says or, if it leaves that open, as many as the spill
//! places feed.
// A failed test may panic; clippy's exception for tests covers only functions with #[test].
#![allow(clippy::expect_used, clippy::unwrap_used)]

mod scene;

use datapipes_core::{Result, StagePlace};
use datapipes_sort::{NumberKind, RecordFormat, SortMethod, SortReport};
use datapipes_testkit::ThrottledDisk;
use scene::{Folder, Random, assert_same, sort, sort_records};

const MIB: usize = 1 << 20;
/// The most threads of these sorts.
const MOST: usize = 8;
const NUMBERS: RecordFormat = RecordFormat::Numbers { kind: NumberKind::U64, reverse: false };

/// Sorts by a method with runs in this place, and by so many threads.
fn sorted(
    input: &[u8],
    format: &RecordFormat,
    method: SortMethod,
    spill: StagePlace,
    threads: Option<usize>,
) -> SortReport {
    let folder = Folder::new();
    let path = folder.put("in/records", input);
    let job = folder.job(format.clone(), &[path]).memory_bytes(48 << 20).method(method);
    let report: Result<SortReport> = sort(job.spill(vec![spill]).threads(threads).max_threads(MOST));
    let report = report.unwrap_or_else(|e| panic!("{format:?}: {e}"));
    let expected = match format {
        RecordFormat::Records { .. } => sort_records(input, format, false),
        _ => {
            let (words, _) = input.as_chunks::<8>();
            let mut numbers: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
            numbers.sort_unstable();
            numbers.into_iter().flat_map(u64::to_le_bytes).collect()
        }
    };
    assert_same(&folder.sorted(), &expected, &format!("{format:?}"));
    assert!(report.runs > 0 || report.method.buckets > 0, "{report}");
    report
}

/// Random records of some kind, more than the memory takes.
fn records(format: &RecordFormat) -> Vec<u8> {
    let len = if let RecordFormat::Records { len, .. } = format { *len } else { 8 };
    Random(5).bytes((66 * MIB) / len * len)
}

const WAYS: [(RecordFormat, SortMethod); 2] =
    [(RecordFormat::SORT_BENCHMARK, SortMethod::Merge), (NUMBERS, SortMethod::Distribution)];

/// How many threads worked in the last phase.
fn workers(report: &SortReport) -> usize {
    if report.merge_threads == 0 {
        return usize::try_from(report.threads).unwrap();
    }
    let merged = report.merged_by_thread.iter().filter(|bytes| **bytes > 0).count();
    assert_eq!(report.merge_threads, merged as u64, "{report}");
    merged
}

#[test]
fn a_slow_spill_place_has_few_threads_and_memory_has_all() {
    for (format, method) in WAYS {
        let input = records(&format);
        // A place as fast as memory feeds all that there may be.
        let report = sorted(&input, &format, method, StagePlace::memory(160 << 20, None), None);
        assert_eq!(workers(&report), MOST, "{report}");
        // What the user says holds.
        let report = sorted(&input, &format, method, StagePlace::memory(160 << 20, None), Some(5));
        assert_eq!((workers(&report), report.threads_why.clone()), (5, None), "{report}");
        let disk = ThrottledDisk::new(env!("CARGO_TARGET_TMPDIR"), 256 << 20, 15_000_000);
        let disk = match disk.and_then(|disk| disk.hold_this_process().map(|()| disk)) {
            Ok(disk) => disk,
            Err(why) => {
                println!("SKIPPED: a_slow_spill_place_has_few_threads_and_memory_has_all: {why}");
                return;
            }
        };
        let report = sorted(&input, &format, method, StagePlace::folder(disk.at()), None);
        // Two would do; a busy machine may see a disk that is a little faster.
        assert!(workers(&report) <= MOST / 2, "{report}");
        assert!(report.threads_why.as_ref().is_some_and(|why| why.contains("the spill places take")), "{report}");
    }
}
