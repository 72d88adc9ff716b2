//! The cache as the source of pipes, in all three flavors.
#![allow(clippy::unwrap_used)]

mod fixture;

use datapipes_cache::{CachePolicy, FineGrained};
use datapipes_core::{Constraints, Dram, ErrorKind, Locator, Runtime, Span, Ssd};
use fixture::{File, machine, noise, small};

const LEN: usize = 3 << 20;

fn cached(bytes: &[u8]) -> (File, FineGrained) {
    let file = File::with(bytes);
    let fine = FineGrained::over(&Ssd::open(file.path()).unwrap(), small(CachePolicy::default())).unwrap();
    (file, fine)
}

/// Spans of single bytes, across pages and stripes, longer than all buffers, and at the end.
const SPANS: [Span; 6] = [
    Span { source: 77, target: 5, len: 1 },
    Span { source: 4000, target: 100, len: 200 },
    Span { source: 65_500, target: 0, len: 70_000 },
    Span { source: 1, target: 3, len: (LEN - 5) as u64 },
    Span { source: (LEN - 10) as u64, target: 20, len: 10 },
    Span { source: 9, target: 9, len: 0 },
];

fn source(bytes: &[u8], span: Span) -> &[u8] {
    &bytes[span.source as usize..(span.source + span.len) as usize]
}

#[test]
fn into_memory_in_every_flavor() {
    let bytes = noise(LEN, 1);
    let (_file, fine) = cached(&bytes);
    let runtime = Runtime::start(machine()).unwrap();
    let memory = Dram::allocate(LEN).unwrap();
    let is_there = |span: Span, flavor: &str| {
        let range = memory.range(span.target as usize, span.len as usize).unwrap();
        assert!(*range.lease().unwrap() == *source(&bytes, span), "{flavor}: {span:?}");
        range.lease_mut().unwrap().fill(0);
    };
    let route = machine().explain(&fine, &memory, &Constraints::default()).unwrap();
    assert_eq!(route.primitives(), ["read-itself"]);
    assert!(route.to_string().contains("read-itself") && route.to_string().contains("fine:"), "{route}");

    let blocking = machine().connect(&fine, &memory).unwrap();
    let on_runtime = runtime.connect(&fine, &memory).unwrap();
    let fd = runtime.connect_fd(&fine, &memory).unwrap();
    for span in SPANS {
        blocking.transfer(span).unwrap();
        is_there(span, "blocking");
        blocking.start(span).unwrap().wait().unwrap();
        is_there(span, "started");
        on_runtime.transfer(span).unwrap().wait().unwrap();
        is_there(span, "runtime");
        runtime.block_on(on_runtime.transfer(span).unwrap()).unwrap();
        is_there(span, "future");
        fd.submit(span).unwrap();
        fd.complete_wait().unwrap().result.unwrap();
        is_there(span, "descriptor");
    }
    let moved: u64 = SPANS.iter().map(|s| s.len).sum();
    assert_eq!(blocking.report().bytes(), 2 * moved);
    // A read error is the transfer's error, with its offset. Nothing stays leased.
    let beyond = Span { source: LEN as u64 - 5, target: 0, len: 6 };
    let refused = |e: datapipes_core::Error| assert_eq!(e.kind(), ErrorKind::EndOfFile, "{e}");
    refused(blocking.transfer(beyond).unwrap_err());
    refused(on_runtime.transfer(beyond).unwrap().wait().unwrap_err());
    fd.submit(beyond).unwrap();
    refused(fd.complete_wait().unwrap().result.unwrap_err());
    assert_eq!(
        blocking.transfer(Span { source: 0, target: LEN as u64, len: 1 }).unwrap_err().kind(),
        ErrorKind::OutOfRange
    );
    let lease = memory.lease_mut().unwrap();
    assert_eq!(blocking.transfer(SPANS[0]).unwrap_err().kind(), ErrorKind::Busy);
    drop(lease);
    assert!(fine.metrics().hits > 0);
}

#[test]
fn into_a_file_by_a_bounce_and_into_a_cores_cache() {
    let bytes = noise(LEN, 2);
    let (_file, fine) = cached(&bytes);
    let target = File::with(&[]);
    let ssd = Ssd::create(target.path()).unwrap();
    let runtime = Runtime::start(machine()).unwrap();
    let route = machine().explain(&fine, &ssd, &Constraints::default()).unwrap();
    assert_eq!(route.primitives()[0], "read-itself", "{route}");
    assert_eq!(route.primitives().len(), 2, "{route}");
    let blocking = machine().connect(&fine, &ssd).unwrap();
    let on_runtime = runtime.connect(&fine, &ssd).unwrap();
    for span in SPANS {
        ssd.set_len(0).unwrap();
        blocking.transfer(span).unwrap();
        assert!(std::fs::read(target.path()).unwrap().ends_with(source(&bytes, span)), "{span:?}");
        ssd.set_len(0).unwrap();
        on_runtime.transfer(span).unwrap().wait().unwrap();
        assert!(std::fs::read(target.path()).unwrap().ends_with(source(&bytes, span)), "{span:?}");
    }
    if let Some(core) = machine().topology().usable_cores().next() {
        let memory = Dram::allocate(64 << 10).unwrap();
        let cache = datapipes_core::CoreCache::over(core, &memory).unwrap();
        machine().connect(&fine, &cache).unwrap().transfer(Span { source: 100, target: 0, len: 64 << 10 }).unwrap();
        assert!(*memory.lease().unwrap() == bytes[100..100 + (64 << 10)]);
    } else {
        println!("SKIPPED: into a core's cache: no usable core was discovered");
    }
    // Pipes cannot write into the cache; only its own writer can.
    let error = machine().connect(&ssd, &fine).map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert_eq!(fine.endpoint().facts.kind, "fine-grained");
}

#[test]
fn a_pipe_from_the_cache_sees_what_a_pipe_to_the_file_wrote() {
    let bytes = noise(LEN, 3);
    let (file, fine) = cached(&bytes);
    let memory = Dram::allocate(4096).unwrap();
    let out = machine().connect(&fine, &memory).unwrap();
    let into = machine().connect(&memory, &Ssd::open_rw(file.path()).unwrap()).unwrap();
    for i in 0..200u8 {
        let at = 1000 + u64::from(i) * 37;
        out.transfer(Span { source: at - 50, target: 0, len: 200 }).unwrap();
        memory.range(0, 100).unwrap().lease_mut().unwrap().fill(i);
        into.transfer(Span { source: 0, target: at, len: 100 }).unwrap();
        out.transfer(Span { source: at - 50, target: 0, len: 200 }).unwrap();
        assert_eq!(memory.lease().unwrap()[50..150], [i; 100]);
    }
    assert!(fine.metrics().changes >= 200);
}

/// The target overlaps the source, with a distance below the bytes in flight. Each piece is read
/// before the one after it is written, or the transfer fails. It never waits for itself for ever,
/// and nothing is torn.
#[test]
fn a_copy_within_its_own_file_ends() {
    let bytes = noise(LEN, 4);
    let file = File::with(&bytes);
    let ssd = Ssd::open_rw(file.path()).unwrap();
    let mut config = small(CachePolicy::default());
    config.patience = std::time::Duration::from_millis(50);
    let fine = FineGrained::over(&ssd, config).unwrap();
    let pipe = machine().connect(&fine, &ssd).unwrap();
    // Spans that do not overlap are copied as usual.
    pipe.transfer(Span { source: 0, target: 2 << 20, len: 1 << 20 }).unwrap();
    assert!(std::fs::read(file.path()).unwrap()[2 << 20..] == bytes[..1 << 20]);
    match pipe.transfer(Span { source: 0, target: 4096, len: 2 << 20 }) {
        Ok(()) => {}
        Err(e) => assert_eq!(e.kind(), ErrorKind::Busy, "{e}"),
    }
    let now = std::fs::read(file.path()).unwrap();
    for at in (0..now.len()).step_by(4096) {
        let mut out = [0; 4096];
        fine.read(at as u64, &mut out).unwrap();
        assert!(out == now[at..at + 4096], "the page at {at}");
    }
}
