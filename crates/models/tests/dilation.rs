//! The real processes compared with the model, on a fabric that is 500 times slower. Each step of
//! the protocol takes the model's time, times 500, by sleeping; the channels, the processes and the
//! bytes are real.
//!
//! ```text
//! unit    a software step: sleep.
//!         a command: issue it (push, reply), sleep for the round trip until it is acknowledged.
//! link    the receiver of a notification sleeps until half a round trip after the command was
//!         issued; the time of issue is sent along.
//! ```
//! A unit continues from when it really began, so the figures include what the machine adds to each
//! hop; up to 5% is accepted. The time of waking up is part of the link, not added to it.
//!
//! This program is also the controller and the devices, so it has a `main` of its own.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::os::fd::OwnedFd;
use std::process::ExitCode;

use datapipes_core::{ErrorKind, Result};
use datapipes_fabric::channel::{BlockOutcome, ChannelShape, Head, Patience, Reply, Trust};
use datapipes_fabric::control::{Program, Session};
use datapipes_fabric::device::{Body, DeviceArguments, DeviceChannels, DeviceRole, Functions};
use datapipes_fabric::placement::{DeviceGraph, Placement as Place, Stop, Wiring};
use datapipes_fabric::process;
use datapipes_fabric::transport::{Block, Receiver, Sender, receive_any};
use datapipes_models::placements::{self as model, Parameters, Repetitions, SimulatedPlacement};
use datapipes_models::time::Time;
use datapipes_testkit::{run_tests, tests};
use rustix::io::Errno;
use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec, clock_gettime};
use serde::{Deserialize, Serialize};

const DILATION: u64 = 500;
const TOLERANCE: f64 = 0.05;
const SIZES: [usize; 3] = [16 << 10, 32 << 10, 64 << 10];
/// The first block finds no reply to fetch, so it does not count.
const WARM_UP: usize = 1;
const MEASURED: usize = 5;
/// Repetitions before a figure beyond the tolerance counts as a failure.
const ATTEMPTS: usize = 6;
const LONG: Patience = Patience::seconds(60);

fn main() -> ExitCode {
    if let Some(code) = process::enter(&Functions::default().with_body("unit", make_unit)) {
        return code;
    }
    run_tests(tests![real_processes_take_the_model_s_time_on_a_slow_fabric])
}

fn real_processes_take_the_model_s_time_on_a_slow_fabric() {
    // Sleeps must end on time, here and in the processes that are started from here.
    rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1)).unwrap();
    let parameters = model::calibrated();
    let mut session = Session::start(&Program::This).unwrap();
    for (placement, place) in SimulatedPlacement::ALL.into_iter().zip(Place::ALL) {
        for block_bytes in SIZES {
            let shape = model::Scenario::paper(block_bytes as u64);
            let expected = dilated(model::simulate(placement, &parameters, &shape, Repetitions::default()).latency);
            let busy = Busy::now();
            let mut ratio = f64::INFINITY;
            for _ in 0..ATTEMPTS {
                let lowest = measure(&mut session, place, &parameters, block_bytes);
                assert!(lowest >= expected - expected / 1000, "sleeps cannot be short: {lowest} ns of {expected}");
                ratio = ratio.min(lowest as f64 / expected as f64);
                if ratio - 1.0 <= TOLERANCE {
                    break;
                }
            }
            let figures = format!(
                "{:<11} {:>2} KiB: the model's latency x{DILATION} is {:>7.3} ms, of the processes {:+.2}%",
                placement.name(),
                block_bytes >> 10,
                expected as f64 / 1e6,
                (ratio - 1.0) * 100.0
            );
            println!("{figures}");
            if ratio - 1.0 > TOLERANCE {
                match busy.reason() {
                    Some(why) => println!("SKIPPED: dilation, {figures}: the machine is overloaded: {why}"),
                    None => panic!("{figures}: more than 5% on a quiet machine"),
                }
            }
        }
    }
}

/// Returns the shortest latency of some blocks through real processes, in nanoseconds.
fn measure(session: &mut Session, place: Place, parameters: &Parameters, block_bytes: usize) -> u64 {
    let mut graph = DeviceGraph::new(ChannelShape::new(1, block_bytes), Trust::Copy);
    let wires = chain(place);
    let plan_of = |stop| Plan::of(stop, &wires, parameters, block_bytes);
    let mut nodes = vec![(Stop::Application, DeviceGraph::APPLICATION)];
    for stop in [Stop::Device(0), Stop::Device(1), Stop::Hub] {
        if wires.iter().any(|(_, to)| *to == stop) {
            let arguments = DeviceArguments::of(&plan_of(stop)).unwrap();
            let role = DeviceRole::Custom { name: "unit".into(), arguments };
            nodes.push((stop, graph.device(&format!("{stop:?}"), role, Vec::new())));
        }
    }
    let node = |stop: Stop| nodes.iter().find(|(s, _)| *s == stop).unwrap().1;
    for (from, to) in &wires {
        graph.connect(node(*from), node(*to)).unwrap();
    }
    // The wires are already those of the placement, whose resource-side CPU is a unit like others.
    let mut flow = graph.start(session, Place::DistributedResourceSide).unwrap();
    let plan = plan_of(Stop::Application);
    let outlets = (0..plan.outlets.len()).map(|n| flow.take_sender(n).unwrap().with_patience(LONG)).collect();
    let inlets = (0..plan.inlets.len()).map(|n| flow.take_receiver(n)).collect();
    let mut unit = Unit { plan, inlets, outlets, last: 0, at: 0 };
    let mut lowest = u64::MAX;
    for round in 0..WARM_UP + MEASURED {
        let block: Vec<u8> = (0..block_bytes).map(|at| (at * 31 + round) as u8).collect();
        let begun = now();
        unit.at = begun;
        unit.forward(0, &block).unwrap();
        while let Some((at, arrived)) = unit.next().unwrap() {
            let is_back = unit.plan.inlets[at].next.is_none();
            assert!(arrived[..] == block[..], "round {round}: other bytes came back");
            unit.serve(at, arrived).unwrap();
            if is_back {
                break;
            }
        }
        if round >= WARM_UP {
            lowest = lowest.min(now() - begun);
        }
    }
    drop(unit);
    flow.end(session).unwrap();
    lowest
}

/// Returns application, two devices, application: from stop to stop, in the order of a block's way.
fn chain(place: Place) -> Vec<(Stop, Stop)> {
    let mut names = DeviceGraph::new(ChannelShape::new(1, 1), Trust::Copy);
    let [one, two] = ["one", "two"].map(|name| names.device(name, DeviceRole::Hub, Vec::new()));
    let edges = [(DeviceGraph::APPLICATION, one), (one, two), (two, DeviceGraph::APPLICATION)];
    Wiring::new(&edges, place).wires.into_iter().map(|w| (w.from, w.to)).collect()
}

fn dilated(time: Time) -> u64 {
    time.as_ps() * DILATION / 1000
}

/// The parameters of a unit; all times are dilated, in nanoseconds.
#[derive(Debug, Serialize, Deserialize)]
struct Plan {
    receive: u64,
    fetch_reply: u64,
    write: u64,
    send: u64,
    reply: u64,
    inlets: Vec<In>,
    outlets: Vec<Out>,
}

#[derive(Debug, Serialize, Deserialize)]
struct In {
    round_trip: u64,
    /// The outlet that its blocks go to; `None` if they are consumed.
    next: Option<usize>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Out {
    round_trip: u64,
    /// The time of each packet of a block on the link, besides the round trip.
    packets: Vec<u64>,
}

impl Plan {
    fn of(stop: Stop, wires: &[(Stop, Stop)], parameters: &Parameters, block_bytes: usize) -> Plan {
        let steps = match stop {
            Stop::Device(_) => parameters.device,
            _ => parameters.cpu,
        };
        let distance = |(from, to): &(Stop, Stop)| {
            // The application is on one machine, all others on another.
            if *from == Stop::Application || *to == Stop::Application { parameters.across } else { parameters.within }
        };
        let packet = parameters.packet_bytes as usize;
        let lengths = (0..block_bytes).step_by(packet).map(|at| (block_bytes - at).min(packet) as u64);
        let outs: Vec<usize> = (0..wires.len()).filter(|at| wires[*at].0 == stop).collect();
        let outlets = outs.iter().map(|at| {
            let distance = distance(&wires[*at]);
            let packets = lengths.clone().map(|len| dilated(Time::of_bytes(len, distance.bytes_per_s))).collect();
            Out { round_trip: dilated(distance.round_trip), packets }
        });
        let inlets = (0..wires.len()).filter(|at| wires[*at].1 == stop).map(|at| In {
            round_trip: dilated(distance(&wires[at]).round_trip),
            next: outs.iter().position(|out| *out == at + 1),
        });
        Plan {
            receive: dilated(steps.receive),
            fetch_reply: dilated(steps.fetch_reply),
            write: dilated(steps.write),
            send: dilated(steps.send),
            reply: dilated(steps.reply),
            inlets: inlets.collect(),
            outlets: outlets.collect(),
        }
    }
}

/// A unit that does one thing at a time: the application, a device, the resource-side CPU.
struct Unit {
    plan: Plan,
    inlets: Vec<Option<Receiver>>,
    outlets: Vec<Sender>,
    last: usize,
    /// The time until which it is busy.
    at: u64,
}

impl Unit {
    /// Spends this time.
    fn take(&mut self, ns: u64) {
        self.at += ns;
        sleep_until(self.at);
    }

    /// Waits until a command issued at `issued` has arrived after half of the round trip, and
    /// continues from the real time.
    fn meet(&mut self, issued: u64, round_trip: u64) {
        sleep_until(issued + round_trip / 2);
        self.at = now();
    }

    /// Returns the next block and its inlet when it has arrived; `None` when no more blocks come.
    fn next(&mut self) -> Result<Option<(usize, Block)>> {
        let (at, block) = receive_any(&mut self.inlets, self.last, LONG)?;
        let block = match block {
            Err(e) if e.kind() == ErrorKind::EndOfFile => return Ok(None),
            other => other?,
        };
        self.last = at;
        self.meet(block.head().words[0], self.plan.inlets[at].round_trip);
        Ok(Some((at, block)))
    }

    /// Receives a block, forwards or consumes it, and replies.
    fn serve(&mut self, at: usize, block: Block) -> Result<()> {
        self.take(self.plan.receive);
        if let Some(out) = self.plan.inlets[at].next {
            self.forward(out, &block)?;
        }
        self.take(self.plan.reply);
        block.reply(Reply { outcome: BlockOutcome::Done, word: now() })?;
        self.take(self.plan.inlets[at].round_trip);
        Ok(())
    }

    /// Fetches the reply that returned the credit, writes packet by packet, and notifies.
    fn forward(&mut self, out: usize, bytes: &[u8]) -> Result<()> {
        let round_trip = self.plan.outlets[out].round_trip;
        if self.outlets[out].sent().0 > 0 {
            let issued = self.outlets[out].reply()?.reply.word;
            if issued + round_trip / 2 > self.at {
                self.meet(issued, round_trip);
            }
            self.take(self.plan.fetch_reply);
        }
        for packet in 0..self.plan.outlets[out].packets.len() {
            self.take(self.plan.write);
            self.take(self.plan.outlets[out].packets[packet] + round_trip);
        }
        self.take(self.plan.send);
        self.outlets[out].send(bytes, Head { words: [now(), 0, 0, 0], end: false })?;
        self.take(round_trip);
        Ok(())
    }
}

fn make_unit(arguments: &DeviceArguments, _given: Vec<OwnedFd>) -> Result<Box<dyn Body>> {
    Ok(Box::new(UnitBody(Some(arguments.parse()?))))
}

struct UnitBody(Option<Plan>);

impl Body for UnitBody {
    fn run(&mut self, stage: &mut DeviceChannels<'_>) -> Result<()> {
        let Some(plan) = self.0.take() else { return Ok(()) };
        let (inlets, outlets) = (std::mem::take(&mut stage.inlets), std::mem::take(&mut stage.outlets));
        let mut unit = Unit { plan, inlets, outlets, last: 0, at: 0 };
        while let Some((at, block)) = unit.next()? {
            unit.serve(at, block)?;
        }
        Ok(())
    }
}

/// Returns the monotonic clock, which all processes share.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn sleep_until(ns: u64) {
    let until = Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
    while clock_nanosleep_absolute(ClockId::Monotonic, &until) == Err(Errno::INTR) {}
}

/// How busy others keep the machine.
struct Busy {
    steal: u64,
    total: u64,
}

impl Busy {
    fn now() -> Busy {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let first = stat.lines().next().unwrap_or_default();
        let times: Vec<u64> = first.split_whitespace().filter_map(|t| t.parse().ok()).collect();
        Busy { steal: times.get(7).copied().unwrap_or(0), total: times.iter().take(8).sum() }
    }

    /// Returns the reason why sleeps may have ended late meanwhile, if there is one.
    fn reason(&self) -> Option<String> {
        let after = Busy::now();
        let stolen = (after.steal - self.steal) as f64 / (after.total - self.total).max(1) as f64;
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load: f64 = load.split_whitespace().next().and_then(|l| l.parse().ok()).unwrap_or(0.0);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        (load > 0.5 * cores as f64 || stolen > 0.01)
            .then(|| format!("load {load:.1} on {cores} cores, {:.1}% of the time taken by the host", stolen * 100.0))
    }
}
