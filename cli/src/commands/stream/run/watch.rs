//! Looks on while devices and programs work, and finds out which of them failed first.

use std::time::{Duration, Instant};

use datapipes::{Error, ErrorKind, Result};
use datapipes_fabric::channel::Patience;
use datapipes_fabric::control::{DeviceEvent, Session};
use datapipes_fabric::placement::Flow;

use super::view::View;
use crate::commands::stream::ends::waiting::WaitTimeout;
use crate::commands::stream::steps::chain::{Chain, Device};
use crate::commands::stream::steps::device_progress::Sample;
use crate::commands::stream::steps::program::how;
use crate::system::signals;

/// How often the command looks at the devices.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Looks that are so much too late were kept from looking.
const PAUSE: Duration = Duration::from_millis(200);
/// How often it looks at programs whose output has ended.
const END_EVERY: Duration = Duration::from_millis(2);
/// How long after a first failure others are awaited: the first one told need not be the cause.
const CAUSE: Duration = Duration::from_millis(300);
/// How long after a program no longer took its input its end is awaited, which tells more.
const END_OF_PROGRAM: Duration = Duration::from_secs(2);

/// Looks on until all devices have reported and all programs have ended.
pub(in crate::commands::stream) fn watch(
    session: &mut Session,
    flow: &Flow,
    chain: &mut Chain,
    view: &mut View,
    patience: WaitTimeout,
) -> Result<()> {
    let (mut failures, mut moved) = (RootCause(None), StallDetector::new(chain));
    while chain.devices.iter().any(|d| d.report.is_none()) {
        signals::check("stream")?;
        look_at_programs(chain, &mut failures)?;
        failures.due(chain)?;
        view.tick(chain);
        moved.check(chain, patience)?;
        let slice = patience.0.map_or(LOOK_EVERY, |patience| patience.min(LOOK_EVERY));
        match session.event(Patience::up_to(slice)) {
            Err(e) if e.kind() == ErrorKind::Busy => {}
            event => note(event?, flow, &mut chain.devices, &mut failures),
        }
    }
    // What was written is complete; whether it is right its programs say by their exit codes.
    loop {
        signals::check("stream")?;
        let running = look_at_programs(chain, &mut failures)?;
        if let Some((_, failure)) = failures.0.take() {
            return Err(failure.error(chain));
        }
        if !running {
            view.tick(chain);
            return Ok(());
        }
        moved.check(chain, patience)?;
        std::thread::sleep(END_EVERY);
    }
}

/// Takes note of programs that failed; whether any is still running.
fn look_at_programs(chain: &mut Chain, failures: &mut RootCause) -> Result<bool> {
    let mut running = false;
    for (at, program) in chain.programs.iter_mut().enumerate() {
        match program.ended()? {
            None => running = true,
            Some(status) if status.success() => {}
            Some(status) => failures.note(Failure { weight: 3, what: What::Program { at, how: how(status) } }),
        }
    }
    Ok(running)
}

fn note(event: DeviceEvent, flow: &Flow, devices: &mut [Device], failures: &mut RootCause) {
    let (DeviceEvent::Report { device: party, .. } | DeviceEvent::Ended { device: party, .. }) = &event else { return };
    let device = devices.iter_mut().find(|d| flow.device(d.node).is_ok_and(|of_it| of_it.0 == *party));
    let name = device.as_ref().map_or("the resource-side CPU", |d| &d.name).to_owned();
    match (event, device) {
        (DeviceEvent::Report { report, .. }, device) => match (&report.error, device) {
            (None, Some(device)) => device.report = Some(report),
            (None, None) => {}
            (Some(told), device) => failures.note(Failure::told(&name, device.and_then(|d| d.feeds), told)),
        },
        (DeviceEvent::Ended { how, .. }, _) => failures.note(Failure::ended(&name, &how)),
        _ => {}
    }
}

/// When blocks moved last.
struct StallDetector {
    since: Instant,
    /// When somebody looked last.
    looked: Instant,
    samples: Vec<Sample>,
}

impl StallDetector {
    fn new(chain: &Chain) -> StallDetector {
        StallDetector { since: Instant::now(), looked: Instant::now(), samples: samples(chain) }
    }

    /// Time in which nobody looked was not waited for: the job was stopped.
    fn leave_out_pauses(&mut self) {
        let unseen = self.looked.elapsed().saturating_sub(LOOK_EVERY);
        self.looked = Instant::now();
        if unseen >= PAUSE {
            self.since += unseen;
        }
    }

    fn check(&mut self, chain: &Chain, patience: WaitTimeout) -> Result<()> {
        let now = samples(chain);
        if now != self.samples {
            self.since = Instant::now();
            self.samples = now;
        }
        self.leave_out_pauses();
        let stands = |(link, sample): (_, &Sample)| {
            let (from, to) = chain.names(link);
            format!("{from} -> {to}: {} blocks, {} of {} credits in use", sample.blocks, sample.under_way, link.credits)
        };
        patience.check(self.since, || {
            let all: Vec<String> = chain.links.iter().zip(&self.samples).map(stands).collect();
            format!("a block to move ({})", all.join("; "))
        })
    }
}

fn samples(chain: &Chain) -> Vec<Sample> {
    chain.links.iter().map(|link| link.meter.read()).collect()
}

/// The failure that explains the others best, and since when there is one.
struct RootCause(Option<(Instant, Failure)>);

/// A failure of a part of the stream.
struct Failure {
    /// The end of a process explains the others' failures, a program's those of the devices at its
    /// pipes; a peer that is gone explains nothing.
    weight: u8,
    what: What,
}

enum What {
    Device(Error),
    /// A program did not take what a device had for it.
    Refused {
        at: usize,
        error: Error,
    },
    Program {
        at: usize,
        how: String,
    },
}

impl RootCause {
    fn note(&mut self, new: Failure) {
        match &mut self.0 {
            Some((_, old)) if old.weight >= new.weight => {}
            Some((_, old)) => *old = new,
            None => self.0 = Some((Instant::now(), new)),
        }
    }

    /// The error, when others had time to be told.
    fn due(&mut self, chain: &mut Chain) -> Result<()> {
        let mut patience = |failure: &Failure| match failure.what {
            What::Refused { at, .. } if !matches!(chain.programs[at].ended(), Ok(Some(_))) => END_OF_PROGRAM,
            What::Refused { .. } | What::Device(_) | What::Program { .. } => CAUSE,
        };
        match self.0.take_if(|(since, failure)| since.elapsed() >= patience(failure)) {
            Some((_, failure)) => Err(failure.error(chain)),
            None => Ok(()),
        }
    }
}

impl Failure {
    fn told(name: &str, feeds: Option<usize>, told: &datapipes_fabric::device::Failure) -> Failure {
        // What a channel or a reply tells happened at another device.
        let of_others = told.text.starts_with("send: ") || told.text.starts_with("receive: ");
        let error = Error::new(ErrorKind::Device, "stream", format!("{name}: {}", told.text));
        let what = match feeds {
            Some(at) if told.text.starts_with("write: ") => What::Refused { at, error },
            _ => What::Device(error),
        };
        Failure { weight: if of_others { 0 } else { 1 }, what }
    }

    fn ended(name: &str, how: &str) -> Failure {
        Failure {
            weight: 2,
            what: What::Device(Error::new(ErrorKind::Device, "stream", format!("{name} ended: {how}"))),
        }
    }

    fn error(self, chain: &mut Chain) -> Error {
        match self.what {
            What::Device(error) => error,
            What::Program { at, how } => chain.programs[at].failed(&how),
            What::Refused { at, error } => match chain.programs[at].ended() {
                Ok(Some(status)) => {
                    let how = format!("{} before it had read all of the stream", how(status));
                    chain.programs[at].failed(&how)
                }
                _ => error.with_advice("the program closed its standard input before it had read all of the stream"),
            },
        }
    }
}
