//! `dpipe model` as a user runs it: tables, JSON, pictures, and what is refused.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod scene;

use std::process::{Command, Output, Stdio};

use scene::folder;
use serde_json::Value;

fn dpipe(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dpipe"));
    command.arg("model").args(arguments).env("LC_ALL", "C").stdin(Stdio::null()).output().unwrap()
}

fn good(arguments: &[&str]) -> String {
    let output = dpipe(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn placements_beside_the_published_ranges() {
    let text = good(&["placements"]);
    for line in ["A MODEL", "the paper", "45.0 % .. 67.0 %", "21.0 % .. 28.0 %", "credits", "Unknown: every absolute"] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    let report: Value = serde_json::from_str(&good(&["placements", "--json"])).unwrap();
    let rows = report["figure_3"]["rows"].as_array().unwrap();
    assert_eq!(rows.iter().filter(|r| r["is_published"] == true).count(), 6);
    assert!(rows.len() > 6 && report["what_ifs"].as_array().unwrap().len() >= 5);
    // Equal runs, equal figures; another choice, others.
    assert_eq!(report, serde_json::from_str::<Value>(&good(&["placements", "--json"])).unwrap());
    let closed: Value = serde_json::from_str(&good(&["placements", "--json", "--costs", "closed-form"])).unwrap();
    // 8 + 0.75 + 2.4 us at 4 KiB, by hand.
    assert_eq!(closed["figure_3"]["rows"][2]["outcomes"][2]["latency"], 11.15);
    let large: Value =
        serde_json::from_str(&good(&["placements", "--json", "--costs", "closed-form", "--packet-size", "64K"]))
            .unwrap();
    assert_eq!(large["figure_3"]["rows"][5]["outcomes"][2]["latency"], 11.15);
}

#[test]
fn pipette_beside_the_published_tables() {
    let small = ["pipette", "--reads", "20000", "--nodes", "5000"];
    let text = good(&small);
    for line in
        ["A MODEL", "Table 2", "Table 3", "Table 4", "Figure 6", "Figure 7", "Figure 8", "Figure 9(a)", "Figure 9(b)"]
    {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    let report: Value = serde_json::from_str(&good(&[&small[..], &["--json"]].concat())).unwrap();
    // 20,000 reads of 128 bytes, without cache: exact.
    let cell = &report["grids"][0]["rows"][3]["cells"][4];
    assert_eq!(
        (&cell["ours"], &cell["published"], &cell["standing"]),
        (&2.44140625.into(), &305.2.into(), &"exact".into())
    );
    assert_eq!(report["scale"]["reads"], 20000);
}

/// The numbers of a finding, found by the beginning of its statement.
fn finding(report: &Value, what: &str) -> (f64, f64, String) {
    let findings = report["findings"].as_array().unwrap();
    let found = findings.iter().find(|f| f["what"].as_str().unwrap().starts_with(what)).unwrap();
    let number = |name: &str| found[name].as_f64().unwrap_or(f64::NAN);
    (number("ours"), number("published"), found["standing"].as_str().unwrap().to_owned())
}

#[test]
fn ddio_beside_the_published_misses() {
    let text = good(&["ddio"]);
    for line in ["A MODEL", "35.75 MiB", "Figures 3b and 4", "off", "1 MiB", "41.00 %", "out of reach"] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    let report: Value = serde_json::from_str(&good(&["ddio", "--json"])).unwrap();
    let (ours, published, standing) = finding(&report, "misses from 2 to 11 ways");
    assert!((ours - published).abs() < 2.0 && published == 41.0 && standing == "calibrated", "{ours}");
    let rows = report["figure"]["rows"].as_array().unwrap();
    assert!(rows.len() > 10 && rows.iter().all(|row| row.as_array().unwrap().len() == 6));
    // Without DDIO the core reads everything from memory.
    assert!(rows.iter().all(|row| row[0]["core_misses"] == 1.0));
    // Equal runs, equal figures; another choice, others.
    assert_eq!(report, serde_json::from_str::<Value>(&good(&["ddio", "--json"])).unwrap());
    let other = ["ddio", "--json", "--load", "0", "--chunks", "64K,128K", "--io-ways", "2"];
    let quiet: Value = serde_json::from_str(&good(&other)).unwrap();
    // 32 times 128 KiB fit into two ways, and nothing else is there.
    assert_eq!(quiet["figure"]["rows"][1][0]["core_misses"], 0.0);
    let small: Value =
        serde_json::from_str(&good(&[&other[..], &["--llc-size", "11M", "--ways", "11"]].concat())).unwrap();
    assert!(small["figure"]["rows"][1][0]["core_misses"].as_f64().unwrap() > 0.1, "{small}");
}

#[test]
fn dca_beside_the_published_amplification() {
    let text = good(&["dca"]);
    for line in ["A MODEL", "closed form", "Figures 5a and 5b", "3.27 times", "2.57 times", "Inputs: 10 lines"] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    let report: Value = serde_json::from_str(&good(&["dca", "--json", "--chunks", "512K"])).unwrap();
    for (what, by) in [
        ("write amplification with DCA", 0.05),
        ("engine's rate over one core's", 0.05),
        ("cores that copy", 0.0),
        ("largest write amplification", 0.0),
        ("engine's writes over its reads", 0.02),
    ] {
        let (ours, published, _) = finding(&report, what);
        assert!((ours - published).abs() <= by, "{what}: {ours}, not {published}");
    }
    let past = finding(&report, "write amplification past").0;
    assert!((1.0..1.01).contains(&past), "{past}");
    // Blocks as large as lines cannot be amplified.
    let lines: Value =
        serde_json::from_str(&good(&["dca", "--json", "--chunks", "512K", "--block-size", "64"])).unwrap();
    assert_eq!(finding(&lines, "write amplification with DCA").0, 1.0);
}

#[test]
fn traces_are_replayed_or_refused_with_their_line() {
    let folder = folder();
    let file = folder.path("trace");
    let path = file.to_str().unwrap();
    // 4 MiB from a device, read by a core.
    std::fs::write(&file, "# a trace\ndevice write 0x1000 4194304\ncore read 4096 4194304\n").unwrap();
    let told = good(&["ddio", "--trace", path, "--io-ways", "0,2"]);
    assert!(told.contains("65536 of 65536") && told.contains("0 of 65536"), "{told}");
    let json: Value = serde_json::from_str(&good(&["ddio", "--trace", path, "--io-ways", "0,2", "--json"])).unwrap();
    let points = json["points"].as_array().unwrap();
    assert_eq!((&points[0]["memory_writes"], &points[1]["memory_writes"]), (&65536.into(), &0.into()));
    assert_eq!(
        (&points[0]["llc"]["core"]["misses"], &points[1]["llc"]["core"]["hits"]),
        (&65536.into(), &65536.into())
    );
    // Past the cache whole blocks reach the memory.
    let json: Value = serde_json::from_str(&good(&["dca", "--trace", path, "--json", "--llc-size", "1M"])).unwrap();
    assert_eq!(json["points"][0]["amplification"], 1.0);
    assert_eq!(json["points"][0]["pmem"]["blocks"], 16384);
    assert!(json["points"][1]["amplification"].as_f64().unwrap() > 1.5, "{json}");

    for (text, told) in [("device write 0 64\ncore peek 0 64\n", "line 2: `peek`"), ("", "without accesses")] {
        std::fs::write(&file, text).unwrap();
        let output = dpipe(&["dca", "--trace", path]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(told) && error.contains("write `device|core") && error.contains(path), "{error}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn platform_dma_beside_the_published_figures() {
    let text = good(&["platform-dma"]);
    for line in [
        "A MODEL",
        "Table 1",
        "Figure 7",
        "Figure 8",
        "Figure 9",
        "Figure 10",
        "Buffers",
        "AS CHOSEN: 8 lanes of generation 2",
        "integrated, priority",
        "What if: generation",
        "CXL.io",
        "Assumed:",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    let json = |arguments: &[&str]| -> Value {
        serde_json::from_str(&good(&[&["platform-dma", "--json"], arguments].concat())).unwrap()
    };
    let report = json(&[]);
    assert_eq!(report, json(&[]));
    // 1770 and 350 ns, as events; a share of each standing is in the report.
    let sums: Vec<&Value> = [2, 3].map(|nth| &report["paper"]["figures"][nth]["findings"]).into_iter().collect();
    assert_eq!((&sums[0][3]["ours"], &sums[1][4]["ours"]), (&1770.0.into(), &350.0.into()));
    assert_eq!((&sums[0][0]["standing"], &sums[0][3]["standing"]), (&"input".into(), &"exact".into()));
    let control = |report: &Value| report["shares"][4]["control"].as_f64().unwrap();
    assert_eq!((&report["shares"][4]["way"], &report["shares"][4]["message_bytes"]), (&"transmit".into(), &64.into()));
    assert!((control(&report) - 0.43).abs() < 0.01, "{}", control(&report));
    // Other choices change what they should, and not the paper's figures.
    let batched = json(&["--messages-per-doorbell", "16"]);
    assert!(control(&batched) < control(&report) - 0.1);
    let written = json(&["--practice", "write-backs", "--descriptor-size", "64"]);
    assert!(control(&written) > control(&report) + 0.02);
    let fast = json(&["--generation", "6", "--lanes", "16", "--max-payload", "512", "--device-buffer", "128K"]);
    assert_eq!(fast["platform"]["link"]["generation"], "gen6");
    let rate = |report: &Value| report["shares"][7]["integrated_bytes_per_second"].as_f64().unwrap();
    assert!(rate(&fast) > 20.0 * rate(&report), "{} and {}", rate(&fast), rate(&report));
    let cxl = json(&["--generation", "5", "--cxl"]);
    assert!(cxl["shares"][0]["up"]["flits"].as_u64().unwrap() > 0);
    for other in [&batched, &written, &fast, &cxl] {
        assert_eq!(other["paper"], report["paper"]);
    }
}

#[test]
fn pictures_stand_alone() {
    let folder = folder();
    let (placements, pipette) = (folder.path("placements"), folder.path("pipette"));
    let platform_dma = folder.path("platform-dma");
    good(&["platform-dma", "--generation", "4", "--plot", platform_dma.to_str().unwrap()]);
    let (ddio, dca) = (folder.path("ddio"), folder.path("dca"));
    good(&["ddio", "--plot", ddio.to_str().unwrap()]);
    good(&["dca", "--chunks", "64K,1M", "--json", "--plot", dca.to_str().unwrap()]);
    for picture in [&ddio, &dca] {
        let svg = std::fs::read_to_string(picture).unwrap();
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && svg.contains("paper"));
        assert!(!svg.contains("NaN") && !svg.contains(">inf") && !svg.contains("href"));
    }
    good(&["placements", "--plot", placements.to_str().unwrap()]);
    good(&["pipette", "--reads", "5000", "--nodes", "2000", "--json", "--plot", pipette.to_str().unwrap()]);
    for picture in [placements, pipette, platform_dma] {
        let svg = std::fs::read_to_string(picture).unwrap();
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && svg.len() > 10_000);
        assert!(!svg.contains("NaN") && !svg.contains("inf") && !svg.contains("href"));
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    for wrong in [
        &["placements", "--costs", "none"][..],
        &["placements", "--packet-size", "0"],
        &["placements", "--packet-size", "63"],
        &["placements", "--across", "18446744073709551615"],
        &["placements", "--within", "1000000001"],
        &["placements", "--devices", "2", "--pools", "3"],
        &["placements", "--devices", "0"],
        &["placements", "--plot", "/nowhere/at/all.svg"],
        &["pipette", "--reads", "0"],
        &["platform-dma", "--generation", "7"],
        &["platform-dma", "--lanes", "3"],
        &["platform-dma", "--cxl"],
        &["platform-dma", "--cxl", "--generation", "6"],
        &["platform-dma", "--max-payload", "300"],
        &["platform-dma", "--max-read", "8K"],
        &["platform-dma", "--practice", "none"],
        &["platform-dma", "--descriptor-size", "0"],
        &["platform-dma", "--message-size", "2M"],
        &["platform-dma", "--messages-per-doorbell", "0"],
        &["pipette", "--policy", "none"],
        &["ddio", "--io-ways", "12"],
        &["ddio", "--ways", "0"],
        &["ddio", "--served", "0"],
        &["ddio", "--served", "33"],
        &["cloudsort", "--bytes", "0"],
        &["cloudsort", "--set", "network=1e-300"],
        &["cloudsort", "--set", "slack=1"],
        &["cloudsort", "--set", "losses=-1"],
        &["ddio", "--llc-size", "100"],
        &["ddio", "--chunks", "63"],
        &["ddio", "--load", "1"],
        &["ddio", "--replacement", "fifo"],
        &["ddio", "--trace", "/nowhere/at/all"],
        &["ddio", "--trace", "/nowhere/at/all", "--chunks", "4K"],
        &["dca", "--io-ways", "12"],
        &["dca", "--block-size", "100"],
        &["dca", "--entries", "0"],
        &["dca", "--region", "1M"],
        &["dca", "--chunks", "4K,100"],
        &["dca", "--latency", "0"],
        &["dca", "--trace", "/nowhere/at/all", "--depth", "4"],
        &["nothing"],
    ] {
        let output = dpipe(wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        assert!(!output.stderr.is_empty() && output.stdout.is_empty(), "{wrong:?}");
    }
}
