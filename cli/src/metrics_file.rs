//! `--metrics FILE`: how a command goes and what it did, for node_exporter's textfile collector.
//!
//! The file is written as a whole, under its name or not at all: when the command starts (so that a
//! path which cannot be written is told before the work), every ten seconds, and at the end,
//! whatever the end is. A command that is killed leaves its last state, and the time of the file
//! says since when.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use datapipes::Result;
use datapipes::locks::Mutex;
use datapipes_metrics::{Label, Sample, prometheus, prometheus_of_run, vocabulary};

use crate::outcome::{CommandStatus, note, print_error, shown};
use crate::system::child;
use crate::system::side_files::SideFile;
use crate::system::signals;

const EVERY: Duration = Duration::from_secs(10);

/// How a command stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Running,
    Completed,
    /// A check does not hold.
    Mismatch,
    Failed,
    Interrupted,
}

impl Standing {
    const ALL: [Standing; 5] =
        [Standing::Running, Standing::Completed, Standing::Mismatch, Standing::Failed, Standing::Interrupted];

    fn of(result: &Result<CommandStatus>) -> Standing {
        match result {
            Ok(CommandStatus::Good) => Standing::Completed,
            Ok(CommandStatus::Bad) => Standing::Mismatch,
            Err(_) if signals::arrived() => Standing::Interrupted,
            Err(_) => Standing::Failed,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Standing::Running => "running",
            Standing::Completed => "completed",
            Standing::Mismatch => "mismatch",
            Standing::Failed => "failed",
            Standing::Interrupted => "interrupted",
        }
    }
}

/// The metrics of a command that runs.
#[derive(Debug)]
pub(crate) struct CommandMetrics<'a> {
    file: Option<&'a SideFile>,
    command: &'static str,
    began: Instant,
    began_at: f64,
    every: Duration,
    /// What the command counted last.
    kept: Mutex<Vec<Sample>>,
    /// Whether a part of the work is looked at, which writes the file then.
    looks: AtomicBool,
    /// Held while the file is written: one moment after the other.
    writes: Mutex<()>,
    /// Whether it was said that the file cannot be written.
    said: AtomicBool,
}

/// Does the work of a command, and writes its metrics where a file for them is named.
pub(crate) fn told(
    file: Option<&SideFile>,
    command: &'static str,
    work: impl FnOnce(&CommandMetrics<'_>) -> Result<CommandStatus>,
) -> Result<CommandStatus> {
    told_every(EVERY, file, command, work)
}

fn told_every(
    every: Duration,
    file: Option<&SideFile>,
    command: &'static str,
    work: impl FnOnce(&CommandMetrics<'_>) -> Result<CommandStatus>,
) -> Result<CommandStatus> {
    let metrics = CommandMetrics::new(file, command, every);
    metrics.write(Standing::Running)?;
    let again = || {
        if !metrics.looks.load(Relaxed) {
            metrics.write_again();
        }
    };
    let result = metrics.repeating(&again, || work(&metrics));
    let written = metrics.write(Standing::of(&result));
    match (result, written) {
        // Whoever reads that this failed is to know that the rest did not.
        (Ok(_), Err(e)) => Err(e.within("the work is done, but not its metrics")),
        (result, Ok(())) => result,
        (Err(first), Err(e)) => {
            print_error(&format!("dpipe {command}: {}\n", shown(command, &e)));
            Err(first)
        }
    }
}

impl<'a> CommandMetrics<'a> {
    fn new(file: Option<&'a SideFile>, command: &'static str, every: Duration) -> CommandMetrics<'a> {
        let (began, began_at) = (Instant::now(), now());
        let (kept, looks, said) = (Mutex::default(), AtomicBool::new(false), AtomicBool::new(false));
        CommandMetrics { file, command, began, began_at, every, kept, looks, writes: Mutex::default(), said }
    }

    /// Whether a file for them was named.
    pub(crate) fn are_wanted(&self) -> bool {
        self.file.is_some()
    }

    /// Keeps what the command counted.
    pub(crate) fn keep(&self, samples: Vec<Sample>) {
        if self.file.is_some() {
            *self.kept.lock() = samples;
        }
    }

    /// Does a part of the work, and writes meanwhile what `look` finds.
    pub(crate) fn during<T>(&self, look: impl Fn() -> Vec<Sample> + Sync, work: impl FnOnce() -> T) -> T {
        if self.file.is_none() {
            return work();
        }
        self.looks.store(true, Relaxed);
        let again = || {
            self.keep(look());
            self.write_again();
        };
        let value = self.repeating(&again, work);
        self.looks.store(false, Relaxed);
        self.keep(look());
        value
    }

    /// Does work, and does `again` meanwhile every now and then, on a thread of its own.
    fn repeating<T>(&self, again: &(impl Fn() + Sync), work: impl FnOnce() -> T) -> T {
        if self.file.is_none() {
            return work();
        }
        std::thread::scope(|scope| {
            let (finished, end) = channel::<()>();
            let repeats = datapipes::threads::spawn_scoped(scope, "metrics", move || {
                while end.recv_timeout(self.every) == Err(RecvTimeoutError::Timeout) {
                    again();
                }
            });
            if let Err(e) = repeats {
                note(&format!("dpipe {}: note: no metrics before the end: {e}\n", self.command));
            }
            let value = work();
            drop(finished);
            value
        })
    }

    fn write_again(&self) {
        if let Err(e) = self.write(Standing::Running)
            && !self.said.swap(true, Relaxed)
        {
            note(&format!("dpipe {}: note: no metrics: {}\n", self.command, shown(self.command, &e)));
        }
    }

    fn write(&self, standing: Standing) -> Result<()> {
        let Some(file) = self.file else { return Ok(()) };
        let _writes = self.writes.lock();
        let samples = self.samples(standing);
        // Files of several commands may lie in one folder, so the name of each tells them apart. A
        // stream has none.
        let text = match file.file_name() {
            Some(name) => prometheus_of_run(&samples, &run_of(name)),
            None => prometheus(&samples),
        };
        file.write_text(&text)
    }

    fn samples(&self, standing: Standing) -> Vec<Sample> {
        let mut samples: Vec<Sample> = Standing::ALL
            .into_iter()
            .map(|each| Sample::new(&vocabulary::COMMAND_STATE, each == standing).label(Label::Outcome, each.name()))
            .collect();
        samples.push(Sample::new(&vocabulary::COMMAND_BEGAN, self.began_at));
        if standing != Standing::Running {
            samples.push(Sample::new(&vocabulary::COMMAND_ENDED, now()));
        }
        samples.push(Sample::new(&vocabulary::COMMAND_TIME, self.began.elapsed()));
        samples.push(Sample::new(&vocabulary::COMMAND_CPU, child::family_cpu_seconds()));
        let mut samples: Vec<Sample> =
            samples.into_iter().map(|sample| sample.label(Label::Command, self.command)).collect();
        samples.extend(self.kept.lock().iter().cloned());
        samples
    }
}

/// The label of a file: its name, without the ending of all files that node_exporter reads. Two
/// names with it never give one label: a byte that is not of UTF-8 is written as `\xff`, a
/// backslash as two, and a name that is nothing but the ending as `\.prom`.
fn run_of(name: &OsStr) -> String {
    let name = name.as_bytes();
    if name == b".prom" {
        return "\\.prom".to_owned();
    }
    let name = name.strip_suffix(b".prom").unwrap_or(name);
    let mut run = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        run.push_str(&chunk.valid().replace('\\', "\\\\"));
        chunk.invalid().iter().for_each(|byte| run.push_str(&format!("\\x{byte:02x}")));
    }
    run
}

/// Seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use datapipes::{Error, ErrorKind};
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::*;
    use crate::system::side_files::{CommandPlaces, SideFileArgument, SideFiles};

    #[test]
    fn the_file_is_there_before_the_work_during_it_and_after_any_end() {
        let dir = tempfile_dir();
        let path = dir.at().join("m.prom");
        let side_file = |path: &std::path::Path| {
            let given = SideFileArgument::from(path.as_os_str().to_owned());
            SideFiles::beside(CommandPlaces::of("sort")).take("--metrics", Some(&given)).unwrap().unwrap()
        };
        let file = side_file(&path);
        let read = || std::fs::read_to_string(&path).unwrap();
        let state =
            |name: &str| format!("datapipes_command_state{{outcome=\"{name}\",command=\"sort\",run=\"m\"}} 1\n");
        let failed = told_every(Duration::from_millis(1), Some(&file), "sort", |metrics| {
            assert!(read().contains(&state("running")) && !read().contains("end_timestamp"));
            // Also while nothing is looked at.
            let before = read();
            datapipes_testkit::until("it is written again", || read() != before);
            let runs = AtomicU64::new(0);
            let look = || vec![Sample::new(&vocabulary::SORT_RUNS, runs.load(Relaxed))];
            metrics.during(look, || {
                runs.store(7, Relaxed);
                while !read().contains("datapipes_sort_runs{run=\"m\"} 7\n") {
                    std::thread::yield_now();
                }
            });
            Err(Error::new(ErrorKind::NoSpace, "sort", "full"))
        });
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::NoSpace);
        assert!(read().contains(&state("failed")) && read().contains("datapipes_command_end_timestamp_seconds"));
        told(Some(&file), "sort", |metrics| {
            metrics.keep(vec![Sample::new(&vocabulary::SORT_RUNS, 3u64)]);
            Ok(CommandStatus::Bad)
        })
        .unwrap();
        assert!(
            read().contains(&state("mismatch")) && read().contains("datapipes_sort_runs{run=\"m\"} 3\n"),
            "{}",
            read()
        );
        assert_eq!(std::fs::read_dir(dir.at()).unwrap().count(), 1, "nothing else is left");
        // What cannot be written at the end says that the work is done.
        let gone = dir.at().join("gone");
        std::fs::create_dir(&gone).unwrap();
        let late = told(Some(&side_file(&gone.join("m.prom"))), "sort", |_| {
            std::fs::remove_dir_all(&gone).unwrap();
            Ok(CommandStatus::Good)
        });
        let words = late.unwrap_err().to_string();
        assert!(words.contains("the work is done, but not its metrics"), "{words}");
        let nowhere = dir.at().join("none/m.prom");
        let refused = told(Some(&side_file(&nowhere)), "sort", |_| panic!("there is no place for the metrics"));
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::NotFound);
        assert!(told(None, "sort", |metrics| metrics.during(Vec::new, || Ok(CommandStatus::Good))).is_ok());
    }

    #[test]
    fn two_names_never_give_one_label() {
        let names: [&[u8]; 10] = [
            b"\xff.prom",
            b"\xfe.prom",
            b"\\xff.prom",
            b"\\\\xff.prom",
            b"\xef\xbf\xbd.prom",
            b"a.prom",
            b"a.b.prom",
            b"a.txt",
            b".prom",
            b".prom.prom",
        ];
        let runs: std::collections::BTreeSet<String> =
            names.iter().map(|name| run_of(OsStr::from_bytes(name))).collect();
        assert_eq!(runs.len(), names.len(), "{runs:?}");
        assert!(
            runs.contains("a") && runs.contains("\\xff") && runs.contains("\\\\xff") && runs.contains(".prom"),
            "{runs:?}"
        );
    }

    fn tempfile_dir() -> datapipes_testkit::TempFolder {
        datapipes_testkit::TempFolder::new().unwrap()
    }
}
