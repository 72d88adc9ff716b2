//! Commands to NVMe namespaces through io_uring. What needs a namespace runs where the environment
//! names some whose contents may be lost (`DATAPIPES_NVME`, with colons between them): in
//! `cargo xtask guest`.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use common::{Random, bytes, contents, disk, file, machine, memory, memory_of, only, seed};
use datapipes_core::{Constraints, ErrorKind, FileAccess, Machine, Span, Ssd};
use datapipes_file::{FaultInjector, FaultVerdict, FileBackendOptions, Operation};
use datapipes_testkit::TempFolder;

const COMMANDS: &str = "uring-nvme";

fn namespaces() -> Vec<PathBuf> {
    let given = std::env::var_os("DATAPIPES_NVME");
    if given.is_none() {
        println!("SKIPPED: commands to a namespace: DATAPIPES_NVME names none whose contents may be lost");
    }
    given.iter().flat_map(std::env::split_paths).collect()
}

fn open(path: &Path) -> Ssd {
    Ssd::open_rw(path).unwrap()
}

fn the(machine: &Machine) -> Result<String, String> {
    let primitives = machine.backends()[0].primitives();
    primitives.into_iter().find(|p| p.name == COMMANDS).unwrap().available
}

#[test]
fn what_is_no_namespace_is_refused_with_the_reason() {
    let machine = machine(FileBackendOptions::default());
    let (ssd, dram) = (file(&disk(), &bytes(1 << 20, 1), FileAccess::Auto).unwrap(), memory(1 << 20));
    let e = machine.explain(&ssd, &dram, &only(COMMANDS)).unwrap_err();
    assert!(e.kind() == ErrorKind::Unsupported && e.to_string().contains("not an NVMe namespace"), "{e}");
    let route = machine.explain(&dram, &ssd, &Constraints::default()).unwrap();
    let refused = route.rejected.iter().find(|r| r.primitive == COMMANDS).unwrap();
    assert!(refused.why.contains("not an NVMe namespace"), "{refused:?}");
    // The reason of an absence, or the devices.
    match the(&machine) {
        Ok(devices) => assert!(devices.contains("/dev/ng"), "{devices}"),
        Err(why) => assert!(!why.is_empty()),
    }
    let without = common::machine(FileBackendOptions::default().force_no_uring(true));
    assert!(the(&without).is_err_and(|why| why.contains("forbids")));
}

#[test]
fn namespaces_are_read_and_written_by_commands() {
    for path in namespaces() {
        let ssd = open(&path);
        taken_only_where_named(&ssd);
        moves_what_others_see(&ssd);
        survives_faults(&ssd);
        ends_where_it_ends(&ssd);
        is_not_written_where_read_only(&path);
        is_not_written_where_mounted(&path);
    }
}

fn taken_only_where_named(ssd: &Ssd) {
    let machine = machine(FileBackendOptions::default());
    let dram = memory(1 << 16);
    assert!(the(&machine).is_ok_and(|devices| devices.contains("/dev/ng")), "{:?}", the(&machine));
    for (source, target) in [(ssd as &dyn datapipes_core::Locator, &dram as &dyn datapipes_core::Locator), (&dram, ssd)]
    {
        let route = machine.explain(source, target, &Constraints::default()).unwrap();
        assert_ne!(route.primitives(), [COMMANDS]);
        let refused = route.rejected.iter().find(|r| r.primitive == COMMANDS).unwrap();
        assert!(refused.why.contains("only where it is named"), "{refused:?}");
        let route = machine.explain(source, target, &only(COMMANDS)).unwrap();
        assert_eq!(route.primitives(), [COMMANDS], "{route}");
        let cached = ssd.with_access(FileAccess::Cached).unwrap();
        let e = machine.explain(&cached, &dram, &only(COMMANDS)).unwrap_err();
        assert!(e.to_string().contains("cached access was asked for"), "{e}");
    }
}

/// Others see what commands wrote, and commands see what others wrote, whatever the page cache has.
fn moves_what_others_see(ssd: &Ssd) {
    let machine = machine(FileBackendOptions::default());
    let len = ssd.len().unwrap();
    let mut twin = contents(ssd);
    let mut random = Random(seed());
    let (up, down) = (memory_of(&bytes(len as usize, seed())), memory(len as usize));
    let source = up.lease().unwrap().to_vec();
    let commands = only(COMMANDS);
    let write = machine.connect_with(&up, ssd, &commands).unwrap();
    let read = machine.connect_with(ssd, &down, &commands).unwrap();
    let cached = machine.connect_with(&up, ssd, &only("uring-cached")).unwrap();
    let mut moved = 0;
    for round in 0..60 {
        let n = if round == 0 { len } else { 1 + random.awkward(len - 1) };
        let span = Span { source: random.awkward(len - n), target: random.awkward(len - n), len: n };
        // The page cache has dirty pages, and clean ones.
        let other = Span { source: random.awkward(len - 5000), target: random.awkward(len - 5000), len: 5000 };
        for (pipe, span) in [(&cached, other), (&write, span)] {
            pipe.transfer(span).unwrap();
            let (from, to) = (span.source as usize, span.target as usize);
            twin[to..to + span.len as usize].copy_from_slice(&source[from..from + span.len as usize]);
        }
        moved += n;
        if round % 2 == 0 {
            assert!(contents(ssd) == twin, "round {round}: others do not see {span:?}");
        }
        read.transfer(Span { source: span.target, target: span.source, len: n }).unwrap();
        let got = down.lease().unwrap()[span.source as usize..(span.source + n) as usize].to_vec();
        assert!(got == twin[span.target as usize..(span.target + n) as usize], "round {round}: {span:?}");
    }
    let (written, got) = (write.report(), read.report());
    assert_eq!((written.bytes(), got.bytes()), (moved, moved));
    assert!(written.hops[0].counters.direct_bytes > 0, "{written}");
    assert_eq!(got.hops[0].counters.direct_bytes, moved, "{got}");
    assert!(got.to_string().contains(COMMANDS) || got.hops[0].primitive == COMMANDS, "{got}");
}

/// Some requests are short, refused, interrupted or lost.
struct Rough(Mutex<Random>);

impl FaultInjector for Rough {
    fn verdict(&self, op: &Operation) -> FaultVerdict {
        let mut random = self.0.lock().unwrap();
        match random.below(12) {
            0 | 1 => FaultVerdict::Short(1 + random.below(u64::from(op.len)) as u32),
            2 => FaultVerdict::Errno([libc::EINTR, libc::EAGAIN, libc::ECANCELED][random.below(3) as usize]),
            3 if op.nth.is_multiple_of(20) => FaultVerdict::Lost,
            _ => FaultVerdict::Pass,
        }
    }
}

struct BadSpot(u64);

impl FaultInjector for BadSpot {
    fn verdict(&self, op: &Operation) -> FaultVerdict {
        let covers = op.offset <= self.0 && self.0 < op.offset + u64::from(op.len);
        if covers { FaultVerdict::Errno(libc::EIO) } else { FaultVerdict::Pass }
    }
}

fn survives_faults(ssd: &Ssd) {
    let len = ssd.len().unwrap();
    let rough = Arc::new(Rough(Mutex::new(Random(seed()))));
    let rough = machine(FileBackendOptions::default().faults(rough).request_bytes(16 << 10));
    let source = bytes(len as usize, seed() + 2);
    let (up, down) = (memory_of(&source), memory(len as usize));
    rough.connect_with(&up, ssd, &only(COMMANDS)).unwrap().transfer(Span { source: 0, target: 0, len }).unwrap();
    rough.connect_with(ssd, &down, &only(COMMANDS)).unwrap().transfer(Span { source: 0, target: 0, len }).unwrap();
    assert!(*down.lease().unwrap() == *source, "bytes were lost to faults");
    let bad = machine(FileBackendOptions::default().faults(Arc::new(BadSpot(300_000))).request_bytes(16 << 10));
    let pipe = bad.connect_with(ssd, &down, &only(COMMANDS)).unwrap();
    let e = pipe.transfer(Span { source: 0, target: 0, len }).unwrap_err();
    assert_eq!((e.kind(), e.offset()), (ErrorKind::Device, Some(294_912)), "{e}");
    assert_eq!(e.bytes_done(), 294_912, "{e}");
}

fn ends_where_it_ends(ssd: &Ssd) {
    let machine = machine(FileBackendOptions::default());
    let (len, dram) = (ssd.len().unwrap(), memory(1 << 16));
    let before = contents(ssd);
    let read = machine.connect_with(ssd, &dram, &only(COMMANDS)).unwrap();
    for (have, n) in [(0, 1), (512, 4096), (4096, 8192), (5000, 60_000)] {
        let e = read.transfer(Span { source: len - have, target: 0, len: n }).unwrap_err();
        assert_eq!((e.kind(), e.offset()), (ErrorKind::EndOfFile, Some(len)), "{e}");
    }
    let write = machine.connect_with(&dram, ssd, &only(COMMANDS)).unwrap();
    for at in [len, len - 4096, u64::MAX - 4096, u64::MAX / 512 * 512, (1 << 63) - 4096] {
        let e = write.transfer(Span { source: 0, target: at, len: 8192 }).unwrap_err();
        let kinds = [ErrorKind::OutOfRange, ErrorKind::NoSpace, ErrorKind::InvalidInput];
        assert!(kinds.contains(&e.kind()), "{at}: {e}");
        // What wraps would arrive at the beginning.
        assert!(contents(ssd)[..len as usize - 4096] == before[..len as usize - 4096], "a write at {at}: {e}");
    }
}

fn ran(program: &str, arguments: &[&str], at: &Path) -> bool {
    let output = Command::new(program).args(arguments).arg(at).output();
    output.is_ok_and(|output| output.status.success())
}

fn is_not_written_where_read_only(path: &Path) {
    if !ran("blockdev", &["--setro"], path) {
        return println!("SKIPPED: a read-only namespace: blockdev does not set it");
    }
    let machine = machine(FileBackendOptions::default());
    let dram = memory(1 << 16);
    // The kernel still opens it for writing before 6.6 or so, and refuses the requests.
    let refused = match Ssd::open_rw(path) {
        Ok(ssd) => machine.connect_with(&dram, &ssd, &only(COMMANDS)).unwrap_err(),
        Err(e) => e,
    };
    let read = machine.connect_with(&Ssd::open(path).unwrap(), &dram, &only(COMMANDS));
    assert!(ran("blockdev", &["--setrw"], path));
    assert!(refused.to_string().contains("read-only") || refused.kind() == ErrorKind::PermissionDenied, "{refused}");
    read.unwrap().transfer(Span { source: 0, target: 0, len: 4096 }).unwrap();
}

fn is_not_written_where_mounted(path: &Path) {
    let machine = machine(FileBackendOptions::default());
    let (ssd, dram) = (open(path), memory(1 << 16));
    let folder = TempFolder::new().unwrap();
    let at = folder.at().to_str().unwrap();
    let mount =
        || Command::new("mount").args(["-t", "ext4"]).arg(path).arg(at).output().is_ok_and(|o| o.status.success());
    assert!(ran("mkfs.ext4", &["-q", "-F"], path), "mkfs.ext4 of {}", path.display());
    // While a pipe may write it, nobody can mount it.
    let pipe = machine.connect_with(&dram, &ssd, &only(COMMANDS)).unwrap();
    let second = machine.connect_with(&dram, &ssd, &only(COMMANDS)).unwrap();
    drop(pipe);
    assert!(!mount(), "{} is written, and was mounted", path.display());
    drop(second);
    assert!(mount(), "{} cannot be mounted", path.display());
    let refused = machine.connect_with(&dram, &ssd, &only(COMMANDS));
    let read = machine
        .connect_with(&ssd, &dram, &only(COMMANDS))
        .and_then(|p| p.transfer(Span { source: 0, target: 0, len: 65536 }));
    assert!(ran("umount", &[], Path::new(at)));
    assert!(refused.as_ref().is_err_and(|e| e.to_string().contains("it is mounted")), "{refused:?}");
    read.unwrap();
}
