//! The check that a device has given back everything that was revoked.
//!
//! The claim of a device is not trusted. The device is stopped, inspected, and continued:
//!
//! ```text
//! SIGSTOP until all its threads have stopped: nothing moves, and no system call is running
//! its socket has no unread packet (it could hold a descriptor)
//! its table has no descriptor of the memory (all threads share one table, by the filter)
//! its map has no mapping of the memory
//! SIGCONT
//! ```
//!
//! These are all the ways in which a process can have a memory: the filter of system calls lets no
//! device pass on descriptors, put them into a ring, or have another process. Things that cannot be
//! inspected, or would take long to inspect, count as kept.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

use super::unread::unread_bytes;

/// The most bytes of `/proc/PID/maps` that are read. They hold thousands of mappings, and an honest
/// device has a few hundred at most.
const MAX_MAPS: u64 = 1 << 20;
/// The time until a stopped device is inspected again, and until one that had unread packets is.
const SOON: Duration = Duration::from_millis(1);
const LATER: Duration = Duration::from_millis(5);

/// The identity of a memory in every process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Inode {
    pub(crate) device: u64,
    pub(crate) number: u64,
}

/// The inspection of a device that claims to have given something back.
#[derive(Debug)]
pub(crate) struct Audit {
    stopped: bool,
    /// The time of the next look.
    pub(crate) next: Instant,
}

/// The result of a look.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// It must be repeated at [`Audit::next`].
    NotYet,
    /// The device has none of the memory.
    Nothing,
    /// The device kept something, which is named.
    Keeps(&'static str),
}

/// The process that is inspected.
pub(crate) struct Suspect<'a> {
    pub(crate) pid: u32,
    pub(crate) pidfd: BorrowedFd<'a>,
    /// The controller's end of its control socket.
    pub(crate) socket: BorrowedFd<'a>,
}

impl Audit {
    pub(crate) fn new() -> Audit {
        Audit { stopped: false, next: Instant::now() }
    }

    /// Continues as far as possible without waiting.
    pub(crate) fn go_on(&mut self, suspect: &Suspect<'_>, kept: &BTreeSet<Inode>) -> Finding {
        if !self.stopped {
            // A process that has ended needs no stop. Its descriptor shows its end.
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
        // Every device has its control socket. A table without it is not the device's: its first
        // thread has ended.
        seen == 0
    }

    fn has_mapping(&self, kept: &BTreeSet<Inode>) -> bool {
        let mut maps = Vec::new();
        let opened = File::open(format!("/proc/{}/maps", self.pid));
        let read = opened.and_then(|file| file.take(MAX_MAPS).read_to_end(&mut maps));
        match read {
            // Every live process has mappings. A process whose first thread has ended shows none.
            Ok(len) if len > 0 && (len as u64) < MAX_MAPS => inodes_of(&maps).any(|i| kept.contains(&i)),
            _ => true,
        }
    }
}

/// The files of `/proc/PID/maps`. Their paths can have any bytes but the end of a line.
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

/// The identity of the memory behind a descriptor of this process.
pub(crate) fn inode(fd: BorrowedFd<'_>) -> std::io::Result<Inode> {
    // It is looked up in the same way as for another process, so that both agree.
    let stat = std::fs::metadata(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
    Ok(Inode { device: stat.dev(), number: stat.ino() })
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::channel::memory::{Mapping, Object};

    /// Returns this process, as if it were a device that has nothing to read.
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
        // Unread packets may hold anything.
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
