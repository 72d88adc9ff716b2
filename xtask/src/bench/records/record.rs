//! What a benchmark leaves behind: every single number, and the medians made of them.

use crate::bench::measuring::machine::Machine;
use serde::Serialize;
use std::collections::BTreeMap;

/// Part of `Run::verified` when `dpipe check` calls an output wrong that we found right.
pub(in crate::bench) const DISPUTED: &str = "dpipe check does NOT agree";

/// Figures by name; the unit is the end of the name (`wall_s`, `peak_rss_mib`).
pub(in crate::bench) type Figures = BTreeMap<String, f64>;

#[derive(Serialize, Default)]
pub(in crate::bench) struct Record {
    pub(in crate::bench) benchmark: String,
    pub(in crate::bench) about: String,
    pub(in crate::bench) date: String,
    pub(in crate::bench) small: bool,
    pub(in crate::bench) turns: usize,
    pub(in crate::bench) machine: Machine,
    pub(in crate::bench) page_cache: String,
    pub(in crate::bench) measured_by: String,
    pub(in crate::bench) inputs: Vec<String>,
    pub(in crate::bench) contestants: Vec<Entry>,
    pub(in crate::bench) floor: Option<FloorRecord>,
    pub(in crate::bench) comparisons: Vec<Comparison>,
    pub(in crate::bench) notes: Vec<String>,
}

#[derive(Serialize, Default)]
pub(in crate::bench) struct Entry {
    pub(in crate::bench) name: String,
    pub(in crate::bench) version: String,
    pub(in crate::bench) command: String,
    pub(in crate::bench) note: String,
    /// Why there are no runs; `None` when it was measured.
    pub(in crate::bench) not_measured: Option<String>,
    pub(in crate::bench) medians: Figures,
    pub(in crate::bench) runs: Vec<Run>,
}

#[derive(Serialize)]
pub(in crate::bench) struct Run {
    pub(in crate::bench) turn: usize,
    pub(in crate::bench) figures: Figures,
    /// How the output was found right, or `WRONG: ...`, or `FAILED: ...`.
    pub(in crate::bench) verified: String,
}

#[derive(Serialize)]
pub(in crate::bench) struct FloorRecord {
    pub(in crate::bench) what: String,
    pub(in crate::bench) settings: Vec<Entry>,
    pub(in crate::bench) best_read: String,
    pub(in crate::bench) best_write: String,
    /// From the best setting's median rates.
    pub(in crate::bench) floor_s: f64,
    /// From the single fastest read and the single fastest write of all runs: the strictest
    /// reading.
    pub(in crate::bench) floor_fastest_s: f64,
}

#[derive(Serialize)]
pub(in crate::bench) struct Comparison {
    pub(in crate::bench) what: String,
    pub(in crate::bench) value: f64,
    pub(in crate::bench) unit: &'static str,
    pub(in crate::bench) target: Option<Target>,
}

#[derive(Serialize, Clone, Copy)]
pub(in crate::bench) enum Target {
    AtLeast(f64),
    AtMost(f64),
}

impl Comparison {
    pub(in crate::bench) fn met(&self) -> Option<bool> {
        self.target.map(|target| match target {
            Target::AtLeast(least) => self.value >= least,
            Target::AtMost(most) => self.value <= most,
        })
    }
}

impl Run {
    /// `dpipe check` and our own examination say different things: one of them has a bug.
    fn is_disputed(&self) -> bool {
        self.verified.contains(DISPUTED)
    }

    pub(in crate::bench) fn is_good(&self) -> bool {
        !self.verified.starts_with("WRONG") && !self.verified.starts_with("FAILED") && !self.is_disputed()
    }
}

impl Entry {
    pub(in crate::bench) fn take_medians(&mut self) {
        let good: Vec<&Figures> = self.runs.iter().filter(|r| r.is_good()).map(|r| &r.figures).collect();
        let names: Vec<String> = good.iter().flat_map(|f| f.keys().cloned()).collect();
        for name in names {
            let values = good.iter().filter_map(|f| f.get(&name).copied()).collect();
            self.medians.insert(name, median(values));
        }
    }
}

impl Record {
    pub(in crate::bench) fn median(&self, contestant: &str, figure: &str) -> Option<f64> {
        let entry = self.contestants.iter().find(|e| e.name == contestant)?;
        entry.medians.get(figure).copied()
    }

    /// `slower` / `faster` of a figure, if both were measured.
    pub(in crate::bench) fn compare(&mut self, figure: &str, slower: &str, faster: &str, target: Option<Target>) {
        if let (Some(above), Some(below)) = (self.median(slower, figure), self.median(faster, figure)) {
            let what = format!("{figure}: {slower} / {faster}");
            self.comparisons.push(Comparison { what, value: above / below, unit: "x", target });
        }
    }

    /// A figure of one contestant against a limit.
    pub(in crate::bench) fn limit(&mut self, figure: &str, contestant: &str, target: Target) {
        if let Some(value) = self.median(contestant, figure) {
            let what = format!("{figure} of {contestant}");
            self.comparisons.push(Comparison { what, value, unit: "", target: Some(target) });
        }
    }

    /// The floor's time as a share of the contestant's: 100% would be all device and no waiting.
    pub(in crate::bench) fn share_of_floor(&mut self, contestant: &str, target: Option<Target>) {
        let (Some(floor), Some(wall_s)) = (&self.floor, self.median(contestant, "wall_s")) else {
            return;
        };
        let shares = [("best setting's medians", floor.floor_s, target), ("fastest runs", floor.floor_fastest_s, None)];
        for (which, floor_s, target) in shares {
            let what = format!("two-pass I/O floor ({which}) / wall of {contestant}");
            self.comparisons.push(Comparison { what, value: floor_s / wall_s * 100.0, unit: "%", target });
        }
    }

    /// What makes the command fail: any wrong output, and a failed run of ours. That a peer could
    /// not do the job in its budget is a result and stands in the table, as a missed target does.
    pub(in crate::bench) fn troubles(&self) -> Vec<String> {
        let runs = self.contestants.iter().flat_map(|e| e.runs.iter().map(move |run| (e, run)));
        let serious = |e: &Entry, run: &Run| e.name.starts_with("dpipe") || !run.verified.starts_with("FAILED");
        let troubles = runs.filter(|(e, run)| !run.is_good() && serious(e, run));
        troubles.map(|(e, run)| format!("{}: {}", e.name, run.verified)).collect()
    }
}

pub(in crate::bench) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_leave_out_wrong_runs() {
        let run = |wall_s: f64, verified: &str| Run {
            turn: 1,
            figures: [("wall_s".to_string(), wall_s)].into(),
            verified: verified.into(),
        };
        let mut entry =
            Entry { runs: vec![run(3.0, "same"), run(0.1, "WRONG: order"), run(1.0, "same")], ..Entry::default() };
        entry.take_medians();
        assert_eq!(entry.medians["wall_s"], 2.0);
        assert_eq!(median(vec![5.0, 1.0, 3.0]), 3.0);
    }
}
