//! Puts and gets of remote memory: time of one, rate of many, and the processor's time on both
//! sides.
//!
//!     remote_rate vm|shm|tcp [SIZE...]
//!
//! `vm` is the kernel's copies within a machine, `shm` UCX over shared memory, `tcp` UCX over
//! loopback. The program is also the holder at the other side. Its times are those of the whole run
//! with children, so each direction and size is run alone by a script that compares.
#![allow(clippy::unwrap_used)]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use datapipes_core::topology::Topology;
use datapipes_core::{Constraints, Dram, Locator, Machine, Pipe, Span, Transfer};
use datapipes_net::{
    ExportAddress, ExportableMemory, Exporter, ExporterOptions, NetworkOptions, Remote, RemoteOptions, RemoteRights,
    RemoteTransport, UcxBackend, enter_holder,
};

fn main() -> ExitCode {
    if let Some(code) = enter_holder() {
        return code;
    }
    let mut arguments = std::env::args().skip(1);
    let way = arguments.next().unwrap_or_else(|| "vm".to_owned());
    let is_tcp = way == "tcp";
    let others = if way == "vm" { ["ucx-put", "ucx-get"] } else { ["vm-put", "vm-get"] };
    let mut sizes: Vec<usize> = arguments.filter_map(|size| size.parse().ok()).collect();
    if sizes.is_empty() {
        sizes = vec![64, 4096, 64 << 10, 1 << 20, 16 << 20, 64 << 20];
    }
    let network = match is_tcp {
        true => NetworkOptions::default().transport(RemoteTransport::Network).trusted_network(true),
        false => NetworkOptions::default(),
    };
    let address = match is_tcp {
        true => "127.0.0.1:0".parse().unwrap(),
        false => ExportAddress::Unix(std::env::temp_dir().join(format!("remote-rate-{}", std::process::id()))),
    };
    let len = sizes.iter().copied().max().unwrap().max(4 << 20);
    let memory = ExportableMemory::allocate(len).unwrap();
    let exporter = Exporter::listen(&address, ExporterOptions::default().network(network.clone())).unwrap();
    let export = exporter.export(&memory, (0, len), RemoteRights::ReadWrite).unwrap();
    let remote = Remote::connect(export.ticket(), RemoteOptions::default().network(network)).unwrap();
    // Bytes of a piece, and pieces in flight, where they are tried.
    let of = |name| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    let (piece, pieces) = (of("REMOTE_PIECE_BYTES"), of("REMOTE_PIECES"));
    let topology = Topology::discover();
    let machine = Machine::new(topology, vec![Arc::new(UcxBackend::new())]);
    let here = Dram::allocate(len).unwrap();
    for size in sizes {
        for (name, up) in [("put", true), ("get", false)] {
            let window = Constraints::default().request_bytes(piece).queue_depth(pieces);
            let window = window.deny(others.map(str::to_owned).to_vec());
            let (source, target): (&dyn Locator, &dyn Locator) = if up { (&here, &remote) } else { (&remote, &here) };
            let pipe = machine.connect_with(source, target, &window).unwrap();
            let before = cpu_seconds();
            if let Some(seconds) = of("REMOTE_IDLE_SECONDS") {
                pipe.transfer(Span { source: 0, target: 0, len: size as u64 }).unwrap();
                std::thread::sleep(std::time::Duration::from_secs(seconds.into()));
                drop(pipe);
                while export.clients() > 0 {
                    std::thread::yield_now();
                }
                println!("{name} {size}: one, and {seconds} s without work: {:.2} CPU s", cpu_seconds() - before);
                continue;
            }
            let (latency, rate, moved) = (latency_us(&pipe, size), rate(&pipe, size, len), pipe.report().bytes());
            drop(pipe);
            while export.clients() > 0 {
                std::thread::yield_now();
            }
            let cpu = (cpu_seconds() - before) / moved as f64 * f64::from(1 << 30);
            println!("{name} {size}: {latency:.2} us, {:.3} GB/s, {cpu:.2} CPU s a GiB", rate / 1e9);
        }
    }
    ExitCode::SUCCESS
}

/// The median time of one transfer at a time.
fn latency_us(pipe: &Pipe, size: usize) -> f64 {
    let rounds = (64 << 20) / size.max(16 << 10);
    let mut times: Vec<f64> = (0..rounds.clamp(20, 4000))
        .map(|_| {
            let begun = Instant::now();
            pipe.transfer(Span { source: 0, target: 0, len: size as u64 }).unwrap();
            begun.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Bytes a second with several transfers under way, at different places.
fn rate(pipe: &Pipe, size: usize, len: usize) -> f64 {
    const DEPTH: usize = 16;
    let rounds = ((128 << 20) / size).clamp(16, 8_000);
    let places = (len / size).clamp(1, DEPTH);
    let begun = Instant::now();
    let mut under_way = std::collections::VecDeque::new();
    for round in 0..rounds {
        if under_way.len() == places
            && let Some(first) = under_way.pop_front()
        {
            Transfer::wait(first).unwrap();
        }
        let at = (round % places * size) as u64;
        under_way.push_back(pipe.start(Span { source: at, target: at, len: size as u64 }).unwrap());
    }
    under_way.into_iter().for_each(|transfer| transfer.wait().unwrap());
    (rounds * size) as f64 / begun.elapsed().as_secs_f64()
}

/// The processor's time of this process and of the holders that have ended.
fn cpu_seconds() -> f64 {
    let of = |text: String| {
        let fields: Vec<f64> =
            text.rsplit_once(") ").unwrap().1.split(' ').map(|field| field.parse().unwrap_or(0.0)).collect();
        // utime, stime, cutime, cstime, in ticks of 10 ms.
        fields[11..15].iter().sum::<f64>() / 100.0
    };
    of(std::fs::read_to_string("/proc/self/stat").unwrap())
}
