//! A process that may not write is told who writes, and is not delayed by an unrelated process.
//!
//! This is a test program of its own with one test: the stranger is a copy of it.
//!
//! Unsafe code: a mapping, an epoll, and what a child does before it executes a program.
#![allow(unsafe_code, clippy::unwrap_used)]

mod scene;

use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use datapipes_core::ErrorKind;
use datapipes_durable::log::{Log, LogFolder, LogOptions};
use datapipes_testkit::{PendingRequests, UnresponsiveFs};
use scene::{Scratch, machine};

/// A bound against waiting for ever; nothing here takes so long.
const LONG: Duration = Duration::from_secs(30);
/// A process that cannot read a file of `/proc` for this time waits for something.
const WAITS: Duration = Duration::from_secs(1);

/// Waits for an event that is to be written to memory that never arrives. While it waits, the
/// kernel reports nothing about the descriptor.
fn wait_for_ever(path: &std::path::Path) -> std::io::Result<()> {
    // With copies of this test's descriptors it would keep the file system mounted.
    // SAFETY: this process uses none of them any more.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
    let file = std::fs::File::open(path)?;
    let (_reader, writer) = std::io::pipe()?;
    // SAFETY: a private mapping of a file at an address that the kernel chooses. It is used as room
    // for one event, which fits a page.
    unsafe {
        let (rights, private) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE);
        let page = libc::mmap(std::ptr::null_mut(), 4096, rights, private, file.as_raw_fd(), 0);
        let epoll = libc::epoll_create1(libc::EPOLL_CLOEXEC);
        let mut event = libc::epoll_event { events: libc::EPOLLOUT as u32, u64: 0 };
        if page == libc::MAP_FAILED || libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, writer.as_raw_fd(), &mut event) != 0
        {
            return Err(std::io::Error::last_os_error());
        }
        libc::epoll_wait(epoll, page.cast(), 1, -1);
    }
    Err(std::io::Error::last_os_error())
}

/// Whether reading what files this process has blocks, which it does soon or never.
fn is_beyond_asking(pid: u32) -> bool {
    (0..20).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        let mut asks =
            Command::new("sh").arg("-c").arg(format!("cat /proc/{pid}/fdinfo/* >/dev/null")).spawn().unwrap();
        let since = Instant::now();
        while asks.try_wait().unwrap().is_none() && since.elapsed() < WAITS {
            std::thread::sleep(Duration::from_millis(5));
        }
        // It ends when the file system does.
        asks.try_wait().unwrap().is_none() && asks.kill().is_ok()
    })
}

#[test]
fn a_stranger_keeps_nobody_from_being_told_who_writes() {
    let test = "a_stranger_keeps_nobody_from_being_told_who_writes";
    let scratch = Scratch::new();
    let dir = scratch.path("log");
    let served = match UnresponsiveFs::mount(std::env::temp_dir(), PendingRequests::Read) {
        Ok(served) => served,
        Err(e) => return println!("SKIPPED: {test}: {e}"),
    };
    let (mut told, tells) = std::io::pipe().unwrap();
    let mut stranger = Command::new("true");
    let path = served.file();
    // SAFETY: this runs in the child of a process with several threads. It allocates only a short
    // name, and holds no lock of the others.
    unsafe {
        stranger.pre_exec(move || {
            rustix::io::write(&tells, &std::process::id().to_ne_bytes())?;
            wait_for_ever(&path)
        });
    }
    let stays = std::thread::spawn(move || stranger.status());
    let mut pid = [0; 4];
    std::io::Read::read_exact(&mut told, &mut pid).unwrap();
    let stuck = is_beyond_asking(u32::from_ne_bytes(pid));
    let (tells, answer) = std::sync::mpsc::channel();
    let asks = std::thread::spawn(move || {
        let machine = machine();
        let open = || Log::open(&machine, LogFolder::at(&machine, &dir), LogOptions::default());
        let log = open().unwrap();
        let _ = tells.send(open().err());
        drop(log);
    });
    let refused = answer.recv_timeout(LONG);
    drop(served);
    let _ = stays.join();
    datapipes_testkit::joined(asks);
    if !stuck {
        println!("NOT APPLICABLE: {test}: here the kernel tells of such a process");
    }
    let refused = refused.unwrap().unwrap();
    let named = format!("(process {})", std::process::id());
    assert!(refused.kind() == ErrorKind::Busy && refused.to_string().contains(&named), "{refused}");
}
