//! File systems that do less than they state: files can be opened past the page cache but refuse
//! requests, and states of space and length are wrong.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use datapipes::topology::{BlockDevice, Topology};
use datapipes::{Constraints, Dram, ErrorKind, FileAccess, Pipe, Runtime, Span, Ssd};
use datapipes_core::Machine;
use datapipes_file::{FileBackend, FileBackendOptions};
use datapipes_testkit::{Mounted, RefusedCall, TempFolder, bounded, without_calls};

const LEN: usize = (5 << 20) + 1234;

fn here() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

fn machine(uring: bool) -> Machine {
    let config = FileBackendOptions::default().force_no_uring(!uring);
    Machine::new(Topology::discover(), vec![Arc::new(FileBackend::with(config))])
}

fn memory() -> Dram {
    let memory = Dram::allocate(LEN).unwrap();
    memory.lease_mut().unwrap().iter_mut().enumerate().for_each(|(i, byte)| *byte = (i / 511 % 253) as u8);
    memory
}

/// Makes a file that is large enough to be written past the page cache.
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
            println!("NOT APPLICABLE: {name}: mergerfs does no direct I/O here: {}", pipe.route());
            continue;
        }
        pipe.transfer(whole).unwrap();
        let counters = pipe.report().hops[0].counters.clone();
        if counters.direct_refused == 0 {
            println!("NOT APPLICABLE: {name}: mergerfs takes direct writes here: {}", pipe.report());
            continue;
        }
        assert_eq!((counters.cached_bytes, counters.direct_bytes), (LEN as u64, 0), "{}", pipe.report());
        assert!(pipe.report().to_string().contains("refused past the page cache"), "{}", pipe.report());
        assert!(std::fs::read(mounted.behind("file")).unwrap() == *memory.lease().unwrap());
        // This happens once: later requests of this pipe, and later pipes to this file, do not try
        // again.
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
    let only = |names: &[&str]| Constraints::default().only(names.iter().map(|n| (*n).into()).collect());
    let bypass = Constraints::default().bypass_page_cache(true);
    let demands = [
        (FileAccess::Auto, bypass),
        (FileAccess::Auto, only(&["uring-direct", "pwrite-direct"])),
        (FileAccess::Direct, Constraints::default()),
    ];
    for (access, constraints) in demands {
        let ssd = large(&mounted.path("file")).with_access(access).unwrap();
        match machine.connect_with(&memory, &ssd, &constraints).unwrap().transfer(whole) {
            Ok(()) => println!("NOT APPLICABLE: {name}: mergerfs takes direct writes here"),
            Err(e) => {
                assert_eq!((e.kind(), e.errno()), (ErrorKind::InvalidInput, Some(libc::EINVAL)), "{e}");
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
    let folder = TempFolder::under(here()).unwrap();
    let ssd = Ssd::create(folder.path("file")).unwrap();
    assert!(ssd.len_is_exact().unwrap(), "an empty file");
    ssd.set_len(1 << 20).unwrap();
    assert!(ssd.len_is_exact().unwrap(), "a hole");
    ssd.preallocate(2 << 20).unwrap();
    assert!(ssd.len_is_exact().unwrap() && Ssd::open("/proc/self/exe").unwrap().len_is_exact().unwrap());
    // A pipe reads such a file to its end, whatever length it states.
    let memory = Dram::allocate(1 << 20).unwrap();
    let status = Ssd::open("/proc/self/status").unwrap();
    let pipe = machine(true).connect(&status, &memory).unwrap();
    let e = pipe.transfer(Span { source: 0, target: 0, len: 1 << 20 }).unwrap_err();
    assert!(e.kind() == ErrorKind::EndOfFile && e.bytes_done() > 100, "{e}");
    assert!(memory.lease().unwrap().starts_with(b"Name:"));
}

#[test]
fn what_is_no_file_is_refused_without_waiting_for_it() {
    let folder = TempFolder::under(here()).unwrap();
    let (fifo, socket) = (folder.path("fifo"), folder.path("socket"));
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for path in [fifo.as_path(), &socket, Path::new("/dev/null"), Path::new("/dev/tty"), folder.at()] {
        let opens: [fn(&Path) -> datapipes::Result<Ssd>; 4] = [
            |p| Ssd::open(p),
            |p| Ssd::open_rw(p),
            |p| Ssd::create(p),
            |p| Ssd::open(p)?.with_access(FileAccess::Cached),
        ];
        for open in opens {
            let at = path.to_path_buf();
            let e = bounded(&format!("opening {}", path.display()), move || open(&at)).unwrap_err();
            let told = e.to_string();
            assert!(told.contains(path.to_str().unwrap()), "{told}");
            if path != folder.at() && e.kind() != ErrorKind::NotFound {
                assert!(e.kind() == ErrorKind::InvalidInput && told.contains("not a file"), "{told}");
            }
        }
        let at = path.to_path_buf();
        let options = datapipes::PmemOptions::default().len(4096).emulated(true);
        bounded("opening it as memory", move || datapipes::Pmem::open_with(at, options)).unwrap_err();
    }
}

#[test]
fn a_descriptor_serves_with_whatever_flags_it_was_opened() {
    use std::os::unix::fs::OpenOptionsExt;
    let name = "a_descriptor_serves_with_whatever_flags_it_was_opened";
    let folder = TempFolder::under(here()).unwrap();
    let mounted = Mounted::bindfs(here());
    if let Err(why) = &mounted {
        println!("SKIPPED: {name}, on FUSE: {why}");
    }
    let dirs = [Some(folder.at().to_path_buf()), mounted.as_ref().ok().map(|m| m.at().to_path_buf())];
    for dir in dirs.into_iter().flatten() {
        let mut options = std::fs::File::options();
        let options = options.read(true).write(true).create(true);
        let (memory, back) = (memory(), Dram::allocate(LEN).unwrap());
        for access in [FileAccess::Auto, FileAccess::Cached] {
            for (uring, flag) in [(true, libc::O_NONBLOCK), (false, libc::O_NONBLOCK), (true, libc::O_DIRECT)] {
                let opened = match options.custom_flags(flag).open(dir.join("file")) {
                    Ok(opened) => opened,
                    Err(e) => {
                        println!("SKIPPED: {name}, flag {flag:#x} in {}: {e}", dir.display());
                        continue;
                    }
                };
                let ssd = Ssd::from_fd(opened.into(), "file").unwrap();
                let (machine, ssd) = (machine(uring), ssd.with_access(access).unwrap());
                ssd.set_len(0).unwrap();
                let whole = Span { source: 0, target: 0, len: LEN as u64 };
                machine.connect(&memory, &ssd).unwrap().transfer(whole).unwrap();
                let pipe = machine.connect(&ssd, &back).unwrap();
                pipe.transfer(whole).unwrap();
                assert!(*memory.lease().unwrap() == *back.lease().unwrap());
                assert_eq!(pipe.report().hops[0].counters.retries, 0, "{}: {}", dir.display(), pipe.report());
            }
        }
    }
}

/// The kernel finishes short requests of io_uring itself, and puts the rest in the wrong place if a
/// server was short.
#[test]
fn a_server_that_answers_short_costs_no_byte() {
    let name = "a_server_that_answers_short_costs_no_byte";
    let mounted = match Mounted::answering_short(here()) {
        Ok(mounted) => mounted,
        Err(why) => return println!("SKIPPED: {name}: {why}"),
    };
    let (machine, memory, back) = (machine(true), memory(), Dram::allocate(LEN).unwrap());
    let whole = Span { source: 0, target: 0, len: LEN as u64 };
    for access in [FileAccess::Auto, FileAccess::Cached, FileAccess::Direct] {
        let Ok(ssd) = Ssd::create(mounted.path("file")).unwrap().with_access(access) else { continue };
        machine.connect(&memory, &ssd).unwrap().transfer(whole).unwrap();
        let written = std::fs::read(mounted.behind("file")).unwrap();
        assert!(written == *memory.lease().unwrap(), "{access:?}: what was written");
        back.lease_mut().unwrap().fill(0);
        let pipe = machine.connect(&ssd, &back).unwrap();
        pipe.transfer(whole).unwrap();
        assert!(*memory.lease().unwrap() == *back.lease().unwrap(), "{access:?}: what was read: {}", pipe.report());
        assert!(pipe.report().hops[0].counters.short_finished > 0, "{access:?}: it was never short");
        assert!(pipe.route().primitives()[0].starts_with("pread"), "{}", pipe.route());
        let copy = Ssd::create(mounted.path("copy")).unwrap();
        machine.connect(&ssd, &copy).unwrap().transfer(whole).unwrap();
        assert!(std::fs::read(mounted.behind("copy")).unwrap() == written, "{access:?}: what was copied");
        let ring = Constraints::default().only(vec!["uring-cached".into(), "uring-direct".into()]);
        let refused = machine.connect_with(&ssd, &back, &ring).unwrap_err();
        assert!(refused.to_string().contains("io_uring finishes short requests wrongly"), "{refused}");
    }
}

#[test]
fn a_ring_that_may_be_made_and_not_entered_is_done_without() {
    let name = "a_ring_that_may_be_made_and_not_entered_is_done_without";
    if let Err(why) = &FileBackend::probe().uring().available {
        return println!("SKIPPED: {name}: {why}");
    }
    // This machine was made before the filter came: it offers a ring that can no longer be opened.
    let before = machine(true);
    let folder = TempFolder::under(here()).unwrap();
    let work = || {
        let facts = FileBackend::probe().uring().clone();
        assert!(facts.available.as_ref().is_err_and(|why| why.contains("EPERM")), "{:?}", facts.available);
        let memory = memory();
        for (machine, told) in [(machine(true), "no io_uring"), (before, "could not be opened")] {
            let ssd = large(&folder.path("file"));
            let pipe = machine.connect(&memory, &ssd).unwrap();
            assert!(pipe.route().primitives()[0].starts_with("pwrite"), "{}", pipe.route());
            assert!(pipe.route().to_string().contains(told), "{}", pipe.route());
            pipe.transfer(Span { source: 0, target: 0, len: LEN as u64 }).unwrap();
            assert!(std::fs::read(folder.path("file")).unwrap() == *memory.lease().unwrap());
            // A caller that demands the ring gets the reason why there is none.
            let only = vec!["uring-direct".into(), "uring-cached".into()];
            let refused = machine.connect_with(&memory, &ssd, &Constraints::default().only(only));
            let said = refused.unwrap_err().to_string();
            assert!(said.contains("EPERM") || said.contains("not permitted"), "{said}");
        }
    };
    let denied = RefusedCall { number: libc::SYS_io_uring_enter, errno: libc::EPERM };
    if let Err(why) = without_calls(&[denied], work) {
        println!("SKIPPED: {name}: {why}");
    }
}
