//! Who may attach the shared memory that UCX makes.
//!
//! UCX makes its System V segments for user and group, whatever the umask is: every process of the
//! same group could read and change what goes through them. Their permissions are those of the user
//! alone a moment after they were made.
//!
//! Rejected: an IPC namespace, which takes rights that users do not have.

use std::collections::BTreeSet;
use std::mem::MaybeUninit;

/// The bit of a segment that goes away once nobody is attached, in `/proc/sysvipc/shm`. UCX sets it
/// at once; a program that shares a segment by its key cannot.
const DESTROYED_LAST: u32 = 0o1000;

/// The segments of this process that were there before UCX made some.
#[derive(Debug)]
pub(crate) struct SegmentsBefore(BTreeSet<i32>);

impl SegmentsBefore {
    pub(crate) fn now() -> SegmentsBefore {
        SegmentsBefore(own_segments().into_iter().collect())
    }

    /// Takes those made since then from the group.
    pub(crate) fn take_new_ones_from_group(&self) {
        own_segments().into_iter().filter(|id| !self.0.contains(id)).for_each(take_from_group);
    }
}

/// Takes all segments from the group that this process, which uses UCX and nothing else, has made.
pub fn take_segments_from_group() {
    own_segments().into_iter().for_each(take_from_group);
}

/// The segments of this process that the group may use, as UCX makes them.
fn own_segments() -> Vec<i32> {
    let text = std::fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    let own = std::process::id();
    let segment = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let id = words.next()?.parse().ok()?;
        let mode = u32::from_str_radix(words.next()?, 8).ok()?;
        let creator: u32 = words.nth(1)?.parse().ok()?;
        (creator == own && mode & DESTROYED_LAST != 0 && mode & 0o077 != 0).then_some(id)
    };
    text.lines().filter_map(segment).collect()
}

#[allow(unsafe_code)]
fn take_from_group(id: i32) {
    let mut facts = MaybeUninit::<libc::shmid_ds>::uninit();
    // SAFETY: the kernel fills the structure where it says 0, and reads it then; neither call
    // touches the memory of the segment. One that has gone meanwhile is an error, and nothing is
    // left to do.
    unsafe {
        if libc::shmctl(id, libc::IPC_STAT, facts.as_mut_ptr()) == 0 {
            let facts = facts.assume_init_mut();
            facts.shm_perm.mode = 0o600;
            libc::shmctl(id, libc::IPC_SET, facts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[allow(unsafe_code)]
    fn made() -> (i32, usize) {
        // SAFETY: the segment is new, and attached where the kernel chooses; it goes with the
        // process.
        unsafe {
            let id = libc::shmget(libc::IPC_PRIVATE, 4096, 0o660);
            let at = libc::shmat(id, std::ptr::null(), 0).addr();
            libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
            (id, at)
        }
    }

    #[test]
    fn only_segments_that_came_since_then_are_taken_from_the_group() {
        datapipes_testkit::child::in_child(&|| {
            let (old, _) = made();
            if own_segments() != [old] {
                println!("SKIPPED: segments: /proc/sysvipc/shm does not show them");
                return;
            }
            let before = SegmentsBefore::now();
            let (_, at) = made();
            assert_ne!(at, usize::MAX);
            before.take_new_ones_from_group();
            assert_eq!(own_segments(), [old]);
            take_segments_from_group();
            assert!(own_segments().is_empty());
        });
    }
}
