//! Reads counters again and again while a command works, from a thread of its own. Without the
//! option there is neither the thread nor a course.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use datapipes::locks::Mutex;
use datapipes::metrics::{Course, CourseColumn};

use super::quota_clock::QuotaClock;
use super::thread_clock::{QueueClock, ThreadClock};
use crate::outcome::note;
use crate::system::child;

/// How often counters are read at first. A command of ten seconds has 200 rows; one that is longer
/// than 30 is read less often.
const EVERY: Duration = Duration::from_millis(50);

/// What was read while a command worked: the columns of the command, and five of the process.
#[derive(Debug)]
pub(crate) struct Recording {
    pub(crate) course: Course,
    columns: usize,
}

impl Recording {
    /// The column with the memory of the process in bytes: what is resident, without the pages of
    /// files such as the program itself.
    pub(crate) fn memory(&self) -> usize {
        self.columns
    }

    /// The column with the processor time of the process, in seconds.
    pub(crate) fn cpu(&self) -> usize {
        self.columns + 1
    }

    /// The column with the time for which threads of the process had work and waited for a core, in
    /// seconds, added up over the threads.
    pub(crate) fn queued(&self) -> usize {
        self.columns + 2
    }

    /// The column with the time for which a quota of processor time kept threads off the cores, in
    /// seconds: of all processes with that quota.
    pub(crate) fn throttled(&self) -> usize {
        self.columns + 3
    }

    /// The column with the time in which nothing of the process ran, although the recording thread
    /// wanted to, in seconds: it was stopped. What the host of a virtual machine took is none.
    pub(crate) fn stopped(&self) -> usize {
        self.columns + 4
    }

    /// The seconds from the first row to the last.
    pub(crate) fn seconds(&self) -> f64 {
        match self.course.seconds() {
            [first, .., last] => last - first,
            _ => 0.0,
        }
    }

    /// What a column with a sum grew by between two times, as if it grew evenly between rows.
    pub(crate) fn grew(&self, column: usize, from: f64, to: f64) -> f64 {
        let (times, values) = (self.course.seconds(), self.course.values(column));
        let at = |when: f64| {
            let next = times.partition_point(|time| *time < when).clamp(1, times.len().max(2) - 1);
            match (times.get(next - 1..=next), values.get(next - 1..=next)) {
                (Some([t0, t1]), Some([v0, v1])) => v0 + (v1 - v0) * ((when - t0) / (t1 - t0)).clamp(0.0, 1.0),
                _ => values.last().copied().unwrap_or(0.0),
            }
        };
        at(to) - at(from)
    }
}

/// Does the work. Where columns are given, `read` is asked for their values meanwhile: at the
/// beginning, again and again, and at the end. Sums begin at 0: what precedes the first look
/// belongs to the work.
pub(crate) fn record<T>(
    columns: Option<Vec<CourseColumn>>,
    read: impl Fn() -> Vec<f64> + Sync,
    work: impl FnOnce() -> T,
) -> (T, Option<Recording>) {
    let Some(mut columns) = columns else { return (work(), None) };
    let own = columns.len();
    columns.extend([CourseColumn::Peak, CourseColumn::Sum, CourseColumn::Sum, CourseColumn::Sum, CourseColumn::Sum]);
    let sums: Vec<bool> = columns.iter().map(|column| *column == CourseColumn::Sum).collect();
    let statm = open_statm();
    let (queues, quota) = (Mutex::new(QueueClock::default()), QuotaClock::of_this_process());
    let throttled_before = quota.seconds();
    let started = Instant::now();
    let look = |course: &mut Course, stopped: f64, push: &dyn Fn(&mut Course, f64, &[f64])| {
        let mut values = read();
        values.resize(own, 0.0);
        values.extend([memory_bytes(statm.as_ref()), child::own_cpu_seconds(), queues.lock().seconds()]);
        values.extend([quota.seconds() - throttled_before, stopped]);
        push(course, started.elapsed().as_secs_f64(), &values);
    };
    let mut course = Course::new(columns, EVERY);
    look(&mut course, 0.0, &|course, _, values| {
        let first = values.iter().zip(&sums).take(own).map(|(value, is_sum)| if *is_sum { 0.0 } else { *value });
        let first: Vec<f64> = first.chain(values.iter().skip(own).copied()).collect();
        course.push(0.0, &first);
    });
    let (value, course) = std::thread::scope(|scope| {
        let (finished, end) = channel::<()>();
        let first = course.clone();
        let look = &look;
        let reads = datapipes::threads::spawn_scoped(scope, "record", move || {
            let mut course = first;
            let mut stops = StopClock::start();
            let mut due = Instant::now() + course.every();
            loop {
                // Short sleeps: of a stop, only what is beyond the end of a sleep is known.
                let end = end.recv_timeout(StopClock::SLEEP);
                let stopped = stops.woke();
                if end != Err(RecvTimeoutError::Timeout) {
                    look(&mut course, stopped, &Course::push_last);
                    return course;
                }
                if Instant::now() >= due {
                    look(&mut course, stopped, &Course::push);
                    stops.looks();
                    due = Instant::now() + course.every();
                }
                stops.sleeps();
            }
        });
        let value = work();
        drop(finished);
        let course = match reads {
            // Nothing in the thread panics; if it does, the page has what was read before it began.
            Ok(thread) => thread.join().unwrap_or(course),
            Err(error) => {
                note(&format!("dpipe: note: the report has no course of the work: {error}\n"));
                look(&mut course, 0.0, &Course::push_last);
                course
            }
        };
        (value, course)
    });
    (value, Some(Recording { course, columns: own }))
}

/// Finds out for how long the process was stopped: a thread that wakes too late, and neither waited
/// for a core, nor for a page of a file, nor had its core taken by the host.
struct StopClock {
    own: ThreadClock,
    faults: FaultClock,
    host: HostClock,
    asleep: Instant,
    /// Seconds in the queue for a core, also under a quota, when it fell asleep.
    before: f64,
    stopped: f64,
}

impl StopClock {
    /// How long it sleeps at a time.
    const SLEEP: Duration = Duration::from_millis(10);
    /// A thread that wakes up less than this too late may have been late by chance. Stops may be
    /// short and many, as those of `cpulimit`.
    const LATE: Duration = Duration::from_millis(15);

    /// A page of the program takes no longer than this to come.
    const MAX_FAULT: Duration = Duration::from_secs(1);

    fn start() -> StopClock {
        let own = ThreadClock::of_this_thread();
        let before = own.read()[1];
        let (faults, host) = (FaultClock::of_this_thread(), HostClock::start());
        StopClock { own, faults, host, asleep: Instant::now(), before, stopped: 0.0 }
    }

    fn sleeps(&mut self) {
        self.faults.begin();
        (self.asleep, self.before) = (Instant::now(), self.own.read()[1]);
    }

    /// Looks at what the host took, beside the looks at the counters: what was taken between them
    /// can explain a sleep that was too long.
    fn looks(&mut self) {
        self.host.look();
    }

    /// The seconds so far, now that a sleep is over.
    fn woke(&mut self) -> f64 {
        let late = self.asleep.elapsed().saturating_sub(StopClock::SLEEP);
        // Where nothing says how long it waited for a core, a stop is not told apart from that.
        if late >= StopClock::LATE && !self.own.is_blind() {
            let explained = self.own.read()[1] - self.before + self.host.look();
            // How long the disk took for its page is not known.
            if late >= StopClock::MAX_FAULT || !self.faults.grew() {
                self.stopped += (late.as_secs_f64() - explained).max(0.0);
            }
        }
        self.stopped
    }
}

/// The time that the host of a virtual machine took from the core of this thread.
struct HostClock {
    file: Option<std::fs::File>,
    text: Vec<u8>,
    /// For each core at the last look, in the order of the file.
    taken: Vec<f64>,
}

impl HostClock {
    /// A tick of the times that are shown to programs: a hundredth of a second on all machines
    /// that Linux runs on here (`USER_HZ`).
    const TICK: f64 = 0.01;
    /// The part of the file that is read: lines of several hundred cores.
    const MAX_TEXT: usize = 64 << 10;

    fn start() -> HostClock {
        let (file, text) = (std::fs::File::open("/proc/stat").ok(), vec![0; HostClock::MAX_TEXT]);
        let mut clock = HostClock { file, text, taken: Vec::new() };
        clock.look();
        clock
    }

    /// The seconds that were taken from the present core since the last look.
    fn look(&mut self) -> f64 {
        let text = &mut self.text;
        let len = self.file.as_ref().and_then(|file| rustix::io::pread(file, &mut text[..], 0).ok()).unwrap_or(0);
        let now = taken(std::str::from_utf8(text.get(..len).unwrap_or_default()).unwrap_or(""));
        let core = rustix::thread::sched_getcpu();
        let of = |cores: &[f64]| cores.get(core).copied();
        let grew = of(&now).zip(of(&self.taken)).map_or(0.0, |(now, before)| (now - before).max(0.0));
        self.taken = now;
        grew
    }
}

/// What the host took from each core, in seconds, by the number of the core.
fn taken(stat: &str) -> Vec<f64> {
    let mut cores = Vec::new();
    for line in stat.lines() {
        let Some((core, values)) = line.strip_prefix("cpu").and_then(|rest| rest.split_once(' ')) else { break };
        // The first line has the sums of all.
        let Ok(core) = core.parse::<usize>() else { continue };
        let ticks = values.split_whitespace().nth(7).and_then(|ticks| ticks.parse::<u32>().ok()).unwrap_or(0);
        if core >= cores.len() && core < HostClock::MAX_TEXT {
            cores.resize(core + 1, 0.0);
        }
        if let Some(of_core) = cores.get_mut(core) {
            *of_core = f64::from(ticks) * HostClock::TICK;
        }
    }
    cores
}

/// How often a thread waited for a page of a file: its own program's, for example.
struct FaultClock {
    file: Option<std::fs::File>,
    before: u64,
}

impl FaultClock {
    fn of_this_thread() -> FaultClock {
        FaultClock { file: std::fs::File::open("/proc/thread-self/stat").ok(), before: 0 }
    }

    fn read(&self) -> u64 {
        let mut text = [0; 512];
        let len = self.file.as_ref().and_then(|file| rustix::io::pread(file, &mut text[..], 0).ok()).unwrap_or(0);
        let text = String::from_utf8_lossy(text.get(..len).unwrap_or_default());
        // The name may have anything in it, and ends at the last parenthesis.
        let behind = text.rsplit_once(')').map_or("", |(_, behind)| behind);
        behind.split_whitespace().nth(9).and_then(|count| count.parse().ok()).unwrap_or(0)
    }

    fn begin(&mut self) {
        self.before = self.read();
    }

    fn grew(&self) -> bool {
        self.read() > self.before
    }
}

fn open_statm() -> Option<OwnedFd> {
    std::fs::File::open("/proc/self/statm").ok().map(OwnedFd::from)
}

/// The resident memory of this process without pages of files; 0 where the system does not say.
fn memory_bytes(statm: Option<&OwnedFd>) -> f64 {
    let mut text = [0; 128];
    let len = statm.and_then(|file| rustix::io::pread(file, &mut text[..], 0).ok()).unwrap_or(0);
    let text = std::str::from_utf8(text.get(..len).unwrap_or_default()).unwrap_or("");
    let mut numbers = text.split_whitespace().map(|pages| pages.parse::<u64>().unwrap_or(0)).skip(1);
    let (resident, of_files) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let pages = resident.saturating_sub(of_files);
    pages.saturating_mul(datapipes::process::page_size() as u64) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    #[test]
    fn what_the_host_took_is_read_by_core() {
        let stat = "cpu  9 0 9 99 0 0 0 77 0 0\ncpu0 5 0 4 50 0 0 0 31 0 0\ncpu2 4 0 5 49 0 0 0 46 0 0\nintr 5 6\n";
        assert_eq!(taken(stat), [0.31, 0.0, 0.46]);
        assert!(taken("").is_empty() && taken("cpu0 5").len() <= 1);
        assert!(FaultClock::of_this_thread().file.is_some());
    }

    #[test]
    fn a_course_has_its_begin_and_its_end_and_what_grew_between() {
        let done = AtomicU64::new(0);
        let looks = AtomicU64::new(0);
        let read = || {
            looks.fetch_add(1, Relaxed);
            vec![done.load(Relaxed) as f64]
        };
        let (value, recording) = record(Some(vec![CourseColumn::Sum]), read, || {
            for n in 1..=5 {
                // However busy the machine is, it is looked at meanwhile.
                datapipes_testkit::until("it is looked at", || looks.load(Relaxed) >= n);
                done.fetch_add(100, Relaxed);
            }
            7
        });
        let recording = recording.unwrap();
        assert_eq!(value, 7);
        let values = recording.course.values(0);
        assert_eq!((values[0], *values.last().unwrap()), (0.0, 500.0));
        assert!(values.len() >= 3, "{values:?}");
        let end = *recording.course.seconds().last().unwrap();
        assert!((recording.grew(0, 0.0, end) - 500.0).abs() < 1e-6);
        let halves = recording.grew(0, 0.0, 0.4 * end) + recording.grew(0, 0.4 * end, end);
        assert!((halves - 500.0).abs() < 1e-6);
        assert!(recording.course.peaks(recording.memory()).iter().all(|bytes| *bytes > 1e5));
        assert!(record(None, Vec::new, || 1).1.is_none());
    }
}
