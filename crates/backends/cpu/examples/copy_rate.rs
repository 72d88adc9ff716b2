//! Measures rates of copies through pipes, in turns: each kernel, and the copy that picks a kernel
//! by size.
//!
//! It prints a JSON line per size, with the median rates of the kernels and of `ours` in GB/s. The
//! last line is the cost of a blocking transfer of 64 bytes over a bare memcpy. `--small` ends
//! within a second; `--assumed` does not calibrate.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use datapipes_core::topology::Topology;
use datapipes_core::{Constraints, Dram, Machine, Pipe, Result, Span};
use datapipes_cpu::{Calibration, CpuBackend};

/// (the column, and the primitive that is requested by name)
const CONTESTANTS: [(&str, &str); 5] = [
    ("libc", "memcpy"),
    ("rep_movsb", "rep-movsb"),
    ("nt_avx2", "nt-avx2"),
    ("nt_avx512", "nt-avx512"),
    ("ours", "copy-by-size"),
];
const BATCH_NS: f64 = 200_000.0;

fn main() -> Result<()> {
    let has = |flag: &str| std::env::args().any(|argument| argument == flag);
    let (small, assumed) = (has("--small"), has("--assumed"));
    let topology = Topology::discover();
    let calibration = if assumed { Calibration::assumed(&topology) } else { Calibration::load_or_measure(&topology)? };
    let machine = Machine::new(topology.clone(), vec![Arc::new(CpuBackend::new(&topology, calibration))]);

    let (longest, turns) = if small { (1 << 20, 5) } else { (256 << 20, 15) };
    let (source, target) = (Dram::allocate(longest)?, Dram::allocate(longest)?);
    source.lease_mut()?.fill(0xa5);
    let mut pipes = Vec::new();
    for (column, primitive) in CONTESTANTS {
        let constraints = Constraints::default().only(vec![primitive.into()]);
        match machine.connect_with(&source, &target, &constraints) {
            Ok(pipe) => pipes.push((column, pipe)),
            Err(error) => eprintln!("{column}: {error}"),
        }
    }
    for bits in 6..=longest.ilog2() {
        let rates = rates(&pipes, 1 << bits, turns)?;
        let columns: Vec<String> = rates.iter().map(|(column, rate)| format!("\"{column}_gb_s\": {rate:.2}")).collect();
        println!("{{\"size\": {}, {}}}", 1u64 << bits, columns.join(", "));
    }
    if let Some((_, ours)) = pipes.iter().find(|(column, _)| *column == "ours") {
        let overhead = overhead_ns(ours, turns.max(15))?;
        let what = "blocking transfer of 64 B over memcpy";
        println!("{{\"what\": \"{what}\", \"overhead_ns\": {overhead:.1}, \"overhead_64b_ns\": {overhead:.1}}}");
    }
    Ok(())
}

/// Returns the median rate of each pipe for transfers of `len` bytes, in GB/s.
fn rates(pipes: &[(&'static str, Pipe)], len: u64, turns: usize) -> Result<Vec<(&'static str, f64)>> {
    let span = Span { source: 0, target: 0, len };
    let mut batches = Vec::new();
    for (_, pipe) in pipes {
        pipe.transfer(span)?;
        batches.push((BATCH_NS / ns_each(4, || pipe.transfer(span))?).clamp(1.0, 10_000.0) as u32);
    }
    let mut times = vec![Vec::new(); pipes.len()];
    for turn in 0..turns {
        // Each turn begins with another contestant, so that none always follows the same one.
        for index in (0..pipes.len()).map(|index| (index + turn) % pipes.len()) {
            let pipe = &pipes[index].1;
            pipe.transfer(span)?;
            times[index].push(ns_each(batches[index], || pipe.transfer(span))?);
        }
    }
    Ok(pipes.iter().zip(times).map(|((column, _), times)| (*column, len as f64 / median(times))).collect())
}

/// Returns how many nanoseconds more a blocking transfer of 64 bytes takes than a call of memcpy.
fn overhead_ns(pipe: &Pipe, turns: usize) -> Result<f64> {
    const TIMES: u32 = 20_000;
    let (from, mut to) = (vec![1u8; 4096], vec![0u8; 4096]);
    let mut over = Vec::new();
    for _ in 0..turns {
        let bare = ns_each(TIMES, || {
            let len = black_box(64);
            black_box(&mut to[..len]).copy_from_slice(black_box(&from[..len]));
            Ok(())
        })?;
        let piped = ns_each(TIMES, || pipe.transfer(black_box(Span { source: 0, target: 0, len: 64 })))?;
        over.push(piped - bare);
    }
    Ok(median(over))
}

fn ns_each(times: u32, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    let started = Instant::now();
    for _ in 0..times {
        work()?;
    }
    Ok((started.elapsed().as_nanos() as f64 / f64::from(times)).max(0.1))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
