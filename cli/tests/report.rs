//! `--report-html`: each command's page has what it must, escapes what it is told, is written
//! whole, and can be looked at in a real browser.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod scene;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use scene::{folder, on_path};

const DPIPE: &str = env!("CARGO_BIN_EXE_dpipe");

fn dpipe(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(DPIPE).args(arguments).current_dir(folder).env("TMPDIR", folder).output().unwrap()
}

fn good(folder: &Path, arguments: &[&str]) {
    let output = dpipe(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}

/// What every page has: the bottleneck or that there is none, what was verified, memory over time,
/// bytes by primitive, routes, both schemes, a narrow one, places for the keyboard, words for
/// pictures.
const ON_EVERY_PAGE: [&str; 10] = [
    "ottleneck: ",
    "Where the time went",
    "Holds:",
    "Memory of the process",
    "Bytes by primitive",
    "prefers-color-scheme:dark",
    "max-width:40rem",
    "tabindex=\"0\"",
    "role=\"img\"",
    "The report as text",
];

/// Pages of all commands, with what must be in each.
const PAGES: [(&str, &[&str], &[&str]); 8] = [
    (
        "sort",
        &["sort", "--records", "input", "-o", "sorted", "-S", "16M", "-T", ".", "--report-html=sort.html"],
        &[
            "Threads that sort and merge",
            "waits for",
            "of the time",
            "runs",
            "What could not be used",
            "Holds:",
            "budget",
        ],
    ),
    ("small-sort", &["sort", "lines", "-o", "sorted-lines", "--report-html", "small-sort.html"], &["A sort", "Holds:"]),
    (
        "copy",
        &["copy", "input", "copied", "--verify", "--report-html", "copy.html"],
        &[
            "Verified: both ends were read again",
            "Holds:",
            "Bytes by primitive",
            "Routes",
            "because",
            "Steps that had work",
            "What would have been slower, as estimated",
        ],
    ),
    (
        "stream",
        &[
            "stream",
            "--from",
            "file:input",
            "--through",
            "gzip=1",
            "--output",
            "streamed",
            "--report-html",
            "stream.html",
        ],
        &[
            "Credits in use",
            "gzip=1",
            "CRC-32",
            "Holds:",
            "Memory and processor",
            "Bytes by primitive",
            "What was not chosen, and why",
            "copy from shared memory",
            "--placement=auto estimates all three",
        ],
    ),
    (
        "fine",
        &["fine", "stat", "input", "--reads", "20000", "--memory", "4M", "--report-html", "fine.html"],
        &["Hits", "of the time", "Size classes", "What was rejected, and why", "Holds:", "What was verified"],
    ),
    (
        "log",
        &["log", "bench", "--dir", ".", "--seconds", "0.3", "--report-html", "log.html"],
        &[
            "Records that became durable",
            "syncs",
            "making the first segment",
            "Holds:",
            "99.9%",
            "Bytes by primitive",
            "What was chosen, and why",
        ],
    ),
    (
        "checkpoint",
        &["checkpoint", "bench", "--dir", ".", "--size", "16M", "--report-html", "checkpoint.html"],
        &[
            "Holds:",
            "They were restored in",
            "checksum",
            "Shares of the time of the save",
            "Shares of the time of the restore",
            "Bytes by primitive",
            "What was chosen, and why",
        ],
    ),
    (
        "demo",
        &["demo", "--size", "20MB", "--memory", "16M", "--dir", ".", "--report-html", "demo.html"],
        &["Every check holds", "The same job", "Threads that sort and merge", "Both programs"],
    ),
];

fn fixtures(folder: &Path) {
    good(folder, &["gen", "records", "--size", "40M", "input"]);
    let lines: String = (0..1000).rev().map(|n| format!("line {n}\n")).collect();
    fs::write(folder.join("lines"), lines).unwrap();
}

#[test]
fn every_page_has_its_parts_and_each_browser_shows_them() {
    let folder = folder();
    let folder = folder.at();
    fixtures(folder);
    for (name, arguments, wanted) in PAGES {
        good(folder, arguments);
        let html = fs::read_to_string(folder.join(format!("{name}.html"))).unwrap();
        assert!(html.starts_with("<!DOCTYPE html>") && html.ends_with("</html>\n"), "{name}");
        // A job of a millisecond has no course, and no bottleneck.
        let parts = if name == "small-sort" { &[][..] } else { &ON_EVERY_PAGE[..] };
        for part in parts.iter().chain(wanted) {
            assert!(html.contains(part), "{name}: no `{part}`");
        }
        for foreign in ["<script", "http://", "https://", "NaN", "src="] {
            assert!(!html.contains(foreign), "{name}: {foreign}");
        }
        assert!(html.len() < 2 << 20, "{name}: {} bytes", html.len());
    }
    assert_eq!(
        fs::read_dir(folder).unwrap().flatten().filter(|f| f.file_name().to_string_lossy().starts_with('.')).count(),
        0
    );
    pages_of_the_docs_are_as_those_of_today(folder);
    look_in_browser(folder);
}

/// The headings, notes and captions of a page, without units, which depend on the figures.
fn words_of(html: &str) -> Vec<String> {
    let (mut words, mut before) = (Vec::new(), "");
    for piece in html.split('<').skip(1) {
        let Some((tag, text)) = piece.split_once('>') else { continue };
        let name = tag.split(' ').next().unwrap();
        match name {
            "h2" => words.push(text.to_owned()),
            "p" if before == "/h2" => words.push(text.to_owned()),
            "caption" => words.push(text.rsplit_once(", ").map_or(text, |(words, _)| words).to_owned()),
            _ => {}
        }
        before = name;
    }
    words
}

/// `cargo xtask pictures` makes them again.
fn pages_of_the_docs_are_as_those_of_today(folder: &Path) {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/seeing");
    let read = |path: PathBuf| words_of(&fs::read_to_string(path).unwrap());
    for (shown, made) in [("slow-disk", "sort"), ("starved-merge", "sort"), ("verified-copy", "copy")] {
        let (shown, made) = (read(docs.join(format!("{shown}.html"))), read(folder.join(format!("{made}.html"))));
        assert!(made.len() > 10, "{made:?}");
        assert_eq!(shown, made, "docs/seeing is older than the pages: `cargo xtask pictures` makes it again");
    }
}

/// Loads pages in a headless Chromium: no error, no wider than a narrow screen, and a picture wide
/// and narrow, light and dark. The pictures stay where `DATAPIPES_SCREENSHOTS` says, for a person
/// to judge.
fn look_in_browser(folder: &Path) {
    let Some(chromium) = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| on_path(name))
    else {
        return println!("SKIPPED: pages in a browser: there is no chromium");
    };
    let kept = std::env::var_os("DATAPIPES_SCREENSHOTS").map(PathBuf::from);
    // One page that loads in both is enough for CI; all of them where pictures are wanted.
    let pages: Vec<&str> = match &kept {
        Some(_) => PAGES.iter().map(|page| page.0).collect(),
        None => vec!["sort"],
    };
    for name in pages {
        let url = format!("file://{}/{name}.html", folder.display());
        let dom = browse(chromium, folder, &["--dump-dom", &url]);
        let text = String::from_utf8_lossy(&dom.stdout).into_owned();
        assert!(text.contains("<figure>") && text.contains("</footer>"), "{name}: {dom:?}");
        let said = String::from_utf8_lossy(&dom.stderr).into_owned();
        assert!(!said.contains("CONSOLE") && !said.contains("Content Security"), "{name}: {said}");
        assert!(width_in_narrow_frame(chromium, folder, name) <= NARROW, "{name} is wider than the screen");
        for width in [1200u32, NARROW] {
            let mut pictures = Vec::new();
            // A window has a least width, a frame has none.
            let frame = folder.join(format!("{name}-{width}.html"));
            let holder = format!(
                "<!DOCTYPE html><meta name=color-scheme content='light dark'><body style=margin:0>\
                 <iframe style='border:0;width:{width}px;height:4000px' src='{name}.html'></iframe>"
            );
            fs::write(&frame, holder).unwrap();
            for (scheme, number) in [("dark", 0), ("light", 1)] {
                let picture = folder.join(format!("{name}-{width}-{scheme}.png"));
                let output = browse(
                    chromium,
                    folder,
                    &[
                        &format!("--blink-settings=preferredColorScheme={number}"),
                        &format!("--window-size={},4000", width.max(500)),
                        &format!("--screenshot={}", picture.display()),
                        &format!("file://{}", frame.display()),
                    ],
                );
                let bytes = fs::read(&picture).unwrap_or_else(|e| panic!("{name}: {e}: {output:?}"));
                assert!(bytes.len() > 20_000, "{name} {width} {scheme}: an empty picture of {} bytes", bytes.len());
                if let Some(kept) = &kept {
                    fs::create_dir_all(kept).unwrap();
                    fs::write(kept.join(picture.file_name().unwrap()), &bytes).unwrap();
                }
                pictures.push(bytes);
            }
            assert!(pictures[0] != pictures[1], "{name} {width}: the dark scheme is the light one");
        }
    }
}

/// The columns of a narrow screen.
const NARROW: u32 = 400;

/// How wide a page is in a frame as wide as a narrow screen: what does not fit makes it wider.
fn width_in_narrow_frame(chromium: &str, folder: &Path, name: &str) -> u32 {
    let html = fs::read_to_string(folder.join(format!("{name}.html"))).unwrap();
    let inside = html.replace('&', "&amp;").replace('"', "&quot;");
    let holder = folder.join(format!("{name}-measured.html"));
    let text = format!(
        "<!DOCTYPE html><body onload=\"document.body.dataset.wide=frames[0].document.documentElement.scrollWidth\">\
         <iframe style=\"border:0;width:{NARROW}px;height:4000px\" srcdoc=\"{inside}\"></iframe>"
    );
    fs::write(&holder, text).unwrap();
    let dom = browse(chromium, folder, &["--dump-dom", &format!("file://{}", holder.display())]);
    let dom = String::from_utf8_lossy(&dom.stdout).into_owned();
    let wide = dom.split("data-wide=\"").nth(1).and_then(|rest| rest.split('"').next());
    wide.unwrap_or_else(|| panic!("{name}: no width in {dom:.300}")).parse().unwrap()
}

fn browse(chromium: &str, folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "120", chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]);
    command.args(["--enable-logging=stderr", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions"]);
    command.arg(format!("--user-data-dir={}", folder.join("browser").display())).env("HOME", folder);
    command.args(arguments).output().unwrap()
}

#[test]
fn names_from_outside_are_words_and_not_markup() {
    use std::os::unix::ffi::OsStrExt;
    let folder = folder();
    let folder = folder.at();
    let odd = std::ffi::OsStr::from_bytes(b"a<script>alert(1)<\\script>\n\xff\"'&");
    fs::write(folder.join(odd), vec![b'x'; 300_000]).unwrap();
    let run = |arguments: &[&std::ffi::OsStr]| {
        let output = Command::new(DPIPE).args(arguments).current_dir(folder).env("TMPDIR", folder).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    let words: [&std::ffi::OsStr; 6] =
        ["sort".as_ref(), odd, "-o".as_ref(), "sorted<b>".as_ref(), "--report-html".as_ref(), "sort.html".as_ref()];
    run(&words);
    fs::write(folder.join("b<script>"), vec![b'x'; 300_000]).unwrap();
    run(&["copy".as_ref(), "b<script>".as_ref(), "c<i>".as_ref(), "--report-html".as_ref(), "copy.html".as_ref()]);
    for page in ["sort.html", "copy.html"] {
        let html = fs::read_to_string(folder.join(page)).unwrap();
        assert!(!html.contains("<script") && !html.contains("<b>") && !html.contains("<i>"), "{page}");
        assert!(html.contains("&lt;"), "{page}");
    }
}

#[test]
fn a_page_is_whole_or_not_there() {
    let folder = folder();
    let folder = folder.at();
    fs::write(folder.join("lines"), "b\na\n").unwrap();
    // Where the page cannot be written, nothing is done.
    let output = dpipe(folder, &["sort", "lines", "-o", "sorted", "--report-html=no/such/page.html"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(!folder.join("sorted").exists());
    // Where the work fails, there is no page, and an old one stays.
    fs::write(folder.join("page.html"), "old").unwrap();
    let output = dpipe(folder, &["sort", "--u64", "lines", "-o", "sorted", "--report-html=page.html"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert_eq!(fs::read_to_string(folder.join("page.html")).unwrap(), "old");
    assert_eq!(fs::read_dir(folder).unwrap().count(), 2);
    // The same as JSON, and to a stream.
    good(folder, &["sort", "lines", "-o", "sorted", "--report-html=page.json"]);
    let page: serde_json::Value = serde_json::from_slice(&fs::read(folder.join("page.json")).unwrap()).unwrap();
    assert_eq!(page["title"], "A sort");
    let output = dpipe(folder, &["sort", "lines", "-o", "sorted", "--report-html=/dev/stdout"]);
    assert!(output.stdout.starts_with(b"<!DOCTYPE html>"), "{output:?}");
}

#[test]
fn a_signal_after_the_work_still_ends_the_program() {
    use std::os::fd::AsRawFd;
    use std::os::unix::process::ExitStatusExt;
    let folder = folder();
    std::fs::write(folder.path("in"), "b\na\n").unwrap();
    let fifo = folder.path("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    // A reader that takes nothing, of a pipe that is shorter than a page.
    let reader = std::fs::File::options().read(true).write(true).open(&fifo).unwrap();
    rustix::pipe::fcntl_setpipe_size(&reader, 4096).unwrap();
    assert!(reader.as_raw_fd() > 2);
    for (arguments, output) in [
        (&["sort", "in", "-o", "sorted", "--report-html", "pipe"][..], "sorted"),
        (&["copy", "in", "copied", "--report-html", "pipe"][..], "copied"),
    ] {
        let mut command = Command::new(DPIPE);
        command.args(arguments).current_dir(folder.at()).stderr(std::process::Stdio::piped());
        let child = command.spawn().unwrap();
        datapipes_testkit::until("the output has its name", || folder.path(output).exists());
        datapipes_testkit::until("the page fills the pipe", || {
            rustix::io::ioctl_fionread(&reader).is_ok_and(|bytes| bytes >= 4096)
        });
        scene::streams::signal(&child, rustix::process::Signal::INT);
        let ended = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.signal(), Some(libc::SIGINT), "{arguments:?}: {said}");
        assert_eq!(std::fs::read(folder.path(output)).unwrap().len(), 4);
        // For the next one.
        rustix::io::read(&reader, &mut [0; 8192]).unwrap();
    }
}

#[test]
fn a_named_pipe_that_nobody_reads_is_refused_before_the_work() {
    let folder = folder();
    std::fs::write(folder.path("in"), "b\na\n").unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, folder.path("pipe"), rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
        .unwrap();
    let refused = dpipe(folder.at(), &["copy", "in", "out", "--report-html", "pipe"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("start its reader first"));
    assert!(!folder.path("out").exists());
}

/// The sentence at the top of the page about a command line of a shell.
fn sentence(at: &Path, line: &str) -> String {
    let programs = Path::new(DPIPE).parent().unwrap().display();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap());
    let mut shell = Command::new("bash");
    shell.args(["-c", line]).current_dir(at).env("PATH", path).env("TMPDIR", at);
    let ended = shell.output().unwrap();
    assert!(ended.status.success(), "{line}: {ended:?}");
    let page: serde_json::Value = serde_json::from_slice(&fs::read(at.join("p.json")).unwrap()).unwrap();
    fs::remove_file(at.join("p.json")).unwrap();
    page["headline"]["text"].as_str().unwrap().to_owned()
}

#[test]
fn the_sentence_names_who_was_waited_for() {
    let folder = folder();
    let at = folder.at();
    let lines: String = (0..100_000).map(|n| format!("{}\n", n * 7919 % 100_000)).collect();
    fs::write(at.join("lines"), lines).unwrap();
    fs::write(at.join("few"), "b\na\n").unwrap();
    good(at, &["sort", "lines", "-o", "sorted"]);
    for (line, blamed) in [
        // The program begins late; it collects its input; nothing comes out of it at all.
        ("stream --from file:lines --through exec:'sleep 2; cat' --block-size 64K -o out", "into sleep"),
        ("stream --from file:lines --through exec:'sort -r | (sleep 2; cat)' -o out", "into sort"),
        ("stream --from file:lines --through exec:'sleep 2; cat > /dev/null' --block-size 1M -o out", "into sleep"),
        // An origin whose first bytes are late, and most of whose time is before a block is full.
        ("stream --from - -o out < <(sleep 3; cat few)", "source: no channel was full"),
        ("stream --from - -o out < <(for n in 1 2 3 4; do cat few; sleep 1; done)", "source: no channel was full"),
        ("fine stat lines --load 100@stdin --batch 1 --memory 2M < <(sleep 3; seq 0 4096 40960)", "the list of reads"),
        // A named pipe whose writer is late.
        ("sort <(sleep 3; cat few) -o out", "the other program, which writes the input"),
        ("sort few <(sleep 3; cat few) -o out", "which writes the input"),
        ("sort -m sorted <(sleep 3; sort few) -o out", "which writes an input"),
    ] {
        // A disk that takes as long as the sleep would be blamed instead.
        let mut texts = Vec::new();
        let named = [1, 4].into_iter().any(|times| {
            let line = line.replace("sleep 1", &format!("sleep {times}"));
            let line = line.replace("sleep 2", &format!("sleep {}", 2 * times));
            let line = line.replace("sleep 3", &format!("sleep {}", 3 * times));
            let text = sentence(at, &format!("dpipe {line} --report-html p.json"));
            let verdict = text.split("The bottleneck: ").nth(1).unwrap_or("").split(';').next().unwrap();
            let named = verdict.contains(blamed);
            texts.push(text);
            named
        });
        assert!(named, "{line}: {texts:#?}");
    }
    // There is no other program where the standard output is a file.
    let text = sentence(at, "dpipe sort -S 2M lines --report-html p.json > out");
    assert!(!text.contains("other program"), "{text}");
}

/// A command that is stopped, and goes on, does not blame what it waited for when it was stopped.
#[test]
fn a_stop_is_nobodys_fault() {
    if !Path::new("/proc/thread-self/schedstat").exists() {
        println!("SKIPPED: a_stop_is_nobodys_fault: the kernel does not say how long a thread waited for a core");
        return;
    }
    let folder = folder();
    let at = folder.at();
    // It is stopped while it works, however long it took to begin.
    let run = "dpipe log bench --dir . --seconds 10 --report-html p.json & until ls dpipe-log-bench-*/*.log || ! kill -0 \
               $!; do sleep 0.01; done; sleep 0.3; kill -STOP $!; sleep 12; kill -CONT $!; wait $!";
    let text = sentence(at, run);
    let part = text.split("it was stopped, or the host took its cores").nth(1).unwrap_or_else(|| panic!("{text}"));
    let percent: f64 = part.trim_start_matches([',', ' ']).split('%').next().unwrap().parse().unwrap();
    assert!(percent >= 50.0, "{text}");
}

/// A control group that may use a tenth of a core; removed at the end.
struct QuotaGroup(PathBuf);

impl QuotaGroup {
    /// Makes one in a tree of version 1 or 2, or says why it cannot be.
    fn make() -> Result<QuotaGroup, String> {
        let name = format!("dpipe-quota-{}", std::process::id());
        let unified = Path::new("/sys/fs/cgroup");
        let controllers = fs::read_to_string(unified.join("cgroup.controllers")).unwrap_or_default();
        let (parent, limits): (_, &[(&str, &str)]) = match controllers.split_whitespace().any(|name| name == "cpu") {
            true => (unified.to_owned(), &[("cpu.max", "10000 100000")]),
            false => (unified.join("cpu"), &[("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", "10000")]),
        };
        let group = QuotaGroup(parent.join(name));
        let failed = |e: std::io::Error| format!("{}: {e}", group.0.display());
        fs::create_dir(&group.0).map_err(failed)?;
        for (file, limit) in limits {
            fs::write(group.0.join(file), limit).map_err(failed)?;
        }
        // A process may be kept from going there.
        let go = format!("echo $$ > {}/cgroup.procs", group.0.display());
        let went = Command::new("bash").args(["-c", &go]).output().map_err(failed)?;
        match went.status.success() {
            true => Ok(group),
            false => Err(String::from_utf8_lossy(&went.stderr).into_owned()),
        }
    }
}

impl Drop for QuotaGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// A limit of a container is what it says, not what the steps waited for meanwhile.
#[test]
fn a_quota_of_processor_time_is_named() {
    let group = match QuotaGroup::make() {
        Ok(group) => group,
        Err(why) => return println!("SKIPPED: a_quota_of_processor_time_is_named: {why}"),
    };
    let folder = folder();
    let at = folder.at();
    let lines: String = (0..200_000).map(|n| format!("{}\n", n * 7919 % 200_000)).collect();
    fs::write(at.join("lines"), lines).unwrap();
    // The shell goes there, and the command with it.
    let go = format!("echo $$ > {}/cgroup.procs", group.0.display());
    let text = sentence(at, &format!("{go}; exec dpipe sort -S 2M lines -o out --report-html p.json"));
    println!("{text}");
    assert!(text.contains("the limit on processor time"), "{text}");
}

/// The comparison of a copy is a part of the picture, and files of `fine stat` have a section each.
#[test]
fn nothing_that_was_done_is_left_out() {
    let folder = folder();
    let at = folder.at();
    fixtures(at);
    good(at, &["copy", "input", "copied", "--verify", "--report-html", "p.html"]);
    assert!(fs::read_to_string(at.join("p.html")).unwrap().contains("comparison of both ends"));
    let files = ["fine", "stat", "input", "copied", "--reads", "4000", "--memory", "4M", "--report-html", "f.html"];
    good(at, &files);
    let page = fs::read_to_string(at.join("f.html")).unwrap();
    assert!(
        page.contains("Bytes by primitive, and routes: input")
            && page.contains("The cache: input")
            && page.contains("The cache: copied")
    );
    let mut merged = vec!["sort", "-o", "sorted", "--report-html", "s.html"];
    fs::write(at.join("short"), "b\na\n").unwrap();
    merged.extend(["short"; 40]);
    good(at, &merged);
    let page = fs::read_to_string(at.join("s.html")).unwrap();
    assert!(page.contains("input (40 of them)") && page.contains("for so short a file"));
    let mut many = vec!["stream", "--from", "file:input", "-o", "out", "--report-html", "t.html", "--through"];
    let ten = ["forward"; 10].join(",");
    many.extend([ten.as_str(), "--json"]);
    let ended = dpipe(at, &many);
    assert!(ended.status.success(), "{ended:?}");
    // A device that waits for a next stream takes nothing back of what it told.
    let runs: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    let edges = runs.pointer("/runs/0/edges").or_else(|| runs.pointer("/0/edges")).or_else(|| runs.pointer("/edges"));
    let edges = edges.and_then(|edges| edges.as_array()).unwrap_or_else(|| panic!("{runs}"));
    let blocks: Vec<u64> = edges.iter().map(|edge| edge["blocks"].as_u64().unwrap()).collect();
    assert!(blocks.len() == 11 && blocks.iter().all(|count| *count == blocks[0] && *count > 0), "{blocks:?}");
    let page = fs::read_to_string(at.join("t.html")).unwrap();
    assert!(page.contains("of the 8 of 11 that were fullest") && page.contains("5: forward to forward"));
}
