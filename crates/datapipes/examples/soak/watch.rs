//! The resources of a process that must not grow.

use std::fmt;

/// Descriptors, threads and memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) descriptors: usize,
    pub(crate) threads: usize,
    pub(crate) resident_kib: u64,
    pub(crate) virtual_kib: u64,
}

impl Held {
    pub(crate) fn now() -> Held {
        let count = |path: &str| std::fs::read_dir(path).map_or(0, Iterator::count);
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let kib = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name))?;
            line.split_whitespace().nth(1)?.parse().ok()
        };
        Held {
            // The descriptor that lists them is one of them.
            descriptors: count("/proc/self/fd").saturating_sub(1),
            threads: threads(),
            resident_kib: kib("VmRSS:").unwrap_or(0),
            virtual_kib: kib("VmSize:").unwrap_or(0),
        }
    }

    /// Returns what has grown since the start by more than normal variation.
    pub(crate) fn leaks(&self, first: &Held) -> Option<String> {
        let too_many = |what: &str, now: u64, then: u64, slack: u64| {
            (now > then + slack).then(|| format!("{what}: {then} after the start, {now} now"))
        };
        // Worker pools start threads up to their number when they are needed; allocators keep some
        // memory for each thread.
        too_many("descriptors", self.descriptors as u64, first.descriptors as u64, 0)
            .or_else(|| too_many("threads", self.threads as u64, first.threads as u64, 8))
            .or_else(|| too_many("KiB resident", self.resident_kib, first.resident_kib, 96 << 10))
            .or_else(|| too_many("KiB mapped", self.virtual_kib, first.virtual_kib, 1 << 20))
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Held { descriptors, threads, resident_kib, virtual_kib } = self;
        let (resident, mapped) = (resident_kib >> 10, virtual_kib >> 10);
        write!(f, "{descriptors} descriptors, {threads} threads, {resident} MiB resident, {mapped} MiB mapped")
    }
}

/// The number of our threads; the kernel's workers of rings come and go.
fn threads() -> usize {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0 };
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| !name.starts_with("iou-")).count()
}
