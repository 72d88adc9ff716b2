//! Streams that say nothing, take nothing or are slow: pipes, named pipes, sockets, terminals,
//! compress programs. A sort that waits for one can be stopped.
// A failed test may panic; clippy's exception for tests covers only functions with #[test].
#![allow(clippy::expect_used, clippy::unwrap_used)]

mod scene;

use std::any::Any;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use datapipes_core::{ErrorKind, Result};
use datapipes_sort::text::TextOptions;
use datapipes_sort::{Control, Input, Output, RecordFormat, SortJob, SortReport, sort_telling};
use datapipes_testkit::{bounded, joined};
use rustix::fs::OFlags;
use scene::{Folder, Random, assert_same, seed, sort_records, usual_machine};

const MIB: usize = 1 << 20;
const FORMAT: RecordFormat = RecordFormat::SORT_BENCHMARK;

/// Something that must live while the sort runs.
type Kept = Box<dyn Any + Send>;
/// An end of a stream for the sort, and what keeps it silent.
type Silent<T> = (T, Kept);

fn fifo(folder: &Folder, name: &str) -> PathBuf {
    let path = folder.path(name);
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
    path
}

/// A terminal's two sides. Lines pass as they are.
fn terminal() -> (OwnedFd, OwnedFd) {
    let ours = rustix::pty::openpt(rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY).unwrap();
    rustix::pty::grantpt(&ours).unwrap();
    rustix::pty::unlockpt(&ours).unwrap();
    let name = rustix::pty::ptsname(&ours, Vec::new()).unwrap();
    let theirs = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, rustix::fs::Mode::empty()).unwrap();
    let mut settings = rustix::termios::tcgetattr(&theirs).unwrap();
    settings.make_raw();
    rustix::termios::tcsetattr(&theirs, rustix::termios::OptionalActions::Now, &settings).unwrap();
    (ours, theirs)
}

fn stream(fd: OwnedFd) -> Input {
    Input::Stream { name: PathBuf::from("a silent stream"), fd }
}

/// Inputs that some bytes come from, and then nothing more.
fn silent_inputs(folder: &Folder) -> Vec<(&'static str, Silent<Input>)> {
    let some = [7; 150];
    let (from_pipe, to_pipe) = rustix::pipe::pipe().unwrap();
    rustix::io::write(&to_pipe, &some).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    (&ours).write_all(&some).unwrap();
    let (keyboard, terminal) = terminal();
    rustix::io::write(&keyboard, &some).unwrap();
    let counter = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
    let open = fifo(folder, "in/open");
    let held = File::options().read(true).write(true).open(&open).unwrap();
    let (lonely, opened) = (fifo(folder, "in/lonely"), Input::open(&open).unwrap());
    vec![
        ("a pipe", (stream(from_pipe), Box::new(to_pipe) as Kept)),
        ("a socket", (stream(theirs.into()), Box::new(ours))),
        ("a terminal", (stream(terminal), Box::new(keyboard))),
        ("another kind", (stream(counter), Box::new(()))),
        ("an open named pipe", (opened, Box::new(()))),
        ("a named pipe to open", (Input::deferred(&open).unwrap(), Box::new(held))),
        ("a named pipe without a writer", (Input::deferred(&lonely).unwrap(), Box::new(()))),
    ]
}

/// Outputs that take some bytes, and then nothing more.
fn silent_outputs(folder: &Folder) -> Vec<(&'static str, Silent<Output>)> {
    let stream = |fd: OwnedFd| Output::Stream { name: PathBuf::from("a full stream"), file: fd.into() };
    let (from_pipe, to_pipe) = rustix::pipe::pipe().unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (screen, terminal) = terminal();
    let path = fifo(folder, "out/pipe");
    let held = File::options().read(true).write(true).open(&path).unwrap();
    vec![
        ("a pipe", (stream(to_pipe), Box::new(from_pipe) as Kept)),
        ("a socket", (stream(theirs.into()), Box::new(ours))),
        ("a terminal", (stream(terminal), Box::new(screen))),
        ("a named pipe", (Output::to(&path).unwrap(), Box::new(held))),
    ]
}

/// How a sort is asked to stop.
#[derive(Clone, Copy, Debug)]
enum Stop {
    Told,
    Panic,
    Control,
}

/// Starts a sort, and stops it when it has certainly come to the silent stream, or soon after.
/// Returns what it said; for a panic, that it went on.
fn stopped(job: SortJob, stop: Stop, merges: bool) -> Option<Result<SortReport>> {
    let (control, every) = (job.control.clone(), Duration::from_millis(20));
    let mut calls = 0;
    let mut told = move || {
        calls += 1;
        calls > 3
    };
    bounded("a sort that was stopped", move || match stop {
        Stop::Told => Some(sort_telling(usual_machine(), job, every, |_| !told())),
        Stop::Panic => {
            let panics = std::panic::AssertUnwindSafe(|| {
                sort_telling(usual_machine(), job, every, |_| if told() { panic!("told") } else { true })
            });
            assert!(std::panic::catch_unwind(panics).is_err());
            None
        }
        Stop::Control => {
            let sorting = std::thread::spawn(move || match merges {
                true => datapipes_sort::merge(usual_machine(), job),
                false => datapipes_sort::sort(usual_machine(), job),
            });
            std::thread::sleep(3 * every);
            control.stop();
            Some(joined(sorting))
        }
    })
}

fn assert_interrupted(outcome: Option<Result<SortReport>>, case: &str) {
    if let Some(outcome) = outcome {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Interrupted, "{case}");
    }
}

#[test]
fn a_sort_that_waits_for_an_input_is_stopped() {
    for (stop, merges) in [(Stop::Told, false), (Stop::Panic, false), (Stop::Control, false), (Stop::Control, true)] {
        let folder = Folder::new();
        let before = Input::deferred(&folder.put("in/a", &[3; 1000])).unwrap();
        let mut before = Some(before);
        for (name, (input, kept)) in silent_inputs(&folder) {
            let inputs = before.take().into_iter().chain([input]).collect();
            let job = folder.job(FORMAT, &[]).inputs(inputs);
            assert_interrupted(stopped(job, stop, merges), &format!("{name}, {stop:?}, merges: {merges}"));
            drop(kept);
        }
        assert_eq!(folder.files(), ["in/a", "in/lonely", "in/open"], "{stop:?}");
    }
}

#[test]
fn a_sort_that_waits_for_its_output_is_stopped() {
    let bytes = Random(seed(480)).bytes(20_000 * 100);
    for (stop, merges) in [(Stop::Told, false), (Stop::Panic, false), (Stop::Control, false), (Stop::Control, true)] {
        let folder = Folder::new();
        let input = folder.put("in/a", &bytes);
        for (name, (output, kept)) in silent_outputs(&folder) {
            let job = folder.job(FORMAT, std::slice::from_ref(&input)).output(output);
            assert_interrupted(stopped(job, stop, merges), &format!("{name}, {stop:?}, merges: {merges}"));
            drop(kept);
        }
        assert_eq!(folder.files(), ["in/a", "out/pipe"], "{stop:?}");
    }
}

#[test]
fn a_small_sort_that_waits_for_its_output_is_stopped() {
    let folder = Folder::new();
    let input = folder.put("in/a", &Random(seed(481)).bytes(9000 * 100));
    for (name, (output, kept)) in silent_outputs(&folder) {
        let control = Control::default();
        let small = datapipes_sort::SmallInput::read(FORMAT, 64 << 20, [input.as_path()]).unwrap().unwrap();
        let stops = control.clone();
        let sorting = std::thread::spawn(move || small.sort_into(output, false, &stops).map(|_| ()));
        std::thread::sleep(Duration::from_millis(40));
        control.stop();
        assert_eq!(joined(sorting).unwrap_err().kind(), ErrorKind::Interrupted, "{name}");
        drop(kept);
    }
}

/// A program for `--compress-program`.
fn program(folder: &Folder, text: &str) -> PathBuf {
    let path = folder.put("in/program", text.as_bytes());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    path
}

#[test]
fn a_sort_that_waits_for_a_compress_program_is_stopped() {
    let bytes = Random(seed(482)).bytes(40 * MIB / 100 * 100);
    // It reads nothing; it does not end; it gives nothing back; it gives all back and does not end.
    for (name, text) in [
        ("reads nothing", "#!/bin/sh\nexec sleep 1000\n"),
        ("does not end", "#!/bin/sh\ncat >/dev/null; exec sleep 1000\n"),
        ("gives nothing", "#!/bin/sh\nif [ \"$1\" = -d ]; then exec sleep 1000; else exec cat; fi\n"),
        ("gives all", "#!/bin/sh\nif [ \"$1\" = -d ]; then cat; exec >&-; exec sleep 1000; else exec cat; fi\n"),
    ] {
        let folder = Folder::new();
        let input = folder.put("in/a", &bytes);
        let job = folder.job(FORMAT, &[input]).compress_program(Some(program(&folder, text)));
        let (control, progress) = (job.control.clone(), job.control.progress.clone());
        let sorting = std::thread::spawn(move || datapipes_sort::sort(usual_machine(), job));
        // Until it gets no further.
        let mut before = u64::MAX;
        let seen = || [&progress.read, &progress.spilled, &progress.merged].map(|n| n.load(SeqCst)).iter().sum();
        while before != seen() {
            before = seen();
            std::thread::sleep(Duration::from_millis(200));
        }
        control.stop();
        assert_eq!(joined(sorting).unwrap_err().kind(), ErrorKind::Interrupted, "{name}");
        assert_eq!(folder.files(), ["in/a", "in/program"], "{name}");
    }
}

/// Two ends of a stream: the one that is written to, and the one that is read.
fn ends(kind: &str) -> (File, File) {
    let (write, read): (OwnedFd, OwnedFd) = match kind {
        "pipe" => {
            let (read, write) = rustix::pipe::pipe().unwrap();
            (write, read)
        }
        "socket" => {
            let (write, read) = UnixStream::pair().unwrap();
            (write.into(), read.into())
        }
        _ => terminal(),
    };
    (write.into(), read.into())
}

#[test]
fn slow_streams_lose_nothing_and_keep_their_flags() {
    let bytes = Random(seed(483)).bytes(30_000 * 100);
    let expected = sort_records(&bytes, &FORMAT, false);
    for (from, to) in [("pipe", "socket"), ("socket", "pipe"), ("pipe", "pipe")] {
        let folder = Folder::new();
        let ((mut feed, input), (output, mut screen)) = (ends(from), ends(to));
        let shared = [input.try_clone().unwrap(), output.try_clone().unwrap()];
        let given = bytes.clone();
        let feeding = std::thread::spawn(move || {
            for part in given.chunks(100_003) {
                std::thread::sleep(Duration::from_millis(1));
                feed.write_all(part).unwrap();
            }
        });
        let reading = std::thread::spawn(move || {
            let (mut got, mut part) = (Vec::new(), vec![0; 50_021]);
            loop {
                match screen.read(&mut part).unwrap() {
                    0 => return got,
                    len => got.extend_from_slice(&part[..len]),
                }
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        let output = Output::Stream { name: PathBuf::from("output"), file: output };
        let job = folder.job(FORMAT, &[]).inputs(vec![stream(input.into())]).output(output);
        let report = bounded("a sort between streams", move || datapipes_sort::sort(usual_machine(), job)).unwrap();
        assert_eq!(report.records, 30_000, "{from} to {to}");
        for shared in shared {
            let flags = rustix::fs::fcntl_getfl(shared.as_fd()).unwrap();
            assert!(!flags.contains(OFlags::NONBLOCK), "{from} to {to}");
        }
        joined(feeding);
        assert_same(&joined(reading), &expected, &format!("{from} to {to}"));
    }
}

#[test]
fn a_terminal_takes_and_gives_lines() {
    let folder = Folder::new();
    let (keyboard, input) = terminal();
    let (screen, output) = terminal();
    let mut settings = rustix::termios::tcgetattr(&input).unwrap();
    settings.local_modes |= rustix::termios::LocalModes::ICANON;
    rustix::termios::tcsetattr(&input, rustix::termios::OptionalActions::Now, &settings).unwrap();
    rustix::io::write(&keyboard, b"b\na\nc\n\x04").unwrap();
    let order = TextOptions::default().compile().unwrap();
    let format = RecordFormat::Lines { order, terminator: b'\n' };
    let output = Output::Stream { name: PathBuf::from("terminal"), file: output.into() };
    let job = folder.job(format, &[]).inputs(vec![stream(input)]).output(output);
    bounded("a sort of a terminal", move || datapipes_sort::sort(usual_machine(), job)).unwrap();
    let mut got = [0; 16];
    assert_eq!(rustix::io::read(&screen, &mut got).unwrap(), 6);
    assert_eq!(&got[..6], b"a\nb\nc\n");
}

#[test]
fn named_pipes_are_read_when_their_writers_come() {
    let folder = Folder::new();
    let paths: Vec<PathBuf> = (0..3).map(|i| fifo(&folder, &format!("in/{i}"))).collect();
    let bytes = Random(seed(484)).bytes(3000 * 100);
    let job = folder.job(FORMAT, &[]).inputs(paths.iter().map(|path| Input::deferred(path).unwrap()).collect());
    let sorting = std::thread::spawn(move || datapipes_sort::sort(usual_machine(), job));
    // Opening waits for the reader, so these come one after the other. One of them says nothing.
    let parts: [&[u8]; 3] = [&bytes[..200_000], &[], &bytes[200_000..]];
    for (path, part) in paths.into_iter().zip(parts.map(<[u8]>::to_vec)) {
        bounded("a writer", move || File::options().write(true).open(&path).unwrap().write_all(&part).unwrap());
    }
    joined(sorting).unwrap();
    assert_same(&folder.sorted(), &sort_records(&bytes, &FORMAT, false), "named pipes");
}

fn numbers(folder: &Folder, control: &Control, input: &Path) -> SortJob {
    folder.job(FORMAT, &[input.to_path_buf()]).control(control.clone())
}

#[test]
fn a_control_stops_only_the_sorts_that_it_was_asked_to_stop() {
    let folder = Folder::new();
    let input = folder.put("in/a", &Random(seed(485)).bytes(100_000));
    let (control, long) = (Control::default(), Duration::from_secs(1000));
    // What the last call returns changes nothing: the output is complete.
    for answer in [true, false, false] {
        let mut calls = 0;
        let told = sort_telling(usual_machine(), numbers(&folder, &control, &input), long, |_| {
            calls += 1;
            answer
        });
        assert_eq!((told.unwrap().records, calls, control.stopped()), (1000, 1, false));
    }
    // Nor does a panic of the last call; the sort is over.
    let panics = std::panic::AssertUnwindSafe(|| {
        sort_telling(usual_machine(), numbers(&folder, &control, &input), long, |_| panic!("told"))
    });
    assert!(std::panic::catch_unwind(panics).is_err());
    assert!(!control.stopped());
    // An error is no request to stop.
    let failed = sort_telling(usual_machine(), numbers(&folder, &control, &input).spill(vec![]), long, |_| true);
    drop(failed);
    assert!(!control.stopped());
    datapipes_sort::sort(usual_machine(), numbers(&folder, &control, &input)).unwrap();
    control.stop();
    for _ in 0..2 {
        let stopped = sort_telling(usual_machine(), numbers(&folder, &control, &input), long, |_| true);
        assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Interrupted);
    }
}
