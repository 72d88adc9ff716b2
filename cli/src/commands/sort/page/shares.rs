//! What the time of a sort went into, by what its threads did, in words.

use std::path::Path;

use datapipes_sort::{Movement, MovementRole, SortReport, SortWait};

use super::course::{column, of_workers, phases};
use crate::report::bottleneck::{QUOTA, Share, percent};
use crate::report::held_up::{QUEUED, STOPPED, of_queue};
use crate::report::recorder::Recording;
use crate::system::files::is_in_memory;

/// Looks within so many seconds are taken together.
const TOGETHER_S: f64 = 0.5;

/// What the time between two times went into: at each look, the time of threads that had a part in
/// the work then. So a second of one thread that merges alone counts as much as one in which all
/// sort.
pub(super) fn shares(report: &SortReport, recording: &Recording, from: f64, to: f64) -> Vec<Share> {
    let mut times = vec![from];
    for look in recording.course.seconds().iter().copied().filter(|look| *look < to) {
        // Several looks together, so that clocks that are read a little apart cancel out.
        if look - times[times.len() - 1] >= TOGETHER_S && to - look >= TOGETHER_S {
            times.push(look);
        }
    }
    times.push(to);
    let mut parts = ThreadParts::default();
    for between in times.windows(2) {
        let weight = (between[1] - between[0]) / (to - from).max(1e-9);
        parts.add(&ThreadSeconds::read(report, recording, between[0], between[1]).parts(), weight);
    }
    let reader = Reader::new(report, recording, from, to);
    let waits = parts.waits.into_iter().map(|(what, part)| Share::new(bottleneck(report, what, reader), part));
    let mut shares: Vec<Share> = waits.collect();
    shares.push(Share::new("the processor: threads sorted, merged and copied", parts.processor));
    shares.push(Share::new(QUEUED, parts.queued));
    shares.push(Share::new(QUOTA, parts.throttled));
    shares.push(Share::new(STOPPED, parts.stopped));
    shares.push(Share::new("waits that are not measured", parts.unknown));
    shares.retain(|share| share.part > 0.0005);
    joined(shares)
}

/// The same with one share for each name.
fn joined(shares: Vec<Share>) -> Vec<Share> {
    let mut joined: Vec<Share> = Vec::new();
    for share in shares {
        match joined.iter_mut().find(|other| other.what == share.what) {
            Some(other) => other.part += share.part,
            None => joined.push(share),
        }
    }
    joined
}

/// Seconds by what threads did, added up over the threads.
struct ThreadSeconds {
    /// The time of all threads that the sort has.
    all: f64,
    /// The part of it in which threads had no part in the work, because others did it alone.
    idle: f64,
    waits: Vec<(SortWait, f64)>,
    /// The waits for copies from and to files in memory. The kernel's threads make them, on cores
    /// or in the queues for them.
    copies: Vec<SortWait>,
    /// On cores.
    processor: f64,
    /// In the kernel's queues for cores.
    queued: f64,
    /// Kept off the cores by a quota.
    throttled: f64,
    /// The part of the time, from 0 to 1, in which the process was stopped. Threads without a part
    /// in the work were stopped as well.
    stopped: f64,
}

/// The same as parts of the time in which threads had a part in the work.
#[derive(Default)]
struct ThreadParts {
    waits: Vec<(SortWait, f64)>,
    processor: f64,
    queued: f64,
    throttled: f64,
    stopped: f64,
    unknown: f64,
}

impl ThreadParts {
    /// Adds parts of a time that is so much of the whole.
    fn add(&mut self, other: &ThreadParts, weight: f64) {
        self.waits.resize_with(other.waits.len(), || (SortWait::Idle, 0.0));
        for ((what, sum), (other_what, part)) in self.waits.iter_mut().zip(&other.waits) {
            *what = *other_what;
            *sum += part * weight;
        }
        let own = [&mut self.processor, &mut self.queued, &mut self.throttled, &mut self.stopped, &mut self.unknown];
        let others = [other.processor, other.queued, other.throttled, other.stopped, other.unknown];
        own.into_iter().zip(others).for_each(|(sum, part)| *sum += part * weight);
    }
}

impl ThreadSeconds {
    /// What the recording says of the time between two points.
    fn read(report: &SortReport, recording: &Recording, from: f64, to: f64) -> ThreadSeconds {
        let waited = |what: SortWait| recording.grew(column(what), from, to);
        let seconds = (to - from).max(1e-9);
        let counted = [recording.queued(), recording.throttled()].map(|column| recording.grew(column, from, to));
        let [throttled, queued] = of_queue(counted[0], counted[1], seconds);
        ThreadSeconds {
            all: seconds * report.threads.max(1) as f64,
            idle: waited(SortWait::Idle),
            waits: of_workers().filter(|what| *what != SortWait::Idle).map(|what| (what, waited(what))).collect(),
            copies: of_workers().filter(|what| is_copy(report, *what)).collect(),
            processor: recording.grew(recording.cpu(), from, to),
            queued,
            throttled,
            stopped: (recording.grew(recording.stopped(), from, to) / seconds).clamp(0.0, 1.0),
        }
    }

    /// What is said first counts first: the clocks are read one after the other, and a thread that
    /// is woken from a wait waits for its core as well, so together they say a little too much.
    fn parts(&self) -> ThreadParts {
        let whole = (self.all - self.idle).max(1e-9);
        let mut left = 1.0;
        let mut part = |seconds: f64| {
            let part = (seconds / whole).clamp(0.0, left);
            left -= part;
            part
        };
        // The clocks of waits run on while the process is stopped.
        let stopped_seconds = self.stopped * whole;
        let stopped = part(stopped_seconds);
        let known = stopped_seconds + self.processor + self.queued + self.throttled;
        let all_waits: f64 = self.waits.iter().map(|(_, seconds)| seconds).sum();
        let scale = match self.stopped > 0.0 && all_waits > 0.0 {
            true => ((whole - known) / all_waits).clamp(0.0, 1.0),
            false => 1.0,
        };
        let is_copy = |wait: &&(SortWait, f64)| self.copies.contains(&wait.0);
        let (copies, others): (Vec<_>, Vec<_>) = self.waits.iter().partition(is_copy);
        let mut waits: Vec<_> = others.iter().map(|(what, seconds)| (*what, part(*seconds * scale))).collect();
        let [processor, queued, throttled] = [self.processor, self.queued, self.throttled].map(&mut part);
        waits.extend(copies.iter().map(|(what, seconds)| (*what, part(*seconds * scale))));
        ThreadParts { waits, processor, queued, throttled, stopped, unknown: left }
    }
}

/// The same with all writes of the disk as one share, and all its reads: they are one disk, as far
/// as is known.
pub(super) fn grouped(shares: &[Share]) -> Vec<Share> {
    let mut grouped = Vec::new();
    let mut rest = shares.to_vec();
    for of_disk in ["the disk's writes of ", "the disk's reads of "] {
        let (same, others): (Vec<Share>, Vec<Share>) = rest.into_iter().partition(|s| s.what.starts_with(of_disk));
        rest = others;
        if same.len() < 2 {
            rest.extend(same);
            continue;
        }
        let whole: f64 = same.iter().map(|share| share.part).sum();
        let parts: Vec<String> = same
            .iter()
            .map(|share| format!("of {} {}", share.what.trim_start_matches(of_disk), percent(share.part)))
            .collect();
        grouped.push(Share::new(format!("{} ({})", of_disk.trim_end_matches(" of "), parts.join(", ")), whole));
    }
    grouped.extend(rest);
    grouped
}

/// What the reading thread mostly does while there is an input to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    WaitsForInput,
    WaitsForMemory,
    IsThrottled,
    Works,
}

impl Reader {
    /// Looks at that part of a time in which the input was read.
    fn new(report: &SortReport, recording: &Recording, from: f64, to: f64) -> Reader {
        let phases = phases(report);
        let reading = phases.iter().find(|phase| matches!(phase.name, "runs" | "sort"));
        let (begin, end) = reading.map_or((from, to), |phase| (phase.from.max(from), phase.to.min(to)));
        let waited = |what| recording.grew(column(what), begin, end);
        let throttled = recording.grew(recording.throttled(), begin, end);
        Reader::of([waited(SortWait::Input), waited(SortWait::Memory)], throttled, end - begin)
    }

    fn of([input, memory]: [f64; 2], throttled: f64, seconds: f64) -> Reader {
        let work = seconds - input - memory;
        match (input >= work, input >= memory, memory > work) {
            (true, true, _) => Reader::WaitsForInput,
            (_, _, true) => Reader::WaitsForMemory,
            // The quota counts all threads, so it is only known to be this one where it is most.
            _ if throttled > work / 2.0 => Reader::IsThrottled,
            _ => Reader::Works,
        }
    }
}

/// Who reads or writes the bytes of a movement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Program,
    /// The one that compresses runs.
    CompressProgram,
    Bucket,
    Disk,
    Memory,
}

impl Whose {
    const ALL: [Whose; 5] = [Whose::Program, Whose::CompressProgram, Whose::Bucket, Whose::Disk, Whose::Memory];

    fn of(movement: &Movement) -> Whose {
        if movement.is_of_compress_program() {
            return Whose::CompressProgram;
        }
        Whose::by(movement.is_of_another_program(), &movement.primitive, &movement.between, is_in_memory)
    }

    fn by(is_of_another_program: bool, primitive: &str, between: &str, is_in_memory: fn(&Path) -> bool) -> Whose {
        let place = between.strip_suffix(" -> dram").or_else(|| between.strip_prefix("dram -> "));
        match place {
            _ if is_of_another_program => Whose::Program,
            _ if primitive.starts_with("object-") => Whose::Bucket,
            // The file that another program opened for this one.
            Some("standard input") if is_in_memory(Path::new("/dev/stdin")) => Whose::Memory,
            Some(place) if is_memory(place) || is_in_memory(Path::new(place)) => Whose::Memory,
            _ => Whose::Disk,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Whose::Program => "the other program",
            Whose::CompressProgram => "the compress program",
            Whose::Bucket => "the server's",
            Whose::Disk => "the disk's",
            Whose::Memory => "memory's",
        }
    }
}

/// Whose reads or writes the movements of one role are. Of which of several kinds a wait was is not
/// measured, so then all are named. What is read here is what another program writes.
fn whose(movements: impl Iterator<Item = Whose>, what: &str, role: MovementRole) -> String {
    let movements: Vec<Whose> = movements.collect();
    let named = Whose::ALL.into_iter().filter(|whose| movements.contains(whose));
    let is_program = |whose: &Whose| matches!(whose, Whose::Program | Whose::CompressProgram);
    let devices: Vec<&str> = named.filter(|whose| !is_program(whose)).map(Whose::words).collect();
    let programs = [Whose::Program, Whose::CompressProgram].into_iter().filter(|whose| movements.contains(whose));
    let programs = programs.map(|whose| match (whose == Whose::CompressProgram, role) {
        (true, MovementRole::Merge) => "the compress program, which decompresses runs",
        (true, _) => "the compress program, which takes runs and writes them",
        (false, MovementRole::Input) => "the other program, which writes the input",
        (false, MovementRole::Merge) => "the other program, which writes an input",
        (false, MovementRole::Output | MovementRole::Spill) => "the other program, which reads the output",
    });
    let programs = programs.collect::<Vec<_>>().join(", or ");
    match (devices.join(" or "), programs) {
        (nobody, none) if nobody.is_empty() && none.is_empty() => format!("the {what}"),
        (nobody, programs) if nobody.is_empty() => programs,
        (devices, none) if none.is_empty() => format!("{devices} {what}"),
        (devices, programs) => format!("{devices} {what}, or {programs}"),
    }
}

/// Whether the places of all runs are files in memory.
fn spills_to_memory(report: &SortReport) -> bool {
    let compresses = report.movements.iter().any(Movement::is_of_compress_program);
    !compresses && report.spill.iter().all(|spill| is_memory(&spill.place) || is_in_memory(Path::new(&spill.place)))
}

/// Whether the name of a place is one of memory.
fn is_memory(place: &str) -> bool {
    ["dram:", "numa:", "cache:"].iter().any(|kind| place.starts_with(kind))
}

/// Whether a wait is one for copies from or to files in memory.
fn is_copy(report: &SortReport, what: SortWait) -> bool {
    match what {
        SortWait::Spill => spills_to_memory(report),
        SortWait::Runs => report.runs > 0 && spills_to_memory(report),
        SortWait::Output => {
            let mut of_output = report.movements.iter().filter(|m| m.role == MovementRole::Output).map(Whose::of);
            of_output.clone().next().is_some() && of_output.all(|whose| whose == Whose::Memory)
        }
        _ => false,
    }
}

/// What stands in the way while threads wait for something.
fn bottleneck(report: &SortReport, what: SortWait, reader: Reader) -> String {
    let by = |wanted: MovementRole, what: &str| {
        let of_role = report.movements.iter().filter(|m| m.role == wanted);
        whose(of_role.map(Whose::of), what, wanted)
    };
    let is_distributed = report.method.name == "distribution";
    match what {
        SortWait::Spill if spills_to_memory(report) => "copies of runs to memory".to_owned(),
        SortWait::Runs if report.runs > 0 && spills_to_memory(report) => {
            "copies of runs from memory: the merge was starved".to_owned()
        }
        // The threads wait for the reading thread.
        SortWait::Records if reader == Reader::WaitsForInput || is_distributed => {
            by(MovementRole::Input, "reads of the input")
        }
        SortWait::Records if reader == Reader::WaitsForMemory => {
            "memory that other threads had not sorted yet".to_owned()
        }
        SortWait::Records if reader == Reader::IsThrottled => QUOTA.to_owned(),
        SortWait::Records => "the thread that reads and cuts the input into records".to_owned(),
        SortWait::Spill if is_distributed => by(MovementRole::Spill, "writes of buckets"),
        SortWait::Spill => by(MovementRole::Spill, "writes of runs"),
        SortWait::Runs if is_distributed => by(MovementRole::Merge, "reads of buckets"),
        // Inputs that are sorted already are merged as they are: then there are no runs.
        SortWait::Runs if report.runs == 0 => {
            format!("{}: the merge was starved", by(MovementRole::Merge, "reads of the inputs"))
        }
        SortWait::Runs => format!("{}: the merge was starved", by(MovementRole::Merge, "reads of runs")),
        SortWait::Output => by(MovementRole::Output, "writes of the output"),
        other => format!("waiting for {}", other.as_str()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shares of the output's writes, the processor and the queue.
    fn parts(all: f64, idle: f64, output: f64, processor: f64, queued: f64) -> [f64; 3] {
        let waits = vec![(SortWait::Output, output)];
        let parts =
            ThreadSeconds { all, idle, waits, copies: vec![], processor, queued, throttled: 0.0, stopped: 0.0 }.parts();
        let sum = parts.waits[0].1 + parts.processor + parts.queued + parts.throttled + parts.unknown;
        assert!((sum - 1.0).abs() < 1e-9, "{sum}");
        [parts.waits[0].1, parts.processor, parts.queued]
    }

    /// Figures of sorts whose output a slow program read: one thread merged, and the others had no
    /// part in it.
    #[test]
    fn threads_without_a_part_are_not_those_that_have_no_core() {
        // 4.6 s on one thread; 4.3 s on two, one of which merged for 4.1 s. Seconds that the kernel
        // counted: 1.40 and 1.06 in the queues for cores, 0.3 on them.
        let one = parts(4.6, 0.0, 3.4, 0.3, 1.40);
        let two = parts(8.6, 4.1, 3.35, 0.3, 1.06);
        assert!(one.iter().zip(&two).all(|(one, two)| (one - two).abs() < 0.05), "{one:?} {two:?}");
        assert!((0.7..0.8).contains(&two[0]) && two[2] < 0.25, "{two:?}");
        // 4.46 s of two threads: 36% of all time waited for the output, 1.48 s for a core.
        let small = parts(8.92, 4.2, 3.21, 0.26, 1.48);
        assert!((0.65..0.75).contains(&small[0]) && small[2] < 0.3, "{small:?}");
        // 14.8 s of two threads: the merging one waited 44% of its time for the output.
        let larger = parts(29.6, 13.3, 6.8, 2.0, 5.98);
        assert!((0.38..0.48).contains(&larger[0]) && larger[2] < larger[0], "{larger:?}");
        // Threads that have a part and get no core are told so.
        let starved = parts(8.0, 0.0, 0.5, 1.5, 6.0);
        assert!((starved[2] - 0.75).abs() < 1e-9, "{starved:?}");
    }

    #[test]
    fn each_second_counts_as_much_as_another_however_many_threads_have_a_part() {
        let parts = |idle: f64, waits: [f64; 2]| {
            let waits = [SortWait::Spill, SortWait::Output].into_iter().zip(waits).collect();
            let (queued, throttled, stopped) = (0.0, 0.0, 0.0);
            ThreadSeconds { all: 2.0, idle, waits, copies: vec![], processor: 0.0, queued, throttled, stopped }.parts()
        };
        // A second in which two threads write runs, and one in which one of them merges alone.
        let mut sum = ThreadParts::default();
        sum.add(&parts(0.0, [2.0, 0.0]), 0.5);
        sum.add(&parts(1.0, [0.0, 0.9]), 0.5);
        assert_eq!(sum.waits, [(SortWait::Spill, 0.5), (SortWait::Output, 0.45)]);
        assert!((sum.unknown - 0.05).abs() < 1e-9, "{}", sum.unknown);
    }

    #[test]
    fn a_wait_does_not_count_while_the_process_was_stopped() {
        // Two threads for 4.7 s, stopped for 4 of them; one waited for the disk all the time.
        let waits = vec![(SortWait::Spill, 4.4)];
        let time = ThreadSeconds {
            all: 9.4,
            idle: 0.0,
            waits,
            copies: vec![],
            processor: 0.7,
            queued: 0.1,
            throttled: 0.0,
            stopped: 4.0 / 4.7,
        };
        let parts = time.parts();
        assert!((parts.stopped - 8.0 / 9.4).abs() < 1e-9 && parts.waits[0].1 < 0.07, "{}", parts.waits[0].1);
        assert!((parts.processor - 0.7 / 9.4).abs() < 1e-9, "{}", parts.processor);
        // The same of a merge by one of the two threads: stopped for 6 of 11.2 s, the rest waits.
        let waits = vec![(SortWait::Output, 10.9)];
        let time = ThreadSeconds {
            all: 22.4,
            idle: 11.0,
            waits,
            copies: vec![],
            processor: 0.3,
            queued: 0.0,
            throttled: 0.0,
            stopped: 0.54,
        };
        let parts = time.parts();
        assert!((parts.stopped - 0.54).abs() < 1e-9 && (0.4..0.46).contains(&parts.waits[0].1), "{}", parts.waits[0].1);
    }

    #[test]
    fn each_kind_of_what_is_waited_for_is_named() {
        let named = |kinds: &[Whose], role| whose(kinds.iter().copied(), "writes of runs", role);
        assert_eq!(named(&[], MovementRole::Spill), "the writes of runs");
        let both = named(&[Whose::CompressProgram, Whose::Program], MovementRole::Merge);
        assert_eq!(both, "the other program, which writes an input, or the compress program, which decompresses runs");
        let all = named(&[Whose::Disk, Whose::CompressProgram, Whose::Bucket, Whose::Disk], MovementRole::Spill);
        assert!(all.ends_with(" writes of runs, or the compress program, which takes runs and writes them"), "{all}");
        assert!(all.contains(Whose::Disk.words()) && all.contains(Whose::Bucket.words()), "{all}");
    }

    #[test]
    fn a_wait_for_copies_in_memory_is_one_for_cores() {
        // 1.33 s of two threads beside two busy loops on the same core, all files in memory.
        let waits = vec![(SortWait::Spill, 1.12), (SortWait::Output, 0.48)];
        let copies = vec![SortWait::Spill, SortWait::Output];
        let (processor, queued, throttled, stopped) = (0.29, 2.1, 0.0, 0.0);
        let parts =
            ThreadSeconds { all: 2.66, idle: 0.0, waits, copies, processor, queued, throttled, stopped }.parts();
        assert!((parts.queued - 2.1 / 2.66).abs() < 1e-9 && (parts.processor - 0.29 / 2.66).abs() < 1e-9);
        assert!(parts.waits.iter().map(|wait| wait.1).sum::<f64>() < 0.11, "{:?}", parts.waits);
    }

    #[test]
    fn who_is_waited_for_is_named_and_of_several_all_are() {
        let by = |other, primitive, between| {
            Whose::by(other, primitive, between, |place| {
                place.starts_with("/tmpfs") || place == Path::new("/dev/stdin")
            })
        };
        let (pipe, file) = (by(true, "read", "stream -> dram"), by(false, "uring-direct", "dram -> /disk/f"));
        let (object, memory) =
            (by(false, "object-get", "s3://b/k -> dram"), by(false, "uring-cached", "/tmpfs/f -> dram"));
        let reads = |movements: &[Whose]| whose(movements.iter().copied(), "reads of the input", MovementRole::Input);
        assert_eq!(reads(&[pipe, pipe]), "the other program, which writes the input");
        assert_eq!(reads(&[file, by(false, "uring-cached", "a and others -> dram")]), "the disk's reads of the input");
        assert_eq!(reads(&[object]), "the server's reads of the input");
        let redirected = by(false, "uring-cached", "standard input -> dram");
        assert_eq!(reads(&[memory, redirected]), "memory's reads of the input");
        assert_eq!(by(false, "copy-by-size", "dram:200M -> dram"), Whose::Memory);
        for both in [[file, pipe], [pipe, file]] {
            let said = "the disk's reads of the input, or the other program, which writes the input";
            assert_eq!(reads(&both), said);
        }
        assert_eq!(reads(&[]), "the reads of the input");
        let runs = |role| whose([Whose::CompressProgram].into_iter(), "runs", role);
        assert_eq!(runs(MovementRole::Spill), "the compress program, which takes runs and writes them");
        assert_eq!(runs(MovementRole::Merge), "the compress program, which decompresses runs");
        let writes = whose([pipe].into_iter(), "writes of the output", MovementRole::Output);
        assert_eq!(writes, "the other program, which reads the output");
    }

    #[test]
    fn the_reading_thread_is_blamed_only_for_its_own_work() {
        // Seconds of waits for the input and for memory, of a phase of ten.
        assert_eq!(Reader::of([7.0, 2.0], 0.0, 10.0), Reader::WaitsForInput);
        assert_eq!(Reader::of([0.5, 7.5], 0.0, 10.0), Reader::WaitsForMemory);
        assert_eq!(Reader::of([1.0, 2.0], 0.0, 10.0), Reader::Works);
        assert_eq!(Reader::of([3.0, 5.0], 0.0, 10.0), Reader::WaitsForMemory);
        // A quota of processor time kept it off the core for six of the seven.
        assert_eq!(Reader::of([1.0, 2.0], 6.0, 10.0), Reader::IsThrottled);
        assert_eq!(Reader::of([1.0, 2.0], 2.0, 10.0), Reader::Works);
    }
}
