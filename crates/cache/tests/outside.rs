//! Writes of other processes are found, whatever this process writes meanwhile. Old bytes are never
//! taken for the present contents of the file.
#![allow(clippy::unwrap_used)]

mod fixture;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use datapipes_cache::{CacheOptions, CachePolicy, ExternalChanges, FineGrained};
use datapipes_core::Ssd;
use fixture::{File, noise, small};

const LEN: usize = 256 << 10;
/// The range of our own writes, far from those of others.
const OWN: std::ops::Range<u64> = 200_000..200_064;

/// The ways of finding writes of others.
fn ways() -> Vec<ExternalChanges> {
    let often = Duration::from_millis(5);
    vec![ExternalChanges::Every(often), ExternalChanges::Times(often)]
}

fn config(outside: ExternalChanges, maintenance: bool) -> CacheOptions {
    let mut config = small(CachePolicy::default());
    (config.outside, config.maintenance) = (outside, maintenance);
    config
}

/// Lets another process write `text` at `offset`.
fn another_process_writes(file: &File, offset: u64, text: &str) {
    let script = "printf %s \"$1\" | dd of=\"$0\" bs=1 seek=\"$2\" conv=notrunc 2>/dev/null";
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(file.path()).arg(text).arg(offset.to_string());
    assert!(command.status().unwrap().success(), "dd");
}

fn eight(fine: &FineGrained, offset: u64) -> [u8; 8] {
    let mut out = [0; 8];
    fine.read(offset, &mut out).unwrap();
    out
}

/// Waits until the condition holds, and fails if it never does.
#[track_caller]
fn within(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < Duration::from_secs(60), "{what}: it never is");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_write_of_our_own_hides_none_of_another_process() {
    for how in ways() {
        let file = File::with(&noise(LEN, 7));
        let ssd = Ssd::open_rw(file.path()).unwrap();
        let fine = FineGrained::over(&ssd, config(how, true)).unwrap();
        eight(&fine, 640);
        let own = ssd.write_observers().begin(OWN);
        another_process_writes(&file, 640, "somebody");
        ssd.write_observers().end(own);
        within(&format!("{how:?}: a change within one of our own"), || &eight(&fine, 640) == b"somebody");
        // Our own writes follow without a pause: one begins before the last one ends.
        let mut own = ssd.write_observers().begin(OWN);
        for round in 0..20 {
            let text = format!("round{round:03}");
            another_process_writes(&file, 640, &text);
            within(&format!("{how:?}: a change beside {round} of our own"), || {
                let next = ssd.write_observers().begin(OWN);
                ssd.write_observers().end(std::mem::replace(&mut own, next));
                eight(&fine, 640) == text.as_bytes()
            });
        }
        ssd.write_observers().end(own);
    }
}

/// A file whose times have moved, and whose bytes change later without a notice, like those of one
/// long write, whose time is that of its beginning. It is simulated by memory that maps the file,
/// on a page that was written to before.
struct Silent {
    at: *mut u8,
}

impl Silent {
    /// Moves the times.
    fn begins(path: &std::path::Path) -> Silent {
        let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        use std::os::fd::AsRawFd;
        let (prot, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
        // SAFETY: it is a new mapping of an open file, with a length that the file has.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), LEN, prot, libc::MAP_SHARED, fd, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let silent = Silent { at: at.cast() };
        silent.store(641, b"beginning");
        file.write_all_at(b"x", 0).unwrap();
        silent
    }

    fn store(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= LEN);
        // SAFETY: the range is within the mapping, and no other value has these bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at.add(offset), bytes.len()) };
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `begins` made, and nobody has a reference to it.
        unsafe { libc::munmap(self.at.cast(), LEN) };
    }
}

#[test]
fn a_change_that_goes_on_after_its_times_moved_is_found() {
    for how in ways() {
        let file = File::with(&noise(LEN, 7));
        // The file is read through the page cache: a direct read would clean the page, and the next
        // store to it would move the times again.
        let ssd = Ssd::open_rw(file.path()).unwrap().with_access(datapipes_core::FileAccess::Cached).unwrap();
        let fine = FineGrained::over(&ssd, config(how, true)).unwrap();
        eight(&fine, 640);
        // The change begins, then the cache looks and reads old bytes, then the new bytes come.
        for beside_our_own in [false, true] {
            let own = beside_our_own.then(|| ssd.write_observers().begin(OWN));
            let silent = Silent::begins(file.path());
            if let Some(own) = own {
                ssd.write_observers().end(own);
            } else {
                within("the times are looked at", || fine.metrics().changes_outside > 0);
            }
            let started = Instant::now();
            while started.elapsed() < Duration::from_millis(30) {
                eight(&fine, 640);
            }
            let text = if beside_our_own { b"and once" } else { b"somebody" };
            silent.store(640, text);
            within(&format!("{how:?}: beside a change of our own: {beside_our_own}"), || &eight(&fine, 640) == text);
        }
    }
}

#[test]
fn a_snapshot_is_not_of_the_present_where_another_process_wrote() {
    for how in ways() {
        for own_meanwhile in [false, true] {
            let file = File::with(&noise(LEN, 7));
            let ssd = Ssd::open_rw(file.path()).unwrap();
            // No thread looks at the file.
            let fine = FineGrained::over(&ssd, config(how, false)).unwrap();
            (0..3).for_each(|_| _ = eight(&fine, 640));
            let own = own_meanwhile.then(|| ssd.write_observers().begin(OWN));
            another_process_writes(&file, 640, "somebody");
            if let Some(own) = own {
                ssd.write_observers().end(own);
            }
            let snapshot = file.beside(".snapshot");
            fine.save(&snapshot).unwrap();
            let again = FineGrained::over(&ssd, config(how, false)).unwrap();
            again.load(&snapshot).unwrap();
            assert_eq!(&eight(&again, 640), b"somebody", "{how:?}, with a write of our own: {own_meanwhile}");
            std::fs::remove_file(&snapshot).unwrap();
        }
    }
}

#[test]
fn a_change_that_goes_on_after_a_snapshot_is_found_by_whoever_loads_it() {
    let ways = [
        ExternalChanges::default(),
        ExternalChanges::Times(Duration::from_millis(10)),
        ExternalChanges::Events,
        ExternalChanges::Never,
    ];
    let age = Duration::from_millis(1200);
    // `Never` is left out: with it nobody may write while the file is open.
    for &how in &ways[..3] {
        let file = File::with(&noise(LEN, 7));
        let silent = Silent::begins(file.path());
        std::thread::sleep(age);
        let ssd = Ssd::open_rw(file.path()).unwrap().with_access(datapipes_core::FileAccess::Cached).unwrap();
        let fine = match FineGrained::over(&ssd, config(how, true)) {
            Ok(fine) => fine,
            Err(e) => {
                println!(
                    "SKIPPED: {how:?} of a_change_that_goes_on_after_a_snapshot_is_found_by_whoever_loads_it: {e}"
                );
                continue;
            }
        };
        (0..3).for_each(|_| _ = eight(&fine, 640));
        let snapshot = file.beside(".snapshot");
        assert!(fine.save(&snapshot).unwrap() > 0);
        drop(fine);
        // The change goes on, and ends.
        silent.store(640, b"somebody");
        let load = |how| {
            let fine = FineGrained::over(&ssd, config(how, true)).ok()?;
            let warmed = fine.load(&snapshot).unwrap();
            assert!(warmed.items > 0);
            Some((fine, warmed))
        };
        // A load soon afterwards drops the items in time. A later one reads them again.
        let loaded: Vec<_> = ways.iter().filter_map(|&by| Some((by, load(by)?))).collect();
        for (by, (fine, warmed)) in loaded {
            let what = format!("saved by {how:?}, loaded by {by:?}: {warmed:?}");
            within(&what, || &eight(&fine, 640) == b"somebody");
        }
        std::thread::sleep(2 * age);
        for (fine, warmed) in ways.iter().filter_map(|&by| load(by)) {
            assert!(warmed.read_again && &eight(&fine, 640) == b"somebody", "saved by {how:?}: {warmed:?}");
        }
        std::fs::remove_file(&snapshot).unwrap();
    }
}

#[test]
fn a_snapshot_ends_no_time_to_live_later() {
    let file = File::with(&noise(LEN, 7));
    let ssd = Ssd::open_rw(file.path()).unwrap();
    let mut with_ttl = config(ExternalChanges::Never, false);
    with_ttl.ttl = Some(Duration::from_secs(3600));
    let fine = FineGrained::over(&ssd, with_ttl.clone()).unwrap();
    (0..3).for_each(|_| _ = eight(&fine, 640));
    let snapshot = file.beside(".snapshot");
    assert!(fine.save(&snapshot).unwrap() > 0);
    let again = FineGrained::over(&ssd, with_ttl).unwrap();
    let warmed = again.load(&snapshot).unwrap();
    assert!(warmed.read_again && warmed.items > 0, "bytes of unknown age were taken as if read now: {warmed:?}");
    std::fs::remove_file(&snapshot).unwrap();
}

/// Records that another process writes one after the other, each with the number of its round.
const RECORDS: u64 = 32;
const STRIDE: u64 = 1024;
const ROUNDS: u64 = 40;

/// The other process of the test below. It does nothing by itself.
#[test]
#[ignore = "run by a_busy_writer_hides_nothing"]
fn another_process() {
    let path = std::env::var("DATAPIPES_CACHE_OTHER").expect("its parent names the file");
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    let mut lines = std::io::stdin().lines();
    // It writes when it is told to, and reports when it has written.
    while let Some(Ok(line)) = lines.next() {
        let round: u64 = line.trim().parse().unwrap();
        for record in 0..RECORDS {
            file.write_all_at(&round.to_le_bytes(), record * STRIDE).unwrap();
        }
        println!("written {round}");
        std::io::stdout().flush().unwrap();
    }
}

#[test]
fn a_busy_writer_hides_nothing() {
    for how in ways() {
        let file = File::with(&vec![0; LEN]);
        let ssd = Ssd::open_rw(file.path()).unwrap();
        let fine = FineGrained::over(&ssd, config(how, true)).unwrap();
        let mut other = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "another_process", "--ignored", "--nocapture", "--test-threads=1"])
            .env("DATAPIPES_CACHE_OTHER", file.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut orders = other.stdin.take().unwrap();
        let mut words = BufReader::new(other.stdout.take().unwrap()).lines();
        let stop = AtomicBool::new(false);
        let mut late = Vec::new();
        std::thread::scope(|threads| {
            // With two writers of our own there is hardly a moment without a write of ours.
            for n in 0..2u64 {
                let (fine, stop) = (fine.clone(), &stop);
                threads.spawn(move || {
                    let writer = fine.writer().unwrap();
                    while !stop.load(SeqCst) {
                        writer.write(100_000 + n * 20_000, &[n as u8; 4096]).unwrap();
                    }
                });
            }
            // This makes the threads end on any failure here.
            let stopper = Stopper(&stop);
            for round in 1..=ROUNDS {
                // All records are cached as the last round left them.
                (0..RECORDS).for_each(|r| _ = eight(&fine, r * STRIDE));
                writeln!(orders, "{round}").unwrap();
                let said = format!("written {round}");
                assert!(words.any(|line| line.unwrap().ends_with(&said)), "the other process ended");
                let written = Instant::now();
                for record in 0..RECORDS {
                    within(&format!("{how:?}, round {round}: record {record}"), || {
                        u64::from_le_bytes(eight(&fine, record * STRIDE)) == round
                    });
                }
                late.push(written.elapsed());
            }
            drop(stopper);
        });
        drop(orders);
        assert!(other.wait().unwrap().success());
        late.sort_unstable();
        println!("{how:?}: {ROUNDS} rounds, found after {:?} (median), {:?} (last)", late[late.len() / 2], late.last());
    }
}

struct Stopper<'a>(&'a AtomicBool);

impl Drop for Stopper<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// A waker that blocks until it is released.
struct Blocks {
    woken: AtomicBool,
    go: AtomicBool,
}

impl std::task::Wake for Blocks {
    fn wake(self: std::sync::Arc<Self>) {
        self.woken.store(true, SeqCst);
        while !self.go.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn a_waker_that_blocks_stops_nothing_but_itself() {
    use std::future::Future;
    for how in [ExternalChanges::Events, ExternalChanges::Every(Duration::from_millis(10))] {
        let files = [7, 8].map(|seed| File::with(&noise(LEN, seed)));
        let ssds = files.each_ref().map(|file| Ssd::open_rw(file.path()).unwrap());
        let pool = datapipes_cache::BufferPool::new(config(how, true)).unwrap();
        let [a, b] = match ssds.each_ref().map(|ssd| pool.open(ssd)) {
            [Ok(a), Ok(b)] => [a, b],
            [a, b] => {
                println!(
                    "SKIPPED: {how:?} of a_waker_that_blocks_stops_nothing_but_itself: {:?}, {:?}",
                    a.err(),
                    b.err()
                );
                continue;
            }
        };
        let runtime = datapipes_core::Runtime::start(fixture::machine()).unwrap();
        let alone = a.on(&runtime, 4).unwrap();
        // Two futures wait for a change that does not end. An event wakes them.
        let own = ssds[0].write_observers().begin(OWN);
        let wakes = [false, true].map(|go| std::sync::Arc::new(Blocks { woken: false.into(), go: go.into() }));
        let mut readings = wakes.each_ref().map(|wakes| {
            let mut reading = Box::pin(alone.read(OWN.start, 8));
            let waker = std::task::Waker::from(wakes.clone());
            assert!(reading.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
            reading
        });
        eight(&b, 640);
        another_process_writes(&files[0], 640, "somebody");
        within(&format!("{how:?}: a waker is called"), || wakes[0].woken.load(SeqCst));
        within(&format!("{how:?}: the one after it, too"), || wakes[1].woken.load(SeqCst));
        another_process_writes(&files[1], 640, "somebody");
        within(&format!("{how:?}: a change of another file"), || &eight(&b, 640) == b"somebody");
        wakes[0].go.store(true, SeqCst);
        ssds[0].write_observers().end(own);
        for (reading, wakes) in readings.iter_mut().zip(&wakes) {
            let waker = std::task::Waker::from(wakes.clone());
            within("the reads end", || reading.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_ready());
        }
    }
}
