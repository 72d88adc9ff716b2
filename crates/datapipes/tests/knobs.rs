//! Numbers that make no sense are refused where they are given, by every option structure of the
//! library.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use datapipes::topology::Topology;
use datapipes::{
    ConnectFdOptions, ConnectOptions, Constraints, Dram, Error, ErrorKind, Result, Runtime, ServiceLevel, Span, Ssd,
    StagePlace, Staging, runtime,
};
use datapipes_core::Machine;
use datapipes_file::{FileBackend, FileBackendOptions};
use datapipes_testkit::bounded;

const LEN: usize = 64 << 10;

fn places() -> (Ssd, Dram) {
    let ssd = Ssd::unlinked_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    ssd.preallocate(LEN as u64).unwrap();
    (ssd, Dram::allocate(LEN).unwrap())
}

fn refused<R>(outcome: Result<R>, knob: &str) {
    let error: Error = outcome.err().unwrap_or_else(|| panic!("{knob} was taken"));
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{knob}: {error}");
    assert!(error.to_string().contains(knob), "{knob} is not named: {error}");
}

/// Makes a configuration invalid.
type Change = fn(&mut runtime::RuntimeOptions);

const NO_RATES: [f64; 6] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, -0.0];

fn senseless() -> Vec<(&'static str, Constraints)> {
    let none = Constraints::default;
    let rates = NO_RATES.map(|rate| ("at_least", none().at_least(rate)));
    let counts = [("request_bytes", none().request_bytes(0)), ("queue_depth", none().queue_depth(0))];
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
        let connect = ConnectOptions::default().constraints(constraints);
        refused(runtime.connect_with(&ssd, &dram, &connect), knob);
        refused(runtime.connect_fd_with(&ssd, &dram, &ConnectFdOptions::default().connect(connect)), knob);
    }
}

#[test]
fn services_and_queues() {
    let machine = datapipes::discover();
    let runtime = Runtime::start(&machine).unwrap();
    let (ssd, dram) = places();
    for rate in NO_RATES {
        for (knob, service) in
            [("at_least", ServiceLevel::default().at_least(rate)), ("at_most", ServiceLevel::default().at_most(rate))]
        {
            refused(runtime.connect_with(&ssd, &dram, &ConnectOptions::default().service(service)), knob);
        }
    }
    refused(runtime.connect_with(&ssd, &dram, &ConnectOptions::default().queue(0)), "queue");
    refused(runtime.connect_fd_with(&ssd, &dram, &ConnectFdOptions::default().depth(0)), "depth");
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
        let mut config = runtime::RuntimeOptions::new(&machine);
        change(&mut config);
        refused(Runtime::start_with(&machine, config).map(drop), knob);
    }
    Runtime::start_with(&machine, runtime::RuntimeOptions::new(&machine)).unwrap();
}

#[test]
fn settings_of_the_file_backend() {
    let (ssd, dram) = places();
    let none = FileBackendOptions::default;
    for (knob, config) in [
        ("queue_depth", none().queue_depth(0)),
        ("request_bytes", none().request_bytes(0)),
        ("slice_bytes", none().slice_bytes(0)),
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
            bounded(&what, move || {
                let file = FileBackend::with(FileBackendOptions::default().force_no_uring(!uring));
                let machine = Machine::new(machine.topology().clone(), vec![Arc::new(file)]);
                let (ssd, dram) = places();
                dram.lease_mut().unwrap().fill(9);
                let only = ["uring", "pread", "pwrite"].map(|engine| format!("{engine}-{lane}")).to_vec();
                let least = Constraints::default().request_bytes(1).queue_depth(1).only(only);
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
