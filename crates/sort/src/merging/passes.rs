//! The second phase: sorted runs and inputs are merged, in several passes if they are more than one
//! pass can take.
//!
//! A pass merges spilled runs, or inputs that were sorted before. The last pass writes the output.
//! Every other pass merges several neighbours into one run, so equal records stay in the order of
//! the input. Passes over different runs are done side by side, each by one thread: nobody looks
//! for the places where the threads of one pass would meet.

use std::sync::atomic::AtomicU64;
use std::time::Instant;

use datapipes_core::locks::Mutex;
use datapipes_core::{Pipe, Result};

use crate::engine::{Engine, Work};
use crate::input::{Input, Opened, SMALL};
use crate::long::LongLines;
use crate::memory::blocks::{BlockPool, Target};
use crate::memory::descriptors;
use crate::memory::parallel::run_parts;
use crate::merging::files::SortedFile;
use crate::merging::merge::{MergeResult, Merger, OrderCheck, crossing};
use crate::records::layout::Layout;
use crate::records::record_buffer::{RecordBuffer, SHORT_RECORD};
use crate::records::tally::Tally;
use crate::report::{MovementRole, Phase, SortReport, WaitReport};
use crate::runs::compressed::{CompressedRun, MAX_PROGRAMS};
use crate::runs::record_reader::{RecordReader, Segment};
use crate::runs::spill::{Run, Spill};
use crate::sink::Sink;
use crate::space::check_space;
use crate::waits::SortWait;

/// A sorted source of a merge.
#[derive(Debug)]
pub(crate) enum MergeInput {
    /// A run in the spill places.
    Run(Run),
    /// A run that a program compressed.
    Compressed(CompressedRun),
    /// An input that was sorted before.
    Input(Input),
}

impl MergeInput {
    /// Whether it is an input in memory.
    fn is_in_memory(&self) -> bool {
        matches!(self, MergeInput::Input(Input::Memory { .. }))
    }

    /// Bytes of its longest record; 0 if that is not known.
    fn longest(&self) -> usize {
        match self {
            MergeInput::Run(run) => run.longest,
            MergeInput::Compressed(run) => run.longest,
            MergeInput::Input(_) => 0,
        }
    }

    /// Its bytes, if they are known.
    fn len(&self) -> Result<Option<u64>> {
        match self {
            MergeInput::Run(run) => Ok(Some(run.len)),
            MergeInput::Compressed(run) => Ok(Some(run.len)),
            MergeInput::Input(input) => input.len(),
        }
    }
}

impl<L: Layout> Engine<'_, L> {
    /// Merges the runs of a sort into the output, by so many threads. Returns what was written, and
    /// what was dropped as a duplicate.
    pub(crate) fn merge_formed(
        &self,
        runs: Vec<MergeInput>,
        threads: usize,
        (blocks, lines): (&BlockPool, Option<&LongLines<'_>>),
        (sink, spill): (&Sink<'_>, &Spill<'_>),
        report: &mut SortReport,
    ) -> Result<(Tally, Tally)> {
        let started = Instant::now();
        let long = runs.iter().any(|run| run.longest() as u64 > SHORT_RECORD);
        let merger = Merger { threads, ..self.merger(blocks, lines, long, true) };
        report.merge_threads = threads as u64;
        let passes = Passes { engine: self, merger, blocks, spill };
        let outcome = passes.run(runs, sink, report);
        report.phases.push(Phase { name: "merge", seconds: started.elapsed().as_secs_f64() });
        outcome
    }

    /// Merges inputs that are already sorted.
    pub(crate) fn merge_inputs(&self, work: Work<'_>) -> Result<SortReport> {
        let started = Instant::now();
        let Work { inputs, output, spill, places, total, .. } = work;
        let sink = self.open_sink(output)?;
        check_space(&places, sink.room()?, self.space(total, true))?;
        let mut report = self.report();
        let blocks = BlockPool::new(&self.memory, 0, self.budget.block, self.budget.blocks);
        // Inputs that are not in order after all give the same bytes as with GNU sort, which
        // compares the first lines that are left. Codes would not.
        let lines = self.long_lines(&spill);
        let merger = self.merger(&blocks, lines.as_ref(), true, self.settings.in_order);
        let passes = Passes { engine: self, merger, blocks: &blocks, spill: &spill };
        let (inputs, twice) = passes.spill_overwritten_inputs(inputs, &sink)?;
        let (written, mut dropped) = passes.run(inputs, &sink, &mut report).map_err(|e| sink.explain(e))?;
        self.close_long_lines(lines, &mut report);
        dropped.join(twice);
        report.bytes = written.bytes + dropped.bytes;
        report.records = written.records + dropped.records;
        self.verify_read(report.bytes)?;
        (report.written, report.dropped) = (written.report(), dropped.report());
        report.phases.push(Phase { name: "merge", seconds: started.elapsed().as_secs_f64() });
        self.control.check()?;
        self.publish(sink, &spill, &mut report)?;
        report.spill = spill.uses();
        report.spill_left_bytes = spill.leave();
        report.movements = self.movements.take();
        self.note_memory(&mut report);
        report.waits = WaitReport::all(&self.control.progress.waits);
        report.seconds = started.elapsed().as_secs_f64();
        Ok(report)
    }

    /// Returns a merger that reads with the useful part of the memory, or with all of it if it must
    /// hold long records. Lines are matched by codes if `coded` is set.
    pub(crate) fn merger<'m>(
        &'m self,
        blocks: &'m BlockPool,
        lines: Option<&'m LongLines<'m>>,
        long: bool,
        coded: bool,
    ) -> Merger<'m, L> {
        let all = self.budget.whole();
        let useful = (self.budget.arenas_at, self.budget.arenas());
        Merger {
            layout: self.layout,
            machine: self.machine,
            memory: &self.memory,
            buffers: if long { all } else { useful },
            long: lines,
            grain: self.budget.grain,
            min_buffer: self.budget.min_buffer(),
            blocks,
            threads: self.budget.threads,
            unique: self.settings.unique,
            coded,
            control: self.control,
            movements: &self.movements,
        }
    }
}

/// Returns how many the next pass takes of `left`, more than `most`, so that the last one can take
/// all.
fn next_count(left: usize, most: usize) -> usize {
    (left - most + 1).min(most)
}

/// The passes of one job.
struct Passes<'a, L> {
    engine: &'a Engine<'a, L>,
    merger: Merger<'a, L>,
    blocks: &'a BlockPool,
    spill: &'a Spill<'a>,
}

impl<L: Layout> Passes<'_, L> {
    /// Merges everything into the output. Returns what was written, and what was dropped as a
    /// duplicate in any pass.
    fn run(&self, mut sorted: Vec<MergeInput>, sink: &Sink<'_>, report: &mut SortReport) -> Result<(Tally, Tally)> {
        let mut dropped = Tally::default();
        let mut at = 0;
        loop {
            let most = self.max_fan_in(&sorted);
            if sorted.len() <= most {
                break;
            }
            // Merge just enough neighbours that the last pass can take all that remain. Neighbours
            // keep the sort stable.
            let count = next_count(sorted.len(), most);
            if at + count > sorted.len() {
                at = 0;
            }
            let beside = self.beside(&sorted[at..], sorted.len(), most);
            let made = match self.reserve_all(&sorted[at..], &beside)? {
                Some(targets) => {
                    let all = beside.iter().sum::<usize>();
                    self.to_runs(sorted.splice(at..at + all, []), &beside, targets)?
                }
                None => {
                    let longest = sorted[at..at + count].iter().map(MergeInput::longest);
                    let count = count.min(self.merger.mergeable_count(longest));
                    vec![self.to_run(sorted.splice(at..at + count, []).collect())?]
                }
            };
            for (made, merged) in made {
                dropped.join(merged.dropped);
                report.memory_excess_bytes = report.memory_excess_bytes.max(merged.excess);
                report.merge_passes += 1;
                sorted.insert(at, made);
                at += 1;
            }
        }
        self.spill.free_kept(self.engine.control);
        self.begin_output(&sorted, sink)?;
        let merged = self.merge(sorted, sink.target())?;
        dropped.join(merged.dropped);
        report.bytes_out = merged.bytes;
        report.records_out = merged.written.records;
        report.memory_excess_bytes = report.memory_excess_bytes.max(merged.excess);
        report.merge_passes += 1;
        report.merged_by_thread = merged.parts;
        Ok((merged.written, dropped))
    }

    /// Copies inputs that the output may overwrite to the spill places. Also returns what was
    /// dropped there as a duplicate.
    fn spill_overwritten_inputs(&self, inputs: Vec<Input>, sink: &Sink<'_>) -> Result<(Vec<MergeInput>, Tally)> {
        let (mut sorted, mut dropped) = (Vec::with_capacity(inputs.len()), Tally::default());
        for input in inputs {
            sorted.push(match sink.may_overwrite(&input)? {
                true => {
                    let (made, merged) = self.to_run(vec![MergeInput::Input(input)])?;
                    dropped.join(merged.dropped);
                    made
                }
                false => MergeInput::Input(input),
            });
        }
        Ok((sorted, dropped))
    }

    /// Returns how many of these one pass can take.
    fn max_fan_in(&self, sorted: &[MergeInput]) -> usize {
        let chosen = self.engine.settings.fan_in;
        let most = if chosen >= 2 { chosen } else { usize::MAX };
        if sorted.iter().all(MergeInput::is_in_memory) {
            // They need no buffers.
            return most;
        }
        let most = most.min(self.merger.mergeable_count(sorted.iter().map(MergeInput::longest)));
        if sorted.iter().all(|s| matches!(s, MergeInput::Run(_))) {
            return most.min(self.merger.fan_in());
        }
        // Each has at most three descriptors, and can do with one.
        let most = most.min(descriptors::left());
        if chosen < 2 && sorted.iter().any(|s| matches!(s, MergeInput::Compressed(_))) {
            return most.clamp(2, MAX_PROGRAMS);
        }
        most.max(2)
    }

    /// Returns how many of the first of these runs each thread merges by itself, where as many
    /// passes are to come: none where there is one pass to do, or where records are long. `left`
    /// are all that remain, of which the last pass takes `most`.
    fn beside(&self, sorted: &[MergeInput], mut left: usize, most: usize) -> Vec<usize> {
        let (mut counts, mut at, mut bytes) = (Vec::new(), 0, 0);
        while counts.len() < self.merger.threads && left > most {
            let count = next_count(left, most);
            let Some(group) = sorted.get(at..at + count) else { break };
            let short = group.iter().map(|one| match one {
                MergeInput::Run(run) if crossing(run.longest) == 0 => Some(run.len),
                MergeInput::Run(_) | MergeInput::Compressed(_) | MergeInput::Input(_) => None,
            });
            let Some(lens) = short.sum::<Option<u64>>() else { break };
            // More room is taken at once than for one pass after the other.
            bytes += lens;
            if !counts.is_empty() && !self.spill.has_room(bytes) {
                break;
            }
            counts.push(count);
            (at, left) = (at + count, left - (count - 1));
        }
        let is_small = counts.iter().all(|count| *count <= self.merger.fan_in());
        if counts.len() < 2 || !is_small || self.spill.compressor.is_some() {
            return Vec::new();
        }
        // The last group may be small. All threads get as much to do.
        let (all, threads) = (counts.iter().sum::<usize>(), counts.len());
        (0..threads).map(|thread| (all + thread) / threads).collect()
    }

    /// Reserves a run for each group of so many, where all find room.
    fn reserve_all(&self, sorted: &[MergeInput], counts: &[usize]) -> Result<Option<Vec<Run>>> {
        let (mut made, mut at) = (Vec::with_capacity(counts.len()), 0);
        for count in counts {
            let lens = sorted[at..at + count].iter().map(MergeInput::len).collect::<Result<Option<Vec<u64>>>>()?;
            let Some(Ok(run)) = lens.map(|lens| self.spill.reserve(lens.iter().sum(), self.engine.control)) else {
                self.spill.free_now(&made, self.engine.control)?;
                return Ok(None);
            };
            made.push(run);
            at += count;
        }
        Ok((!made.is_empty()).then_some(made))
    }

    /// Merges groups of so many runs into runs that were reserved for them, side by side: each
    /// group is merged by one thread, in its share of the memory.
    fn to_runs(
        &self,
        sorted: impl Iterator<Item = MergeInput>,
        counts: &[usize],
        targets: Vec<Run>,
    ) -> Result<Vec<(MergeInput, MergeResult)>> {
        let staging = self.spill.staging()?;
        let (control, grain) = (self.engine.control, self.merger.grain);
        let mut runs = sorted.filter_map(|one| match one {
            MergeInput::Run(run) => Some(run),
            MergeInput::Compressed(_) | MergeInput::Input(_) => None,
        });
        let groups: Vec<Vec<Run>> = counts.iter().map(|count| runs.by_ref().take(*count).collect()).collect();
        let connect = |_| self.engine.machine.connect(&self.engine.memory, &staging);
        let pipes: Vec<Pipe> = (0..groups.len()).map(connect).collect::<Result<_>>()?;
        let share = self.merger.buffers.1 / groups.len() / 4096 * 4096;
        let outcomes: Vec<Mutex<Result<MergeResult>>> =
            groups.iter().map(|_| Mutex::new(Ok(MergeResult::default()))).collect();
        run_parts(&control.progress.waits, self.merger.threads, groups.len(), |part| {
            let merger = Merger { threads: 1, buffers: (self.merger.buffers.0 + part * share, share), ..self.merger };
            let target = Target::Run { pipe: &pipes[part], base: targets[part].offset, grain };
            let span = datapipes_metrics::span!(Debug, "merge_pass", [runs = groups[part].len() as u64], empty: []);
            let merged = merger.merge_runs(&staging, &groups[part], target, &control.progress.spilled);
            span.ended(merged.is_ok());
            *outcomes[part].lock() = merged;
        });
        // No write may be in flight when this returns, and errors of merges come first.
        let waits = control.progress.waits.begin(SortWait::Spill, self.engine.budget.threads);
        let drained = self.blocks.drain();
        drop(waits);
        pipes.into_iter().for_each(|pipe| self.engine.movements.keep(MovementRole::Spill, pipe));
        let merged = outcomes.into_iter().map(Mutex::into_inner).collect::<Result<Vec<_>>>()?;
        drained?;
        let made = targets.into_iter().zip(merged).map(|(reserved, merged)| self.made_run(reserved, merged, true));
        let made = made.collect::<Result<Vec<_>>>()?;
        self.spill.free(groups.iter().flatten().map(Run::extent).collect(), control)?;
        Ok(made)
    }

    /// Notes in a reserved run what was merged into it, and frees what it did not need.
    fn made_run(&self, mut made: Run, mut merged: MergeResult, cuts: bool) -> Result<(MergeInput, MergeResult)> {
        let end = made.offset + made.len;
        made.len = merged.bytes;
        (made.key_index, made.sums, made.grain) =
            (std::mem::take(&mut merged.key_index), std::mem::take(&mut merged.sums), self.merger.grain);
        made.longest = merged.longest;
        if cuts {
            self.spill.cut(&made, end, self.engine.control)?;
        }
        Ok((MergeInput::Run(made), merged))
    }

    /// Merges a group into a run in the spill places.
    fn to_run(&self, group: Vec<MergeInput>) -> Result<(MergeInput, MergeResult)> {
        if let Some(packer) = &self.spill.compressor {
            let (packing, stream) = packer.start(&self.engine.movements, self.engine.control)?;
            let merged = self.merge(group, Target::CompressedRun(&stream));
            let sum = stream.close();
            let longest = merged.as_ref().map_or(0, |merged| merged.longest);
            let mut kept = MergeResult::default();
            let written = merged.map(|merged| {
                kept = merged;
                sum
            });
            return Ok((MergeInput::Compressed(packing.finish(written, longest)?), kept));
        }
        let lens = group.iter().map(MergeInput::len).collect::<Result<Option<Vec<u64>>>>()?;
        let known = group.iter().all(|s| matches!(s, MergeInput::Run(_)));
        let room = lens.filter(|_| known).map(|lens| lens.iter().sum());
        let made = match room {
            Some(len) => self.spill.reserve(len, self.engine.control)?,
            None => self.spill.open_ended()?,
        };
        let grain = self.merger.grain;
        let freed: Vec<Run> = group.iter().filter_map(MergeInput::extent).collect();
        let pipe = self.engine.machine.connect(&self.engine.memory, &self.spill.staging()?)?;
        let outcome = self.merge(group, Target::Run { pipe: &pipe, base: made.offset, grain });
        self.engine.movements.keep(MovementRole::Spill, pipe);
        let made = self.made_run(made, outcome?, room.is_some())?;
        self.spill.free(freed, self.engine.control)?;
        Ok(made)
    }

    /// Begins the output, and reserves room for it if its length is known.
    fn begin_output(&self, sorted: &[MergeInput], sink: &Sink<'_>) -> Result<()> {
        let lens = sorted.iter().map(MergeInput::len).collect::<Result<Option<Vec<u64>>>>()?;
        match lens {
            Some(lens) if !self.engine.settings.unique => {
                // Runs have stubs in the place of these lines.
                let extra = self.merger.long.map_or(0, LongLines::extra);
                sink.begin(Some(lens.iter().sum::<u64>() + extra))
            }
            _ => sink.begin(None),
        }
    }

    /// Does one pass.
    fn merge(&self, group: Vec<MergeInput>, target: Target<'_>) -> Result<MergeResult> {
        let runs = group.len() as u64;
        let span = datapipes_metrics::span!(Debug, "merge_pass", [runs = runs], empty: []);
        let merged = self.merge_now(group, target);
        span.ended(merged.is_ok());
        merged
    }

    fn merge_now(&self, group: Vec<MergeInput>, target: Target<'_>) -> Result<MergeResult> {
        let progress = &self.engine.control.progress;
        let counter = if target.is_output() { &progress.written } else { &progress.spilled };
        let mut runs = Vec::with_capacity(group.len());
        let mut rest = Vec::new();
        for sorted in group {
            match sorted {
                MergeInput::Run(run) if rest.is_empty() => runs.push(run),
                other => rest.push(other),
            }
        }
        let merged = if runs.is_empty() && !rest.is_empty() && rest.iter().all(MergeInput::is_in_memory) {
            self.merge_memory(rest, target, counter)
        } else if rest.is_empty() {
            self.merger.merge_runs(&self.spill.staging()?, &runs, target, counter)
        } else {
            let group = runs.into_iter().map(MergeInput::Run).chain(rest).collect();
            self.merge_mixed(group, target, counter)
        };
        // The merge's own error comes first, but no write may be in flight when this returns.
        let waits = self.engine.control.progress.waits.begin(target.wait(), self.engine.budget.threads);
        let drained = self.blocks.drain();
        drop(waits);
        let merged = merged?;
        drained.map(|()| merged)
    }

    /// Does one pass over records that are in memory, on this thread. Whether they are in order is
    /// checked, so lines may be matched by their codes.
    fn merge_memory(&self, group: Vec<MergeInput>, target: Target<'_>, counter: &AtomicU64) -> Result<MergeResult> {
        let memory = &self.engine.memory;
        let open = |sorted: &MergeInput| match sorted {
            MergeInput::Input(Input::Memory { name, memory: records }) => {
                Some(RecordReader::of_memory(self.engine.layout, name, records, memory))
            }
            MergeInput::Input(_) | MergeInput::Run(_) | MergeInput::Compressed(_) => None,
        };
        let sources = group.iter().filter_map(open).collect::<Result<Vec<_>>>()?;
        let (last, check) = (RecordBuffer::new(0, 0), OrderCheck::default());
        self.merger.merge_sources(sources, last, target, counter, Some(&check))
    }

    /// Does one pass over inputs, possibly with runs among them, on this thread.
    fn merge_mixed(&self, group: Vec<MergeInput>, target: Target<'_>, counter: &AtomicU64) -> Result<MergeResult> {
        let (layout, memory) = (self.engine.layout, &self.engine.memory);
        let pipe = match group.iter().any(|s| matches!(s, MergeInput::Run(_))) {
            true => Some(self.engine.machine.connect(&self.spill.staging()?, memory)?),
            false => None,
        };
        // Files may be merged on all cores. Then they are all read by pipes.
        let total = group.iter().map(|s| match s {
            MergeInput::Input(input) => input.len(),
            MergeInput::Run(_) | MergeInput::Compressed(_) => Ok(None),
        });
        let known = total.collect::<Result<Option<Vec<u64>>>>()?;
        let small = if known.is_some_and(|lens| self.merger.may_divide(lens.iter().sum(), target)) { 1 } else { SMALL };
        let (buffers, last) = self.merger.buffers_of_inputs(group.len())?;
        let (mut runs, mut packed, mut inputs) = (Vec::new(), Vec::new(), Vec::new());
        // This thread opens them alone, and a named pipe waits for its writer.
        let threads = self.engine.budget.threads.saturating_sub(1);
        let others = self.engine.control.progress.waits.begin(SortWait::Idle, threads);
        for (rank, sorted) in group.into_iter().enumerate() {
            match sorted {
                MergeInput::Run(run) => runs.push((rank, run)),
                MergeInput::Compressed(run) => packed.push((rank, run)),
                MergeInput::Input(input) => {
                    let by = (small, SortWait::Runs);
                    inputs.push((rank, Opened::with(input, self.engine.machine, memory, by, self.engine.control)?));
                }
            }
        }
        drop(others);
        if small == 1
            && let Some(files) = SortedFile::all(&mut inputs)
        {
            let merged = self.merger.merge_files(&files, target, counter)?;
            match merged {
                Some(merged) => {
                    files.into_iter().for_each(|f| self.engine.movements.keep(MovementRole::Merge, *f.pipe));
                    return Ok(merged);
                }
                None => inputs.extend(files.into_iter().map(SortedFile::into_opened).enumerate()),
            }
        }
        let mut sources = Vec::with_capacity(buffers.len());
        for (rank, run) in &runs {
            let Some(pipe) = &pipe else { continue };
            let segment = Segment { from: 0, to: run.len };
            sources.push((*rank, RecordReader::of_run(layout, pipe, memory, buffers[*rank], run, segment)?));
        }
        for (rank, run) in packed {
            let Some(packer) = &self.spill.compressor else { continue };
            let run = packer.open(run, self.engine.control)?;
            sources.push((rank, RecordReader::of_packed(layout, run, memory, buffers[rank], &self.engine.movements)));
        }
        for (rank, opened) in inputs {
            let source = match opened {
                Opened::Place { pipe, from, to, name } => {
                    let segment = Segment { from, to };
                    RecordReader::of_file(layout, pipe, &name, memory, buffers[rank], segment, &self.engine.movements)?
                }
                Opened::Stream(stream) => {
                    RecordReader::of_stream(layout, stream, memory, buffers[rank], &self.engine.movements)
                }
            };
            sources.push((rank, source.taking_long(self.merger.long)));
        }
        sources.sort_by_key(|(rank, _)| *rank);
        let control = self.engine.control;
        let sources = sources.into_iter().map(|(_, source)| source.controlled(control)).collect();
        let check = OrderCheck::default();
        self.merger.merge_sources(sources, last, target, counter, self.engine.settings.in_order.then_some(&check))
    }
}

impl MergeInput {
    /// Returns the space of a run, which is freed after the merge.
    fn extent(&self) -> Option<Run> {
        match self {
            MergeInput::Run(run) => Some(run.extent()),
            MergeInput::Compressed(_) | MergeInput::Input(_) => None,
        }
    }
}
