//! One stream under one placement, from its start to its name.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use datapipes::{Draft, Error, ErrorKind, Result, Ssd};
use datapipes_fabric::channel::Patience;
use datapipes_fabric::control::{Event, Program, Session};
use datapipes_fabric::device::{Place, Report, Role, Spread};
use datapipes_fabric::placement::{Choice, Flow, Graph, Node, Placement};
use rustix::fs::{Advice, fadvise};
use rustix::io::Errno;
use serde::Serialize;

use super::Job;
use super::bodies::with_meter;
use super::meter::{Meter, now_ns};
use super::origin::{Generator, Opened, Origin, Sum, Summing};
use super::view::View;
use crate::files;
use crate::signals;
use crate::usage::family_cpu_seconds;

/// How often the command looks at the devices.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long after a first failure others are awaited: the first one told need not be the cause.
const CAUSE: Duration = Duration::from_millis(300);

/// How a stream went under one placement.
#[derive(Debug, Serialize)]
pub(super) struct Run {
    /// The placement; of `auto`, what was chosen.
    pub(super) placement: Placement,
    /// Why, where it was left to the optimizer.
    pub(super) choice: Option<Choice>,
    /// Channels in all.
    pub(super) channels: usize,
    /// From the source's first bytes until all is durable.
    pub(super) seconds: f64,
    /// Bytes sent by `seconds`, in 10^9 a second.
    pub(super) gb_per_s: f64,
    /// Processor time of all processes, their start and end included.
    pub(super) cpu_seconds: f64,
    /// In the order of the stream.
    pub(super) edges: Vec<Edge>,
    /// What was sent: by the generator's own account, the file's, or else what the source took from the network.
    pub(super) sent: Sum,
    /// What must be on disk.
    pub(super) due: Sum,
    /// What `due` is from: "replay" (the functions were applied to the origin once more), "sent" (no function changes bytes),
    /// "sink" (the origin cannot be read again, so the disk is compared with what the sink received).
    pub(super) due_from: &'static str,
    /// What was read back from the disk; null where it was not.
    pub(super) on_disk: Option<Sum>,
    /// Whether all of this agrees; null where the disk was not read back and the rest agrees. Where it does not, the file did not
    /// get its name.
    pub(super) verified: Option<bool>,
}

/// What went from one device to the next.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Edge {
    /// The sender.
    pub(super) from: String,
    /// The receiver.
    pub(super) to: String,
    /// Blocks sent.
    pub(super) blocks: u64,
    /// Their bytes.
    pub(super) bytes: u64,
}

struct Device {
    name: String,
    node: Node,
    report: Option<Report>,
}

pub(super) fn run(job: &Job, placement: Placement) -> Result<Run> {
    let cpu = family_cpu_seconds();
    let Opened { descriptor, generator, mode } = job.origin.open()?;
    let draft = Draft::replacing(&job.to, mode)?;
    let mut session = Session::start(&Program::This)?;
    let meters = (0..=job.steps.len()).map(|_| Meter::new()).collect::<Result<Vec<_>>>()?;
    let target = draft.ssd().file().cached_fd().try_clone_to_owned();
    let target = target.map_err(|e| Error::io("open", &e, "the target"))?;
    let (graph, mut devices) = graph(job, descriptor, target, &meters)?;
    let mut flow = graph.start(&mut session, placement)?;

    let names: Vec<String> = devices.iter().map(|d| d.name.clone()).collect();
    let mut view = View::new(flow.placement, &names, job.shapes.iter().map(|s| s.credits).collect());
    view.begin(&processes(&mut session, &flow, &devices)?);
    generator.iter().for_each(Generator::begin);
    let streamed = watch(&mut session, &flow, &mut devices, &meters, &mut view);
    let ended_ns = now_ns();
    view.end();
    streamed?;

    let samples: Vec<_> = meters.iter().map(Meter::read).collect();
    let edges = names.windows(2).zip(&samples).map(|(pair, s)| Edge {
        from: pair[0].clone(),
        to: pair[1].clone(),
        blocks: s.blocks,
        bytes: s.bytes,
    });
    let (edges, channels, chosen) = (edges.collect(), flow.wiring().wires.len(), flow.placement);
    let choice = flow.choice.take();
    flow.end(&mut session)?;
    // Waits for the controller, and so for what the devices used.
    drop(session);
    let cpu_seconds = family_cpu_seconds() - cpu;

    let arrived = sum_of(devices.first(), "the source")?;
    let sunk = sum_of(devices.last(), "the sink")?;
    let told = generator.map(Generator::sent).transpose()?;
    let keeps_bytes = job.steps.iter().all(|s| matches!(s.function.as_str(), "forward" | "crc32"));
    let (sent, due, due_from) = match job.due {
        Some((sent, due)) => (told.unwrap_or(sent), due, "replay"),
        None if keeps_bytes => (arrived, arrived, "sent"),
        None => (arrived, sunk, "sink"),
    };
    let mut on_disk = if job.verifies { Some(read_back(draft.ssd())?) } else { None };
    let is_due = |on_disk: Option<Sum>| on_disk.is_none_or(|sum| sum == due);
    let agrees_with_origin = job.due.is_none_or(|(replayed, _)| replayed == sent);
    let mut agrees = agrees_with_origin && arrived == sent && sunk == due && is_due(on_disk);
    // Where the bytes were copied into the file that was there, what counts is what it has.
    if agrees && files::publish(draft, sunk.bytes)? && job.verifies {
        on_disk = Some(read_back(&Ssd::open(&job.to)?)?);
        agrees = is_due(on_disk);
    }
    let verified = if agrees { job.verifies.then_some(true) } else { Some(false) };
    let seconds = ended_ns.saturating_sub(samples[0].since_ns) as f64 / 1e9;
    let gb_per_s = crate::amount::gb_s(sent.bytes, seconds);
    let placement = chosen;
    Ok(Run {
        placement,
        choice,
        channels,
        seconds,
        gb_per_s,
        cpu_seconds,
        edges,
        sent,
        due,
        due_from,
        on_disk,
        verified,
    })
}

/// Source, transforms, sink, one after the other.
fn graph(job: &Job, from: OwnedFd, to: OwnedFd, meters: &[Meter]) -> Result<(Graph, Vec<Device>)> {
    let mut graph = Graph::new(job.shapes[0], job.trust.trust());
    let mut devices = Vec::new();
    let mut add = |graph: &mut Graph, name: &str, role, given| {
        let node = graph.device(name, role, given);
        devices.push(Device { name: name.into(), node, report: None });
    };
    let place = Place::File { descriptor: 0, direct: None, offset: 0, len: None };
    let origin = match job.origin {
        Origin::File(_) => place.clone(),
        // Blocks are whole, so that what becomes of them can be computed again.
        Origin::Generate(_) | Origin::Tcp(_) => Place::Socket { descriptor: 0, whole_blocks: true },
    };
    let source = with_meter(&Role::Source { place: origin, sum: true })?;
    add(&mut graph, "source", source, vec![from, meters[0].for_device()?]);
    for (step, meter) in job.steps.iter().zip(&meters[1..]) {
        let (function, arguments) = (step.function.clone(), step.arguments.clone());
        let role = with_meter(&Role::Transform { function, arguments, spread: Spread::Turns })?;
        add(&mut graph, &step.name, role, vec![meter.for_device()?]);
    }
    add(&mut graph, "sink", Role::Sink { place }, vec![to]);
    for (pair, shape) in devices.windows(2).zip(&job.shapes) {
        graph.connect_with(pair[0].node, pair[1].node, *shape, job.trust.trust())?;
    }
    Ok((graph, devices))
}

/// "source 12, crc32 13, sink 14; controller 11": so that they can be looked at, and ended.
fn processes(session: &mut Session, flow: &Flow, devices: &[Device]) -> Result<String> {
    let status = session.status()?;
    let pid = |device: &Device| {
        let party = flow.device(device.node).ok()?.0;
        status.devices.iter().find(|(p, ..)| *p == party).map(|(_, _, pid)| format!("{} {pid}", device.name))
    };
    let named: Vec<String> = devices.iter().filter_map(pid).collect();
    Ok(format!("{}; controller {}", named.join(", "), status.pid))
}

/// Looks on until all devices have reported.
fn watch(session: &mut Session, flow: &Flow, devices: &mut [Device], meters: &[Meter], view: &mut View) -> Result<()> {
    let mut failure: Option<(Instant, Failure)> = None;
    while devices.iter().any(|d| d.report.is_none()) {
        signals::check("stream")?;
        if let Some((_, failure)) = failure.take_if(|(since, _)| since.elapsed() >= CAUSE) {
            return Err(failure.error);
        }
        view.tick(meters);
        let event = match session.event(Patience::up_to(LOOK_EVERY)) {
            Err(e) if e.kind() == ErrorKind::Busy => continue,
            other => other?,
        };
        let (Event::Report { device: party, .. } | Event::Ended { device: party, .. }) = &event else { continue };
        let device = devices.iter_mut().find(|d| flow.device(d.node).is_ok_and(|of_it| of_it.0 == *party));
        let name = device.as_ref().map_or("the resource-side CPU", |d| &d.name).to_owned();
        match (event, device) {
            (Event::Report { report, .. }, device) => match (&report.error, device) {
                (None, Some(device)) => device.report = Some(report),
                (None, None) => {}
                (Some(told), _) => note(&mut failure, Failure::told(&name, told)),
            },
            (Event::Ended { how, .. }, _) => note(&mut failure, Failure::ended(&name, &how)),
            _ => {}
        }
    }
    Ok(())
}

/// What went wrong at a device.
struct Failure {
    /// The end of a process explains the others' failures; a peer that is gone explains nothing.
    weight: u8,
    error: Error,
}

impl Failure {
    fn told(name: &str, told: &datapipes_fabric::device::Failure) -> Failure {
        // What a channel or a reply tells happened at another device.
        let of_others = told.text.starts_with("send: ") || told.text.starts_with("receive: ");
        let weight = if of_others { 0 } else { 1 };
        Failure { weight, error: Error::new(ErrorKind::Device, "stream", format!("{name}: {}", told.text)) }
    }

    fn ended(name: &str, how: &str) -> Failure {
        Failure { weight: 2, error: Error::new(ErrorKind::Device, "stream", format!("{name} ended: {how}")) }
    }
}

fn note(failure: &mut Option<(Instant, Failure)>, new: Failure) {
    match failure {
        Some((_, old)) if old.weight >= new.weight => {}
        Some((_, old)) => *old = new,
        None => *failure = Some((Instant::now(), new)),
    }
}

fn sum_of(device: Option<&Device>, name: &str) -> Result<Sum> {
    let report = device.and_then(|d| d.report.as_ref());
    let sum = report.and_then(|r| Some(Sum { bytes: r.bytes_in, crc32: r.crc? }));
    sum.ok_or_else(|| Error::new(ErrorKind::Corrupt, "stream", format!("{name} reported no checksum")))
}

/// What the file has, from the device where the kernel lets its pages go.
fn read_back(file: &Ssd) -> Result<Sum> {
    let fd = file.file().cached_fd();
    // A hint: what stays in the page cache is read from there.
    let _ = fadvise(fd, 0, None, Advice::DontNeed);
    let mut sum = Summing::default();
    let (mut buffer, mut at) = (vec![0; 1 << 20], 0);
    loop {
        signals::check("verify")?;
        match rustix::io::pread(fd.as_fd(), &mut buffer[..], at) {
            Ok(0) => return Ok(sum.sum()),
            Ok(n) => {
                sum.add(&buffer[..n]);
                at += n as u64;
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(Error::os("read back", e.raw_os_error(), "the target").offset(at)),
        }
    }
}
