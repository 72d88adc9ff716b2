//! Random operations against a plain model of what a scheduler must not get wrong.

use std::collections::{BTreeMap, VecDeque};

use super::super::flow::Place;
use super::super::{Chunk, Flow, Next, PriorityClass, SchedulePolicy, Scheduler, ServiceLevel};
use super::{KIB, MS, Random, SECOND, seeds};

/// Request, length, released.
type Queue = VecDeque<(u64, u64, u64)>;

#[derive(Default)]
struct Line {
    service: ServiceLevel,
    queue: Queue,
    pushed: u64,
    taken_back: u64,
    released: u64,
    out: Vec<u64>,
}

impl Line {
    fn out(&self) -> u64 {
        self.out.iter().sum()
    }
}

struct Model {
    scheduler: Scheduler,
    random: Random,
    lines: BTreeMap<u32, (Flow, Line)>,
    /// Disconnected, with chunks at the resource.
    gone: Vec<(Flow, Line)>,
    now: u64,
    next_request: u64,
    chunks: u64,
}

impl Model {
    fn new(seed: u64) -> Model {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let chunk_bytes = random.pick(&[1, 1000, 4 * KIB, 64 * KIB, 1 << 20, u64::MAX / 8]);
        let policy = SchedulePolicy {
            chunk_bytes,
            shares: [0, 1, 2].map(|_| random.below(50) as f64 / 100.0),
            outstanding_bytes: random.pick(&[0, chunk_bytes, 3 * chunk_bytes, 100_000, u64::MAX]),
            outstanding_chunks: random.pick(&[0, 1, 3, 50, u32::MAX]),
            contended_bytes: random.pick(&[0, chunk_bytes, 2 * chunk_bytes, u64::MAX]),
            contended_chunk_bytes: random.pick(&[chunk_bytes / 50, chunk_bytes / 4, chunk_bytes, u64::MAX]),
            active_ns: random.pick(&[0, 1000, 10 * MS, u64::MAX]),
            rate: Some(1e9),
        };
        let scheduler = Scheduler::new(policy);
        let now = random.pick(&[0, 12_345, SECOND, 1 << 60]);
        Model { scheduler, random, lines: BTreeMap::new(), gone: Vec::new(), now, next_request: 0, chunks: 0 }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..5 => self.connect(),
            5..7 => self.disconnect(),
            7..30 => self.push(),
            30..60 => {
                self.next();
            }
            60..85 => self.done(),
            85..90 => self.cancel(),
            90..94 => self.passes(),
            94 => self.scheduler.set_contended_bytes(self.random.pick(&[0, 5000, 128 * KIB, u64::MAX])),
            _ => self.time(),
        }
        self.check();
    }

    fn connect(&mut self) {
        if self.lines.len() >= 12 {
            return;
        }
        let mut service = ServiceLevel::of(self.random.pick(&PriorityClass::ALL));
        if self.random.one_in(3) {
            service.at_most = Some(self.random.pick(&[1e4, 1e7, 1e9, 1e12]));
        }
        if self.random.one_in(3) {
            service.at_least = Some(self.random.pick(&[1e4, 1e6, 5e7]));
        }
        // A promise may be refused; then nothing has changed, which `check` sees.
        if let Ok(flow) = self.scheduler.connect(service.clone()) {
            let before = self.lines.insert(flow.index, (flow, Line { service, ..Line::default() }));
            assert!(before.is_none(), "a place was given twice");
        }
    }

    fn any(&mut self) -> Option<u32> {
        let keys: Vec<u32> = self.lines.keys().copied().collect();
        (!keys.is_empty()).then(|| self.random.pick(&keys))
    }

    fn disconnect(&mut self) {
        let Some(index) = self.any() else { return };
        let (flow, mut line) = self.lines.remove(&index).unwrap();
        line.taken_back += line.queue.drain(..).map(|(_, len, released)| len - released).sum::<u64>();
        self.scheduler.disconnect(flow);
        self.gone.push((flow, line));
    }

    fn len(&mut self) -> u64 {
        let chunk = self.scheduler.policy().chunk_bytes.min(1 << 20);
        let most = 1 + 5 * chunk;
        let any = self.random.below(most);
        self.random.pick(&[0, 1, chunk, chunk + 1, 2 * chunk, any])
    }

    fn push(&mut self) {
        let (Some(index), len) = (self.any(), self.len()) else { return };
        let (flow, line) = self.lines.get_mut(&index).unwrap();
        self.next_request += 1;
        assert!(self.scheduler.push(*flow, self.next_request, len, self.now));
        line.queue.push_back((self.next_request, len, 0));
        line.pushed += len;
    }

    fn totals(&self) -> (u64, usize) {
        let all = || self.lines.values().chain(&self.gone);
        (all().map(|(_, line)| line.out()).sum(), all().map(|(_, line)| line.out.len()).sum())
    }

    fn next(&mut self) -> bool {
        let (bytes, chunks) = self.totals();
        let past_cap = self.scheduler.stats().past_contended_cap;
        let is_limited = |line: &Line| line.service.at_most.is_some();
        let waiting = |limited: bool| {
            self.lines.values().filter(|(_, line)| !line.queue.is_empty() && is_limited(line) == limited).count()
        };
        match self.scheduler.next(self.now) {
            Next::Chunk(chunk) => {
                let policy = self.scheduler.policy();
                assert!(chunk.len <= policy.chunk_bytes);
                let fits = bytes.saturating_add(chunk.len) <= policy.outstanding_bytes;
                assert!(
                    chunks == 0 || (fits && chunks < policy.outstanding_chunks as usize),
                    "over the caps: {chunk:?}"
                );
                let yielded = self.scheduler.stats().past_contended_cap > past_cap;
                self.check_contended(&chunk, yielded);
                self.released(chunk);
                true
            }
            Next::At(at) => {
                assert!(at > self.now.max(self.scheduler.now) && waiting(true) > 0);
                assert!(chunks > 0 || waiting(false) == 0, "idle, with work");
                false
            }
            Next::Nothing => {
                assert!(chunks > 0 || waiting(true) + waiting(false) == 0, "idle, with work");
                false
            }
        }
    }

    /// While a latency flow has work the lower classes keep to their cap, unless it was said to
    /// have yielded.
    fn check_contended(&self, chunk: &Chunk, yielded: bool) {
        let all = || self.lines.values().chain(&self.gone).map(|(_, line)| line);
        let of = |lower: bool| all().filter(move |line| line.service.class.is_lower() == lower);
        let has_work = of(false).any(|line| !line.queue.is_empty() || !line.out.is_empty());
        let (_, line) = &self.lines[&chunk.flow.index];
        if !has_work || !line.service.class.is_lower() || yielded {
            return;
        }
        let policy = self.scheduler.policy();
        assert!(chunk.len <= policy.contended_chunk_bytes);
        let none = of(true).all(|line| line.out.is_empty());
        let bytes: u64 = of(true).map(Line::out).sum();
        assert!(none || bytes.saturating_add(chunk.len) <= policy.contended_bytes, "{bytes} and {chunk:?}");
    }

    /// The chunk is the next piece of the first request of its flow.
    fn released(&mut self, chunk: Chunk) {
        let (flow, line) = self.lines.get_mut(&chunk.flow.index).expect("a flow that is connected");
        let (request, len, released) = line.queue.front_mut().expect("a request that was pushed");
        assert_eq!((*flow, *request, *released), (chunk.flow, chunk.request, chunk.at));
        *released += chunk.len;
        assert_eq!(chunk.last, *released == *len);
        assert!(chunk.len > 0 || *len == 0);
        if chunk.last {
            line.queue.pop_front();
        }
        line.released += chunk.len;
        line.out.push(chunk.len);
        self.chunks += 1;
    }

    fn done(&mut self) {
        let lines = self.lines.values_mut().chain(&mut self.gone);
        let mut out: Vec<_> = lines.filter(|(_, line)| !line.out.is_empty()).collect();
        if out.is_empty() {
            return;
        }
        let at = self.random.below(out.len() as u64) as usize;
        let (flow, line) = &mut out[at];
        let bytes = line.out.swap_remove(self.random.below(line.out.len() as u64) as usize);
        self.scheduler.done(*flow, bytes, self.now);
    }

    fn cancel(&mut self) {
        let Some(index) = self.any() else { return };
        let (flow, line) = self.lines.get_mut(&index).unwrap();
        if line.queue.is_empty() || self.random.one_in(10) {
            assert_eq!(self.scheduler.cancel(*flow, self.next_request + 1), None);
            return;
        }
        let at = self.random.below(line.queue.len() as u64) as usize;
        let (request, len, released) = line.queue.remove(at).unwrap();
        assert_eq!(self.scheduler.cancel(*flow, request), Some(released));
        line.taken_back += len - released;
    }

    /// What passes is what `push` and `next` let go at once.
    fn passes(&mut self) {
        let (Some(index), len) = (self.any(), self.len()) else { return };
        let flow = self.lines[&index].0;
        let request = self.next_request + 1;
        let mut slow = self.scheduler.clone();
        slow.push(flow, request, len, self.now);
        let chunk = Chunk { flow, request, at: 0, len, last: true };
        let goes = slow.next(self.now) == Next::Chunk(chunk);
        let passes = self.scheduler.passes(flow, len, self.now);
        assert!(goes || !passes, "it passes, and would not have been released: {chunk:?} {slow:#?}");
        // With limits and promises it is allowed to say no in doubt.
        let class = self.lines[&index].1.service.class;
        let simple = |(_, line): &(Flow, Line)| {
            let ServiceLevel { class: of, at_least, at_most } = line.service;
            at_least.is_none() && at_most.is_none() && (of > class || line.queue.is_empty())
        };
        if self.lines.values().all(simple) && self.now >= self.scheduler.now {
            assert_eq!(goes, passes, "{chunk:?} {slow:#?}");
        }
    }

    fn time(&mut self) {
        let far = self.random.below(SECOND);
        let steps = [0, 1, 100, 10_000, MS, 20 * MS, far];
        self.now = match self.random.below(12) {
            0 => self.now.saturating_sub(self.random.pick(&steps)),
            1 if self.random.one_in(20) => self.random.pick(&[0, u64::MAX, self.now / 2]),
            _ => self.now.saturating_add(self.random.pick(&steps)),
        };
    }

    fn check(&mut self) {
        self.gone.retain(|(_, line)| !line.out.is_empty());
        let stats = self.scheduler.stats();
        let (bytes, chunks) = self.totals();
        assert_eq!((stats.outstanding_bytes, stats.outstanding_chunks as usize), (bytes, chunks));
        let backlog: usize = self.lines.values().map(|(_, line)| line.queue.len()).sum();
        assert_eq!((stats.requests, self.scheduler.backlog()), (backlog as u64, backlog as u64));
        assert_eq!(self.scheduler.is_idle(), backlog == 0 && chunks == 0);
        assert_eq!(stats.flows.len(), self.lines.len() + self.gone.len());
        for shown in &stats.flows {
            let gone = || self.gone.iter().find(|(flow, _)| flow.index == shown.index);
            let (_, line) = self.lines.get(&shown.index).or_else(gone).unwrap();
            assert_eq!((shown.requests, shown.outstanding_bytes), (line.queue.len(), line.out()));
            assert_eq!((&shown.service, shown.served.bytes), (&line.service, line.released));
            let queued: u64 = line.queue.iter().map(|(_, len, released)| len - released).sum();
            assert_eq!(line.pushed, line.released + line.taken_back + queued);
        }
        let quantum = self.scheduler.policy().chunk_bytes.clamp(512, u64::MAX / 2);
        for (_, state) in self.scheduler.flows.iter() {
            // In a turn: the rest of the one before, which was too short for a chunk, and a
            // quantum.
            let most = if state.place == Place::Ready { 2 * quantum } else { 0 };
            assert!(state.deficit <= most, "a turn is saved up: {state:?}");
        }
        let mut busy = self.lines.values().filter(|(_, line)| !line.queue.is_empty());
        let only = match (busy.next(), busy.next()) {
            (Some((flow, line)), None) if line.service.at_most.is_none() => Some(*flow),
            _ => None,
        };
        assert_eq!(self.scheduler.only_flow(), only);
    }

    /// Everything that was pushed and not taken back goes, whatever came before.
    fn drain(&mut self) {
        for _ in 0..1_000_000 {
            if self.next() {
                continue;
            }
            let (_, chunks) = self.totals();
            if chunks > 0 {
                self.done();
            } else if let Next::At(at) = self.scheduler.next(self.now) {
                self.now = at;
            } else {
                break;
            }
        }
        self.check();
        assert!(self.scheduler.is_idle(), "something was lost: {:?}", self.scheduler);
        let (sum, stats) = (|line: &Line| line.pushed - line.taken_back - line.released, self.scheduler.stats());
        assert!(self.lines.values().all(|(_, line)| sum(line) == 0));
        assert_eq!(stats.classes.iter().map(|class| class.served.chunks).sum::<u64>(), self.chunks);
    }
}

#[test]
fn random_operations_lose_nothing_and_break_no_cap() {
    let mut chunks = 0;
    for seed in seeds(0..150) {
        let run = std::panic::catch_unwind(|| {
            let mut model = Model::new(seed);
            (0..1000).for_each(|_| model.step());
            model.drain();
            model.chunks
        });
        match run {
            Ok(released) => chunks += released,
            Err(cause) => {
                eprintln!("DATAPIPES_SEED={seed} repeats it");
                std::panic::resume_unwind(cause);
            }
        }
    }
    assert!(chunks > 1000, "the model did nothing");
}
