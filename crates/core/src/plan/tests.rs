//! Tests of the planner with a backend that offers what each test wants.

use std::sync::Arc;

use super::{Plan, Planner, RouteShape};
use crate::backend::{Backend, Constraints, Mover, Offer, OfferQuery, Primitive, Quality};
use crate::error::{Error, ErrorKind, Result};
use crate::locator::{Endpoint, EndpointHandle, Persistence, PlaceFacts, Reach};
use crate::memory::{MapOptions, Pages, Region};
use crate::topology::Topology;

#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Memory,
    Cache,
    /// Memory whose bytes survive once a transfer has returned, and the same memory before a flush.
    Persistent,
    Unflushed,
    /// A place outside memory, which only the fake backend knows.
    Device,
}

struct Known {
    name: &'static str,
    from: At,
    to: At,
    verdict: Result<Quality, &'static str>,
}

struct Fake(Vec<Known>);

fn quality(latency_ns: f64, bytes_per_s: f64) -> Quality {
    Quality {
        latency_ns,
        bytes_per_s,
        cpu_share: 1.0,
        offload: false,
        fills_processor_cache: true,
        fills_page_cache: true,
        measured: false,
    }
}

fn serves(name: &'static str, from: At, to: At, quality: Quality) -> Known {
    Known { name, from, to, verdict: Ok(quality) }
}

fn at(endpoint: &Endpoint) -> At {
    match (endpoint.memory(), endpoint.facts.core, endpoint.facts.persistence) {
        (Some(_), Some(_), _) => At::Cache,
        (Some(_), None, Persistence::OnCompletion) => At::Persistent,
        (Some(_), None, Persistence::AfterSync) => At::Unflushed,
        (Some(_), None, _) => At::Memory,
        _ => At::Device,
    }
}

impl Backend for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn primitives(&self) -> Vec<Primitive> {
        let listed = |p: &Known| Primitive { name: p.name, what: "a test", available: Ok("always".into()) };
        self.0.iter().map(listed).collect()
    }

    fn offers(&self, ask: &OfferQuery<'_>) -> Vec<Offer> {
        // Bytes for a cache arrive in the memory behind it.
        let reaches = |p: &&Known| {
            p.from == at(ask.source)
                && (p.to == at(ask.target) || p.from == At::Device && p.to == At::Memory && at(ask.target) == At::Cache)
        };
        let offer = |p: &Known| Offer {
            primitive: p.name,
            verdict: p.verdict.clone().map_err(str::to_owned),
            why: format!("{} was made for a test", p.name),
        };
        self.0.iter().filter(reaches).map(offer).collect()
    }

    fn open(&self, _: &OfferQuery<'_>, primitive: &str) -> Result<Mover> {
        Err(Error::new(ErrorKind::Unsupported, "open", primitive))
    }
}

fn place(at: At) -> Endpoint {
    let handle = match at {
        At::Device => EndpointHandle::Other(Arc::new(())),
        At::Memory | At::Cache | At::Persistent | At::Unflushed => {
            let options = MapOptions { pages: Pages::Small, prefault: false, node: None };
            EndpointHandle::Memory(Region::map(4096, options).unwrap().range(0, 4096).unwrap())
        }
    };
    let facts = PlaceFacts {
        kind: "test",
        name: match at {
            At::Memory => "memory",
            At::Cache => "cache",
            At::Persistent => "persistent",
            At::Unflushed => "unflushed",
            At::Device => "device",
        }
        .into(),
        reach: if at == At::Device { Reach::Device } else { Reach::Memory },
        granularity: 1,
        alignment: 1,
        persistence: match at {
            At::Persistent => Persistence::OnCompletion,
            At::Unflushed => Persistence::AfterSync,
            _ => Persistence::Volatile,
        },
        len: Some(4096),
        node: None,
        core: (at == At::Cache).then_some(0),
    };
    Endpoint { facts: Arc::new(facts), handle }
}

fn plan(primitives: Vec<Known>, from: At, to: At, constraints: &Constraints) -> Result<Plan> {
    let backends: Vec<Arc<dyn Backend>> = vec![Arc::new(Fake(primitives))];
    let topology = Topology::discover_under(std::path::Path::new("/nonexistent"));
    Planner { backends: &backends, topology: &topology, constraints }.plan(&place(from), &place(to), &[])
}

/// Primitives: high latency and high rate, low latency and low rate, a device, and one that is
/// absent.
fn copies() -> Vec<Known> {
    let clean = |q: Quality| Quality { fills_processor_cache: false, ..q };
    let device = Quality { offload: true, fills_page_cache: false, ..clean(quality(50_000.0, 1e9)) };
    vec![
        serves("long", At::Memory, At::Memory, clean(quality(10_000.0, 20e9))),
        serves("short", At::Memory, At::Memory, Quality { fills_page_cache: false, ..quality(10.0, 5e9) }),
        serves("engine", At::Memory, At::Memory, device),
        Known { name: "absent", from: At::Memory, to: At::Memory, verdict: Err("the machine lacks it") },
    ]
}

fn chosen(constraints: Constraints) -> Result<Vec<&'static str>> {
    plan(copies(), At::Memory, At::Memory, &constraints).map(|p| p.route.primitives())
}

#[test]
fn the_typical_length_weighs_latency_against_rate() {
    let of = |typical_len| chosen(Constraints { typical_len, ..Constraints::default() }).unwrap();
    assert_eq!(of(Some(64)), ["short"]);
    assert_eq!(of(Some(1 << 30)), ["long"]);
    assert_eq!(of(None), ["long"], "a mebibyte");
    assert_eq!(of(Some(0)), ["short"]);
}

#[test]
fn every_constraint_bears_on_the_choice() {
    let names = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
    let base = || Constraints { typical_len: Some(64), ..Constraints::default() };
    assert_eq!(chosen(Constraints { only: names(&["engine", "long"]), ..base() }).unwrap(), ["long"]);
    assert_eq!(chosen(Constraints { deny: names(&["short"]), ..base() }).unwrap(), ["long"]);
    assert_eq!(chosen(Constraints { require_offload: true, ..base() }).unwrap(), ["engine"]);
    assert_eq!(chosen(Constraints { bypass_processor_cache: true, ..base() }).unwrap(), ["long"]);
    let fill = Constraints { typical_len: Some(1 << 30), fill_processor_cache: true, ..base() };
    assert_eq!(chosen(fill).unwrap(), ["short"]);
    let long = Constraints { typical_len: Some(1 << 30), bypass_page_cache: true, ..base() };
    assert_eq!(chosen(long).unwrap(), ["short"]);
    assert_eq!(chosen(Constraints { at_least: Some(6e9), ..base() }).unwrap(), ["long"]);
    assert_eq!(chosen(Constraints { at_least: Some(5e9), ..base() }).unwrap(), ["short"], "exactly enough is enough");
}

#[test]
fn a_route_gives_a_reason_for_every_primitive_it_does_not_take() {
    let plan =
        plan(copies(), At::Memory, At::Memory, &Constraints { deny: vec!["short".into()], ..Constraints::default() });
    let plan = plan.unwrap();
    assert!(plan.shape == RouteShape::Direct && plan.bounce.is_empty());
    let why = |name| plan.route.rejected.iter().find(|r| r.primitive == name).unwrap().why.clone();
    assert_eq!(plan.route.rejected.len(), 3);
    assert!(why("engine").contains("estimated") && why("engine").contains("long"));
    assert_eq!((why("short"), why("absent")), ("the caller denied it".into(), "the machine lacks it".into()));
    let text = plan.route.to_string();
    assert!(text.contains("memory -> memory") && text.contains("not engine") && text.contains("was made for a test"));
}

#[test]
fn a_refusal_names_every_alternative_with_its_reason() {
    let constraints = [
        (Constraints { at_least: Some(1e12), ..Constraints::default() }, "less than the 1.00 TB/s required"),
        (Constraints { only: vec!["absent".into()], ..Constraints::default() }, "the machine lacks it"),
        (Constraints { only: vec!["absent".into()], ..Constraints::default() }, "only absent was asked for"),
        (Constraints { require_offload: true, at_least: Some(2e9), ..Constraints::default() }, "uses a core"),
    ];
    for (constraints, reason) in constraints {
        let e = chosen(constraints).unwrap_err();
        let text = e.to_string();
        assert_eq!(e.kind(), ErrorKind::Unsupported);
        assert!(["long: ", "short: ", "engine: ", "absent: "].iter().all(|name| text.contains(name)), "{text}");
        assert!(text.contains(reason) && text.contains("relax the constraints"), "{text}");
    }
}

#[test]
fn a_primitive_that_no_backend_lists_is_refused() {
    let misspelt = || vec!["short".into(), "shrot".into()];
    for constraints in [
        Constraints { only: misspelt(), ..Constraints::default() },
        Constraints { deny: misspelt(), ..Constraints::default() },
    ] {
        let e = chosen(constraints).unwrap_err();
        let text = e.to_string();
        assert_eq!(e.kind(), ErrorKind::InvalidInput, "{text}");
        assert!(text.contains("\"shrot\"") && text.contains("short, "), "{text}");
    }
}

#[test]
fn a_pair_that_no_backend_serves_is_refused() {
    let e = plan(copies(), At::Device, At::Memory, &Constraints::default()).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert!(e.to_string().contains("no backend moves bytes between them"), "{e}");
}

#[test]
fn into_a_cache_bytes_land_and_then_their_lines_are_placed() {
    let mut primitives = copies();
    primitives.push(serves("read", At::Device, At::Memory, quality(1000.0, 1e9)));
    primitives.push(serves("place", At::Memory, At::Cache, quality(10.0, 50e9)));
    let plan = plan(primitives, At::Device, At::Cache, &Constraints::default()).unwrap();
    assert_eq!((plan.shape, plan.route.primitives()), (RouteShape::Placement, vec!["read", "place"]));
    let [landed, placed] = plan.route.hops.as_slice() else { panic!("two hops") };
    assert_eq!((landed.to.as_str(), placed.from.as_str()), ("cache", "memory behind cache"));
    assert!(plan.legs[1].source.memory().unwrap().same_bytes(plan.legs[1].target.memory().unwrap()));
}

#[test]
fn without_a_placement_nothing_reaches_a_cache() {
    let read = serves("read", At::Device, At::Memory, quality(1000.0, 1e9));
    let e = plan(vec![read], At::Device, At::Cache, &Constraints::default()).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
}

#[test]
fn into_persistent_memory_bytes_land_and_then_their_lines_are_flushed() {
    let primitives = || {
        vec![
            serves("read", At::Device, At::Unflushed, quality(1000.0, 1e9)),
            serves("flush", At::Unflushed, At::Persistent, quality(10.0, 50e9)),
            Known { name: "read", from: At::Device, to: At::Persistent, verdict: Err("it does not flush") },
        ]
    };
    let taken = plan(primitives(), At::Device, At::Persistent, &Constraints::default()).unwrap();
    assert_eq!((taken.shape, taken.route.primitives()), (RouteShape::Placement, vec!["read", "flush"]));
    let [landed, flushed] = taken.route.hops.as_slice() else { panic!("two hops") };
    assert_eq!((landed.to.as_str(), flushed.to.as_str()), ("persistent before the flush", "persistent"));
    assert!(taken.legs[1].source.memory().unwrap().same_bytes(taken.legs[1].target.memory().unwrap()));
    // A faster primitive that flushes by itself is taken alone.
    let mut more = primitives();
    more.push(serves("offload", At::Device, At::Persistent, quality(1000.0, 9e9)));
    let alone = plan(more, At::Device, At::Persistent, &Constraints::default()).unwrap();
    assert_eq!((alone.shape, alone.route.primitives()), (RouteShape::Direct, vec!["offload"]));
    // Without a flush there is no route.
    let mut less = primitives();
    less.retain(|p| p.name == "read");
    let e = plan(less, At::Device, At::Persistent, &Constraints::default()).err().unwrap();
    assert!(e.to_string().contains("it does not flush"), "{e}");
}

/// A device that reads and writes memory, and copies within itself at `rate`.
fn device(rate: f64) -> Vec<Known> {
    vec![
        serves("read", At::Device, At::Memory, quality(1000.0, 4e9)),
        serves("write", At::Memory, At::Device, quality(1000.0, 2e9)),
        serves("within", At::Device, At::Device, quality(1000.0, rate)),
    ]
}

#[test]
fn between_devices_the_faster_of_direct_and_bounce_is_taken() {
    let bounce = plan(device(1e9), At::Device, At::Device, &Constraints::default()).unwrap();
    assert_eq!((bounce.shape, bounce.route.primitives()), (RouteShape::Bounce, vec!["read", "write"]));
    assert_eq!(bounce.bounce.len(), super::NEAR.count);
    let within = bounce.route.rejected.iter().find(|r| r.primitive == "within").unwrap();
    // 1 us and 1 MiB at 1 GB/s, against the slower leg of the bounce (2 GB/s) and a tenth.
    assert_eq!(within.why, "estimated 1049.6 us for 1048576 bytes by within, 577.8 us by read and write");
    assert!(within.quality.is_some());
    let direct = plan(device(3e9), At::Device, At::Device, &Constraints::default()).unwrap();
    assert_eq!((direct.shape, direct.route.primitives()), (RouteShape::Direct, vec!["within"]));
    assert!(direct.bounce.is_empty());
}

#[test]
fn to_a_distant_place_more_is_under_way() {
    let mut far = device(1.0);
    far[1] = serves("write", At::Memory, At::Device, quality(20e6, 2e9));
    let bounce = plan(far, At::Device, At::Device, &Constraints::default()).unwrap();
    assert_eq!((bounce.shape, bounce.route.primitives()), (RouteShape::Bounce, vec!["read", "write"]));
    assert_eq!((bounce.bounce.len(), bounce.bounce[0].len()), (super::DISTANT.count, super::DISTANT.bytes));
}

#[test]
fn where_a_core_copies_for_a_quicker_device_the_buffers_stay_in_its_cache() {
    for (rate, expected) in [(4e9, super::COPIED), (3e9, super::NEAR)] {
        let mut copied = device(1.0);
        copied[1] = serves("write", At::Memory, At::Device, Quality { offload: true, ..quality(1000.0, rate) });
        let bounce = plan(copied, At::Device, At::Device, &Constraints::default()).unwrap();
        assert_eq!((bounce.shape, bounce.route.primitives()), (RouteShape::Bounce, vec!["read", "write"]));
        assert_eq!((bounce.bounce.len(), bounce.bounce[0].len()), (expected.count, expected.bytes));
    }
}

#[test]
fn half_a_bounce_is_no_route() {
    let mut primitives = device(1e9);
    primitives.retain(|p| p.name == "read");
    let e = plan(primitives, At::Device, At::Device, &Constraints::default()).err().unwrap();
    assert!(e.kind() == ErrorKind::Unsupported, "{e}");
}
