//! fio as the yardstick of the disk: direct, io_uring, registered buffers, huge pages.

use crate::bench::context::Context;
use crate::bench::measuring::measure::measure;
use crate::bench::records::record::{Figures, LEFT_OUT};
use crate::{TaskResult, steps};
use std::path::Path;
use std::process::Command;

const HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";
/// 96 MiB: 32 requests of 2 MiB, and some.
const HUGE_PAGES_NEEDED: u64 = 48;

#[derive(Clone, Copy)]
pub(in crate::bench) struct Setting {
    pub(in crate::bench) block_kib: u32,
    pub(in crate::bench) depth: u32,
    pub(in crate::bench) jobs: u32,
    pub(in crate::bench) clocks: Clocks,
}

/// Whether fio looks at the clock for each request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::bench) enum Clocks {
    /// For the latencies of all requests, as fio does if nothing is said.
    All,
    /// For rates only (`--gtod_reduce=1`): less processor time.
    Few,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::bench) enum Direction {
    Read,
    Write,
}

/// Present fio, with huge pages set aside for it while this value lives (when we may).
pub(in crate::bench) struct Fio {
    pub(in crate::bench) version: String,
    memory: &'static str,
    before: Option<String>,
}

impl Setting {
    pub(in crate::bench) fn name(&self) -> String {
        let Self { block_kib, depth, jobs, clocks } = self;
        let clocks = if *clocks == Clocks::All { "" } else { ", no latencies" };
        format!("{block_kib} KiB, depth {depth}, {jobs} job{}{clocks}", if *jobs == 1 { "" } else { "s" })
    }
}

impl Direction {
    pub(in crate::bench) fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

impl Fio {
    pub(in crate::bench) fn find() -> Result<Self, String> {
        let version = steps::first_line(Command::new("fio").arg("--version"));
        let version = version.ok_or("fio is not installed; `apt-get install fio` (or your system's way) adds it")?;
        let pages = || std::fs::read_to_string(HUGE_PAGES).ok()?.trim().parse::<u64>().ok();
        let mut fio = Self { version, memory: "malloc", before: None };
        let before = pages().unwrap_or(0);
        if before < HUGE_PAGES_NEEDED && std::fs::write(HUGE_PAGES, HUGE_PAGES_NEEDED.to_string()).is_ok() {
            fio.before = Some(before.to_string());
        }
        if pages().is_some_and(|now| now >= HUGE_PAGES_NEEDED) {
            fio.memory = "mmaphuge";
        }
        Ok(fio)
    }

    /// What a reader must know about the buffers.
    pub(in crate::bench) fn note(&self) -> &'static str {
        match self.memory {
            "mmaphuge" => "direct, registered buffers in 2 MiB huge pages",
            _ => {
                "direct, registered buffers, WITHOUT huge pages (none could be reserved: fio is slower than it could be)"
            }
        }
    }

    pub(in crate::bench) fn command(&self, setting: Setting, direction: Direction, file: &Path, bytes: u64) -> Command {
        let bytes = bytes / u64::from(setting.jobs);
        let mut command = Command::new("fio");
        command.args(["--name=floor", "--ioengine=io_uring", "--direct=1", "--fixedbufs=1", "--registerfiles=1"]);
        command.args(["--fallocate=native", "--invalidate=0", "--group_reporting", "--output-format=json"]);
        command.arg(format!("--filename={}", file.display()));
        command.arg(format!("--rw={}", direction.word())).arg(format!("--size={bytes}"));
        command.arg(format!("--bs={}k", setting.block_kib)).arg(format!("--iodepth={}", setting.depth));
        command.arg(format!("--iomem={}", self.memory)).arg(format!("--numjobs={}", setting.jobs));
        if setting.clocks == Clocks::Few {
            command.arg("--gtod_reduce=1");
        }
        if setting.jobs > 1 {
            command.arg(format!("--offset_increment={bytes}"));
        }
        command
    }

    /// As `command`; its time includes an fsync at the end.
    pub(in crate::bench) fn durable_write(&self, setting: Setting, file: &Path, bytes: u64) -> Command {
        let mut command = self.command(setting, Direction::Write, file, bytes);
        command.arg("--end_fsync=1");
        command
    }

    /// Rates by fio's own clock (its start-up is not the disk's); CPU milliseconds of its job
    /// threads.
    pub(in crate::bench) fn run(&self, command: &mut Command, direction: Direction) -> TaskResult<Figures> {
        let usage = measure(command)?;
        let start = usage.stdout.find('{').ok_or("fio printed no JSON")?;
        let json: serde_json::Value = serde_json::from_str(&usage.stdout[start..])?;
        let job = &json["jobs"][0];
        let part = &job[direction.word()];
        let number = |value: &serde_json::Value| value.as_f64().ok_or("fio's JSON lacks a number");
        if number(&job["error"])? != 0.0 {
            return Err(format!("fio reports error {}", job["error"]).into());
        }
        let moved_gib = number(&part["io_bytes"])? / (1u64 << 30) as f64;
        let cpu_percent = number(&job["usr_cpu"])? + number(&job["sys_cpu"])?;
        let cpu_ms = cpu_percent / 100.0 * number(&job["job_runtime"])?;
        let word = direction.word();
        Ok([
            (format!("{word}_gib_s"), number(&part["bw_bytes"])? / (1u64 << 30) as f64),
            (format!("cpu_ms_per_gib_{word}"), cpu_ms / moved_gib),
        ]
        .into())
    }

    pub(in crate::bench) fn find_if_wanted(context: &Context) -> Result<Self, String> {
        if context.wants("fio floor") { Self::find() } else { Err(LEFT_OUT.into()) }
    }
}

impl Drop for Fio {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = std::fs::write(HUGE_PAGES, before);
        }
    }
}
