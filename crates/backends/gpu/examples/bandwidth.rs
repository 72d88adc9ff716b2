//! What copies between memory of this process and of a GPU take, as `benchmarks/peers/gpu` measures
//! the same by CUDA itself.
//!
//! `bandwidth copies`: medians by length, both directions. `bandwidth first`: the first transfers
//! of memory that is not registered. `bandwidth long`: long copies one by one. `bandwidth file PATH
//! LEN`: a file to the device; with `write` behind it, first the other way.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use datapipes_core::topology::Topology;
use datapipes_core::{Dram, Machine, Pipe, Span, Ssd};
use datapipes_cpu::{Calibration, CpuBackend};
use datapipes_file::FileBackend;
use datapipes_gpu::{GpuBackend, Hbm};

/// The lengths that are measured, and how many copies.
const LENGTHS: [(u64, usize); 6] =
    [(64, 20_000), (4 << 10, 20_000), (64 << 10, 10_000), (1 << 20, 4_000), (16 << 20, 400), (1 << 30, 12)];

fn machine() -> Machine {
    let topology = Topology::discover();
    let cpu = CpuBackend::new(&topology, Calibration::assumed(&topology));
    Machine::new(topology, vec![Arc::new(cpu), Arc::new(FileBackend::probe()), Arc::new(GpuBackend::new())])
}

/// The processor time of this process.
fn cpu_time() -> Duration {
    // SAFETY: zeros are a value of this structure, which the call fills.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let of = |time: libc::timeval| Duration::new(time.tv_sec.unsigned_abs(), time.tv_usec as u32 * 1000);
    of(usage.ru_utime) + of(usage.ru_stime)
}

fn measure(pipe: &Pipe, len: u64, copies: usize) -> (Duration, Duration) {
    let span = Span { source: 0, target: 0, len };
    (0..copies / 10 + 3).for_each(|_| pipe.transfer(span).unwrap());
    let before = cpu_time();
    let mut times: Vec<_> = (0..copies)
        .map(|_| {
            let begun = Instant::now();
            pipe.transfer(span).unwrap();
            begun.elapsed()
        })
        .collect();
    let cpu = (cpu_time() - before) / copies as u32;
    times.sort_unstable();
    (times[copies / 2], cpu)
}

fn copies(machine: &Machine) {
    for (len, copies) in LENGTHS {
        let here = Dram::allocate(len as usize).unwrap();
        here.lease_mut().unwrap().iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 31 % 251) as u8);
        let (there, back) = (Hbm::allocate(0, len).unwrap(), Dram::allocate(len as usize).unwrap());
        let (up, down) = (machine.connect(&here, &there).unwrap(), machine.connect(&there, &back).unwrap());
        for (name, pipe) in [("up", &up), ("down", &down)] {
            let (median, cpu) = measure(pipe, len, copies);
            let rate = len as f64 / median.as_secs_f64() / 1e9;
            println!("{name} {len} {:.2} us {rate:.3} GB/s {:.2} us of a core", micros(median), micros(cpu));
        }
        assert!(here.lease().unwrap()[..] == back.lease().unwrap()[..], "{len} bytes differ");
        if len == 1 << 30 {
            println!("{}", down.report());
        }
    }
    // The rest of what a device does by itself.
    let len = 1 << 30;
    let (from, to) = (Hbm::allocate(0, len).unwrap(), Hbm::allocate(0, len).unwrap());
    let (median, cpu) = measure(&machine.connect(&from, &to).unwrap(), len, 20);
    println!(
        "within {len} {:.2} us {:.1} GB/s {:.2} us of a core",
        micros(median),
        len as f64 / median.as_secs_f64() / 1e9,
        micros(cpu)
    );
}

fn first(machine: &Machine) {
    for len in [1_u64 << 20, 64 << 20, 1 << 30] {
        let (here, there) = (Dram::allocate(len as usize).unwrap(), Hbm::allocate(0, len).unwrap());
        for (name, pipe) in
            [("up", machine.connect(&here, &there).unwrap()), ("down", machine.connect(&there, &here).unwrap())]
        {
            let times: Vec<_> = (0..4)
                .map(|_| {
                    let (begun, cpu) = (Instant::now(), cpu_time());
                    pipe.transfer(Span { source: 0, target: 0, len }).unwrap();
                    format!("{:.1} us ({:.1} of a core)", micros(begun.elapsed()), micros(cpu_time() - cpu))
                })
                .collect();
            println!("first {name} {len}: {}", times.join(", "));
        }
    }
}

/// Long copies one by one, while the processor is at rest and while a thread of this program keeps
/// it awake.
fn long(machine: &Machine) {
    let len = 1 << 30;
    let here = Dram::allocate(len as usize).unwrap();
    let there = Hbm::allocate(0, len).unwrap();
    let (up, down) = (machine.connect(&here, &there).unwrap(), machine.connect(&there, &here).unwrap());
    let stops = std::sync::atomic::AtomicBool::new(false);
    let times = |pipe: &Pipe| {
        let one = |_| {
            let begun = Instant::now();
            pipe.transfer(Span { source: 0, target: 0, len }).unwrap();
            format!("{:.2}", begun.elapsed().as_secs_f64() * 1e3)
        };
        (0..12).map(one).collect::<Vec<_>>().join(" ")
    };
    for round in 0..2 {
        println!("long {round} at rest: up {} ms; down {} ms", times(&up), times(&down));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stops.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            println!("long {round} awake: up {} ms; down {} ms", times(&up), times(&down));
            stops.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        stops.store(false, std::sync::atomic::Ordering::Relaxed);
    }
}

fn file(machine: &Machine, path: &str, len: u64, writes: bool) {
    let there = Hbm::allocate(0, len).unwrap();
    let span = Span { source: 0, target: 0, len };
    let timed = |name: &str, pipe: &Pipe| {
        let (begun, cpu) = (Instant::now(), cpu_time());
        pipe.transfer(span).unwrap();
        let (took, cpu) = (begun.elapsed(), cpu_time() - cpu);
        let rate = len as f64 / took.as_secs_f64() / 1e9;
        let route = pipe.route().primitives().join(" > ");
        println!(
            "{name} {len} by {route}: {:.3} s, {rate:.2} GB/s, {:.3} core seconds",
            took.as_secs_f64(),
            cpu.as_secs_f64()
        );
    };
    if writes {
        let made = Ssd::create(path).unwrap();
        timed("device to file", &machine.connect(&there, &made).unwrap());
        return;
    }
    let source = Ssd::open(path).unwrap();
    timed("file to device", &machine.connect(&source, &there).unwrap());
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let machine = machine();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["first"] => first(&machine),
        ["long"] => long(&machine),
        ["file", path, len] => file(&machine, path, len.parse().unwrap(), false),
        ["file", path, len, "write"] => file(&machine, path, len.parse().unwrap(), true),
        _ => copies(&machine),
    }
}
