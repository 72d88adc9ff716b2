//! Bars, colours and Ctrl-C in a real terminal.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod scene;

use scene::folder;
use scene::tmux::Tmux;

/// A command whose reader takes nothing until there is a file `go`: its progress is on the
/// terminal meanwhile.
const SLOW: &str = "dpipe gen u64 --size 1G - | (until test -e go; do sleep 0.1; done; cat > /dev/null)";

/// The lines with progress: of what the shell echoes only its first lines are known.
fn progress_lines(screen: &str) -> Vec<&str> {
    screen.lines().filter(|line| line.contains("writing") && line.contains('%')).collect()
}

#[test]
fn a_bar_fits_its_terminal_and_leaves_nothing() {
    for width in [20u16, 40, 80] {
        let folder = folder();
        let Some(tmux) = Tmux::start("bars", folder.at(), (width, 24)) else { return };
        tmux.line("clear");
        tmux.line(&format!("sh -c '{SLOW}' ; echo EN''D"));
        let screen = tmux.wait_until(|screen| !progress_lines(screen).is_empty());
        // A line that wraps would leave a row each time that it is drawn.
        for _ in 0..10 {
            let screen = tmux.screen();
            assert!(progress_lines(&screen).len() <= 1 || screen.contains("END"), "{screen}");
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        let line = progress_lines(&screen)[0];
        assert!(line.trim_end().chars().count() < usize::from(width), "{line:?}");
        assert_eq!(line.contains('['), width >= 40, "{line:?}");
        std::fs::write(folder.path("go"), "").unwrap();
        let screen = tmux.wait_for("END");
        assert!(progress_lines(&screen).is_empty() && !screen.contains("writing"), "{screen}");
    }
}

#[test]
fn colours_obey_their_variables() {
    let folder = folder();
    let Some(tmux) = Tmux::start("colors", folder.at(), (80, 24)) else { return };
    for (variables, colored) in [("", true), ("NO_COLOR=1 ", false), ("CLICOLOR=0 ", false), ("NO_COLOR= ", true)] {
        tmux.line("clear");
        tmux.line(&format!("{variables}sh -c '{SLOW}' ; echo EN''D"));
        tmux.wait_until(|screen| !progress_lines(screen).is_empty());
        assert_eq!(tmux.colored_screen().contains("\u{1b}[36m"), colored, "{variables}: {}", tmux.colored_screen());
        tmux.key("C-c");
        // Nothing of it is left that could be taken for the next one's.
        tmux.line("clear; echo re''ady");
        tmux.wait_until(|screen| screen.contains("ready") && progress_lines(screen).is_empty());
    }
    // A terminal that cannot move its cursor gets no bar.
    tmux.line("clear");
    tmux.line(&format!(
        "TERM=dumb sh -c '{}' ; echo EN''D",
        SLOW.replace("until test -e go; do sleep 0.1; done", "sleep 1")
    ));
    let screen = tmux.wait_for("END");
    assert!(progress_lines(&screen).is_empty(), "{screen}");
}

#[test]
fn a_sync_that_takes_long_is_named() {
    let folder = folder();
    if !scene::can_hold_calls() {
        println!("SKIPPED: a_sync_that_takes_long_is_named: strace is not installed, or may not trace");
        return;
    }
    let Some(tmux) = Tmux::start("sync", folder.at(), (80, 24)) else { return };
    let held = "fsync,fdatasync,syncfs";
    let slow = format!("strace -f -qq -o calls -e trace={held} -e inject={held}:delay_enter=3000000");
    tmux.line("dpipe gen records --size 64M in");
    for work in ["copy in copied", "sort --records -S 16M in -o sorted"] {
        tmux.line(&format!("clear; {slow} dpipe {work}; echo EN''D"));
        let screen = tmux.wait_until(|screen| screen.lines().any(|line| line.starts_with("syncing")));
        let line = screen.lines().find(|line| line.starts_with("syncing")).unwrap();
        assert!(line.trim_end().ends_with(" s") && !line.contains("left"), "{screen}");
        let screen = tmux.wait_for("END");
        assert!(!screen.contains("syncing"), "{screen}");
    }
}

#[test]
fn an_interrupt_says_what_was_undone() {
    let folder = folder();
    let Some(tmux) = Tmux::start("interrupt", folder.at(), (100, 24)) else { return };
    std::fs::write(folder.at().join("out"), "before").unwrap();
    tmux.line("mkfifo fifo; sleep 100 > fifo &");
    tmux.line("dpipe sort --progress fifo -o out");
    tmux.wait_for("sorting");
    tmux.key("C-c");
    tmux.wait_for("dpipe sort: stopped by Ctrl-C; the output is as it was before");
    tmux.line("echo code=$?");
    tmux.wait_for("code=130");
    assert_eq!(std::fs::read_to_string(folder.at().join("out")).unwrap(), "before");
}

#[test]
fn each_command_says_what_it_undid() {
    let folder = folder();
    let Some(tmux) = Tmux::start("undone", folder.at(), (100, 24)) else { return };
    // Holes, which take no room. Their copies would, so one of them is not too large.
    for (name, len) in [("endless", 1 << 40), ("large", 6 << 30)] {
        std::fs::File::create(folder.at().join(name)).unwrap().set_len(len).unwrap();
    }
    std::fs::write(folder.at().join("copied"), "before").unwrap();
    for (line, begun, undone) in [
        ("copy large copied", &["copying"][..], "copied is as it was before"),
        ("copy endless dram:4M", &["copying"], "nothing is left behind"),
        ("stream --from generate:1T --no-verify -o copied", &["credits"], "copied is as it was before"),
        ("fine stat endless --reads 4000000000", &["%"], "nothing is left behind"),
        ("log bench --dir . --seconds 1000", &["appending"], "the log of the measurement was removed"),
        (
            "checkpoint bench --dir . --size 512M",
            &["making bytes", "saving", "restoring"],
            "the checkpoint of the measurement was removed",
        ),
        ("demo --dir . --size 500M", &["%"], "the demo's files were removed"),
    ] {
        tmux.line("clear");
        tmux.line(&format!("dpipe {line}"));
        tmux.wait_until(|screen| begun.iter().any(|word| screen.contains(word)));
        tmux.key("C-c");
        tmux.wait_for(&format!("stopped by Ctrl-C; {undone}"));
        tmux.line("echo co''de=$?");
        tmux.wait_for("code=130");
        let mut left: Vec<String> = std::fs::read_dir(folder.at())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !["tmux.sock", "datapipes"].contains(&name.as_str()))
            .collect();
        left.sort();
        assert_eq!(left, ["copied", "endless", "large"], "{line}");
        assert_eq!(std::fs::read_to_string(folder.at().join("copied")).unwrap(), "before", "{line}");
    }
}

#[test]
fn an_interrupt_after_the_work_says_that_it_is_done() {
    let folder = folder();
    let Some(tmux) = Tmux::start("late interrupt", folder.at(), (100, 24)) else { return };
    std::fs::write(folder.path("in"), "b\na\n").unwrap();
    let fifo = folder.path("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    // A reader that takes nothing, of a pipe that is shorter than a page.
    let reader = std::fs::File::options().read(true).write(true).open(&fifo).unwrap();
    rustix::pipe::fcntl_setpipe_size(&reader, 4096).unwrap();
    tmux.line("dpipe sort in -o out --report-html fifo");
    datapipes_testkit::until("the page fills the pipe", || {
        rustix::io::ioctl_fionread(&reader).is_ok_and(|bytes| bytes >= 4096)
    });
    tmux.key("C-c");
    tmux.wait_for("dpipe sort: stopped by Ctrl-C; the work is done");
    tmux.line("echo code=$?");
    tmux.wait_for("code=130");
    assert_eq!(std::fs::read_to_string(folder.path("out")).unwrap(), "a\nb\n");
}
