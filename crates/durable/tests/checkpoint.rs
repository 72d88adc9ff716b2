//! Checkpoints as their users see them, on real files: saved, restored, damaged, cut, cancelled,
//! killed.
#![allow(clippy::expect_used, clippy::unwrap_used)]

mod scene;

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use datapipes_core::{Dram, ErrorKind, FileMode, Machine, MapOptions, Pages};
use datapipes_durable::checkpoint::{Checkpoints, Fallback, SaveOptions, ignore_progress};
use datapipes_file::{FaultInjector, FaultVerdict, FileBackendOptions, Operation};
use scene::{Killed, Random, Scratch, machine, machine_with, seed};

fn all() -> SaveOptions {
    SaveOptions::default().mode(FileMode::USUAL)
}

/// A region whose bytes follow from a seed.
fn region(seed: u64, len: usize) -> Dram {
    let options = MapOptions::default().pages(Pages::Small).prefault(false);
    let memory = Dram::allocate_with(len, options).unwrap();
    memory.lease_mut().unwrap().copy_from_slice(&Random(seed).bytes(len));
    memory
}

fn same(one: &Dram, other: &Dram) -> bool {
    one.lease().unwrap()[..] == other.lease().unwrap()[..]
}

fn saved_scene(machine: &Machine, scratch: &Scratch) -> (Checkpoints, Vec<(&'static str, Dram)>) {
    let store = Checkpoints::at(machine, scratch.path("store"));
    let regions = vec![("table", region(1, (5 << 20) + 123)), ("index", region(2, 1 << 20)), ("tiny", region(3, 7))];
    let names: Vec<(&str, &Dram)> = regions.iter().map(|(n, m)| (*n, m)).collect();
    store.save(&names, &all(), &mut ignore_progress).unwrap();
    (store, regions)
}

fn file(scratch: &Scratch, number: u64) -> std::path::PathBuf {
    scratch.path("store").join(format!("checkpoint-{number:020}"))
}

#[test]
fn what_was_saved_is_restored() {
    let (scratch, machine) = (Scratch::new(), machine());
    let store = Checkpoints::at(&machine, scratch.path("made/below"));
    assert_eq!(store.latest().unwrap_err().kind(), ErrorKind::NotFound);
    // One region is larger than a piece and not a multiple of anything, one is smaller than a
    // block, and one is a part of another region.
    let (large, small) = (region(1, (70 << 20) + 4097), region(2, 100));
    let part = large.range(12345, 1 << 20).unwrap();
    let mut seen = Vec::new();
    let mut watch = |p: datapipes_durable::checkpoint::CheckpointProgress| {
        seen.push(p);
        ControlFlow::Continue(())
    };
    let saved = store.save(&[("large", &large), ("small", &small), ("part", &part)], &all(), &mut watch).unwrap();
    let total = (large.len() + small.len() + part.len()) as u64;
    assert_eq!((saved.number, saved.bytes), (1, total));
    // All bytes of all regions were moved by some primitive.
    assert_eq!(saved.movements.iter().map(|hop| hop.counters.bytes).sum::<u64>(), total, "{:?}", saved.movements);
    assert!(saved.route.is_some());
    assert!(seen.is_sorted_by_key(|p| p.done) && seen.last().unwrap().done == total && seen.len() >= 5, "{seen:?}");
    let checkpoint = store.latest().unwrap();
    let names: Vec<&str> = checkpoint.manifest().regions.iter().map(|r| r.name.as_str()).collect();
    assert_eq!(names, ["large", "small", "part"]);
    checkpoint.verify(&mut ignore_progress).unwrap();
    // Restore into new regions, and into an existing one.
    let restored = checkpoint.restore(&mut ignore_progress).unwrap();
    for ((name, found), (expected_name, expected)) in
        restored.iter().zip([("large", &large), ("small", &small), ("part", &part)])
    {
        assert!(name == expected_name && same(found, expected), "{name}");
    }
    let target = region(9, large.len());
    checkpoint.restore_into(&[("large", &target)], &mut ignore_progress).unwrap();
    assert!(same(&target, &large));
    // A region that does not fit is refused before anything is changed.
    let error = checkpoint.restore_into(&[("small", &target)], &mut ignore_progress).unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains("100 bytes"), "{error}");
    let error = checkpoint.restore_into(&[("larg", &target)], &mut ignore_progress).unwrap_err();
    assert!(error.kind() == ErrorKind::NotFound && error.to_string().contains("large, small, part"), "{error}");
    assert!(same(&target, &large));
    assert_eq!(store.save(&[], &all(), &mut ignore_progress).unwrap_err().kind(), ErrorKind::InvalidInput);
    let twice = store.save(&[("a", &small), ("a", &part)], &all(), &mut ignore_progress).unwrap_err();
    assert!(twice.kind() == ErrorKind::InvalidInput && twice.to_string().contains("`a`"), "{twice}");
    let writer = small.lease_mut().unwrap();
    assert_eq!(store.save(&[("small", &small)], &all(), &mut ignore_progress).unwrap_err().kind(), ErrorKind::Busy);
    drop(writer);
    assert_eq!(scratch.names("made/below"), ["checkpoint-00000000000000000001"]);
}

#[test]
fn regions_of_no_bytes_are_saved_and_restored_like_others() {
    let (scratch, machine) = (Scratch::new(), machine());
    let store = Checkpoints::at(&machine, scratch.path("store"));
    let full = region(1, 5000);
    let empty = full.range(0, 0).unwrap();
    let orders: [&[(&str, &Dram)]; 4] = [
        &[("empty", &empty)],
        &[("empty", &empty), ("full", &full)],
        &[("full", &full), ("empty", &empty)],
        &[("empty", &empty), ("none", &empty), ("full", &full)],
    ];
    for regions in orders {
        let saved = store.save(regions, &all(), &mut ignore_progress).unwrap();
        let checkpoint = store.open(saved.number).unwrap();
        checkpoint.verify(&mut ignore_progress).unwrap();
        let restored = checkpoint.restore(&mut ignore_progress).unwrap();
        assert_eq!(restored.len(), regions.len());
        for ((name, memory), (wanted, bytes)) in restored.iter().zip(regions) {
            assert!(name == wanted && memory.len() == bytes.len() && same(memory, bytes), "{name}");
        }
        let into = Dram::allocate(5000).unwrap();
        let targets: Vec<(&str, Dram)> =
            regions.iter().map(|(name, bytes)| (*name, into.range(0, bytes.len()).unwrap())).collect();
        let targets: Vec<(&str, &Dram)> = targets.iter().map(|(name, memory)| (*name, memory)).collect();
        checkpoint.restore_into(&targets, &mut ignore_progress).unwrap();
        assert_eq!(store.restore_latest(Fallback::Refuse, &mut ignore_progress).unwrap().number, saved.number);
    }
    // A region of another length is refused.
    let last = store.latest().unwrap();
    assert_eq!(
        last.restore_into(&[("empty", &full)], &mut ignore_progress).unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
    assert_eq!(
        last.restore_into(&[("full", &empty)], &mut ignore_progress).unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
}

#[test]
fn writers_are_held_off_while_a_save_runs_and_not_longer() {
    let (scratch, machine) = (Scratch::new(), machine());
    let store = Checkpoints::at(&machine, scratch.path("store"));
    let (one, two) = (region(1, 40 << 20), region(2, 1 << 20));
    let mut busy = 0;
    let mut watch = |_| {
        // This includes a region that was saved already, or is still to be saved.
        busy += [&one, &two].iter().filter(|r| r.lease_mut().is_err_and(|e| e.kind() == ErrorKind::Busy)).count();
        let second =
            Checkpoints::at(&machine, scratch.path("store")).save(&[("x", &two)], &all(), &mut ignore_progress);
        assert_eq!(second.unwrap_err().kind(), ErrorKind::Busy, "two saves to one folder");
        ControlFlow::Continue(())
    };
    store.save(&[("one", &one), ("two", &two)], &all(), &mut watch).unwrap();
    assert!(busy >= 6 && busy % 2 == 0, "{busy}");
    assert!(one.lease_mut().is_ok() && two.lease_mut().is_ok());
}

#[test]
fn the_last_ones_are_kept() {
    let (scratch, machine) = (Scratch::new(), machine());
    let store = Checkpoints::at(&machine, scratch.path("store"));
    let memory = region(1, 10_000);
    for n in 1..=5 {
        let saved = store.save(&[("r", &memory)], &all().keep(2), &mut ignore_progress).unwrap();
        assert_eq!(saved.number, n);
        assert_eq!(saved.removed, if n > 2 { vec![n - 2] } else { vec![] });
    }
    // A damaged checkpoint does not count, and is removed by its age like the others.
    let path = file(&scratch, 5);
    fs::File::options().write(true).open(&path).unwrap().set_len(5000).unwrap();
    let numbers = |store: &Checkpoints| {
        let state = |l: datapipes_durable::checkpoint::CheckpointEntry| (l.number, l.state.is_ok());
        store.list().unwrap().into_iter().map(state).collect::<Vec<_>>()
    };
    assert_eq!(numbers(&store), [(4, true), (5, false)]);
    assert_eq!(store.latest().unwrap_err().kind(), ErrorKind::Corrupt, "the newest is not passed over in silence");
    let saved = store.save(&[("r", &memory)], &all().keep(2), &mut ignore_progress).unwrap();
    assert_eq!((saved.number, saved.removed), (6, vec![]), "two intact ones are kept");
    assert_eq!(numbers(&store), [(4, true), (5, false), (6, true)]);
    assert_eq!(store.keep_last(1).unwrap(), [5, 4]);
    assert_eq!(numbers(&store), [(6, true)]);
    // One that cannot be removed is no failure of the save.
    fs::create_dir(file(&scratch, 3)).unwrap();
    fs::write(std::path::Path::new(&file(&scratch, 3)).join("x"), b"").unwrap();
    let saved = store.save(&[("r", &memory)], &all().keep(1), &mut ignore_progress).unwrap();
    assert_eq!((saved.number, saved.removed), (7, vec![6]));
    assert!(saved.removal_error.is_some_and(|why| why.contains("checkpoint-00000000000000000003")));
    assert_eq!(store.latest().unwrap().manifest().number, 7);
    assert!(store.keep_last(1).is_err());
    fs::remove_dir_all(file(&scratch, 3)).unwrap();
    fs::rename(file(&scratch, 7), file(&scratch, 6)).unwrap();
    // A renamed checkpoint is not taken for another one.
    fs::rename(file(&scratch, 6), file(&scratch, 9)).unwrap();
    assert_eq!(store.latest().unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn a_damaged_chunk_is_named_and_an_older_one_is_taken_only_if_asked() {
    let (scratch, machine) = (Scratch::new(), machine());
    let (store, regions) = saved_scene(&machine, &scratch);
    let names: Vec<(&str, &Dram)> = regions.iter().map(|(n, m)| (*n, m)).collect();
    store.save(&names, &all(), &mut ignore_progress).unwrap();
    let path = file(&scratch, 2);
    let bytes = fs::read(&path).unwrap();
    let manifest = store.open(2).unwrap().manifest().clone();
    let random = &mut Random(seed(5));
    for turn in 0..24 {
        // Flip a bit of a region.
        let which = turn % 3;
        let r = &manifest.regions[which];
        let at = random.below(r.len as usize);
        let mut bad = bytes.clone();
        bad[r.offset as usize + at] ^= 1 << random.below(8);
        fs::write(&path, &bad).unwrap();
        let name = format!("byte {at} of region {}", r.name);
        let checkpoint = store.latest().unwrap();
        for error in [
            checkpoint.verify(&mut ignore_progress).unwrap_err(),
            checkpoint.restore(&mut ignore_progress).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}: {error}");
            assert_eq!(error.offset(), Some((at >> 20 << 20) as u64), "{name}: {error}");
            assert!(error.to_string().contains(&format!("region `{}`", r.name)), "{name}: {error}");
        }
        // The other regions are intact.
        let whole: Vec<_> = regions.iter().enumerate().filter(|(i, _)| *i != which).collect();
        for (_, (n, memory)) in whole {
            let target = region(8, memory.len());
            checkpoint.restore_into(&[(n, &target)], &mut ignore_progress).unwrap();
            assert!(same(&target, memory), "{name}");
        }
        assert_eq!(
            store.restore_latest(Fallback::Refuse, &mut ignore_progress).unwrap_err().kind(),
            ErrorKind::Corrupt
        );
        let restored = store.restore_latest(Fallback::Older, &mut ignore_progress).unwrap();
        assert!(restored.number == 1 && restored.skipped.len() == 1 && restored.skipped[0].0 == 2, "{restored:?}");
        assert!(same(&restored.regions[0].1, &regions[0].1));
    }
}

#[test]
fn cut_anywhere_it_is_no_checkpoint() {
    let (scratch, machine) = (Scratch::new(), machine());
    let (store, _) = saved_scene(&machine, &scratch);
    let path = file(&scratch, 1);
    let bytes = fs::read(&path).unwrap();
    let random = &mut Random(seed(6));
    // Cut to all lengths within the last blocks, at borders of blocks, and at some others.
    let near_end = bytes.len() - 200..bytes.len();
    let blocks = (0..bytes.len()).step_by(4096 * 37);
    let others: Vec<usize> = (0..60).map(|_| random.below(bytes.len())).collect();
    let mut cuts: Vec<usize> = near_end.chain(blocks).chain(others).chain([0, 1, 4095, 4096, 4097]).collect();
    cuts.sort_unstable();
    let file = fs::File::options().write(true).open(&path).unwrap();
    for cut in cuts.into_iter().rev() {
        file.set_len(cut as u64).unwrap();
        let error = store.latest().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "cut at {cut}: {error}");
        assert!(store.list().unwrap()[0].state.is_err());
    }
    // Append something to the file.
    for more in [1, 4096] {
        fs::write(&path, [&bytes[..], &vec![0; more]].concat()).unwrap();
        assert_eq!(store.latest().unwrap_err().kind(), ErrorKind::Corrupt);
    }
    fs::write(&path, &bytes).unwrap();
    store.latest().unwrap().verify(&mut ignore_progress).unwrap();
}

#[test]
fn a_cancelled_save_leaves_nothing_and_memory_is_free() {
    let (scratch, machine) = (Scratch::new(), machine());
    let store = Checkpoints::at(&machine, scratch.path("store"));
    let memory = Dram::allocate(200 << 20).unwrap();
    memory.lease_mut().unwrap().fill(7);
    for stop_after in 0..3 {
        let mut calls = 0;
        let mut watch = |_| {
            calls += 1;
            if calls > stop_after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let error = store.save(&[("r", &memory)], &all(), &mut watch).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
        // The folder was made for this checkpoint.
        assert!(!scratch.path("store").exists(), "something is left");
        assert!(memory.lease_mut().is_ok(), "the device still has it");
    }
    store.save(&[("r", &memory)], &all(), &mut ignore_progress).unwrap();
    let checkpoint = store.latest().unwrap();
    let mut stop = |_| ControlFlow::Break(());
    assert_eq!(checkpoint.verify(&mut stop).unwrap_err().kind(), ErrorKind::Interrupted);
    assert_eq!(checkpoint.restore_into(&[("r", &memory)], &mut stop).unwrap_err().kind(), ErrorKind::Interrupted);
    assert!(memory.lease_mut().is_ok());
}

struct NthWrite {
    seen: AtomicU64,
    at: u64,
    verdict: FaultVerdict,
}

impl FaultInjector for NthWrite {
    fn verdict(&self, op: &Operation) -> FaultVerdict {
        let hit = op.write && self.seen.fetch_add(1, SeqCst) >= self.at && op.len > 4096;
        if hit { self.verdict } else { FaultVerdict::Pass }
    }
}

#[test]
fn short_writes_change_nothing_and_errors_leave_nothing() {
    let scratch = Scratch::new();
    let memory = region(1, (20 << 20) + 5);
    let with = |at, verdict| {
        let faults = Arc::new(NthWrite { seen: AtomicU64::new(0), at, verdict });
        machine_with(FileBackendOptions::default().faults(faults).request_bytes(1 << 20))
    };
    let store = Checkpoints::at(&with(0, FaultVerdict::Short(70_000)), scratch.path("store"));
    store.save(&[("r", &memory)], &all(), &mut ignore_progress).unwrap();
    let healthy = Checkpoints::at(&machine(), scratch.path("store"));
    assert!(same(&healthy.latest().unwrap().restore(&mut ignore_progress).unwrap()[0].1, &memory));
    for (at, errno, kind) in
        [(0, libc::EIO, ErrorKind::Device), (7, libc::ENOSPC, ErrorKind::NoSpace), (17, libc::EIO, ErrorKind::Device)]
    {
        let store = Checkpoints::at(&with(at, FaultVerdict::Errno(errno)), scratch.path("store"));
        let error = store.save(&[("r", &memory)], &all(), &mut ignore_progress).unwrap_err();
        assert_eq!((error.kind(), error.errno()), (kind, Some(errno)), "{error}");
        assert_eq!(scratch.names("store"), ["checkpoint-00000000000000000001"]);
        assert!(memory.lease_mut().is_ok());
    }
    assert_eq!(healthy.latest().unwrap().manifest().number, 1);
}

/// The child process of the test below.
#[test]
#[ignore = "run by killed_at_any_moment, which kills it"]
fn child_saves_until_killed() {
    let dir = std::env::var_os("DURABLE_CHILD").expect("its parent names the folder");
    let store = Checkpoints::at(&machine(), dir);
    for turn in store.list().unwrap_or_default().last().map_or(1, |l| l.number + 1).. {
        // All regions of a checkpoint follow from its number.
        let (a, b) = (region(turn, 6 << 20), region(turn + 1000, 300_000));
        let saved = store.save(&[("a", &a), ("b", &b)], &all().keep(3), &mut ignore_progress).unwrap();
        assert_eq!(saved.number, turn);
        println!("saved {turn}");
    }
}

#[test]
fn killed_at_any_moment() {
    let seed = seed(21);
    let random = &mut Random(seed);
    let scratch = Scratch::new();
    let dir = scratch.path("store");
    let store = Checkpoints::at(&machine(), &dir);
    let mut most = 0;
    for kill in 0..16 {
        let name = format!("seed {seed}, kill {kill}");
        let told = Killed::child("child_saves_until_killed", &dir).after(random.below(4), random.next() % 40_000);
        let told = told.iter().filter_map(|l| l.split("saved ").nth(1)?.parse::<u64>().ok()).max().unwrap_or(most);
        if !Path::new(&dir).exists() {
            assert_eq!(told, 0, "{name}");
            continue;
        }
        let listed = store.list().unwrap();
        for l in &listed {
            assert!(l.state.is_ok(), "{name}: a half-written one has a name: {l:?}");
            let restored = store.open(l.number).unwrap().restore(&mut ignore_progress).unwrap();
            assert!(same(&restored[0].1, &region(l.number, 6 << 20)), "{name}: {}", l.number);
            assert!(same(&restored[1].1, &region(l.number + 1000, 300_000)), "{name}: {}", l.number);
        }
        let newest = listed.last().map_or(0, |l| l.number);
        assert!(newest >= told, "{name}: {told} was saved and the newest is {newest}");
        assert!(listed.len() <= 4, "{name}: {} are kept", listed.len());
        most = newest;
    }
    println!("{most} checkpoints were saved");
    assert!(most >= 8, "{most}: the children are told to save more than that");
}
