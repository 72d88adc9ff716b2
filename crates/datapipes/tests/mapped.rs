//! Memory that shows a file: what is written stays in the memory, and what the file loses is an
//! error. Pipes whose transfers a program waits for by their event.
#![allow(clippy::unwrap_used)]

mod scene;

use std::os::unix::fs::FileExt;

use datapipes::{Dram, ErrorKind, Machine, Span, Ssd, cached_share, discover};
use datapipes_testkit::TempFolder;
use scene::pattern;

const LEN: usize = 300_000;
/// Where the memory begins in the file: within a page.
const AT: u64 = 10_007;

struct Scene {
    path: std::path::PathBuf,
    content: Vec<u8>,
    file: Ssd,
    mapped: Dram,
    machine: Machine,
    /// The file is gone with it.
    folder: TempFolder,
}

fn scene() -> Scene {
    let folder = TempFolder::beside_the_program().unwrap();
    let (path, content) = (folder.path("file"), pattern(LEN as u64));
    std::fs::write(&path, &content).unwrap();
    let file = Ssd::open_rw(&path).unwrap();
    let mapped = Dram::map_file(&file, AT, LEN - AT as usize).unwrap();
    Scene { path, content, file, mapped, machine: discover(), folder }
}

#[test]
fn the_bytes_are_those_of_the_file_and_stores_stay_in_the_memory() {
    let Scene { path, content, file, mapped, machine, folder: _folder, .. } = scene();
    assert_eq!(mapped.memory().to_vec().unwrap(), content[AT as usize..]);
    assert_eq!(mapped.lease().unwrap_err().kind(), ErrorKind::Unsupported);
    mapped.memory().write(5000, b"stays here").unwrap();
    let target = Dram::allocate(8192).unwrap();
    machine.connect(&mapped, &target).unwrap().transfer(Span { source: 0, target: 0, len: 8192 }).unwrap();
    let mut wanted = content[AT as usize..][..8192].to_vec();
    wanted[5000..5010].copy_from_slice(b"stays here");
    assert_eq!(target.lease().unwrap()[..], wanted);
    // Other bytes of the file are read over it, past the page cache and through it.
    for access in [datapipes::FileAccess::Direct, datapipes::FileAccess::Cached] {
        let Ok(file) = file.with_access(access) else {
            println!("SKIPPED: the_bytes_are_those_of_the_file_and_stores_stay_in_the_memory: no direct I/O here");
            continue;
        };
        let pipe = machine.connect(&file, &mapped).unwrap();
        pipe.transfer(Span { source: 4096, target: 100_001, len: 60_000 }).unwrap();
        let mut read = vec![0; 60_000];
        mapped.memory().read(100_001, &mut read).unwrap();
        assert_eq!(read, content[4096..64_096]);
    }
    assert_eq!(std::fs::read(&path).unwrap(), content);
    // And to the file itself.
    machine.connect(&mapped, &file).unwrap().transfer(Span { source: 5000, target: 0, len: 10 }).unwrap();
    assert_eq!(std::fs::read(&path).unwrap()[..10], *b"stays here");
}

#[test]
fn prefaulting_copies_nothing() {
    let Scene { path, mapped, folder: _folder, .. } = scene();
    mapped.memory().write(0, b"own").unwrap();
    mapped.memory().prefault().unwrap();
    let other = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    other.write_all_at(b"changed", AT + 100_000).unwrap();
    let mut shown = [0; 7];
    mapped.memory().read(100_000, &mut shown).unwrap();
    assert_eq!(&shown, b"changed", "a page that was not written here is the file's");
}

#[test]
fn what_cannot_be_mapped_is_refused() {
    let Scene { path, file, folder: _folder, .. } = scene();
    let kind = |file: &Ssd, at, len| Dram::map_file(file, at, len).unwrap_err().kind();
    assert_eq!(kind(&file, 0, 0), ErrorKind::InvalidInput);
    assert_eq!(kind(&file, 1, LEN), ErrorKind::OutOfRange);
    assert_eq!(kind(&file, u64::MAX, 1), ErrorKind::OutOfRange);
    assert_eq!(kind(&file, LEN as u64, 1), ErrorKind::OutOfRange);
    let writes = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let writes = Ssd::from_fd(writes.into(), &path).unwrap();
    assert_eq!(kind(&writes, 0, 10), ErrorKind::PermissionDenied);
    let share = cached_share(&file);
    assert!(share.is_none_or(|share| (0.0..=1.0).contains(&share)), "{share:?}");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn pages_that_the_file_loses_are_errors_with_their_offset() {
    let Scene { path, mapped, machine, folder: _folder, .. } = scene();
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(65_536).unwrap();
    let error = mapped.memory().read(100_000, &mut [0; 10]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Device, "{error}");
    let at = error.offset().unwrap();
    assert!((AT + 100_000).abs_diff(at) <= 4096, "{at} is an offset in the file");
    assert_eq!(mapped.memory().write(200_000, b"x").unwrap_err().kind(), ErrorKind::Device);
    let target = Dram::allocate(4096).unwrap();
    let pipe = machine.connect(&mapped, &target).unwrap();
    let refused = pipe.transfer(Span { source: 200_000, target: 0, len: 4096 }).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Device, "{refused}");
    pipe.transfer(Span { source: 0, target: 0, len: 4096 }).unwrap();
    assert_eq!(mapped.memory().prefault().unwrap_err().kind(), ErrorKind::Device);
}

#[test]
fn a_program_waits_for_the_event_of_a_pipe() {
    let Scene { content, file, machine, folder: _folder, .. } = scene();
    let memory = Dram::allocate(LEN).unwrap();
    let pipe = machine.connect(&file, &memory).unwrap();
    let spans = (0..4).map(|i| Span { source: i * 70_000, target: i * 70_000, len: 70_000 });
    let mut started: Vec<_> = spans.map(|span| pipe.start(span).unwrap()).collect();
    let event = pipe.event().unwrap();
    if event.is_none() {
        println!("SKIPPED: a_program_waits_for_the_event_of_a_pipe: the route has no ring here");
    }
    while !started.is_empty() {
        if let Some(event) = &event {
            let mut watched = [rustix::event::PollFd::new(event, rustix::event::PollFlags::IN)];
            let patience = rustix::time::Timespec { tv_sec: 60, tv_nsec: 0 };
            assert_eq!(rustix::event::poll(&mut watched, Some(&patience)).unwrap(), 1);
        }
        let done = started.extract_if(.., |transfer| transfer.is_done());
        done.for_each(|transfer| transfer.wait().unwrap());
    }
    assert_eq!(memory.lease().unwrap()[..280_000], content[..280_000]);
    assert!(machine.connect(&memory, &Dram::allocate(LEN).unwrap()).unwrap().event().unwrap().is_none());
}
