//! The data channel protocol, step by step, as events.
//!
//! ```text
//! sender      take a reply if one is there; write packet after packet; notify
//! receiver    notice the notification; compute; forward the block (as a sender) or consume it;
//!             reply to the sender, which returns its credit
//! ```
//! A unit does one thing at a time and waits for the acknowledgement of each command, as the data
//! transfer unit of M3 does. That is why a block of many packets costs many round trips. A
//! forwarding unit replies upstream only after its send downstream was acknowledged, and does not
//! begin to forward while it has no credit downstream.

use std::collections::VecDeque;

use serde::Serialize;

use super::parameters::{Parameters, PathCost, Scenario, SimulatedPlacement, Steps};
use super::wiring::{Kind, Wiring};
use crate::time::{EventQueue, QueueServer, Time};

/// How many blocks are sent; the first do not count (paper: 50 after 4).
#[derive(Clone, Copy, Debug)]
pub struct Repetitions {
    /// Blocks that do not count.
    pub warm_up: u32,
    /// Blocks that count.
    pub measured: u32,
}

impl Default for Repetitions {
    fn default() -> Self {
        Repetitions { warm_up: 4, measured: 50 }
    }
}

/// The result of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SimulationResult {
    /// The mean time from the application's first step for a block until its reply for the returned
    /// block is acknowledged.
    pub latency: Time,
    /// Bytes of blocks returned per second.
    #[serde(rename = "bytes_per_second")]
    pub bytes_per_s: f64,
    /// Commands between machines for each block: packets, notifications, replies.
    pub commands_across: f64,
    /// Commands within a pool for each block.
    pub commands_within: f64,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A unit's software step is done: its command is issued.
    Issue {
        unit: usize,
    },
    /// The command was acknowledged.
    Acknowledged {
        unit: usize,
    },
    Notified {
        channel: usize,
        block: usize,
    },
    Replied {
        channel: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Receive,
    Fetch,
    /// The bytes that are still to be written.
    Write(u64),
    Send,
    Reply,
}

#[derive(Clone, Copy, Debug)]
struct Work {
    block: usize,
    input: Option<usize>,
    output: Option<usize>,
    stage: Stage,
}

#[derive(Debug, Default)]
struct UnitState {
    work: Option<Work>,
    inbox: VecDeque<(usize, usize)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct ChannelState {
    /// Blocks sent without a reply yet.
    outstanding: u32,
    /// Replies that arrived and were not fetched.
    replies: u32,
    /// Serves the bytes one after the other.
    path: QueueServer,
}

struct Simulation<'a> {
    parameters: &'a Parameters,
    shape: &'a Scenario,
    wiring: Wiring,
    agenda: EventQueue<Event>,
    units: Vec<UnitState>,
    channels: Vec<ChannelState>,
    /// The times when each block was begun and done.
    begun: Vec<Time>,
    done: Vec<Time>,
    blocks: usize,
    commands: (u64, u64),
}

/// Sends blocks through the devices under a placement. Equal arguments give equal results.
pub fn simulate(
    placement: SimulatedPlacement,
    parameters: &Parameters,
    shape: &Scenario,
    repetitions: Repetitions,
) -> SimulationResult {
    let wiring = Wiring::of(placement, shape);
    let blocks = repetitions.warm_up as usize + repetitions.measured.max(1) as usize;
    let mut simulation = Simulation {
        units: (0..wiring.units.len()).map(|_| UnitState::default()).collect(),
        channels: vec![ChannelState::default(); wiring.channels.len()],
        parameters,
        shape,
        wiring,
        agenda: EventQueue::default(),
        begun: Vec::with_capacity(blocks),
        done: Vec::with_capacity(blocks),
        blocks,
        commands: (0, 0),
    };
    simulation.look_for_work(0);
    while let Some(event) = simulation.agenda.next() {
        simulation.act(event);
    }
    simulation.outcome(repetitions.warm_up as usize)
}

impl Simulation<'_> {
    fn act(&mut self, event: Event) {
        match event {
            Event::Issue { unit } => self.issue(unit),
            Event::Acknowledged { unit } => self.advance(unit),
            Event::Notified { channel, block } => {
                let to = self.wiring.channels[channel].to;
                self.units[to].inbox.push_back((channel, block));
                self.look_for_work(to);
            }
            Event::Replied { channel } => {
                self.channels[channel].outstanding -= 1;
                self.channels[channel].replies += 1;
                self.look_for_work(self.wiring.channels[channel].from);
            }
        }
    }

    /// Gives an idle unit the oldest block that it can pass on. The application begins a new block
    /// if it has none.
    fn look_for_work(&mut self, unit: usize) {
        if self.units[unit].work.is_some() {
            return;
        }
        let has_credit = |channel: usize| self.channels[channel].outstanding < self.shape.credits.max(1);
        let output = |channel: usize| self.wiring.channels[channel].next;
        let ready = self.units[unit].inbox.iter().position(|&(input, _)| output(input).is_none_or(has_credit));
        if let Some((input, block)) = ready.and_then(|at| self.units[unit].inbox.remove(at)) {
            self.begin(unit, Work { block, input: Some(input), output: output(input), stage: Stage::Receive });
        } else if unit == 0
            && has_credit(0)
            && self.begun.len() < self.blocks
            && self.begun.len() - self.done.len() < self.shape.in_flight.max(1) as usize
        {
            let block = self.begun.len();
            self.begun.push(self.agenda.now());
            self.begin(unit, Work { block, input: None, output: Some(0), stage: Stage::Fetch });
        }
    }

    fn begin(&mut self, unit: usize, work: Work) {
        self.units[unit].work = Some(work);
        self.software(unit, work);
    }

    fn steps(&self, unit: usize) -> &Steps {
        match self.wiring.units[unit].kind {
            Kind::Device => &self.parameters.device,
            Kind::Application | Kind::Cpu => &self.parameters.cpu,
        }
    }

    /// Runs the software of a stage; its command is issued at the end.
    fn software(&mut self, unit: usize, work: Work) {
        let steps = self.steps(unit);
        let is_device = self.wiring.units[unit].kind == Kind::Device;
        let takes = match work.stage {
            Stage::Receive if is_device => steps.receive + self.shape.compute,
            Stage::Receive => steps.receive,
            Stage::Fetch if work.output.is_some_and(|c| self.channels[c].replies > 0) => steps.fetch_reply,
            Stage::Fetch => Time::ZERO,
            Stage::Write(_) => steps.write,
            Stage::Send => steps.send,
            Stage::Reply => steps.reply,
        };
        self.agenda.schedule_in(takes, Event::Issue { unit });
    }

    fn distance(&self, channel: usize) -> (PathCost, bool) {
        let ends = self.wiring.channels[channel];
        let is_across = self.wiring.units[ends.from].machine != self.wiring.units[ends.to].machine;
        (if is_across { self.parameters.across } else { self.parameters.within }, is_across)
    }

    /// Issues the command of the stage.
    fn issue(&mut self, unit: usize) {
        let Some(work) = self.units[unit].work else { return };
        let now = self.agenda.now();
        match (work.stage, work.input, work.output) {
            (Stage::Fetch, _, Some(output)) => {
                let replies = &mut self.channels[output].replies;
                *replies = replies.saturating_sub(1);
                self.advance(unit);
            }
            (Stage::Write(left), _, Some(output)) => {
                let distance = self.count(output);
                let bytes = left.min(self.parameters.packet_bytes.max(1));
                let sent = self.channels[output].path.serve(now, Time::of_bytes(bytes, distance.bytes_per_s));
                self.agenda.schedule_at(sent + distance.round_trip, Event::Acknowledged { unit });
            }
            (Stage::Send, _, Some(output)) => {
                let distance = self.count(output);
                self.channels[output].outstanding += 1;
                self.agenda
                    .schedule_in(distance.round_trip / 2, Event::Notified { channel: output, block: work.block });
                self.agenda.schedule_in(distance.round_trip, Event::Acknowledged { unit });
            }
            (Stage::Reply, Some(input), _) => {
                let distance = self.count(input);
                self.agenda.schedule_in(distance.round_trip / 2, Event::Replied { channel: input });
                self.agenda.schedule_in(distance.round_trip, Event::Acknowledged { unit });
            }
            _ => self.advance(unit),
        }
    }

    fn count(&mut self, channel: usize) -> PathCost {
        let (distance, is_across) = self.distance(channel);
        match is_across {
            true => self.commands.0 += 1,
            false => self.commands.1 += 1,
        }
        distance
    }

    /// Goes from one stage to the next.
    fn advance(&mut self, unit: usize) {
        let Some(mut work) = self.units[unit].work else { return };
        let next = match (work.stage, work.input, work.output) {
            (Stage::Receive, _, Some(_)) => Some(Stage::Fetch),
            (Stage::Fetch, ..) => Some(Stage::Write(self.shape.block_bytes)),
            (Stage::Write(left), ..) if left > self.parameters.packet_bytes.max(1) => {
                Some(Stage::Write(left - self.parameters.packet_bytes.max(1)))
            }
            (Stage::Write(_), ..) => Some(Stage::Send),
            (Stage::Receive, _, None) | (Stage::Send, Some(_), _) => Some(Stage::Reply),
            (Stage::Send, None, _) | (Stage::Reply, ..) => None,
        };
        if let Some(stage) = next {
            work.stage = stage;
            return self.begin(unit, work);
        }
        if work.output.is_none() {
            self.done.push(self.agenda.now());
        }
        self.units[unit].work = None;
        self.look_for_work(unit);
    }

    fn outcome(&self, warm_up: usize) -> SimulationResult {
        // Blocks come back in order: every channel is a queue, and every unit takes the oldest
        // first.
        let spent = self.begun.iter().zip(&self.done).skip(warm_up).map(|(begun, done)| *done - *begun);
        let (count, sum) = spent.fold((0u64, Time::ZERO), |(n, sum), t| (n + 1, sum + t));
        let first = if warm_up == 0 { Time::ZERO } else { self.done[warm_up - 1] };
        let elapsed = self.done.last().map_or(Time::ZERO, |last| *last - first).as_s();
        let blocks = self.done.len().max(1) as f64;
        SimulationResult {
            latency: sum / count,
            bytes_per_s: if elapsed > 0.0 { (count * self.shape.block_bytes) as f64 / elapsed } else { 0.0 },
            commands_across: self.commands.0 as f64 / blocks,
            commands_within: self.commands.1 as f64 / blocks,
        }
    }
}
