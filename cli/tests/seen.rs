//! What a command leaves for monitoring, and the pictures that it draws.
#![allow(clippy::unwrap_used)]

mod scene;

use std::path::Path;
use std::process::{Command, Output, Stdio};

use datapipes_testkit::ended;
use scene::folder;

fn dpipe(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dpipe"));
    command.current_dir(folder).args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn value(text: &str, series: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')))?;
    line.rsplit_once(' ').unwrap().1.parse().ok()
}

/// How a command stands by its file: exactly one state is 1.
fn state(text: &str, command: &str) -> String {
    let states = ["running", "completed", "mismatch", "failed", "interrupted"];
    let of = |state: &&&str| {
        let series = format!("datapipes_command_state{{outcome=\"{state}\",command=\"{command}\",run=\"m\"}}");
        value(text, &series).unwrap_or_else(|| panic!("no {series} in {text}")) == 1.0
    };
    let held: Vec<&&str> = states.iter().filter(of).collect();
    assert_eq!(held.len(), 1, "{text}");
    (**held[0]).to_owned()
}

/// Asks Prometheus' own checker, where it is installed.
fn promtool_finds_nothing_wrong(text: &str) {
    if !scene::on_path("promtool") {
        return println!("SKIPPED: promtool finds nothing wrong: no program `promtool`");
    }
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}\n{text}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn each_command_says_how_it_ended_and_what_it_did() {
    let folder = folder();
    let at = folder.at();
    std::fs::write(folder.path("in"), vec![7; 3 << 20]).unwrap();
    let read = || std::fs::read_to_string(folder.path("m.prom")).unwrap();
    let good = |arguments: &[&str]| {
        let output = dpipe(at, &[arguments, &["--metrics", "m.prom"]].concat());
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        let text = read();
        promtool_finds_nothing_wrong(&text);
        text
    };
    let text = good(&["copy", "in", "out"]);
    assert_eq!(state(&text, "copy"), "completed");
    let moved: Vec<f64> = text
        .lines()
        .filter(|line| line.starts_with("datapipes_pipe_bytes_total{"))
        .map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
        .collect();
    // Each step moves them, and has a series of its own.
    assert!(!moved.is_empty() && moved.iter().all(|bytes| *bytes == f64::from(3 << 20)), "{text}");
    assert!(value(&text, "datapipes_command_seconds{command=\"copy\",run=\"m\"}").unwrap() > 0.0);
    assert!(!text.contains(at.to_str().unwrap()), "a path of the user: {text}");

    let text = good(&["sort", "--u64", "in", "-o", "sorted"]);
    assert_eq!(state(&text, "sort"), "completed");
    assert_eq!(value(&text, "datapipes_sort_bytes{direction=\"out\",run=\"m\"}"), Some(f64::from(3 << 20)));

    let text = good(&["fine", "stat", "in", "--reads", "500", "--memory", "4M"]);
    assert_eq!(state(&text, "fine stat"), "completed");
    let reads = ["hit", "miss"]
        .map(|outcome| value(&text, &format!("datapipes_cache_reads_total{{outcome=\"{outcome}\",run=\"m\"}}")));
    assert!(reads[0].unwrap() + reads[1].unwrap() >= 500.0);
    let timed = ["hit", "miss"]
        .map(|outcome| value(&text, &format!("datapipes_cache_read_seconds_count{{outcome=\"{outcome}\",run=\"m\"}}")));
    // Each call of 128 reads is timed once.
    assert_eq!(timed[0].unwrap() + timed[1].unwrap(), 4.0, "{text}");

    let text = good(&["checkpoint", "save", "saves", "in"]);
    assert_eq!(
        (state(&text, "checkpoint save").as_str(), value(&text, "datapipes_checkpoint_bytes{run=\"m\"}")),
        ("completed", Some(f64::from(3 << 20)))
    );
    let text = good(&["log", "bench", "--seconds", "0.5", "--dir", "."]);
    assert!(
        state(&text, "log bench") == "completed"
            && value(&text, "datapipes_log_records_total{run=\"m\"}").unwrap() > 0.0
    );
    let text = good(&["stream", "--from", "file:in", "--output", "streamed"]);
    assert_eq!(state(&text, "stream"), "completed");
    // Two channels, of which the senders measured how long each block was on its way.
    for number in 1..=2 {
        let of = |series: &str| {
            let pipe = format!("pipe=\"distributed resource-side {number}\"");
            let line = text.lines().find(|line| line.starts_with(&format!("{series}{{")) && line.contains(&pipe));
            let line = line.unwrap_or_else(|| panic!("no {series} of {pipe} in {text}"));
            line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()
        };
        assert_eq!((of("datapipes_channel_credits"), of("datapipes_channel_blocks_total")), (4.0, 3.0));
        assert_eq!(of("datapipes_channel_outstanding_blocks"), 0.0);
        // An empty block that ends a stream is none of them.
        assert_eq!(of("datapipes_channel_block_seconds_count"), 3.0, "{text}");
    }
    let text = good(&["stream", "--from", "file:in", "--placement", "all", "--output", "streamed"]);
    assert_eq!(text.matches("datapipes_channel_credits{").count(), 6, "{text}");

    // What fails says so, too.
    assert_eq!(dpipe(at, &["copy", "in", "dram:1M", "--verify", "--metrics", "m.prom"]).status.code(), Some(2));
    assert_eq!(state(&read(), "copy"), "failed");
    assert_eq!(dpipe(at, &["sort", "absent", "--metrics=m.prom"]).status.code(), Some(2));
    assert_eq!(state(&read(), "sort"), "failed");
    // A file that cannot be written is told before the work.
    let refused = dpipe(at, &["copy", "in", "never", "--metrics", "nowhere/m.prom"]);
    assert!(refused.status.code() == Some(2) && !folder.path("never").exists(), "{refused:?}");
}

#[test]
fn a_command_that_a_signal_ends_says_that() {
    let folder = folder();
    let file = std::fs::File::create(folder.path("in")).unwrap();
    file.set_len(64 << 30).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_dpipe"))
        .current_dir(folder.at())
        .args(["copy", "in", "dram:4M", "--metrics", "m.prom"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let read = || std::fs::read_to_string(folder.path("m.prom")).unwrap_or_default();
    datapipes_testkit::bounded("the file is there at the start", {
        let path = folder.path("m.prom");
        move || {
            while !path.exists() {
                std::thread::yield_now();
            }
        }
    });
    assert_eq!(state(&read(), "copy"), "running");
    // It catches signals before it moves bytes.
    let pid = child.id();
    datapipes_testkit::bounded("it catches SIGTERM", move || {
        let catches = || {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
            u64::from_str_radix(caught.trim(), 16).unwrap() & 1 << (15 - 1) != 0
        };
        while !catches() {
            std::thread::yield_now();
        }
    });
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM).unwrap();
    let status = ended(&mut child);
    assert!(!status.success());
    assert_eq!(state(&read(), "copy"), "interrupted");
}

/// Gives what `text` returns to whoever asks over HTTP, to the end of the program.
fn serve(text: impl Fn() -> String + Send + 'static) -> u16 {
    use std::io::{BufRead, Write};
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let request = std::io::BufReader::new(&stream).lines();
            request.map_while(Result::ok).take_while(|line| !line.is_empty()).for_each(drop);
            let head = "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\r\n";
            let _ = write!(&stream, "{head}{}", text());
        }
    });
    port
}

/// The files of commands, as node_exporter gives them to Prometheus.
#[test]
fn prometheus_itself_draws_what_commands_write() {
    if !scene::on_path("prometheus") {
        return println!("SKIPPED: prometheus_itself_draws_what_commands_write: no program `prometheus`");
    }
    let folder = folder();
    let (at, files) = (folder.at(), folder.path("files"));
    std::fs::create_dir(&files).unwrap();
    std::fs::write(folder.path("in"), vec![7; 3 << 20]).unwrap();
    for (name, arguments) in [
        ("copy", &["copy", "in", "out", "--verify"][..]),
        ("fine", &["fine", "stat", "in", "--reads", "500", "--memory", "4M"][..]),
        ("log", &["log", "bench", "--seconds", "0.5", "--dir", "."][..]),
        ("checkpoint", &["checkpoint", "save", "saves", "in"][..]),
        ("stream", &["stream", "--from", "file:in", "--output", "streamed"][..]),
        ("sorted", &["sort", "--u64", "in", "-o", "sorted"][..]),
    ] {
        let metrics = format!("files/{name}.prom");
        let output = dpipe(at, &[arguments, &["--metrics", &metrics]].concat());
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    // One that goes on: its file is written again after ten seconds.
    let fifo = folder.path("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    let writer = std::thread::spawn(move || {
        let mut pipe = datapipes_testkit::fifo_writer(&fifo).unwrap();
        while std::io::Write::write_all(&mut pipe, &b"line\n".repeat(1000)).is_ok() {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    });
    let mut sort = Command::new(env!("CARGO_BIN_EXE_dpipe"))
        .current_dir(at)
        .args(["sort", "pipe", "-o", "slow", "--metrics", "files/slow.prom"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let port = serve(move || {
        let files = std::fs::read_dir(&files).unwrap().flatten().map(|file| file.path());
        let files = files.filter(|file| file.extension().is_some_and(|ending| ending == "prom"));
        files.map(|file| std::fs::read_to_string(file).unwrap_or_default()).collect()
    });
    let prometheus = datapipes_testkit::Prometheus::start(at, port).unwrap();
    // What it answers while it starts is no JSON.
    let ask = |query: &str| -> Option<serde_json::Value> {
        let asked = query.replace("$__rate_interval", "1m").replace("$instance", ".*");
        serde_json::from_str(&prometheus.query(&asked)?).ok()
    };
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/grafana.json");
    let dashboard = scene::json(&std::fs::read_to_string(page).unwrap());
    let panels = dashboard["panels"].as_array().unwrap();
    let queries: Vec<&str> = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap())
        .map(|target| target["expr"].as_str().unwrap())
        .collect();
    // The sort that goes on has a rate.
    let rates = queries.iter().find(|query| query.contains("datapipes_pipe_bytes_total")).unwrap();
    datapipes_testkit::until("a rate of the sort that goes on", || {
        let answer = ask(rates).unwrap_or_default();
        answer["data"]["result"].as_array().into_iter().flatten().any(|series| {
            let labels = &series["metric"];
            let value = series["value"][1].as_str().and_then(|value| value.parse::<f64>().ok());
            (labels["product"] == "sort" && labels["pipe"] == "input" && labels["run"] == "slow")
                && value.is_some_and(|value| value > 0.0)
        })
    });
    let mut answered = Vec::new();
    for query in queries {
        let answer = ask(query).unwrap();
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        if !answer["data"]["result"].as_array().unwrap().is_empty() {
            answered.push(query);
        }
    }
    for name in [
        "datapipes_cache_reads_total",
        "datapipes_cache_read_seconds",
        "datapipes_log_append_seconds",
        "datapipes_channel_block_seconds",
        "datapipes_channel_outstanding_blocks",
        "datapipes_sort_phase_seconds",
        "datapipes_checkpoint_phase_seconds",
        "datapipes_command_state",
    ] {
        assert!(answered.iter().any(|query| query.contains(name)), "nothing for {name}: {answered:#?}");
    }
    drop(prometheus);
    rustix::process::kill_process(rustix::process::Pid::from_child(&sort), rustix::process::Signal::TERM).unwrap();
    assert!(!ended(&mut sort).success());
    writer.join().unwrap();
}

/// What a sort that runs tells, and what it told at the end.
#[test]
fn a_sort_that_runs_tells_its_bytes_by_role() {
    let folder = folder();
    rustix::fs::mknodat(rustix::fs::CWD, folder.path("pipe"), rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
        .unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_dpipe"))
        .current_dir(folder.at())
        .args(["sort", "pipe", "-o", "sorted", "--metrics", "m.prom"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let fifo = folder.path("pipe");
    let writer = datapipes_testkit::bounded("the sort reads", move || {
        let mut writer = datapipes_testkit::fifo_writer(&fifo).unwrap();
        std::io::Write::write_all(&mut writer, &b"b\na\n".repeat(100_000)).unwrap();
        writer
    });
    let read = || std::fs::read_to_string(folder.path("m.prom")).unwrap_or_default();
    let role = |role: &str| format!("datapipes_pipe_bytes_total{{product=\"sort\",pipe=\"{role}\",run=\"m\"}}");
    // The file is written again after ten seconds.
    datapipes_testkit::until("the bytes that were read", || value(&read(), &role("input")) > Some(0.0));
    let meanwhile = read();
    assert_eq!(value(&meanwhile, &role("output")), Some(0.0), "{meanwhile}");
    assert!(!meanwhile.contains("datapipes_sort_spilled_bytes"), "{meanwhile}");
    drop(writer);
    assert!(ended(&mut child).success());
    let text = read();
    assert!(text.contains("datapipes_sort_spilled_bytes") && text.contains("pipe=\"output\""), "{text}");
}

#[test]
fn pictures_are_drawn_of_what_is_there() {
    let folder = folder();
    let at = folder.at();
    std::fs::write(folder.path("in"), vec![7; 1 << 20]).unwrap();
    let draw = |arguments: &[&str], name: &str| {
        let output = dpipe(at, arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        std::fs::read_to_string(folder.path(name)).unwrap()
    };
    let route = draw(&["explain", "in", "dram:", "--plot", "r.svg"], "r.svg");
    let text = String::from_utf8(dpipe(at, &["explain", "in", "dram:", "--json"]).stdout).unwrap();
    let told = scene::json(&text);
    let rejected = told["rejected"].as_array().unwrap();
    assert!(rejected.iter().any(|other| other["quality"]["bytes_per_second"].is_number()), "{told}");
    for primitive in
        rejected.iter().chain(told["hops"].as_array().unwrap()).map(|one| one["primitive"].as_str().unwrap())
    {
        assert!(route.contains(&format!(">{primitive}</text>")), "{primitive}");
    }
    let memory = draw(&["fine", "stat", "in", "--reads", "2000", "--memory", "4M", "--plot-memory", "m.svg"], "m.svg");
    assert!(memory.contains("The budget: 4 MiB") && memory.contains("slabs of "), "{memory}");
    let channels = ["stream", "--from", "file:in", "--placement", "all", "--output", "o", "--plot", "c.svg"];
    let channels = draw(&channels, "c.svg");
    // Source, crc32 and sink: two channels, and twice two where they are relayed.
    assert_eq!(channels.matches("class=\"head chosen\"").count(), 2 + 4 + 4, "{channels}");
}

#[test]
fn names_of_files_neither_command_a_terminal_nor_make_lines() {
    const NAME: &str = "n\u{1b}[31mred\nforged: 100 GB, verified\u{9b}2J";
    let folder = folder();
    let at = folder.at();
    let sub = at.join(format!("dir{NAME}"));
    std::fs::create_dir(&sub).unwrap();
    std::fs::write(at.join(NAME), vec![b'x'; 300_000]).unwrap();
    let [copied, sorted, streamed, made, metrics, page] =
        ["c", "s", "t", "g", "m", "p"].map(|kind| format!("{kind}{NAME}"));
    let (origin, dir) = (format!("file:{NAME}"), sub.to_str().unwrap());
    let (program, page) = (format!("exec:cat; : '{NAME}'"), format!("--report-html={page}"));
    let commands: [&[&str]; 19] = [
        &["copy", NAME, &copied, "--verify", &page],
        &["copy", NAME, dir],
        &["copy", "absent\u{1b}[31m\nforged: x", "y"],
        &["explain", NAME, "dram:"],
        &["explain", NAME, "new\u{1b}\nforged: x"],
        &["explain", NAME, "dram:", "--plot", "svg\u{1b}\nforged: x"],
        &["gen", "lines", "--size", "100K", &made],
        &["check", "--lines", NAME],
        &["check", "--records", NAME],
        &["fine", "stat", NAME, "--reads", "500", "--memory", "4M", "--metrics", &metrics],
        &["sort", NAME, "-o", &sorted, "--report", "--explain", "-T", dir, &page],
        &["sort", "--u64", NAME, "absent\u{1b}[1m\nforged: x"],
        &["stream", "--from", &origin, "--output", &streamed, "--through", &program],
        &["stream", "--from", &origin, "--output", "no\u{1b}\nforged: x/y"],
        &["checkpoint", "save", dir, NAME],
        &["checkpoint", "list", dir],
        &["checkpoint", "list", "no\u{1b}\nforged: x"],
        &["log", "bench", "--seconds", "0.5", "--dir", dir],
        &["bad\u{1b}[31m\nforged: x"],
    ];
    for arguments in commands {
        let output = dpipe(at, arguments);
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8(text).unwrap_or_else(|e| panic!("{arguments:?}: {e}"));
        assert!(!text.is_empty(), "{arguments:?}");
        let obeyed = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
        assert!(!text.contains(obeyed), "{arguments:?}: {text:?}");
        assert!(text.lines().all(|line| !line.trim_start().starts_with("forged")), "{arguments:?}: {text:?}");
    }
    // What programs read has the name as it is.
    let told = dpipe(at, &["fine", "stat", NAME, "--reads", "500", "--memory", "4M", "--json"]);
    assert_eq!(scene::json(&String::from_utf8(told.stdout).unwrap())[0]["file"], NAME);
}
