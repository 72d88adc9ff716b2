//! The counters that are known, and a set of them that counts.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use datapipes_metrics::{Label, Measurement, MeasurementKind, Sample, SampleValue, Unit, vocabulary};
use serde::Serialize;

use crate::files;
use crate::perf::{CountedBy, EventCode, PerfEvent};
use crate::tree;
use crate::uncore::{self, UncoreEvent};

/// Whose events a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CounterScope {
    /// The thread that opened the set, and the threads and processes that it started since.
    Thread,
    /// The whole machine.
    Machine,
}

/// A counter and its value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CounterReading {
    /// Its name, such as `llc_misses`.
    pub name: &'static str,
    /// What it counts, in a line.
    pub what: &'static str,
    /// `events`, `bytes`, `pages`, `ns`.
    pub unit: &'static str,
    /// Who makes the events that are counted.
    pub scope: CounterScope,
    /// Whether the value is of this moment. All others are sums since the set was opened.
    pub is_gauge: bool,
    /// The value; `None` where it is absent.
    pub value: Option<u64>,
    /// Why it is absent.
    pub absent: Option<String>,
    /// Where it comes from, and what is not in it.
    pub source: String,
    /// The part of the time in which the processor counted; the value is scaled up from it.
    pub counted_part: Option<f64>,
    /// What it is in the vocabulary of measurements.
    #[serde(skip)]
    pub measurement: &'static Measurement,
}

impl CounterReading {
    /// Returns it as a sample.
    pub fn sample(&self) -> Sample {
        let scope = match self.scope {
            CounterScope::Thread => "thread",
            CounterScope::Machine => "machine",
        };
        let value = match (self.value, &self.absent) {
            (Some(ns), _) if self.measurement.unit == Unit::Seconds => Duration::from_nanos(ns).into(),
            (Some(value), _) => value.into(),
            (None, why) => SampleValue::Absent(why.clone().unwrap_or_else(|| "unknown".into())),
        };
        Sample::new(self.measurement, value).label(Label::Scope, scope)
    }
}

/// The short name of a counter, and what it measures.
#[derive(Clone, Copy)]
struct About {
    name: &'static str,
    measurement: &'static Measurement,
}

impl About {
    fn is_gauge(self) -> bool {
        self.measurement.kind == MeasurementKind::Gauge
    }

    /// The unit of values as the kernel counts them.
    fn unit(self) -> &'static str {
        match self.measurement.unit {
            Unit::Bytes => "bytes",
            Unit::Pages => "pages",
            Unit::Seconds => "ns",
            _ => "events",
        }
    }
}

const HARDWARE: u32 = 0;
const SOFTWARE: u32 = 1;
const TRACEPOINT: u32 = 2;
const HARDWARE_CACHE: u32 = 3;

const fn event(name: &'static str, measurement: &'static Measurement, kind: u32, config: u64) -> (About, EventCode) {
    (About { name, measurement }, EventCode { kind, config: [config, 0, 0] })
}

/// Events of a thread (include/uapi/linux/perf_event.h).
static OF_THREAD: [(About, EventCode); 8] = [
    event("llc_references", &vocabulary::LLC_REFERENCES, HARDWARE, 2),
    event("llc_misses", &vocabulary::LLC_MISSES, HARDWARE, 3),
    // The last-level cache (2), reads (0 << 8), misses (1 << 16).
    event("llc_read_misses", &vocabulary::LLC_READ_MISSES, HARDWARE_CACHE, 2 | 1 << 16),
    event("instructions", &vocabulary::INSTRUCTIONS, HARDWARE, 1),
    event("cycles", &vocabulary::CYCLES, HARDWARE, 0),
    event("cpu_time", &vocabulary::CPU_TIME, SOFTWARE, 1),
    event("page_faults", &vocabulary::PAGE_FAULTS, SOFTWARE, 2),
    event("context_switches", &vocabulary::CONTEXT_SWITCHES, SOFTWARE, 3),
];

static SYSTEM_CALLS: About = About { name: "system_calls", measurement: &vocabulary::SYSTEM_CALLS };
const SYSTEM_CALL_ID: [&str; 2] = [
    "sys/kernel/tracing/events/raw_syscalls/sys_enter/id",
    "sys/kernel/debug/tracing/events/raw_syscalls/sys_enter/id",
];

static MEMORY: [(About, &[&str]); 2] = [
    (
        About { name: "memory_read", measurement: &vocabulary::MEMORY_READ },
        &["cas_count_read", "data_read", "data_reads"],
    ),
    (
        About { name: "memory_written", measurement: &vocabulary::MEMORY_WRITTEN },
        &["cas_count_write", "data_write", "data_writes"],
    ),
];

static PCIE: About = About { name: "pcie_bytes", measurement: &vocabulary::PCIE };

/// A file's counter: where it lives, how it is read.
struct FileCounter {
    about: About,
    source: &'static str,
    read: fn(&Path) -> files::Values,
}

const fn file(
    name: &'static str,
    measurement: &'static Measurement,
    source: &'static str,
    read: fn(&Path) -> files::Values,
) -> FileCounter {
    FileCounter { about: About { name, measurement }, source, read }
}

const RESCTRL: &str = "/sys/fs/resctrl, mon_data of all groups, without those that are made and removed meanwhile";
const NUMA: &str = "/sys/devices/system/node/node*/numastat";
const DISKS: &str = "/sys/block/*/stat";

static OF_FILES: [FileCounter; 7] = [
    file("llc_occupancy", &vocabulary::LLC_OCCUPANCY, RESCTRL, |root| files::resctrl(root, "llc_occupancy")),
    file("memory_bandwidth", &vocabulary::MEMORY_BANDWIDTH, RESCTRL, |root| files::resctrl(root, "mbm_total_bytes")),
    file("memory_bandwidth_local", &vocabulary::MEMORY_BANDWIDTH_LOCAL, RESCTRL, |root| {
        files::resctrl(root, "mbm_local_bytes")
    }),
    file("numa_misses", &vocabulary::NUMA_MISSES, NUMA, |root| files::numa(root, "numa_miss")),
    file("numa_remote", &vocabulary::NUMA_REMOTE, NUMA, |root| files::numa(root, "other_node")),
    file("disk_read", &vocabulary::DISK_READ, DISKS, |root| files::disks(root, 2)),
    file("disk_written", &vocabulary::DISK_WRITTEN, DISKS, |root| files::disks(root, 6)),
];

/// Where values of a counter come from.
enum Source {
    Perf(PerfEvent),
    /// Parts of all packages, and the bytes for which a count stands.
    Uncore(Vec<(PerfEvent, f64)>),
    File {
        read: fn(&Path) -> files::Values,
        /// The values when the set was opened.
        before: Vec<(String, u64)>,
    },
    Absent(String),
}

struct Counter {
    about: About,
    scope: CounterScope,
    lives_at: String,
    source: Source,
}

/// Counters that count while it lives.
pub struct CounterSet {
    root: PathBuf,
    counters: Vec<Counter>,
}

impl std::fmt::Debug for CounterSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.counters.iter().map(|counter| counter.about.name);
        f.debug_list().entries(names).finish()
    }
}

impl CounterSet {
    /// Begins to count all that this machine counts for the calling thread, for what it starts from
    /// now on, and for itself. Open it before a runtime is started: threads that run already are
    /// not counted.
    pub fn open() -> CounterSet {
        CounterSet::open_under("/")
    }

    /// The same with the files of a recorded or made tree. Events of the thread, of memory
    /// controllers and of system calls are asked of this machine's kernel with the numbers that the
    /// tree names.
    pub fn open_under(root: impl Into<PathBuf>) -> CounterSet {
        let root = root.into();
        // Those of the thread come last, so that opening the others is not counted.
        let mut of_machine: Vec<Counter> =
            MEMORY.into_iter().map(|(about, names)| memory(&root, about, names)).collect();
        of_machine.push(pcie(&root));
        of_machine.extend(OF_FILES.iter().map(|counter| of_file(&root, counter)));
        let mut counters = vec![system_calls(&root)];
        counters.extend(OF_THREAD.into_iter().map(|(about, code)| of_thread(&root, about, code)));
        counters.extend(of_machine);
        CounterSet { root, counters }
    }

    /// Returns all counters that are known, with their values since the set was opened. Those that
    /// are absent have none, and a reason.
    pub fn read(&self) -> Vec<CounterReading> {
        self.counters.iter().map(|counter| self.reading(counter)).collect()
    }

    fn reading(&self, counter: &Counter) -> CounterReading {
        let mut reading = CounterReading {
            name: counter.about.name,
            what: counter.about.measurement.help,
            unit: counter.about.unit(),
            scope: counter.scope,
            is_gauge: counter.about.is_gauge(),
            value: None,
            absent: None,
            source: counter.lives_at.clone(),
            counted_part: None,
            measurement: counter.about.measurement,
        };
        let value = match &counter.source {
            Source::Perf(event) => {
                if event.is_user_only {
                    reading.source += ", without what the kernel does for the thread";
                }
                count(event).map(|(value, part)| {
                    reading.counted_part = (part < 1.0).then_some(part);
                    value
                })
            }
            Source::Uncore(events) => events
                .iter()
                .try_fold(0.0, |sum, (event, bytes)| Ok(sum + count(event)?.0 as f64 * bytes))
                .map(|sum| sum as u64),
            Source::File { read, .. } if counter.about.is_gauge() => read(&self.root).map(|now| files::sum(&now)),
            Source::File { read, before } => read(&self.root).and_then(|now| files::since(before, &now)),
            Source::Absent(why) => Err(why.clone()),
        };
        match value {
            Ok(value) => reading.value = Some(value),
            Err(why) => reading.absent = Some(why),
        }
        reading
    }
}

/// Returns what was counted between two readings of one set. Gauges are those of the later one.
pub fn difference(before: &[CounterReading], after: &[CounterReading]) -> Vec<CounterReading> {
    let mut all = after.to_vec();
    for reading in all.iter_mut().filter(|reading| !reading.is_gauge) {
        let earlier = before.iter().find(|earlier| earlier.name == reading.name).and_then(|earlier| earlier.value);
        reading.value = match (reading.value, earlier) {
            // An estimate of a part of the time may be less than an earlier one.
            (Some(now), Some(then)) => Some(now.saturating_sub(then)),
            _ => None,
        };
        if reading.value.is_none() && reading.absent.is_none() {
            reading.absent = Some("it was absent at the beginning".into());
        }
    }
    all
}

fn count(event: &PerfEvent) -> Result<(u64, f64), String> {
    match event.count() {
        Ok(Some(count)) => Ok((count.value, count.part)),
        Ok(None) => Err("all counters of the processor are taken".into()),
        Err(error) => Err(format!("it cannot be read: {error}")),
    }
}

fn of_thread(root: &Path, about: About, code: EventCode) -> Counter {
    let source = match PerfEvent::open(code, CountedBy::Thread) {
        Ok(event) => Source::Perf(event),
        Err(error) => Source::Absent(refusal(root, &error)),
    };
    let lives_at = "perf_event_open(2)".to_owned();
    Counter { about, scope: CounterScope::Thread, lives_at, source }
}

fn system_calls(root: &Path) -> Counter {
    let found = SYSTEM_CALL_ID.iter().find_map(|file| Some((*file, tree::number(&root.join(file))?)));
    match found {
        Some((file, id)) => {
            let code = EventCode { kind: TRACEPOINT, config: [id, 0, 0] };
            Counter { lives_at: format!("perf_event_open(2), /{file}"), ..of_thread(root, SYSTEM_CALLS, code) }
        }
        None => {
            let file = SYSTEM_CALL_ID[0];
            let why = format!("/{file} cannot be read: tracefs is not mounted, needs root, or counts no system calls");
            absent(SYSTEM_CALLS, CounterScope::Thread, format!("/{file}"), why)
        }
    }
}

fn of_file(root: &Path, counter: &FileCounter) -> Counter {
    let FileCounter { about, source, read } = *counter;
    let lives_at = source.to_owned();
    let source = match read(root) {
        Ok(before) => Source::File { read, before },
        Err(why) => Source::Absent(why),
    };
    Counter { about, scope: CounterScope::Machine, lives_at, source }
}

const UNITS_OF_MEMORY: &str = "/sys/bus/event_source/devices/uncore_imc*";
const UNITS_OF_PCIE: &str = "/sys/bus/event_source/devices/uncore_iio*";

fn memory(root: &Path, about: About, names: &[&str]) -> Counter {
    let events = match uncore::memory_events(root, names) {
        Ok(events) => events,
        Err(why) => return absent(about, CounterScope::Machine, UNITS_OF_MEMORY.into(), why),
    };
    let lives_at = events.first().map_or(UNITS_OF_MEMORY.into(), |first| first.source.clone());
    if events.is_empty() {
        let why = match uncore::devices(root, "uncore_imc").is_empty() {
            true => "the kernel counts nothing of memory controllers here (no uncore_imc)",
            false => "the kernel names no such event of the memory controllers",
        };
        return absent(about, CounterScope::Machine, lives_at, why.into());
    }
    of_units(root, about, lives_at, events)
}

/// The sum of events of a package's units.
fn of_units(root: &Path, about: About, lives_at: String, events: Vec<UncoreEvent>) -> Counter {
    let open = |UncoreEvent { code, cores, bytes, .. }: UncoreEvent| {
        cores.into_iter().map(move |core| PerfEvent::open(code, CountedBy::Core(core)).map(|event| (event, bytes)))
    };
    let opened: io::Result<Vec<(PerfEvent, f64)>> = events.into_iter().flat_map(open).collect();
    let source = match opened {
        Ok(events) => Source::Uncore(events),
        Err(error) => Source::Absent(refusal(root, &error)),
    };
    Counter { about, scope: CounterScope::Machine, lives_at, source }
}

fn pcie(root: &Path) -> Counter {
    let events = match uncore::port_events(root) {
        Ok(events) => events,
        Err(why) => return absent(PCIE, CounterScope::Machine, UNITS_OF_PCIE.into(), why),
    };
    if let Some(first) = events.first() {
        let lives_at = first.source.clone();
        return of_units(root, PCIE, lives_at, events);
    }
    let units = uncore::devices(root, "uncore_iio").len();
    let why = match units {
        0 => "the kernel counts nothing of PCI Express here (no uncore_iio)".to_owned(),
        units => format!("{units} units are there, but the kernel names no event that counts bytes"),
    };
    absent(PCIE, CounterScope::Machine, UNITS_OF_PCIE.into(), why)
}

fn absent(about: About, scope: CounterScope, lives_at: String, why: String) -> Counter {
    Counter { about, scope, lives_at, source: Source::Absent(why) }
}

const PARANOID: &str = "proc/sys/kernel/perf_event_paranoid";

/// Why the kernel opened no event.
fn refusal(root: &Path, error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV | libc::ENXIO | libc::EINVAL) => {
            format!("the processor, or the machine that hosts this guest, does not count it ({error})")
        }
        Some(libc::EACCES | libc::EPERM) => {
            let level = tree::text(&root.join(PARANOID)).unwrap_or_else(|| "absent".into());
            format!("it is not permitted: run as root or with CAP_PERFMON (/{PARANOID} is {level})")
        }
        Some(libc::ENOSYS) => "the kernel has no perf events, or a filter forbids them".into(),
        _ => error.to_string(),
    }
}
