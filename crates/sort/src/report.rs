//! The report of a sort: the bytes it moved, and by which primitives.

use std::fmt;

use datapipes_core::locks::Mutex;
use datapipes_core::{Counters, Pipe, PlaceUse, StagePlace};
use datapipes_metrics::{ByteCount, ByteRate, Label, Sample, vocabulary};
use serde::Serialize;

use crate::records::tally::RecordTally;
use crate::waits::{SortWait, SortWaits};

/// The purpose of a movement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MovementRole {
    /// Bytes read from the input into memory.
    Input,
    /// Sorted runs written from memory to a spill place.
    Spill,
    /// Runs read from a spill place into memory.
    Merge,
    /// Bytes written from memory to the output.
    Output,
}

impl Movement {
    /// Whether another program or a terminal is at its other end, for which the sort has to wait.
    pub fn is_of_another_program(&self) -> bool {
        self.is_stream_of(StreamEnd::Other)
    }

    /// Whether the program that compresses runs is at its other end
    /// ([`compress_program`](crate::SortJob::compress_program)).
    pub fn is_of_compress_program(&self) -> bool {
        self.is_stream_of(StreamEnd::CompressProgram)
    }

    fn is_stream_of(&self, end: StreamEnd) -> bool {
        let place = self.between.strip_suffix(" -> dram").or_else(|| self.between.strip_prefix("dram -> "));
        matches!(self.primitive.as_str(), "read" | "write") && place == Some(end.name())
    }
}

/// What is at the other end of a descriptor that is read or written in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamEnd {
    File,
    /// Another program, or a terminal.
    Other,
    CompressProgram,
}

impl StreamEnd {
    /// Of a file, or of whoever is waited for.
    pub(crate) fn of(waits_for_others: bool) -> StreamEnd {
        if waits_for_others { StreamEnd::Other } else { StreamEnd::File }
    }

    const fn name(self) -> &'static str {
        match self {
            StreamEnd::File => "file",
            StreamEnd::Other => "stream",
            StreamEnd::CompressProgram => "compress program",
        }
    }
}

impl MovementRole {
    /// Its word in reports and in the label `pipe` of samples.
    pub const fn as_str(self) -> &'static str {
        match self {
            MovementRole::Input => "input",
            MovementRole::Spill => "spill",
            MovementRole::Merge => "merge",
            MovementRole::Output => "output",
        }
    }
}

/// The movements of one role by one primitive.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Movement {
    /// The purpose of these transfers.
    pub role: MovementRole,
    /// The source and the target, for people.
    pub between: String,
    /// The primitive, or `read`/`write` for streams.
    pub primitive: String,
    /// The number of pipes that shared the work.
    pub pipes: u64,
    /// The counters of these pipes.
    pub counters: Counters,
}

/// The waits for one thing.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct WaitReport {
    /// What was waited for.
    pub what: SortWait,
    /// The seconds that threads waited, added up over the threads.
    pub seconds: f64,
}

impl WaitReport {
    pub(crate) fn all(waits: &SortWaits) -> Vec<WaitReport> {
        let all = SortWait::ALL.into_iter().map(|what| WaitReport { what, seconds: waits.seconds(what) });
        all.filter(|wait| wait.seconds > 0.0).collect()
    }
}

/// A phase of the sort.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Phase {
    /// The name of the phase.
    pub name: &'static str,
    /// The time of the phase, in seconds.
    pub seconds: f64,
}

/// How the output got its name.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct OutputReport {
    /// `new`: the file did not exist before. `replaced`: the file took the place of another one,
    /// with its owner and permissions. `in-place`: the bytes were written into the existing file.
    /// `stream`: the bytes were written in order to something that is not a regular file. `memory`:
    /// they were moved to memory.
    /// `published`: a place, such as an object in a bucket, appeared as a whole.
    pub way: &'static str,
    /// The reason why it was written in place.
    pub why: Option<String>,
    /// Whether it is a file that was synced, so that a power failure leaves it as it is.
    pub synced: bool,
    /// Bytes of the replaced file, if it was handed to [`SpillFiles`](crate::SpillFiles), which
    /// frees them after the sort has returned.
    pub left_bytes: u64,
}

impl OutputReport {
    /// What is said of an output that is no file.
    pub(crate) fn by(way: &'static str) -> OutputReport {
        OutputReport { way, ..OutputReport::default() }
    }
}

/// The method of a sort.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct MethodReport {
    /// `memory`: the input was sorted in memory. `distribution`: records went to buckets, and each
    /// bucket was sorted once. `merge`: sorted runs were merged. `places`: long records went to the
    /// spill places, and were written in the order of their keys.
    pub name: &'static str,
    /// The reason.
    pub why: String,
    /// The number of buckets of a distribution.
    pub buckets: u64,
    /// The number of buckets that did not fit their share of the memory, and were merged.
    pub merged_buckets: u64,
}

impl MethodReport {
    pub(crate) fn new(name: &'static str, why: impl Into<String>) -> MethodReport {
        MethodReport { name, why: why.into(), buckets: 0, merged_buckets: 0 }
    }
}

impl fmt::Display for MethodReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, because {}", self.name, self.why)?;
        if self.buckets > 0 {
            write!(f, " ({} buckets, {} of them too large and merged)", self.buckets, self.merged_buckets)?;
        }
        Ok(())
    }
}

/// The space that a sort needs, checked before it starts.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct SpacePlan {
    /// Bytes of input, if that is known.
    pub input_bytes: Option<u64>,
    /// The most bytes of memory that the sort will use.
    pub memory_bytes: u64,
    /// Bytes of spill space needed: 0 if the input fits the memory, `None` if that is not known.
    pub spill_bytes: Option<u64>,
    /// The spill places with the bytes that are free there (a folder) or that they hold (a limit).
    pub places: Vec<(String, Option<u64>)>,
}

impl fmt::Display for SpacePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.input_bytes, self.spill_bytes) {
            (Some(input), Some(0)) => write!(f, "{input} bytes of input fit {} bytes of memory", self.memory_bytes),
            (Some(input), Some(spill)) => {
                write!(f, "{input} bytes of input, {} of memory, {spill} of spill space in", self.memory_bytes)?;
                for (place, free) in &self.places {
                    match free {
                        Some(free) => write!(f, " {place} ({free} free)")?,
                        None => write!(f, " {place}")?,
                    }
                }
                Ok(())
            }
            _ => write!(f, "input of unknown length, {} bytes of memory, spill space as needed", self.memory_bytes),
        }
    }
}

/// The report of a finished sort.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct SortReport {
    /// The plan made before the sort started.
    pub plan: SpacePlan,
    /// The method, and why it was chosen.
    pub method: MethodReport,
    /// Records read.
    pub records: u64,
    /// Records written (fewer where only unique keys are kept).
    pub records_out: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Bytes written to the output.
    pub bytes_out: u64,
    /// The number of spilled runs; 0 if the input fit the memory.
    pub runs: u64,
    /// Merge passes over spilled runs.
    pub merge_passes: u64,
    /// Bytes that each thread of the last merge wrote, in the order of the keys.
    pub merged_by_thread: Vec<u64>,
    /// The memory budget, in bytes.
    pub memory_bytes: u64,
    /// The memory that was asked for, in bytes. It is more than the budget if the system refused to
    /// map so much.
    pub memory_asked_bytes: u64,
    /// Bytes of the memory for records that were touched, by the kernel's account at the end.
    pub memory_touched_bytes: u64,
    /// Those of them in huge pages: all, unless the kernel had none or was told to give none.
    pub memory_huge_bytes: u64,
    /// Bytes that a merge took beyond the budget, because two long records that had to be compared
    /// did not fit it.
    pub memory_excess_bytes: u64,
    /// Lines that were set aside in the spill places, and read again when they were written,
    /// because each has more bytes than `long_line_limit`.
    pub long_lines: u64,
    /// The bytes of these lines.
    pub long_line_bytes: u64,
    /// The most bytes of a line that is sorted as it is; 0 if none could be set aside.
    pub long_line_limit: u64,
    /// Threads that sorted and merged, at most at the same time.
    pub threads: u64,
    /// Threads that could merge the runs; 0 if nothing was merged.
    pub merge_threads: u64,
    /// The reason why there were no more threads, if it was measured how many are fed.
    pub threads_why: Option<String>,
    /// How long its threads waited, by what they waited for, where they did.
    pub waits: Vec<WaitReport>,
    /// The sum of the hashes of all records that were read, where they were compared with those
    /// written and dropped: it is the same for both, or the sort would have failed.
    pub record_sum: Option<String>,
    /// The records that were written.
    pub written: RecordTally,
    /// The records that were dropped as duplicates.
    pub dropped: RecordTally,
    /// The phases, in order.
    pub phases: Vec<Phase>,
    /// The movements, by role and primitive.
    pub movements: Vec<Movement>,
    /// How the output was published.
    pub output: OutputReport,
    /// The spill places and the bytes that were written there.
    pub spill: Vec<SpillUse>,
    /// The compression of runs that were formed from records; `None` if there were none.
    pub compression: Option<CompressionReport>,
    /// Bytes of runs whose files were handed to [`SpillFiles`](crate::SpillFiles), which frees them
    /// after the sort has returned.
    pub spill_left_bytes: u64,
    /// The whole time, in seconds.
    pub seconds: f64,
}

impl SortReport {
    /// Returns it as samples. The movements are pipes of the product `sort`, by role and primitive;
    /// places, which are paths of the user, are not named.
    pub fn samples(&self) -> Vec<Sample> {
        let of = |measurement, n: u64, way| Sample::new(measurement, n).label(Label::Direction, way);
        let mut samples = vec![
            of(&vocabulary::SORT_RECORDS, self.records, "in"),
            of(&vocabulary::SORT_RECORDS, self.records_out, "out"),
            of(&vocabulary::SORT_BYTES, self.bytes, "in"),
            of(&vocabulary::SORT_BYTES, self.bytes_out, "out"),
            Sample::new(&vocabulary::SORT_TIME, self.seconds),
            Sample::new(&vocabulary::SORT_RUNS, self.runs),
            Sample::new(&vocabulary::SORT_PASSES, self.merge_passes),
            Sample::new(&vocabulary::SORT_MEMORY, self.memory_bytes),
            Sample::new(&vocabulary::SORT_THREADS, self.threads),
            Sample::new(&vocabulary::SORT_SPILLED, self.spill.iter().map(|place| place.bytes).sum::<u64>()),
        ];
        samples.extend(
            self.phases
                .iter()
                .map(|phase| Sample::new(&vocabulary::SORT_PHASES, phase.seconds).label(Label::Phase, phase.name)),
        );
        // Movements differ by their places, too: what has the same labels is one.
        let mut moved: Vec<(MovementRole, &str, Counters)> = Vec::new();
        for m in &self.movements {
            match moved.iter_mut().find(|(role, primitive, _)| (*role, *primitive) == (m.role, &m.primitive)) {
                Some((.., counters)) => counters.add(&m.counters),
                None => moved.push((m.role, &m.primitive, m.counters.clone())),
            }
        }
        samples.extend(moved.iter().flat_map(|(role, primitive, counters)| {
            counters.samples(&[(Label::Product, "sort"), (Label::Pipe, role.as_str()), (Label::Primitive, primitive)])
        }));
        samples
    }
}

/// The compression of runs.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct CompressionReport {
    /// Bytes of runs that were written to the spill places, before compression.
    pub bytes: u64,
    /// Bytes that they took there.
    pub stored_bytes: u64,
    /// Why they were compressed, or not.
    pub why: String,
}

/// The use of one spill place.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct SpillUse {
    /// The place, as it was named.
    pub place: String,
    /// The tier of the place. Tier 0 is used first; places of one tier take turns.
    pub tier: usize,
    /// The reason why the place is in that tier.
    pub order: String,
    /// Bytes that were given room there: of runs, and of the measurement of the place.
    pub bytes: u64,
    /// Bytes of them that were freed before the end of the sort, or that were written to another
    /// place in the end.
    pub freed: u64,
    /// Whether the place was needed, and why the sort moved on to the next.
    pub why: String,
}

impl From<PlaceUse> for SpillUse {
    fn from(used: PlaceUse) -> SpillUse {
        let PlaceUse { place, tier, reason, placed, freed, left, .. } = used;
        let why = match left {
            Some(left) => format!("moved on: {left}"),
            None if placed > 0 => "used".to_owned(),
            None => "not needed".to_owned(),
        };
        SpillUse { place, tier, order: reason, bytes: placed, freed, why }
    }
}

impl SpillUse {
    pub(crate) fn not_needed(place: &StagePlace) -> SpillUse {
        let (tier, order) = (place.tier(), format!("number {} in the order given", place.tier() + 1));
        SpillUse { place: place.name().to_owned(), tier, order, bytes: 0, freed: 0, why: "not needed".into() }
    }
}

/// Collects the counters of the pipes of a job.
#[derive(Debug, Default)]
pub(crate) struct Movements(Mutex<Vec<Movement>>);

impl Movements {
    /// Adds the counters of a pipe that has done its work.
    pub(crate) fn keep(&self, role: MovementRole, pipe: Pipe) {
        self.note(role, &pipe);
    }

    fn note(&self, role: MovementRole, pipe: &Pipe) {
        let report = pipe.report();
        for hop in &report.hops {
            // Some places of a staging may not have been used.
            if !report.places.is_empty() && hop.counters.transfers + hop.counters.failed == 0 {
                continue;
            }
            let between = match role {
                MovementRole::Input | MovementRole::Merge => format!("{} -> dram", place(&hop.from)),
                MovementRole::Spill | MovementRole::Output => format!("dram -> {}", place(&hop.to)),
            };
            self.add(role, between, hop.primitive.to_owned(), &hop.counters);
        }
    }

    /// Adds bytes that went in order through a descriptor.
    pub(crate) fn add_stream(&self, role: MovementRole, end: StreamEnd, bytes: u64) {
        let (between, primitive) = match role {
            MovementRole::Input | MovementRole::Merge => (format!("{} -> dram", end.name()), "read"),
            MovementRole::Spill | MovementRole::Output => (format!("dram -> {}", end.name()), "write"),
        };
        let counters = Counters::default().bytes(bytes).cached_bytes(0).transfers(1).system_calls(1);
        self.add(role, between, primitive.to_owned(), &counters);
    }

    fn add(&self, role: MovementRole, between: String, primitive: String, counters: &Counters) {
        let mut all = self.0.lock();
        let same = |m: &&mut Movement| m.role == role && m.between == between && m.primitive == primitive;
        if let Some(movement) = all.iter_mut().find(same) {
            movement.pipes += 1;
            movement.counters.add(counters);
        } else {
            all.push(Movement { role, between, primitive, pipes: 1, counters: counters.clone() });
        }
    }

    pub(crate) fn take(&self) -> Vec<Movement> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// The name of a place without the part that changes from run to run.
fn place(name: &str) -> &str {
    name.strip_prefix("ssd:").unwrap_or(name)
}

impl fmt::Display for SortReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} records, {} in {:.2} s ({}), {} runs, {} merge passes, {} MiB of memory, {} threads",
            self.records,
            ByteCount(self.bytes),
            self.seconds,
            ByteRate::of(self.bytes, self.seconds.max(1e-9)),
            self.runs,
            self.merge_passes,
            self.memory_bytes >> 20,
            self.threads
        )?;
        if let Some(why) = &self.threads_why {
            let all = if self.merge_threads > 0 { format!("{} merged: ", self.merge_threads) } else { String::new() };
            writeln!(f, "  threads  {all}{why}")?;
        }
        if self.memory_asked_bytes > self.memory_bytes {
            let asked = self.memory_asked_bytes >> 20;
            writeln!(f, "  memory   {asked} MiB were asked for, and the system refused to map that much")?;
        }
        if self.memory_touched_bytes > 0 {
            let (touched, huge) = (self.memory_touched_bytes >> 20, self.memory_huge_bytes >> 20);
            writeln!(f, "  memory   {touched} MiB for records were touched, {huge} MiB of them in huge pages")?;
        }
        if self.memory_excess_bytes > 0 {
            let excess = self.memory_excess_bytes;
            writeln!(f, "  memory   {excess} bytes more, for records that are too long to be compared within it")?;
        }
        if self.long_lines > 0 {
            let (lines, bytes, limit) = (self.long_lines, ByteCount(self.long_line_bytes), self.long_line_limit);
            writeln!(f, "  long    {lines} lines, {bytes}, were set aside: each has more than {limit} bytes")?;
        }
        // A merge has no plan.
        if self.plan.memory_bytes > 0 {
            writeln!(f, "  planned  {}", self.plan)?;
        }
        writeln!(f, "  method   {}", self.method)?;
        for phase in &self.phases {
            writeln!(f, "  {:<8} {:.2} s", phase.name, phase.seconds)?;
        }
        for m in &self.movements {
            let c = &m.counters;
            writeln!(
                f,
                "  {:<7} {:<14} {}, {} pipes, {} requests, past the page cache {}, registered {} of {}, \
                 bounces {}, finished short {}  {}",
                format!("{:?}", m.role).to_lowercase(),
                m.primitive,
                ByteCount(c.bytes),
                m.pipes,
                c.requests,
                ByteCount(c.direct_bytes),
                c.fixed_buffer_hits,
                c.fixed_buffer_hits + c.fixed_buffer_misses,
                c.bounces,
                c.short_finished,
                m.between
            )?;
        }
        if let Some(why) = &self.output.why {
            writeln!(f, "  output  written in place, because {why}")?;
        }
        if matches!(self.output.way, "new" | "replaced" | "in-place") && !self.output.synced {
            writeln!(f, "  output  not synced, as asked for: a power failure soon after this may take bytes of it")?;
        }
        if self.output.left_bytes > 0 {
            let left = ByteCount(self.output.left_bytes);
            writeln!(
                f,
                "  output  {left} of the file that it replaced are freed after the end of the sort, by the last that has it open"
            )?;
        }
        for s in &self.spill {
            writeln!(f, "  spill   {} ({}): {}, {}", s.place, s.order, ByteCount(s.bytes), s.why)?;
        }
        if let Some(CompressionReport { bytes, stored_bytes, why }) = &self.compression {
            let compressed = if stored_bytes < bytes { "compressed" } else { "not compressed" };
            writeln!(f, "  runs    {compressed}, {} in {}: {why}", ByteCount(*bytes), ByteCount(*stored_bytes))?;
        }
        if self.spill_left_bytes > 0 {
            let left = ByteCount(self.spill_left_bytes);
            writeln!(f, "  spill   {left} are freed in the background, after the end of the sort")?;
        }
        Ok(())
    }
}
