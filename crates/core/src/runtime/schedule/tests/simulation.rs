//! A resource that serves chunks at a rate and with a latency, and loads that ask for transfers,
//! driven by events.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::super::{Flow, Next, SchedulePolicy, Scheduler, ServiceLevel};
use super::{Random, SECOND};

/// What a load wants.
#[derive(Clone, Debug)]
pub(super) enum Want {
    /// Requests without end, so many of them waiting at any time.
    Endless { sizes: Vec<u64>, depth: u32 },
    /// One after the other, with a pause between.
    OneByOne { len: u64, pause_ns: u64 },
    /// One in each period, at a random time in it.
    Now { len: u64, period_ns: u64 },
}

pub(super) struct Load {
    pub(super) flow: Flow,
    want: Want,
    from: u64,
    until: u64,
    is_limited: bool,
    /// Requests not fully released.
    queued: u32,
    /// Chunks that came back: when and how much.
    pub(super) done: Vec<(u64, u64)>,
    /// From push to the return of the last chunk.
    pub(super) latencies: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrive { load: usize },
    Back { request: usize, len: u64, last: bool },
    Wake,
}

/// With service classes, or whole requests first come, first served.
enum Dispatch {
    Classes(Box<Scheduler>),
    FirstCome { queue: VecDeque<usize>, outstanding: u64, cap: u64 },
}

/// A resource with its loads. A chunk takes `len / rate` of a server's time and comes back
/// `latency_ns` later.
pub(super) struct Simulation {
    dispatch: Dispatch,
    rate: f64,
    latency_ns: u64,
    /// When each server is free.
    servers: Vec<u64>,
    /// Timers fire late by up to this much.
    pub(super) late_ns: u64,
    pub(super) now: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    wake_at: u64,
    pub(super) loads: Vec<Load>,
    /// By request: load, time of push, length.
    requests: Vec<(usize, u64, u64)>,
    outstanding: u64,
    random: Random,
}

impl Simulation {
    pub(super) fn new(policy: SchedulePolicy, rate: f64) -> Simulation {
        Simulation {
            dispatch: Dispatch::Classes(Box::new(Scheduler::new(policy))),
            rate,
            latency_ns: 0,
            servers: vec![0],
            late_ns: 0,
            now: 0,
            events: BinaryHeap::new(),
            sequence: 0,
            wake_at: u64::MAX,
            loads: Vec::new(),
            requests: Vec::new(),
            outstanding: 0,
            random: Random(0x9e37_79b9_7f4a_7c15),
        }
    }

    /// The same without classes and chunks; the scheduler only names the flows.
    pub(super) fn first_come(mut self) -> Simulation {
        let cap = self.scheduler().policy().outstanding_bytes;
        self.dispatch = Dispatch::FirstCome { queue: VecDeque::new(), outstanding: 0, cap };
        self
    }

    pub(super) fn servers(mut self, servers: usize) -> Simulation {
        self.servers = vec![0; servers];
        self
    }

    pub(super) fn latency(mut self, ns: u64) -> Simulation {
        self.latency_ns = ns;
        self
    }

    pub(super) fn scheduler(&mut self) -> &mut Scheduler {
        match &mut self.dispatch {
            Dispatch::Classes(scheduler) => scheduler,
            Dispatch::FirstCome { .. } => panic!("there is no scheduler"),
        }
    }

    /// Adds a load that is there all the time.
    pub(super) fn load(&mut self, service: ServiceLevel, want: Want) -> usize {
        self.load_between(service, want, (0, u64::MAX))
    }

    pub(super) fn load_between(&mut self, service: ServiceLevel, want: Want, (from, until): (u64, u64)) -> usize {
        let is_limited = service.at_most.is_some();
        let flow = match &mut self.dispatch {
            Dispatch::Classes(scheduler) => scheduler.connect(service).unwrap(),
            // It is not looked at.
            Dispatch::FirstCome { .. } => Scheduler::new(super::policy()).connect(service).unwrap(),
        };
        let (done, latencies) = (Vec::new(), Vec::new());
        self.loads.push(Load { flow, want, from, until, is_limited, queued: 0, done, latencies });
        let load = self.loads.len() - 1;
        self.at(from, Event::Arrive { load });
        load
    }

    fn at(&mut self, time: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((time, self.sequence, event)));
    }

    pub(super) fn run(&mut self, until: u64) {
        while let Some(&Reverse((time, _, event))) = self.events.peek()
            && time <= until
        {
            self.events.pop();
            self.now = time;
            match event {
                Event::Arrive { load } => self.arrive(load),
                Event::Back { request, len, last } => self.back(request, len, last),
                Event::Wake => self.wake_at = u64::MAX,
            }
            self.pump();
        }
        self.now = until;
    }

    fn arrive(&mut self, load: usize) {
        if self.now >= self.loads[load].until {
            return;
        }
        match self.loads[load].want.clone() {
            Want::Endless { depth, .. } => (0..depth).for_each(|_| self.push_endless(load)),
            Want::OneByOne { len, .. } => self.push(load, len),
            Want::Now { len, period_ns } => {
                self.push(load, len);
                let (now, from) = (self.now, self.loads[load].from);
                let period = (now - from) / period_ns + 1;
                let time = from + period * period_ns + self.random.below(period_ns);
                self.at(time, Event::Arrive { load });
            }
        }
    }

    fn push_endless(&mut self, load: usize) {
        if let Want::Endless { sizes, .. } = &self.loads[load].want {
            let len = sizes[self.random.below(sizes.len() as u64) as usize];
            self.push(load, len);
        }
    }

    fn push(&mut self, load: usize, len: u64) {
        let request = self.requests.len();
        self.requests.push((load, self.now, len));
        self.loads[load].queued += 1;
        match &mut self.dispatch {
            Dispatch::Classes(scheduler) => {
                assert!(scheduler.push(self.loads[load].flow, request as u64, len, self.now));
            }
            Dispatch::FirstCome { queue, .. } => queue.push_back(request),
        }
    }

    fn back(&mut self, request: usize, len: u64, last: bool) {
        let (load, pushed, _) = self.requests[request];
        match &mut self.dispatch {
            Dispatch::Classes(scheduler) => scheduler.done(self.loads[load].flow, len, self.now),
            Dispatch::FirstCome { outstanding, .. } => *outstanding -= len,
        }
        self.outstanding -= 1;
        self.loads[load].done.push((self.now, len));
        if last {
            self.loads[load].latencies.push(self.now - pushed);
            if let Want::OneByOne { pause_ns, .. } = self.loads[load].want {
                self.at(self.now + pause_ns, Event::Arrive { load });
            }
        }
    }

    /// Hands the resource what may go.
    fn pump(&mut self) {
        loop {
            let (request, len, last) = match &mut self.dispatch {
                Dispatch::Classes(scheduler) => match scheduler.next(self.now) {
                    Next::Chunk(chunk) => (chunk.request as usize, chunk.len, chunk.last),
                    Next::At(at) => {
                        assert!(at > self.now, "asked to come back at {at}, which is not after {}", self.now);
                        if at < self.wake_at {
                            self.wake_at = at;
                            let late = if self.late_ns > 0 { self.random.below(self.late_ns) } else { 0 };
                            self.at(at + late, Event::Wake);
                        }
                        return self.check_work_goes_on();
                    }
                    Next::Nothing => return self.check_work_goes_on(),
                },
                Dispatch::FirstCome { queue, outstanding, cap } => {
                    let Some(&request) = queue.front() else { return };
                    let len = self.requests[request].2;
                    if *outstanding > 0 && *outstanding + len > *cap {
                        return;
                    }
                    queue.pop_front();
                    *outstanding += len;
                    (request, len, true)
                }
            };
            self.serve(request, len, last);
        }
    }

    fn serve(&mut self, request: usize, len: u64, last: bool) {
        let free = self.servers.iter_mut().min().expect("a resource has a server");
        *free = (*free).max(self.now) + (len as f64 / self.rate * SECOND as f64).round() as u64;
        let time = *free + self.latency_ns;
        self.outstanding += 1;
        self.at(time, Event::Back { request, len, last });
        let load = self.requests[request].0;
        if last {
            self.loads[load].queued -= 1;
            if self.now < self.loads[load].until {
                self.push_endless(load);
            }
        }
    }

    /// A resource without work has no work that may be done.
    fn check_work_goes_on(&self) {
        if self.outstanding == 0 {
            let eligible = self.loads.iter().position(|load| load.queued > 0 && !load.is_limited);
            assert_eq!(eligible, None, "at {} the resource is idle and a load has work", self.now);
        }
    }

    /// Bytes of a load that came back in a time.
    pub(super) fn bytes(&self, load: usize, (from, to): (u64, u64)) -> f64 {
        let done = &self.loads[load].done;
        let (first, end) = (done.partition_point(|d| d.0 < from), done.partition_point(|d| d.0 < to));
        done[first..end].iter().map(|d| d.1).sum::<u64>() as f64
    }

    /// Bytes/s of a load in a time.
    pub(super) fn rate_of(&self, load: usize, (from, to): (u64, u64)) -> f64 {
        self.bytes(load, (from, to)) / (to - from) as f64 * SECOND as f64
    }

    /// The latency that so many percent of a load's requests did not exceed.
    pub(super) fn percentile(&self, load: usize, percent: f64) -> u64 {
        let mut latencies = self.loads[load].latencies.clone();
        latencies.sort_unstable();
        latencies[((latencies.len() - 1) as f64 * percent / 100.0).round() as usize]
    }
}

/// Requests of one size without end.
pub(super) fn endless(len: u64) -> Want {
    Want::Endless { sizes: vec![len], depth: 2 }
}
