//! Missing memory is an error, and no process is killed for asking: limits of control groups, of
//! address space, and file systems without room.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

use datapipes::topology::MemoryHeadroom;
use datapipes::{Dram, ErrorKind, MapOptions, Pages, Pmem, PmemOptions, Pool, Span, Ssd};
use datapipes_testkit::{ControlGroup, Mounted};

const MIB: usize = 1 << 20;
/// The memory limit of the groups of these tests.
const LIMIT: u64 = 96 << 20;

/// Runs this program again, with one of the tests below that are child processes.
fn again(mut command: Command, test: &str) -> Command {
    command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]);
    command
}

fn judge(output: &Output, what: &str) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{what}: {}\n{text}", output.status);
    text
}

#[test]
#[ignore = "run by more_than_the_group_has_is_an_error"]
fn child_that_asks_for_more_than_its_group_has() {
    let options = MapOptions::default();
    for pages in [Pages::Small, Pages::Huge] {
        let e = Dram::allocate_with(4 * LIMIT as usize, options.pages(pages)).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::OutOfMemory, "{e}");
        assert!(e.to_string().contains("memory.") && e.to_string().contains(&LIMIT.to_string()), "{e}");
    }
    assert_eq!(Pool::new(4 * LIMIT as usize, options).unwrap_err().kind(), ErrorKind::OutOfMemory);
    // All that is left cannot be had, because of the margin. The error names it, and what fits.
    let room = MemoryHeadroom::now(None).unwrap();
    let e = Dram::allocate(usize::try_from(room.bytes).unwrap()).unwrap_err();
    assert!(e.kind() == ErrorKind::OutOfMemory && e.to_string().contains("to stay unused"), "{e}");
    let text = e.to_string();
    let fits = text.split_once("at most ").and_then(|(_, rest)| rest.split_once(" bytes")).unwrap().0;
    let fits: usize = fits.parse().unwrap();
    assert!(fits > LIMIT as usize / 2 && fits < LIMIT as usize, "{e}");
    Dram::allocate(fits - 4 * MIB).unwrap();
    // Untouched memory is only addresses; touching it is refused when the memory is used up.
    let lazy = Dram::allocate_with(4 * LIMIT as usize, options.prefault(false)).unwrap();
    assert_eq!(lazy.memory().prefault().unwrap_err().kind(), ErrorKind::OutOfMemory);
    lazy.memory().release().unwrap();
    // Many small allocations are limited like one large one.
    let mut many = Vec::new();
    let refused = loop {
        match Dram::allocate(MIB) {
            Ok(one) => many.push(one),
            Err(e) => break e,
        }
        assert!(many.len() < LIMIT as usize / MIB, "more than the group has");
    };
    assert_eq!(refused.kind(), ErrorKind::OutOfMemory, "{refused}");
    assert!(many.len() > LIMIT as usize / MIB / 3, "{} MiB of {LIMIT} bytes: {refused}", many.len());
    // Memory that is populated needs no more, though nothing is left.
    many.iter().for_each(|one| one.memory().prefault().unwrap());
    drop(many);
    let fits = Dram::allocate(LIMIT as usize / 2).unwrap();
    fits.lease_mut().unwrap().fill(1);
}

#[test]
fn more_than_the_group_has_is_an_error() {
    let group = match ControlGroup::of_memory(LIMIT) {
        Ok(group) => group,
        Err(why) => return println!("SKIPPED: more_than_the_group_has_is_an_error: {why}"),
    };
    let this = std::env::current_exe().unwrap();
    let mut command = again(group.command(this), "child_that_asks_for_more_than_its_group_has");
    judge(&command.output().unwrap(), "a process alone in its group");
}

#[test]
#[ignore = "run by several_processes_of_a_group_are_not_killed_either"]
fn child_that_takes_what_it_can() {
    let mut taken = Vec::new();
    // Each takes as much as there is, and again what the others gave back.
    for turn in 0..20 {
        for size in [64, 32, 8, 2] {
            match Dram::allocate_with(size * MIB, MapOptions::default().pages(Pages::Small)) {
                Ok(dram) => taken.push(dram),
                Err(e) => assert_eq!(e.kind(), ErrorKind::OutOfMemory, "{e}"),
            }
        }
        if turn % 3 == 0 {
            taken.clear();
        }
    }
}

#[test]
fn several_processes_of_a_group_are_not_killed_either() {
    let group = match ControlGroup::of_memory(LIMIT) {
        Ok(group) => group,
        Err(why) => return println!("SKIPPED: several_processes_of_a_group_are_not_killed_either: {why}"),
    };
    let this = std::env::current_exe().unwrap();
    let start = |_| {
        let mut command = again(group.command(&this), "child_that_takes_what_it_can");
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<_> = (0..4).map(start).collect();
    for child in children {
        judge(&child.wait_with_output().unwrap(), "one of four in a group");
    }
}

#[test]
#[ignore = "run by address_space_that_is_not_there_is_an_error_with_the_limit"]
fn child_with_little_address_space() {
    let options = MapOptions::default().prefault(false);
    let e = Pool::new(12 << 30, options).unwrap_err();
    assert_eq!((e.kind(), e.errno()), (ErrorKind::OutOfMemory, Some(libc::ENOMEM)), "{e}");
    assert!(e.to_string().contains("RLIMIT_AS") && e.to_string().contains("1024000000 bytes"), "{e}");
    // A smaller amount can be had, and a transfer works with it.
    let pool = Pool::new(16 * MIB, options).unwrap();
    let dram = Dram::from_pool(&pool, MIB).unwrap();
    let ssd = Ssd::unlinked_in(std::env::temp_dir()).unwrap();
    let pipe = datapipes::discover().connect(&dram, &ssd).unwrap();
    pipe.transfer(Span { source: 0, target: 0, len: MIB as u64 }).unwrap();
}

#[test]
fn address_space_that_is_not_there_is_an_error_with_the_limit() {
    let mut command = Command::new("prlimit");
    command.args(["--as=1024000000:1024000000", "--"]).arg(std::env::current_exe().unwrap());
    match again(command, "child_with_little_address_space").output() {
        Ok(output) => drop(judge(&output, "a process with little address space")),
        Err(e) => {
            println!("SKIPPED: address_space_that_is_not_there_is_an_error_with_the_limit: prlimit: {e}");
        }
    }
}

#[test]
fn what_a_full_file_system_cannot_give_is_an_error_not_a_signal() {
    let name = "what_a_full_file_system_cannot_give_is_an_error_not_a_signal";
    let mounted = match Mounted::small(env!("CARGO_TARGET_TMPDIR"), MIB as u64) {
        Ok(mounted) => mounted,
        Err(why) => return println!("SKIPPED: {name}: {why}"),
    };
    let sparse = |name: &str| {
        std::fs::File::create(mounted.path(name)).unwrap().set_len(4 * MIB as u64).unwrap();
        Pmem::open_with(mounted.path(name), PmemOptions::default().emulated(true)).unwrap()
    };
    let pmem = sparse("sparse");
    let e = pmem.prefault().unwrap_err();
    assert_eq!((e.kind(), e.errno()), (ErrorKind::NoSpace, Some(libc::ENOSPC)), "{e}");
    // The memory itself knows no file, and returns the kernel's error.
    let e = pmem.memory().prefault().unwrap_err();
    assert_eq!((e.kind(), e.errno()), (ErrorKind::Device, Some(libc::EFAULT)), "{e}");
    // A part that fits can be had.
    drop(pmem);
    std::fs::remove_file(mounted.path("sparse")).unwrap();
    let pmem = sparse("again");
    pmem.range(2 * MIB, MIB / 2).unwrap().prefault().unwrap();
    // The file is cut under the mapping: this is an error too, and the length stays.
    std::fs::File::options().write(true).open(mounted.path("again")).unwrap().set_len(2 * MIB as u64).unwrap();
    let e = pmem.range(2 * MIB, 4096).unwrap().prefault().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Device, "{e}");
    assert_eq!(std::fs::metadata(mounted.path("again")).unwrap().len(), 2 * MIB as u64);
}

#[test]
fn room_is_told_with_what_limits_it() {
    let Some(room) = MemoryHeadroom::now(None) else {
        return println!("SKIPPED: room_is_told_with_what_limits_it: the kernel tells nothing");
    };
    assert!(room.bytes > 0 && !room.limited_by.is_empty(), "{room:?}");
    let e = Dram::allocate(usize::try_from(room.bytes).unwrap().saturating_mul(2)).unwrap_err();
    assert!(e.kind() == ErrorKind::OutOfMemory && e.to_string().contains("are left by"), "{e}");
    assert!(Path::new("/proc/meminfo").exists());
}
