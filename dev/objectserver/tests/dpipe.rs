//! `dpipe` over objects of the server, where it was built with them.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use datapipes_objectserver::{FaultProxy, ProxyFault, ProxyRequest, S3Server};
use datapipes_testkit::{Random, TempFolder, until};

/// The command line of the same build, or why it cannot be tested.
fn dpipe() -> Result<PathBuf, String> {
    let program = std::env::current_exe().unwrap();
    let built = program.parent().and_then(Path::parent).unwrap().join("dpipe");
    if !built.exists() {
        return Err(format!("{} is not built", built.display()));
    }
    let output = Command::new(&built).args(["copy", "s3://", "x"]).output().unwrap();
    match String::from_utf8_lossy(&output.stderr).contains("built without objects") {
        true => Err("dpipe was built without `--features object`".into()),
        false => Ok(built),
    }
}

struct Scene {
    dpipe: PathBuf,
    server: S3Server,
    folder: TempFolder,
}

impl Scene {
    fn new(test: &str) -> Option<Scene> {
        let dpipe = match dpipe() {
            Ok(dpipe) => dpipe,
            Err(why) => {
                println!("SKIPPED: {test}: {why}");
                return None;
            }
        };
        let folder = TempFolder::under(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let server = S3Server::start(&folder.path("buckets")).unwrap();
        server.make_bucket("box").unwrap();
        Some(Scene { dpipe, server, folder })
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.dpipe);
        command.args(words).current_dir(&self.folder).stdin(Stdio::null());
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
            command.env_remove(name);
        }
        command.envs(self.server.settings()).env("HOME", self.folder.at());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    #[track_caller]
    fn succeeds(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{words:?}: {out}{err}");
        assert!(!format!("{out}{err}").contains(S3Server::SECRET));
        out.into_owned()
    }

    #[track_caller]
    fn fails(&self, words: &[&str], with: &str) {
        let output = self.run(words);
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && err.contains(with), "{words:?}: {err}");
        assert!(!err.contains(S3Server::SECRET), "{err}");
    }
}

fn bytes(len: usize, seed: u64) -> Vec<u8> {
    Random(seed).bytes(len)
}

#[test]
fn copies_between_files_and_objects() {
    let Some(scene) = Scene::new("copies between files and objects") else { return };
    let data = bytes(9_000_001, 1);
    std::fs::write(scene.folder.path("data"), &data).unwrap();
    let text = scene.succeeds(&["copy", "data", "s3://box/", "--verify"]);
    assert!(text.contains("both ends are equal") && text.contains("requests"), "{text}");
    assert!(scene.server.bytes("box", "data").unwrap() == data);
    scene.succeeds(&["copy", "s3://box/data", "s3://box/again/copy"]);
    assert!(scene.server.bytes("box", "again/copy").unwrap() == data);
    scene.succeeds(&["copy", "s3://box/again/copy", "back"]);
    assert!(std::fs::read(scene.folder.path("back")).unwrap() == data);
    let json = scene.succeeds(&["copy", "s3://box/data", "dram:", "--json"]);
    assert!(json.contains("\"address\": \"s3://box/data\"") && json.contains("\"read_verified\": true"), "{json}");
    assert!(json.contains("\"connections\": {") && json.contains("\"busy_seconds\""), "{json}");
    assert!(text.contains(" MB/s") && text.contains("in parts of 8 MiB"), "{text}");
    let route = scene.succeeds(&["explain", "s3://box/data", "dram:"]);
    assert!(route.contains("object-get") && route.contains("never a cloud's"), "{route}");
    scene.fails(&["copy", "s3://box/none", "x"], "there is no object of this key");
    scene.fails(&["copy", "s3://box/*", "x"], "several objects");
    assert!(!scene.folder.path("x").exists());
    assert_eq!(scene.server.unfinished(), 0);
}

#[test]
fn copies_all_objects_of_a_pattern() {
    let Some(scene) = Scene::new("copies all objects of a pattern") else { return };
    let parts: Vec<Vec<u8>> = (0..3).map(|part| bytes(part * 100_000 + 1, part as u64)).collect();
    for (at, part) in parts.iter().enumerate() {
        scene.server.put("box", &format!("in/part-{at}"), part).unwrap();
    }
    scene.server.put("box", "in/part-deeper/part-0", b"no").unwrap();
    scene.server.put("box", "in/other", b"no").unwrap();
    std::fs::create_dir(scene.folder.path("out")).unwrap();
    std::fs::write(scene.folder.path("out/part-1"), b"old").unwrap();
    let told = scene.succeeds(&["copy", "s3://box/in/part-*", "out", "--verify"]);
    assert!(told.contains("s3://box/in/part-2: ") && told.contains("3 objects; 300 kB"), "{told}");
    scene.succeeds(&["copy", "s3://box/in/part-*", "s3://box/again/"]);
    for (at, part) in parts.iter().enumerate() {
        assert!(std::fs::read(scene.folder.path(&format!("out/part-{at}"))).unwrap() == *part);
        assert!(scene.server.bytes("box", &format!("again/part-{at}")).unwrap() == *part);
    }
    assert_eq!(std::fs::read_dir(scene.folder.path("out")).unwrap().count(), 3);
    let told = scene.succeeds(&["copy", "s3://box/in/part-*", "out", "--json"]);
    assert!(told.contains("\"copies\": [") && told.contains("\"bytes\": 300003"), "{told}");

    scene.fails(&["copy", "s3://box/in/part-*", "new"], "new is no folder");
    scene.fails(&["copy", "s3://box/in/part-*", "s3://box/new"], "s3://box/new is no folder");
    scene.fails(&["copy", "s3://box/in/part-*", "dram:"], "dram: is no folder");
    scene.fails(&["copy", "s3://box/in/part-*", "out", "--size", "1"], "--size is for one");
    scene.fails(&["copy", "s3://box/in/none-*", "out"], "stands for no object");
    // What was copied before an error is there, and the error says how many were.
    std::fs::remove_file(scene.folder.path("out/part-2")).unwrap();
    std::fs::create_dir(scene.folder.path("out/part-2")).unwrap();
    scene.fails(&["copy", "s3://box/in/part-*", "out"], "2 of 3 objects were copied");
    let output = scene.command(&["copy", "s3://box/in/part-*", "out", "--json"]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.code() == Some(2) && told.contains("\"bytes\": 100002,\n  \"seconds\""), "{told}");
    assert_eq!(told.matches("\"cpu_seconds\"").count(), 2, "{told}");
    assert!(!scene.folder.path("new").exists() && !scene.server.has("box", "new"));

    // A folder that is gone is an error, not the name of a file.
    let gone = scene.folder.path("gone");
    std::fs::create_dir(&gone).unwrap();
    let removed = gone.clone();
    let proxy = FaultProxy::start(scene.server.address(), move |request| {
        if request.target.contains("part-1") {
            let _ = std::fs::remove_dir_all(&removed);
        }
        ProxyFault::Pass
    });
    let proxy = proxy.unwrap();
    let mut copy = scene.command(&["copy", "s3://box/in/part-*", "gone"]);
    let output = copy.envs(S3Server::settings_at(proxy.address())).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && error.contains(" of 3 objects were copied"), "{error}");
    assert!(!gone.exists());

    // A signal: what was copied is said, where no terminal is, too.
    std::fs::create_dir(scene.folder.path("half")).unwrap();
    let seen = Arc::new(AtomicBool::new(false));
    let sees = seen.clone();
    let proxy = FaultProxy::start(scene.server.address(), move |request| match request.target.contains("part-2") {
        true => {
            sees.store(true, SeqCst);
            ProxyFault::Swallow
        }
        false => ProxyFault::Pass,
    });
    let proxy = proxy.unwrap();
    for target in ["half", "s3://box/half/"] {
        seen.store(false, SeqCst);
        let mut copy = scene.command(&["copy", "s3://box/in/part-*", target]);
        copy.envs(S3Server::settings_at(proxy.address()));
        let said = interrupted(copy, || seen.load(SeqCst));
        assert!(said.contains("stopped by Ctrl-C; 2 of 3 objects were copied"), "{said}");
    }
    assert!(scene.folder.path("half/part-1").exists() && !scene.folder.path("half/part-2").exists());
    assert!(scene.server.has("box", "half/part-1") && !scene.server.has("box", "half/part-2"));
}

#[test]
fn sorts_objects_into_an_object() {
    let Some(scene) = Scene::new("sorts objects into an object") else { return };
    let mut random = Random(2);
    let mut lines: Vec<String> = Vec::new();
    for part in 0..3 {
        let these: Vec<String> = (0..60_000).map(|_| format!("{:016x} and more of the line", random.next())).collect();
        // The last line of a part has no terminator.
        scene.server.put("box", &format!("in/part-{part}"), these.join("\n").as_bytes()).unwrap();
        lines.extend(these);
    }
    lines.sort();
    let expected = lines.join("\n") + "\n";
    // In memory, and by runs that are merged.
    for (memory, output) in [("64M", "s3://box/sorted"), ("3M", "s3://box/merged")] {
        scene.succeeds(&["sort", "-S", memory, "s3://box/in/part-*", "-o", output]);
        let there = scene.server.bytes("box", output.strip_prefix("s3://box/").unwrap()).unwrap();
        assert!(there == expected.as_bytes(), "{output}");
    }
    scene.succeeds(&["sort", "-m", "s3://box/sorted", "s3://box/merged", "-u", "-o", "unique"]);
    lines.dedup();
    assert!(std::fs::read(scene.folder.path("unique")).unwrap() == (lines.join("\n") + "\n").as_bytes());
    // Inputs that are not in order, which is seen after much was written.
    let falls: Vec<String> = (0..2_000_000).map(|at| format!("{:08}\n", (at + 1_000_000) % 2_000_000)).collect();
    std::fs::write(scene.folder.path("falls"), falls.concat()).unwrap();
    scene.succeeds(&["sort", "-m", "--parallel=2", "falls", "-o", "fallen"]);
    scene.succeeds(&["sort", "-m", "--parallel=2", "falls", "-o", "s3://box/fallen"]);
    assert!(scene.server.bytes("box", "fallen").unwrap() == std::fs::read(scene.folder.path("fallen")).unwrap());
    // Onto one of its inputs.
    scene.succeeds(&["sort", "-r", "s3://box/sorted", "-o", "s3://box/sorted"]);
    let reversed = scene.server.bytes("box", "sorted").unwrap();
    assert!(reversed.len() == expected.len() && reversed.starts_with(lines.last().unwrap().as_bytes()));
    scene.fails(&["sort", "s3://box/none-*", "-o", "x"], "stands for no object");
    // What was asked of the server, for all inputs and for the output.
    let output = scene.run(&["sort", "--report", "--json", "s3://box/in/*", "-o", "s3://box/sorted"]);
    let (json, words) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(json.contains("\"objects\": 3") && json.contains("\"address\": \"s3://box/sorted\""), "{json}");
    let came = json.lines().filter(|line| line.starts_with("      \"received_bytes\""));
    let came = came.filter_map(|line| line.split(": ").nth(1)?.trim_end_matches(',').parse::<usize>().ok());
    assert!(came.max().unwrap() >= expected.len() - 3, "all bytes of the inputs came: {json}");
    assert!(words.contains("s3://box/in/part-0 and 2 more: ") && words.contains("  s3://box/sorted: "), "{words}");
    // A pattern is checked as one sequence.
    for (part, line) in ["a", "b", "c"].iter().enumerate() {
        scene.server.put("box", &format!("out/part-{part}"), format!("{line}\n").as_bytes()).unwrap();
    }
    let text = scene.succeeds(&["check", "lines", "s3://box/out/*"]);
    assert!(text.contains("3 files: 3 records"), "{text}");
    scene.server.put("box", "out/part-9", b"b\n").unwrap();
    let output = scene.run(&["check", "lines", "s3://box/out/part-*"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(1) && text.contains("of s3://box/out/part-9"), "{text}");
    scene.fails(&["check", "lines", "s3://box/none-*"], "stands for no object");
    assert_eq!(scene.server.unfinished(), 0);
}

#[test]
fn generates_and_checks_objects() {
    let Some(scene) = Scene::new("generates and checks objects") else { return };
    // More than a part, and the same bytes as a file, whatever the number of threads.
    for kind in ["records", "lines"] {
        let (file, object) = (format!("{kind}.file"), format!("s3://box/{kind}"));
        scene.succeeds(&["gen", kind, "--size", "19M", "--seed", "3", &file]);
        let told = scene.succeeds(&["gen", kind, "--size", "19M", "--seed", "3", "--threads", "3", &object]);
        assert!(told.contains("requests"), "{told}");
        let bytes = std::fs::read(scene.folder.path(&file)).unwrap();
        assert!(scene.server.bytes("box", kind).unwrap() == bytes, "{kind}");
        // Unsorted: the same counts and the same first disorder as of the file.
        let summary = |name: &str| {
            let output = scene.run(&["check", kind, "--json", name]);
            assert_eq!(output.status.code(), Some(1));
            let text = String::from_utf8(output.stdout).unwrap();
            // It names what it was asked for.
            assert!(text.contains(&format!("\"first_unordered_file\": \"{name}\"")), "{text}");
            let kept = text.lines().filter(|line| !line.contains("second"));
            kept.collect::<Vec<_>>().join("\n").replace(name, "NAME")
        };
        assert_eq!(summary(&file), summary(&object));
    }
    scene.succeeds(&["sort", "s3://box/lines", "-o", "s3://box/sorted"]);
    assert!(scene.succeeds(&["check", "lines", "s3://box/sorted"]).contains("in order"));
    scene.succeeds(&["sort", "-c", "s3://box/sorted"]);
    let output = scene.run(&["sort", "-c", "s3://box/lines"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && error.starts_with("dpipe sort: s3://box/lines:"), "{error}");
    assert_eq!(scene.run(&["sort", "-C", "s3://box/lines"]).status.code(), Some(1));
    assert_eq!(scene.server.unfinished(), 0);
    scene.fails(&["check", "lines", "s3://box/none"], "404");
    scene.fails(&["gen", "lines", "--size", "1M", "https://host/x"], "a web server is only read");
}

#[test]
fn checkpoints_are_objects() {
    let Some(scene) = Scene::new("checkpoints are objects") else { return };
    let (one, two) = (bytes(9_000_001, 5), bytes(1000, 6));
    std::fs::write(scene.folder.path("one"), &one).unwrap();
    scene.server.put("box", "in/two", &two).unwrap();
    std::fs::write(scene.folder.path("empty"), b"").unwrap();
    let saves = "s3://box/saves/";
    let save = ["checkpoint", "save", saves, "one", "s3://box/in/two", "empty", "--keep", "2"];
    for number in 1..=3 {
        assert!(scene.succeeds(&save).contains(&format!("checkpoint {number}")), "{number}");
    }
    let listed = scene.succeeds(&["checkpoint", "list", saves]);
    assert!(!listed.contains("1: ") && listed.contains("2: ") && listed.contains("two"), "{listed}");
    assert!(scene.succeeds(&["checkpoint", "verify", saves]).contains("3: intact"));
    scene.succeeds(&["checkpoint", "restore", saves, "--output", "back"]);
    for (name, bytes) in [("one", &one), ("two", &two), ("empty", &Vec::new())] {
        assert!(std::fs::read(scene.folder.path("back").join(name)).unwrap() == *bytes, "{name}");
    }
    scene.succeeds(&["checkpoint", "restore", saves, "--output", "s3://box/back", "--number", "2"]);
    assert!(scene.server.bytes("box", "back/one").unwrap() == one);
    // One that is damaged is found, and passed over where that is allowed.
    let key = "saves/checkpoint-00000000000000000003";
    let mut damaged = scene.server.bytes("box", key).unwrap();
    damaged[5_000_000] ^= 1;
    scene.server.put("box", key, &damaged).unwrap();
    assert_eq!(scene.run(&["checkpoint", "verify", saves]).status.code(), Some(1));
    scene.fails(&["checkpoint", "restore", saves, "-o", "no"], "differs from the saved one");
    assert!(scene.succeeds(&["checkpoint", "restore", saves, "-o", "old", "--fallback"]).contains("checkpoint 2"));
    assert!(std::fs::read(scene.folder.path("old/one")).unwrap() == one);
    scene.fails(&["checkpoint", "list", "https://host/x?sig=hidden"], "a bucket and a prefix");
    scene.fails(&["checkpoint", "restore", "s3://box/nothing", "-o", "x"], "holds no checkpoint");
    assert_eq!(scene.server.unfinished(), 0);
}

#[test]
fn a_checkpoint_that_fails_or_is_overtaken_is_not_there() {
    let Some(scene) = Scene::new("a checkpoint that fails or is overtaken is not there") else { return };
    std::fs::write(scene.folder.path("data"), bytes(20 << 20, 8)).unwrap();
    let key = "saves/checkpoint-00000000000000000001";
    let proxy = FaultProxy::start(scene.server.address(), |request| match request.target.contains("partNumber=2") {
        true => ProxyFault::Refuse(403, "AccessDenied".into()),
        false => ProxyFault::Pass,
    });
    let proxy = proxy.unwrap();
    let mut save = scene.command(&["checkpoint", "save", "s3://box/saves", "data"]);
    let output = save.envs(S3Server::settings_at(proxy.address())).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!scene.server.has("box", key) && scene.server.unfinished() == 0);
    // Another save publishes the same number while this one sends its parts.
    std::thread::scope(|scope| {
        let its = &scene;
        let (other, is_there) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let seen = (other.clone(), is_there.clone());
        // Its request to publish waits for the other save.
        let proxy = FaultProxy::start(scene.server.address(), move |request| {
            if request.method == "POST" && request.target.contains("uploadId=") {
                seen.1.store(true, SeqCst);
                until("the other save is there", || seen.0.load(SeqCst));
            }
            ProxyFault::Pass
        });
        let proxy = proxy.unwrap();
        let address = proxy.address();
        let slow = scope.spawn(move || {
            let mut save = its.command(&["checkpoint", "save", "s3://box/saves", "data"]);
            save.envs(S3Server::settings_at(address)).output().unwrap()
        });
        until("the slow save wants to publish", || is_there.load(SeqCst));
        scene.succeeds(&["checkpoint", "save", "s3://box/saves", "data"]);
        other.store(true, SeqCst);
        let output = slow.join().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && error.contains("exists already"), "{error}");
    });
    assert!(scene.succeeds(&["checkpoint", "verify", "s3://box/saves"]).contains("1: intact"));
    assert_eq!(scene.server.unfinished(), 0);
}

#[test]
fn reads_a_few_bytes_of_objects() {
    let Some(scene) = Scene::new("reads a few bytes of objects") else { return };
    scene.server.put("box", "table", &bytes(9_000_001, 4)).unwrap();
    scene.server.put("box", "small", &bytes(1000, 4)).unwrap();
    let stat = |address: &str, more: &[&str]| {
        let words = ["fine", "stat", address, "--reads", "3000", "--memory", "8M"];
        scene.succeeds(&[&words[..], more].concat())
    };
    let told = stat("s3://box/table", &["--load", "128@zipf:0.9,4K@scan"]);
    assert!(told.contains("in units of") && told.contains("object-get") && told.contains("requests"), "{told}");
    assert!(stat("s3://box/small", &["--load", "10@uniform", "--json"]).contains("s3://box/small"));
    scene.fails(&["fine", "stat", "s3://box/none", "--memory", "8M"], "404");
    scene.fails(&["fine", "stat", "s3://box/table", "--memory", "3M"], "at least 4 MiB");
}

#[test]
fn what_takes_no_objects_says_so() {
    let Some(scene) = Scene::new("what takes no objects says so") else { return };
    std::fs::write(scene.folder.path("data"), b"line\n").unwrap();
    let address = "https://host/x?sig=hidden";
    for words in [
        &["log", "stat", address][..],
        &["fine", "recommender", "--file", address],
        &["fine", "stat", "data", "--plot", address],
        &["checkpoint", "list", "saves", "--metrics", address],
        &["checkpoint", "bench", "--dir", address],
        &["stream", "--output", "x", "--metrics", address],
        &["stream", "--output", "x", "--metrics=https://host/x?sig=hidden"],
        &["copy", "data", "x", "--metrics", address],
        &["copy", "data", "x", "--report-html", address],
        &["sort", "data", "--metrics", address],
        &["sort", "data", "--report-html", address],
        &["sort", "data", "-R", "--random-source", address],
        &["man", address],
        &["model", "dca", "--plot", address],
    ] {
        let output = scene.run(words);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && error.contains("takes no objects"), "{words:?}: {error}");
        assert!(!error.contains("hidden"), "{error}");
    }
    // Others refuse them in words of their own, without what may be secret.
    for words in [
        &["sort", "data", "--files0-from", address][..],
        &["sort", "data", "-T", address],
        &["stream", "--output", "x", "--from", address],
        &["copy", "data", "x", "--flavor", address],
        &["log", "append", "https:/host/x?sig=hidden", "--dir", address],
        &["machine", "--file", "https://user:hidden@host/"],
    ] {
        let output = scene.run(words);
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(!output.status.success() && !text.contains("hidden"), "{words:?}: {text}");
    }
    assert!(!scene.folder.path("https:").exists());
}

#[test]
fn small_objects_that_were_damaged_are_not_sorted() {
    let Some(scene) = Scene::new("small objects that were damaged are not sorted") else { return };
    for lines in [15, 5000] {
        let text: String = (0..lines).rev().map(|n| format!("{n:019}\n")).collect();
        std::fs::write(scene.folder.path("lines"), &text).unwrap();
        scene.succeeds(&["copy", "lines", "s3://box/k"]);
        // Each time that bytes come; the second time alone; and in a second input.
        for spared in [0, 1] {
            let ranges = AtomicU64::new(0);
            let proxy = FaultProxy::start(scene.server.address(), move |request| {
                match request.ranged && ranges.fetch_add(1, SeqCst) >= spared {
                    true => ProxyFault::DamageAnswer(25),
                    false => ProxyFault::Pass,
                }
            });
            let proxy = proxy.unwrap();
            for words in
                [&["sort", "s3://box/k"][..], &["sort", "-n", "lines", "s3://box/k"], &["sort", "-m", "s3://box/k"]]
            {
                let mut sort = scene.command(&[words, &["-o", "out", "-S", "2M"]].concat());
                let output = sort.envs(S3Server::settings_at(proxy.address())).output().unwrap();
                let error = String::from_utf8_lossy(&output.stderr).into_owned();
                assert!(output.status.code() == Some(2) && error.contains("CRC-64"), "{words:?}: {error}");
                assert!(!scene.folder.path("out").exists(), "{words:?}");
            }
        }
    }
}

#[test]
fn settings_that_no_request_takes_are_refused_by_name() {
    let Some(scene) = Scene::new("settings that no request takes are refused by name") else { return };
    std::fs::write(scene.folder.path("data"), b"line\n").unwrap();
    for (name, value) in [
        ("AWS_REGION", "us-east-1\n"),
        ("AWS_DEFAULT_CONTENT_TYPE", "a\nb"),
        ("AWS_METADATA_ENDPOINT", "nonsense"),
        ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "no sense"),
        ("AWS_ENDPOINT_URL", "http://user:hidden@127.0.0.1:1"),
        ("AWS_ALLOW_HTTP", "false"),
    ] {
        let output = scene.command(&["copy", "data", "s3://box/k"]).env(name, value).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        let named = if name == "AWS_ALLOW_HTTP" { "AWS_ENDPOINT_URL has no TLS" } else { name };
        assert!(output.status.code() == Some(2) && error.contains(named), "{name}: {error}");
        assert!(!error.contains("panicked") && !error.contains("hidden"), "{error}");
    }
}

#[test]
fn a_checkpoint_that_is_saved_is_told_so_where_older_ones_stay() {
    let Some(scene) = Scene::new("a checkpoint that is saved is told so") else { return };
    std::fs::write(scene.folder.path("data"), bytes(1000, 8)).unwrap();
    std::fs::write(scene.folder.path("st*"), b"odd").unwrap();
    scene.succeeds(&["checkpoint", "save", "s3://box/saves", "data"]);
    let proxy = FaultProxy::start(scene.server.address(), |request| match request.method.as_str() {
        "DELETE" => ProxyFault::Refuse(403, "AccessDenied".into()),
        _ => ProxyFault::Pass,
    });
    let proxy = proxy.unwrap();
    let mut save = scene.command(&["checkpoint", "save", "s3://box/saves", "data", "st*", "--keep", "1"]);
    let output = save.envs(S3Server::settings_at(proxy.address())).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.code() == Some(1) && text.contains("checkpoint 2: ") && text.contains("durable"), "{text}");
    assert!(text.contains("OLDER ONES ARE LEFT: ") && text.contains("403"), "{text}");
    assert!(scene.succeeds(&["checkpoint", "verify", "s3://box/saves"]).contains("2: intact"));
    // A name that ends as a pattern does is that of an object all the same.
    scene.succeeds(&["checkpoint", "restore", "s3://box/saves", "-o", "s3://box/back"]);
    assert_eq!(scene.server.bytes("box", "back/st*").unwrap(), b"odd");
    scene.succeeds(&["copy", "st*", "s3://box/copied/"]);
    std::fs::create_dir(scene.folder.path("down")).unwrap();
    scene.succeeds(&["copy", "s3://box/copied/st%2A", "down"]);
    assert_eq!(std::fs::read(scene.folder.path("down/st*")).unwrap(), b"odd");
    scene.succeeds(&["sort", "s3://box/copied/*", "-o", "sorted"]);
    assert_eq!(std::fs::read(scene.folder.path("sorted")).unwrap(), b"odd\n");
    // A name that no object can have stops the restore before anything is written.
    std::fs::write(scene.folder.path("a\nb"), b"odd").unwrap();
    scene.succeeds(&["checkpoint", "save", "s3://box/odd", "data", "a\nb"]);
    scene.fails(&["checkpoint", "restore", "s3://box/odd", "-o", "s3://box/none"], "control characters");
    assert!(!scene.server.has("box", "none/data"));
    // What is no list is not a list of nothing.
    let proxy = FaultProxy::start(scene.server.address(), |request| match request.target.contains("list-type=2") {
        true => {
            let page = "<html><body>Log in</body></html>";
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", page.len());
            ProxyFault::Answer([head.as_bytes(), page.as_bytes()].concat())
        }
        false => ProxyFault::Pass,
    });
    let proxy = proxy.unwrap();
    for words in [&["checkpoint", "list", "s3://box/saves"][..], &["sort", "s3://box/saves/*"]] {
        let output = scene.command(words).envs(S3Server::settings_at(proxy.address())).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && error.contains("not the list that was asked for"), "{error}");
    }
}

/// Sends SIGINT to a command once the server has seen enough. It must die of it. Returns what it
/// said.
fn interrupted(mut command: Command, is_under_way: impl FnMut() -> bool) -> String {
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    until("the requests are under way", is_under_way);
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let status = datapipes_testkit::ended(&mut child);
    let mut said = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
    assert!(std::os::unix::process::ExitStatusExt::signal(&status) == Some(2), "{status}: {said}");
    said
}

#[test]
fn a_signal_ends_what_waits_for_a_server_and_leaves_no_upload() {
    let Some(scene) = Scene::new("a signal ends what waits for a server and leaves no upload") else { return };
    let data = bytes(20 << 20, 9);
    std::fs::write(scene.folder.path("data"), &data).unwrap();
    let lines: String = (0..900_000).rev().map(|n| format!("{n:020}\n")).collect();
    std::fs::write(scene.folder.path("lines"), &lines).unwrap();
    scene.server.put("box", "k", &data).unwrap();
    let stalls = |request: &ProxyRequest| match request.target.contains("partNumber=2") || request.ranged {
        true => ProxyFault::Stall(0),
        false => ProxyFault::Pass,
    };
    for (words, uploads) in [
        (&["copy", "data", "s3://box/new"][..], 1),
        (&["sort", "lines", "-S", "4M", "-o", "s3://box/new"], 1),
        (&["gen", "records", "--size", "20M", "s3://box/new"], 1),
        (&["copy", "s3://box/k", "new"], 0),
        (&["sort", "s3://box/k", "-o", "new"], 0),
        (&["check", "lines", "s3://box/k"], 0),
    ] {
        let proxy = FaultProxy::start(scene.server.address(), stalls).unwrap();
        let mut command = scene.command(words);
        command.envs(S3Server::settings_at(proxy.address()));
        // A look, and one more request at least; of an upload, until it has begun.
        interrupted(command, || scene.server.unfinished() >= uploads && proxy.requests() >= 3);
        assert_eq!(scene.server.unfinished(), 0, "{words:?}");
        assert!(!scene.server.has("box", "new") && !scene.folder.path("new").exists(), "{words:?}");
    }
}

#[test]
fn names_of_keys_stay_whole_and_an_object_is_not_copied_onto_itself() {
    let Some(scene) = Scene::new("names of keys stay whole") else { return };
    scene.server.put("box", "e/x", b"precious").unwrap();
    scene.server.put("box", "in/x#1", b"one").unwrap();
    scene.server.put("box", "in/x?2", b"two").unwrap();
    scene.succeeds(&["copy", "s3://box/in/x#1", "s3://box/e/"]);
    assert!(scene.server.bytes("box", "e/x").unwrap() == b"precious");
    assert!(scene.server.bytes("box", "e/x#1").unwrap() == b"one");
    std::fs::create_dir(scene.folder.path("fold")).unwrap();
    for name in ["x#1", "x?2"] {
        let told = scene.succeeds(&["copy", &format!("s3://box/in/{name}"), "fold"]);
        assert!(told.contains(&format!("s3://box/in/{name}")), "{told}");
        assert!(scene.folder.path("fold").join(name).exists());
    }
    scene.fails(&["copy", "s3://box/e/x", "s3://box/e/x"], "both the source and the target");
    scene.fails(&["copy", "s3://box/e/x", "s3://box/e/"], "both the source and the target");
}

#[test]
fn a_target_that_differs_is_said_to_be_visible() {
    let Some(scene) = Scene::new("a target that differs is said to be visible") else { return };
    std::fs::write(scene.folder.path("data"), bytes(100_000, 10)).unwrap();
    let proxy = FaultProxy::start(scene.server.address(), |request| match request.ranged {
        true => ProxyFault::DamageAnswer(500),
        false => ProxyFault::Pass,
    });
    let proxy = proxy.unwrap();
    let mut copy = scene.command(&["copy", "data", "s3://box/new", "--verify"]);
    let output = copy.envs(S3Server::settings_at(proxy.address())).output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    // By the comparison, or by the checksum of what is read again.
    assert!(!output.status.success() && (text.contains("is visible") || text.contains("CRC-64")), "{text}");
}

#[test]
fn a_target_that_is_not_compared_is_said_to_be_published() {
    let Some(scene) = Scene::new("a target that is not compared is said to be published") else { return };
    let data = bytes(100_000, 11);
    std::fs::write(scene.folder.path("data"), &data).unwrap();
    // What is written has been published when it is read again.
    let refuses = |request: &ProxyRequest| match request.ranged {
        true => ProxyFault::Refuse(403, "AccessDenied".into()),
        false => ProxyFault::Pass,
    };
    let proxy = FaultProxy::start(scene.server.address(), refuses).unwrap();
    let mut copy = scene.command(&["copy", "data", "s3://box/refused", "--verify"]);
    let output = copy.envs(S3Server::settings_at(proxy.address())).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let expected = "s3://box/refused was published, and was not compared";
    assert!(output.status.code() == Some(2) && error.contains(expected), "{}: {error}", output.status);
    assert!(scene.server.bytes("box", "refused").unwrap() == data);

    // A signal at that time: it is said where no terminal is, too.
    let seen = Arc::new(AtomicBool::new(false));
    let sees = seen.clone();
    let stalls = move |request: &ProxyRequest| match request.ranged {
        true => {
            sees.store(true, SeqCst);
            ProxyFault::Swallow
        }
        false => ProxyFault::Pass,
    };
    let proxy = FaultProxy::start(scene.server.address(), stalls).unwrap();
    let mut copy = scene.command(&["copy", "data", "s3://box/stopped", "--verify"]);
    copy.envs(S3Server::settings_at(proxy.address()));
    let said = interrupted(copy, || seen.load(SeqCst));
    assert!(said.contains("stopped by Ctrl-C; s3://box/stopped is published"), "{said}");
    assert!(scene.server.bytes("box", "stopped").unwrap() == data);
}

#[test]
fn a_copy_that_is_killed_leaves_nothing_visible() {
    let Some(scene) = Scene::new("a copy that is killed leaves nothing visible") else { return };
    std::fs::write(scene.folder.path("data"), bytes(20 << 20, 3)).unwrap();
    // The second part never gets an answer.
    let proxy = FaultProxy::start(scene.server.address(), |request| match request.target.contains("partNumber=2") {
        true => ProxyFault::Stall(0),
        false => ProxyFault::Pass,
    });
    let proxy = proxy.unwrap();
    let mut copy = scene.command(&["copy", "data", "s3://box/data"]);
    copy.envs(S3Server::settings_at(proxy.address())).stdout(Stdio::null()).stderr(Stdio::null());
    let mut copy = copy.spawn().unwrap();
    until("the upload has begun", || scene.server.unfinished() == 1);
    copy.kill().unwrap();
    copy.wait().unwrap();
    assert!(!scene.server.has("box", "data") && scene.server.unfinished() == 1);
    scene.server.age_uploads(Duration::from_secs(601));
    scene.succeeds(&["copy", "data", "s3://box/data"]);
    assert_eq!(scene.server.unfinished(), 0);
}
