//! Reads counters again and again while a command works, from a thread of its own. Without the
//! option there is neither the thread nor a course.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use datapipes::metrics::{Course, CourseColumn};

use crate::outcome::note;
use crate::system::child;

/// How often counters are read at first. A command of ten seconds has 200 rows; one that is longer
/// than 30 is read less often.
const EVERY: Duration = Duration::from_millis(50);

/// What was read while a command worked: the columns of the command, and two of the process.
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
/// beginning, again and again, and at the end.
pub(crate) fn record<T>(
    columns: Option<Vec<CourseColumn>>,
    read: impl Fn() -> Vec<f64> + Sync,
    work: impl FnOnce() -> T,
) -> (T, Option<Recording>) {
    let Some(mut columns) = columns else { return (work(), None) };
    let own = columns.len();
    columns.extend([CourseColumn::Peak, CourseColumn::Sum]);
    let statm = open_statm();
    let started = Instant::now();
    let look = |course: &mut Course| {
        let mut values = read();
        values.resize(own, 0.0);
        values.extend([memory_bytes(statm.as_ref()), child::own_cpu_seconds()]);
        course.push(started.elapsed().as_secs_f64(), &values);
    };
    let mut course = Course::new(columns, EVERY);
    look(&mut course);
    let (value, course) = std::thread::scope(|scope| {
        let (finished, end) = channel::<()>();
        let first = course.clone();
        let look = &look;
        let reads = datapipes::threads::spawn_scoped(scope, "record", move || {
            let mut course = first;
            while end.recv_timeout(course.every()) == Err(RecvTimeoutError::Timeout) {
                look(&mut course);
            }
            look(&mut course);
            course
        });
        let value = work();
        drop(finished);
        let course = match reads {
            // Nothing in the thread panics; if it does, the page has what was read before it began.
            Ok(thread) => thread.join().unwrap_or(course),
            Err(error) => {
                note(&format!("dpipe: note: the report has no course of the work: {error}\n"));
                look(&mut course);
                course
            }
        };
        (value, course)
    });
    (value, Some(Recording { course, columns: own }))
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
    fn a_course_has_its_begin_and_its_end_and_what_grew_between() {
        let done = AtomicU64::new(0);
        let read = || vec![done.load(Relaxed) as f64];
        let (value, recording) = record(Some(vec![CourseColumn::Sum]), read, || {
            for _ in 0..5 {
                std::thread::sleep(Duration::from_millis(30));
                done.fetch_add(100, Relaxed);
            }
            7
        });
        let recording = recording.unwrap();
        assert_eq!(value, 7);
        let values = recording.course.values(0);
        assert_eq!((values[0], *values.last().unwrap()), (0.0, 500.0));
        assert!(values.len() >= 3 && recording.seconds() >= 0.15);
        let end = *recording.course.seconds().last().unwrap();
        assert!((recording.grew(0, 0.0, end) - 500.0).abs() < 1e-6);
        let halves = recording.grew(0, 0.0, 0.07) + recording.grew(0, 0.07, end);
        assert!((halves - 500.0).abs() < 1e-6);
        assert!(recording.course.peaks(recording.memory()).iter().all(|bytes| *bytes > 1e5));
        assert!(record(None, Vec::new, || 1).1.is_none());
    }
}
