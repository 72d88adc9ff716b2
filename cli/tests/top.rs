//! `dpipe top`: in a real terminal, and on pages of honest, dead and hostile processes.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod scene;

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use datapipes_testkit::until;
use scene::folder;
use scene::tmux::Tmux;
use serde_json::Value;

const DPIPE: &str = env!("CARGO_BIN_EXE_dpipe");

/// A process that offers statistics until it is dropped.
struct Offering(Child);

impl Offering {
    fn start(runtime: &Path, allowed: &str) -> Offering {
        let mut command = Command::new(DPIPE);
        command.args(["log", "bench", "--seconds", "100", "--dir"]).arg(runtime);
        command.env("XDG_RUNTIME_DIR", runtime).env("DATAPIPES_OFFER", allowed);
        Offering(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Offering {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The output of one look.
fn look(runtime: &Path) -> Value {
    let mut command = Command::new(DPIPE);
    command.args(["top", "--once", "--json", "--interval", "0.3"]).env("XDG_RUNTIME_DIR", runtime);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A service that is stopped, or hangs.
#[test]
fn a_service_that_does_not_answer_is_named() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    // Names of sockets are short.
    let short = datapipes_testkit::TempFolder::new().unwrap();
    bind(&socket, &SocketAddrUnix::new(short.join("dpiped.sock")).unwrap()).unwrap();
    listen(&socket, 1).unwrap();
    let _offering = Offering::start(&short, "1");
    let mut seen = Value::Null;
    until("a row of another process", || {
        seen = look(&short);
        seen["rows"].as_array().is_some_and(|rows| !rows.is_empty())
    });
    let troubles = seen["troubles"].as_array().unwrap();
    assert!(troubles.iter().any(|trouble| trouble.to_string().contains("did not answer within")), "{seen}");
}

/// The page of a process, once there is something in it.
fn wait_for_page(runtime: &Path, pid: u32) -> std::path::PathBuf {
    let mut found = None;
    until("the process has a page", || {
        let pages = std::fs::read_dir(runtime.join("datapipes")).into_iter().flatten().flatten();
        let of_it = pages.filter(|page| page.file_name().to_str().unwrap().starts_with(&format!("{pid}-")));
        let is_begun = |page: &Path| std::fs::read(page).is_ok_and(|bytes| bytes.starts_with(b"DPSTATS2"));
        found = of_it.map(|page| page.path()).find(|page| is_begun(page));
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn a_process_is_seen_while_it_lives_and_only_if_it_offers() {
    let folder = folder();
    let silent = Offering::start(folder.at(), "0");
    let child = Offering::start(folder.at(), "1");
    let pid = child.0.id();
    let page = wait_for_page(folder.at(), pid);
    assert_eq!(page.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(page.parent().unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o700);
    let mut shown = Value::Null;
    let log = |shown: &Value| shown["rows"].as_array().unwrap().iter().find(|row| row["kind"] == "log").cloned();
    // A disk that others use may take no record between two looks.
    until("records are seen", || {
        shown = look(folder.at());
        // A page that is being written for long is a trouble of one look.
        shown["troubles"].as_array().unwrap().is_empty()
            && log(&shown).and_then(|row| row["per_second"].as_f64()).is_some_and(|rate| rate > 0.0)
    });
    let rows = shown["rows"].as_array().unwrap();
    let row = log(&shown).unwrap();
    assert_eq!((row["pid"].as_u64(), row["program"].as_str()), (Some(pid.into()), Some("dpipe log bench")));
    assert!(row["p99_ns"].as_u64().unwrap() > 0, "{row:#}");
    assert!(rows.iter().all(|row| row["pid"].as_u64() != Some(silent.0.id().into())), "{shown:#}");
    assert_eq!(shown["troubles"].as_array().unwrap().len(), 0, "{shown:#}");
    // No name of a file is in it.
    let text = String::from_utf8_lossy(&std::fs::read(&page).unwrap()).into_owned();
    assert!(!text.contains(folder.at().to_str().unwrap()), "{text}");
    // It is killed and cannot remove its page: the next look does.
    drop(child);
    assert!(page.exists());
    let shown = look(folder.at());
    assert!(shown["rows"].as_array().unwrap().is_empty() && !page.exists(), "{shown:#}");
}

/// A command that works until it is dropped.
struct Working(Child);

impl Working {
    fn start(runtime: &Path, arguments: &[&str]) -> Working {
        let mut command = Command::new(DPIPE);
        command.args(arguments).current_dir(runtime).env("XDG_RUNTIME_DIR", runtime).env_remove("DATAPIPES_OFFER");
        Working(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}

#[test]
fn every_command_that_moves_bytes_is_seen() {
    let folder = folder();
    // A hole, which takes no room.
    std::fs::File::create(folder.path("large")).unwrap().set_len(1 << 40).unwrap();
    let fifo = folder.path("slow");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    // Until its reader is gone.
    let writer = std::thread::spawn(move || {
        let mut pipe = datapipes_testkit::fifo_writer(&fifo).unwrap();
        while std::io::Write::write_all(&mut pipe, &b"line\n".repeat(1000)).is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    std::fs::write(folder.path("some"), vec![7; 4 << 20]).unwrap();
    for (arguments, program, kind, name, figure) in [
        (&["copy", "large", "dram:4M"][..], "dpipe copy", "pipe", "pipe copy ", "bytes_per_second"),
        (&["sort", "slow", "-o", "sorted"][..], "dpipe sort", "pipe", "sort input", "bytes_per_second"),
        (
            &["fine", "stat", "some", "--memory", "2M", "--reads", "4000000000"][..],
            "dpipe fine stat",
            "cache",
            "",
            "hit_ratio",
        ),
        (
            // What goes nowhere fills no disk.
            &["stream", "--from", "generate:1T", "--no-verify", "-o", "-"][..],
            "dpipe stream",
            "channel",
            "",
            "credits",
        ),
    ] {
        let working = Working::start(folder.at(), arguments);
        wait_for_page(folder.at(), working.0.id());
        let mut seen = Value::Null;
        until("its row has a figure", || {
            seen = look(folder.at());
            let rows = seen["rows"].as_array().unwrap();
            let is_well = seen["troubles"].as_array().unwrap().is_empty();
            is_well
                && rows.iter().any(|row| {
                    (row["pid"].as_u64(), row["program"].as_str()) == (Some(working.0.id().into()), Some(program))
                        && row["kind"] == kind
                        && row["name"].as_str().unwrap().starts_with(name)
                        && row[figure].is_number()
                })
        });
        assert_eq!(seen["troubles"].as_array().unwrap().len(), 0, "{seen:#}");
    }
    writer.join().unwrap();
}

#[test]
fn a_client_of_the_service_is_seen_and_whoever_looks_is_not() {
    use datapipes::service::{Client, ClientPlace, SharedMemory};
    let program = Path::new(DPIPE).with_file_name("dpiped");
    if !program.exists() {
        return println!("SKIPPED: a_client_of_the_service_is_seen: dpiped is not built");
    }
    // Names of sockets are short.
    let short = datapipes_testkit::TempFolder::new().unwrap();
    let socket = short.join("dpiped.sock");
    let mut command = Command::new(program);
    command.arg("--socket").arg(&socket).stdout(Stdio::null()).stderr(Stdio::null());
    let _service = Working(command.spawn().unwrap());
    let mut client = None;
    until("it serves", || {
        client = Client::connect(&socket).ok();
        client.is_some()
    });
    let client = client.unwrap();
    let shared = || SharedMemory::create(1 << 20).unwrap();
    let (source, target) = (shared(), shared());
    let ends = (ClientPlace::memory(&source), ClientPlace::memory(&target));
    let mut pipe = client.connect_pipe(&ends.0, &ends.1, &datapipes::ConnectFdOptions::default()).unwrap();
    pipe.transfer(datapipes::Span { source: 0, target: 0, len: 1 << 20 }).unwrap();
    // On a busy machine the service may answer too late for one look.
    let mut seen = Value::Null;
    let mut of_clients = Vec::new();
    until("a client is seen with what it moved", || {
        seen = look(&short);
        let rows = seen["rows"].as_array().unwrap();
        of_clients = rows.iter().filter(|row| row["kind"] == "client").cloned().collect::<Vec<_>>();
        of_clients.iter().any(|row| row["class"] == "normal" && row["p99_ns"].is_number())
    });
    let me = format!("(process {})", std::process::id());
    assert!(of_clients.iter().all(|row| row["name"].as_str().unwrap().ends_with(&me)), "{seen:#}");
}

#[test]
fn hostile_pages_harm_their_own_rows_only() {
    let hold = |path: &Path| {
        let file = std::fs::File::open(path).unwrap();
        file.lock().unwrap();
        file
    };
    let mut held = Vec::new();
    let folder = folder();
    let child = Offering::start(folder.at(), "1");
    let honest = wait_for_page(folder.at(), child.0.id());
    let pages = folder.at().join("datapipes");
    let me = std::process::id();
    let good = std::fs::read(&honest).unwrap();
    let hostile: [(&str, Vec<u8>); 6] = [
        ("1-1-0", Vec::new()),
        ("1-2-0", b"DPSTATS2".to_vec()),
        ("1-3-0", vec![0xff; 100_000]),
        ("1-4-0", good.clone()),
        ("1-5-0", [b"DPSTATS2".as_slice(), &[1; 8], &1u32.to_le_bytes(), &u32::MAX.to_le_bytes(), &[0; 40]].concat()),
        ("not-a-page", b"x".to_vec()),
    ];
    for (name, bytes) in &hostile {
        std::fs::write(pages.join(name), bytes).unwrap();
        held.push(hold(&pages.join(name)));
    }
    symlink("/etc/passwd", pages.join("1-6-0")).unwrap();
    std::fs::create_dir(pages.join("1-7-0")).unwrap();
    assert!(Command::new("mkfifo").arg(pages.join("1-8-0")).status().unwrap().success());
    // Words for the terminal, in a page that is whole.
    let started = started(me);
    let text = "{\"program\": \"\\u001b[2Jx\", \"measurements\": [{\"name\": \"datapipes_pipe_bytes_total\", \
                \"samples\": [{\"labels\": {\"pipe\": \"\\u001b]0;x\\u0007\"}, \"value\": 1}]}]}";
    for (number, text) in [(0, text), (1, "[".repeat(100_000).as_str())] {
        let own = pages.join(format!("{me}-{started}-{number}"));
        std::fs::write(&own, page(&good, me, started, text)).unwrap();
        held.push(hold(&own));
    }
    let mut shown = Value::Null;
    until("the honest process is seen", || {
        shown = look(folder.at());
        let rows = shown["rows"].as_array().unwrap();
        rows.iter().any(|row| row["kind"] == "log" && row["pid"] == child.0.id())
    });
    let rows = shown["rows"].as_array().unwrap();
    let mine: Vec<&Value> = rows.iter().filter(|row| row["pid"] == me).collect();
    assert_eq!(mine.len(), 1, "{shown:#}");
    assert!(!shown.to_string().contains("\\u001b"), "{shown}");
    assert!(shown["troubles"].as_array().unwrap().len() >= 7, "{shown:#}");
    // A page that is cut and grown while it is read.
    let cut = std::fs::File::options().write(true).open(&honest).unwrap();
    for _ in 0..20 {
        cut.set_len(10).unwrap();
        look(folder.at());
    }
    // Others may look into the folder: then it is not used.
    std::fs::set_permissions(&pages, std::fs::Permissions::from_mode(0o755)).unwrap();
    let shown = look(folder.at());
    assert!(shown["rows"].as_array().unwrap().is_empty(), "{shown:#}");
    assert!(shown["troubles"].to_string().contains("others may enter"), "{shown:#}");
}

#[test]
fn the_shell_stops_the_view_and_continues_it() {
    let folder = folder();
    let Some(tmux) = Tmux::start("top job control", folder.at(), (120, 30)) else { return };
    let _child = Offering::start(folder.at(), "1");
    let pid = || std::fs::read_to_string(folder.at().join("pid")).unwrap().trim().to_owned();
    let is_raw = |name: &str| {
        let text = std::fs::read_to_string(folder.at().join(name)).unwrap_or_default();
        text.contains("-icanon") || text.contains("-echo ")
    };
    // A shell that sets the terminal up for itself while a job is stopped, as those of people do.
    if !scene::on_path("bash") {
        return println!("SKIPPED: the_shell_stops_the_view_and_continues_it: there is no bash");
    }
    tmux.line("PS1='bash$ ' exec bash --norc --noprofile");
    tmux.wait_for("bash$");
    tmux.line("stty -a > before.txt; clear");
    tmux.line("sh -c 'echo $$ > pid; exec dpipe top --interval 0.2'");
    tmux.wait_for("by rate");
    // By its key the terminal comes back as it was, and goes again.
    tmux.key("C-z");
    tmux.wait_until(|screen| screen.contains("Stopped") && !screen.contains("by rate"));
    tmux.line("stty -a > meanwhile.txt; echo sto''pped");
    tmux.wait_for("stopped");
    assert!(!is_raw("meanwhile.txt"), "{}", std::fs::read_to_string(folder.at().join("meanwhile.txt")).unwrap());
    tmux.line("fg");
    tmux.wait_for("by rate");
    tmux.key("s");
    tmux.wait_for("by per second");
    // Another process asks it to stop: the shell gets its own screen back, too.
    assert!(Command::new("kill").args(["-TSTP", &pid()]).status().unwrap().success());
    tmux.wait_until(|screen| screen.contains("Stopped") && !screen.contains("by per second"));
    tmux.line("fg");
    tmux.wait_until(|screen| screen.contains("by per second") && !screen.contains("Stopped"));
    // A stop that it cannot see coming: the shell sets up its terminal, and the view takes it back.
    assert!(Command::new("kill").args(["-STOP", &pid()]).status().unwrap().success());
    tmux.wait_until(|screen| screen.contains("Stopped"));
    tmux.line("fg");
    tmux.wait_until(|screen| screen.contains("by per second") && !screen.contains("Stopped"));
    tmux.key("q");
    // What is typed before it has ended may go to it.
    tmux.wait_until(|screen| !screen.contains("by per second"));
    tmux.line("stty -a > after.txt; echo do''ne");
    tmux.wait_for("done");
    let text = |name: &str| std::fs::read_to_string(folder.at().join(name)).unwrap();
    assert_eq!(text("before.txt"), text("after.txt"));
}

/// When a process began, from /proc.
fn started(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().parse().unwrap()
}

/// A whole page of a process, with the rest of its head from another one.
fn page(like: &[u8], pid: u32, started: u64, text: &str) -> Vec<u8> {
    let mut page = like[..64].to_vec();
    let sum = text.bytes().fold(0xcbf2_9ce4_8422_2325u64, |s, b| (s ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    page[8..16].copy_from_slice(&2u64.to_le_bytes());
    page[16..20].copy_from_slice(&pid.to_le_bytes());
    page[20..24].copy_from_slice(&u32::try_from(text.len()).unwrap().to_le_bytes());
    page[24..32].copy_from_slice(&started.to_le_bytes());
    page[48..56].copy_from_slice(&sum.to_le_bytes());
    [page, text.as_bytes().to_vec()].concat()
}

#[test]
fn the_view_takes_keys_and_sizes_and_gives_the_terminal_back() {
    let folder = folder();
    let Some(tmux) = Tmux::start("top view", folder.at(), (120, 30)) else { return };
    let _child = Offering::start(folder.at(), "1");
    tmux.line("echo bef''ore; stty -a > before.txt; dpipe top --interval 0.2; echo code=$?; stty -a > after.txt");
    let screen = tmux.wait_for("dpipe log bench");
    assert!(screen.contains("by rate") && screen.contains("HITS") && !screen.contains("before"), "{screen}");
    tmux.key("s");
    tmux.wait_for("by per second");
    tmux.key("p");
    tmux.wait_for("PAUSED");
    tmux.key("p");
    tmux.wait_until(|screen| !screen.contains("PAUSED"));
    tmux.line("/nothing has this");
    tmux.wait_for("No row has the words");
    tmux.key("/");
    tmux.key("Escape");
    tmux.wait_for("dpipe log bench");
    tmux.resize(40, 10);
    let screen =
        tmux.wait_until(|screen| screen.contains("q quit") && screen.lines().count() <= 10 && screen.contains("log"));
    assert!(screen.lines().all(|line| line.chars().count() <= 40), "{screen}");
    tmux.resize(120, 30);
    tmux.wait_for("HITS");
    tmux.key("q");
    let screen = tmux.wait_for("code=0");
    assert!(screen.contains("before") && !screen.contains("by per second"), "{screen}");
    let text = |name: &str| std::fs::read_to_string(folder.at().join(name)).unwrap_or_default();
    until("the shell says how the terminal is", || !text("after.txt").is_empty());
    let settings = |text: String| text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(settings(text("before.txt")), settings(text("after.txt")));

    // Ctrl-C, a signal, and a panic.
    let killed =
        "(until test -s pid; do sleep 0.1; done; sleep 1; kill $(cat pid)) & sh -c 'echo $$ > pid; exec dpipe top'";
    for (turn, (line, key, code)) in
        [("dpipe top", "C-c", "code=0"), ("DPIPE_TOP_PANICS=1 dpipe top", "", "code=101"), (killed, "", "code=143")]
            .into_iter()
            .enumerate()
    {
        tmux.line("clear");
        tmux.line(&format!("{line}; echo code=$?; stty -a > after.txt; echo do''ne{turn}"));
        if !key.is_empty() {
            tmux.wait_for("by rate");
            tmux.key(key);
        }
        // What the turn before said may still be there.
        let screen = tmux.wait_for(&format!("done{turn}"));
        assert!(screen.contains(code), "{line}: {screen}");
        assert_eq!(settings(text("before.txt")), settings(text("after.txt")), "{line}");
        assert_eq!(screen.contains("as the test asked"), code == "code=101", "{screen}");
    }
}
