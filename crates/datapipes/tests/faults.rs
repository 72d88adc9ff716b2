//! The same faults through every flavor: the same error with the same facts everywhere, no lease
//! left behind, and a pipe that keeps working.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock, mpsc};

use datapipes::descriptor::wire::{Completion, MESSAGE_BYTES, TransferRequest};
use datapipes::graph::Graph;
use datapipes::runtime::{self, ConnectOptions};
use datapipes::{
    ConnectFdOptions, Constraints, Dram, Error, ErrorKind, Locator, Pipe, PipeFd, Runtime, RuntimePipe, Span, Ssd,
};
use datapipes_core::Machine;
use datapipes_core::topology::Topology;
use datapipes_file::{FaultInjector, FaultVerdict, FileBackend, FileBackendOptions, Operation};
use datapipes_testkit::{PATIENCE, poll_until};
use rustix::event::PollFlags;

/// The unit of lengths and offsets.
const UNIT: u64 = 256 << 10;
/// Bytes of a request, so that it is known how far a transfer gets.
const REQUEST: u32 = 64 << 10;
const FILE: u64 = 8 * UNIT;

fn dir() -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// Bytes that differ for every seed and at every offset.
fn pattern(seed: u64) -> Vec<u8> {
    static BASE: OnceLock<Vec<u8>> = OnceLock::new();
    let base =
        BASE.get_or_init(|| (0..FILE + 4099).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect());
    base[seed as usize % 4099..][..FILE as usize].to_vec()
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Every request moves only this many bytes.
    Short(u32),
    /// Every other request is interrupted.
    Interrupted,
    /// Requests over this offset end with this error.
    At(u64, i32),
}

/// The present fault of the device.
#[derive(Default)]
struct Plan(Mutex<Option<Fault>>);

impl FaultInjector for Plan {
    fn verdict(&self, op: &Operation) -> FaultVerdict {
        match *self.0.lock().unwrap() {
            Some(Fault::Short(most)) if op.len > most => FaultVerdict::Short(most),
            Some(Fault::Interrupted) if op.nth.is_multiple_of(2) => FaultVerdict::Errno(libc::EINTR),
            Some(Fault::At(at, errno)) if (op.offset..op.offset + u64::from(op.len)).contains(&at) => {
                FaultVerdict::Errno(errno)
            }
            _ => FaultVerdict::Pass,
        }
    }
}

/// The facts that a caller gets.
#[derive(Debug, PartialEq)]
struct Told {
    kind: ErrorKind,
    errno: Option<i32>,
    bytes_done: u64,
    offset: Option<u64>,
}

impl Told {
    fn of(error: &Error) -> Told {
        // The descriptor reports the offset in words.
        let text = error.to_string();
        let number = |after: &str| after.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok();
        let in_words = text.split("at offset ").nth(1).and_then(number);
        assert!(error.offset().is_none() || error.offset() == in_words, "{text}");
        Told { kind: error.kind(), errno: error.errno(), bytes_done: error.bytes_done(), offset: in_words }
    }
}

/// A pair of places, connected in every flavor.
struct Flavors<'r> {
    runtime: &'r Runtime,
    blocking: Pipe,
    pipe: RuntimePipe,
    descriptor: PipeFd,
    raw: OwnedFd,
}

const NAMES: [&str; 9] = [
    "blocking",
    "blocking, in two halves",
    "wait",
    "any executor",
    "the runtime's executor",
    "callback",
    "descriptor",
    "packets",
    "graph",
];

impl<'r> Flavors<'r> {
    fn connect(
        machine: &Machine,
        runtime: &'r Runtime,
        ends: (&dyn Locator, &dyn Locator),
        only: &str,
    ) -> Result<Flavors<'r>, Error> {
        let constraints = Constraints::default().only(vec![only.to_owned()]);
        let connect = ConnectOptions::default().constraints(constraints.clone());
        let ask = ConnectFdOptions::default().connect(connect.clone());
        Ok(Flavors {
            runtime,
            blocking: machine.connect_with(ends.0, ends.1, &constraints)?,
            pipe: runtime.connect_with(ends.0, ends.1, &connect)?,
            descriptor: runtime.connect_fd_with(ends.0, ends.1, &ask)?,
            raw: runtime.connect_raw_fd(ends.0, ends.1, &ask)?.0,
        })
    }

    fn transfer(&self, flavor: &str, span: Span) -> Result<(), Error> {
        match flavor {
            "blocking" => self.blocking.transfer(span),
            "blocking, in two halves" => self.blocking.start(span)?.wait(),
            "wait" => self.pipe.transfer(span)?.wait(),
            "any executor" => pollster::block_on(self.pipe.transfer(span)?),
            "the runtime's executor" => self.runtime.block_on(self.pipe.transfer(span)?),
            "callback" => {
                let (sender, receiver) = mpsc::channel();
                self.pipe.transfer(span)?.on_done(move |result| sender.send(result).unwrap());
                receiver.recv_timeout(PATIENCE).unwrap()
            }
            "descriptor" => {
                poll_until(&self.descriptor, PollFlags::OUT);
                let token = self.descriptor.submit(span)?;
                let done = self.descriptor.complete_wait()?;
                assert_eq!(done.token, token);
                done.result
            }
            "packets" => {
                poll_until(&self.raw, PollFlags::OUT);
                rustix::io::write(&self.raw, &TransferRequest { token: 7, span }.to_bytes()).unwrap();
                poll_until(&self.raw, PollFlags::IN);
                let mut message = [0; MESSAGE_BYTES];
                let len = rustix::io::read(&self.raw, &mut message).unwrap();
                let done = Completion::from_bytes(&message[..len]).unwrap();
                let moved = done.result.as_ref().map_or_else(Error::bytes_done, |()| span.len);
                assert_eq!((done.token, done.bytes), (7, moved));
                done.result
            }
            "graph" => {
                let mut graph = Graph::new("one");
                graph.pipe("move", &self.pipe, move |_| Ok(span));
                let result = self.runtime.run(&graph, 1).map(drop);
                if let Err(e) = &result {
                    assert!(e.to_string().contains("move, item 0"), "{e}");
                }
                result
            }
            other => unreachable!("{other}"),
        }
    }
}

/// Makes a machine whose files have faults and whose kernel may lack features.
fn machine(plan: &Arc<Plan>, config: FileBackendOptions) -> Machine {
    let config = config.faults(plan.clone()).request_bytes(REQUEST);
    Machine::new(Topology::discover(), vec![Arc::new(FileBackend::with(config))])
}

/// Makes a runtime in which long transfers have several parts.
fn runtime(machine: &Machine) -> Runtime {
    let mut config = runtime::RuntimeOptions::new(machine);
    config.device.chunk_bytes = 4 * UNIT;
    Runtime::start_with(machine, config).unwrap()
}

struct Case {
    name: &'static str,
    fault: Option<Fault>,
    span: Span,
    told: Option<Told>,
}

fn told(kind: ErrorKind, errno: Option<i32>, bytes_done: u64, offset: Option<u64>) -> Option<Told> {
    Some(Told { kind, errno, bytes_done, offset })
}

/// Returns the table of cases. `span` makes a span of its offset in the file.
fn cases(writes: bool) -> Vec<Case> {
    let span = |file_at: u64, memory_at: u64, len: u64| match writes {
        false => Span { source: file_at, target: memory_at, len },
        true => Span { source: memory_at, target: file_at, len },
    };
    let whole = span(UNIT, UNIT, 6 * UNIT);
    let bad = 5 * UNIT + 5000;
    let mut cases = vec![
        Case { name: "short requests", fault: Some(Fault::Short(40_000)), span: whole, told: None },
        Case {
            name: "short requests, odd span",
            fault: Some(Fault::Short(5000)),
            span: span(777, 333, 300_001),
            told: None,
        },
        Case { name: "interrupted", fault: Some(Fault::Interrupted), span: whole, told: None },
        Case {
            name: "interrupted for ever",
            fault: Some(Fault::At(bad, libc::EINTR)),
            span: whole,
            told: told(ErrorKind::Interrupted, Some(libc::EINTR), 4 * UNIT, Some(5 * UNIT)),
        },
        Case {
            name: "a bad spot",
            fault: Some(Fault::At(bad, libc::EIO)),
            span: whole,
            told: told(ErrorKind::Device, Some(libc::EIO), 4 * UNIT, Some(5 * UNIT)),
        },
        Case {
            name: "a bad spot at once",
            fault: Some(Fault::At(UNIT, libc::EIO)),
            span: whole,
            told: told(ErrorKind::Device, Some(libc::EIO), 0, Some(UNIT)),
        },
        Case {
            name: "a bad spot elsewhere",
            fault: Some(Fault::At(bad, libc::EIO)),
            span: span(0, 0, UNIT),
            told: None,
        },
        Case {
            name: "beyond the memory",
            fault: None,
            span: span(0, FILE, 5 * UNIT),
            told: told(ErrorKind::OutOfRange, None, 0, None),
        },
        Case { name: "nothing", fault: Some(Fault::At(0, libc::EIO)), span: span(0, 0, 0), told: None },
    ];
    if writes {
        cases.push(Case {
            name: "a full device",
            fault: Some(Fault::At(bad, libc::ENOSPC)),
            span: whole,
            told: told(ErrorKind::NoSpace, Some(libc::ENOSPC), 4 * UNIT, Some(5 * UNIT)),
        });
    } else {
        let end = told(ErrorKind::EndOfFile, None, UNIT, Some(FILE));
        cases.push(Case { name: "the end", fault: None, span: span(FILE - UNIT, 0, 2 * UNIT), told: end });
    }
    cases
}

/// Runs the table through every flavor of one primitive.
fn every_flavor(primitive: &str, writes: bool, config: FileBackendOptions) {
    let plan = Arc::new(Plan::default());
    let machine = machine(&plan, config);
    let runtime = runtime(&machine);
    let file = Ssd::unlinked_in(dir()).unwrap();
    file.preallocate(FILE).unwrap();
    file.set_len(FILE).unwrap();
    let memory = Dram::allocate(12 * UNIT as usize).unwrap();
    let ends: (&dyn Locator, &dyn Locator) = if writes { (&memory, &file) } else { (&file, &memory) };
    let flavors = match Flavors::connect(&machine, &runtime, ends, primitive) {
        Ok(flavors) => flavors,
        Err(e) => return println!("SKIPPED: faults through {primitive}: {e}"),
    };
    let mut seed = 0;
    for case in cases(writes) {
        for flavor in NAMES {
            let what = format!("{primitive}, {}, {flavor}", case.name);
            seed += 1;
            *plan.0.lock().unwrap() = case.fault;
            let bytes = fill(&file, &memory, writes, seed);
            let outcome = flavors.transfer(flavor, case.span);
            assert_eq!(outcome.as_ref().map_err(Told::of).err(), case.told, "{what}: {outcome:?}");
            // This comes before anything else: after the outcome is reported, the bytes are free.
            drop(memory.lease_mut().unwrap_or_else(|e| panic!("{what}: a lease was left behind: {e}")));
            let good = outcome.map_or_else(|e| e.bytes_done(), |()| case.span.len);
            check(&file, &memory, writes, &bytes, Span { len: good, ..case.span }, &what);
            // The pipe keeps working, on the same bytes.
            *plan.0.lock().unwrap() = None;
            let span = Span { source: 2 * UNIT, target: 3 * UNIT, len: UNIT + 4097 };
            flavors.transfer(flavor, span).unwrap_or_else(|e| panic!("{what}, and afterwards: {e}"));
            check(&file, &memory, writes, &bytes, span, &what);
        }
        // Now the bytes are leased.
        if case.name == "nothing" {
            let lease = memory.lease_mut().unwrap();
            for flavor in NAMES {
                let error = flavors.transfer(flavor, Span { source: 0, target: 0, len: 4096 }).unwrap_err();
                assert_eq!(
                    Told::of(&error),
                    told(ErrorKind::Busy, None, 0, None).unwrap(),
                    "{primitive}, {flavor}: {error}"
                );
            }
            drop(lease);
        }
        // The transfer is counted until its callback has returned.
        runtime.drain();
        assert_eq!(runtime.report().under_way, 0, "{primitive}, {}", case.name);
    }
}

/// Fills the source anew, and the target with zeros.
fn fill(file: &Ssd, memory: &Dram, writes: bool, seed: u64) -> Vec<u8> {
    let bytes = pattern(seed);
    let mut lease = memory.lease_mut().unwrap();
    lease.fill(0);
    if writes {
        lease[..bytes.len()].copy_from_slice(&bytes);
    }
    let on_disk = if writes { vec![0; bytes.len()] } else { bytes.clone() };
    let mut at = 0;
    while at < on_disk.len() {
        at += rustix::io::pwrite(file.file().cached_fd(), &on_disk[at..], at as u64).unwrap();
    }
    bytes
}

fn check(file: &Ssd, memory: &Dram, writes: bool, bytes: &[u8], span: Span, what: &str) {
    let (from, to, len) = (span.source as usize, span.target as usize, span.len as usize);
    if writes {
        let mut there = vec![0; len];
        let mut at = 0;
        while at < len {
            at += rustix::io::pread(file.file().cached_fd(), &mut there[at..], (to + at) as u64).unwrap();
        }
        assert!(there[..] == bytes[from..from + len], "{what}: other bytes");
    } else {
        assert!(memory.lease().unwrap()[to..to + len] == bytes[from..from + len], "{what}: other bytes");
    }
}

#[test]
fn the_same_faults_through_every_flavor_of_reading() {
    for primitive in ["uring-direct", "uring-cached", "pread-direct", "pread-cached"] {
        every_flavor(primitive, false, FileBackendOptions::default());
    }
}

#[test]
fn the_same_faults_through_every_flavor_of_writing() {
    for primitive in ["uring-direct", "uring-cached", "pwrite-direct", "pwrite-cached"] {
        every_flavor(primitive, true, FileBackendOptions::default());
    }
}

#[test]
fn the_same_faults_where_the_kernel_registers_no_memory() {
    let config = FileBackendOptions::default().no_registered_memory(true);
    every_flavor("uring-direct", false, config.clone());
    every_flavor("uring-cached", true, config);
}

/// A mount that is unmounted with the value.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        let _ = std::fs::remove_dir(&self.0);
    }
}

fn small_tmpfs(name: &str, size: &str) -> Result<Mounted, String> {
    let at = dir().join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir_all(&at).unwrap();
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(&at);
    match mount.output() {
        Ok(output) if output.status.success() => Ok(Mounted(at)),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(e) => Err(e.to_string()),
    }
}

#[test]
fn a_file_system_that_is_really_full_is_told_by_every_flavor() {
    let place = match small_tmpfs("small", "3m") {
        Ok(place) => place,
        Err(why) => return println!("SKIPPED: a_file_system_that_is_really_full_is_told_by_every_flavor: {why}"),
    };
    let plan = Arc::new(Plan::default());
    let machine = machine(&plan, FileBackendOptions::default());
    let runtime = runtime(&machine);
    let file = Ssd::create(place.0.join("full")).unwrap();
    let memory = Dram::allocate(FILE as usize).unwrap();
    let bytes = pattern(3);
    memory.lease_mut().unwrap().copy_from_slice(&bytes);
    // The source is on the same file system, which then has room for 4 units.
    let source = Ssd::create(place.0.join("source")).unwrap();
    machine.connect(&memory, &source).unwrap().transfer(Span { source: 0, target: 0, len: FILE }).unwrap();
    let pairs: [(&dyn Locator, &str); 3] =
        [(&memory, "uring-cached"), (&memory, "pwrite-cached"), (&source, "kernel-copy")];
    for (from, primitive) in pairs {
        let flavors = match Flavors::connect(&machine, &runtime, (from, &file), primitive) {
            Ok(flavors) => flavors,
            Err(e) => {
                println!("SKIPPED: a full file system by {primitive}: {e}");
                continue;
            }
        };
        for flavor in NAMES {
            let what = format!("{primitive}, {flavor}");
            let error = flavors.transfer(flavor, Span { source: 0, target: 0, len: FILE }).unwrap_err();
            let Told { kind, errno, bytes_done, .. } = Told::of(&error);
            assert_eq!((kind, errno), (ErrorKind::NoSpace, Some(libc::ENOSPC)), "{what}: {error}");
            assert!(bytes_done <= 4 * UNIT, "{what}: {error}");
            assert!(memory.lease_mut().is_ok(), "{what}: a lease was left behind");
            check(&file, &memory, true, &bytes, Span { source: 0, target: 0, len: bytes_done }, &what);
            // There is room again: the same pipe continues.
            file.set_len(0).unwrap();
            flavors
                .transfer(flavor, Span { source: 0, target: 0, len: 2 * UNIT })
                .unwrap_or_else(|e| panic!("{what}: {e}"));
            check(&file, &memory, true, &bytes, Span { source: 0, target: 0, len: 2 * UNIT }, &what);
            file.set_len(0).unwrap();
        }
        runtime.drain();
        assert_eq!(runtime.report().under_way, 0, "{primitive}");
    }
    drop(runtime);
}

const CHILD: &str = "DATAPIPES_FAULTS_WITHOUT_MEMLOCK";

/// The test below runs this in a process that may lock no memory.
#[test]
#[ignore = "run by its parent, which says what to do"]
fn in_a_process_that_may_lock_no_memory() {
    assert!(std::env::var_os(CHILD).is_some(), "its parent starts it under a limit");
    let plan = Arc::new(Plan::default());
    let machine = machine(&plan, FileBackendOptions::default());
    let (file, memory) = (Ssd::unlinked_in(dir()).unwrap(), Dram::allocate(12 * UNIT as usize).unwrap());
    file.set_len(UNIT).unwrap();
    let only = Constraints::default().only(vec!["uring-cached".into()]);
    match machine.connect_with(&file, &memory, &only) {
        Ok(pipe) => {
            pipe.transfer(Span { source: 0, target: 0, len: UNIT }).unwrap();
            let counters = pipe.report().hops[0].counters.clone();
            println!("registered: {} hits, {} misses", counters.fixed_buffer_hits, counters.fixed_buffer_misses);
        }
        Err(e) => println!("no ring: {e}"),
    }
    every_flavor("uring-direct", false, FileBackendOptions::default());
    every_flavor("uring-cached", true, FileBackendOptions::default());
}

#[test]
fn the_same_faults_where_registration_is_refused_by_a_limit() {
    let test = "the_same_faults_where_registration_is_refused_by_a_limit";
    let this = std::env::current_exe().unwrap();
    let mut child = Command::new("prlimit");
    child
        .arg("--memlock=524288:524288")
        .args(["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"])
        .arg(this);
    child.args(["--exact", "in_a_process_that_may_lock_no_memory", "--ignored", "--nocapture"]).env(CHILD, "1");
    let output = match child.output() {
        Ok(output) => output,
        Err(e) => return println!("SKIPPED: {test}: prlimit: {e}"),
    };
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !out.contains("running 1 test") {
        return println!("SKIPPED: {test}: {}", err.trim());
    }
    assert!(output.status.success(), "{out}{err}");
    match out.lines().find(|line| line.contains("registered: ")) {
        Some(line) if line.contains("registered: 0 hits") => {}
        Some(line) => println!("NOT APPLICABLE: {test}: the limit refuses nothing here ({line})"),
        None => println!("SKIPPED: {test}: {out}"),
    }
}
