//! The cost of the placements on this machine, compared in turns: `placements [--small]` prints one
//! JSON object for each row.
//!
//! ```text
//! latency      application -> device -> device -> application, one block in flight, round trip
//! throughput   device -> device (-> device), 4 credits: one sends a buffer repeatedly, the last
//!              adds up all words
//! by hand      the same throughput between two processes over a ring, a pipe, or spliced pages:
//!              see `peers`
//! ratios       fair comparisons in short consecutive turns: see `ratios`
//!              (`placements ratios [--small]` runs these alone)
//! only         one of them: `placements only WAY SIZE MS`
//! ```
//! Blocks are processed in place unless stated otherwise. That is unsafe: it vouches for the
//! senders. Processor time is that of all processes during the throughput measurement. `cargo xtask
//! bench fabric` runs this.
#![allow(unsafe_code)]

#[path = "placements/bodies.rs"]
mod bodies;
#[path = "placements/namespaces.rs"]
mod namespaces;
#[path = "placements/peers.rs"]
mod peers;
#[path = "placements/ratios.rs"]
mod ratios;

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use datapipes_fabric::channel::{ChannelShape, Head, Patience, Trust};
use datapipes_fabric::control::{Program, Session};
use datapipes_fabric::device::{DeviceArguments, DeviceRole};
use datapipes_fabric::placement::{DeviceGraph, DeviceNode, Placement};
use datapipes_fabric::process;
use datapipes_fabric::transport::{Carrier, Receiver, Sender};
use serde_json::{Value, json};

type Outcome<T> = Result<T, Box<dyn Error>>;

const LONG: Patience = Patience::seconds(60);
const CREDITS: u32 = 4;
const SIZES: [usize; 6] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];

/// A way to move blocks from device to device.
struct Way {
    name: &'static str,
    placement: Placement,
    carrier: Carrier,
    trust: Trust,
}

const WAYS: [Way; 8] = {
    use Placement::{ApplicationSide, CentralResourceSide, DistributedResourceSide};
    const fn way(name: &'static str, placement: Placement, carrier: Carrier, trust: Trust) -> Way {
        Way { name, placement, carrier, trust }
    }
    let memory = Carrier::SharedMemory;
    // SAFETY: all senders are those of the crate and of `bodies`, which do not write a block again
    // before its reply.
    let in_place = unsafe { Trust::in_place() };
    [
        way("distributed, shared memory", DistributedResourceSide, memory, in_place),
        way("distributed, shared memory, private copies", DistributedResourceSide, memory, Trust::Copy),
        way("central, shared memory", CentralResourceSide, memory, in_place),
        way("application-side, shared memory", ApplicationSide, memory, in_place),
        way("application-side, Unix sockets", ApplicationSide, Carrier::UnixSocket, in_place),
        way("application-side, TCP", ApplicationSide, Carrier::TcpLoopback, in_place),
        way("distributed, Unix sockets", DistributedResourceSide, Carrier::UnixSocket, in_place),
        way("distributed, TCP", DistributedResourceSide, Carrier::TcpLoopback, in_place),
    ]
};

/// The durations of the measurements.
#[derive(Clone, Copy)]
struct Spans {
    latency: Duration,
    throughput: Duration,
}

fn main() -> ExitCode {
    if let Some(code) = process::enter(&bodies::functions()) {
        return code;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let small = arguments.iter().any(|a| a == "--small");
    let ran = match arguments.split_first() {
        Some((first, rest)) if first == peers::PEER => peers::be(rest),
        Some((first, _)) if first == "ratios" => {
            Session::start(&Program::This).map_err(Into::into).and_then(|mut session| ratios::run(&mut session, small))
        }
        Some((first, rest)) if first == "only" => only(rest),
        _ => run(small),
    };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("placements: {e}");
            ExitCode::FAILURE
        }
    }
}

/// `only WAY SIZE MS` measures one throughput for analysis: one of ours by its index, or one
/// written by hand by its name.
fn only(arguments: &[String]) -> Outcome<()> {
    let [way, size, ms] = arguments else { return Err("only WAY SIZE MS".into()) };
    let (size, span) = (size.parse()?, Duration::from_millis(ms.parse()?));
    let (gb_s, cpu_s_per_gb) = match way.parse::<usize>().ok().and_then(|at| WAYS.get(at)) {
        Some(way) => throughput(&mut Session::start(&Program::This)?, way, 2, size, span)?,
        None => peers::throughput(way, size, span)?,
    };
    row(way, 2, size, json!({ "gb_s": gb_s, "cpu_s_per_gb": cpu_s_per_gb }));
    Ok(())
}

fn run(small: bool) -> Outcome<()> {
    let ms = if small { 20 } else { 250 };
    let spans = Spans { latency: Duration::from_millis(ms), throughput: Duration::from_millis(ms) };
    let sizes: Vec<usize> = SIZES.into_iter().filter(|size| !small || [64 << 10, 1 << 20].contains(size)).collect();
    let mut session = Session::start(&Program::This)?;
    ratios::run(&mut session, small)?;
    for devices in [2, 3] {
        for size in &sizes {
            for way in &WAYS {
                let (p50_us, p99_us) = latency(&mut session, way, devices, *size, spans.latency)?;
                let (gb_s, cpu_s_per_gb) = throughput(&mut session, way, devices, *size, spans.throughput)?;
                row(
                    way.name,
                    devices,
                    *size,
                    json!({ "p50_us": p50_us, "p99_us": p99_us, "gb_s": gb_s, "cpu_s_per_gb": cpu_s_per_gb }),
                );
            }
            if devices == 2 {
                peers::run(*size, spans.throughput)?;
            }
        }
    }
    drop(session);
    if let Err(why) = namespaces::run(&sizes, spans.latency) {
        println!("{}", json!({ "way": "across two network namespaces", "skipped": why.to_string() }));
    }
    Ok(())
}

fn row(way: &str, devices: usize, size: usize, mut figures: Value) {
    let size = if size < 1 << 20 { format!("{} KiB", size >> 10) } else { format!("{} MiB", size >> 20) };
    figures["way"] = way.into();
    figures["shape"] = format!("{devices} devices, {size}").into();
    println!("{figures}");
}

fn forward() -> DeviceRole {
    DeviceRole::Transform {
        function: "forward".into(),
        arguments: DeviceArguments::default(),
        spread: Default::default(),
    }
}

/// The median and the 99th percentile of a block's round trip, in microseconds.
fn latency(session: &mut Session, way: &Way, devices: usize, size: usize, span: Duration) -> Outcome<(f64, f64)> {
    let mut graph = DeviceGraph::new(ChannelShape::new(1, size), way.trust).over(way.carrier);
    let nodes: Vec<DeviceNode> =
        (0..devices).map(|n| graph.device(&format!("device {n}"), forward(), Vec::new())).collect();
    graph.connect(DeviceGraph::APPLICATION, nodes[0])?;
    for pair in nodes.windows(2) {
        graph.connect(pair[0], pair[1])?;
    }
    graph.connect(nodes[devices - 1], DeviceGraph::APPLICATION)?;
    let mut flow = graph.start(session, way.placement)?;
    let mut sender = flow.take_sender(0).ok_or("no sender")?.with_patience(LONG);
    let mut receiver = flow.take_receiver(0).ok_or("no receiver")?.with_patience(LONG);
    let times = round_trips(&mut sender, &mut receiver, size, span)?;
    drop((sender, receiver));
    flow.end(session)?;
    Ok(times)
}

/// Sends a block and waits until it is back, repeatedly.
fn round_trips(sender: &mut Sender, receiver: &mut Receiver, size: usize, span: Duration) -> Outcome<(f64, f64)> {
    const WARM: usize = 5;
    const FEWEST: usize = 20;
    let block: Vec<u8> = (0..size).map(|at| (at * 31) as u8).collect();
    let mut times = Vec::new();
    let mut since = Instant::now();
    for round in 0.. {
        if round == WARM {
            since = Instant::now();
        }
        let began = Instant::now();
        sender.send(&block, Head { words: [round as u64, 0, 0, 0], end: false })?;
        let back = receiver.receive()?;
        let is_right = if round < WARM { back[..] == block[..] } else { back.len() == size };
        if !is_right || back.head().words[0] != round as u64 {
            return Err(format!("WRONG: block {round} came back as another").into());
        }
        back.done()?;
        if round >= WARM {
            times.push(began.elapsed().as_secs_f64() * 1e6);
        }
        if times.len() >= FEWEST && since.elapsed() > span {
            break;
        }
    }
    times.sort_unstable_by(f64::total_cmp);
    Ok((times[times.len() / 2], times[times.len() * 99 / 100]))
}

/// The throughput of a stream from device to device in 10^9 bytes a second, and the processor time
/// for a gigabyte.
fn throughput(session: &mut Session, way: &Way, devices: usize, size: usize, span: Duration) -> Outcome<(f64, f64)> {
    let mut graph = DeviceGraph::new(ChannelShape::new(CREDITS, size), way.trust).over(way.carrier);
    let custom = |name: &str, arguments| DeviceRole::Custom { name: name.into(), arguments };
    let mut nodes =
        vec![graph.device("feed", custom(bodies::FEED, DeviceArguments::of(&(span.as_millis() as u64))?), Vec::new())];
    nodes.extend((2..devices).map(|_| graph.device("forward", forward(), Vec::new())));
    nodes.push(graph.device("take", custom(bodies::TAKE, DeviceArguments::default()), Vec::new()));
    for pair in nodes.windows(2) {
        graph.connect(pair[0], pair[1])?;
    }
    let flow = graph.start(session, way.placement)?;
    let pids: Vec<u32> = session.status()?.devices.iter().map(|(_, _, pid)| *pid).collect();
    pin(&pids);
    let own = std::process::id();
    let cpu = || pids.iter().chain([&own]).map(|pid| cpu_seconds(*pid)).sum::<f64>();
    let before = cpu();
    let fed = flow.report(session, nodes[0], LONG)?;
    let after = cpu();
    let taken = flow.report(session, nodes[devices - 1], LONG)?;
    flow.end(session)?;
    if taken.bytes_in != fed.bytes_out || taken.crc != fed.crc {
        return Err(format!("WRONG: {taken:?} arrived of {fed:?}").into());
    }
    let gb = fed.bytes_out as f64 / 1e9;
    // The feeder reports nanoseconds in this field: see there.
    let seconds = fed.blocks_in as f64 / 1e9;
    Ok((gb / seconds, (after - before) / gb))
}

/// Pins processes to cores, if requested: `PIN=apart` gives each its own core in turn,
/// `PIN=together` uses the first core for all. Where two processes run depends on the scheduler,
/// and affects the results more than their work does.
fn pin(pids: &[u32]) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let Ok(pin) = std::env::var("PIN") else { return };
    let Ok(all) = sched_getaffinity(None) else { return };
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| all.is_set(*core)).collect();
    for (at, pid) in pids.iter().enumerate() {
        let mut one = CpuSet::new();
        one.set(cores[if pin == "apart" { at % cores.len() } else { 0 }]);
        if let Err(e) = sched_setaffinity(rustix::process::Pid::from_raw(pid.cast_signed()), &one) {
            eprintln!("placements: pin {pid}: {e}");
        }
    }
}

/// The processor time of a process's live threads.
fn cpu_seconds(pid: u32) -> f64 {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return 0.0 };
    let of_task = |task: std::io::Result<std::fs::DirEntry>| -> Option<f64> {
        let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        Some(text.split_whitespace().next()?.parse::<f64>().ok()? / 1e9)
    };
    tasks.filter_map(of_task).sum()
}
