//! The conformance suite with a cache of fine-grained reads as a further place, over a small cache
//! and a file.
#![allow(clippy::unwrap_used)]

mod fixture;

use datapipes_cache::{CachePolicy, FineGrained};
use datapipes_core::Ssd;
use datapipes_testkit::conformance::{CaseOutcome, CaseVerdict, PlaceKind, TestPlace, run};
use fixture::{machine, small};

const LEN: u64 = (96 << 10) + 37;

#[test]
fn a_cache_is_a_place_to_read_from() {
    let disk = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let folder = disk.clone();
    let cache = move || {
        let file = Ssd::unlinked_in(&folder)?;
        file.preallocate(LEN)?;
        Ok(TestPlace::in_front_of(FineGrained::over(&file, small(CachePolicy::default()))?, file))
    };
    let mut kinds = vec![PlaceKind::new("fine-grained", cache).read_only()];
    kinds.extend(PlaceKind::of_memory(machine().topology()));
    kinds.extend(PlaceKind::of_files("disk", &disk));
    // The other pairs of these places are tested elsewhere, so one of each kind is enough.
    kinds.retain(|k| ["fine-grained", "dram", "cache-l2", "disk-auto", "disk-cached"].contains(&k.name.as_str()));
    let outcomes = run(machine(), &kinds, fixture::seed());
    let failed: String =
        outcomes.iter().filter(|o| matches!(o.verdict, CaseVerdict::Failed(_))).map(|o| format!("{o}\n")).collect();
    assert!(failed.is_empty(), "{failed}");
    let ran = |o: &CaseOutcome| matches!(o.verdict, CaseVerdict::Passed | CaseVerdict::Failed(_));
    for outcome in outcomes.iter().filter(|o| o.source == "fine-grained" && !ran(o)) {
        println!("{outcome}");
    }
    // A transfer into every other place passed.
    for kind in &kinds[1..] {
        let passed = |o: &&CaseOutcome| {
            o.source == "fine-grained"
                && o.target == kind.name
                && o.verdict == CaseVerdict::Passed
                && o.way[0] == "read-itself"
        };
        let skipped = outcomes.iter().all(|o| o.target != kind.name || !ran(o));
        assert!(skipped || outcomes.iter().any(|o| passed(&o)), "no way into {} passed", kind.name);
    }
}
