//! The number of files that the process may still open.

/// Descriptors to leave for others: a pipe's ring, and what other threads open meanwhile.
const OTHERS: usize = 16;

/// Returns the number of descriptors that are left, less those set aside.
pub(crate) fn left() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let open = std::fs::read_dir("/proc/self/fd").map_or(OTHERS, |entries| entries.count());
    usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(open + OTHERS)
}
