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
        &["Verified: both ends were read again", "Holds:", "Bytes by primitive", "Routes", "because"],
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
        &["Credits in use", "gzip=1", "CRC-32", "Holds:"],
    ),
    (
        "fine",
        &["fine", "stat", "input", "--reads", "20000", "--memory", "4M", "--report-html", "fine.html"],
        &["Hits", "of the time", "Size classes"],
    ),
    (
        "log",
        &["log", "bench", "--dir", ".", "--seconds", "0.3", "--report-html", "log.html"],
        &["Records that became durable", "syncs", "Holds:", "99.9%"],
    ),
    (
        "checkpoint",
        &["checkpoint", "bench", "--dir", ".", "--size", "16M", "--report-html", "checkpoint.html"],
        &["Holds:", "restored", "checksum"],
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
        for part in wanted {
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
    look_in_browser(folder);
}

/// Loads each page in a headless Chromium: no error, and a picture wide and narrow, light and dark.
/// The pictures stay where `DATAPIPES_SCREENSHOTS` says, for a person to judge.
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
        for width in [1200u32, 400] {
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
                    fs::write(kept.join(picture.file_name().unwrap()), bytes).unwrap();
                }
            }
        }
    }
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
fn a_file_of_an_option_is_not_what_the_command_reads_or_writes() {
    let folder = folder();
    let at = folder.at();
    std::fs::write(at.join("in"), "b\na\n").unwrap();
    std::fs::hard_link(at.join("in"), at.join("other")).unwrap();
    for option in ["--report-html", "--metrics"] {
        for arguments in [
            &["copy", "in", "out", option, "in"][..],
            &["copy", "in", "out", option, "out"],
            &["copy", "in", "out", option, "other"],
            &["copy", "in", ".", option, "./in"],
            &["sort", "in", "-o", "out", option, "in"],
            &["sort", "in", "-o", "out", option, "./out"],
            &["sort", "in", option, "other"],
            &["stream", "--from", "file:in", "--output", "out", option, "in"],
            &["stream", "--from", "file:in", "--output", "out", option, "out"],
            &["fine", "stat", "in", "--reads", "1", option, "in"],
        ] {
            let refused = dpipe(at, arguments);
            let words = String::from_utf8_lossy(&refused.stderr);
            assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {words}");
            assert!(words.contains(option) && words.contains("the same file"), "{arguments:?}: {words}");
            assert_eq!(std::fs::read(at.join("in")).unwrap(), b"b\na\n", "{arguments:?}");
            assert!(!at.join("out").exists(), "{arguments:?}");
        }
    }
    let twice = dpipe(at, &["sort", "in", "-o", "out", "--report-html", "x", "--metrics", "x"]);
    assert_eq!(twice.status.code(), Some(2));
}

#[test]
fn a_page_for_a_descriptor_keeps_what_is_there() {
    let folder = folder();
    std::fs::write(folder.path("in"), "b\na\n").unwrap();
    std::fs::write(folder.path("log"), "precious\n").unwrap();
    let log = std::fs::File::options().append(true).open(folder.path("log")).unwrap();
    let mut sort = std::process::Command::new(env!("CARGO_BIN_EXE_dpipe"));
    sort.current_dir(folder.at()).args(["sort", "in", "--report-html", "/dev/stdout"]).stdout(log);
    assert!(sort.status().unwrap().success());
    let text = std::fs::read_to_string(folder.path("log")).unwrap();
    assert!(text.starts_with("precious\na\nb\n<!DOCTYPE html>"), "{}", &text[..text.len().min(80)]);
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
