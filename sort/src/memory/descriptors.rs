//! How many files a process may still open.

/// Those of which nothing here knows: a pipe's ring, what others open meanwhile.
const OTHERS: usize = 16;

/// Descriptors that can be had, with some set aside.
pub(crate) fn left() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let open = std::fs::read_dir("/proc/self/fd").map_or(OTHERS, |entries| entries.count());
    usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(open + OTHERS)
}
