//! What a transfer of 64 bytes costs, so that two builds of the library can be compared to a tenth
//! of a nanosecond: `cargo run --release -p datapipes --example transfer_cost [CORE]`.
//!
//! It binds itself to a core and times rounds of many transfers. The shortest round is the one that
//! nothing disturbed; the median says how far others are from it. Builds are compared by running
//! their programs in turns, a hundred times.

use std::time::Instant;

use datapipes::{Dram, Result, Runtime, Span};

const TRANSFERS: u32 = 5_000;
const ROUNDS: usize = 200;

fn main() -> Result<()> {
    let core = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(0);
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    if let Err(e) = rustix::thread::sched_setaffinity(None, &set) {
        eprintln!("not bound to core {core}: {e}");
    }
    let machine = datapipes::discover();
    let (source, target) = (Dram::allocate(4096)?, Dram::allocate(4096)?);
    let span = Span { source: 0, target: 0, len: 64 };
    let pipe = machine.connect(&source, &target)?;
    report("pipe", || pipe.transfer(span))?;
    let runtime = Runtime::start(&machine)?;
    let pipe = runtime.connect(&source, &target)?;
    report("runtime", || pipe.transfer(span)?.wait())
}

/// Prints the shortest and the median time of a transfer, in nanoseconds.
fn report(name: &str, transfer: impl Fn() -> Result<()>) -> Result<()> {
    let mut rounds = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let since = Instant::now();
        for _ in 0..TRANSFERS {
            transfer()?;
        }
        rounds.push(since.elapsed().as_secs_f64() * 1e9 / f64::from(TRANSFERS));
    }
    rounds.sort_by(f64::total_cmp);
    println!("{name} {:.3} {:.3}", rounds[0], rounds[ROUNDS / 2]);
    Ok(())
}
