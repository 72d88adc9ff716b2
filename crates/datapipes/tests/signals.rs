//! The threads of the library take no signal of the program's, and programs that they start do.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

mod scene;

use std::process::{Command, Stdio};

use datapipes::runtime::RuntimeOptions;
use datapipes::threads::{join, spawn, start_program};
use datapipes::{Dram, Runtime, Span};
use datapipes_testkit::until;
use scene::{MIB, file_of, pattern};

/// Signals that tell of a fault of the thread itself, and the one of profilers.
const OF_THREADS: [i32; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS, libc::SIGPROF];
/// Signals that a program may want to take in a thread of its own.
const OF_PROGRAMS: [i32; 8] =
    [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGCHLD, libc::SIGUSR1, libc::SIGALRM, libc::SIGPIPE, 40];

/// The signals that a `status` of the kernel's says are blocked.
fn blocked(status: &str) -> u64 {
    let line = status.lines().find(|line| line.starts_with("SigBlk:")).unwrap();
    u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap()
}

fn here() -> u64 {
    blocked(&std::fs::read_to_string("/proc/thread-self/status").unwrap())
}

fn is_any_of_threads(mask: u64) -> bool {
    OF_THREADS.iter().any(|signal| mask & 1 << (signal - 1) != 0)
}

fn assert_quiet(mask: u64, who: &str) {
    let is_blocked = |signal: &i32| mask & 1 << (signal - 1) != 0;
    assert!(OF_PROGRAMS.iter().all(is_blocked), "{who} takes signals: {mask:x}");
    assert!(!is_any_of_threads(mask), "{who} does not hear of its own signals: {mask:x}");
}

#[test]
fn the_threads_of_a_runtime_take_no_signals() {
    let machine = datapipes::discover();
    let before = here();
    let runtime = Runtime::start_with(&machine, RuntimeOptions::new(&machine).name("sgnl")).unwrap();
    let (file, target) = (file_of(&pattern(4 * MIB)), Dram::allocate(4 * MIB as usize).unwrap());
    let memory = Dram::allocate(4 * MIB as usize).unwrap();
    let span = Span { source: 0, target: 0, len: 4 * MIB };
    let (tell, told) = std::sync::mpsc::channel();
    // The own thread, and one that copies.
    runtime.connect(&file, &target).unwrap().transfer(span).unwrap().on_done(move |_| tell.send(here()).unwrap());
    assert_quiet(told.recv_timeout(datapipes_testkit::PATIENCE).unwrap(), "the thread of callbacks");
    runtime.connect(&memory, &target).unwrap().transfer(span).unwrap().wait().unwrap();
    let mut seen = 0;
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let path = task.unwrap().path().join("status");
        let mut looked = None;
        // While a thread starts another one, the C library blocks every signal in it.
        until("the end of the start of a thread", || {
            looked = std::fs::read_to_string(&path).ok();
            looked.as_ref().is_none_or(|status| !is_any_of_threads(blocked(status)))
        });
        // A thread of another test may have ended.
        let Some(status) = looked else { continue };
        let name = status.lines().next().unwrap().to_owned();
        if name.contains("sgnl-") {
            assert_quiet(blocked(&status), &name);
            seen += 1;
        }
    }
    assert!(seen >= 2, "{seen} threads of the runtime");
    machine
        .each_core(|_| {
            assert_quiet(here(), "a thread of a core");
            Ok(())
        })
        .unwrap();
    assert_eq!(here(), before, "the mask of the thread that started them");
}

#[test]
fn a_program_that_a_thread_of_the_library_starts_takes_signals() {
    let program = || {
        assert_quiet(here(), "a thread");
        let mut command = Command::new("cat");
        let child = start_program(command.arg("/proc/self/status").stdin(Stdio::null()).stdout(Stdio::piped()));
        blocked(&String::from_utf8(child.unwrap().wait_with_output().unwrap().stdout).unwrap())
    };
    let before = here();
    assert_eq!(join(spawn("starts", program).unwrap()).unwrap(), before);
    // A thread of a thread.
    let nested = move || join(spawn("starts", program).unwrap()).unwrap();
    assert_eq!(join(spawn("nests", nested).unwrap()).unwrap(), before);
    let scoped =
        std::thread::scope(|scope| datapipes::threads::spawn_scoped(scope, "starts", program).unwrap().join().unwrap());
    assert_eq!(scoped, before);
}
