//! A page that the medium cannot read, made by telling the kernel that the memory under it is bad.
//! The machine loses that page until it boots again, so this runs only where the environment names
//! a place in which that is harmless (`cargo xtask guest` does). It is a program of its own,
//! because its handler must be installed before that of the backend.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used)]

mod scene;

use std::sync::atomic::{AtomicU32, Ordering};

use datapipes_core::{Dram, ErrorKind, Locator, Pmem, PmemOptions, Span};
use scene::machine;

const PAGE: usize = 4096;
const LEN: u64 = 16 * PAGE as u64;

/// The signals that arrived while the page was being poisoned.
static EXPECTED: AtomicU32 = AtomicU32::new(0);

/// On poisoning a page, the kernel sends a signal at once, which is not from an access. Any other
/// signal ends the process.
extern "C" fn while_poisoning(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid structure; `_exit` may be called by a handler.
    unsafe {
        if (*info).si_code != libc::BUS_MCEERR_AR || EXPECTED.fetch_add(1, Ordering::Relaxed) > 0 {
            libc::_exit(101);
        }
    }
}

#[test]
fn a_page_that_the_medium_cannot_read_is_an_error() {
    const TEST: &str = "a_page_that_the_medium_cannot_read_is_an_error";
    let Some(dir) = std::env::var_os("DATAPIPES_POISON_DIR").map(std::path::PathBuf::from) else {
        return println!(
            "SKIPPED: {TEST}: DATAPIPES_POISON_DIR names no directory in memory of which a page may be poisoned"
        );
    };
    // SAFETY: all zeros is a valid value of the structure, and the handler has the signature that
    // the flag requires.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = while_poisoning as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()), 0);
    }
    let path = dir.join("poisoned");
    let pmem = Pmem::open_with(&path, PmemOptions::default().len(LEN).emulated(true)).unwrap();
    let (machine, dram) = (machine(), Dram::allocate(LEN as usize).unwrap());
    let (up, down) = (machine.connect(&dram, &pmem).unwrap(), machine.connect(&pmem, &dram).unwrap());
    let span = |at: usize, len: u64| Span { source: at as u64, target: at as u64, len };
    dram.lease_mut().unwrap().fill(7);
    up.transfer(span(0, LEN)).unwrap();
    let page = pmem.range(5 * PAGE, PAGE).unwrap().endpoint().memory().unwrap().address();
    // SAFETY: this marks one page of this mapping; only the transfers below, which are under test,
    // touch it.
    let rc = unsafe { libc::madvise(page.cast(), PAGE, libc::MADV_HWPOISON) };
    if rc != 0 {
        return println!("SKIPPED: {TEST}: the kernel refuses: {}", std::io::Error::last_os_error());
    }
    EXPECTED.store(1, Ordering::Relaxed);
    for pipe in [&down, &up] {
        let e = pipe.transfer(span(0, LEN)).unwrap_err();
        assert_eq!((e.kind(), e.offset()), (ErrorKind::Device, Some(5 * PAGE as u64)), "{e}");
        assert!(e.to_string().contains("the medium cannot read it"), "{e}");
        assert!(e.bytes_done() <= 5 * PAGE as u64, "{e}");
    }
    down.transfer(span(0, 5 * PAGE as u64)).unwrap();
    down.transfer(span(6 * PAGE, PAGE as u64)).unwrap();
    std::fs::remove_file(&path).unwrap();
}
