//! Pages of statistics: whole while they are written, gone with their process, not of a child.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use datapipes_core::ErrorKind;
use datapipes_core::offer::{self, PageWriter, StatisticsOffer};
use datapipes_metrics::{Label, Sample, vocabulary};

fn samples(count: u64) -> Vec<Sample> {
    let one = |n: u64| Sample::new(&vocabulary::PIPE_BYTES, count).label(Label::Pipe, n.to_string());
    (0..count).map(one).collect()
}

/// The values in the text of a page: all are the number of samples.
fn values(text: &str) -> Vec<u64> {
    let text: serde_json::Value = serde_json::from_str(text).unwrap();
    let families = text["measurements"].as_array().unwrap();
    let samples = families.iter().flat_map(|family| family["samples"].as_array().unwrap());
    samples.map(|sample| sample["value"].as_u64().unwrap()).collect()
}

fn wait_until(mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(60), "it does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Holds files as processes hold their pages, for as long as what is returned lives.
fn held(files: &[std::path::PathBuf]) -> Vec<std::fs::File> {
    let hold = |path: &std::path::PathBuf| {
        let file = std::fs::File::open(path).unwrap();
        file.lock().unwrap();
        file
    };
    files.iter().map(hold).collect()
}

/// One test, for it sets variables of the environment.
#[test]
fn pages_are_whole_private_and_gone_with_their_process() {
    let folder = datapipes_testkit::TempFolder::under(env!("CARGO_TARGET_TMPDIR")).unwrap();
    // SAFETY: no other thread of this program reads the environment now: this is its only test.
    unsafe { std::env::set_var("XDG_RUNTIME_DIR", folder.at()) };
    assert!(offer::pages().unwrap().pages.is_empty());

    // What is read is what was written at one moment, whatever the writer does.
    let mut page = PageWriter::create("writer").unwrap();
    page.write(&samples(3)).unwrap();
    let seen = offer::pages().unwrap().pages;
    assert_eq!((seen.len(), seen[0].owner.pid), (1, std::process::id()));
    assert_eq!(values(seen[0].text.as_ref().unwrap()), [3; 3]);
    assert!(seen[0].text.as_ref().unwrap().contains("\"writer\"") && seen[0].age < Duration::from_secs(60));
    let (done, looks) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !done.load(Relaxed) {
                let seen = offer::pages().unwrap().pages;
                // The writer never rests, so a look may find no rest; it never finds a mixture.
                if let Ok(text) = &seen[0].text {
                    let values = values(text);
                    assert!(values.iter().all(|value| *value == values.len() as u64), "{values:?}");
                    looks.fetch_add(1, Relaxed);
                }
            }
        });
        let (mut n, begun) = (0, Instant::now());
        // The reader may come to its turn late.
        while (n < 3000 || looks.load(Relaxed) <= 10)
            && !reader.is_finished()
            && begun.elapsed() < datapipes_testkit::PATIENCE
        {
            page.write(&samples(1 + n % 50)).unwrap();
            if n.is_multiple_of(10) {
                std::thread::sleep(Duration::from_micros(300));
            }
            n += 1;
        }
        done.store(true, Relaxed);
        reader.join().unwrap();
    });
    assert!(looks.load(Relaxed) > 10, "{looks:?}");

    // A file system without room may have some later.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize);
    let full = rustix::process::Rlimit { current: Some(64), ..limit };
    // SAFETY: the signal is ignored for the rest of this program, whose only test this is.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    rustix::process::setrlimit(rustix::process::Resource::Fsize, full).unwrap();
    let no_room = page.write(&samples(3)).unwrap_err();
    rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
    assert_eq!(no_room.errno(), Some(libc::EFBIG), "{no_room}");
    page.write(&samples(4)).unwrap();
    assert_eq!(values(offer::pages().unwrap().pages[0].text.as_ref().unwrap()), [4; 4]);

    // More than a page holds is cut, and what is left is whole.
    page.write(&samples(20_000)).unwrap();
    let text = offer::pages().unwrap().pages[0].text.clone().unwrap();
    assert!(text.len() <= 256 << 10 && (1000..20_000).contains(&values(&text).len()), "{}", text.len());

    // A look costs no more than so much, however many pages there are: some are not read.
    let pages = folder.path("datapipes");
    let name = std::fs::read_dir(&pages).unwrap().next().unwrap().unwrap().file_name().into_string().unwrap();
    let copies = (50..1100).map(|n| pages.join(format!("{}-{n}", name.rsplit_once('-').unwrap().0)));
    let copies: Vec<_> = copies.collect();
    copies.iter().for_each(|copy| assert!(std::fs::copy(pages.join(&name), copy).unwrap() > 0));
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let most = rustix::process::Rlimit { current: files.maximum, ..files };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, most).unwrap();
    let holds = held(&copies);
    let seen = offer::pages().unwrap();
    let read: usize = seen.pages.iter().filter_map(|page| page.text.as_ref().ok()).map(String::len).sum();
    assert!(read > 256 << 10 && read <= 4 << 20, "{read}");
    assert_eq!((seen.pages.len(), seen.left_out), (1000, 51));
    assert!(seen.pages.iter().any(|page| page.text.as_ref().is_err_and(|why| why.contains("too long"))));
    // Those from another container are neither shown nor read, and stay while their processes live.
    for copy in &copies {
        let file = std::fs::File::options().write(true).open(copy).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[7; 8], 32).unwrap();
    }
    let seen = offer::pages().unwrap();
    assert!(seen.pages.len() == 1 && seen.pages[0].text.is_ok() && seen.left_out == 0, "{}", seen.pages.len());
    assert!(copies.iter().all(|copy| copy.exists()));
    drop(holds);
    assert_eq!(offer::pages().unwrap().pages.len(), 1);
    assert!(copies.iter().all(|copy| !copy.exists()));

    // A child neither writes nor removes its parent's page.
    // SAFETY: the child calls what its own copy of this thread may call, and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = page.write(&[]).is_err_and(|e| e.kind() == ErrorKind::Forked);
        drop(page);
        // SAFETY: it ends this process.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    let mut status = 0;
    // SAFETY: the status is a live variable, and the child is ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(offer::pages().unwrap().pages.len(), 1);
    drop(page);
    assert!(offer::pages().unwrap().pages.is_empty());

    // From a thread of its own; what panics there ends the offer, and nothing else.
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let read = || {
        assert!(CALLS.fetch_add(1, Relaxed) < 3, "as the test asked");
        samples(2)
    };
    let offered = StatisticsOffer::start("thread", read).unwrap();
    wait_until(|| {
        offer::pages().unwrap().pages.iter().any(|page| page.text.as_ref().is_ok_and(|text| values(text) == [2; 2]))
    });
    wait_until(|| !offered.is_on());
    assert!(offer::pages().unwrap().pages.is_empty());
    drop(offered);

    // The folder of another user, which `su` leaves in the variable, is not used.
    if rustix::process::geteuid().is_root() {
        let own = std::path::Path::new("/dev/shm/datapipes-0");
        let was_there = own.exists();
        let others = folder.path("of-another-user");
        std::fs::create_dir(&others).unwrap();
        std::os::unix::fs::chown(&others, Some(65_534), Some(65_534)).unwrap();
        // SAFETY: as above, no other thread reads the environment.
        unsafe { std::env::set_var("XDG_RUNTIME_DIR", &others) };
        let mut page = PageWriter::create("another").unwrap();
        page.write(&samples(1)).unwrap();
        assert_eq!(std::fs::read_dir(&others).unwrap().count(), 0, "a folder that its owner cannot enter");
        assert!(offer::pages().unwrap().pages.iter().any(|page| page.owner.pid == std::process::id()));
        drop(page);
        if !was_there {
            std::fs::remove_dir(own).unwrap();
        }
        // SAFETY: as above.
        unsafe { std::env::set_var("XDG_RUNTIME_DIR", folder.at()) };
    } else {
        println!("SKIPPED: the runtime folder of another user: only root can make one");
    }
    drop(StatisticsOffer::start("short", || samples(1)).unwrap());
    assert!(offer::pages().unwrap().pages.is_empty());

    // SAFETY: as above; the threads of the offers have ended.
    unsafe { std::env::set_var("DATAPIPES_OFFER", "0") };
    let forbidden = StatisticsOffer::start("forbidden", || samples(1)).unwrap();
    assert!(!forbidden.is_on() && offer::pages().unwrap().pages.is_empty() && !offer::is_allowed());
}
