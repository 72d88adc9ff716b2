//! Runs a graph: the caller's thread hands out, threads compute, pipes move.
//!
//! ```text
//! loop: admit items while the first stages can have buffers
//!       for each stage of each item, in the order of items: all it depends on done, its turn, its buffers free?  begin
//!       wait for something to end: a transfer (callback) or a computation (thread), both by one channel
//! ```

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

use super::report::{GraphReport, StageReport};
use super::{Action, Graph, Item, Work};
use crate::error::{Error, ErrorKind, Result};
use crate::runtime::Runtime;
use crate::threads;

/// Something that ended: item, stage, when it really began, how it went.
struct Ended {
    item: u64,
    stage: usize,
    result: Result<()>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Ahead,
    Under,
    Done,
}

struct Underway {
    item: Item,
    stages: Vec<Progress>,
    /// When each stage could have begun but for its buffers, and when it could have begun.
    wanted: Vec<Option<u64>>,
    ready: Vec<Option<u64>>,
    begun: Vec<u64>,
}

/// What the threads are to do next, and whether nothing will follow.
#[derive(Default)]
struct Tasks<'g> {
    next: VecDeque<(usize, Item, &'g Work<'g>)>,
    over: bool,
}

/// Work for the threads.
struct Bench<'g> {
    queue: Mutex<Tasks<'g>>,
    called: Condvar,
}

pub(super) fn run(runtime: &Runtime, graph: &Graph<'_>, items: u64) -> Result<GraphReport> {
    for stage in &graph.stages {
        if let Some(set) = stage.uses.iter().find(|set| graph.sets[**set].count == 0) {
            let context = format!("graph {}: stage {} uses set {set}, which has no buffers", graph.name, stage.name);
            return Err(Error::new(ErrorKind::InvalidInput, "run", context));
        }
    }
    let (sender, receiver) = channel();
    let computes = graph.stages.iter().any(|stage| matches!(stage.action, Action::Compute(_)));
    let cores = runtime.machine().topology().usable_cores().count().max(1);
    let threads = if computes { graph.threads.unwrap_or(cores) } else { 0 };
    let bench = Bench { queue: Mutex::new(Tasks::default()), called: Condvar::new() };
    std::thread::scope(|scope| {
        for n in 0..threads {
            let (bench, sender) = (&bench, sender.clone());
            match threads::spawn_scoped(scope, &format!("dp-graph-{n}"), move || work(bench, &sender)) {
                Ok(_) => {}
                Err(e) if n == 0 => return Err(e),
                // Fewer will do.
                Err(_) => break,
            }
        }
        let mut run = Run::new(graph, &bench, sender, items);
        let result = run.finish(&receiver);
        bench.dismiss();
        result
    })
}

impl Bench<'_> {
    fn dismiss(&self) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).over = true;
        self.called.notify_all();
    }
}

fn work(bench: &Bench<'_>, sender: &Sender<Ended>) {
    loop {
        let mut queue = bench.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let (stage, item, work) = loop {
            match queue.next.pop_front() {
                Some(task) => break task,
                None if queue.over => return,
                None => queue = bench.called.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(queue);
        // A panic of the caller's closure goes on in the caller's thread when the scope ends; the loop there must end, too.
        let guard = Panicked { sender, item: item.index, stage };
        let result = work(&item);
        std::mem::forget(guard);
        // The receiver lives until every task is back.
        let _ = sender.send(Ended { item: item.index, stage, result });
    }
}

/// Reports a task whose closure panicked.
struct Panicked<'a> {
    sender: &'a Sender<Ended>,
    item: u64,
    stage: usize,
}

impl Drop for Panicked<'_> {
    fn drop(&mut self) {
        let result = Err(Error::new(ErrorKind::InvalidInput, "compute", "the stage's closure panicked"));
        let _ = self.sender.send(Ended { item: self.item, stage: self.stage, result });
    }
}

struct Run<'r, 'g> {
    graph: &'g Graph<'g>,
    bench: &'r Bench<'g>,
    sender: Sender<Ended>,
    items: u64,
    begun: Instant,
    /// Items that were admitted and are not through, in their order.
    under: VecDeque<Underway>,
    next: u64,
    /// By set: free buffers, and the next item that may take one.
    free: Vec<Vec<usize>>,
    turn_of_set: Vec<u64>,
    /// By stage: the next item, where the order matters.
    turn_of_stage: Vec<u64>,
    active: Vec<u64>,
    busy_since: Vec<u64>,
    reports: Vec<StageReport>,
    failure: Option<(u64, Error)>,
    out: u64,
}

impl<'r, 'g> Run<'r, 'g> {
    fn new(graph: &'g Graph<'g>, bench: &'r Bench<'g>, sender: Sender<Ended>, items: u64) -> Self {
        let count = graph.stages.len();
        let reports = graph.stages.iter().map(|s| StageReport { name: s.name.clone(), ..StageReport::default() });
        Run {
            graph,
            bench,
            sender,
            items,
            begun: Instant::now(),
            under: VecDeque::new(),
            next: 0,
            free: graph.sets.iter().map(|set| (0..set.count).rev().collect()).collect(),
            turn_of_set: vec![0; graph.sets.len()],
            turn_of_stage: vec![0; count],
            active: vec![0; count],
            busy_since: vec![0; count],
            reports: reports.collect(),
            failure: None,
            out: 0,
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn finish(&mut self, receiver: &Receiver<Ended>) -> Result<GraphReport> {
        loop {
            if self.failure.is_none() {
                self.begin_what_can();
            }
            if self.out == 0 {
                break;
            }
            let Ok(ended) = receiver.recv() else { break };
            self.end(ended);
            while let Ok(ended) = receiver.try_recv() {
                self.end(ended);
            }
        }
        match self.failure.take() {
            Some((_, error)) => Err(error),
            None => Ok(GraphReport {
                name: self.graph.name.clone(),
                wall_ns: self.now(),
                stages: std::mem::take(&mut self.reports),
            }),
        }
    }

    fn begin_what_can(&mut self) {
        loop {
            let mut began = false;
            for at in 0..self.under.len() {
                for stage in 0..self.graph.stages.len() {
                    began |= self.begin_if_can(at, stage);
                    if self.failure.is_some() {
                        return;
                    }
                }
            }
            // Another item, once the last one has begun: more could only wait.
            let waits = self.under.back().is_some_and(|last| last.stages.iter().all(|s| *s == Progress::Ahead));
            if self.next < self.items && !waits && !self.graph.stages.is_empty() {
                let count = self.graph.stages.len();
                self.under.push_back(Underway {
                    item: Item { index: self.next, held: self.graph.sets.iter().map(|set| (*set, None)).collect() },
                    stages: vec![Progress::Ahead; count],
                    wanted: vec![None; count],
                    ready: vec![None; count],
                    begun: vec![0; count],
                });
                self.next += 1;
            } else if !began {
                return;
            }
        }
    }

    fn begin_if_can(&mut self, at: usize, stage: usize) -> bool {
        let graph = self.graph;
        let declared = &graph.stages[stage];
        let now = self.now();
        let under = &mut self.under[at];
        let index = under.item.index;
        let dependent = declared.after.iter().any(|earlier| under.stages[*earlier] != Progress::Done);
        if under.stages[stage] != Progress::Ahead || dependent {
            return false;
        }
        under.wanted[stage].get_or_insert(now);
        for set in &declared.uses {
            if under.item.held[*set].1.is_none() {
                if self.turn_of_set[*set] != index {
                    return false;
                }
                let Some(buffer) = self.free[*set].pop() else { return false };
                under.item.held[*set].1 = Some(buffer);
                self.turn_of_set[*set] += 1;
            }
        }
        let ready = *under.ready[stage].get_or_insert(now);
        if declared.in_order && self.turn_of_stage[stage] != index {
            return false;
        }
        under.stages[stage] = Progress::Under;
        under.begun[stage] = now;
        let report = &mut self.reports[stage];
        report.buffer_ns += ready - under.wanted[stage].unwrap_or(ready);
        report.queued_ns += now - ready;
        if self.active[stage] == 0 {
            self.busy_since[stage] = now;
        }
        self.active[stage] += 1;
        self.out += 1;
        let item = under.item.clone();
        match &declared.action {
            Action::Compute(work) => {
                self.bench.queue.lock().unwrap_or_else(PoisonError::into_inner).next.push_back((stage, item, work));
                self.bench.called.notify_one();
            }
            Action::Transfer(pipe, span) => {
                let started = span(&item).and_then(|span| Ok((pipe.transfer(span)?, span.len)));
                let sender = self.sender.clone();
                match started {
                    Ok((handle, len)) => {
                        self.reports[stage].moved_bytes += len;
                        handle.on_done(move |result| {
                            // The receiver lives until every transfer is back.
                            let _ = sender.send(Ended { item: index, stage, result });
                        });
                    }
                    Err(e) => self.end(Ended { item: index, stage, result: Err(e) }),
                }
            }
        }
        true
    }

    fn end(&mut self, ended: Ended) {
        let Ended { item, stage, result } = ended;
        let now = self.now();
        self.out -= 1;
        self.active[stage] -= 1;
        let report = &mut self.reports[stage];
        report.items += 1;
        if self.active[stage] == 0 {
            report.busy_ns += now - self.busy_since[stage];
        }
        let first = self.under.front().map_or(0, |under| under.item.index);
        let Some(under) = self.under.get_mut((item - first) as usize) else { return };
        report.work_ns += now - under.begun[stage];
        under.stages[stage] = Progress::Done;
        if self.graph.stages[stage].in_order {
            self.turn_of_stage[stage] += 1;
        }
        for set in 0..self.graph.sets.len() {
            let over = self
                .graph
                .stages
                .iter()
                .zip(&under.stages)
                .all(|(declared, progress)| *progress == Progress::Done || !declared.uses.contains(&set));
            if over && let Some(buffer) = under.item.held[set].1.take() {
                self.free[set].push(buffer);
            }
        }
        if let Err(error) = result
            && self.failure.as_ref().is_none_or(|failure| item < failure.0)
        {
            self.failure = Some((item, error.within(format!("{}, item {item}", self.graph.stages[stage].name))));
        }
        while self.under.front().is_some_and(|under| under.stages.iter().all(|s| *s == Progress::Done)) {
            self.under.pop_front();
        }
    }
}
