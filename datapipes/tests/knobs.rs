//! Numbers that make no sense are refused where they are given, by every structure of options in
//! the library.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use datapipes::topology::Topology;
use datapipes::{
    ConnectFdOptions, ConnectOptions, Constraints, Dram, Error, ErrorKind, Result, Runtime, ServiceLevel, Span, Ssd,
    StagePlace, Staging, runtime,
};
use datapipes_core::Machine;
use datapipes_file::{FileBackend, FileConfig};

const LEN: usize = 64 << 10;

fn places() -> (Ssd, Dram) {
    let ssd = Ssd::unlinked_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    ssd.preallocate(LEN as u64).unwrap();
    (ssd, Dram::allocate(LEN).unwrap())
}

/// Runs what may hang, and fails where it does.
fn bounded<R: Send + 'static>(what: String, work: impl FnOnce() -> R + Send + 'static) -> R {
    let (told, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || told.send(work()));
    ended.recv_timeout(std::time::Duration::from_secs(60)).unwrap_or_else(|e| panic!("{what}: {e}"))
}

fn refused<R>(outcome: Result<R>, knob: &str) {
    let error: Error = outcome.err().unwrap_or_else(|| panic!("{knob} was taken"));
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{knob}: {error}");
    assert!(error.to_string().contains(knob), "{knob} is not named: {error}");
}

/// Makes a configuration senseless.
type Change = fn(&mut runtime::RuntimeConfig);

const NO_RATES: [f64; 6] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, -0.0];

fn senseless() -> Vec<(&'static str, Constraints)> {
    let none = Constraints::default;
    let rates = NO_RATES.map(|rate| ("at_least", Constraints { at_least: Some(rate), ..none() }));
    let counts = [
        ("request_bytes", Constraints { request_bytes: Some(0), ..none() }),
        ("queue_depth", Constraints { queue_depth: Some(0), ..none() }),
    ];
    rates.into_iter().chain(counts).collect()
}

#[test]
fn constraints() {
    let machine = datapipes::discover();
    let runtime = Runtime::start(&machine).unwrap();
    let (ssd, dram) = places();
    for (knob, constraints) in senseless() {
        refused(machine.connect_with(&ssd, &dram, &constraints), knob);
        refused(machine.explain(&dram, &ssd, &constraints), knob);
        let connect = ConnectOptions { constraints, ..ConnectOptions::default() };
        refused(runtime.connect_with(&ssd, &dram, &connect), knob);
        refused(
            runtime.connect_fd_with(&ssd, &dram, &ConnectFdOptions { connect, ..ConnectFdOptions::default() }),
            knob,
        );
    }
}

#[test]
fn services_and_queues() {
    let machine = datapipes::discover();
    let runtime = Runtime::start(&machine).unwrap();
    let (ssd, dram) = places();
    for rate in NO_RATES {
        for (knob, service) in [
            ("at_least", ServiceLevel { at_least: Some(rate), ..ServiceLevel::default() }),
            ("at_most", ServiceLevel { at_most: Some(rate), ..ServiceLevel::default() }),
        ] {
            refused(runtime.connect_with(&ssd, &dram, &ConnectOptions { service, ..ConnectOptions::default() }), knob);
        }
    }
    refused(
        runtime.connect_with(&ssd, &dram, &ConnectOptions { queue: Some(0), ..ConnectOptions::default() }),
        "queue",
    );
    refused(
        runtime.connect_fd_with(&ssd, &dram, &ConnectFdOptions { depth: Some(0), ..ConnectFdOptions::default() }),
        "depth",
    );
}

#[test]
fn configurations_of_a_runtime() {
    let machine = datapipes::discover();
    let bad: [(&str, Change); 12] = [
        ("copiers", |c| c.copiers = 0),
        ("blocking", |c| c.blocking = 0),
        ("queue", |c| c.queue = 0),
        ("chunk_bytes", |c| c.memory.chunk_bytes = 0),
        ("contended_chunk_bytes", |c| c.device.contended_chunk_bytes = 0),
        ("outstanding_chunks", |c| c.device.outstanding_chunks = 0),
        ("shares", |c| c.device.shares[0] = f64::NAN),
        ("shares", |c| c.memory.shares[2] = -0.1),
        ("shares", |c| c.memory.shares[1] = f64::INFINITY),
        ("rate", |c| c.device.rate = Some(0.0)),
        ("rate", |c| c.memory.rate = Some(f64::NAN)),
        ("rate", |c| c.memory.rate = Some(f64::NEG_INFINITY)),
    ];
    for (knob, change) in bad {
        let mut config = runtime::RuntimeConfig::of(&machine);
        change(&mut config);
        refused(Runtime::start_with(&machine, config).map(drop), knob);
    }
    Runtime::start_with(&machine, runtime::RuntimeConfig::of(&machine)).unwrap();
}

#[test]
fn settings_of_the_file_backend() {
    let (ssd, dram) = places();
    let none = FileConfig::default;
    for (knob, config) in [
        ("queue_depth", FileConfig { queue_depth: Some(0), ..none() }),
        ("request_bytes", FileConfig { request_bytes: Some(0), ..none() }),
        ("slice_bytes", FileConfig { slice_bytes: Some(0), ..none() }),
    ] {
        refused(config.check(), knob);
        let machine = Machine::new(Topology::discover(), vec![Arc::new(FileBackend::with(config))]);
        refused(machine.connect(&ssd, &dram), knob);
        refused(machine.connect(&dram, &ssd), knob);
    }
}

#[test]
fn the_least_that_makes_sense_moves_bytes_and_ends() {
    let machine = datapipes::discover();
    for uring in [true, false] {
        for lane in ["direct", "cached"] {
            let machine = machine.clone();
            let what = format!("requests of a byte, {lane}, io_uring {uring}");
            bounded(what, move || {
                let file = FileBackend::with(FileConfig { force_no_uring: !uring, ..FileConfig::default() });
                let machine = Machine::new(machine.topology().clone(), vec![Arc::new(file)]);
                let (ssd, dram) = places();
                dram.lease_mut().unwrap().fill(9);
                let only = ["uring", "pread", "pwrite"].map(|engine| format!("{engine}-{lane}")).to_vec();
                let least =
                    Constraints { request_bytes: Some(1), queue_depth: Some(1), only, ..Constraints::default() };
                let back = Dram::allocate(LEN).unwrap();
                let span = Span { source: 0, target: 0, len: 9000 };
                for (from, to) in [(&dram as &dyn datapipes::Locator, &ssd as &dyn datapipes::Locator), (&ssd, &back)] {
                    match machine.connect_with(from, to, &least) {
                        Ok(pipe) => pipe.transfer(span).unwrap(),
                        Err(e) => return println!("SKIPPED: the_least_that_makes_sense_moves_bytes_and_ends: {e}"),
                    }
                }
                assert!(back.lease().unwrap()[..9000].iter().all(|byte| *byte == 9));
            });
        }
    }
}

#[test]
fn places_to_stage_in() {
    for limit in [0, 1, 4095] {
        let place = StagePlace::folder(env!("CARGO_TARGET_TMPDIR")).limit(limit);
        refused(Staging::open(vec![place]).map(drop), "limit");
    }
}
