//! Reports as samples of measurements: what they say, and that Prometheus would take them.
#![cfg(all(feature = "cache", feature = "fabric", feature = "log", feature = "sort"))]
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use datapipes::durable::log::{Log, LogFolder, LogOptions};
use datapipes::metrics::{Sample, prometheus};
use datapipes::runtime::RuntimeOptions;
use datapipes::{Dram, Runtime, Span, Ssd};
use datapipes_testkit::TempFolder;

/// The value of a series, and that no series is there twice.
fn value(samples: &[Sample], series: &str) -> f64 {
    let text = prometheus(samples);
    let lines: Vec<(&str, &str)> =
        text.lines().filter(|line| !line.starts_with('#')).map(|line| line.rsplit_once(' ').unwrap()).collect();
    let names: BTreeSet<&str> = lines.iter().map(|(name, _)| *name).collect();
    assert_eq!(names.len(), lines.len(), "a series is there twice: {text}");
    let found = lines.iter().find(|(name, _)| *name == series);
    found.unwrap_or_else(|| panic!("no {series} in {text}")).1.parse().unwrap()
}

#[test]
fn a_runtime_and_its_pipes() {
    let machine = datapipes::discover();
    let options = RuntimeOptions::new(&machine).measure_latencies(true);
    let runtime = Runtime::start_with(&machine, options).unwrap();
    let (source, target) = (Dram::allocate(1 << 20).unwrap(), Dram::allocate(1 << 20).unwrap());
    let pipe = runtime.connect(&source, &target).unwrap();
    let other = runtime.connect(&source, &target).unwrap();
    let span = Span { source: 0, target: 0, len: 1 << 20 };
    pipe.transfer(span).unwrap().wait().unwrap();
    other.transfer(Span { len: 64, ..span }).unwrap().wait().unwrap();
    let samples = runtime.report().samples();
    assert_eq!(value(&samples, "datapipes_runtime_transfers_total{outcome=\"completed\"}"), 2.0);
    assert_eq!(value(&samples, "datapipes_runtime_transfer_seconds_count{class=\"normal\"}"), 2.0);
    // What is short runs on the caller: no scheduler sees it.
    let bytes = "datapipes_device_bytes_total{device=\"memory\",class=\"normal\"}";
    assert_eq!(value(&samples, bytes), f64::from(1 << 20));
    let route = pipe.route().hops[0].primitive;
    let of_pipe = format!(
        "datapipes_pipe_bytes_total{{product=\"pipe\",pipe=\"7\",route=\"{route}\",step=\"1\",primitive=\"{route}\"}}"
    );
    let both = [pipe.report().samples("7"), other.report().samples("8")].concat();
    assert_eq!(value(&both, &of_pipe), f64::from(1 << 20));
}

#[test]
fn each_step_of_a_pipe_has_series_of_its_own() {
    let folder = TempFolder::under(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (from, to) = (folder.path("from"), folder.path("to"));
    std::fs::write(&from, vec![1; 1 << 20]).unwrap();
    std::fs::write(&to, vec![0; 1 << 20]).unwrap();
    let machine = datapipes::discover();
    let (from, to) = (Ssd::open(&from).unwrap(), Ssd::open_rw(&to).unwrap());
    let pipe = machine.connect(&from, &to).unwrap();
    pipe.transfer(Span { source: 0, target: 0, len: 1 << 20 }).unwrap();
    let text = prometheus(&pipe.report().samples("copy"));
    assert!(!text.contains(folder.at().to_str().unwrap()), "a path of the user: {text}");
    let samples = pipe.report().samples("copy");
    let primitives: Vec<&str> = pipe.route().hops.iter().map(|hop| hop.primitive).collect();
    let route = primitives.join(" > ");
    for (step, primitive) in (1..).zip(primitives) {
        let series = format!(
            "datapipes_pipe_bytes_total{{product=\"pipe\",pipe=\"copy\",route=\"{route}\",step=\"{step}\",primitive=\"{primitive}\"}}"
        );
        assert_eq!(value(&samples, &series), f64::from(1 << 20), "{text}");
    }
}

#[test]
fn a_cache_and_a_log() {
    let folder = TempFolder::under(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path("numbers");
    std::fs::write(&path, vec![7; 1 << 20]).unwrap();
    let machine = datapipes::discover();
    let mut options = datapipes::cache::CacheOptions::new(&machine).budget(4 << 20);
    // A file as young as this would be in doubt, and be read once more.
    options.outside = datapipes::cache::ExternalChanges::Never;
    let fine = datapipes::cache::FineGrained::over(&Ssd::open(&path).unwrap(), options).unwrap();
    fine.measure_latencies(true);
    for _ in 0..3 {
        let mut bytes = [0; 64];
        fine.read(4096, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 64]);
    }
    let samples = fine.metrics().samples();
    assert_eq!(value(&samples, "datapipes_cache_reads_total{outcome=\"hit\"}"), 2.0);
    assert_eq!(value(&samples, "datapipes_cache_reads_total{outcome=\"miss\"}"), 1.0);
    assert_eq!(value(&samples, "datapipes_cache_read_seconds_count{outcome=\"hit\"}"), 2.0);
    assert_eq!(value(&samples, "datapipes_cache_asked_bytes_total"), 192.0);

    let storage = LogFolder::at(&machine, folder.path("log"));
    let log = Log::open(&machine, storage, LogOptions::default()).unwrap();
    log.append_durable(b"one").unwrap();
    let samples = log.stats().samples();
    assert_eq!(value(&samples, "datapipes_log_records_total"), 1.0);
    assert_eq!(value(&samples, "datapipes_log_payload_bytes_total"), 3.0);
    assert_eq!(value(&samples, "datapipes_log_append_seconds_count"), 1.0);
    assert_eq!(value(&samples, "datapipes_log_undurable_records"), 0.0);
    assert_eq!(value(&samples, "datapipes_log_failed"), 0.0);
}
