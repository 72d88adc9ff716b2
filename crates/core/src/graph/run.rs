//! Runs a graph: the caller's thread hands out, threads compute, pipes move.
//!
//! ```text
//! loop: admit items while the first stages can have buffers
//!       for each stage of an item that may begin by now, in the order of items: all it depends on done, its turn, its buffers
//!           free?  begin
//!       wait for something to end: a transfer (callback) or a computation (thread), both by one list
//! ```
//!
//! The closures are the caller's, and may panic: that is the error of the item. Where the kernel
//! gives no thread, the caller's own computes.

use std::collections::{BTreeSet, VecDeque};
use std::time::Instant;

use super::report::{GraphReport, StageReport};
use super::{Action, Graph, Item, Work};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{self, ForeignCode, reentry};
use crate::runtime::{Inbox, Runtime, RuntimePipe};
use crate::sync::{Arc, Condvar, Mutex};
use crate::threads;

/// Something that ended: item, stage, when it really began, how it went.
struct Ended {
    item: u64,
    stage: usize,
    result: Result<()>,
}

/// Items under way at once, at most, where nothing else bounds them: as many as keep every thread
/// and queue at work.
const AT_ONCE: usize = 4096;

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

/// A computation: its stage, for which item, and what to do.
type Task<'g> = (usize, Item, &'g Work<'g>);

/// What the threads are to do next, and whether nothing will follow.
#[derive(Default)]
struct Tasks<'g> {
    next: VecDeque<Task<'g>>,
    over: bool,
}

/// Work for the threads, and what has ended.
struct Bench<'g> {
    runtime: &'g Runtime,
    queue: Mutex<Tasks<'g>>,
    called: Condvar,
    ended: Arc<Inbox<Ended>>,
}

impl Runtime {
    /// Runs `items` items through a graph, and returns when all are through.
    ///
    /// # Errors
    /// The error of the first item (in their order) that failed, with the stage's name; what was
    /// under way is waited for, nothing else is begun. `Panicked` where a closure of a stage
    /// panicked. `InvalidInput` for a set without buffers that is used.
    pub fn run(&self, graph: &Graph<'_>, items: u64) -> Result<GraphReport> {
        run(self, graph, items)
    }
}

fn run(runtime: &Runtime, graph: &Graph<'_>, items: u64) -> Result<GraphReport> {
    runtime.check("run")?;
    for stage in &graph.stages {
        if let Some(set) = stage.uses.iter().find(|set| graph.sets[**set].count == 0) {
            let context = format!("graph {}: stage {} uses set {set}, which has no buffers", graph.name, stage.name);
            return Err(Error::new(ErrorKind::InvalidInput, "run", context));
        }
    }
    let computing = graph.stages.iter().filter(|stage| matches!(stage.action, Action::Compute(_))).count();
    let computes = computing > 0;
    let tasks = usize::try_from(items).unwrap_or(usize::MAX).saturating_mul(computing);
    let cores = runtime.machine().topology().usable_cores().count().max(1);
    // Within foreign code it is this thread of which is known what it is in the middle of: a
    // closure on another one could wait for that.
    let is_nested = guard::is_in_foreign_code() || reentry::is_in_operation();
    let threads = if is_nested { 0 } else { graph.threads.unwrap_or(cores).min(tasks) };
    let bench = Bench {
        runtime,
        queue: Mutex::new(Tasks::default()),
        called: Condvar::new(),
        ended: Arc::new(Inbox::new(runtime)),
    };
    threads::with_helpers(|helpers| {
        let _dismissed = Dismissed(&bench);
        let mut started = 0;
        for n in 0..threads {
            match helpers.spawn(&format!("dp-graph-{n}"), || bench.work()) {
                Ok(()) => started += 1,
                Err(e) => {
                    let instead = if n == 0 { "the caller of the graph computes" } else { "fewer threads compute" };
                    runtime.note_refused(&e, instead);
                    break;
                }
            }
        }
        Run::new(graph, &bench, items, computes && started == 0).finish()
    })
}

/// However the graph ends, its threads end, too: the scope waits for them.
struct Dismissed<'b, 'g>(&'b Bench<'g>);

impl Drop for Dismissed<'_, '_> {
    fn drop(&mut self) {
        // A child has none of them, nor perhaps who would let go of the lock.
        if self.0.runtime.check("run").is_err() {
            return;
        }
        self.0.queue.lock().over = true;
        self.0.called.notify_all();
    }
}

impl<'g> Bench<'g> {
    /// What a thread does.
    fn work(&self) {
        while let Some(task) = self.next() {
            self.carry_out(task);
            if self.runtime.check("run").is_err() {
                // The closure forked, and this is the child: it has no caller who waits.
                return;
            }
        }
    }

    /// Sleeps until there is a task; None when there will be none.
    fn next(&self) -> Option<Task<'g>> {
        let mut queue = self.queue.lock();
        loop {
            match queue.next.pop_front() {
                Some(task) => return Some(task),
                None if queue.over => return None,
                None => queue = self.called.wait(queue),
            }
        }
    }

    fn carry_out(&self, (stage, item, work): Task<'g>) {
        let result = guard::call(ForeignCode::Compute, || work(&item)).unwrap_or_else(|panicked| {
            self.runtime.note_panic(&panicked);
            Err(panicked.error("compute"))
        });
        if self.runtime.check("run").is_ok() {
            self.ended.put(Ended { item: item.index, stage, result });
        }
    }
}

struct Run<'r, 'g> {
    graph: &'g Graph<'g>,
    bench: &'r Bench<'g>,
    /// No thread was to be had.
    computes_here: bool,
    items: u64,
    begun: Instant,
    /// Items that were admitted and are not through, in their order.
    under: VecDeque<Underway>,
    next: u64,
    /// Items that were admitted and have not gone through all stages.
    unfinished: usize,
    /// By set: free buffers, and the next item that may take one.
    free: Vec<Free>,
    turn_of_set: Vec<u64>,
    /// By stage: the next item, where the order matters.
    turn_of_stage: Vec<u64>,
    /// Stages of items that may begin by now, in the order of items: what ended, or came free,
    /// names those that waited for it, so that nobody looks through all items that are under way.
    candidates: BTreeSet<(u64, usize)>,
    /// By stage: those that depend on it. By set: those that use it.
    followers: Vec<Vec<usize>>,
    users: Vec<Vec<usize>>,
    active: Vec<u64>,
    busy_since: Vec<u64>,
    reports: Vec<StageReport>,
    failure: Option<(u64, Error)>,
    out: u64,
}

/// The free buffers of a set: it takes memory only for those that were used.
struct Free {
    /// Those that came back.
    back: Vec<usize>,
    /// From here on none was used yet.
    next: usize,
    count: usize,
}

impl Free {
    fn pop(&mut self) -> Option<usize> {
        self.back.pop().or_else(|| {
            let buffer = self.next;
            self.next += usize::from(buffer < self.count);
            (buffer < self.count).then_some(buffer)
        })
    }

    fn push(&mut self, buffer: usize) {
        self.back.push(buffer);
    }
}

impl<'r, 'g> Run<'r, 'g> {
    fn new(graph: &'g Graph<'g>, bench: &'r Bench<'g>, items: u64, computes_here: bool) -> Self {
        let count = graph.stages.len();
        let reports = graph.stages.iter().map(|s| StageReport { name: s.name.clone(), ..StageReport::default() });
        Run {
            graph,
            bench,
            computes_here,
            items,
            begun: Instant::now(),
            under: VecDeque::new(),
            next: 0,
            unfinished: 0,
            free: graph.sets.iter().map(|set| Free { back: Vec::new(), next: 0, count: set.count }).collect(),
            turn_of_set: vec![0; graph.sets.len()],
            turn_of_stage: vec![0; count],
            candidates: BTreeSet::new(),
            followers: (0..count).map(|earlier| graph.stages_where(|s| s.after.contains(&earlier))).collect(),
            users: (0..graph.sets.len()).map(|set| graph.stages_where(|s| s.uses.contains(&set))).collect(),
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

    fn finish(&mut self) -> Result<GraphReport> {
        loop {
            if self.failure.is_none() {
                self.begin_what_can();
            }
            // A closure may have forked: a child looks at nothing that has a lock, and is told so.
            self.bench.runtime.check("run")?;
            if self.out == 0 {
                break;
            }
            if self.computes_here {
                let task = self.bench.queue.lock().next.pop_front();
                if let Some(task) = task {
                    self.bench.carry_out(task);
                    self.bench.runtime.check("run")?;
                }
            }
            let ended = self.bench.ended.take();
            // So may what was called while it slept.
            self.bench.runtime.check("run")?;
            ended.into_iter().for_each(|ended| self.end(ended));
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
            while let Some((item, stage)) = self.candidates.pop_first() {
                self.begin_if_can(item, stage);
                if self.failure.is_some() {
                    return;
                }
            }
            if !self.admit() {
                return;
            }
        }
    }

    /// Another item, once the last one has begun: more could only wait. And not more than can be of
    /// use, so that as many items as anybody likes take little memory.
    fn admit(&mut self) -> bool {
        let waits = self.under.back().is_some_and(|last| last.stages.iter().all(|s| *s == Progress::Ahead));
        let count = self.graph.stages.len();
        if self.next == self.items || waits || count == 0 || self.unfinished >= AT_ONCE {
            return false;
        }
        self.under.push_back(Underway {
            item: Item { index: self.next, held: self.graph.sets.iter().map(|set| (*set, None)).collect() },
            stages: vec![Progress::Ahead; count],
            wanted: vec![None; count],
            ready: vec![None; count],
            begun: vec![0; count],
        });
        self.candidates.extend((0..count).map(|stage| (self.next, stage)));
        self.next += 1;
        self.unfinished += 1;
        true
    }

    /// The item whose turn it is to take a buffer of a set may go on.
    fn set_is_free(&mut self, set: usize) {
        let item = self.turn_of_set[set];
        self.candidates.extend(self.users[set].iter().map(|stage| (item, *stage)));
    }

    /// Where an item is among those under way; None of one that is through, or did not come yet.
    fn place_of(&self, item: u64) -> Option<usize> {
        let first = self.under.front()?.item.index;
        usize::try_from(item.checked_sub(first)?).ok().filter(|at| *at < self.under.len())
    }

    fn begin_if_can(&mut self, index: u64, stage: usize) {
        let Some(at) = self.place_of(index) else { return };
        let graph = self.graph;
        let declared = &graph.stages[stage];
        let now = self.now();
        let under = &mut self.under[at];
        let dependent = declared.after.iter().any(|earlier| under.stages[*earlier] != Progress::Done);
        if under.stages[stage] != Progress::Ahead || dependent {
            return;
        }
        under.wanted[stage].get_or_insert(now);
        for set in &declared.uses {
            if self.under[at].item.held[*set].1.is_none() {
                if self.turn_of_set[*set] != index {
                    return;
                }
                let Some(buffer) = self.free[*set].pop() else { return };
                self.under[at].item.held[*set].1 = Some(buffer);
                self.turn_of_set[*set] += 1;
                self.set_is_free(*set);
            }
        }
        let under = &mut self.under[at];
        let ready = *under.ready[stage].get_or_insert(now);
        if declared.in_order && self.turn_of_stage[stage] != index {
            return;
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
                self.bench.queue.lock().next.push_back((stage, item, work));
                self.bench.called.notify_one();
            }
            Action::Transfer(pipe, span) => {
                let span = guard::call(ForeignCode::Span, || span(&item)).unwrap_or_else(|panicked| {
                    self.bench.runtime.note_panic(&panicked);
                    Err(panicked.error("run"))
                });
                if let Err(forked) = self.bench.runtime.check("run") {
                    self.failure = Some((index, forked));
                    return;
                }
                match span.and_then(|span| Ok((pipe.transfer(span)?, span.len))) {
                    Ok((handle, len)) => {
                        self.reports[stage].moved_bytes += len;
                        let ends = self.bench.ended.clone();
                        RuntimePipe::on_done_here(handle, move |result| ends.put(Ended { item: index, stage, result }));
                    }
                    Err(e) => self.end(Ended { item: index, stage, result: Err(e) }),
                }
            }
        }
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
        let Some(at) = self.place_of(item) else { return };
        self.reports[stage].work_ns += now - self.under[at].begun[stage];
        self.under[at].stages[stage] = Progress::Done;
        self.unfinished -= usize::from(self.under[at].stages.iter().all(|s| *s == Progress::Done));
        self.candidates.extend(self.followers[stage].iter().map(|follower| (item, *follower)));
        if self.graph.stages[stage].in_order {
            self.turn_of_stage[stage] += 1;
            self.candidates.insert((self.turn_of_stage[stage], stage));
        }
        for set in 0..self.graph.sets.len() {
            let under = &mut self.under[at];
            let over = self
                .graph
                .stages
                .iter()
                .zip(&under.stages)
                .all(|(declared, progress)| *progress == Progress::Done || !declared.uses.contains(&set));
            if over && let Some(buffer) = under.item.held[set].1.take() {
                self.free[set].push(buffer);
                self.set_is_free(set);
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
