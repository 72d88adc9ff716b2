//! What a transfer of 64 bytes costs through the C interface, beside the same in Rust, in turns.
#![allow(clippy::unwrap_used)]

use std::hint::black_box;
use std::time::Instant;

use datapipes::{Dram, Span};
use datapipes_c::*;

const CALLS: u32 = 2_000_000;

fn ns_a_call(mut call: impl FnMut()) -> f64 {
    let begun = Instant::now();
    for _ in 0..CALLS {
        call();
    }
    begun.elapsed().as_nanos() as f64 / f64::from(CALLS)
}

fn main() {
    let machine = datapipes::discover();
    let (source, target) = (Dram::allocate(4096).unwrap(), Dram::allocate(4096).unwrap());
    let pipe = machine.connect(&source, &target).unwrap();

    let (mut machine_c, mut source_c, mut target_c) = (dp_machine { id: 0 }, dp_place { id: 0 }, dp_place { id: 0 });
    let mut pipe_c = dp_pipe { id: 0 };
    // SAFETY: every pointer is to a local value of the type that the function writes.
    let errors = unsafe {
        [
            dp_machine_discover(&mut machine_c),
            dp_dram_allocate(4096, std::ptr::null(), &mut source_c),
            dp_dram_allocate(4096, std::ptr::null(), &mut target_c),
            dp_connect(machine_c, source_c, target_c, std::ptr::null(), &mut pipe_c),
        ]
    };
    assert!(errors.iter().all(|error| error.id == 0));
    // A program in C calls it through the linkage table: it is not inlined.
    let transfer: extern "C" fn(dp_pipe, dp_span) -> dp_error = black_box(dp_pipe_transfer);

    let (mut rust, mut c) = (Vec::new(), Vec::new());
    for _ in 0..11 {
        rust.push(ns_a_call(|| pipe.transfer(black_box(Span { source: 0, target: 0, len: 64 })).unwrap()));
        let span = dp_span { source: 0, target: 0, length: 64 };
        c.push(ns_a_call(|| assert_eq!(transfer(pipe_c, black_box(span)).id, 0)));
    }
    for (name, mut times) in [("Rust", rust), ("C", c)] {
        times.sort_by(f64::total_cmp);
        println!(
            "{name}: {:.1} ns a transfer of 64 bytes (median of {}, least {:.1})",
            times[5],
            times.len(),
            times[0]
        );
    }
}
