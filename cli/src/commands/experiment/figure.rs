//! What an experiment measured: curves over sizes, and what was left out.

use std::time::Instant;

use datapipes::topology::Topology;
use datapipes::{Error, Result};
use datapipes_counters::CounterReading;
use datapipes_picture::chart::{Form, Panel, Series, svg};
use serde::Serialize;

use crate::arguments::units;
use crate::outcome::{print, print_json};
use crate::system::side_files::SideDraft;
use crate::table::{Table, save};

/// The sizes of chunks of figures 3 to 5, from the paper's least to its greatest.
pub(super) const CHUNKS: [u64; 9] =
    [4 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20];

/// A measured point of a curve.
#[derive(Debug, Serialize)]
pub(super) struct Point {
    pub(super) chunk_bytes: u64,
    pub(super) chunks: u64,
    pub(super) bytes_per_second: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    /// Processor time of this process but for the load, in seconds a second.
    pub(super) cpu_share: f64,
    /// What the load moved meanwhile; `None` where there was none.
    pub(super) load_bytes_per_second: Option<f64>,
    /// Misses of the last-level cache a line of the payload; `None` where none are counted.
    pub(super) llc_misses_per_line: Option<f64>,
}

/// The text of a quantity of a point, where it has one.
type Cell = fn(&Point) -> Option<String>;

/// The points of one setting.
#[derive(Debug, Serialize)]
pub(super) struct Curve {
    pub(super) name: String,
    /// The primitive that moved the bytes.
    pub(super) primitive: String,
    pub(super) points: Vec<Point>,
}

/// What this machine cannot do.
#[derive(Debug, Serialize)]
pub(super) struct LeftOut {
    pub(super) what: String,
    pub(super) why: String,
}

/// An experiment's result.
#[derive(Debug, Serialize)]
pub(super) struct Figure {
    pub(super) experiment: &'static str,
    pub(super) paper: &'static str,
    pub(super) processor: String,
    pub(super) kernel: String,
    /// The setup in words.
    pub(super) setup: String,
    pub(super) curves: Vec<Curve>,
    pub(super) left_out: Vec<LeftOut>,
}

impl Figure {
    pub(super) fn new(topology: &Topology, experiment: &'static str, paper: &'static str, setup: String) -> Figure {
        let unknown = || "unknown".to_owned();
        Figure {
            experiment,
            paper,
            processor: topology.cpu.model_name.clone().unwrap_or_else(unknown),
            kernel: topology.kernel.clone().unwrap_or_else(unknown),
            setup,
            curves: Vec::new(),
            left_out: Vec::new(),
        }
    }

    pub(super) fn leave_out(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.left_out.push(LeftOut { what: what.into(), why: why.into() });
    }

    /// Prints it, and draws it where that is asked for.
    pub(super) fn show(&self, json: bool, plot: Option<SideDraft>) -> Result<()> {
        if let Some(file) = plot {
            save(file, &self.picture())?;
        }
        if json {
            return print_json(self);
        }
        print(&format!("{} on {}, {}\n{}\n", self.paper, self.processor, self.kernel, self.setup))?;
        let quantities: [(&str, Cell); 6] = [
            ("GB/s", |point| Some(format!("{:.2}", point.bytes_per_second / 1e9))),
            ("latency of a chunk, median, us", |point| Some(format!("{:.1}", point.p50_us))),
            ("latency, 99 % below, us", |point| Some(format!("{:.1}", point.p99_us))),
            ("CPU seconds a second, without the load", |point| Some(format!("{:.2}", point.cpu_share))),
            ("load beside it, GB/s", |point| point.load_bytes_per_second.map(|rate| format!("{:.1}", rate / 1e9))),
            ("misses of the last-level cache a line", |point| {
                point.llc_misses_per_line.map(|misses| format!("{misses:.3}"))
            }),
        ];
        for (name, cell) in quantities {
            let is_there = self.curves.iter().flat_map(|curve| &curve.points).any(|point| cell(point).is_some());
            if is_there {
                print(&format!("\n{name}\n"))?;
                self.table(cell).print(2)?;
            }
        }
        show_left_out(&self.left_out)
    }

    fn table(&self, cell: Cell) -> Table {
        let mut table = Table::default();
        table.row(["chunk".to_owned()].into_iter().chain(self.curves.iter().map(|curve| curve.name.clone())));
        for chunk in self.chunks() {
            let cells = self.curves.iter().map(|curve| {
                let point = curve.points.iter().find(|point| point.chunk_bytes == chunk);
                point.and_then(cell).unwrap_or_else(|| "-".into())
            });
            table.row([units::memory(chunk)].into_iter().chain(cells));
        }
        table
    }

    fn chunks(&self) -> Vec<u64> {
        let points = self.curves.iter().flat_map(|curve| &curve.points);
        let mut chunks: Vec<u64> = points.map(|point| point.chunk_bytes).collect();
        chunks.sort_unstable();
        chunks.dedup();
        chunks
    }

    fn picture(&self) -> String {
        let chunks = self.chunks();
        let panel = |title: &str, unit: &str, value: fn(&Point) -> Option<f64>| Panel {
            title: title.into(),
            unit: unit.into(),
            form: Form::Lines,
            is_logarithmic: unit == "us",
            labels: chunks.iter().map(|chunk| units::memory(*chunk)).collect(),
            series: (0..self.curves.len())
                .map(|at| Series {
                    name: self.curves[at].name.clone(),
                    color: at,
                    is_published: false,
                    values: chunks
                        .iter()
                        .map(|chunk| {
                            let points = &self.curves[at].points;
                            points.iter().find(|point| point.chunk_bytes == *chunk).and_then(value)
                        })
                        .collect(),
                })
                .collect(),
        };
        let mut panels = vec![
            panel("Throughput", "GB/s", |point| Some(point.bytes_per_second / 1e9)),
            panel("Median latency of a chunk", "us", |point| Some(point.p50_us)),
        ];
        let misses = panel("Misses of the last-level cache a line", "", |point| point.llc_misses_per_line);
        if misses.series.iter().flat_map(|series| &series.values).any(Option::is_some) {
            panels.push(misses);
        }
        let title = format!("{}, measured on {}", self.paper, self.processor);
        svg(&title, &self.setup, &panels)
    }
}

pub(super) fn show_left_out(left_out: &[LeftOut]) -> Result<()> {
    if left_out.is_empty() {
        return Ok(());
    }
    print("\nLeft out\n")?;
    left_out.iter().try_for_each(|left| print(&format!("  {}: {}\n", left.what, left.why)))
}

/// Why a counter of the experiment has no value, where it has none.
pub(super) fn absence(readings: &[CounterReading], name: &str) -> Option<String> {
    readings.iter().find(|reading| reading.name == name)?.absent.clone()
}

/// The misses of the last-level cache for each line of so many bytes, if they were counted.
pub(super) fn misses_per_line(counted: &[CounterReading], bytes: u64) -> Option<f64> {
    const LINE: u64 = 64;
    let misses = counted.iter().find(|reading| reading.name == "llc_misses").and_then(|reading| reading.value);
    misses.map(|misses| misses as f64 / (bytes / LINE).max(1) as f64)
}

/// Keeps the calling thread on a core.
pub(super) fn pin(core: usize) -> Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    if core >= rustix::thread::CpuSet::MAX_CPU {
        return Err(Error::os("pin", libc::EINVAL, format!("a thread to core {core}")));
    }
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set)
        .map_err(|e| Error::os("pin", e.raw_os_error(), format!("a thread to core {core}")))
}

/// So many times are kept (8 MiB).
const MAX_TIMES: usize = 1 << 20;

/// Times of chunks, for medians. Where there are too many, one in two, in four and so on is kept.
#[derive(Debug)]
pub(super) struct Latencies {
    us: Vec<f64>,
    /// One in so many is kept.
    step: u64,
    seen: u64,
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies { us: Vec::new(), step: 1, seen: 0 }
    }
}

impl Latencies {
    pub(super) fn add(&mut self, since: Instant) {
        self.add_us(since.elapsed().as_secs_f64() * 1e6);
    }

    fn add_us(&mut self, us: f64) {
        let kept = self.seen.is_multiple_of(self.step);
        self.seen += 1;
        if !kept {
            return;
        }
        self.us.push(us);
        if self.us.len() == MAX_TIMES {
            let mut is_odd = true;
            self.us.retain(|_| {
                is_odd = !is_odd;
                !is_odd
            });
            self.step *= 2;
        }
    }

    /// The time below which this part of them lies, in microseconds. It is asked for at the end.
    pub(super) fn below(&mut self, part: f64) -> f64 {
        self.us.sort_unstable_by(f64::total_cmp);
        let at = (self.us.len() as f64 * part) as usize;
        self.us.get(at.min(self.us.len().saturating_sub(1))).copied().unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_latencies() {
        assert_eq!(Latencies::default().below(0.5), 0.0);
        let mut all = Latencies::default();
        (0..100).rev().for_each(|us| all.add_us(f64::from(us)));
        assert_eq!((all.below(0.5), all.below(0.99), all.below(1.0)), (50.0, 99.0, 99.0));
    }

    #[test]
    fn many_latencies_take_bounded_memory_and_keep_their_middle() {
        let mut all = Latencies::default();
        let count = 5 * MAX_TIMES;
        (0..count).for_each(|us| all.add_us(us as f64));
        assert!(all.us.len() < MAX_TIMES && all.us.len() >= MAX_TIMES / 2);
        let middle = all.below(0.5) / count as f64;
        assert!((0.49..0.51).contains(&middle), "{middle}");
    }
}
