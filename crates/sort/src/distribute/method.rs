//! Whether a job is distributed or merged, and why.

use std::time::Instant;

use datapipes_core::Result;

use super::plan::{Facts, MIN_BLOCK, Shape};
use super::splitters::{greatest_share, sample, splitters};
use super::stripes::{Source, open_all, refuse_unseekable};
use crate::engine::Engine;
use crate::input::Input;
use crate::memory::blocks::BlockPool;
use crate::records::layout::Layout;
use crate::records::tally::Tally;
use crate::report::{MethodReport, Phase, SortReport};
use crate::runs::spill::Spill;
use crate::sink::Sink;
use crate::sort_method::SortMethod;

/// Why a job that leaves the choice open is merged.
const COSTS_THE_DISK_MORE: &str = "to distribute records takes less of the processor, but more time of the disk";

/// Bytes of a block that a job needs which leaves the choice open. Smaller ones cost a disk more
/// time than merging costs the processor.
const GOOD_BLOCK: usize = 128 << 10;

/// The outcome of trying to distribute.
pub(crate) enum Attempt {
    /// The output is written.
    Done { read: Tally, written: Tally, dropped: Tally },
    /// The inputs are to be merged; nothing was read of them.
    Merge(Vec<Input>),
}

/// A distribution that is possible.
struct Distribution {
    record: usize,
    sources: Vec<Source>,
    shape: Shape,
    splitters: Vec<u64>,
}

impl<L: Layout> Engine<'_, L> {
    /// Sorts the inputs by distribution on at most so many threads, if the job asks for it and it
    /// is possible.
    pub(crate) fn try_distribution(
        &self,
        inputs: Vec<Input>,
        threads: usize,
        blocks: &BlockPool,
        (sink, spill): (&Sink<'_>, &Spill<'_>),
        report: &mut SortReport,
    ) -> Result<Attempt> {
        if self.fits {
            report.method = MethodReport::new("memory", "the input fits");
            return Ok(Attempt::Merge(inputs));
        }
        let shape = match self.shape(&inputs, threads, spill, report) {
            Ok(shape) => shape,
            Err(why) => {
                report.method = MethodReport::new("merge", why);
                return Ok(Attempt::Merge(inputs));
            }
        };
        let started = Instant::now();
        let Distribution { record, sources, shape, splitters } = match self.prepare(inputs, shape)? {
            Ok(distribution) => distribution,
            Err((inputs, why)) => {
                report.method = MethodReport::new("merge", why);
                return Ok(Attempt::Merge(inputs));
            }
        };
        report.method = MethodReport::new("distribution", "each record is sorted once");
        report.method.buckets = splitters.len() as u64 + 1;
        report.threads = shape.threads.max(shape.lanes) as u64;
        let (buckets, read) = self.distribute(record, &shape, &sources, &splitters, spill)?;
        report.phases.push(Phase { name: "distribute", seconds: started.elapsed().as_secs_f64() });
        let started = Instant::now();
        let (written, dropped) = self.write_buckets(record, &shape, &buckets, blocks, (sink, spill), report)?;
        report.phases.push(Phase { name: "buckets", seconds: started.elapsed().as_secs_f64() });
        Ok(Attempt::Done { read, written, dropped })
    }

    /// How this job would be distributed, or why it is not.
    fn shape(&self, inputs: &[Input], threads: usize, spill: &Spill<'_>, report: &SortReport) -> Result<Shape, String> {
        let Some(record) = self.layout.fixed_len() else {
            return Err("records differ in length".to_owned());
        };
        match self.settings.method {
            SortMethod::Merge => return Err("the job asks for it".to_owned()),
            SortMethod::Auto if self.layout.numbers().is_none() => return Err(COSTS_THE_DISK_MORE.to_owned()),
            SortMethod::Auto | SortMethod::Distribution => {}
        }
        if spill.compressor.is_some() {
            return Err("a program compresses the runs".to_owned());
        }
        let Some(total) = self.total else { return Err("the length of the input is not known".to_owned()) };
        refuse_unseekable(inputs, record)?;
        let (at, len) = self.budget.whole();
        let facts = Facts {
            total,
            record,
            numbers: self.layout.numbers().is_some(),
            memory: len.min(self.budget.pool - at),
            threads,
            fan_in: self.budget.arenas() / (2 * self.budget.min_buffer()),
            l2: usize::try_from(self.machine.l2_size()).unwrap_or(0).max(64 << 10),
            least_block: if self.settings.method == SortMethod::Auto { GOOD_BLOCK } else { MIN_BLOCK },
        };
        let shape = Shape::choose(facts)?;
        let free: Option<u64> = report.plan.places.iter().map(|(_, free)| *free).sum();
        if free.is_some_and(|free| free < shape.spill_bytes(total) + total) {
            return Err("the places have too little room for buckets that grow in extents".to_owned());
        }
        Ok(shape)
    }

    /// Opens the inputs and samples them. Gives them back if they cannot be distributed after all.
    fn prepare(&self, inputs: Vec<Input>, shape: Shape) -> Result<Result<Distribution, (Vec<Input>, String)>> {
        let record = self.layout.fixed_len().unwrap_or(1);
        let sources = match open_all(inputs, record)? {
            Ok(sources) => sources,
            Err(inputs) => return Ok(Err((inputs, "an input is not what it seemed to be".to_owned()))),
        };
        let total: u64 = sources.iter().map(|s| s.len).sum();
        let memory = (&self.memory, self.budget.arenas_at);
        let watch = (self.control, &self.movements);
        let sample = sample(self.layout, record, self.machine, memory, &sources, &shape, watch)?;
        let share = greatest_share(&sample);
        if !self.layout.prefix_decides() && share * total as f64 > shape.portion as f64 {
            let why = format!("{:.0}% of the keys begin alike", 100.0 * share);
            let inputs = sources.into_iter().map(|s| Input::File { ssd: s.ssd, from: s.from }).collect();
            return Ok(Err((inputs, why)));
        }
        let splitters = splitters(&sample, shape.buckets);
        Ok(Ok(Distribution { record, sources, shape, splitters }))
    }
}
