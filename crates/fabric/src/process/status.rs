//! Figures of a process from `/proc/PID/status`.

/// Returns the figure with this name. The process's name is among the lines, and can have any
/// bytes.
pub(crate) fn figure(status: &[u8], name: &str) -> Option<u64> {
    let line =
        status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b":"));
    std::str::from_utf8(line?).ok()?.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::figure;

    #[test]
    fn figures_are_found_beside_a_name_of_any_bytes() {
        let status = b"Name:\t\xff\xfe: x\nVmPTE:\t      44 kB\nThreads:\t3\n";
        assert_eq!((figure(status, "VmPTE"), figure(status, "Threads")), (Some(44), Some(3)));
        assert_eq!((figure(status, "Name"), figure(status, "VmSwap"), figure(b"", "Threads")), (None, None, None));
    }
}
