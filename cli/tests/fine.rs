//! `dpipe fine` as a user runs it: the real program, real files, real exit codes.
#![allow(clippy::unwrap_used)]

mod scene;

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use scene::{TempFolder, folder, json};

/// A file of so many MiB.
fn file(folder: &TempFolder, name: &str, mib: usize) -> String {
    fs::write(folder.path(name), vec![7; mib << 20]).unwrap();
    path(folder, name)
}

fn path(folder: &TempFolder, name: &str) -> String {
    folder.path(name).to_str().unwrap().to_owned()
}

/// Standard output and error of what must end with this code.
fn ends(args: &[&str], input: &str, code: i32) -> (String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dpipe"));
    command.arg("fine").args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A program that ends before it has read all is no failure of the test.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {out}{err}");
    (out, err)
}

#[test]
fn stat_counts_what_the_standard_input_asks_for() {
    let folder = folder();
    let file = file(&folder, "data", 4);
    // What is read while a file is younger than a second is read once more after it.
    std::thread::sleep(std::time::Duration::from_secs(4));
    // Eight places, each read three times, of 100 bytes; and one across a page.
    let mut lines: String = (0..24).map(|i| format!("{}\n", i % 8 * 4096)).collect();
    lines += "4090 12\n";
    let args = ["stat", &file, "--load", "100@stdin", "--batch", "1", "--memory", "4M", "--json"];
    let all = json(&ends(&args, &lines, 0).0);
    let metrics = &all[0]["metrics"];
    assert_eq!(all[0]["reads"], 25);
    // The one across a page counts as two, of which the second is there.
    // A read is repeated, and counts again, if it falls into a moment when the file is looked at.
    let reads = metrics["reads"].as_u64().unwrap() - metrics["repeated"].as_u64().unwrap();
    assert_eq!((&metrics["hits"], reads), (&(17.into()), 26), "{metrics}");
    assert_eq!(metrics["failed"], 0);
    assert!(metrics["memory_bytes"].as_u64().unwrap() <= 4 << 20);
}

/// The numbers of "8000 reads, ..."; not those a second.
fn shown_reads(out: &str) -> Vec<u64> {
    let words: Vec<&str> = out.split_whitespace().collect();
    let counted = words.windows(2).filter(|two| two[1] == "reads,");
    counted.filter_map(|two| two[0].parse::<u64>().ok()).collect()
}

#[test]
fn stat_reads_several_files_by_a_law_and_leaves_them_as_they_are() {
    let folder = folder();
    let files = [file(&folder, "a", 4), file(&folder, "b", 8)];
    let common = ["--load", "128@zipf:1.1,512@scan", "--reads", "4000", "--memory", "4M"];
    let out = ends(&[&["stat", &files[0], &files[1]], &common[..], &["--policy", "sieve"]].concat(), "", 0).0;
    // A read that is repeated counts again.
    assert_eq!(shown_reads(&out).iter().filter(|reads| (8000..9000).contains(*reads)).count(), 2, "{out}");
    assert!(out.contains("policy sieve") && out.contains("class"), "{out}");
    assert!(fs::read(&files[0]).unwrap().iter().all(|b| *b == 7));
    // Nothing is measured where one of them cannot be, and it is named.
    let empty = folder.path("empty").to_str().unwrap().to_string();
    fs::write(&empty, "").unwrap();
    let (out, error) = ends(&[&["stat", &files[0], &empty], &common[..]].concat(), "", 2);
    assert!(out.is_empty() && error.contains("empty: a file of 0 bytes has no item"), "{out}{error}");
    // The metrics are of both files.
    let metrics = folder.path("both.prom").to_str().unwrap().to_string();
    let out = ends(&[&["stat", &files[0], &files[1], "--metrics", &metrics], &common[..]].concat(), "", 0).0;
    let shown: u64 = shown_reads(&out).iter().sum();
    let text = fs::read_to_string(&metrics).unwrap();
    let counted = text.lines().filter(|line| line.starts_with("datapipes_cache_reads_total{"));
    let reads: u64 = counted.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum();
    assert!(shown >= 16_000 && reads == shown, "{reads} of {shown}: {text}");
}

#[test]
fn the_plot_has_threshold_hits_and_slabs_over_the_phases() {
    let folder = folder();
    let (file, picture) = (file(&folder, "data", 8), path(&folder, "p.svg"));
    let load = ["--load", "128@zipf:0.9,512@zipf:0.9,128@uniform", "--reads", "6000", "--memory", "3M"];
    let args = [&["stat", &file, "--policy", "pipette", "--plot", &picture], &load[..]].concat();
    let (_, err) = ends(&args, "", 0);
    assert!(err.contains("drawn in"), "{err}");
    let svg = fs::read_to_string(&picture).unwrap();
    for part in ["512 B, zipf 0.9", "128 B, uniform", "threshold", "hit ratio", ">128 bytes<", ">512 bytes<"] {
        assert!(svg.contains(part), "no {part}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_a_reason() {
    let folder = folder();
    let file = file(&folder, "data", 1);
    for (args, input, why) in [
        (vec!["stat", &*file, "--load", "128@pareto"], "", "pareto"),
        (vec!["stat", &file, "--policy", "best"], "", "w-tiny-lfu"),
        (vec!["stat", &file, "--memory", "1M"], "", "2 MiB"),
        (vec!["stat", &file, "--load", "8@stdin"], "12\nx\n", "line 2"),
        (vec!["stat", &file, "--load", "8@stdin", "--batch", "1"], "99999999\n", "99999999"),
        (vec!["stat", "/no/such/file"], "", "No such file"),
        (vec!["recommender", "--size", "4M", "--skew", "steep"], "", "steep"),
        (vec!["recommender", "--size", "0"], "", "at least 1M"),
        (vec!["social", "--size", "1M", "--policy", "best", "--reads", "10"], "", "best"),
    ] {
        let err = ends(&args, input, 2).1;
        assert!(err.contains(why), "{args:?}: {err}");
    }
}

#[test]
fn applications_stand_beside_the_page_cache_and_the_paper() {
    let folder = folder();
    for (name, published) in [("recommender", 93.5), ("social", 89.09)] {
        let file = path(&folder, name);
        let args = [name, "--file", &file, "--size", "24M", "--reads", "4000", "--memory", "4M", "--json"];
        let all = json(&ends(&args, "", 0).0);
        assert_eq!(all["paper"][1]["hit_percent"], published);
        assert_eq!(fs::metadata(&file).unwrap().len(), all["file_bytes"].as_u64().unwrap());
        let rows = all["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 2);
        for row in rows {
            assert!(
                row["reads_per_second"].as_f64().unwrap() > 0.0 && row["asked_bytes"].as_u64().unwrap() > 0,
                "{row}"
            );
            assert!((0.0..=100.0).contains(&row["hit_percent"].as_f64().unwrap()), "{row}");
        }
        assert!(rows[0]["memory_bytes"].as_u64().unwrap() <= 4 << 20);
        if rows[1]["peak_bytes"].is_null() {
            println!("SKIPPED: the limit of memory: {}", all["limited"]);
        } else {
            // Page cache, program and generator: no more than what both were given.
            assert!(rows[1]["peak_bytes"].as_u64().unwrap() <= 8 << 20, "{}", rows[1]);
        }
    }
}
