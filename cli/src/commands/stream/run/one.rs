//! One stream under one placement, from its start to its name.

use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use datapipes::{AtomicFile, Error, ErrorKind, FileMode, Result, Ssd};
use datapipes_fabric::control::{Program, Session};
use datapipes_fabric::device::DevicePlace;
use datapipes_fabric::placement::{Choice, Flow, Placement, Stop};
use datapipes_metrics::Sample as Metric;
use datapipes_picture::channels::{ChannelEnd, ChannelWire};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Advice, fadvise};
use rustix::io::Errno;
use rustix::time::Timespec;
use serde::Serialize;

use super::meters;
use super::view::View;
use super::watch::watch;
use crate::commands::stream::ends::origin::{Generator, Opened, Sum, Summing};
use crate::commands::stream::job::{Job, Target};
use crate::commands::stream::steps::chain::{Chain, Device, Ends, Step, Work};
use crate::commands::stream::steps::device_progress::{Sample, now_ns};
use crate::metrics_file::CommandMetrics;
use crate::offering;
use crate::progress::{self, State};
use crate::report::recorder::{Recording, record};
use crate::system::child::family_cpu_seconds;
use crate::system::window::{Window, direct};
use crate::{system::files, system::signals, system::standard_streams};

/// How a stream went under one placement.
#[derive(Debug, Serialize)]
pub(in crate::commands::stream) struct Run {
    /// The placement; of `auto`, what was chosen.
    pub(in crate::commands::stream) placement: Placement,
    /// Why, where it was left to the optimizer.
    pub(in crate::commands::stream) choice: Option<Choice>,
    /// Channels in all.
    pub(in crate::commands::stream) channels: usize,
    /// From when the devices were ready, and the source could take bytes from its origin, until all
    /// is durable.
    pub(in crate::commands::stream) seconds: f64,
    /// Bytes sent by `seconds`.
    pub(in crate::commands::stream) bytes_per_second: f64,
    /// Processor time of all processes, their start and end included.
    pub(in crate::commands::stream) cpu_seconds: f64,
    /// In the order of the stream.
    pub(in crate::commands::stream) edges: Vec<Edge>,
    /// The devices, in the order of the stream.
    #[serde(skip)]
    pub(in crate::commands::stream) devices: Vec<String>,
    /// The channels that carried them, by their ends.
    #[serde(skip)]
    pub(in crate::commands::stream) wires: Vec<ChannelWire>,
    /// What was sent: by the generator's own account, the file's, or else what the source took from
    /// the network.
    pub(in crate::commands::stream) sent: Sum,
    /// What must be on disk.
    pub(in crate::commands::stream) due: Sum,
    /// What `due` is from: "replay" (the transforms were applied to the origin once more), "sent"
    /// (no transform changes bytes), "program" (what a program wrote), "sink" (what the sink
    /// received: the origin, or a program, cannot be read again).
    pub(in crate::commands::stream) due_from: &'static str,
    /// What was read back from the file; null where it was not.
    pub(in crate::commands::stream) on_disk: Option<Sum>,
    /// Whether the file has what it must: true where that is known from "replay" or "sent" and the
    /// disk was read back; null where nothing disagrees but that much is not known. Where it is
    /// false, the file did not get its name.
    pub(in crate::commands::stream) verified: Option<bool>,
    /// Seconds from the first row of `recording` until the file was read again.
    #[serde(skip)]
    pub(in crate::commands::stream) read_back_at: f64,
    /// What was read of the channels meanwhile, where a page is to be made.
    #[serde(skip)]
    pub(in crate::commands::stream) recording: Option<Recording>,
    /// What the channels' senders counted.
    #[serde(skip)]
    pub(in crate::commands::stream) samples: Vec<Metric>,
}

/// What went from one device to the next.
#[derive(Clone, Debug, Serialize)]
pub(in crate::commands::stream) struct Edge {
    /// The sender.
    pub(in crate::commands::stream) from: String,
    /// The receiver.
    pub(in crate::commands::stream) to: String,
    /// Blocks sent.
    pub(in crate::commands::stream) blocks: u64,
    /// Their bytes.
    pub(in crate::commands::stream) bytes: u64,
    /// Blocks that may be under way.
    #[serde(skip)]
    pub(in crate::commands::stream) credits: u32,
    /// The place of the sender among the devices.
    #[serde(skip)]
    pub(in crate::commands::stream) behind: usize,
}

/// The file, or the stream, that is written.
enum Written {
    File(Box<AtomicFile>),
    Output,
}

impl Written {
    fn open(target: &Target, mode: FileMode) -> Result<(Written, (OwnedFd, DevicePlace))> {
        Ok(match target {
            Target::File(path) => {
                let draft = AtomicFile::replacing(path, mode)?;
                let fd = draft.ssd().file().cached_fd().try_clone_to_owned();
                let fd = fd.map_err(|e| Error::io("open", e, "the target"))?;
                let place = DevicePlace::File { descriptor: 0, direct: None, offset: 0, len: None };
                (Written::File(Box::new(draft)), (fd, place))
            }
            Target::Output => {
                let place = DevicePlace::Stream { descriptor: 0, whole_blocks: false };
                (Written::Output, (standard_streams::output_fd()?, place))
            }
        })
    }

    /// What is there, where it can be read.
    fn read_back(&self, quiet: bool) -> Result<Option<Sum>> {
        match self {
            Written::File(draft) => read_back(draft.ssd(), quiet).map(Some),
            Written::Output => Ok(None),
        }
    }

    /// The error of a stream whose reader went away, where that is why it failed.
    fn explain(&self, error: Error) -> Error {
        let Written::Output = self else { return error };
        let gone = standard_streams::output_fd().is_ok_and(|fd| {
            let mut polled = [PollFd::new(&fd, PollFlags::empty())];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().contains(PollFlags::ERR)
        });
        if gone && error.kind() == ErrorKind::Device {
            Error::os("write", Errno::PIPE.raw_os_error(), standard_streams::OUTPUT)
        } else {
            error
        }
    }
}

/// How long devices may take to end when the command was told to stop.
const INTERRUPTED_END: Duration = Duration::from_millis(200);

/// Runs the stream. `earlier` is what runs before this one counted.
pub(in crate::commands::stream) fn run(
    job: &Job,
    placement: Placement,
    metrics: &CommandMetrics<'_>,
    earlier: &[Metric],
) -> Result<Run> {
    let cpu = family_cpu_seconds();
    let Opened { descriptor, place, generator, mode } = job.origin.open(job.patience)?;
    let (written, to) = Written::open(&job.to, mode)?;
    let mut session = Session::start(&Program::This)?;
    session.set_copies(job.copies);
    let (mut chain, graph) = Chain::build(&job.plan(), Ends { from: (descriptor, place), to })?;
    let flow = graph.start(&mut session, placement)?;

    let mut view = View::new(flow.placement, &chain, job.quiet);
    view.begin(&processes(&mut session, &flow, &chain)?);
    generator.iter().for_each(Generator::begin);
    let readers = chain.links.iter().map(|link| Ok((link.meter.second()?, link.credits))).collect::<Result<Vec<_>>>();
    let readers = match readers {
        Ok(readers) => readers,
        // Without descriptors for them, what was asked for is missed.
        Err(error) if job.records || metrics.are_wanted() => return Err(error),
        Err(_) => Vec::new(),
    };
    let columns = job.records.then(|| meters::columns(readers.len()));
    let chosen = flow.placement;
    let samples = || meters::samples(&readers, chosen);
    let began_ns = now_ns();
    // All of it is watched: reading the file again may take longer than the stream.
    let work = || -> Result<(Streamed, Ended)> {
        let streamed = watch(&mut session, &flow, &mut chain, &mut view, job.patience);
        let ended_ns = now_ns();
        view.end();
        if streamed.is_err() && signals::arrived() {
            session.set_end_patience(INTERRUPTED_END);
        }
        streamed.map_err(|e| written.explain(e))?;
        let streamed = Streamed::of(&chain, flow, session, (ended_ns, cpu))?;
        let told = generator.map(Generator::sent).transpose()?;
        let ended = end(job, written, &chain, told)?;
        Ok((streamed, ended))
    };
    let work = || offering::during("dpipe stream", samples, work);
    let work = || metrics.during(|| [earlier, &samples()].concat(), work);
    let (done, recording) = record(columns, || meters::values(&readers), work);
    let (Streamed { first, edges, wires, channels, choice, ended_ns, cpu_seconds }, ended) = done?;
    let Ended { sent, due, due_from, on_disk, verified } = ended;
    let samples = samples();
    // A source may be faster than this process.
    let since_ns = if first.since_ns > 0 { began_ns.min(first.since_ns) } else { began_ns };
    let seconds = ended_ns.saturating_sub(since_ns) as f64 / 1e9;
    let bytes_per_second = crate::arguments::units::bytes_per_second(sent.bytes, seconds);
    let placement = chosen;
    Ok(Run {
        placement,
        choice,
        channels,
        seconds,
        bytes_per_second,
        cpu_seconds,
        edges,
        devices: chain.devices.iter().map(|device| device.name.clone()).collect(),
        wires,
        sent,
        due,
        due_from,
        on_disk,
        verified,
        read_back_at: ended_ns.saturating_sub(began_ns) as f64 / 1e9,
        recording,
        samples,
    })
}

/// What is known of a stream when its devices have ended.
struct Streamed {
    first: Sample,
    edges: Vec<Edge>,
    wires: Vec<ChannelWire>,
    channels: usize,
    choice: Option<Choice>,
    ended_ns: u64,
    cpu_seconds: f64,
}

impl Streamed {
    /// Ends the session, whose processes had used so much of the processor before it began.
    fn of(chain: &Chain, mut flow: Flow, mut session: Session, (ended_ns, cpu): (u64, f64)) -> Result<Streamed> {
        let first = chain.links[0].meter.read();
        let edges = chain.links.iter().map(|link| {
            let ((from, to), Sample { blocks, bytes, .. }) = (chain.names(link), link.meter.read());
            Edge { from, to, blocks, bytes, credits: link.credits, behind: link.from }
        });
        let edges = edges.collect();
        let wires = flow.wiring().wires.iter().map(|wire| {
            let end = |stop: Stop| match stop {
                Stop::Device(node) => ChannelEnd::Device(node),
                // A stream has no links to other machines.
                Stop::Hub | Stop::Application | Stop::Elsewhere(_) => ChannelEnd::Relay,
            };
            ChannelWire { from: end(wire.from), to: end(wire.to) }
        });
        let (wires, channels) = (wires.collect(), flow.wiring().wires.len());
        let choice = flow.choice.take();
        flow.end(&mut session)?;
        // Waits for the controller, and so for what the devices used.
        drop(session);
        let cpu_seconds = family_cpu_seconds() - cpu;
        Ok(Streamed { first, edges, wires, channels, choice, ended_ns, cpu_seconds })
    }
}

/// What was found at the end.
struct Ended {
    sent: Sum,
    due: Sum,
    due_from: &'static str,
    on_disk: Option<Sum>,
    verified: Option<bool>,
}

/// Compares all accounts, and gives the file its name where they agree.
fn end(job: &Job, written: Written, chain: &Chain, told: Option<Sum>) -> Result<Ended> {
    let arrived = sum_of(chain.devices.first(), "the source")?;
    let sunk = sum_of(chain.devices.last(), "the sink")?;
    let behind = chain.devices.get(chain.last_source);
    let last_program = job.steps.iter().rposition(|step| matches!(step.work, Work::Program(_)));
    let keeps_bytes = job.steps[last_program.map_or(0, |at| at + 1)..].iter().all(Step::keeps_bytes);
    let (sent, due, due_from) = match (job.due, last_program) {
        (Some((sent, due)), _) => (told.unwrap_or(sent), due, "replay"),
        (None, None) if keeps_bytes => (arrived, arrived, "sent"),
        (None, Some(_)) if keeps_bytes => (told.unwrap_or(arrived), sum_of(behind, "the program's device")?, "program"),
        (None, _) => (told.unwrap_or(arrived), sunk, "sink"),
    };
    let mut on_disk = if job.verifies { written.read_back(job.quiet)? } else { None };
    let is_due = |on_disk: Option<Sum>| on_disk.is_none_or(|sum| sum == due);
    let agrees_with_origin = job.due.is_none_or(|(replayed, _)| replayed == sent);
    let mut agrees = agrees_with_origin && arrived == sent && sunk == due && is_due(on_disk);
    if let Written::File(draft) = written {
        // Where the bytes were copied into the file that was there, what counts is what it has.
        let path = draft.path().to_path_buf();
        if agrees && progress::syncing(|| files::publish(*draft, sunk.bytes))? && job.verifies {
            on_disk = Some(read_back(&Ssd::open(path)?, job.quiet)?);
            agrees = is_due(on_disk);
        }
    }
    // To have what the sink received, or a program wrote, says nothing about whether that was
    // right.
    let is_known = on_disk.is_some() && matches!(due_from, "replay" | "sent");
    let verified = if agrees { is_known.then_some(true) } else { Some(false) };
    Ok(Ended { sent, due, due_from, on_disk, verified })
}

/// "source 12, crc32 13, sink 14; controller 11": so that they can be looked at, and ended.
fn processes(session: &mut Session, flow: &Flow, chain: &Chain) -> Result<String> {
    let status = session.status()?;
    let pid = |device: &Device| {
        let party = flow.device(device.node).ok()?.0;
        status.devices.iter().find(|(p, ..)| *p == party).map(|(_, _, pid)| format!("{} {pid}", device.name))
    };
    let devices = chain.devices.iter().filter_map(pid);
    let programs = chain.programs.iter().map(|program| format!("{} {}", program.name, program.pid()));
    let named: Vec<String> = devices.chain(programs).collect();
    Ok(format!("{}; controller {}", named.join(", "), status.pid))
}

fn sum_of(device: Option<&Device>, name: &str) -> Result<Sum> {
    let report = device.and_then(|d| d.report.as_ref());
    let sum = report.and_then(|r| Some(Sum { bytes: r.bytes_in, crc32: r.crc? }));
    sum.ok_or_else(|| Error::new(ErrorKind::Corrupt, "stream", format!("{name} reported no checksum")))
}

/// What the file has, from the device where its file system can be read past the page cache.
fn read_back(file: &Ssd, quiet: bool) -> Result<Sum> {
    // A hint, for where it cannot: what stays in the page cache is read from there.
    let _ = fadvise(file.file().cached_fd(), 0, None, Advice::DontNeed);
    let (mut sum, len, done) = (Summing::default(), file.len()?, AtomicU64::new(0));
    let state = || State { phase: "reading the file again", done: done.load(Relaxed), total: len, later: 0 };
    progress::during(!quiet && progress::wanted(), state, || {
        Window::over(&datapipes::discover(), &direct(file)?, len)?.read(0..len, |bytes| {
            signals::check("verify")?;
            sum.add(bytes);
            done.fetch_add(bytes.len() as u64, Relaxed);
            Ok(ControlFlow::Continue(()))
        })
    })?;
    Ok(sum.sum())
}
