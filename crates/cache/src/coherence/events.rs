//! Kernel events about changes of files by other processes (fanotify).
//!
//! One queue serves many files. An event names its file by a handle, and the process that caused
//! it, so changes by this process are told apart. It comes right after the change, so a read
//! between the two may still return old bytes. No privilege is needed from kernel 5.13 on. Stores
//! to memory that maps the file cause no events. On a network file system, changes by other
//! machines cause none.
//!
//! The unsafe code is three system calls that rustix does not have, and the decoding of their
//! results. Every pointer is of a live value of the type that the call expects. Events are read
//! from bytes that the kernel filled, by their stated lengths.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use datapipes_core::{Error, Result, Ssd};

/// Bytes of a file's name in events: the file system and the file's handle.
const NAME: usize = 8 + 8 + MAX_HANDLE;
/// The longest handle of a file, in bytes (MAX_HANDLE_SZ).
const MAX_HANDLE: usize = 128;
/// A flag for a handle that need not be usable for opening the file (AT_HANDLE_FID, kernel 6.5).
const AT_HANDLE_FID: i32 = 0x200;

/// The name of a file in events.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileName(Vec<u8>);

/// The file that another process changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    File(FileName),
    /// Any file: events were lost, or an event names no file that can be compared.
    Any,
}

/// A queue of events about files that other processes modified.
pub(crate) struct Events {
    queue: OwnedFd,
    own: i32,
}

/// `struct file_handle` with room for the longest one.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    handle: [u8; MAX_HANDLE],
}

fn failed(what: &'static str, of: &str) -> Error {
    Error::io(what, std::io::Error::last_os_error(), of.to_owned())
        .with_advice("look at the file's times instead, as by default")
}

impl Events {
    /// Returns a queue that listens to no file yet.
    ///
    /// # Errors
    /// `Unavailable`, `PermissionDenied`, or the kernel's error, where it does not let this process
    /// listen.
    pub(crate) fn new() -> Result<Events> {
        let flags = libc::FAN_CLOEXEC | libc::FAN_CLASS_NOTIF | libc::FAN_NONBLOCK | libc::FAN_REPORT_FID;
        // SAFETY: no pointers; the result is checked.
        let queue = unsafe { libc::fanotify_init(flags, (libc::O_RDONLY | libc::O_LARGEFILE) as u32) };
        if queue < 0 {
            return Err(failed("listen for changes", "files"));
        }
        // SAFETY: the descriptor was just made, and nobody else has it.
        let queue = unsafe { OwnedFd::from_raw_fd(queue) };
        Ok(Events { queue, own: std::process::id() as i32 })
    }

    fn mark(&self, ssd: &Ssd, flags: u32) -> bool {
        let file = ssd.file().cached_fd().as_raw_fd();
        // SAFETY: both descriptors are open; without a path, the second one names the file.
        let marked =
            unsafe { libc::fanotify_mark(self.queue.as_raw_fd(), flags, libc::FAN_MODIFY, file, std::ptr::null()) };
        marked >= 0
    }

    /// Begins to listen to a file. Returns its name in events, where that can be known.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn add(&self, ssd: &Ssd) -> Result<Option<FileName>> {
        match self.mark(ssd, libc::FAN_MARK_ADD) {
            true => Ok(name_of(ssd)),
            false => Err(failed("listen for changes of", &ssd.path().display().to_string())),
        }
    }

    /// Stops listening to a file.
    pub(crate) fn remove(&self, ssd: &Ssd) {
        // A file that is gone has lost its mark already.
        self.mark(ssd, libc::FAN_MARK_REMOVE);
    }

    /// Returns a descriptor that is readable while there is something to [`take`](Self::take).
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }

    /// Takes all events. Calls `foreign` for those that another process caused.
    pub(crate) fn take(&self, mut foreign: impl FnMut(Of)) {
        let mut bytes = [0u8; 4096];
        while let Ok(n) = rustix::io::read(&self.queue, &mut bytes) {
            let mut rest = &bytes[..n];
            if rest.is_empty() {
                break;
            }
            while rest.len() >= size_of::<libc::fanotify_event_metadata>() {
                // SAFETY: there are enough bytes, which the kernel filled with such a value. The
                // read needs no alignment.
                let event = unsafe { rest.as_ptr().cast::<libc::fanotify_event_metadata>().read_unaligned() };
                let len = (event.event_len as usize).max(size_of::<libc::fanotify_event_metadata>());
                if event.mask & libc::FAN_Q_OVERFLOW != 0 {
                    foreign(Of::Any);
                } else if event.pid != self.own {
                    let info = rest.get(usize::from(event.metadata_len)..len.min(rest.len())).unwrap_or_default();
                    foreign(named(info).map_or(Of::Any, Of::File));
                }
                rest = rest.get(len..).unwrap_or_default();
            }
        }
    }
}

/// Returns the file that an event's information names.
///
/// ```text
/// bytes 0: kind; 2..4: total length; 4..12: file system; 12..16: length of the handle;
/// 16..20: kind of the handle; then the handle
/// ```
fn named(info: &[u8]) -> Option<FileName> {
    if *info.first()? != libc::FAN_EVENT_INFO_TYPE_FID {
        return None;
    }
    let len = u32::from_ne_bytes(info.get(12..16)?.try_into().ok()?) as usize;
    info.get(4..20_usize.checked_add(len)?).map(|name| FileName(name.to_vec()))
}

/// Returns the name of the file in events, by asking the file.
fn name_of(ssd: &Ssd) -> Option<FileName> {
    let file = ssd.file().cached_fd().as_raw_fd();
    // SAFETY: an all-zero statfs is a value of its type.
    let mut system: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is of a live statfs.
    if unsafe { libc::fstatfs(file, &raw mut system) } != 0 {
        return None;
    }
    // SAFETY: an fsid is two numbers of 32 bits, of which every pattern is a value.
    let id: [u8; 8] = unsafe { std::mem::transmute(system.f_fsid) };
    let mut handle = Handle { bytes: MAX_HANDLE as u32, kind: 0, handle: [0; MAX_HANDLE] };
    let mut mount = 0i32;
    let mut ask = |flags: i32| {
        handle.bytes = MAX_HANDLE as u32;
        // SAFETY: the handle has room for as many bytes as it says; the other pointers are of an
        // empty name and a live number.
        unsafe {
            libc::name_to_handle_at(
                file,
                c"".as_ptr(),
                (&raw mut handle).cast::<libc::file_handle>(),
                &raw mut mount,
                libc::AT_EMPTY_PATH | flags,
            )
        }
    };
    if ask(AT_HANDLE_FID) != 0 && ask(0) != 0 {
        return None;
    }
    let mut name = Vec::with_capacity(NAME);
    name.extend_from_slice(&id);
    name.extend_from_slice(&handle.bytes.to_ne_bytes());
    name.extend_from_slice(&handle.kind.to_ne_bytes());
    name.extend_from_slice(handle.handle.get(..handle.bytes as usize)?);
    Some(FileName(name))
}

#[cfg(all(test, not(miri), not(shuttle)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_event_names_the_file_that_another_process_changed() {
        let events = match Events::new() {
            Ok(events) => events,
            Err(e) => return println!("SKIPPED: an_event_names_the_file_that_another_process_changed: {e}"),
        };
        let paths = ["one", "two"].map(|n| {
            let path = std::env::temp_dir().join(format!("dp-events-{}-{n}", std::process::id()));
            std::fs::write(&path, [7; 4096]).unwrap();
            path
        });
        let ssds = paths.each_ref().map(|p| Ssd::open(p).unwrap());
        let names = match (events.add(&ssds[0]), events.add(&ssds[1])) {
            (Ok(one), Ok(two)) => [one, two],
            (one, two) => {
                return println!("SKIPPED: an_event_names_the_file_that_another_process_changed: {one:?}, {two:?}");
            }
        };
        let taken = || {
            let mut taken = Vec::new();
            events.take(|of| taken.push(of));
            taken.dedup();
            taken
        };
        std::fs::write(&paths[0], [8; 10]).unwrap();
        assert_eq!(taken(), [], "what this process did is none of others");
        let by_another = |at: usize| {
            let done = std::process::Command::new("sh").args(["-c", "echo 12345 >> \"$0\""]).arg(&paths[at]).status();
            assert!(done.unwrap().success());
            taken()
        };
        for (at, name) in names.iter().enumerate() {
            let name = name.clone().map_or(Of::Any, Of::File);
            assert_eq!(by_another(at), [name], "file {at}");
        }
        assert_ne!(names[0], names[1]);
        events.remove(&ssds[0]);
        assert_eq!(by_another(0), []);
        paths.iter().for_each(|p| std::fs::remove_file(p).unwrap());
    }
}
