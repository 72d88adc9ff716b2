//! The commands as a user runs them: the real program, real files, real exit codes.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod scene;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use scene::{folder, json};

fn dpipe() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dpipe"));
    command.env("LC_ALL", "C").stdin(Stdio::null());
    command
}

fn run(command: &mut Command) -> Output {
    command.output().unwrap()
}

/// Runs what must succeed, and returns its standard output.
fn good(command: &mut Command) -> String {
    let output = run(command);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {:?}\n{error}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Runs what must fail with this exit code, and returns its standard error.
fn bad(command: &mut Command, code: i32) -> String {
    let output = run(command);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{command:?}\n{error}");
    error
}

#[test]
fn every_kind_is_written_sorted_and_checked() {
    let folder = folder();
    let kinds: [(&str, &[&str]); 4] =
        [("records", &["--records"]), ("records-ascii", &["--records"]), ("u64", &["--u64"]), ("lines", &[])];
    for (kind, flags) in kinds {
        let (input, sorted) = (folder.path("input"), folder.path("sorted"));
        good(dpipe().args(["gen", kind, "--size", "24M", "--seed", "7"]).arg(&input));
        let before = run(dpipe().args(["check", kind, "--json"]).arg(&input));
        assert_eq!(before.status.code(), Some(1), "{kind}: what was written at random is not in order");
        let before = json(&String::from_utf8(before.stdout).unwrap());
        assert_eq!(before["sorted"], false, "{kind}");

        // Less memory than input, so that runs are spilled and merged.
        let report = good(
            dpipe()
                .arg("sort")
                .args(flags)
                .args(["-S", "16M", "--json", "-T"])
                .arg(folder.at())
                .arg("-o")
                .arg(&sorted)
                .arg(&input),
        );
        let report = json(&report);
        assert!(report["runs"].as_u64().unwrap() > 1, "{kind}: {report}");
        assert_eq!(report["bytes_out"], fs::metadata(&input).unwrap().len(), "{kind}");

        let after = json(&good(dpipe().args(["check", kind, "--json"]).arg(&sorted)));
        assert_eq!(after["sorted"], true, "{kind}");
        for what in ["records", "bytes", "checksum"] {
            assert_eq!(before[what], after[what], "{kind}: {what}");
        }
        assert_eq!(folder.names().unwrap(), ["input", "sorted"], "{kind}: nothing else is left");
    }
}

#[test]
fn runs_go_where_the_list_says() {
    let folder = folder();
    let (input, sorted) = (folder.path("input"), folder.path("sorted"));
    good(dpipe().args(["gen", "records", "--size", "24M"]).arg(&input));
    let list = format!("dram:4M,{}?limit=8M,ssd:{}", folder.at().display(), folder.at().display());
    let sort = |more: &[&str]| {
        let mut command = dpipe();
        command.args(["sort", "--records", "-S16M", "--json", "--report", "--explain", "-T", &list]).args(more);
        command.arg("-o").arg(&sorted).arg(&input);
        run(&mut command)
    };
    let output = sort(&[]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{told}");
    let report = json(&String::from_utf8(output.stdout).unwrap());
    let spill = report["spill"].as_array().unwrap();
    let names: Vec<_> = spill.iter().map(|s| (s["tier"].as_u64().unwrap(), s["place"].as_str().unwrap())).collect();
    let dir = folder.at().to_str().unwrap();
    assert_eq!(names, [(0, "dram:4M"), (1, dir), (2, dir)], "{report}");
    assert!(spill.iter().all(|s| s["bytes"].as_u64() > Some(2 << 20)), "{report}");
    assert!(spill[1]["why"].as_str().unwrap().contains("limit"), "{report}");
    assert!(told.contains("number 2 in the order given") && told.contains("moved on: full"), "{told}");
    let after = json(&good(dpipe().args(["check", "records", "--json"]).arg(&sorted)));
    assert_eq!(after["sorted"], true);
    // By cost, or with a word that is none; a list with a place that is none.
    let by_cost = json(&String::from_utf8(sort(&["--spill-order=cost"]).stdout).unwrap());
    assert!(by_cost["spill"][0]["order"].as_str().unwrap().contains("by cost"), "{by_cost}");
    assert_eq!(sort(&["--spill-order=random"]).status.code(), Some(2));
    let error = bad(dpipe().args(["sort", "-T", "dram:1G,tape:0"]).arg(&input), 2);
    assert!(error.contains("tape"), "{error}");
    assert_eq!(folder.names().unwrap(), ["input", "sorted"], "nothing else is left");
}

#[test]
fn a_sort_takes_the_method_that_it_was_given() {
    let folder = folder();
    let (input, sorted) = (folder.path("input"), folder.path("sorted"));
    good(dpipe().args(["gen", "u64", "--size", "30MB"]).arg(&input));
    let mut outputs = Vec::new();
    for (method, name) in [("auto", "merge"), ("merge", "merge"), ("distribute", "distribution")] {
        let mut command = dpipe();
        command.args(["sort", "--u64", "-S", "16M", "--json", "--method", method, "-T"]).arg(folder.at());
        let report = json(&good(command.arg(&input).arg("-o").arg(&sorted)));
        assert_eq!(report["method"]["name"], name, "{report}");
        outputs.push(std::fs::read(&sorted).unwrap());
    }
    assert!(outputs.iter().all(|output| *output == outputs[0]), "the methods differ");
    let output = run(dpipe().args(["sort", "--method=quick"]).arg(&input));
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn sorted_streams_are_merged_as_they_come() {
    let folder = folder();
    let (one, other, fifo) = (folder.path("one"), folder.path("other"), folder.path("fifo"));
    good(dpipe().args(["gen", "lines", "--size", "9M", "--seed", "1"]).arg(&one));
    good(dpipe().args(["gen", "lines", "--size", "8M", "--seed", "2"]).arg(&other));
    for file in [&one, &other] {
        good(dpipe().args(["sort", "-o"]).arg(file).arg(file));
    }
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let mut cat = Command::new("cp").arg(&other).arg(&fifo).spawn().unwrap();
    let list = format!("dram:3M,{}", folder.at().display());
    let out = run(dpipe().args(["sort", "-m", "-S", "32M", "--json", "-T", &list]).arg(&one).arg(&fifo));
    assert!(cat.wait().unwrap().success());
    let told = String::from_utf8(out.stderr).unwrap();
    assert!(out.status.success(), "{told}");
    let report = json(&told);
    let placed: Vec<u64> = report["spill"].as_array().unwrap().iter().map(|s| s["bytes"].as_u64().unwrap()).collect();
    assert_eq!(placed, [0, 0], "{report}");
    let theirs = run(Command::new("sort").env("LC_ALL", "C").arg("-m").arg(&one).arg(&other));
    assert!(out.stdout == theirs.stdout);
}

#[test]
fn the_same_seed_writes_the_same_bytes_by_any_number_of_threads() {
    let folder = folder();
    for kind in ["records", "records-ascii", "u64", "lines"] {
        let (one, many) = (folder.path("one"), folder.path("many"));
        good(dpipe().args(["gen", kind, "--size", "9M", "--threads", "1"]).arg(&one));
        good(dpipe().args(["gen", kind, "--size", "9M", "--threads", "3"]).arg(&many));
        let bytes = fs::read(&one).unwrap();
        assert_eq!(bytes, fs::read(&many).unwrap(), "{kind}");
        let out = run(dpipe().args(["gen", kind, "--size", "9M", "-"]));
        assert!(out.status.success());
        assert_eq!(bytes, out.stdout, "{kind}: to the standard output");
    }
}

#[test]
fn lines_are_sorted_as_by_the_system() {
    let folder = folder();
    let input = folder.path("input");
    let text: String =
        (0..40_000u64).map(|n| format!("{} {}\n", n.wrapping_mul(2_654_435_761) % 997, n % 13)).collect();
    fs::write(&input, &text).unwrap();
    for flags in [vec![], vec!["-r"], vec!["-n"], vec!["-k2,2n", "-k1,1r"], vec!["-u"], vec!["-s", "-k1,1"], vec!["-z"]]
    {
        let ours = run(dpipe().arg("sort").args(&flags).arg(&input));
        let theirs = run(Command::new("sort").env("LC_ALL", "C").args(&flags).arg(&input));
        assert!(ours.status.success(), "{flags:?}: {}", String::from_utf8_lossy(&ours.stderr));
        assert!(ours.stdout == theirs.stdout, "{flags:?}");
    }
    // The output may be the input, and the standard output may be a file.
    good(dpipe().args(["sort", "-o"]).arg(&input).arg(&input));
    let sorted = fs::read(&input).unwrap();
    assert!(sorted.split(|b| *b == b'\n').filter(|l| !l.is_empty()).is_sorted());
    let out = fs::File::create(folder.path("out")).unwrap();
    assert!(dpipe().arg("sort").arg(&input).stdout(out).status().unwrap().success());
    assert_eq!(fs::read(folder.path("out")).unwrap(), sorted);
}

#[test]
fn runs_are_compressed_by_the_program_that_is_named() {
    let folder = folder();
    let (input, sorted) = (folder.path("input"), folder.path("sorted"));
    good(dpipe().args(["gen", "lines", "--size", "40M"]).arg(&input));
    let sort = |options: &[&str]| {
        let mut command = dpipe();
        command.args(["sort", "-S16M", "-T"]).arg(folder.at()).args(options).arg(&input).arg("-o").arg(&sorted);
        command
    };
    good(&mut sort(&[]));
    let expected = fs::read(&sorted).unwrap();
    for options in [["--compress-program=gzip", "-s"], ["--compress-program", "gzip"]] {
        fs::remove_file(&sorted).unwrap();
        good(&mut sort(&options));
        assert!(fs::read(&sorted).unwrap() == expected, "{options:?}");
    }
    let error = bad(&mut sort(&["--compress-program=/no/such"]), 2);
    assert!(error.contains("/no/such") && error.contains("No such file"), "{error}");
    let error = bad(&mut sort(&["--compress-program=false"]), 2);
    assert!(error.contains("'false' terminated abnormally"), "{error}");
    let error = bad(&mut sort(&["--compress-program=gzip", "--u64"]), 2);
    assert!(error.contains("runs of numbers are not compressed"), "{error}");
    assert!(fs::read(&sorted).unwrap() == expected, "an output that was there stays when a sort fails");
}

#[test]
fn sort_says_what_is_in_order_by_its_exit_code() {
    let folder = folder();
    let (good_file, bad_file) = (folder.path("good"), folder.path("bad"));
    fs::write(&good_file, "a\nb\nc\n").unwrap();
    fs::write(&bad_file, "a\nc\nb\n").unwrap();
    assert_eq!(good(dpipe().args(["sort", "-c"]).arg(&good_file)), "");
    let error = bad(dpipe().args(["sort", "-c"]).arg(&bad_file), 1);
    assert_eq!(error, format!("dpipe sort: {}:3: disorder: b\n", bad_file.display()));
    assert_eq!(bad(dpipe().args(["sort", "-C"]).arg(&bad_file), 1), "");
    bad(dpipe().args(["sort", "-c"]).arg(folder.path("absent")), 2);
}

#[test]
fn copies_are_verified() {
    let folder = folder();
    let (one, two) = (folder.path("one"), folder.path("two"));
    // No multiple of any block.
    let bytes: Vec<u8> = (0..5_000_003u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    fs::write(&one, &bytes).unwrap();
    let report = json(&good(dpipe().arg("copy").arg(&one).arg(&two).args(["--verify", "--json"])));
    assert_eq!(report["verified"], true);
    assert_eq!(report["bytes"], bytes.len());
    assert!(fs::read(&two).unwrap() == bytes);
    // Into a folder, under the name of the source.
    fs::create_dir(folder.path("folder")).unwrap();
    good(dpipe().arg("copy").arg(&one).arg(folder.path("folder")));
    assert!(fs::read(folder.path("folder").join("one")).unwrap() == bytes);
    let report = json(&good(dpipe().arg("copy").arg(&one).args(["dram:", "--verify", "--json"])));
    assert_eq!(report["verified"], true);
    // Memory that is smaller than the file: round and round.
    let report = json(&good(dpipe().arg("copy").arg(&one).args(["dram:1M", "--json"])));
    assert_eq!(report["report"]["hops"][0]["counters"]["bytes"], bytes.len());
    good(dpipe().args(["copy", "dram:3M"]).arg(folder.path("zeros")).arg("--verify"));
    assert_eq!(fs::metadata(folder.path("zeros")).unwrap().len(), 3 << 20);
    assert_eq!(folder.names().unwrap(), ["folder", "folder/one", "one", "two", "zeros"]);
}

#[test]
fn explain_shows_the_route_or_refuses_with_the_alternatives() {
    let folder = folder();
    let file = folder.path("file");
    fs::write(&file, vec![1; 1 << 20]).unwrap();
    let route = json(&good(dpipe().arg("explain").arg(&file).args(["dram:1M", "--json"])));
    assert_eq!(route["hops"].as_array().unwrap().len(), 1);
    assert!(route["rejected"].is_array());
    good(dpipe().arg("explain").arg(&file).arg(folder.path("not-there-yet")));
    assert_eq!(folder.names().unwrap(), ["file"], "nothing was created");
    let error = bad(dpipe().arg("explain").arg(&file).args(["dram:1M", "--only", "teleport"]), 2);
    assert!(error.contains("teleport"), "{error}");
    let error = bad(dpipe().args(["explain", "dram:1M", "dram:1M", "--offload"]), 2);
    assert!(error.starts_with("dpipe explain: ") && error.contains("memcpy"), "{error}");
}

#[test]
fn machine_and_calibration_are_shown() {
    let folder = folder();
    let machine = json(&good(dpipe().args(["machine", "--json"])));
    for field in ["fingerprint", "topology", "storage", "backends", "io_uring", "calibration"] {
        assert!(!machine[field].is_null(), "{field}");
    }
    let names: Vec<&str> =
        machine["backends"].as_array().unwrap().iter().map(|b| b["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"cpu") && names.contains(&"file"), "{names:?}");
    let kept = folder.path("calibration.json");
    let calibrate = || {
        let mut command = dpipe();
        command.arg("calibrate").env("DATAPIPES_CALIBRATION", &kept);
        command
    };
    assert!(good(calibrate().arg("--show")).starts_with("assumed"));
    assert!(!kept.exists());
    let set = json(&good(calibrate().args(["--set", "kernel_1M=memcpy", "--json"])));
    assert_eq!(set["set"]["kernel_1M"], "memcpy");
    assert!(good(calibrate().arg("--show")).starts_with("measured"));
    let error = bad(calibrate().args(["--set", "kernel_1M=magic"]), 2);
    assert!(error.contains("magic") && error.contains("memcpy"), "{error}");
}

#[test]
fn the_pyramid_is_drawn() {
    let folder = folder();
    let svg = folder.path("pyramid.svg");
    good(dpipe().args(["machine", "--plot"]).arg(&svg).arg("--dir").arg(folder.at()));
    let text = fs::read_to_string(&svg).unwrap();
    assert!(text.starts_with("<svg") && text.contains("DRAM") && text.contains("SSD"));
    assert_eq!(folder.names().unwrap(), ["pyramid.svg"]);
}

#[test]
fn several_files_are_checked_as_one() {
    let folder = folder();
    let put = |name: &str, lines: &str| std::fs::write(folder.path(name), lines).unwrap();
    put("1", "a\nb\n");
    put("2", "");
    put("3", "b\nc\n");
    put("4", "d\nd\nz\ny\n");
    let check = |names: &[&str]| {
        let mut command = dpipe();
        command.args(["check", "lines", "--json"]).args(names).current_dir(folder.at());
        command
    };
    let found = json(&good(&mut check(&["1", "2", "3"])));
    assert_eq!((found["records"].as_u64(), found["files"].as_u64()), (Some(4), Some(3)), "{found}");
    assert_eq!((found["duplicates"].as_u64(), found["sorted"].as_bool()), (Some(1), Some(true)), "{found}");
    // Over a border: each file is in order, but the second begins with less.
    let output = check(&["3", "1"]).output().unwrap();
    let found = json(&String::from_utf8(output.stdout).unwrap());
    assert_eq!((output.status.code(), found["first_unordered_file"].as_str()), (Some(1), Some("1")), "{found}");
    assert_eq!(found["first_unordered_record"], 2, "{found}");
    // Within a file, whose name and record people are told.
    let output = dpipe().args(["check", "lines", "1", "4"]).current_dir(folder.at()).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("2 files: 6 records") && said.contains("the first is record 3 of 4, counted"), "{said}");
    let error = bad(dpipe().args(["check", "lines", "1", "-"]).current_dir(folder.at()), 2);
    assert!(error.contains("checked alone"), "{error}");
    bad(check(&["1", "absent"]).args(["3"]), 2);
}

#[test]
fn mistakes_are_named() {
    let folder = folder();
    let absent = folder.path("absent");
    for (args, said) in [
        (vec!["copy", "tape:0", "x"], "tape"),
        (vec!["gen", "novels", "--size", "1M", "x"], "novels"),
        (vec!["gen", "u64", "--size", "1X", "x"], "1X"),
        (vec!["copy", "dram:", "dram:"], "size"),
        (vec!["sort", "--frobnicate"], "frobnicate"),
        (vec!["copy", "dram:1K", "/dev/null"], "/dev/null"),
        (vec!["gen", "u64", "--size", "1K", "/no/such/folder/x"], "/no/such/folder"),
    ] {
        let error = bad(dpipe().args(&args).current_dir(folder.at()), 2);
        assert!(error.contains(said), "{args:?}: {error}");
    }
    for command in ["copy", "explain"] {
        let error = bad(dpipe().arg(command).arg(&absent).arg("dram:1M"), 2);
        assert!(error.starts_with(&format!("dpipe {command}: ")) && error.contains("absent"), "{error}");
    }
    let error = bad(dpipe().arg("sort").arg(&absent), 2);
    assert!(error.starts_with("dpipe sort: ") && error.contains("absent"), "{error}");
    let error = bad(dpipe().args(["check", "u64"]).arg(&absent), 2);
    assert!(error.starts_with("dpipe check: ") && error.contains("absent"), "{error}");
    assert!(folder.names().unwrap().is_empty());
    bad(&mut dpipe(), 2);
}

#[test]
fn a_signal_ends_it_and_leaves_nothing() {
    use std::os::unix::process::ExitStatusExt;
    let folder = folder();
    let output = folder.path("output");
    fs::write(&output, "old\n").unwrap();
    // It waits for a standard input that says nothing.
    let mut child = dpipe().args(["sort", "-o"]).arg(&output).stdin(Stdio::piped()).spawn().unwrap();
    // Kept open: `wait` would close it, and an input that ends may be sorted before the signal is
    // heard.
    let silent = child.stdin.take();
    std::thread::sleep(std::time::Duration::from_millis(300));
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().signal(), Some(15));
    drop(silent);
    assert_eq!(fs::read_to_string(&output).unwrap(), "old\n");
    assert_eq!(folder.names().unwrap(), ["output"]);
    // A reader that does not read: the output is full, and all inputs are files.
    let long = folder.path("long");
    good(dpipe().args(["gen", "lines", "--size", "4M"]).arg(&long));
    good(dpipe().args(["gen", "lines", "--size", "30M"]).arg(folder.path("longer")));
    // Or a program for runs that does nothing.
    let stalls = folder.path("stalls");
    fs::write(&stalls, "#!/bin/sh\nexec sleep 40\n").unwrap();
    fs::set_permissions(&stalls, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let compressing = format!("--compress-program={}", stalls.display());
    for options in
        [&["sort", "long"][..], &["sort", "-m", "long"], &["sort", "-S16M", &compressing, "longer", "-o", "o"]]
    {
        let mut command = dpipe();
        let command = command.args(options).current_dir(folder.at()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let unread = child.stdout.take();
        std::thread::sleep(std::time::Duration::from_millis(500));
        let pid = child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        let since = std::time::Instant::now();
        while child.try_wait().unwrap().is_none() && since.elapsed().as_secs() < 20 {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        let ended = child.try_wait().unwrap();
        // Where it hangs, this lets it go.
        drop(unread);
        child.wait().unwrap();
        assert_eq!(ended.and_then(|status| status.signal()), Some(15), "{options:?}: it waits for somebody else");
    }
    for name in ["long", "longer", "stalls"] {
        fs::remove_file(folder.path(name)).unwrap();
    }
    // A reader that goes away: as for others, death by SIGPIPE, and no word.
    let input = folder.path("input");
    fs::write(&input, "line\n".repeat(200_000)).unwrap();
    let mut child = dpipe().arg("sort").arg(&input).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.signal(), Some(13), "{}", String::from_utf8_lossy(&ended.stderr));
    assert!(ended.stderr.is_empty());
}

#[test]
fn the_demo_holds() {
    let folder = folder();
    let demo = || {
        let mut command = dpipe();
        command.args(["demo", "--size", "40MB", "--memory", "16M", "--dir"]).arg(folder.at());
        command
    };
    let outcome = json(&good(demo().arg("--json")));
    assert_eq!(outcome["holds"], true);
    assert_eq!(outcome["records"], 400_000);
    let text = good(demo().arg("--no-compare"));
    assert!(text.contains("everything holds"), "{text}");
    assert!(folder.names().unwrap().is_empty());
    let error = bad(dpipe().args(["demo", "--size", "4000T", "--dir"]).arg(folder.at()), 2);
    assert!(error.contains("--size"), "{error}");
}

#[test]
fn persistent_memory_and_nodes_are_places_to_copy_to_and_from() {
    let folder = folder();
    let (input, back) = (folder.path("input"), folder.path("back"));
    let pmem = format!("pmem:{}?emulated", folder.path("pmem").display());
    good(dpipe().args(["gen", "u64", "--size", "3M"]).arg(&input));
    let copy =
        |from: &str, to: &str, more: &[&str]| run(dpipe().args(["copy", "--verify", "--json", from, to]).args(more));
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let up = copy(&path(&input), &pmem, &[]);
    assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
    let report = json(&String::from_utf8(up.stdout).unwrap());
    assert_eq!(
        (report["verified"].as_bool(), report["bytes"].as_u64()),
        (Some(true), Some(fs::metadata(&input).unwrap().len()))
    );
    assert!(report["route"]["target"].as_str().unwrap().ends_with("?emulated"), "{report}");
    assert_eq!(fs::read(&input).unwrap(), fs::read(folder.path("pmem")).unwrap());
    assert!(copy(&pmem, &path(&back), &[]).status.success());
    assert_eq!(fs::read(&input).unwrap(), fs::read(&back).unwrap());
    // What is there is written in place, which must be meant.
    let again = copy(&path(&input), &pmem, &[]);
    assert!(!again.status.success() && String::from_utf8_lossy(&again.stderr).contains("--force"));
    fs::write(folder.path("pmem"), vec![1; 3 << 20]).unwrap();
    assert!(copy(&path(&input), &pmem, &["--force"]).status.success());
    // A plain file is not persistent memory unless the user says so.
    let plain = pmem.trim_end_matches("?emulated");
    let refused = copy(plain, "dram:", &[]);
    if refused.status.success() {
        println!("NOT APPLICABLE: a plain file as persistent memory: the tests run on DAX");
    } else {
        assert!(String::from_utf8_lossy(&refused.stderr).contains("emulated"));
    }
    let explained = good(dpipe().args(["explain", "dram:1M", &pmem]));
    assert!(explained.contains("pmem-store") && explained.contains("emulated"), "{explained}");
    // A node that exists, and one that does not.
    if Path::new("/sys/devices/system/node/node0").exists() {
        let node = copy(&path(&input), "numa:0", &[]);
        assert!(node.status.success(), "{}", String::from_utf8_lossy(&node.stderr));
        let error = copy(&path(&input), "numa:999?len=1M", &[]);
        assert!(String::from_utf8_lossy(&error.stderr).contains("these have memory: 0"), "{error:?}");
    } else {
        println!("SKIPPED: copies to a NUMA node: the kernel tells of none");
    }
}
