//! Stages of `dpipe stream` that are programs, while a process of somebody else starts a program
//! and cannot: what it has to close first lies on a file system whose server never answers. The
//! kernel lets nobody read `/proc/PID/stat` of such a process.
//!
//! A program of its own with one test: whoever looks through `/proc` waits while it runs, which is
//! a few seconds.
#![allow(clippy::unwrap_used)]

mod scene;

use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use datapipes_testkit::{PendingRequests, UnresponsiveFs};
use rustix::fs::{Mode, OFlags};
use scene::folder;
use scene::streams::{bytes, ended_within, from_file, stream};

/// No stream here takes so long: a bound against waiting for ever, and for those who wait with it.
const PATIENCE: Duration = Duration::from_secs(30);
/// Who cannot read a file of `/proc` for so long waits for something.
const WAITS: Duration = Duration::from_secs(1);

/// Whether the kernel lets nobody know how this process fares, which it comes to soon if ever.
fn is_beyond_asking(pid: u32) -> bool {
    for _ in 0..20 {
        let mut asks = Command::new("cat").arg(format!("/proc/{pid}/stat")).stdout(Stdio::null()).spawn().unwrap();
        let since = Instant::now();
        loop {
            match asks.try_wait().unwrap() {
                Some(_) => break,
                // It ends when the file system does.
                None if since.elapsed() > WAITS => return asks.kill().is_ok(),
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

#[test]
fn a_program_ends_though_a_stranger_cannot_start_another() {
    let test = "a_program_ends_though_a_stranger_cannot_start_another";
    let folder = folder();
    let (input, out) = (folder.path("in"), folder.path("out"));
    fs::write(&input, bytes(1, 300_000)).unwrap();
    let served = match UnresponsiveFs::mount(std::env::temp_dir(), PendingRequests::Flush) {
        Ok(served) => served,
        Err(e) => return println!("SKIPPED: {test}: {e}"),
    };
    let (mut told, tells) = std::io::pipe().unwrap();
    let mut stranger = Command::new("sleep");
    stranger.arg("0");
    let path = served.file();
    // SAFETY: the child makes system calls and allocates nothing that is not small; it uses none of
    // what it closes any more.
    unsafe {
        stranger.pre_exec(move || {
            rustix::io::write(&tells, &std::process::id().to_ne_bytes())?;
            // With copies of this test's descriptors it would keep the file system.
            libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0);
            let file = rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
            // Closed by the start of the program, and not before.
            let _ = std::os::fd::IntoRawFd::into_raw_fd(file);
            Ok(())
        });
    }
    // To start it takes as long as the file system is there.
    let starts = std::thread::spawn(move || stranger.status());
    let mut pid = [0; 4];
    told.read_exact(&mut pid).unwrap();
    let stuck = is_beyond_asking(u32::from_ne_bytes(pid));
    let ends = stuck.then(|| {
        let through = ["exec:cat", "exec:(setsid sleep 1000 &) ; cat"];
        through.map(|through| {
            let mut command = stream(&from_file(&input), through, &out);
            let status = ended_within(&mut command.stderr(Stdio::null()).spawn().unwrap(), PATIENCE);
            (status, fs::read(&out).unwrap_or_default() == bytes(1, 300_000))
        })
    });
    drop(served);
    let _ = starts.join();
    match ends {
        None => println!("NOT APPLICABLE: {test}: here the kernel tells of such a process"),
        Some(ends) => {
            for (status, is_right) in ends {
                assert!(status.is_some_and(|status| status.success()) && is_right, "{status:?}");
            }
        }
    }
}
