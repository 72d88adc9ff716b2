//! `dpipe sort` killed at random moments: the input is intact, the output absent or old, and
//! nothing else is left (after `kill -9`: nothing once the next run has run). Every failure prints
//! the seed; `DATAPIPES_SEED` replays it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod scene;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use datapipes_testkit::{Random, ThrottledDisk, bounded, until};
use scene::{TempFolder, folder};

const RECORD: usize = 100;
const RECORDS: usize = 1_000_000;
const OLD: &[u8] = b"what was there before\n";

/// A sort of a file of the folder, to be started.
fn sort(folder: &TempFolder, input: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dpipe"));
    command.current_dir(folder.at()).env("LC_ALL", "C").stdin(Stdio::null()).stderr(Stdio::piped());
    command.args(["sort", "--records=100:0:10", "-S20M", "-Tspill", "-oout/sorted", input]);
    command
}

#[test]
fn killed_at_any_moment() {
    let seed = datapipes_testkit::seed(1);
    let mut random = Random(seed);
    let folder = folder();
    let folders = ["in", "out", "spill"];
    folders.iter().for_each(|name| fs::create_dir(folder.path(name)).unwrap());
    let bytes: Vec<u8> = (0..RECORDS * RECORD / 8).flat_map(|_| random.next().to_le_bytes()).collect();
    let input = folder.path("in/a");
    fs::write(&input, &bytes).unwrap();
    fs::write(folder.path("in/small"), &bytes[..1000 * RECORD]).unwrap();
    let output = folder.path("out/sorted");

    let started = Instant::now();
    assert!(sort(&folder, "in/a").status().unwrap().success());
    let mut whole = started.elapsed();
    let expected = fs::read(&output).unwrap();
    assert!(expected.chunks_exact(RECORD).is_sorted_by(|a, b| a[..10] <= b[..10]) && expected.len() == bytes.len());

    let mut killed = 0;
    for case in 0..36 {
        let signal = [libc::SIGKILL, libc::SIGTERM, libc::SIGINT][case % 3];
        let with_old = case / 3 % 2 == 0;
        let _ = fs::remove_file(&output);
        if with_old {
            fs::write(&output, OLD).unwrap();
        }
        let wait = Duration::from_secs_f64(whole.as_secs_f64() * (random.next() % 1000) as f64 / 1000.0);
        let name =
            format!("seed {seed}, case {case}, signal {signal} after {wait:?} of {whole:?}, old output {with_old}");
        let mut child = sort(&folder, "in/a").spawn().unwrap();
        let started = Instant::now();
        std::thread::sleep(wait);
        let pid = rustix::process::Pid::from_child(&child);
        // It may have ended already.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::from_named_raw(signal).unwrap());
        let status = bounded(&name, move || child.wait()).unwrap();

        if status.success() {
            // It was quicker than the ones before: the next moments come earlier.
            whole = whole.mul_f64(0.8).min(started.elapsed());
            assert!(fs::read(&output).unwrap() == expected, "{name}: the output is wrong");
        } else {
            killed += 1;
            let died_of = status.signal();
            assert_eq!(died_of, Some(signal), "{name}: {status}");
            match fs::read(&output) {
                // It was killed between giving the name and leaving.
                Ok(now) => {
                    assert!(now == expected || (with_old && now == OLD), "{name}: the output is neither old nor new")
                }
                Err(e) => assert!(!with_old && e.kind() == std::io::ErrorKind::NotFound, "{name}: {e}"),
            }
            if signal == libc::SIGKILL {
                assert!(sort(&folder, "in/small").status().unwrap().success(), "{name}: the next run failed");
            }
        }
        let mut names = folder.names().unwrap();
        names.retain(|name| name != "out/sorted");
        assert_eq!(names, ["in", "in/a", "in/small", "out", "spill"], "{name}: leftovers");
        assert!(fs::read(&input).unwrap() == bytes, "{name}: the input changed");
    }
    assert!(killed >= 12, "only {killed} of 36 sorts were killed");
}

#[test]
fn a_second_interrupt_ends_at_once() {
    let folder = folder();
    let mut command = Command::new(env!("CARGO_BIN_EXE_dpipe"));
    command.args(["demo", "--dir", ".", "--size", "200M"]).current_dir(folder.at());
    let mut demo = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let pid = demo.id();
    // It waits for a sort that does not end.
    let mut held = 0;
    until("it runs a sort", || {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        held = children.split_whitespace().next().and_then(|pid| pid.parse().ok()).unwrap_or(0);
        // Until it has become the other program, whoever starts it waits in the kernel.
        let words = fs::read(format!("/proc/{held}/cmdline")).unwrap_or_default();
        let mut words = words.split(|byte| *byte == 0);
        let is_sort = words.next().is_some_and(|program| program.ends_with(b"dpipe")) && words.next() == Some(b"sort");
        // SAFETY: kill takes no pointer; the process is a child of our child, which waits for it.
        held > 0 && is_sort && unsafe { libc::kill(held, libc::SIGSTOP) } == 0
    });
    // A signal of a lower number that comes before it has stopped would be taken first.
    until("the sort has stopped", || {
        let mut threads = fs::read_dir(format!("/proc/{held}/task")).unwrap();
        threads.all(|thread| {
            // One that has just ended says nothing.
            let stat = thread.and_then(|thread| fs::read_to_string(thread.path().join("stat"))).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
        })
    });
    let interrupt = || {
        // SAFETY: as above, and the process is our child.
        assert_eq!(unsafe { libc::kill(pid.cast_signed(), libc::SIGINT) }, 0);
    };
    interrupt();
    // What it passes on waits in the stopped program.
    until("it has taken the first one", || {
        let status = fs::read_to_string(format!("/proc/{held}/status")).unwrap();
        let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).unwrap_or("0").trim();
        u64::from_str_radix(pending, 16).unwrap() & 1 << (libc::SIGTERM - 1) != 0
    });
    assert!(demo.try_wait().unwrap().is_none(), "it did not wait");
    interrupt();
    let status = bounded("it ends", move || demo.wait()).unwrap();
    // SAFETY: as above; nobody has waited for it, or it has ended with its parent.
    unsafe { libc::kill(held, libc::SIGKILL) };
    assert_eq!(status.signal(), Some(libc::SIGINT), "{status}");
}

/// What was handed to a slow disk cannot be taken back, so little is handed over at once.
#[test]
fn a_stop_is_heard_while_a_slow_disk_writes() {
    const RATE: u64 = 4_000_000;
    // Ten seconds of the disk.
    const INPUT: u64 = 40 << 20;
    let test = "a_stop_is_heard_while_a_slow_disk_writes";
    let folder = folder();
    let disk = match ThrottledDisk::new(folder.at(), 256 << 20, RATE) {
        Ok(disk) => disk,
        Err(why) => {
            println!("SKIPPED: {test}: {why}");
            return;
        }
    };
    let mut random = Random(7);
    let lines: Vec<String> = (0..INPUT / 32).map(|_| format!("{:031x}\n", u128::from(random.next()))).collect();
    fs::write(folder.path("lines"), lines.concat()).unwrap();
    let mut sorted = lines;
    sorted.sort_unstable();
    fs::write(folder.path("sorted"), sorted.concat()).unwrap();
    let saved = Command::new(env!("CARGO_BIN_EXE_dpipe"))
        .args(["checkpoint", "save", "saves", "lines"])
        .current_dir(folder.at())
        .output();
    assert!(saved.unwrap().status.success());
    let output = disk.at().join("out");
    let restored = disk.at().join("restored");
    let runs = format!("-T{}", disk.at().display());
    for words in [
        &["sort", "-S500M", "lines", "-o"][..],
        &["sort", "-S500M", "--records=32:0:31", "lines", "-o"],
        &["sort", "-S16M", "-T.", "lines", "-o"],
        &["sort", "-S20M", &runs, "--u64", "--method=merge", "lines", "-o"],
        &["sort", "-m", "sorted", "sorted", "-o"],
        &["copy", "--force", "lines"],
        &["checkpoint", "restore", "saves", "--to"],
        &["stream", "--from", "file:lines", "-o"],
    ] {
        let is_restore = words[0] == "checkpoint";
        fs::write(&output, OLD).unwrap();
        fs::File::open(&output).unwrap().sync_all().unwrap();
        let before = disk.written().unwrap();
        let mut command = disk.command(env!("CARGO_BIN_EXE_dpipe"));
        command.args(words).arg(if is_restore { &restored } else { &output }).current_dir(folder.at());
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        until("some of the output is written", || {
            assert!(child.try_wait().unwrap().is_none(), "{words:?}: it ended before it was stopped");
            disk.written().unwrap() - before > 2 << 20
        });
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let ended = bounded("a stopped program", move || child.wait_with_output()).unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        let written = disk.written().unwrap() - before;
        assert!(written < INPUT - (4 << 20), "{words:?}: {written} bytes were written although it was stopped");
        assert_eq!(ended.status.signal(), Some(libc::SIGINT), "{words:?}: {} {said}", ended.status);
        assert_eq!(fs::read(&output).unwrap(), OLD, "{words:?}: {said}");
        assert!(!restored.join("lines").exists(), "{words:?}: {said}");
        let _ = fs::remove_dir_all(&restored);
        let mut names: Vec<_> = fs::read_dir(disk.at()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["lost+found", "out"], "{words:?}: {said}");
    }
}

/// A loop of a shell goes on unless the program dies of the signal, also where the signal comes
/// after the output got its name.
#[test]
fn a_signal_that_comes_after_the_work_ends_the_program() {
    if !scene::can_hold_calls() {
        println!(
            "SKIPPED: a_signal_that_comes_after_the_work_ends_the_program: strace is not installed, or may not trace"
        );
        return;
    }
    let folder = folder();
    fs::write(folder.path("in"), "b\na\n").unwrap();
    let commands: [(&[&str], &str); 4] = [
        (&["sort", "in", "-o", "sorted"], "sorted"),
        (&["copy", "in", "copied"], "copied"),
        (&["stream", "--from", "file:in", "-o", "streamed"], "streamed"),
        (&["checkpoint", "save", "ck", "in"], "ck/checkpoint-00000000000000000001"),
    ];
    let interrupted = |words: &[&str], output: &str| {
        // The output has its name as soon as the call is made; that of a checkpoint, too.
        let mut traced = Command::new("strace");
        traced.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=linkat,renameat2,renameat"]);
        traced
            .args(["-e", "inject=linkat,renameat2,renameat:delay_exit=10000000", env!("CARGO_BIN_EXE_dpipe")])
            .args(words);
        let mut child = traced.current_dir(folder.at()).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        until("the output has its name", || folder.path(output).exists());
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap();
        let program: i32 = children.split_whitespace().next().unwrap().parse().unwrap();
        // SAFETY: kill takes no pointer; the process is a child of our child, which has not ended.
        assert_eq!(unsafe { libc::kill(program, libc::SIGINT) }, 0);
        let status = bounded("strace", move || child.wait()).unwrap();
        // strace dies as its child did.
        assert_eq!(status.signal(), Some(libc::SIGINT), "{words:?}: {status}");
    };
    // Each of them is held for long, so they are held at once.
    std::thread::scope(|scope| {
        for (words, output) in commands {
            scope.spawn(move || interrupted(words, output));
        }
    });
    assert_eq!(fs::read(folder.path("sorted")).unwrap(), b"a\nb\n");
    assert_eq!(fs::read(folder.path("copied")).unwrap(), b"b\na\n");
    assert_eq!(fs::read(folder.path("streamed")).unwrap(), b"b\na\n");
}
