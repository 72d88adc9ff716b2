//! `dpipe experiment` and `dpipe counters` as a user runs them, briefly.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod scene;

use std::process::{Command, Output, Stdio};

use scene::{TempFolder, folder};
use serde_json::Value;

fn dpipe(here: &TempFolder, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dpipe"));
    command.current_dir(here.at()).env("LC_ALL", "C").stdin(Stdio::null());
    command.args(words).output().unwrap()
}

fn json(here: &TempFolder, words: &[&str]) -> Value {
    let output = dpipe(here, words);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn names(list: &Value, key: &str) -> Vec<String> {
    list.as_array().unwrap().iter().map(|entry| entry[key].as_str().unwrap().to_owned()).collect()
}

#[test]
fn reads_are_summed_beside_a_load_and_what_is_absent_is_named() {
    let here = folder();
    let brief = ["--size", "4M", "--ms", "5", "--chunks", "4K,64K", "--json"];
    let picture = here.path("fig3.svg");
    let report = json(&here, &[&["experiment", "fig3"], &brief[..], &["--plot", picture.to_str().unwrap()]].concat());
    let curves = report["curves"].as_array().unwrap();
    assert_eq!(curves[0]["name"], "alone");
    for curve in curves {
        let points = curve["points"].as_array().unwrap();
        assert_eq!((points.len(), &points[1]["chunk_bytes"]), (2, &65536.into()));
        for point in points {
            // As many as are under way at least, and each was checked by its sum.
            assert!(
                point["chunks"].as_u64().unwrap() >= 32 && point["bytes_per_second"].as_f64().unwrap() > 0.0,
                "{point}"
            );
            assert!(point["p50_us"].as_f64() <= point["p99_us"].as_f64());
            let is_beside_a_load = curve["name"] != "alone";
            // On a busy machine the load may get no time in so few milliseconds.
            assert_eq!(point["load_bytes_per_second"].is_f64(), is_beside_a_load, "{point}");
        }
    }
    // Each of the paper's curves was measured, or is left out with a reason.
    let left_out = names(&report["left_out"], "what");
    for curve in ["with load, DDIO off", "with load, DDIO on"] {
        let is_there = names(&report["curves"], "name").contains(&curve.to_owned());
        assert!(is_there != left_out.contains(&curve.to_owned()), "{report}");
    }
    assert!(report["left_out"].as_array().unwrap().iter().all(|left| !left["why"].as_str().unwrap().is_empty()));
    let svg = std::fs::read_to_string(&picture).unwrap();
    assert!(svg.starts_with("<svg ") && svg.contains("Throughput") && !svg.contains("NaN"));

    let report = json(&here, &[&["experiment", "fig4"], &brief[..]].concat());
    let all = [names(&report["curves"], "name"), names(&report["left_out"], "what")].concat();
    for ways in ["ways as set", "2 ways", "11 ways"] {
        assert_eq!(all.iter().filter(|name| *name == ways).count(), 1, "{all:?}");
    }
    for (wrong, why) in [
        (&["fig4", "--size", "4M", "--chunks", "64K", "--trace", "t"][..], "fig3 --trace"),
        (&["fig3", "--size", "1024T"], "smaller --size"),
        (&["fig5a", "--size", "2M", "--chunks", "1M"], "chunks of 1048576 bytes"),
        (&["fig5a", "--size", "17G"], "at most 16G"),
    ] {
        let refused = dpipe(&here, &[&["experiment"], wrong].concat());
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(2) && error.contains(why), "{wrong:?}: {error}");
    }
    // The file has no name, and nothing is left.
    assert_eq!(here.names().unwrap(), ["fig3.svg"]);
}

#[test]
fn copies_between_memories_are_measured_and_compared() {
    let here = folder();
    let brief = ["--size", "2M", "--ms", "3", "--chunks", "4K,64K", "--json"];
    for figure in ["fig5a", "fig5b"] {
        let report = json(&here, &[&["experiment", figure], &brief[..]].concat());
        assert!(report["setup"].as_str().unwrap().contains("DRAM IN PLACE OF PERSISTENT MEMORY"));
        let left_out = names(&report["left_out"], "what");
        assert!(left_out.contains(&"persistent memory".to_owned()));
        // Misses are counted, or are left out with a reason.
        let points = report["curves"].as_array().unwrap().iter().flat_map(|curve| curve["points"].as_array().unwrap());
        let are_counted = points.clone().all(|point| point["llc_misses_per_line"].is_f64());
        assert!(are_counted != left_out.contains(&"misses of the last-level cache".to_owned()), "{report}");
        let curves = names(&report["curves"], "primitive");
        assert!(curves.contains(&"memcpy".to_owned()), "{curves:?}");
    }
    // A file that stands for persistent memory is called so, and is overwritten only on demand.
    let file = here.path("p");
    std::fs::write(&file, vec![7; 2 << 20]).unwrap();
    let place = format!("pmem:{}?emulated", file.display());
    let report = json(&here, &[&["experiment", "fig5a", "--pmem", &place], &brief[..]].concat());
    assert!(report["setup"].as_str().unwrap().contains("EMULATED"));
    assert!(std::fs::read(&file).unwrap().iter().all(|byte| *byte == 7));
    let refused = dpipe(&here, &[&["experiment", "fig5b", "--pmem", &place], &brief[..]].concat());
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && error.contains("--overwrite"), "{error}");
    assert!(std::fs::read(&file).unwrap().iter().all(|byte| *byte == 7));
    json(&here, &[&["experiment", "fig5b", "--pmem", &place, "--overwrite"], &brief[..]].concat());
    assert_eq!(std::fs::read(&file).unwrap()[..8], 1u64.to_le_bytes());
}

#[test]
fn control_of_payloads_is_counted() {
    let here = folder();
    let report = json(&here, &["experiment", "control", "--ms", "10", "--sizes", "64,4K", "--json"]);
    let rows = report["rows"].as_array().unwrap();
    let row = |way: &str, size: u64| {
        rows.iter().find(|row| row["way"] == way && row["payload_bytes"] == size).unwrap_or(&Value::Null)
    };
    let of = |way: &str, what: &str| row(way, 64)[what].as_f64();
    assert_eq!(row("NVMe with SPDK, one at a time", 64)["standing"], "derived");
    assert_eq!(of("NVMe with SPDK, one at a time", "control_bytes"), Some(88.0));
    // What one short measurement gives depends on what else the machine does, so it is repeated.
    let mut wrong = figures_that_are_off(&report);
    for _ in 0..20 {
        if wrong.is_empty() {
            return;
        }
        wrong = figures_that_are_off(&json(&here, &["experiment", "control", "--ms", "10", "--sizes", "64", "--json"]));
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Figures of payloads of 64 bytes that are not what they are on a quiet machine.
fn figures_that_are_off(report: &Value) -> Vec<String> {
    let rows = report["rows"].as_array().unwrap();
    let row =
        |way: &str| rows.iter().find(|row| row["way"] == way && row["payload_bytes"] == 64).unwrap_or(&Value::Null);
    let of = |way: &str, what: &str| row(way)[what].as_f64();
    let mut wrong = Vec::new();
    let mut expect = |holds: bool, what: String| wrong.extend((!holds).then_some(what));
    // A call each at least; what is measured beside it is little.
    let calls = of("pread, one at a time", "system_calls").unwrap();
    expect((0.99..1.5).contains(&calls), format!("pread: {calls} calls"));
    if let Some(calls) = of("io_uring by hand", "system_calls") {
        expect(calls < 0.5, format!("32 go by one call: {calls}"));
        let bytes = of("io_uring by hand", "control_bytes").unwrap();
        expect((80.0..120.0).contains(&bytes), format!("{bytes} bytes of control"));
    }
    if let Some(calls) = of("futures of a runtime", "system_calls") {
        expect(calls < 0.9, format!("those that start together go together: {calls}"));
    }
    let (pushed, worker) = (of("memory: pushed by the caller", "cpu_ns"), of("memory: by a worker", "cpu_ns"));
    expect(pushed < worker, format!("pushed {pushed:?} ns, by a worker {worker:?} ns"));
    wrong
}

#[test]
fn a_command_is_counted_and_its_end_is_ours() {
    let here = folder();
    let report = json(&here, &["counters", "--json", "--", "sh", "-c", "for i in 1 2 3; do /bin/true; done"]);
    for counter in report["counters"].as_array().unwrap() {
        assert!(counter["value"].is_null() != counter["absent"].is_null(), "{counter}");
    }
    assert_eq!(dpipe(&here, &["counters", "--", "false"]).status.code(), Some(1));
    assert_eq!(dpipe(&here, &["counters", "--", "./no-such-program"]).status.code(), Some(2));
    let text = String::from_utf8(dpipe(&here, &["counters", "--root", ".", "--prometheus"]).stdout).unwrap();
    assert!(text.contains("# datapipes_disk_read_bytes_total{scope=\"machine\"} is absent: no block device"), "{text}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let here = folder();
    for wrong in [
        &["fig3", "--chunks", "5000"][..],
        &["fig3", "--size", "1M", "--chunks", "2M"],
        &["fig3", "--chunks", "512M"],
        &["fig3", "--chunks", "0"],
        &["fig3", "--depth", "0"],
        &["fig3", "--ms", "0"],
        &["fig3", "--dir", "/nowhere/at/all"],
        &["fig5a", "--size", "1M", "--chunks", "1M"],
        &["fig5a", "--size", "1T"],
        &["fig5a", "--pmem", "dram:1M"],
        &["fig5a", "--pmem", "pmem:/nowhere/at/all"],
        &["fig5b", "--overwrite"],
        &["control", "--sizes", "0"],
        &["control", "--sizes", "17M"],
        &["fig6"],
    ] {
        let output = dpipe(&here, &[&["experiment"], wrong].concat());
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && !error.is_empty(), "{wrong:?}: {error}");
        assert!(output.stdout.is_empty(), "{wrong:?}");
    }
    assert!(here.names().unwrap().is_empty());
}
