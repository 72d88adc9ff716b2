//! Any span, through every flavor and between places of every kind, is refused with nothing
//! changed, or carried out exactly.
//!
//! Numbers are random and extreme, from a seed (`DATAPIPES_SEED`); a model says what each span must
//! do.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use datapipes::descriptor::wire::{Completion, MESSAGE_BYTES, TransferRequest};
use datapipes::graph::Graph;
use datapipes::topology::Topology;
use datapipes::{
    ConnectFdOptions, ConnectOptions, Constraints, CoreCache, Dram, Error, ErrorKind, Locator, Pipe, PipeFd, Pmem,
    PmemOptions, Result, Runtime, RuntimePipe, Span, Ssd, StagePlace, Staging,
};
use datapipes_core::Machine;
use datapipes_file::{FileBackend, FileBackendOptions};
use datapipes_testkit::{TempFolder, poll_until};
use rustix::event::PollFlags;
use std::os::fd::OwnedFd;

/// Bytes of each place; not a multiple of anything.
const LEN: u64 = (96 << 10) + 37;
/// The largest offset that the kernel counts.
const LAST: u64 = i64::MAX as u64;
/// Spans of each flavor and pair.
const SPANS: u64 = 24;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z ^ (z >> 29)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Returns a number that is small, near the place's end, or near an end of numbers.
    fn number(&mut self) -> u64 {
        let near = self.below(9000);
        let about = [0, LEN, 1 << 31, 1 << 32, LAST, u64::MAX - 4096, u64::MAX, 1 << 62];
        let base = about[self.below(about.len() as u64) as usize];
        match self.below(3) {
            0 => self.below(LEN),
            1 => base.saturating_add(near),
            _ => base.saturating_sub(near),
        }
    }

    fn span(&mut self) -> Span {
        let (source, target) = (self.number(), self.number());
        let len = match self.below(3) {
            // Here a sum wraps around to a small number, or nearly.
            0 => 0u64.wrapping_sub(if self.below(2) == 0 { source } else { target }).wrapping_add(self.below(70_000)),
            1 => self.below(LEN),
            _ => self.number(),
        };
        Span { source, target, len }
    }

    /// Returns a valid span, so that a flavor which refuses everything does not pass.
    fn fitting(&mut self) -> Span {
        let len = self.below(LEN);
        Span { source: self.below(LEN - len + 1), target: self.below(LEN - len + 1), len }
    }
}

/// A way to carry out a span.
type Flavor<'a> = Box<dyn FnMut(Span) -> Result<()> + 'a>;

/// A pair of places, with their contents.
#[derive(Clone, Copy)]
struct Pair<'a> {
    name: &'a str,
    source: &'a dyn Locator,
    target: &'a dyn Locator,
    /// The primitives that may be used; all if the list is empty.
    only: &'a [&'a str],
    /// The bytes of the source.
    bytes: &'a [u8],
    /// Whether the source and the target are memory, with a fixed length.
    memory: (bool, bool),
    /// Sets the bytes of the target.
    set: &'a dyn Fn(&[u8]),
    /// Returns the bytes of the target.
    get: &'a dyn Fn() -> Vec<u8>,
}

fn pattern(seed: u64) -> Vec<u8> {
    (0..LEN).map(|i| ((i + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn fits(at: u64, len: u64, end: u64) -> bool {
    u128::from(at) + u128::from(len) <= u128::from(end)
}

/// Checks `outcome`, and returns the bytes that the target must hold after it.
fn judge(pair: &Pair<'_>, span: Span, outcome: &Result<()>, before: &[u8]) -> Option<Vec<u8>> {
    let end = |memory| if memory { LEN } else { LAST };
    let within = fits(span.source, span.len, end(pair.memory.0)) && fits(span.target, span.len, end(pair.memory.1));
    if !within {
        let kind = outcome.as_ref().err().map(Error::kind);
        assert_eq!(kind, Some(ErrorKind::OutOfRange), "{outcome:?}");
        return Some(before.to_vec());
    }
    if span.len == 0 {
        assert!(outcome.is_ok(), "{outcome:?}");
        return Some(before.to_vec());
    }
    if !fits(span.target, span.len, 1 << 40) {
        // A file system has a limit of its own. Which of the two ends is met first is not
        // specified.
        assert!(outcome.is_err(), "{outcome:?}");
        return fits(span.source, span.len, LEN).then(|| before.to_vec());
    }
    if !fits(span.source, span.len, LEN) {
        let kind = outcome.as_ref().err().map(Error::kind);
        assert_eq!(kind, Some(ErrorKind::EndOfFile), "{outcome:?}");
        return None;
    }
    assert!(outcome.is_ok(), "{outcome:?}");
    let (from, to, len) = (span.source as usize, span.target as usize, span.len as usize);
    let mut after = before.to_vec();
    after.resize(after.len().max(to + len), 0);
    after[to..to + len].copy_from_slice(&pair.bytes[from..from + len]);
    Some(after)
}

fn try_flavor(pair: &Pair<'_>, flavor: &str, carry_out: &mut Flavor<'_>, random: &mut Random) {
    let clean = pattern(1);
    (pair.set)(&clean);
    let mut held = clean.clone();
    for turn in 0..SPANS {
        let span = if turn % 4 == 0 { random.fitting() } else { random.span() };
        if !pair.memory.1 && !fits(span.target, span.len, 8 * LEN) && fits(span.target, span.len, 1 << 40) {
            // A file with a hole of gigabytes would only take long to compare.
            continue;
        }
        let outcome = carry_out(span);
        let what = || format!("{}, {flavor}, {span:?}: {outcome:?}", pair.name);
        // The names are made first: a panic in `judge` is reported with them.
        let judged = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| judge(pair, span, &outcome, &held)));
        let Ok(expected) = judged else { panic!("{}", what()) };
        let now = (pair.get)();
        match expected {
            Some(expected) => {
                assert_eq!(now.len(), expected.len(), "length after {}", what());
                let wrong = now.iter().zip(&expected).position(|(a, b)| a != b);
                assert_eq!(wrong, None, "byte {wrong:?} after {}", what());
                held = now;
            }
            // Some bytes of the span may have moved, and nothing else.
            None => {
                let may = span.target..span.target.saturating_add(span.len);
                let wrong = held.iter().zip(&now).zip(0u64..).find(|((a, b), at)| a != b && !may.contains(at));
                assert!(wrong.is_none(), "{wrong:?} after {}", what());
                (pair.set)(&clean);
                held = clean.clone();
            }
        }
        // Files must not grow without limit.
        if held.len() as u64 > 4 * LEN {
            (pair.set)(&clean);
            held = clean.clone();
        }
    }
}

/// Sends a request as another process would, and reads the completion.
fn by_packet(socket: &OwnedFd, span: Span) -> Result<()> {
    let request = TransferRequest { token: 9, span }.to_bytes();
    let sent = rustix::net::send(socket, &request, rustix::net::SendFlags::NOSIGNAL).unwrap();
    assert_eq!(sent, request.len());
    poll_until(socket, PollFlags::IN);
    let mut message = [0; MESSAGE_BYTES];
    let (len, _) = rustix::net::recv(socket, &mut message, rustix::net::RecvFlags::empty()).unwrap();
    let completion = Completion::from_bytes(&message[..len]).unwrap();
    assert_eq!(completion.token, 9);
    completion.result
}

fn by_descriptor(pipe: &PipeFd, span: Span) -> Result<()> {
    let token = pipe.submit(span)?;
    poll_until(pipe, PollFlags::IN);
    let done = pipe.complete_wait()?;
    assert_eq!(done.token, token);
    done.result
}

fn by_batch(pipe: &Pipe, span: Span) -> Result<()> {
    let mut batch = pipe.batch();
    batch.submit([(5, span)]);
    let finished = batch.next()?.unwrap();
    assert!(finished.tag == 5 && batch.next()?.is_none());
    finished.result
}

fn by_graph(runtime: &Runtime, pipe: &RuntimePipe, span: Span) -> Result<()> {
    let mut graph = Graph::new("one");
    graph.pipe("move", pipe, |_| Ok(span));
    runtime.run(&graph, 1).map(|_| ())
}

fn every_flavor(machine: &Machine, runtime: &Runtime, pair: &Pair<'_>, random: &mut Random) {
    let constraints = Constraints::default().only(pair.only.iter().map(|name| (*name).to_owned()).collect());
    let connect = ConnectOptions::default().constraints(constraints.clone());
    let ask = ConnectFdOptions::default().connect(connect.clone());
    let pipe = match machine.connect_with(pair.source, pair.target, &constraints) {
        Ok(pipe) => pipe,
        Err(e) => return println!("SKIPPED: any span, {}: {e}", pair.name),
    };
    let side = runtime.connect_with(pair.source, pair.target, &connect).unwrap();
    let descriptor = runtime.connect_fd_with(pair.source, pair.target, &ask).unwrap();
    let (socket, _kept) = runtime.connect_raw_fd(pair.source, pair.target, &ask).unwrap();
    let flavors: [(&str, Flavor<'_>); 9] = [
        ("blocking", Box::new(|span| pipe.transfer(span))),
        ("started", Box::new(|span| pipe.start(span)?.wait())),
        ("batch", Box::new(|span| by_batch(&pipe, span))),
        ("runtime", Box::new(|span| side.transfer(span)?.wait())),
        ("try", Box::new(|span| side.try_transfer(span).map_err(|refused| refused.error)?.wait())),
        ("together", Box::new(|span| side.transfer_all([span])?.wait())),
        ("graph", Box::new(|span| by_graph(runtime, &side, span))),
        ("descriptor", Box::new(|span| by_descriptor(&descriptor, span))),
        ("packet", Box::new(|span| by_packet(&socket, span))),
    ];
    for (name, mut flavor) in flavors {
        try_flavor(pair, name, &mut flavor, random);
    }
    runtime.drain();
    assert_eq!(runtime.report().under_way, 0, "{}", pair.name);
}

fn seed() -> u64 {
    let seed = datapipes_testkit::seed(7);
    println!("DATAPIPES_SEED={seed}");
    seed
}

fn folder() -> TempFolder {
    TempFolder::under(Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap()
}

fn file_of(path: &Path, bytes: &[u8]) -> Ssd {
    std::fs::write(path, bytes).unwrap();
    Ssd::open_rw(path).unwrap()
}

fn memory_of(bytes: &[u8]) -> Dram {
    let memory = Dram::allocate(bytes.len()).unwrap();
    memory.lease_mut().unwrap().copy_from_slice(bytes);
    memory
}

#[test]
fn any_span_between_files_and_memory_is_refused_or_done_exactly() {
    let (mut random, folder, bytes) = (Random(seed()), folder(), pattern(0));
    let (from, to) = (folder.path("from"), folder.path("to"));
    let (source, target) = (file_of(&from, &bytes), file_of(&to, &bytes));
    let (memory, into) = (memory_of(&bytes), memory_of(&bytes));
    let set_file = |bytes: &[u8]| {
        target.set_len(0).unwrap();
        std::fs::write(&to, bytes).unwrap();
    };
    let get_file = || std::fs::read(&to).unwrap();
    let set_memory = |bytes: &[u8]| into.lease_mut().unwrap().copy_from_slice(bytes);
    let get_memory = || into.lease().unwrap().to_vec();
    let base = Pair {
        name: "memory to memory",
        source: &memory,
        target: &into,
        only: &[],
        bytes: &bytes,
        memory: (true, true),
        set: &set_memory,
        get: &get_memory,
    };
    for uring in [true, false] {
        let file = FileBackend::with(FileBackendOptions::default().force_no_uring(!uring));
        let mut backends = datapipes::discover().backends().to_vec();
        backends.retain(|backend| backend.name() != "file");
        backends.push(Arc::new(file));
        let machine = Machine::new(Topology::discover(), backends);
        let runtime = Runtime::start(&machine).unwrap();
        if uring {
            every_flavor(&machine, &runtime, &base, &mut random);
        }
        let lanes = [
            ("direct", ["uring-direct", "pread-direct", "pwrite-direct"]),
            ("cached", ["uring-cached", "pread-cached", "pwrite-cached"]),
        ];
        for (lane, only) in &lanes {
            let name = format!("file to memory, {lane}, io_uring {uring}");
            let up = Pair { name: &name, source: &source, only, memory: (false, true), ..base };
            every_flavor(&machine, &runtime, &up, &mut random);
            let name = format!("memory to file, {lane}, io_uring {uring}");
            let down = Pair {
                name: &name,
                target: &target,
                only,
                memory: (true, false),
                set: &set_file,
                get: &get_file,
                ..base
            };
            every_flavor(&machine, &runtime, &down, &mut random);
            let name = format!("file to file by buffers, {lane}, io_uring {uring}");
            let both = Pair { source: &source, memory: (false, false), name: &name, ..down };
            every_flavor(&machine, &runtime, &both, &mut random);
        }
        if uring {
            let copy = Pair {
                name: "file to file in the kernel",
                source: &source,
                target: &target,
                only: &["kernel-copy"],
                memory: (false, false),
                set: &set_file,
                get: &get_file,
                ..base
            };
            every_flavor(&machine, &runtime, &copy, &mut random);
        }
    }
}

#[test]
fn any_span_of_caches_persistent_memory_and_stagings_is_refused_or_done_exactly() {
    let (mut random, folder, bytes) = (Random(seed()), folder(), pattern(0));
    let all = datapipes::discover();
    let machine = Machine::new(all.topology().clone(), all.backends().to_vec());
    let runtime = Runtime::start(&machine).unwrap();
    let (memory, into) = (memory_of(&bytes), memory_of(&bytes));
    let source = file_of(&folder.path("from"), &bytes);
    let set_memory = |bytes: &[u8]| into.lease_mut().unwrap().copy_from_slice(bytes);
    let get_memory = || into.lease().unwrap().to_vec();
    let base = Pair {
        name: "file to a core's cache",
        source: &source,
        target: &into,
        only: &[],
        bytes: &bytes,
        memory: (false, true),
        set: &set_memory,
        get: &get_memory,
    };
    let core = machine.topology().usable_cores().next().unwrap();
    match CoreCache::over(core, &into) {
        Ok(cache) => every_flavor(&machine, &runtime, &Pair { target: &cache, ..base }, &mut random),
        Err(e) => println!("SKIPPED: any span, a core's cache: {e}"),
    }

    let path = folder.path("pmem");
    let pmem = Pmem::open_with(&path, PmemOptions::default().len(LEN).emulated(true)).unwrap();
    let set_pmem = |bytes: &[u8]| {
        use std::os::unix::fs::FileExt;
        std::fs::File::options().write(true).open(&path).unwrap().write_all_at(bytes, 0).unwrap();
    };
    let get_pmem = || std::fs::read(&path).unwrap();
    let into_pmem = Pair { target: &pmem, set: &set_pmem, get: &get_pmem, ..base };
    every_flavor(&machine, &runtime, &Pair { name: "file to persistent memory", ..into_pmem }, &mut random);
    let name = "memory to persistent memory";
    every_flavor(&machine, &runtime, &Pair { name, source: &memory, memory: (true, true), ..into_pmem }, &mut random);
    set_pmem(&bytes);
    let from_pmem = Pair { name: "persistent memory to memory", source: &pmem, memory: (true, true), ..base };
    every_flavor(&machine, &runtime, &from_pmem, &mut random);

    let places = vec![StagePlace::memory(40 << 10, None), StagePlace::folder(folder.at()).limit(64 << 20).in_tier(1)];
    let staging = Staging::open(places).unwrap();
    let [there, back] = [(&into as &dyn Locator, &staging as &dyn Locator), (&staging, &into)]
        .map(|(from, to)| machine.connect(from, to));
    let (there, back) = (there.unwrap(), back.unwrap());
    let whole = Span { source: 0, target: 0, len: LEN };
    let set_staging = |bytes: &[u8]| {
        staging.free(0, u64::MAX);
        set_memory(bytes);
        there.transfer(whole).unwrap();
    };
    let get_staging = || {
        back.transfer(whole).unwrap();
        get_memory()
    };
    set_staging(&bytes);
    let from_staging = Pair { name: "staging to memory", source: &staging, ..base };
    every_flavor(&machine, &runtime, &from_staging, &mut random);

    // Offsets of a staging need no file system that supports them: bytes beyond the first ones are
    // checked separately.
    for (name, from, memory) in
        [("memory to staging", &memory as &dyn Locator, true), ("file to staging", &source, false)]
    {
        let pair = Pair {
            name,
            source: from,
            target: &staging,
            memory: (memory, false),
            set: &set_staging,
            get: &get_staging,
            ..base
        };
        let pipe = machine.connect(from, &staging).unwrap();
        for _ in 0..SPANS {
            let span = random.span();
            set_staging(&pattern(1));
            let end = if memory { LEN } else { LAST };
            let outcome = pipe.transfer(span);
            let what = format!("{name}: {span:?}: {outcome:?}");
            if !fits(span.source, span.len, end) || !fits(span.target, span.len, LAST) {
                assert_eq!(outcome.map_err(|e| e.kind()), Err(ErrorKind::OutOfRange), "{what}");
                assert!((pair.get)() == pattern(1), "{what}");
            } else if span.len == 0 {
                assert!(outcome.is_ok() && (pair.get)() == pattern(1), "{what}");
            } else if !fits(span.source, span.len, LEN) {
                let kind = outcome.map_err(|e| e.kind());
                assert_eq!(kind, Err(ErrorKind::EndOfFile), "{what}");
                assert!((pair.get)() == pattern(1), "{what}");
            } else {
                assert!(outcome.is_ok(), "{what}");
                let (from, len) = (span.source as usize, span.len as usize);
                back.transfer(Span { source: span.target, target: 0, len: span.len }).unwrap();
                assert!(get_memory()[..len] == bytes[from..from + len], "{what}");
            }
        }
        let only = Pair { name, ..pair };
        let side = runtime.connect(only.source, only.target).unwrap();
        let (descriptor, ask) = (runtime.connect_fd(only.source, only.target).unwrap(), ConnectFdOptions::default());
        let (socket, _kept) = runtime.connect_raw_fd(only.source, only.target, &ask).unwrap();
        set_staging(&pattern(1));
        for span in [
            Span { source: 0, target: LAST, len: 1 },
            Span { source: 0, target: 0u64.wrapping_sub(16 << 10), len: 64 << 10 },
            Span { source: 0, target: 0, len: 0u64.wrapping_sub(11) },
        ] {
            let refused = [
                pipe.start(span).map(|_| ()),
                by_batch(&pipe, span),
                side.transfer(span).map(|_| ()),
                side.try_transfer(span).map(|_| ()).map_err(|refused| refused.error),
                by_graph(&runtime, &side, span),
                by_descriptor(&descriptor, span),
                by_packet(&socket, span),
            ];
            for outcome in refused {
                assert_eq!(outcome.map_err(|e| e.kind()), Err(ErrorKind::OutOfRange), "{name}: {span:?}");
            }
        }
        assert!(get_staging() == pattern(1), "{name}");
    }
}

#[test]
fn a_file_is_moved_onto_itself_only_where_nothing_overlaps() {
    let folder = folder();
    let mut random = Random(seed());
    let path = folder.path("one");
    let bytes = pattern(4);
    let one = file_of(&path, &bytes);
    // The file is opened again by another name.
    std::fs::hard_link(&path, folder.path("other")).unwrap();
    let other = Ssd::open_rw(folder.path("other")).unwrap();
    let machine = datapipes::discover();
    let runtime = Runtime::start(&machine).unwrap();
    for only in [&["kernel-copy"][..], &[]] {
        let deny: &[&str] = if only.is_empty() { &["kernel-copy"] } else { &[] };
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let constraints = Constraints::default().only(names(only)).deny(names(deny));
        let pipe = match machine.connect_with(&one, &other, &constraints) {
            Ok(pipe) => pipe,
            Err(e) => {
                println!("SKIPPED: a_file_is_moved_onto_itself_only_where_nothing_overlaps: {only:?}: {e}");
                continue;
            }
        };
        let connect = ConnectOptions::default().constraints(constraints);
        let ask = ConnectFdOptions::default().connect(connect.clone());
        let side = runtime.connect_with(&one, &other, &connect).unwrap();
        let descriptor = runtime.connect_fd_with(&one, &other, &ask).unwrap();
        for turn in 0..40 {
            // The file keeps its length, so a span that fits is short; one that overlaps may be of
            // any length.
            let (source, target) = (random.below(LEN), random.below(LEN));
            let fits = LEN - source.max(target);
            let far = source.abs_diff(target) + 1 + random.below(1 << 40);
            let len = if turn % 2 == 0 { fits.min(source.abs_diff(target)) } else { far };
            let span = Span { source, target, len };
            let before = std::fs::read(&path).unwrap();
            let outcome = match turn % 5 {
                0 => pipe.transfer(span),
                1 => pipe.start(span).and_then(|transfer| transfer.wait()),
                2 => by_batch(&pipe, span),
                3 => side.transfer(span).and_then(|handle| handle.wait()),
                _ => by_descriptor(&descriptor, span),
            };
            let mut expected = before.clone();
            if turn % 2 == 0 {
                outcome.unwrap();
                let (from, to, len) = (source as usize, target as usize, len as usize);
                expected[to..to + len].copy_from_slice(&before[from..from + len]);
            } else {
                let e = outcome.unwrap_err();
                assert!(
                    e.kind() == ErrorKind::InvalidInput && e.to_string().contains("overlaps itself"),
                    "{span:?}: {e}"
                );
            }
            assert!(std::fs::read(&path).unwrap() == expected, "{only:?}, turn {turn}: {span:?}");
        }
    }
}

#[test]
fn a_mapped_file_is_moved_onto_itself_only_where_nothing_overlaps() {
    let folder = folder();
    let mut random = Random(seed());
    let path = folder.path("one");
    let one = file_of(&path, &pattern(5));
    let map = || Pmem::open_with(&path, PmemOptions::default().emulated(true)).unwrap();
    let begins = 5000;
    let len = LEN as usize - begins;
    // One file by its descriptor, mapped twice, and as memory without a name, with the offset in
    // the file at which each begins.
    let ends: [(Box<dyn Locator>, u64); 4] = [
        (Box::new(one), 0),
        (Box::new(map()), 0),
        (Box::new(map().range(begins, len).unwrap()), begins as u64),
        (Box::new(Dram::over(map().memory().range(begins, len).unwrap())), begins as u64),
    ];
    let machine = datapipes::discover();
    let runtime = Runtime::start(&machine).unwrap();
    for (from, to) in (0..ends.len()).flat_map(|from| (0..ends.len()).map(move |to| (from, to))) {
        if from == to {
            continue; // It is one region, whose leases exclude each other, or one file, as above.
        }
        let ((source, source_begins), (target, target_begins)) = (&ends[from], &ends[to]);
        let pipe = machine.connect(&**source, &**target).unwrap();
        let side = runtime.connect(&**source, &**target).unwrap();
        for turn in 0..20 {
            // The offsets in the file.
            let most = LEN - begins as u64;
            let (a, b) = (begins as u64 + random.below(most), begins as u64 + random.below(most));
            let (apart, fits) = (a.abs_diff(b), LEN - a.max(b));
            let len = if turn % 2 == 0 { fits.min(apart) } else { (apart + 1 + random.below(LEN)).min(fits) };
            let span = Span { source: a - source_begins, target: b - target_begins, len };
            let before = std::fs::read(&path).unwrap();
            let outcome =
                if turn % 4 < 2 { pipe.transfer(span) } else { side.transfer(span).and_then(|handle| handle.wait()) };
            let mut expected = before.clone();
            if len <= apart {
                outcome.unwrap();
                let (a, b, len) = (a as usize, b as usize, len as usize);
                expected[b..b + len].copy_from_slice(&before[a..a + len]);
            } else {
                let e = outcome.unwrap_err();
                assert!(e.kind() == ErrorKind::InvalidInput && e.to_string().contains("overlaps itself"), "{e}");
            }
            assert!(std::fs::read(&path).unwrap() == expected, "{from} to {to}, turn {turn}: {span:?}");
        }
    }
}
