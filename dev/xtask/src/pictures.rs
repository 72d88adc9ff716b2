//! `cargo xtask pictures [DIR]`: makes the pages of docs/seeing again, and pictures of them, for a
//! person to judge.
//!
//! What each page is about is made here: a disk is held to a rate, and io_uring is refused. So it
//! needs root, and a browser for the pictures.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::slow_disk::{DiskRates, SlowDisk};
use crate::{TaskResult, steps};

/// Bytes of the input.
const INPUT: &str = "168MB";
/// The rate of the slow disk.
const SLOW: u64 = 20_000_000;
/// A rate that no disk here reaches.
const FAST: u64 = 100_000_000_000;
/// A picture in the repository is no larger: it is cut at its end if it is.
const MAX_BYTES: u64 = 150_000;

/// How a page is looked at: the ending of the picture's name, the width, the scheme's number for
/// Chromium.
const LOOKS: [(&str, u32, u32); 4] =
    [("light", 1000, 1), ("dark", 1000, 0), ("narrow-light", 400, 1), ("narrow-dark", 400, 0)];
/// What of these is kept for each page.
const KEPT: [&str; 2] = ["light", "narrow-dark"];

pub(crate) fn run(args: &[String]) -> TaskResult<()> {
    let target = match args {
        [] => steps::root().join("docs/seeing"),
        [dir] => std::path::absolute(dir)?,
        _ => return Err("usage: cargo xtask pictures [DIR]".into()),
    };
    std::fs::create_dir_all(&target)?;
    // The rates on the pages are those of a program as users have it.
    let programs = ["-p", "dpipe", "--bin", "dpipe", "-p", "datapipes-testkit", "--example", "without_io_uring"];
    steps::finish(steps::cargo(&["build", "--release"]).args(programs))?;
    let folder = std::env::temp_dir().join(format!("dpipe-pictures-{}", std::process::id()));
    let work = Work { folder, programs: steps::root().join("target/release") };
    std::fs::create_dir_all(&work.folder)?;
    let made = work.pages(&target).and_then(|pages| pictures(&target, &pages));
    std::fs::remove_dir_all(&work.folder)?;
    made
}

/// The folder to work in, and that of the programs.
struct Work {
    folder: PathBuf,
    programs: PathBuf,
}

impl Work {
    /// Makes the pages; returns their names.
    fn pages(&self, target: &Path) -> TaskResult<Vec<&'static str>> {
        let page = |name: &str| format!("--report-html={}", target.join(format!("{name}.html")).display());
        steps::finish(self.command().args(["gen", "records", "--size", INPUT, "input"]))?;
        let mut made = Vec::new();
        let sorts = [
            ("slow-disk", DiskRates { reads: FAST, writes: SLOW }, "slow-disk/sorted"),
            ("starved-merge", DiskRates { reads: SLOW, writes: FAST }, "sorted"),
        ];
        for (name, rates, output) in sorts {
            match SlowDisk::make(&self.folder, 600_000_000, rates) {
                Ok(disk) => {
                    let mut sort = disk.shell();
                    sort.arg(self.programs.join("dpipe")).args([
                        "sort",
                        "--records",
                        "-S",
                        "32M",
                        "--spill-compression=off",
                    ]);
                    sort.args(["input", "-T", "slow-disk", "-o", output]).arg(page(name)).current_dir(&self.folder);
                    steps::finish(&mut sort)?;
                    made.push(name);
                }
                Err(why) => println!("SKIPPED: {name}: no disk can be held to a rate here: {why}"),
            }
        }
        let mut refused = Command::new(self.programs.join("examples/without_io_uring"));
        let [input, copy] = ["input", "copy"].map(|name| self.folder.join(name));
        refused.arg(self.programs.join("dpipe")).arg("copy").args([&input, &copy]).arg(page("fallback"));
        steps::finish(&mut refused)?;
        steps::finish(self.command().args(["copy", "input", "copy", "--verify"]).arg(page("verified-copy")))?;
        made.extend(["fallback", "verified-copy"]);
        Ok(made)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.programs.join("dpipe"));
        command.current_dir(&self.folder);
        command
    }
}

/// Takes the pictures. All of them go to a folder of the build, and some beside the pages.
fn pictures(target: &Path, pages: &[&str]) -> TaskResult<()> {
    let browsers = ["chromium", "chromium-browser", "google-chrome"];
    let Some(browser) = browsers.into_iter().find(|name| steps::succeeds(Command::new(name).arg("--version"))) else {
        println!("SKIPPED: pictures: there is no chromium");
        return Ok(());
    };
    let all = steps::root().join("target/pictures");
    std::fs::create_dir_all(&all)?;
    for page in pages {
        let html = target.join(format!("{page}.html"));
        for (look, width, scheme) in LOOKS {
            let picture = all.join(format!("{page}-{look}.png"));
            take(browser, (&html, &all), (width, 4000), scheme, &picture)?;
            println!("{}: {} bytes", picture.display(), std::fs::metadata(&picture)?.len());
            if !KEPT.contains(&look) {
                continue;
            }
            let kept = target.join(format!("{page}-{look}.png"));
            let mut height = 1500;
            take(browser, (&html, &all), (width, height), scheme, &kept)?;
            while std::fs::metadata(&kept)?.len() > MAX_BYTES && height > 300 {
                height -= 150;
                take(browser, (&html, &all), (width, height), scheme, &kept)?;
            }
        }
    }
    Ok(())
}

/// Takes one picture. A window of Chromium has a least width and a frame has none, so the page is
/// in a frame.
fn take(
    browser: &str,
    (html, folder): (&Path, &Path),
    (width, height): (u32, u32),
    scheme: u32,
    picture: &Path,
) -> TaskResult<()> {
    let frame = folder.join("frame.html");
    let holder = format!(
        "<!DOCTYPE html><meta name=color-scheme content='light dark'><body style=margin:0>\
         <iframe style='border:0;width:{width}px;height:{height}px' src='file://{}'></iframe>",
        html.display()
    );
    std::fs::write(&frame, holder)?;
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "120", browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]);
    command.args(["--disable-dev-shm-usage", "--no-first-run", "--disable-extensions"]);
    command.arg(format!("--user-data-dir={}", folder.join("browser").display()));
    command.arg(format!("--blink-settings=preferredColorScheme={scheme}"));
    command.arg(format!("--window-size={width},{height}"));
    command.arg(format!("--screenshot={}", picture.display())).arg(format!("file://{}", frame.display()));
    command.stderr(std::process::Stdio::null());
    steps::finish(&mut command)
}
