//! An input whose sample says nothing about the rest.

use datapipes_core::topology::Topology;
use datapipes_core::{Machine, StagePlace};
use datapipes_testkit::{Random, TempFolder, seed};

use super::splitters::places;
use crate::sort_method::SortMethod;
use crate::{Input, MIN_MEMORY, Output, RecordFormat, SortJob, SortReport};

const RECORD: usize = 100;
const RECORDS: usize = 130_000;

fn machine() -> Machine {
    let topology = Topology::discover();
    Machine::new(
        topology,
        vec![std::sync::Arc::new(datapipes_file::FileBackend::with(datapipes_file::FileBackendOptions::default()))],
    )
}

fn sort(folder: &TempFolder, bytes: &[u8], unique: bool) -> (SortReport, Vec<u8>) {
    let machine = machine();
    let (input, output) = (folder.join("input"), folder.join("output"));
    std::fs::write(&input, bytes).unwrap();
    let inputs = vec![Input::open(&input).unwrap()];
    let job = SortJob::between(&machine, RecordFormat::SORT_BENCHMARK, inputs, Output::to(&output).unwrap())
        .memory_bytes(MIN_MEMORY)
        .spill(vec![StagePlace::folder(folder.join("."))])
        .threads(2)
        .unique(unique)
        .method(SortMethod::Distribution);
    (crate::sort(&machine, job).unwrap(), std::fs::read(&output).unwrap())
}

#[test]
fn a_bucket_that_the_sample_did_not_show_becomes_runs() {
    let seed = seed(1);
    let random = &mut Random(seed);
    let folder = TempFolder::under(std::env::temp_dir()).unwrap();
    let mut bytes = random.bytes(RECORDS * RECORD);
    let buckets = sort(&folder, &bytes, false).0.method.buckets as usize;
    // All records that are not sampled lie in one bucket.
    let sampled = places(RECORDS as u64, RECORD, buckets);
    let mut hidden = vec![true; RECORDS];
    for first in sampled {
        hidden.iter_mut().skip(first as usize).take(2 * 4096 / RECORD).for_each(|h| *h = false);
    }
    for (record, _) in bytes.chunks_exact_mut(RECORD).zip(hidden).filter(|(_, hidden)| *hidden) {
        record[..6].fill(0x77);
        record[6] &= 3;
        record[7..10].fill(0);
    }
    for unique in [false, true] {
        let (report, sorted) = sort(&folder, &bytes, unique);
        let mut expected: Vec<&[u8]> = bytes.chunks_exact(RECORD).collect();
        expected.sort_by_key(|r| &r[..10]);
        if unique {
            expected.dedup_by_key(|r| &r[..10]);
        }
        assert!(sorted == expected.concat(), "seed {seed}, unique {unique}: the output is wrong");
        assert_eq!((report.method.name, report.method.merged_buckets), ("distribution", 1), "{}", report.method);
        assert!(report.runs > 1 && report.merge_passes == 1, "{report}");
    }
}
