//! A file system that a test serves itself, and whose requests it need not answer: what a hostile
//! client passes.
//!
//! Unsafe code: `mount`, `umount2` and `poll`.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::TempFolder;
use datapipes_core::locks::Mutex;

/// Requests that may stay without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PendingRequests {
    /// Each close of a descriptor.
    Flush = 25,
    /// What file system it is.
    StatFs = 17,
    /// Bytes.
    Read = 15,
}

/// One folder with one file of a page, `file`, served by a thread of this process (FUSE). One kind
/// of request is never answered.
///
/// Whoever asks waits, whatever signal comes, until this is dropped. So the last descriptor of it
/// must be closed after it, or by another process: [`open`](Self::open) sees to that. A process
/// that this one starts waits, too, when it closes its copy: start it before, and none beside.
#[derive(Debug)]
pub struct UnresponsiveFs {
    at: PathBuf,
    /// Taken when it ends. The connection ends with its last descriptor, and all who wait get an
    /// error.
    serves: Option<(PipeWriter, JoinHandle<()>)>,
    opened: Mutex<Vec<Arc<OwnedFd>>>,
    _folder: TempFolder,
}

const ROOT: u64 = 1;
const PAGE: u64 = 4096;

impl UnresponsiveFs {
    /// Mounts it in a new folder under `parent`.
    ///
    /// # Errors
    /// Why it cannot be had here, for a line that says that a test was skipped.
    pub fn mount(parent: impl AsRef<Path>, never: PendingRequests) -> Result<UnresponsiveFs, String> {
        let folder = TempFolder::under(parent).map_err(|e| e.to_string())?;
        let at = folder.path("mounted");
        std::fs::create_dir(&at).map_err(|e| format!("{}: {e}", at.display()))?;
        let device = File::options().read(true).write(true).open("/dev/fuse").map_err(|e| format!("/dev/fuse: {e}"))?;
        let data = CString::new(format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd()));
        let target = CString::new(at.as_os_str().as_bytes());
        let (Ok(data), Ok(target)) = (data, target) else { return Err(format!("{}", at.display())) };
        // SAFETY: all of them are strings that end with 0 and live for the call.
        let mounted =
            unsafe { libc::mount(c"test".as_ptr(), target.as_ptr(), c"fuse.test".as_ptr(), 0, data.as_ptr().cast()) };
        if mounted != 0 {
            return Err(format!("mount: {}", std::io::Error::last_os_error()));
        }
        let (end, ended) = std::io::pipe().map_err(|e| e.to_string())?;
        let (ready, is_ready) = std::sync::mpsc::channel();
        let (device_fd, end_fd) = (device.into_raw_fd(), end.into_raw_fd());
        let thread = std::thread::spawn(move || {
            // It has no descriptors but these, and nobody else has them: the connection ends with
            // this thread, also when the process is killed. In one table the kernel would close the
            // file, and wait for an answer, before it let go of the device.
            let apart = own_descriptors([device_fd, end_fd]);
            // SAFETY: given up to this thread above; a copy of each is in its own table where there
            // is one.
            let (device, end) =
                unsafe { (File::from_raw_fd(device_fd), PipeReader::from(OwnedFd::from_raw_fd(end_fd))) };
            let _ = ready.send(apart);
            serve(device, &end, never);
        });
        if let Ok(Ok(())) = is_ready.recv() {
            // SAFETY: the thread has its own copies, and these are nobody's.
            drop(unsafe { (OwnedFd::from_raw_fd(device_fd), OwnedFd::from_raw_fd(end_fd)) });
        }
        Ok(UnresponsiveFs { at, serves: Some((ended, thread)), opened: Mutex::default(), _folder: folder })
    }

    /// Its file.
    pub fn file(&self) -> PathBuf {
        self.at.join("file")
    }

    /// Its file, open to read. Closed in this process only when this has been dropped.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn open(&self) -> std::io::Result<Arc<OwnedFd>> {
        let file = Arc::new(OwnedFd::from(File::open(self.file())?));
        self.opened.lock().push(file.clone());
        Ok(file)
    }
}

impl Drop for UnresponsiveFs {
    fn drop(&mut self) {
        if let Some((ended, thread)) = self.serves.take() {
            drop(ended);
            let _ = thread.join();
        }
        if let Ok(target) = CString::new(self.at.as_os_str().as_bytes()) {
            // SAFETY: a string that ends with 0.
            unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
        }
    }
}

/// Gives this thread a table of descriptors of its own, with two of the process's and no others.
fn own_descriptors(mut kept: [RawFd; 2]) -> std::io::Result<()> {
    kept.sort_unstable();
    let [low, high] = kept.map(RawFd::cast_unsigned);
    // SAFETY: a flag alone; from here on what this thread opens and closes is its own.
    if unsafe { libc::unshare(libc::CLONE_FILES) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    for (first, last) in [(3, low.wrapping_sub(1)), (low + 1, high.wrapping_sub(1)), (high + 1, u32::MAX)] {
        if first <= last {
            // SAFETY: copies of this thread's, which uses none of them.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    }
    Ok(())
}

/// Answers until the other end of the pipe is closed; then the device is, and the connection ends.
fn serve(mut device: File, end: &PipeReader, never: PendingRequests) {
    let mut buffer = vec![0; 1 << 20];
    loop {
        let wait = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut fds = [wait(device.as_raw_fd()), wait(end.as_raw_fd())];
        // SAFETY: an array of two, live for the call.
        if unsafe { libc::poll(fds.as_mut_ptr(), 2, -1) } < 0 {
            continue;
        }
        if fds[1].revents != 0 {
            return;
        }
        let Ok(len) = device.read(&mut buffer) else { return };
        let word = |at: usize| u32::from_ne_bytes(buffer[at..at + 4].try_into().unwrap_or_default());
        let long = |at: usize| u64::from_ne_bytes(buffer[at..at + 8].try_into().unwrap_or_default());
        if len < 40 || word(4) == never as u32 {
            continue;
        }
        let (opcode, unique, node) = (word(4), long(8), long(16));
        let answer = match opcode {
            2 | 36 | 42 => continue, // FORGET, INTERRUPT, BATCH_FORGET want no answer
            1 if buffer[40..].starts_with(b"file\0") => Ok(entry()),
            1 => Err(libc::ENOENT),
            3 => Ok([&60u64.to_ne_bytes()[..], &[0; 8], &attributes(node)].concat()),
            14 | 27 => Ok(vec![0; 16]), // OPEN, OPENDIR
            15 => Ok(vec![7; PAGE as usize]),
            17 => Ok(vec![0; 80]),
            18 | 25 | 29 => Ok(Vec::new()), // RELEASE, FLUSH, RELEASEDIR
            26 => {
                let mut init = vec![0; 64];
                init[..4].copy_from_slice(&7u32.to_ne_bytes());
                init[4..8].copy_from_slice(&31u32.to_ne_bytes());
                init[20..24].copy_from_slice(&(1u32 << 16).to_ne_bytes());
                Ok(init)
            }
            _ => Err(libc::ENOSYS),
        };
        let (errno, body) = match answer {
            Ok(body) => (0, body),
            Err(errno) => (-errno, Vec::new()),
        };
        let header = [&((16 + body.len()) as u32).to_ne_bytes()[..], &errno.to_ne_bytes(), &unique.to_ne_bytes()];
        // A request that was given up meanwhile has no place for an answer.
        let _ = device.write(&[header.concat(), body].concat());
    }
}

fn attributes(node: u64) -> Vec<u8> {
    let mode = if node == ROOT { libc::S_IFDIR | 0o755 } else { libc::S_IFREG | 0o644 };
    let longs = [node, PAGE, PAGE / 512, 0, 0, 0].map(u64::to_ne_bytes).concat();
    let words = [0, 0, 0, mode, 1, 0, 0, 0, PAGE as u32, 0].map(u32::to_ne_bytes).concat();
    [longs, words].concat()
}

fn entry() -> Vec<u8> {
    let times = [2u64, 1, 60, 60].map(u64::to_ne_bytes).concat();
    [times, vec![0; 8], attributes(2)].concat()
}
