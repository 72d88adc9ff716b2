//! The conformance suite over every backend and every place of this machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datapipes::locator::{Endpoint, EndpointHandle, Locator, PlaceFacts, Reader};
use datapipes::{Error, Machine, Persistence, Reach, Ssd};
use datapipes_testkit::conformance::{CaseOutcome, CaseVerdict, PlaceKind, TestBlockDevice, TestPlace, run};

/// The simplest place that reads its bytes itself.
#[derive(Clone)]
struct Reading(Ssd);

impl Reader for Reading {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> datapipes::Result<()> {
        let mut done = 0;
        while done < into.len() {
            match rustix::io::pread(self.0.file().cached_fd(), &mut into[done..], offset + done as u64) {
                Ok(0) => {
                    return Err(Error::new(datapipes::ErrorKind::EndOfFile, "read", "the file").with_offset(offset));
                }
                Ok(n) => done += n,
                Err(e) => return Err(Error::os("read", e.raw_os_error(), "the file")),
            }
        }
        Ok(())
    }
}

impl Locator for Reading {
    fn endpoint(&self) -> Endpoint {
        let facts = PlaceFacts {
            kind: "reader",
            name: "reader".into(),
            reach: Reach::Reader,
            granularity: 1,
            alignment: 1,
            persistence: Persistence::AfterSync,
            len: None,
            node: None,
            core: None,
        };
        Endpoint { facts: Arc::new(facts), handle: EndpointHandle::Reader(Arc::new(self.clone())) }
    }
}

fn reader(disk: &Path) -> PlaceKind {
    let folder = disk.to_path_buf();
    let place = move || {
        let file = Ssd::unlinked_in(&folder)?;
        file.preallocate((96 << 10) + 37)?;
        Ok(TestPlace::in_front_of(Reading(file.clone()), file))
    };
    PlaceKind::new("reader", place).read_only()
}

#[test]
fn every_backend_and_every_locator_conforms() {
    let disk = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    std::fs::create_dir_all(&disk).unwrap();
    let machine = datapipes::discover();
    let mut kinds = PlaceKind::of_memory(machine.topology());
    kinds.extend(PlaceKind::of_files("disk", &disk));
    let shm = Path::new("/dev/shm");
    if shm.is_dir() {
        kinds.extend(PlaceKind::of_files("tmpfs", shm));
    } else {
        kinds.push(PlaceKind::absent("tmpfs", "there is no /dev/shm"));
    }
    kinds.extend(PlaceKind::of_persistent_memory(&disk));
    kinds.extend(PlaceKind::of_nodes(machine.topology()));
    kinds.extend(PlaceKind::of_devices(TestBlockDevice::some(&disk)));

    kinds.push(reader(&disk));

    leave_out(&mut kinds);

    let seed = datapipes_testkit::seed(0x5eed);
    let outcomes = run(&machine, &kinds, seed);
    print_skipped(&outcomes);
    let failed: Vec<_> = outcomes.iter().filter(|o| matches!(o.verdict, CaseVerdict::Failed(_))).collect();
    let passed = outcomes.iter().filter(|o| o.verdict == CaseVerdict::Passed).count();
    println!("{passed} ways passed, {} failed, {} in all (seed {seed})", failed.len(), outcomes.len());
    let list: String = failed.iter().map(|o| format!("{o}\n")).collect();
    assert!(failed.is_empty(), "{list}");
    nothing_was_skipped_silently(&machine, &kinds, &outcomes);
}

/// Removes the kinds that `DATAPIPES_CONFORMANCE_WITHOUT` lists (with commas), so that a slow
/// machine can run a part. Kinds that are not listed are tested, so a new kind is never left out by
/// accident.
fn leave_out(kinds: &mut Vec<PlaceKind>) {
    let Ok(listed) = std::env::var("DATAPIPES_CONFORMANCE_WITHOUT") else { return };
    let listed: Vec<&str> = listed.split(',').collect();
    kinds.retain(|kind| {
        let stays = !listed.contains(&kind.name.as_str());
        if !stays {
            println!("SKIPPED: conformance of {}: left out by DATAPIPES_CONFORMANCE_WITHOUT", kind.name);
        }
        stays
    });
}

/// Prints one line for each primitive and reason, with the number of pairs.
fn print_skipped(outcomes: &[CaseOutcome]) {
    let mut reasons: BTreeMap<(&str, String, &str), Vec<String>> = BTreeMap::new();
    for outcome in outcomes {
        let (word, why) = match &outcome.verdict {
            CaseVerdict::Skipped(why) => ("SKIPPED", why),
            CaseVerdict::NotApplicable(why) => ("NOT APPLICABLE", why),
            CaseVerdict::Passed | CaseVerdict::Failed(_) => continue,
        };
        let pair = format!("{} -> {}", outcome.source, outcome.target);
        reasons.entry((word, outcome.way.join(" then "), why)).or_default().push(pair);
    }
    for ((word, way, why), pairs) in reasons {
        let name = if way.is_empty() { "any primitive".to_owned() } else { way };
        println!("{word}: {name} for {} pairs ({}): {why}", pairs.len(), pairs[0]);
    }
}

/// Checks that every ordered pair has an outcome, that every possible pair has a primitive that
/// passed, and that every primitive of this machine passed somewhere.
fn nothing_was_skipped_silently(machine: &Machine, kinds: &[PlaceKind], outcomes: &[CaseOutcome]) {
    for (source, target) in kinds.iter().flat_map(|s| kinds.iter().map(move |t| (s, t))) {
        let of_pair: Vec<_> = outcomes.iter().filter(|o| o.source == source.name && o.target == target.name).collect();
        assert!(!of_pair.is_empty(), "{} -> {} has no outcome", source.name, target.name);
        let made = of_pair.iter().all(|o| !o.way.is_empty());
        let passed = of_pair.iter().any(|o| o.verdict == CaseVerdict::Passed);
        assert!(!made || passed, "{} -> {}: no way passed", source.name, target.name);
    }
    let silent = |o: &CaseOutcome| matches!(&o.verdict, CaseVerdict::Skipped(why) | CaseVerdict::NotApplicable(why) if why.is_empty());
    assert!(!outcomes.iter().any(silent));
    let passed: BTreeSet<_> =
        outcomes.iter().filter(|o| o.verdict == CaseVerdict::Passed).flat_map(|o| o.way.iter().copied()).collect();
    for primitive in machine.backends().iter().flat_map(|b| b.primitives()) {
        match primitive.available {
            // This machine has namespaces, and none of them may be written.
            Ok(_) if primitive.name == "uring-nvme" && std::env::var_os("DATAPIPES_BLOCK_DEVICES").is_none() => {
                println!("SKIPPED: {}: no namespace was given", primitive.name);
            }
            // Their places need a server, or a process that exports memory.
            Ok(_) if ["object-", "ucx-", "vm-"].iter().any(|of| primitive.name.starts_with(of)) => {
                println!("SKIPPED: {}: its places have a suite of their own, in the backend's crate", primitive.name);
            }
            Ok(_) => assert!(passed.contains(primitive.name), "{} passed nowhere", primitive.name),
            Err(why) => println!("SKIPPED: {}: absent: {why}", primitive.name),
        }
    }
}
