//! The suite on a machine whose kernel refuses io_uring, and on a mover that is broken on purpose.

use std::path::PathBuf;
use std::sync::Arc;

use datapipes_core::backend::{Backend, InlineMover, Mover, Offer, OfferQuery, Primitive, Quality};
use datapipes_core::memory::{MemoryRange, lease_pair};
use datapipes_core::topology::Topology;
use datapipes_core::{Counters, Machine, Result, Span};
use datapipes_file::{FileBackend, FileBackendOptions};

use super::{CaseOutcome, CaseVerdict, PlaceKind, run};

fn seed() -> u64 {
    crate::seed(0x5eed)
}

#[test]
fn without_io_uring_the_blocking_engine_serves_every_pair() {
    let topology = Topology::discover();
    let mut backends = datapipes_bundle::all(&topology);
    backends.retain(|b| b.name() != "file");
    backends.push(Arc::new(FileBackend::with(FileBackendOptions::default().force_no_uring(true))));
    // Beside the test's executable: the disk of the checkout.
    let disk = std::env::current_exe().unwrap().parent().map(PathBuf::from).unwrap();
    let mut kinds = PlaceKind::of_memory(&topology);
    kinds.extend(PlaceKind::of_files("disk", &disk));
    let machine = Machine::new(topology, backends);
    let outcomes = run(&machine, &kinds, seed());
    let failed: Vec<_> = outcomes.iter().filter(|o| matches!(o.verdict, CaseVerdict::Failed(_))).collect();
    assert!(failed.is_empty(), "{}", list(&failed));
    let ring = |o: &&CaseOutcome| o.way.iter().any(|p| p.starts_with("uring-"));
    let (mut rings, mut blocking) = (outcomes.iter().filter(ring).peekable(), outcomes.iter().filter(|o| !ring(o)));
    assert!(rings.peek().is_some() && rings.all(|o| matches!(o.verdict, CaseVerdict::NotApplicable(_))));
    assert!(blocking.any(|o| o.verdict == CaseVerdict::Passed && o.way.contains(&"pwrite-direct")));
}

/// What is wrong with a [`Broken`] mover.
#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    LosesTheLastByte,
    WritesOneByteTooMany,
    CountsHalf,
    TakesNoLease,
}

struct Broken {
    fault: Fault,
}

struct Copy {
    fault: Fault,
    ends: (MemoryRange, MemoryRange),
    bytes: std::sync::atomic::AtomicU64,
}

impl Backend for Broken {
    fn name(&self) -> &'static str {
        "broken"
    }

    fn primitives(&self) -> Vec<Primitive> {
        vec![Primitive { name: "broken-copy", what: "copy, wrongly", available: Ok("always".into()) }]
    }

    fn offers(&self, _: &OfferQuery<'_>) -> Vec<Offer> {
        let quality = Quality {
            latency_ns: 1.0,
            bytes_per_s: 1e9,
            cpu_share: 1.0,
            offload: false,
            fills_processor_cache: true,
            fills_page_cache: false,
            measured: false,
        };
        vec![Offer { primitive: "broken-copy", verdict: Ok(quality), why: "a test".into() }]
    }

    fn open(&self, ask: &OfferQuery<'_>, _: &str) -> Result<Mover> {
        let ends = (ask.source.memory().cloned().unwrap(), ask.target.memory().cloned().unwrap());
        Ok(Mover::Inline(Box::new(Copy { fault: self.fault, ends, bytes: 0.into() })))
    }
}

impl InlineMover for Copy {
    fn transfer(&self, span: Span) -> Result<()> {
        let place = |n: u64| usize::try_from(n).unwrap();
        let (from, to, len) = (place(span.source), place(span.target), place(span.len));
        if from.saturating_add(len) > self.ends.0.len() || to.saturating_add(len) > self.ends.1.len() {
            return lease_pair((&self.ends.0, from), (&self.ends.1, to), len, |_, _| ());
        }
        let bytes = if matches!(self.fault, Fault::TakesNoLease) {
            // As a mover that asks nobody: it answers with success where it had to be refused.
            match self.ends.0.range(from, len)?.lease() {
                Ok(bytes) => bytes.to_vec(),
                Err(_) => return Ok(()),
            }
        } else {
            self.ends.0.range(from, len)?.lease()?.to_vec()
        };
        let kept = match self.fault {
            Fault::LosesTheLastByte => len.saturating_sub(1),
            _ => len,
        };
        self.ends.1.range(to, len)?.lease_mut()?[..kept].copy_from_slice(&bytes[..kept]);
        if matches!(self.fault, Fault::WritesOneByteTooMany) && to + len < self.ends.1.len() {
            self.ends.1.range(to + len, 1)?.lease_mut()?[0] ^= 1;
        }
        let counted = if matches!(self.fault, Fault::CountsHalf) { span.len / 2 } else { span.len };
        self.bytes.fetch_add(counted, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }

    fn counters(&self) -> Counters {
        Counters::default().bytes(self.bytes.load(std::sync::atomic::Ordering::Relaxed))
    }
}

#[test]
fn the_suite_finds_what_is_broken() {
    let fails = |fault| {
        let topology = Topology::discover_under(std::path::Path::new("/nonexistent"));
        let kinds: Vec<_> = PlaceKind::of_memory(&topology).into_iter().filter(|k| k.name == "dram").collect();
        let machine = Machine::new(topology, vec![Arc::new(Broken { fault })]);
        let outcomes = run(&machine, &kinds, seed());
        let of_pair = outcomes.iter().find(|o| o.way == ["broken-copy"]).unwrap();
        match &of_pair.verdict {
            CaseVerdict::Failed(why) => Some(why.clone()),
            CaseVerdict::Passed => None,
            CaseVerdict::Skipped(why) | CaseVerdict::NotApplicable(why) => panic!("it did not run: {why}"),
        }
    };
    assert_eq!(fails(Fault::None), None);
    let faults = [
        (Fault::LosesTheLastByte, "is wrong"),
        (Fault::WritesOneByteTooMany, "is wrong"),
        (Fault::CountsHalf, "bytes were moved"),
        (Fault::TakesNoLease, "written by somebody"),
    ];
    for (fault, said) in faults {
        assert!(fails(fault).is_some_and(|why| why.contains(said)), "{fault:?}: {:?}", fails(fault));
    }
}

#[test]
fn a_place_that_cannot_be_had_is_named_with_its_reason() {
    let machine = Machine::new(Topology::discover_under(std::path::Path::new("/nonexistent")), Vec::new());
    let outcomes = run(&machine, &[PlaceKind::absent("tape", "no drive")], seed());
    assert!(outcomes.iter().any(|o| o.to_string() == "SKIPPED: tape -> tape by : no drive"), "{outcomes:?}");
}

fn list(outcomes: &[&CaseOutcome]) -> String {
    outcomes.iter().map(|o| format!("{o}\n")).collect()
}
