//! The choice of primitives and its reasons, and machines without io_uring.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

mod common;

use common::{bytes, contents, disk, file, machine, memory, memory_of, only, seed};
use datapipes_core::{Constraints, Dram, ErrorKind, FileAccess, Span, Ssd};
use datapipes_file::{FileBackend, FileBackendOptions};

fn evict(ssd: &Ssd) {
    ssd.sync().unwrap();
    rustix::fs::fadvise(ssd.file().cached_fd(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

#[test]
fn auto_reads_resident_bytes_from_the_page_cache_and_others_past_it() {
    let machine = machine(FileBackendOptions::default());
    let dram = Dram::allocate(8 << 20).unwrap();
    let Some(ssd) = file(&disk(), &bytes(8 << 20, 1), FileAccess::Auto) else { return };
    for typical_len in [1, 4096, 1 << 20, 1 << 30] {
        let c = Constraints::default().typical_len(typical_len);
        let route = machine.explain(&ssd, &dram, &c).unwrap();
        assert!(route.primitives()[0].ends_with("-cached"), "{typical_len}: {route}");
        assert!(route.hops[0].why.contains("the page cache holds 100%"), "{route}");
    }
    evict(&ssd);
    for typical_len in [1, 4096, 1 << 20, 1 << 30] {
        let c = Constraints::default().typical_len(typical_len);
        let route = machine.explain(&ssd, &dram, &c).unwrap();
        assert_eq!(route.primitives(), ["uring-direct"], "{typical_len}: {route}");
        assert!(route.hops[0].why.contains("the page cache holds 0%"), "{route}");
    }
    let small = file(&disk(), &bytes(5000, 1), FileAccess::Auto).unwrap();
    evict(&small);
    let route = machine.explain(&small, &dram, &Constraints::default()).unwrap();
    assert!(route.primitives()[0].ends_with("-cached") && route.hops[0].why.contains("small"), "{route}");
}

#[test]
fn auto_writes_large_files_past_the_page_cache() {
    let machine = machine(FileBackendOptions::default());
    let dram = memory(1 << 20);
    let ssd = Ssd::unlinked_in(disk()).unwrap();
    let route = machine.explain(&dram, &ssd, &Constraints::default()).unwrap();
    assert!(route.primitives()[0].ends_with("-cached"), "{route}");
    ssd.preallocate(4 << 20).unwrap();
    let route = machine.explain(&dram, &ssd, &Constraints::default()).unwrap();
    assert_eq!(route.primitives(), ["uring-direct"], "{route}");
}

#[test]
fn access_is_a_demand_and_so_are_constraints() {
    let machine = machine(FileBackendOptions::default());
    let dram = memory(1 << 20);
    let Some(direct) = file(&disk(), &bytes(1 << 20, 1), FileAccess::Direct) else { return };
    let cached = direct.with_access(FileAccess::Cached).unwrap();
    assert_eq!(machine.explain(&direct, &dram, &Constraints::default()).unwrap().primitives(), ["uring-direct"]);
    assert!(machine.explain(&cached, &dram, &Constraints::default()).unwrap().primitives()[0].ends_with("-cached"));
    let e = machine.explain(&direct, &dram, &only("uring-cached")).unwrap_err();
    assert!(e.kind() == ErrorKind::Unsupported && e.to_string().contains("direct access was asked for"), "{e}");
    let bypass = Constraints::default().bypass_page_cache(true);
    let auto = direct.with_access(FileAccess::Auto).unwrap();
    assert_eq!(machine.explain(&auto, &dram, &bypass).unwrap().primitives(), ["uring-direct"]);
    let e = machine.explain(&cached, &dram, &bypass).unwrap_err();
    assert!(e.to_string().contains("page cache"), "{e}");
    let path = disk().join(format!("read-only-{}", std::process::id()));
    std::fs::write(&path, b"x").unwrap();
    let readable = Ssd::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let e = machine.explain(&dram, &readable, &Constraints::default()).unwrap_err();
    assert!(e.to_string().contains("open for reading only"), "{e}");
}

#[test]
fn without_io_uring_the_route_says_why() {
    let machine = machine(FileBackendOptions::default().force_no_uring(true));
    let source = bytes(3_000_001, seed());
    let Some(ssd) = file(&disk(), &source, FileAccess::Direct) else { return };
    let dram = memory(source.len());
    let pipe = machine.connect(&ssd, &dram).unwrap();
    assert_eq!(pipe.route().primitives(), ["pread-direct"]);
    let refused = pipe.route().rejected.iter().find(|r| r.primitive == "uring-direct").unwrap();
    assert!(refused.why.contains("forbids"), "{refused:?}");
    pipe.transfer(Span { source: 0, target: 0, len: source.len() as u64 }).unwrap();
    assert!(*dram.lease().unwrap() == *source);
    let back = machine.connect(&dram, &ssd).unwrap();
    assert_eq!(back.route().primitives(), ["pwrite-direct"]);
}

/// The child of the next test. The filter is in place before it starts.
#[test]
#[ignore = "run by its parent, which says what to do"]
fn child_under_seccomp() {
    assert!(std::env::var_os("DATAPIPES_UNDER_SECCOMP").is_some(), "its parent starts it under a filter");
    let backend = FileBackend::probe();
    let why = backend.uring().available.clone().unwrap_err();
    assert!(why.contains("seccomp") && why.contains("EPERM"), "{why}");
    let machine = machine(FileBackendOptions::default());
    let source = bytes(3_000_001, 3);
    let ssd = file(&disk(), &source, FileAccess::Auto).unwrap();
    let dram = memory(source.len());
    let pipe = machine.connect(&ssd, &dram).unwrap();
    // cachestat is refused too, so residency comes from mincore.
    assert_eq!(pipe.route().primitives(), ["pread-cached"], "{}", pipe.route());
    assert!(pipe.route().hops[0].why.contains("holds 100%"), "{}", pipe.route());
    pipe.transfer(Span { source: 1, target: 0, len: 3_000_000 }).unwrap();
    assert!(dram.lease().unwrap()[..3_000_000] == source[1..]);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn under_a_seccomp_filter_system_calls_take_over() {
    use std::os::unix::process::CommandExt;
    // Refuses io_uring_setup (425) with EPERM and cachestat (451) with ENOSYS, and allows all other
    // calls.
    let op = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    const LOAD: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const ERRNO: u32 = 0x0005_0000;
    let filter = [
        op(LOAD, 0, 0, 0),
        op(JUMP_IF_EQUAL, 2, 0, 425),
        op(JUMP_IF_EQUAL, 2, 0, 451),
        op(RETURN, 0, 0, 0x7fff_0000),
        op(RETURN, 0, 0, ERRNO | libc::EPERM as u32),
        op(RETURN, 0, 0, ERRNO | libc::ENOSYS as u32),
    ];
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "child_under_seccomp", "--ignored", "--nocapture"]).env("DATAPIPES_UNDER_SECCOMP", "1");
    // SAFETY: the closure makes two system calls and allocates nothing, as required between fork
    // and exec.
    unsafe {
        child.pre_exec(move || {
            let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
            if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) != 0
            {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
    match child.output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && text.contains("1 passed"), "{text}");
        }
        Err(e) => println!("SKIPPED: under_a_seccomp_filter_system_calls_take_over: no filter can be set: {e}"),
    }
}

/// The child of the next test.
#[test]
#[ignore = "run by its parent, which says what to do"]
fn child_with_little_locked_memory() {
    assert!(std::env::var_os("DATAPIPES_LITTLE_MEMLOCK").is_some(), "its parent starts it under a limit");
    let source = bytes(3_000_001, 3);
    let ssd = file(&std::env::temp_dir(), &source, FileAccess::Cached).unwrap();
    let dram = memory(source.len());
    let pipe = machine(FileBackendOptions::default()).connect_with(&ssd, &dram, &only("uring-cached")).unwrap();
    pipe.transfer(Span { source: 1, target: 0, len: 3_000_000 }).unwrap();
    assert!(dram.lease().unwrap()[..3_000_000] == source[1..]);
    let c = &pipe.report().hops[0].counters;
    assert!(c.fixed_buffer_hits == 0 && c.fixed_buffer_misses > 0, "{c:?}");
}

#[test]
fn where_memory_cannot_be_registered_plain_addresses_serve() {
    use std::os::unix::process::CommandExt;
    let name = "where_memory_cannot_be_registered_plain_addresses_serve";
    if let Err(why) = &FileBackend::probe().uring().available {
        println!("SKIPPED: {name}: {why}");
        return;
    }
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "child_with_little_locked_memory", "--ignored", "--nocapture"]);
    child.env("DATAPIPES_LITTLE_MEMLOCK", "1").current_dir("/");
    if rustix::process::geteuid().is_root() {
        // Root may lock any amount, so the child is another user, who may not.
        child.uid(65534).gid(65534);
    }
    // SAFETY: the closure makes one system call, on a value of its own.
    unsafe {
        child.pre_exec(|| {
            let limit = libc::rlimit { rlim_cur: 64 << 10, rlim_max: 64 << 10 };
            match libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
    match child.output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && text.contains("1 passed"), "{text}");
        }
        Err(e) => println!("SKIPPED: {name}: the test cannot be run as another user: {e}"),
    }
}

#[test]
fn facts_are_a_value() {
    let backend = FileBackend::probe();
    let json = serde_json::to_value(backend.uring()).unwrap();
    assert!(json["kernel"].is_string() && json["features"].is_array(), "{json}");
    let primitives = datapipes_core::backend::Backend::primitives(&backend);
    assert_eq!(primitives.len(), 8);
}

#[test]
fn file_to_file_in_the_kernel() {
    let seed = seed();
    let machine = machine(FileBackendOptions::default());
    let source = bytes(3_000_000, seed);
    for dir in common::dirs() {
        let from = file(&dir, &source, FileAccess::Auto).unwrap();
        let to = file(&dir, &[], FileAccess::Auto).unwrap();
        let pipe = machine.connect_with(&from, &to, &only("kernel-copy")).unwrap();
        pipe.transfer(Span { source: 1000, target: 0, len: 2_000_000 }).unwrap();
        assert!(contents(&to) == source[1000..2_001_000]);
        let e = pipe.transfer(Span { source: 2_999_000, target: 0, len: 5000 }).unwrap_err();
        assert_eq!((e.kind(), e.offset(), e.bytes_done()), (ErrorKind::EndOfFile, Some(3_000_000), 1000), "{e}");
        let c = &pipe.report().hops[0].counters;
        assert_eq!((c.transfers, c.failed, c.bytes), (1, 1, 2_001_000));
    }
    if let [disk, shm, ..] = &common::dirs()[..] {
        let (from, to) = (file(disk, &source, FileAccess::Auto).unwrap(), file(shm, &[], FileAccess::Auto).unwrap());
        let e = machine.explain(&from, &to, &only("kernel-copy")).unwrap_err();
        assert!(e.to_string().contains("copy_file_range is refused"), "{e}");
    }
}

#[test]
fn large_copies_between_files_go_around_the_page_cache() {
    let machine = machine(FileBackendOptions::default());
    let source = bytes(20 << 20, 4);
    let from = file(&disk(), &source, FileAccess::Auto).unwrap();
    evict(&from);
    let to = file(&disk(), &[], FileAccess::Auto).unwrap();
    to.preallocate(20 << 20).unwrap();
    let pipe = machine.connect(&from, &to).unwrap();
    let primitives = pipe.route().primitives();
    if primitives == ["kernel-copy"] {
        assert!(pipe.route().hops[0].why.contains("reflink"), "{}", pipe.route());
    } else {
        assert_eq!(primitives, ["uring-direct", "uring-direct"], "{}", pipe.route());
    }
    pipe.transfer(Span { source: 0, target: 0, len: 20 << 20 }).unwrap();
    assert!(contents(&to) == source);
}

/// XFS over a loop device shares blocks.
#[test]
fn blocks_are_shared_where_the_file_system_can() {
    let image = disk().join(format!("xfs-{}", std::process::id()));
    let dir = disk().join(format!("xfs-{}-mnt", std::process::id()));
    let run = |program: &str, args: &[&std::ffi::OsStr]| {
        let run = std::process::Command::new(program).args(args).output().map_err(|e| format!("{program}: {e}"))?;
        let said = String::from_utf8_lossy(&run.stderr).trim().to_owned();
        if run.status.success() { Ok(()) } else { Err(format!("{program}: {said}")) }
    };
    let prepare = || {
        std::fs::File::create(&image).and_then(|f| f.set_len(400 << 20)).map_err(|e| e.to_string())?;
        std::fs::create_dir_all(&dir).map_err(|e| e.to_string())?;
        run("mkfs.xfs", &["-q".as_ref(), "-m".as_ref(), "reflink=1".as_ref(), image.as_os_str()])?;
        run("mount", &["-o".as_ref(), "loop".as_ref(), image.as_os_str(), dir.as_os_str()])
    };
    let prepared = prepare();
    let outcome = std::panic::catch_unwind(|| {
        if let Err(why) = &prepared {
            println!("SKIPPED: blocks_are_shared_where_the_file_system_can: {why}");
            return;
        }
        let source = bytes(10_000_001, 6);
        let from = file(&dir, &source, FileAccess::Auto).unwrap();
        let to = file(&dir, &[], FileAccess::Auto).unwrap();
        let pipe = machine(FileBackendOptions::default()).connect(&from, &to).unwrap();
        assert_eq!(pipe.route().primitives(), ["kernel-copy"], "{}", pipe.route());
        assert!(pipe.route().hops[0].why.contains("reflink"), "{}", pipe.route());
        pipe.transfer(Span { source: 100, target: 100, len: 9_999_901 }).unwrap();
        assert!(contents(&to)[100..] == source[100..]);
        let c = &pipe.report().hops[0].counters;
        assert!(c.direct_bytes > 9_900_000 && c.cached_bytes > 0, "{c:?}");
        // The memory has any address, and the device another block size.
        let dram = memory_of(&source);
        let pipe = machine(FileBackendOptions::default()).connect_with(&to, &dram, &only("uring-direct")).unwrap();
        pipe.transfer(Span { source: 101, target: 1, len: 9_000_000 }).unwrap();
        assert!(dram.lease().unwrap()[1..9_000_001] == source[101..9_000_101]);
    });
    if prepared.is_ok() {
        let _ = std::process::Command::new("umount").arg(&dir).status();
    }
    let _ = std::fs::remove_file(&image);
    let _ = std::fs::remove_dir(&dir);
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn a_file_that_is_open_for_appending_is_no_target() {
    let path = disk().join(format!("append-{}", std::process::id()));
    std::fs::write(&path, b"first").unwrap();
    let opened = std::fs::File::options().read(true).append(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let ssd = Ssd::from_fd(opened.into(), "log").unwrap();
    let (machine, dram) = (machine(FileBackendOptions::default()), memory(5));
    let other = file(&disk(), b"other", FileAccess::Auto).unwrap();
    for refused in [machine.connect(&dram, &ssd), machine.connect(&other, &ssd)] {
        let e = refused.unwrap_err();
        assert!(e.kind() == ErrorKind::Unsupported && e.to_string().contains("O_APPEND"), "{e}");
    }
    machine.connect(&ssd, &dram).unwrap().transfer(Span { source: 0, target: 0, len: 5 }).unwrap();
    assert_eq!(&dram.lease().unwrap()[..], b"first");
}
