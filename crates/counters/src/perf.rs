//! Events that the kernel counts (`perf_event_open(2)`).
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::FromRawFd;

/// Whose events are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountedBy {
    /// The calling thread, and the threads and processes that it starts from now on.
    Thread,
    /// A core, whoever runs on it. It needs a permission.
    Core(u32),
}

/// What is counted, as the kernel takes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EventCode {
    pub(crate) kind: u32,
    pub(crate) config: [u64; 3],
}

/// `struct perf_event_attr` up to its second version (include/uapi/linux/perf_event.h).
#[repr(C)]
#[derive(Debug, Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_kind: u32,
    config1: u64,
    config2: u64,
}

const TIME_ENABLED: u64 = 1;
const TIME_RUNNING: u64 = 2;
const INHERIT: u64 = 1 << 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
/// `PERF_FLAG_FD_CLOEXEC`.
const CLOSE_ON_EXEC: libc::c_ulong = 8;

/// An event that is counted while this lives.
#[derive(Debug)]
pub(crate) struct PerfEvent {
    file: File,
    /// Whether what the kernel does for the thread is left out, because counting it is not
    /// permitted.
    pub(crate) is_user_only: bool,
}

/// A count, and for which part of the time it was taken: the processor has few counters, which the
/// kernel gives to one event after the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PerfCount {
    /// The count of the whole time, estimated where it was taken for a part.
    pub(crate) value: u64,
    /// The part of the time, above 0 and up to 1.
    pub(crate) part: f64,
}

impl PerfEvent {
    /// Begins to count.
    pub(crate) fn open(code: EventCode, by: CountedBy) -> io::Result<PerfEvent> {
        match PerfEvent::open_with(code, by, 0) {
            Err(error) if by == CountedBy::Thread && is_forbidden(&error) => {
                PerfEvent::open_with(code, by, EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR)
            }
            opened => opened,
        }
    }

    fn open_with(code: EventCode, by: CountedBy, excluded: u64) -> io::Result<PerfEvent> {
        let (thread, core, inherited) = match by {
            CountedBy::Thread => (0, -1, INHERIT),
            CountedBy::Core(core) => (-1, i32::try_from(core).map_err(io::Error::other)?, 0),
        };
        let [config, config1, config2] = code.config;
        let attributes = Attributes {
            kind: code.kind,
            size: size_of::<Attributes>() as u32,
            config,
            config1,
            config2,
            read_format: TIME_ENABLED | TIME_RUNNING,
            flags: inherited | excluded,
            ..Attributes::default()
        };
        // SAFETY: the kernel reads `size` bytes of the attributes, which live until it returns, and
        // writes nothing. A result that is not negative is a new descriptor, which nobody else
        // owns.
        let file = unsafe {
            let fd = libc::syscall(libc::SYS_perf_event_open, &raw const attributes, thread, core, -1, CLOSE_ON_EXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            File::from_raw_fd(i32::try_from(fd).map_err(io::Error::other)?)
        };
        Ok(PerfEvent { file, is_user_only: excluded != 0 })
    }

    /// Returns the count since the event was opened, or `None` where it was never taken.
    pub(crate) fn count(&self) -> io::Result<Option<PerfCount>> {
        let mut bytes = [0; 24];
        (&self.file).read_exact(&mut bytes)?;
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_ne_bytes(word)
        };
        Ok(scaled(word(0), word(8), word(16)))
    }
}

/// The count of the whole time, from that of the time in which it was taken.
fn scaled(value: u64, enabled: u64, running: u64) -> Option<PerfCount> {
    match (enabled, running) {
        // It was opened this moment, or its thread has not run.
        (0, _) => Some(PerfCount { value, part: 1.0 }),
        (_, 0) => None,
        _ if running >= enabled => Some(PerfCount { value, part: 1.0 }),
        _ => {
            let part = running as f64 / enabled as f64;
            Some(PerfCount { value: (value as f64 / part) as u64, part })
        }
    }
}

fn is_forbidden(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_of_a_part_of_the_time_is_scaled() {
        assert_eq!(scaled(10, 0, 0), Some(PerfCount { value: 10, part: 1.0 }));
        assert_eq!(scaled(10, 8, 8), Some(PerfCount { value: 10, part: 1.0 }));
        assert_eq!(scaled(10, 8, 2), Some(PerfCount { value: 40, part: 0.25 }));
        assert_eq!(scaled(10, 8, 0), None);
    }

    #[test]
    fn the_attributes_have_the_layout_of_the_kernel() {
        use std::mem::offset_of;
        assert_eq!(size_of::<Attributes>(), 72);
        assert_eq!((offset_of!(Attributes, config), offset_of!(Attributes, read_format)), (8, 32));
        assert_eq!((offset_of!(Attributes, flags), offset_of!(Attributes, config1)), (40, 56));
    }
}
