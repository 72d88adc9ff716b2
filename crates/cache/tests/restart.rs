//! Warm restart: saving and loading, over files that changed or did not, and with damaged
//! snapshots.
#![allow(clippy::unwrap_used)]

mod fixture;

use std::path::Path;
use std::time::Duration;

use datapipes_cache::{CacheOptions, CachePolicy, ExternalChanges, FineGrained, LoadSummary};
use datapipes_core::{ErrorKind, Ssd};
use fixture::{File, Random, noise, seed, small};

const LEN: usize = 256 << 10;

/// Returns settings for files that nobody else writes while the cache is open. Otherwise a file as
/// young as these might be half written.
fn alone(policy: CachePolicy) -> CacheOptions {
    let mut config = small(policy);
    config.outside = ExternalChanges::Never;
    config
}

fn saved(file: &File, policy: CachePolicy) -> (std::path::PathBuf, u64) {
    let fine = FineGrained::over(&Ssd::open(file.path()).unwrap(), alone(policy)).unwrap();
    let mut r = Random(5);
    for _ in 0..3 {
        // Some items lie in one sector, some in one page, and some are large.
        for i in 0..150u64 {
            let len = [8, 128, 128, 300][(i % 4) as usize];
            fine.read(i * 700 % (LEN as u64 - 300), &mut vec![0; len]).unwrap();
        }
        fine.read(r.below(30) * 4096, &mut [0; 4096]).unwrap();
    }
    let path = file.beside(".snapshot");
    let items = fine.save(&path).unwrap();
    (path, items)
}

/// Checks that cached and uncached reads return the right bytes.
fn is_right(fine: &FineGrained, bytes: &[u8]) {
    for at in (0..LEN - 700).step_by(700) {
        for len in [8, 128, 300] {
            let mut out = vec![0; len];
            fine.read(at as u64, &mut out).unwrap();
            assert!(out == bytes[at..at + len], "{len} bytes at {at}");
        }
    }
}

fn nothing_else(path: &Path, expected: usize) {
    let stem = path.file_name().unwrap().to_str().unwrap().to_owned();
    let names: Vec<_> = std::fs::read_dir(path.parent().unwrap())
        .unwrap()
        .filter_map(|e| e.unwrap().file_name().into_string().ok())
        .filter(|n| n.contains(&stem))
        .collect();
    assert_eq!(names.len(), expected, "left behind: {names:?}");
}

#[test]
fn what_was_read_often_is_cached_again() {
    for policy in CachePolicy::ALL {
        let bytes = noise(LEN, 8);
        let file = File::with(&bytes);
        let (snapshot, items) = saved(&file, policy);
        assert!(items > 20, "{policy:?}: {items}");
        let fine = FineGrained::over(&Ssd::open(file.path()).unwrap(), small(policy)).unwrap();
        let warmed = fine.load(&snapshot).unwrap();
        assert!(!warmed.read_again && warmed.items * 10 >= items * 8, "{policy:?}: {warmed:?} of {items}");
        assert_eq!(fine.metrics().device_reads, 0);
        assert_eq!(fine.metrics().items as u64, warmed.items);
        is_right(&fine, &bytes);
        assert!(fine.metrics().hits >= warmed.items);
        // Saving replaces the snapshot.
        fine.save(&snapshot).unwrap();
        nothing_else(file.path(), 2);
        std::fs::remove_file(&snapshot).unwrap();
    }
}

#[test]
fn what_was_read_while_a_change_may_not_have_been_over_is_read_again() {
    let bytes = noise(LEN, 8);
    let file = File::with(&bytes);
    let snapshot = file.beside(".snapshot");
    for settles in [false, true] {
        // It was written just now, perhaps not completely. If this machine is too slow for that, it
        // tries again.
        'again: loop {
            let written = std::time::Instant::now();
            std::fs::write(file.path(), &bytes).unwrap();
            let fine = FineGrained::over(&Ssd::open(file.path()).unwrap(), small(CachePolicy::default())).unwrap();
            loop {
                (0..3).for_each(|_| fine.read(640, &mut [0; 8]).unwrap());
                assert_eq!(fine.save(&snapshot).unwrap(), 1);
                let again = FineGrained::over(&Ssd::open(file.path()).unwrap(), small(CachePolicy::default())).unwrap();
                let warmed = again.load(&snapshot).unwrap();
                is_right(&again, &bytes);
                match warmed {
                    LoadSummary { items: 1, read_again: false, .. } if settles => break 'again,
                    LoadSummary { items: 1, read_again: true, .. } if !settles => break 'again,
                    LoadSummary { items: 1, read_again: true, .. } => {}
                    LoadSummary { items: 1, .. } if written.elapsed() >= Duration::from_millis(900) => continue 'again,
                    other => panic!("settles: {settles}: {other:?}"),
                }
                assert!(written.elapsed() < Duration::from_secs(60), "it never settles");
                std::thread::sleep(Duration::from_millis(100));
                // Items that were read before are dropped once the change is old enough.
                fine.maintain();
            }
        }
    }
    std::fs::remove_file(&snapshot).unwrap();
}

/// Lets another process write the whole file.
fn another_process_writes(path: &Path, bytes: &[u8]) {
    let from = path.with_extension("new");
    std::fs::write(&from, bytes).unwrap();
    let mut command = std::process::Command::new("dd");
    command.arg(format!("if={}", from.display())).arg(format!("of={}", path.display()));
    assert!(command.args(["conv=notrunc", "status=none", "bs=1M"]).status().unwrap().success());
    std::fs::remove_file(&from).unwrap();
}

/// Reads a byte several times, and saves that.
fn save_one(path: &Path, config: CacheOptions, snapshot: &Path) {
    let fine = FineGrained::over(&Ssd::open(path).unwrap(), config).unwrap();
    (0..3).for_each(|_| fine.read(4096, &mut [0; 8]).unwrap());
    assert_eq!(fine.save(snapshot).unwrap(), 1);
}

#[test]
fn a_file_that_changes_again_within_a_second_of_its_clock_is_read_again() {
    let dir = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let mounted = match datapipes_testkit::Mounted::ext4_of_seconds(&dir, 8 << 20) {
        Ok(mounted) => mounted,
        Err(e) => {
            return println!("SKIPPED: a_file_that_changes_again_within_a_second_of_its_clock_is_read_again: {e}");
        }
    };
    let (path, snapshot) = (mounted.path("file"), mounted.path("snapshot"));
    for config in [small(CachePolicy::default()), alone(CachePolicy::default())] {
        // All of this happens within one second, if the machine is fast enough.
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        std::thread::sleep(Duration::from_nanos(1_010_000_000 - u64::from(now.subsec_nanos())));
        std::fs::write(&path, [1; 16384]).unwrap();
        save_one(&path, config.clone(), &snapshot);
        another_process_writes(&path, &[2; 16384]);
        let fine = FineGrained::over(&Ssd::open(&path).unwrap(), config).unwrap();
        let warmed = fine.load(&snapshot).unwrap();
        let mut out = [0; 8];
        fine.read(4096, &mut out).unwrap();
        assert_eq!((out, warmed.read_again), ([2; 8], true));
    }
}

#[test]
fn a_snapshot_of_another_file_that_looks_the_same_is_not_taken() {
    use std::os::unix::fs::MetadataExt;
    let look = |file: &File| {
        let meta = std::fs::metadata(file.path()).unwrap();
        (meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec())
    };
    // Both are written in one tick of the clock. Sometimes it ticks in between.
    let pairs = std::iter::repeat_with(|| [1, 2].map(|byte| File::with(&[byte; 16384])));
    let Some([one, two]) = pairs.take(200).find(|[one, two]| look(one) == look(two)) else {
        return println!("SKIPPED: a_snapshot_of_another_file_that_looks_the_same_is_not_taken: no two files do");
    };
    let snapshot = one.beside(".snapshot");
    save_one(one.path(), alone(CachePolicy::default()), &snapshot);
    for (file, byte, read_again) in [(&one, 1, false), (&two, 2, true)] {
        let fine = FineGrained::over(&Ssd::open(file.path()).unwrap(), alone(CachePolicy::default())).unwrap();
        let warmed = fine.load(&snapshot).unwrap();
        let mut out = [0; 8];
        fine.read(4096, &mut out).unwrap();
        assert_eq!((out, warmed.read_again, warmed.items), ([byte; 8], read_again, 1));
    }
    std::fs::remove_file(&snapshot).unwrap();
}

/// Images that are built in the same way share UUID, inodes and times.
#[test]
fn a_file_of_another_image_that_looks_the_same_is_not_taken() {
    const PAGES: u64 = 100;
    let page = |at: u64, version: u8| {
        let mut page = vec![version; 4096];
        page[..16].copy_from_slice(format!("page {at:04} of 100").as_bytes());
        page
    };
    let dir = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    // With times that anybody may have set every item is compared, otherwise a sample.
    for (whole_seconds, changed) in [(true, 77..78), (false, 0..PAGES), (false, 0..0)] {
        let bytes = 16 << 20;
        let mounted = match whole_seconds {
            true => datapipes_testkit::Mounted::ext4_of_seconds(&dir, bytes),
            false => datapipes_testkit::Mounted::ext4(&dir, bytes),
        };
        let mounted = match mounted {
            Ok(mounted) => mounted,
            Err(e) => return println!("SKIPPED: a_file_of_another_image_that_looks_the_same_is_not_taken: {e}"),
        };
        let (path, snapshot) = (mounted.path("file"), File::with(&[]).beside(".snapshot"));
        std::fs::write(&path, (0..PAGES).flat_map(|at| page(at, 1)).collect::<Vec<u8>>()).unwrap();
        std::fs::File::open(&path).unwrap().sync_all().unwrap();
        let look = || {
            use std::os::unix::fs::MetadataExt;
            let meta = std::fs::metadata(&path).unwrap();
            ((meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec(), meta.ino()), meta.dev())
        };
        let before = look();
        let read = |fine: &FineGrained, at: u64| {
            let mut out = [0; 64];
            fine.read(at * 4096 + 64, &mut out).unwrap();
            out
        };
        {
            let fine = FineGrained::over(&Ssd::open(&path).unwrap(), alone(CachePolicy::default())).unwrap();
            (0..3).for_each(|_| (0..PAGES).for_each(|at| assert_eq!(read(&fine, at), [1; 64])));
            assert!(fine.save(&snapshot).unwrap() >= PAGES);
        }
        let replaced: Vec<_> = changed.clone().map(|at| (page(at, 1), page(at, 2))).collect();
        mounted.mount_again_with(&replaced).unwrap();
        assert_eq!(look().0, before.0, "it looks the same");
        let fine = FineGrained::over(&Ssd::open(&path).unwrap(), alone(CachePolicy::default())).unwrap();
        let warmed = fine.load(&snapshot).unwrap();
        for at in 0..PAGES {
            let version = if changed.contains(&at) { 2 } else { 1 };
            assert_eq!(read(&fine, at), [version; 64], "page {at} of {changed:?}: {warmed:?}");
        }
        assert!(warmed.items >= PAGES, "{warmed:?}");
        // The loop device may be another one by then, which counts as another file system.
        if changed.is_empty() && look().1 == before.1 {
            assert!(!warmed.read_again, "{warmed:?}");
        }
        drop(fine);
        std::fs::remove_file(&snapshot).unwrap();
    }
}

#[test]
fn a_file_that_changed_is_read_again() {
    let bytes = noise(LEN, 8);
    let file = File::with(&bytes);
    for how in 0..3 {
        std::fs::write(file.path(), &bytes).unwrap();
        let (snapshot, items) = saved(&file, CachePolicy::default());
        let mut now = noise(LEN, 9 + how);
        match how {
            // This comes at once: the clock of the file system may not have ticked since the
            // snapshot.
            0 => std::fs::write(file.path(), &now).unwrap(),
            1 => {
                std::thread::sleep(Duration::from_millis(20));
                std::fs::write(file.path(), &now).unwrap();
            }
            _ => {
                let ssd = Ssd::open_rw(file.path()).unwrap();
                ssd.set_len(LEN as u64 / 4).unwrap();
                now.clone_from(&bytes);
                now[LEN / 4..].fill(0);
            }
        }
        let ssd = Ssd::open_rw(file.path()).unwrap();
        let fine = FineGrained::over(&ssd, small(CachePolicy::default())).unwrap();
        let warmed = fine.load(&snapshot).unwrap();
        assert!(warmed.read_again && warmed.items > 0 && warmed.items <= items, "{how}: {warmed:?} of {items}");
        if how == 2 {
            assert!(warmed.items < items, "what the file no longer has is left out");
            ssd.set_len(LEN as u64).unwrap();
        }
        is_right(&fine, &now);
        std::fs::remove_file(&snapshot).unwrap();
    }
}

#[test]
fn damaged_snapshots_are_refused_and_nothing_wrong_is_cached() {
    let seed = seed();
    let mut r = Random(seed);
    let bytes = noise(LEN, 8);
    let file = File::with(&bytes);
    let ssd = Ssd::open(file.path()).unwrap();
    let (snapshot, items) = saved(&file, CachePolicy::default());
    let whole = std::fs::read(&snapshot).unwrap();
    let damaged = file.beside(".damaged");
    let fine = FineGrained::over(&ssd, small(CachePolicy::default())).unwrap();
    let load = |bytes: &[u8]| {
        fine.clear();
        std::fs::write(&damaged, bytes).unwrap();
        fine.load(&damaged)
    };
    // The lengths are all those around the pieces of a read, and some others.
    let lens =
        (0..150).chain((0..40).map(|_| r.below(whole.len() as u64) as usize)).chain(whole.len() - 24..whole.len());
    for len in lens {
        let error =
            load(&whole[..len]).expect_err(&format!("seed {seed}: {len} of {} bytes were taken for all", whole.len()));
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        is_right(&fine, &bytes);
    }
    // The bits are all those of the head and of the end, and some others.
    let end = whole.len() - 20;
    let bits =
        (0..148 * 8).chain(end * 8..whole.len() * 8).chain((0..100).map(|_| r.below(whole.len() as u64 * 8) as usize));
    for bit in bits {
        let mut flipped = whole.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        match load(&flipped) {
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}"),
            // The head describes how the file looked. If it is damaged, the bytes are read from the
            // file.
            Ok(warmed) => {
                assert!(warmed.read_again && (8..148).contains(&(bit / 8)), "seed {seed}, bit {bit}: {warmed:?}")
            }
        }
        if bit % 7 == 0 {
            is_right(&fine, &bytes);
        }
    }
    assert!(load(&whole).is_ok_and(|w| w.items > items / 2));
    assert_eq!(
        FineGrained::over(&ssd, small(CachePolicy::default())).unwrap().load(file.beside(".none")).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    std::fs::remove_file(&damaged).unwrap();
    std::fs::remove_file(&snapshot).unwrap();
    nothing_else(file.path(), 1);
}

/// Makes a snapshot with valid checksums, with these items and this number of bytes.
fn crafted(head: &[u8], items: &[(u64, u32)], bytes: usize) -> Vec<u8> {
    let mut block: Vec<u8> =
        items.iter().flat_map(|(offset, len)| [&offset.to_le_bytes()[..], &len.to_le_bytes()[..]].concat()).collect();
    block.resize(block.len() + bytes, 7);
    let mut snapshot = head.to_vec();
    for number in [items.len() as u32, bytes as u32, crc32fast::hash(&block)] {
        snapshot.extend_from_slice(&number.to_le_bytes());
    }
    snapshot.extend_from_slice(&block);
    snapshot.extend_from_slice(&[0; 8]);
    let count = (items.len() as u64).to_le_bytes();
    snapshot.extend_from_slice(&count);
    snapshot.extend_from_slice(&crc32fast::hash(&count).to_le_bytes());
    snapshot
}

#[test]
fn numbers_of_a_snapshot_that_nobody_wrote_are_damage_whatever_its_checksums_say() {
    let file = File::with(&noise(LEN, 8));
    let ssd = Ssd::open_rw(file.path()).unwrap();
    let (snapshot, _) = saved(&file, CachePolicy::default());
    let path = file.beside(".crafted");
    let len = LEN as u64;
    for same in [true, false] {
        let whole = std::fs::read(&snapshot).unwrap();
        if !same {
            // It is so long that nearly any item would lie within it, and it looks different from
            // before.
            ssd.set_len(8 << 30).unwrap();
        }
        let fine = FineGrained::over(&ssd, small(CachePolicy::default())).unwrap();
        let load = |items: &[(u64, u32)], bytes: usize| {
            std::fs::write(&path, crafted(&whole[..148], items, bytes)).unwrap();
            fine.load(&path)
        };
        let warmed = load(&[(0, 100), (4096, 4096)], 4196).unwrap();
        assert_eq!((warmed.items, warmed.bytes, warmed.read_again), (2, 4196, !same));
        fine.clear();
        let many = vec![(0, 1 << 20); 3000];
        let huge = vec![(0, u32::MAX); 4096];
        let small: Vec<(u64, u32)> = (0..4096).map(|i| (i * 8, 4)).collect();
        let wrong: [(&[(u64, u32)], usize); 14] = [
            (&[(u64::MAX - 1, 100)], 100),
            (&[(u64::MAX, 1)], 1),
            (&[(1 << 44, 1)], 1),
            (&[(0, 0)], 1),
            (&[(0, 0)], 0),
            (&[(0, 4097)], 4097),
            (&[(4000, 100)], 100),
            (&[(0, 100)], 99),
            (&[(0, 100)], 101),
            (&[(0, 100), (200, 100)], 100),
            (&many, 4096),
            (&huge, 4096),
            (&small, 4096),
            // This is more than a block ever has.
            (&[(0, 4096)], 15 << 20),
        ];
        for (items, bytes) in wrong {
            let some = &items[..items.len().min(2)];
            let error = load(items, bytes).expect_err(&format!("{some:?}, {bytes} bytes"));
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{some:?}, {bytes} bytes: {error}");
            assert_eq!(fine.metrics().items, 0, "{some:?}, {bytes} bytes: something of it was taken");
        }
        // Items beyond the file's end are left out.
        let warmed = load(&[(0, 8), (len, 1)], 9).unwrap();
        assert_eq!((warmed.items, warmed.bytes), if same { (1, 8) } else { (2, 9) });
    }
    [&path, &snapshot].into_iter().for_each(|path| std::fs::remove_file(path).unwrap());
}

#[test]
fn a_snapshot_that_cannot_be_written_leaves_the_old_one() {
    let file = File::with(&noise(LEN, 8));
    let fine = FineGrained::over(&Ssd::open(file.path()).unwrap(), small(CachePolicy::default())).unwrap();
    let error = fine.save(file.beside("-no-such-folder").join("snapshot")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    nothing_else(file.path(), 1);
}

#[test]
fn a_snapshot_is_as_private_as_its_file() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let set = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    let file = File::with(&noise(LEN, 8));
    set(file.path(), 0o600);
    let (snapshot, _) = saved(&file, CachePolicy::default());
    assert_eq!(mode(&snapshot), 0o600, "new");
    // It is replaced later, so its owner may write to it. Access rights that the owner set stay.
    std::fs::remove_file(&snapshot).unwrap();
    set(file.path(), 0o440);
    saved(&file, CachePolicy::default());
    assert_eq!(mode(&snapshot) | 0o040, 0o640, "of a file that is write-protected; the umask may take from it");
    set(&snapshot, 0o600);
    set(file.path(), 0o644);
    saved(&file, CachePolicy::default());
    assert_eq!(mode(&snapshot), 0o600, "replaced");
    std::fs::remove_file(&snapshot).unwrap();
}
