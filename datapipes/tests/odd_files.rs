//! File systems that do less than they say: opened past the page cache and refused there, spaces and lengths that are not so.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use datapipes::topology::{BlockDevice, Topology};
use datapipes::{Constraints, Dram, ErrorKind, FileAccess, Pipe, Runtime, Span, Ssd};
use datapipes_core::Machine;
use datapipes_file::{Config, FileBackend};
use datapipes_testkit::{Folder, Mounted};

const LEN: usize = (5 << 20) + 1234;

fn here() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

fn machine(uring: bool) -> Machine {
    let config = Config { force_no_uring: !uring, ..Config::default() };
    Machine::new(Topology::discover(), vec![Arc::new(FileBackend::with(config))])
}

fn memory() -> Dram {
    let memory = Dram::allocate(LEN).unwrap();
    memory.lease_mut().unwrap().iter_mut().enumerate().for_each(|(i, byte)| *byte = (i / 511 % 253) as u8);
    memory
}

/// A file that is large enough to be written past the page cache.
fn large(path: &Path) -> Ssd {
    let ssd = Ssd::create(path).unwrap();
    ssd.preallocate(LEN as u64).unwrap();
    ssd
}

fn is_past_the_page_cache(pipe: &Pipe) -> bool {
    pipe.route().primitives().iter().all(|primitive| primitive.ends_with("-direct"))
}

#[test]
fn direct_requests_that_are_refused_go_through_the_page_cache_and_this_is_said() {
    let name = "direct_requests_that_are_refused_go_through_the_page_cache_and_this_is_said";
    let mounted = match Mounted::mergerfs(here()) {
        Ok(mounted) => mounted,
        Err(why) => return println!("SKIPPED: {name}: {why}"),
    };
    let whole = Span { source: 0, target: 0, len: LEN as u64 };
    for uring in [true, false] {
        let (machine, memory) = (machine(uring), memory());
        let ssd = large(&mounted.path("file"));
        let pipe = machine.connect(&memory, &ssd).unwrap();
        if !is_past_the_page_cache(&pipe) {
            println!("SKIPPED: {name}: mergerfs does no direct I/O here: {}", pipe.route());
            continue;
        }
        pipe.transfer(whole).unwrap();
        let counters = pipe.report().hops[0].counters.clone();
        if counters.direct_refused == 0 {
            println!("SKIPPED: {name}: mergerfs takes direct writes here: {}", pipe.report());
            continue;
        }
        assert_eq!((counters.cached_bytes, counters.direct_bytes), (LEN as u64, 0), "{}", pipe.report());
        assert!(pipe.report().to_string().contains("refused past the page cache"), "{}", pipe.report());
        assert!(std::fs::read(mounted.behind("file")).unwrap() == *memory.lease().unwrap());
        // Once: later requests of this pipe, and later pipes to this file, do not try again.
        pipe.transfer(whole).unwrap();
        assert_eq!(pipe.report().hops[0].counters.direct_refused, counters.direct_refused);
        let next = machine.connect(&memory, &ssd).unwrap();
        assert!(next.route().to_string().contains("refuses requests"), "{}", next.route());
        assert!(!is_past_the_page_cache(&next), "{}", next.route());
        next.transfer(whole).unwrap();

        let runtime = Runtime::start(&machine).unwrap();
        let fresh = large(&mounted.path("other"));
        let pipe = runtime.connect(&memory, &fresh).unwrap();
        pipe.transfer(whole).unwrap().wait().unwrap();
        assert!(pipe.report().hops[0].counters.direct_refused > 0, "{}", pipe.report());
        assert!(std::fs::read(mounted.behind("other")).unwrap() == *memory.lease().unwrap());
    }
}

#[test]
fn who_demands_direct_requests_hears_that_they_are_refused() {
    let name = "who_demands_direct_requests_hears_that_they_are_refused";
    let mounted = match Mounted::mergerfs(here()) {
        Ok(mounted) => mounted,
        Err(why) => return println!("SKIPPED: {name}: {why}"),
    };
    let whole = Span { source: 0, target: 0, len: 4 << 20 };
    let (machine, memory) = (machine(true), memory());
    let only =
        |names: &[&str]| Constraints { only: names.iter().map(|n| (*n).into()).collect(), ..Constraints::default() };
    let bypass = Constraints { bypass_page_cache: true, ..Constraints::default() };
    let demands = [
        (FileAccess::Auto, bypass),
        (FileAccess::Auto, only(&["uring-direct", "pwrite-direct"])),
        (FileAccess::Direct, Constraints::default()),
    ];
    for (access, constraints) in demands {
        let ssd = large(&mounted.path("file")).with_access(access).unwrap();
        match machine.connect_with(&memory, &ssd, &constraints).unwrap().transfer(whole) {
            Ok(()) => println!("SKIPPED: {name}: mergerfs takes direct writes here"),
            Err(e) => {
                assert_eq!((e.kind(), e.raw_os_error()), (ErrorKind::InvalidInput, Some(libc::EINVAL)), "{e}");
                assert!(e.to_string().contains("use cached access"), "{e}");
                assert!(ssd.file().direct_fd().is_ok(), "one who demands it decides nothing for others");
            }
        }
    }
}

#[test]
fn a_file_system_that_states_no_space_is_not_full() {
    let storage = BlockDevice::behind(Path::new("/proc")).unwrap();
    assert_eq!((storage.total_bytes, storage.free_bytes, storage.available_bytes), (None, None, None));
}

#[test]
fn files_that_the_kernel_makes_up_do_not_hold_what_they_state() {
    for (path, exact) in [("/proc/self/status", false), ("/sys/kernel/mm/transparent_hugepage/enabled", false)] {
        match Ssd::open(path) {
            Ok(ssd) => assert_eq!(ssd.len_is_exact().unwrap(), exact, "{path} states {}", ssd.len().unwrap()),
            Err(e) => println!("SKIPPED: files_that_the_kernel_makes_up_do_not_hold_what_they_state: {e}"),
        }
    }
    let folder = Folder::under(here()).unwrap();
    let ssd = Ssd::create(folder.path("file")).unwrap();
    assert!(ssd.len_is_exact().unwrap(), "an empty file");
    ssd.set_len(1 << 20).unwrap();
    assert!(ssd.len_is_exact().unwrap(), "a hole");
    ssd.preallocate(2 << 20).unwrap();
    assert!(ssd.len_is_exact().unwrap() && Ssd::open("/proc/self/exe").unwrap().len_is_exact().unwrap());
    // A pipe reads such a file to its end, whatever it states.
    let memory = Dram::allocate(1 << 20).unwrap();
    let status = Ssd::open("/proc/self/status").unwrap();
    let pipe = machine(true).connect(&status, &memory).unwrap();
    let e = pipe.transfer(Span { source: 0, target: 0, len: 1 << 20 }).unwrap_err();
    assert!(e.kind() == ErrorKind::EndOfFile && e.done() > 100, "{e}");
    assert!(memory.lease().unwrap().starts_with(b"Name:"));
}
