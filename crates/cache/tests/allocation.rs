//! A hit allocates nothing.
#![allow(unsafe_code, clippy::unwrap_used)]

mod fixture;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use datapipes_cache::{CachePolicy, FineGrained};
use datapipes_core::Ssd;
use fixture::{File, noise, small};

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed to the system's allocator, and counting needs no allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(work: impl FnOnce()) -> u64 {
    let before = COUNT.get();
    work();
    COUNT.get() - before
}

#[test]
fn a_hit_allocates_nothing() {
    let file = File::with(&noise(1 << 20, 5));
    let ssd = Ssd::open(file.path()).unwrap();
    for policy in CachePolicy::ALL {
        let fine = FineGrained::over(&ssd, small(policy)).unwrap();
        let mut out = [0; 128];
        let offsets: Vec<u64> = (0..64).map(|i| i * 4096 + 256).collect();
        let mut read_all = || offsets.iter().for_each(|&at| fine.read(at, &mut out).unwrap());
        assert!(allocations(&mut read_all) > 0, "misses allocate: the count counts");
        // The samples of the simulated policies allocate their memory once.
        read_all();
        assert_eq!(allocations(&mut read_all), 0, "{policy:?}: read");
        let get_all = || offsets.iter().for_each(|&at| assert!(fine.get(at, 128).unwrap().is_cached()));
        assert_eq!(allocations(get_all), 0, "{policy:?}: get");
        assert_eq!(fine.metrics().misses, 64, "{policy:?}: these were hits");
    }
}
