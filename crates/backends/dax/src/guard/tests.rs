//! Every routine against a naive copy, and with pages that disappear during it, on a real file.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use datapipes_core::topology::Topology;

use super::*;
use crate::store::{self, Load, Store};

const PAGE: usize = 4096;
const LEN: usize = 16 * PAGE;

/// A mapped file on the disk of the test's executable.
struct Mapped {
    file: File,
    start: *mut u8,
    path: PathBuf,
}

impl Mapped {
    fn new(name: &str) -> Mapped {
        let folder = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
        let path = folder.join(format!("guard-{name}-{}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        file.set_len(LEN as u64).unwrap();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping touches nothing that exists.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), LEN, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(start, libc::MAP_FAILED);
        Mapped { file, start: start.cast(), path }
    }

    fn at(&self, at: usize) -> *mut u8 {
        self.start.wrapping_add(at)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: `new` made this mapping.
        unsafe { libc::munmap(self.start.cast(), LEN) };
        let _ = std::fs::remove_file(&self.path);
    }
}

/// This processor, and the same one without some of its instructions.
fn processors() -> Vec<(String, Guarded)> {
    let best = FlushInstructions::detect(&Topology::discover().cpu);
    let lacking: [&[&str]; 4] =
        [&[], &["avx512f", "clwb"], &["avx512f", "avx2", "clwb", "clflushopt"], &["avx512f", "avx2"]];
    let mut found: Vec<(String, Guarded)> = Vec::new();
    for lacks in lacking {
        let guarded = Guarded::new(&best.without(lacks)).unwrap();
        let name = format!("{} and {}", guarded.width.name(), guarded.flush.name());
        if found.iter().all(|(other, _)| *other != name) {
            found.push((name, guarded));
        }
    }
    let widths: Vec<_> = found.iter().map(|f| f.1.width).collect();
    for width in [Width::Avx2, Width::Avx512] {
        if !widths.contains(&width) {
            println!("SKIPPED: stores by {}: this processor lacks them", width.name());
        }
    }
    found
}

fn bytes(seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 56) as u8
    };
    (0..LEN).map(|_| next()).collect()
}

#[test]
fn every_routine_agrees_with_a_naive_copy() {
    let target = Mapped::new("agree");
    let source = bytes(7);
    for (name, guarded) in processors() {
        for (from, to, len) in
            [(0, 0, 0), (1, 3, 1), (0, 256, 256), (5, 255, 2), (9, 250, 5000), (0, 0, LEN), (3, 64, 511), (3, 63, 513)]
        {
            for how in [Store::BySize, Store::Stream, Store::WriteBack] {
                let mut twin = bytes(99);
                // SAFETY: LEN bytes are mapped, and nobody else uses them.
                unsafe { std::ptr::copy_nonoverlapping(twin.as_ptr(), target.start, LEN) };
                let len = len.min(LEN - from.max(to));
                twin[to..to + len].copy_from_slice(&source[from..from + len]);
                // SAFETY: both ranges lie within LEN bytes.
                let done = unsafe { store::store(guarded, (source[from..].as_ptr(), target.at(to)), len, how, len) };
                assert_eq!(done, Ok(()));
                // SAFETY: LEN bytes are mapped.
                let now = unsafe { std::slice::from_raw_parts(target.start, LEN) };
                assert!(now == twin, "{name}: {how:?} of {len} bytes from {from} to {to}");
            }
            for how in [Load::Ordinary, Load::Past] {
                let (mut copy, mut twin) = (vec![0u8; LEN], vec![0u8; LEN]);
                let len = len.min(LEN - from.max(to));
                // SAFETY: as above.
                let now = unsafe { std::slice::from_raw_parts(target.start, LEN) };
                twin[to..to + len].copy_from_slice(&now[from..from + len]);
                let into = copy[to..].as_mut_ptr();
                // SAFETY: as above.
                assert_eq!(unsafe { store::load(guarded, (target.at(from), into), len, how) }, Ok(()));
                assert!(copy == twin, "{name}: {how:?} of {len} bytes from {from} to {to}");
            }
        }
    }
}

#[test]
fn a_missing_page_ends_each_routine_with_the_bytes_done() {
    let memory = bytes(3);
    for (name, guarded) in processors() {
        for left in [0, 1, 5] {
            let there = left * PAGE;
            let lost = Mapped::new("lost");
            lost.file.set_len(there as u64).unwrap();
            let gone = |result: Result<(), AccessFault>, at: usize, what: &str| {
                let gone = result.expect_err(what);
                // The address is on the first missing page, and everything before it was done,
                // except for the block with the fault.
                let place = gone.address - lost.start.addr();
                assert!((there..there + PAGE).contains(&place), "{name}: {what}: {gone:?} of {there}");
                assert!(gone.done <= there - at.min(there), "{name}: {what}: {gone:?}");
                assert!(gone.done + 256 > there.saturating_sub(at), "{name}: {what}: {gone:?} of {there}");
                assert!(!gone.bad_block);
                gone.done
            };
            for how in [Store::Stream, Store::WriteBack] {
                let at = if left == 0 { 0 } else { 100 };
                let len = LEN - 200;
                // SAFETY: LEN bytes are mapped. Those from `there` on are missing, which is under
                // test.
                let result = unsafe { store::store(guarded, (memory.as_ptr(), lost.at(at)), len, how, len) };
                let done = gone(result, at, &format!("{how:?}"));
                if there > 0 {
                    // SAFETY: the file still has these bytes.
                    let kept = unsafe { std::slice::from_raw_parts(lost.at(at), done) };
                    assert!(kept == &memory[..done], "{name}: {how:?}: not the bytes that were reported as done");
                }
            }
            for how in [Load::Ordinary, Load::Past] {
                let mut copy = vec![0u8; LEN];
                // SAFETY: as above.
                let result = unsafe { store::load(guarded, (lost.start, copy.as_mut_ptr()), LEN, how) };
                gone(result, 0, &format!("{how:?}"));
            }
            // SAFETY: as above.
            gone(unsafe { guarded.write_back(lost.start, LEN) }, 0, "a flush");
            // The file has its length again, so the bytes can be read, with the same handler.
            lost.file.set_len(LEN as u64).unwrap();
            // SAFETY: as above.
            assert_eq!(unsafe { guarded.write_back(lost.at(7), LEN - 7) }, Ok(()));
        }
    }
}

#[test]
fn many_threads_at_once_each_get_their_own_error() {
    let guarded = processors()[0].1;
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            scope.spawn(move || {
                let lost = Mapped::new(&format!("thread-{thread}"));
                let mut copy = vec![0u8; LEN];
                for turn in 0..200 {
                    let there = (turn * 7 + thread) % 15 * PAGE;
                    lost.file.set_len(there as u64).unwrap();
                    // SAFETY: LEN bytes are mapped. Those from `there` on are missing, which is
                    // under test.
                    let gone = unsafe { guarded.copy(lost.start, copy.as_mut_ptr(), LEN) }.unwrap_err();
                    assert_eq!((gone.address - lost.start.addr(), gone.done), (there, there));
                    lost.file.set_len(LEN as u64).unwrap();
                    // SAFETY: as above, and no page is missing.
                    unsafe { guarded.copy(lost.start, copy.as_mut_ptr(), LEN) }.unwrap();
                }
            });
        }
    });
}
