//! The steps of the demo, each a process.

use std::path::{Path, PathBuf};
use std::process::Command;

use datapipes::{Error, ErrorKind, Result};
use datapipes_picture::page::HtmlPage;
use serde_json::Value;

use super::outcome::{Checked, Sorted};
use crate::progress::{self, State};
use crate::report::options::READ_BY_CALLER;
use crate::system::child::{self, Usage};

/// The settings that the steps share.
pub(super) struct Steps<'a> {
    dpipe: PathBuf,
    dir: &'a Path,
    memory: u64,
}

impl<'a> Steps<'a> {
    pub(super) fn new(dir: &'a Path, memory: u64) -> Result<Steps<'a>> {
        let dpipe = std::env::current_exe().map_err(|e| Error::io("find", e, "this program"))?;
        Ok(Steps { dpipe, dir, memory })
    }

    /// Writes the input.
    pub(super) fn generate(&self, size: u64, input: &Path) -> Result<Usage> {
        let mut command = Command::new(&self.dpipe);
        command.args(["gen", "records-ascii", "--size", &size.to_string()]).arg(input);
        Ok(child::run(&mut command)?.0)
    }

    /// Order, count and checksum. An exit code of 1 means that it is not sorted, which is not an
    /// error here.
    pub(super) fn check(&self, path: &Path) -> Result<Checked> {
        let mut command = Command::new(&self.dpipe);
        command.args(["check", "records-ascii", "--json"]).arg(path);
        let (_, said) = child::run_with_codes(&mut command, &[0, 1])?;
        serde_json::from_str(&said).map_err(|e| {
            Error::new(ErrorKind::System, "check", format!("{}: its report could not be read: {e}", path.display()))
        })
    }

    /// Sorts by this program; also returns its page, if one is wanted.
    pub(super) fn dpipe(&self, input: &Path, output: &Path, wants_page: bool) -> Result<(Sorted, Option<HtmlPage>)> {
        let page_path = self.dir.join("sort-page.json");
        let mut command = Command::new(&self.dpipe);
        command.args(["sort", "--records", "--json"]);
        if wants_page {
            command.arg("--report-html").arg(&page_path).env(READ_BY_CALLER, "1");
        }
        self.sort(&mut command, input, output);
        let (usage, report) = child::run(&mut command)?;
        let report: Value = serde_json::from_str(&report)
            .map_err(|e| Error::new(ErrorKind::System, "sort", format!("its report could not be read: {e}")))?;
        let page = if wants_page { Some(read_page(&page_path)?) } else { None };
        Ok((Sorted { name: "dpipe sort".into(), command: shown(&command), usage, report: Some(report) }, page))
    }

    /// Sorts by the system's sort.
    pub(super) fn system(&self, input: &Path, output: &Path, version: String) -> Result<Sorted> {
        let mut command = Command::new("sort");
        command.env("LC_ALL", "C");
        self.sort(&mut command, input, output);
        let state = || State { phase: "system's sort", ..State::default() };
        let (usage, _) = progress::during(progress::wanted(), state, || child::run(&mut command))?;
        let command = format!("LC_ALL=C {}", shown(&command));
        Ok(Sorted { name: version, command, usage, report: None })
    }

    fn sort(&self, command: &mut Command, input: &Path, output: &Path) {
        command.arg("-S").arg(format!("{}b", self.memory)).arg("-T").arg(self.dir).arg("-o").arg(output).arg(input);
    }

    /// Drops a file from the page cache, so that each contestant reads it from the device.
    pub(super) fn forget(&self, path: &Path) -> Result<()> {
        let shown = || path.display().to_string();
        let file = std::fs::File::open(path).map_err(|e| Error::io("open", e, shown()))?;
        file.sync_all().map_err(|e| Error::io("sync", e, shown()))?;
        // Advice; where it is not taken, both contestants find the same.
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        Ok(())
    }
}

/// Reads the page of a step, and removes it.
fn read_page(path: &Path) -> Result<HtmlPage> {
    let fail = |e| Error::io("read", e, path.display().to_string());
    let text = std::fs::read(path).map_err(fail)?;
    std::fs::remove_file(path).map_err(fail)?;
    serde_json::from_slice(&text)
        .map_err(|e| Error::new(ErrorKind::System, "read", format!("{}: not the page of a sort: {e}", path.display())))
}

/// The system's sort, by the first line of what it says of itself.
pub(super) fn system_sort() -> Result<String, String> {
    let output = Command::new("sort").arg("--version").output().map_err(|e| format!("`sort` cannot be run: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let first = text.lines().next().unwrap_or("").trim();
    Ok(if first.is_empty() { "sort".to_owned() } else { first.to_owned() })
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}
