//! Whether a device still has anything of what was revoked.
//!
//! A device that says so is not believed; it is stopped, looked into, and let go on:
//!
//! ```text
//! SIGSTOP; all its threads have stopped     nothing is under way in the kernel for it, and nothing moves
//! its socket has no packet that it left     a descriptor could wait there, taken out later
//! its table has no descriptor of the memory (threads share one table: see the filter of system calls)
//! its map has no mapping of the memory
//! SIGCONT
//! ```
//!
//! These are all the ways in which a process can have a memory: the filter lets no device pass
//! descriptors on, put them into a ring, or have another process. What cannot be looked at, and
//! what would take long to look at, counts as kept.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

use super::unread::unread_bytes;

/// Bytes of `/proc/PID/maps` that are read: thousands of mappings, where an honest device has a few
/// hundred at most.
const MAX_MAPS: u64 = 1 << 20;
/// How soon a stopped device is looked at again, and one that had not read all it was told.
const SOON: Duration = Duration::from_millis(1);
const LATER: Duration = Duration::from_millis(5);

/// By which a memory is known in every process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Inode {
    pub(super) device: u64,
    pub(super) number: u64,
}

/// A device that says that it has given something back.
#[derive(Debug)]
pub(super) struct Audit {
    stopped: bool,
    /// When to look next.
    pub(super) next: Instant,
}

/// What came of looking.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// Look again at [`Audit::next`].
    NotYet,
    /// It has nothing of it.
    Nothing,
    /// What it kept.
    Keeps(&'static str),
}

/// The process that is looked into.
pub(super) struct Suspect<'a> {
    pub(super) pid: u32,
    pub(super) pidfd: BorrowedFd<'a>,
    /// The controller's end of its control socket.
    pub(super) socket: BorrowedFd<'a>,
}

impl Audit {
    pub(super) fn new() -> Audit {
        Audit { stopped: false, next: Instant::now() }
    }

    /// Goes on as far as can be without waiting.
    pub(super) fn go_on(&mut self, suspect: &Suspect<'_>, kept: &BTreeSet<Inode>) -> Finding {
        if !self.stopped {
            // One that has ended needs no stop; that is told by its descriptor.
            self.stopped = pidfd_send_signal(suspect.pidfd, Signal::STOP).is_ok();
            self.next = Instant::now();
        }
        if !has_stopped(suspect.pidfd) {
            self.next = Instant::now() + SOON;
            return Finding::NotYet;
        }
        let finding = suspect.look(kept);
        self.stopped = false;
        self.next = Instant::now() + LATER;
        let _ = pidfd_send_signal(suspect.pidfd, Signal::CONT);
        finding
    }
}

/// Whether the last of its threads has stopped.
fn has_stopped(pidfd: BorrowedFd<'_>) -> bool {
    let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(waitid(WaitId::PidFd(pidfd), options), Ok(Some(status)) if status.stopped())
}

impl Suspect<'_> {
    fn look(&self, kept: &BTreeSet<Inode>) -> Finding {
        if unread_bytes(self.socket) != Some(0) {
            return Finding::NotYet;
        }
        if self.has_descriptor(kept) {
            return Finding::Keeps("it kept a descriptor of memory that was revoked");
        }
        if self.has_mapping(kept) {
            return Finding::Keeps("it kept memory mapped that was revoked");
        }
        Finding::Nothing
    }

    fn has_descriptor(&self, kept: &BTreeSet<Inode>) -> bool {
        let Ok(table) = std::fs::read_dir(format!("/proc/{}/fd", self.pid)) else { return true };
        let mut seen = 0;
        for entry in table {
            seen += 1;
            let stat = entry.and_then(|entry| std::fs::metadata(entry.path()));
            let inode = stat.map(|s| Inode { device: s.dev(), number: s.ino() });
            if inode.map_or(true, |inode| kept.contains(&inode)) {
                return true;
            }
        }
        // It has its control socket. A table without it is not its table: its first thread has
        // ended.
        seen == 0
    }

    fn has_mapping(&self, kept: &BTreeSet<Inode>) -> bool {
        let mut maps = Vec::new();
        let opened = File::open(format!("/proc/{}/maps", self.pid));
        let read = opened.and_then(|file| file.take(MAX_MAPS).read_to_end(&mut maps));
        match read {
            // Every process that lives maps something: one whose first thread has ended shows
            // nothing.
            Ok(len) if len > 0 && (len as u64) < MAX_MAPS => inodes_of(&maps).any(|i| kept.contains(&i)),
            _ => true,
        }
    }
}

/// The files of `/proc/PID/maps`. Their paths can be any bytes but the end of a line.
fn inodes_of(maps: &[u8]) -> impl Iterator<Item = Inode> {
    maps.split(|byte| *byte == b'\n').filter_map(|line| inode_of(&String::from_utf8_lossy(line)))
}

/// The file of a line of `/proc/PID/maps`: `address permissions offset major:minor inode path`.
fn inode_of(line: &str) -> Option<Inode> {
    let mut words = line.split_ascii_whitespace().skip(3);
    let (major, minor) = words.next()?.split_once(':')?;
    let number = |text| u32::from_str_radix(text, 16).ok();
    let device = rustix::fs::makedev(number(major)?, number(minor)?);
    Some(Inode { device, number: words.next()?.parse().ok()? })
}

/// The memory behind a descriptor of this process.
pub(super) fn inode(fd: BorrowedFd<'_>) -> std::io::Result<Inode> {
    // By the same way as for another process, so that both say the same.
    let stat = std::fs::metadata(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
    Ok(Inode { device: stat.dev(), number: stat.ino() })
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::channel::memory::{Mapping, Object};

    /// This process, as if it were a device that has nothing to read.
    fn own(socket: BorrowedFd<'_>) -> Suspect<'_> {
        Suspect { pid: std::process::id(), pidfd: socket, socket }
    }

    #[test]
    fn what_a_process_has_of_a_memory_is_found_and_what_others_have_is_not() {
        let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
        let (one, two) = (Object::create(8192).unwrap(), Object::create(8192).unwrap());
        let kept: BTreeSet<_> = [inode(one.as_fd()).unwrap()].into();
        let other: BTreeSet<_> = [Inode { device: u64::MAX, number: 1 }].into();
        let suspect = own(here.as_fd());
        assert_eq!(suspect.look(&other), Finding::Nothing);
        assert!(matches!(suspect.look(&kept), Finding::Keeps(what) if what.contains("descriptor")));
        let mapping = Mapping::new(one.as_fd(), 8192, true).unwrap();
        drop(one);
        assert!(matches!(suspect.look(&kept), Finding::Keeps(what) if what.contains("mapped")));
        drop(mapping);
        assert_eq!(suspect.look(&kept), Finding::Nothing);
        // What it was sent and did not read may hold anything.
        std::io::Write::write_all(&mut &here, b"a packet").unwrap();
        assert_eq!(suspect.look(&other), Finding::NotYet);
        drop((there, two));
    }

    #[test]
    fn lines_of_the_map_are_read() {
        let line = "7f00-7f10 rw-s 00000000 00:01 1044  /memfd:fabric (deleted)";
        assert_eq!(inode_of(line), Some(Inode { device: rustix::fs::makedev(0, 1), number: 1044 }));
        assert_eq!(inode_of("7f00-7f10 rw-p 00000000 00:00 0").map(|i| i.number), Some(0));
        assert_eq!(inode_of("garbage"), None);
        let maps =
            b"1-2 r-xp 00000000 00:02 5  /u\xff/program\n3-4 r--s 00000000 00:01 1044  /memfd:fabric (deleted)\n";
        assert_eq!(inodes_of(maps).map(|i| i.number).collect::<Vec<_>>(), [5, 1044]);
    }
}
