//! A limit of memory for one process, page cache included: a memory cgroup of its own (version 1 or
//! 2).

use crate::{TaskResult, steps};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where memory cgroups are made here, and under which names they keep their figures.
pub(in crate::bench) struct Limits {
    root: PathBuf,
    names: Names,
    made: std::cell::Cell<u64>,
}

#[derive(Clone, Copy)]
struct Names {
    limit: &'static str,
    peak: &'static str,
    swap: Option<(&'static str, Swap)>,
}

#[derive(Clone, Copy)]
enum Swap {
    /// Memory and swap together.
    Together,
    Alone,
}

const VERSION_1: Names = Names {
    limit: "memory.limit_in_bytes",
    peak: "memory.max_usage_in_bytes",
    swap: Some(("memory.memsw.limit_in_bytes", Swap::Together)),
};
const VERSION_2: Names =
    Names { limit: "memory.max", peak: "memory.peak", swap: Some(("memory.swap.max", Swap::Alone)) };

impl Limits {
    /// Finds a place where one can be made, by making one.
    pub(in crate::bench) fn find() -> Result<Self, String> {
        let places = [("/sys/fs/cgroup/memory", VERSION_1), ("/sys/fs/cgroup", VERSION_2)];
        let mut why = String::from("there is no memory cgroup");
        for (root, names) in places {
            let limits = Self { root: root.into(), names, made: std::cell::Cell::new(0) };
            if !Path::new(root).exists() {
                continue;
            }
            match limits.make(64 << 20) {
                Ok(_) => return Ok(limits),
                Err(e) => why = format!("no memory cgroup can be made in {root}: {e}"),
            }
        }
        Err(why)
    }

    pub(in crate::bench) fn describe(&self, bytes: u64) -> String {
        format!(
            "each process alone in a memory cgroup of {} MiB ({}), page cache and kernel memory included",
            bytes >> 20,
            self.names.limit
        )
    }

    fn make(&self, bytes: u64) -> TaskResult<Limit> {
        self.made.set(self.made.get() + 1);
        let folder = self.root.join(format!("dpipe-bench-{}-{}", std::process::id(), self.made.get()));
        std::fs::create_dir(&folder)?;
        let limit = Limit { folder, names: self.names };
        std::fs::write(limit.folder.join(self.names.limit), bytes.to_string())?;
        if let Some((name, kind)) = self.names.swap {
            let most = if matches!(kind, Swap::Together) { bytes } else { 0 };
            // A kernel without swap accounting has no such file, and nothing to limit.
            let _ = std::fs::write(limit.folder.join(name), most.to_string());
        }
        Ok(limit)
    }

    /// The same command within a limit, and the limit.
    pub(in crate::bench) fn within(&self, bytes: u64, command: &Command) -> TaskResult<(Command, Limit)> {
        let limit = self.make(bytes)?;
        let mut inside = Command::new("sh");
        inside.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(limit.folder.join("cgroup.procs"));
        inside.arg(command.get_program()).args(command.get_args()).current_dir(steps::root());
        Ok((inside, limit))
    }
}

/// A cgroup, removed with this value.
pub(in crate::bench) struct Limit {
    folder: PathBuf,
    names: Names,
}

impl Limit {
    /// The most memory that was charged at once, in MiB.
    pub(in crate::bench) fn peak_mib(&self) -> Option<f64> {
        let text = std::fs::read_to_string(self.folder.join(self.names.peak)).ok()?;
        Some(text.trim().parse::<f64>().ok()? / 1_048_576.0)
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        // The process may be on its way out for a moment.
        for _ in 0..100 {
            match std::fs::remove_dir(&self.folder) {
                Err(e) if e.kind() == std::io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                _ => return,
            }
        }
    }
}
