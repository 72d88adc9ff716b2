//! `dpipe stream` as a user runs it: real processes, a real network connection, real files; and
//! what is left when any of the processes is killed.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod scene;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Stdio};

use datapipes_testkit::until;
use scene::folder;
use scene::streams::{bad, bytes, from_file, good, joined, serve, stream};

/// Each block of the file, in order by number: an independent account of what `sort-u64` does.
fn sorted_blocks(data: &[u8], block: usize) -> Vec<u8> {
    let sorted = |block: &[u8]| {
        let mut numbers: Vec<u64> = block.chunks(8).map(|n| u64::from_le_bytes(n.try_into().unwrap())).collect();
        numbers.sort_unstable();
        numbers.into_iter().flat_map(u64::to_le_bytes).collect::<Vec<u8>>()
    };
    data.chunks(block).flat_map(sorted).collect()
}

#[test]
fn a_file_is_transformed_the_same_under_every_placement() {
    let folder = folder();
    let data = bytes(1, 1_000_000);
    fs::write(folder.path("in"), &data).unwrap();
    let expected = sorted_blocks(&data, 64 << 10);
    for (placement, trust) in
        [("application", "copy"), ("central", "in-place"), ("distributed", "in-place-checked"), ("auto", "copy")]
    {
        let out = folder.path(placement);
        let mut command = stream(&from_file(&folder.path("in")), "crc32,sort-u64", &out);
        let report =
            good(command.args(["--block-size", "64K", "--credits", "2", "--placement", placement, "--trust", trust]));
        assert!(fs::read(&out).unwrap() == expected, "{placement}");
        let run = &report["runs"][0];
        assert_eq!((&report["verified"], &run["due_from"]), (&true.into(), &"replay".into()), "{report}");
        assert_eq!(run["on_disk"]["bytes"], 1_000_000, "{report}");
        assert_eq!(run["choice"].is_null(), placement != "auto", "{report}");
        let blocks: Vec<_> = run["edges"].as_array().unwrap().iter().map(|e| e["blocks"].as_u64().unwrap()).collect();
        assert_eq!(blocks, [16, 16, 16], "{report}");
    }
    assert_eq!(folder.names().unwrap(), ["application", "auto", "central", "distributed", "in"]);
}

#[test]
fn all_placements_are_compared_and_the_generator_agrees_with_the_disk() {
    let folder = folder();
    let out = folder.path("out");
    let report = good(stream("generate:2M", "lz4-compress,lz4-decompress", &out).args(["--placement", "all"]));
    let runs = report["runs"].as_array().unwrap();
    let channels: Vec<_> = runs.iter().map(|r| (r["placement"].as_str().unwrap(), r["channels"].as_u64())).collect();
    let expected =
        [("application-side", Some(6)), ("central-resource-side", Some(6)), ("distributed-resource-side", Some(3))];
    assert_eq!(channels, expected, "{report}");
    for run in runs {
        assert_eq!((&run["sent"], &run["sent"]["bytes"]), (&run["on_disk"], &(2 << 20).into()), "{report}");
        assert!(run["seconds"].as_f64() > Some(0.0) && run["cpu_seconds"].as_f64() > Some(0.0), "{report}");
    }
    assert_eq!(fs::metadata(&out).unwrap().len(), 2 << 20);

    let text = stream("generate:100K", "crc32", &out).args(["--placement", "all"]).output().unwrap();
    let (told, shown) = (String::from_utf8(text.stdout).unwrap(), String::from_utf8(text.stderr).unwrap());
    assert!(told.contains("of the rate") && told.contains("distributed resource-side: 102 kB"), "{told}");
    assert!(shown.contains("source ") && shown.contains("; controller "), "{shown}");
    assert_eq!(folder.names().unwrap(), ["out"]);
}

#[test]
fn what_a_listener_sends_is_written_when_it_closes() {
    let folder = folder();
    let data = bytes(3, 777_777);
    let (address, thread) = serve(data.clone(), false);
    let report = good(stream(&address, "xor=42", &folder.path("out")).args(["--block-size", "100000"]));
    joined(thread);
    // Nobody can say whether the transform was right: what was sent is gone.
    let run = &report["runs"][0];
    assert_eq!((&run["due_from"], &run["on_disk"]["bytes"]), (&"sink".into(), &777_777.into()), "{report}");
    assert!(run["verified"].is_null() && report["verified"].is_null(), "{report}");
    let expected: Vec<u8> = data.iter().map(|b| b ^ 42).collect();
    assert!(fs::read(folder.path("out")).unwrap() == expected);

    // Nothing at all is a stream, too; without a transform, what was sent is known.
    let (address, thread) = serve(Vec::new(), false);
    let report = good(&mut stream(&address, "", &folder.path("empty")));
    joined(thread);
    assert_eq!((&report["runs"][0]["due_from"], &report["verified"]), (&"sent".into(), &true.into()), "{report}");
    assert_eq!(fs::read(folder.path("empty")).unwrap(), b"");
}

#[test]
fn without_verifying_nothing_is_read_again() {
    let folder = folder();
    let (input, out) = (folder.path("in"), folder.path("out"));
    fs::write(&input, bytes(6, 300_000)).unwrap();
    let report = good(stream(&from_file(&input), "xor=7", &out).arg("--no-verify"));
    assert!(report["verified"].is_null() && report["runs"][0]["on_disk"].is_null(), "{report}");
    assert_eq!(report["runs"][0]["due_from"], "sink");
    let expected: Vec<u8> = bytes(6, 300_000).iter().map(|b| b ^ 7).collect();
    assert!(fs::read(&out).unwrap() == expected);
    let text = stream(&from_file(&input), "crc32", &out).arg("--no-verify").output().unwrap();
    assert!(String::from_utf8_lossy(&text.stdout).contains("the file was not read back"));
}

#[test]
fn a_signal_ends_it_before_anything_is_started() {
    let folder = folder();
    // So much that applying the functions takes minutes.
    let mut child = stream("generate:500G", "crc32", &folder.path("out")).stdout(Stdio::null()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGINT), "{status}");
    assert!(folder.names().unwrap().is_empty());
}

#[test]
fn what_cannot_be_leaves_nothing_and_says_why() {
    let folder = folder();
    let (input, out) = (folder.path("in"), folder.path("out"));
    fs::write(&input, bytes(4, 12_345)).unwrap();
    fs::write(&out, b"what was there before").unwrap();
    let file = from_file(&input);
    // Known before anything is started.
    for (from, through, more, why) in [
        (file.as_str(), "sort-u64", "--credits=4", "not a multiple of 8"),
        (file.as_str(), "lz4-decompress", "--credits=4", "for a block of"),
        (file.as_str(), "rot13", "--credits=4", "rot13"),
        (file.as_str(), "xor=300", "--credits=4", "key"),
        (file.as_str(), "crc32=1", "--credits=4", "no argument"),
        (file.as_str(), "crc32", "--credits=0", "credits"),
        (file.as_str(), "crc32", "--block-size=9M", "blocks"),
        ("file:/does/not/exist", "crc32", "--credits=4", "/does/not/exist"),
        ("file:/", "crc32", "--credits=4", "a folder"),
        (file.as_str(), "zstd=20", "--credits=4", "from 1 to 19"),
        (file.as_str(), "gzip=x", "--credits=4", "from 0 to 9"),
        (file.as_str(), "unlz4=1", "--credits=4", "no argument"),
        (file.as_str(), "exec:", "--credits=4", "which program"),
        (file.as_str(), "crc32", "--timeout=0", "timeout"),
        (file.as_str(), "crc32", "--timeout=-1", "timeout"),
        (file.as_str(), "crc32", "--timeout=NaN", "timeout"),
        (file.as_str(), "crc32", "--timeout=1e300", "timeout"),
        (file.as_str(), "crc32", "--timeout=1e-12", "timeout"),
        ("tcp:127.0.0.1:1", "crc32", "--credits=4", "127.0.0.1:1"),
        ("ftp:x", "crc32", "--credits=4", "generate:SIZE"),
    ] {
        let error = bad(stream(from, through, &out).arg(more));
        assert!(error.contains(why), "{from} {through} {more}: {error}");
    }
    // Found by a device, under way.
    for placement in ["application", "central", "distributed"] {
        let (address, thread) = serve(bytes(5, 12_345), false);
        let error = bad(stream(&address, "crc32,sort-u64", &out).args(["--placement", placement]));
        assert!(error.contains("sort-u64: ") && error.contains("not a multiple of 8"), "{placement}: {error}");
        joined(thread);
    }
    let error = bad(&mut stream("generate:1K", "crc32", &folder.path("no/such/folder")));
    assert!(error.contains("no/such"), "{error}");
    assert_eq!(folder.names().unwrap(), ["in", "out"]);
    assert_eq!(fs::read(&out).unwrap(), b"what was there before");
}

/// A stream that is under way, and its processes: source, crc32, sink, controller.
fn under_way(address: &str, out: &Path) -> (Child, Vec<(String, u32)>) {
    let mut command = stream(address, "crc32", out);
    let mut child = command.args(["--block-size", "64K"]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
    let (_, processes) = line.trim().split_once(": ").unwrap_or_else(|| panic!("{line}"));
    let named = processes.split([',', ';']).map(|p| {
        let (name, pid) = p.trim().rsplit_once(' ').unwrap();
        (name.to_owned(), pid.parse().unwrap())
    });
    (child, named.collect())
}

fn is_one_of_ours(pid: u32) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.windows(9).any(|w| w == b"--fabric-")
}

#[test]
fn killing_any_process_leaves_no_file_and_no_process() {
    let folder = folder();
    let out = folder.path("out");
    for victim in ["source", "crc32", "sink", "controller", "dpipe"] {
        let (address, thread) = serve(bytes(6, 3_000_000), true);
        let (mut child, processes) = under_way(&address, &out);
        assert_eq!(processes.len(), 4, "{processes:?}");
        assert!(processes.iter().all(|(_, pid)| is_one_of_ours(*pid)), "{processes:?}");
        let pid = processes.iter().find(|(name, _)| name == victim).map_or(child.id(), |(_, pid)| *pid);
        let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        let mut told = String::new();
        child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
        let status = child.wait().unwrap();
        if victim == "dpipe" {
            assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
        } else {
            assert_eq!(status.code(), Some(2), "{victim}: {told}");
            assert!(told.contains(victim), "{victim}: {told}");
        }
        joined(thread);
        assert_eq!(folder.names().unwrap(), [""; 0], "after the death of {victim}");
        // They end by themselves.
        until("they have ended", || !processes.iter().any(|(_, pid)| is_one_of_ours(*pid)));
    }
}
