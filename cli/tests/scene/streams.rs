//! What the tests of `dpipe stream` share.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

pub(crate) fn stream(from: &str, through: &str, to: &Path) -> Command {
    // What it leaves becomes a child of this process, and is found there.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_dpipe"));
    command.env("LC_ALL", "C").stdin(Stdio::null());
    command.args(["stream", "--from", from, "--through", through, "--output"]).arg(to);
    command
}

pub(crate) fn from_file(path: &Path) -> String {
    format!("file:{}", path.display())
}

/// Runs what must succeed, and returns its report.
pub(crate) fn good(command: &mut Command) -> serde_json::Value {
    let output = command.arg("--json").output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {:?}\n{error}", output.status);
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs what must fail, and returns its standard error.
pub(crate) fn bad(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{command:?}\n{error}");
    error
}

pub(crate) fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// A listener that sends these bytes to who comes first, and closes unless it is to hold on.
pub(crate) fn serve(data: Vec<u8>, hold: bool) -> (String, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp:{}", listener.local_addr().unwrap());
    let thread = std::thread::spawn(move || {
        let (mut peer, _) = listener.accept().unwrap();
        // Who fails at the other end does not take all of it.
        let sent = peer.write_all(&data);
        if hold && sent.is_ok() {
            // Until the other end has gone.
            let _ = peer.read(&mut [0]);
        }
    });
    (address, thread)
}

#[allow(unused_imports)] // Some tests do not wait.
pub(crate) use datapipes_testkit::{ended, ended_within, joined, until};

pub(crate) fn signal(child: &Child, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).unwrap();
}

/// Processes that have this word in their environment: those that a test started, and all below
/// them. Asked are those only that this process or its children started, see [`stream`]: the kernel
/// may keep who reads the environment of another waiting.
pub(crate) fn with_mark(mark: &str) -> Vec<u32> {
    let is_marked = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.windows(mark.len()).any(|w| w == mark.as_bytes())
    };
    // One whose parent ends meanwhile moves, and may be missed; not each time.
    let found = (0..3).flat_map(|_| descendants());
    found.filter(is_marked).collect::<std::collections::BTreeSet<u32>>().into_iter().collect()
}

/// All processes below this one.
fn descendants() -> Vec<u32> {
    let (mut found, mut at) = (vec![std::process::id()], 0);
    while at < found.len() {
        let threads = std::fs::read_dir(format!("/proc/{}/task", found[at])).into_iter().flatten().flatten();
        for thread in threads {
            let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            found.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
        at += 1;
    }
    found.split_off(1)
}
