//! A file system that does not answer any more delays only its own files, not others of the pool.
#![allow(clippy::unwrap_used)]

mod fixture;

use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use datapipes_cache::{BufferPool, CacheOptions, ExternalChanges, FineGrained};
use datapipes_core::{Error, ErrorKind, Result, Ssd};
use datapipes_testkit::Mounted;
use fixture::{File, machine, noise};

const LEN: usize = 1 << 20;
/// The time after which an operation counts as hanging.
const HANGS: Duration = Duration::from_secs(60);

/// Runs `work` on its own thread, which may never end.
fn apart<T: Send + 'static>(fine: &FineGrained, work: impl FnOnce(&FineGrained) -> T + Send + 'static) -> Receiver<T> {
    let (say, said) = channel();
    let fine = fine.clone();
    std::thread::spawn(move || _ = say.send(work(&fine)));
    said
}

fn read(fine: &FineGrained, offset: u64) -> Receiver<Result<[u8; 8]>> {
    apart(fine, move |fine| {
        let mut out = [0; 8];
        fine.read(offset, &mut out).map(|()| out)
    })
}

#[track_caller]
fn of(said: &Receiver<Result<[u8; 8]>>, what: &str) -> std::result::Result<[u8; 8], Error> {
    said.recv_timeout(HANGS).unwrap_or_else(|_| panic!("{what}: it hangs"))
}

#[test]
fn a_file_system_that_answers_no_more_stops_no_other_file() {
    let dir = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let (server, mounted) = match Mounted::that_stops(&dir) {
        Ok(mounted) => mounted,
        Err(e) => return println!("SKIPPED: a_file_system_that_answers_no_more_stops_no_other_file: {e}"),
    };
    let healthy = File::with(&noise(LEN, 1));
    std::fs::write(mounted.path("file"), noise(LEN, 2)).unwrap();
    let mut config = CacheOptions::new(machine()).budget(4 << 20);
    (config.prefault, config.lanes, config.patience) = (false, 2, Duration::from_millis(100));
    config.ttl = Some(Duration::from_secs(2));
    // Both events, if available, and times are in use. Either is enough here, and neither may stop.
    config.outside = ExternalChanges::Every(Duration::from_millis(10));
    let pool = BufferPool::new(config).unwrap();
    let a = pool.open(&Ssd::open(healthy.path()).unwrap()).unwrap();
    let b = pool.open(&Ssd::open(mounted.path("file")).unwrap()).unwrap();
    for fine in [&a, &b] {
        of(&read(fine, 640), "before").unwrap();
    }
    server.stop().unwrap();
    // Attributes are cached for a while.
    let started = Instant::now();
    let waits = loop {
        let looks = apart(&b, |b| b.look_outside().is_ok());
        if looks.recv_timeout(Duration::from_millis(500)).is_err() {
            break looks;
        }
        assert!(started.elapsed() < HANGS, "the file system answers though it was stopped");
    };
    std::thread::sleep(Duration::from_millis(100));
    let script = "printf somebody | dd of=\"$0\" bs=1 seek=640 conv=notrunc 2>/dev/null";
    assert!(Command::new("sh").args(["-c", script]).arg(healthy.path()).status().unwrap().success());
    let started = Instant::now();
    while &of(&read(&a, 640), "a hit").unwrap() != b"somebody" {
        assert!(started.elapsed() < HANGS, "the change of a file is not noticed while another one's system is stopped");
        std::thread::sleep(Duration::from_millis(1));
    }
    // The time to live ends.
    let (reads, started) = (a.metrics().device_reads, Instant::now());
    while a.metrics().device_reads == reads {
        assert!(started.elapsed() < HANGS, "the time to live does not end");
        of(&read(&a, 640), "a hit or a miss").unwrap();
        std::thread::sleep(Duration::from_millis(10));
    }
    // Other files are opened and closed.
    let other = File::with(&noise(LEN, 3));
    let c = pool.clone();
    let (say, said) = channel();
    std::thread::spawn(move || {
        let fine = c.open(&Ssd::open(other.path()).unwrap()).unwrap();
        fine.read(0, &mut [0; 8]).unwrap();
        drop(fine);
        say.send(()).unwrap();
    });
    said.recv_timeout(HANGS).expect("another file is opened and closed");
    // All lanes wait for the stopped file system. A read that needs one fails in the end, and
    // cached bytes are still read.
    let stuck: Vec<_> = (0..2).map(|n| read(&b, 300_000 + n * 8192)).collect();
    let started = Instant::now();
    let refused = loop {
        match of(&read(&a, 8192 * (started.elapsed().as_millis() as u64 % 100)), "a miss") {
            Err(refused) => break refused,
            Ok(_) => assert!(started.elapsed() < HANGS, "the ways to the device are free"),
        }
    };
    assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
    server.go_on().unwrap();
    assert_eq!(waits.recv_timeout(HANGS), Ok(true));
    for (n, read) in stuck.iter().enumerate() {
        let at = 300_000 + n * 8192;
        assert_eq!(of(read, "what waited").unwrap()[..], noise(LEN, 2)[at..at + 8]);
    }
    of(&read(&a, 900_000), "a miss afterwards").unwrap();
    drop((server, mounted));
}

/// The number of descriptors of this process for a file.
fn descriptors(path: &std::path::Path) -> usize {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    all.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok()).filter(|of| of == path).count()
}

#[track_caller]
fn within(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < HANGS, "{what}: it never is");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_file_system_that_answers_no_more_keeps_no_drop_waiting_and_no_other_file_open() {
    let dir = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let (server, mounted) = match Mounted::that_stops(&dir) {
        Ok(mounted) => mounted,
        Err(e) => {
            return println!(
                "SKIPPED: a_file_system_that_answers_no_more_keeps_no_drop_waiting_and_no_other_file_open: {e}"
            );
        }
    };
    let healthy = File::with(&noise(LEN, 1));
    std::fs::write(mounted.path("file"), noise(LEN, 2)).unwrap();
    let mut config = CacheOptions::new(machine()).budget(4 << 20);
    (config.prefault, config.outside) = (false, ExternalChanges::Every(Duration::from_millis(10)));
    let pool = BufferPool::new(config).unwrap();
    let a = pool.open(&Ssd::open(healthy.path()).unwrap()).unwrap();
    let b = pool.open(&Ssd::open(mounted.path("file")).unwrap()).unwrap();
    for fine in [&a, &b] {
        of(&read(fine, 640), "before").unwrap();
    }
    let paths = [healthy.path().canonicalize().unwrap(), mounted.path("file").canonicalize().unwrap()];
    assert!(paths.iter().all(|path| descriptors(path) > 0));
    server.stop().unwrap();
    // Attributes are cached for a while. Then the thread that looks at the file waits.
    let waits = |name: &str| {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().filter_map(std::result::Result::ok);
        let named =
            tasks.filter(|task| std::fs::read_to_string(task.path().join("comm")).is_ok_and(|c| c.trim() == name));
        let mut named = named.peekable();
        named.peek().is_some()
            && named.all(|task| {
                std::fs::read_to_string(task.path().join("wchan"))
                    .is_ok_and(|w| w.contains("fuse") || w.contains("request"))
            })
    };
    let started = Instant::now();
    while !waits("fine-look") && started.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(a);
    within("the other file is closed", || descriptors(&paths[0]) == 0);
    within("one file is open", || pool.files() == 1);
    let (say, said) = channel();
    std::thread::spawn(move || {
        drop(b);
        drop(pool);
        say.send(()).unwrap();
    });
    said.recv_timeout(HANGS).expect("the drop of a file on it hangs");
    server.go_on().unwrap();
    within("the file is closed once its system answers", || descriptors(&paths[1]) == 0);
    drop((server, mounted));
}
