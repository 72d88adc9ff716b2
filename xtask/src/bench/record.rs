//! What a benchmark leaves behind: every single number, and the medians made of them.

use super::machine::Machine;
use serde::Serialize;
use std::collections::BTreeMap;

/// Part of `Run::verified` when `dpipe check` calls an output wrong that we found right.
pub(super) const DISPUTED: &str = "dpipe check does NOT agree";

/// Figures by name; the unit is the end of the name (`wall_s`, `peak_rss_mib`).
pub(super) type Figures = BTreeMap<String, f64>;

#[derive(Serialize, Default)]
pub(super) struct Record {
    pub(super) benchmark: String,
    pub(super) about: String,
    pub(super) date: String,
    pub(super) small: bool,
    pub(super) turns: usize,
    pub(super) machine: Machine,
    pub(super) page_cache: String,
    pub(super) measured_by: String,
    pub(super) inputs: Vec<String>,
    pub(super) contestants: Vec<Entry>,
    pub(super) floor: Option<FloorRecord>,
    pub(super) comparisons: Vec<Comparison>,
    pub(super) notes: Vec<String>,
}

#[derive(Serialize, Default)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) command: String,
    pub(super) note: String,
    /// Why there are no runs; `None` when it was measured.
    pub(super) not_measured: Option<String>,
    pub(super) medians: Figures,
    pub(super) runs: Vec<Run>,
}

#[derive(Serialize)]
pub(super) struct Run {
    pub(super) turn: usize,
    pub(super) figures: Figures,
    /// How the output was found right, or `WRONG: ...`, or `FAILED: ...`.
    pub(super) verified: String,
}

#[derive(Serialize)]
pub(super) struct FloorRecord {
    pub(super) what: String,
    pub(super) settings: Vec<Entry>,
    pub(super) best_read: String,
    pub(super) best_write: String,
    /// From the best setting's median rates.
    pub(super) floor_s: f64,
    /// From the single fastest read and the single fastest write of all runs: the strictest reading.
    pub(super) floor_fastest_s: f64,
}

#[derive(Serialize)]
pub(super) struct Comparison {
    pub(super) what: String,
    pub(super) value: f64,
    pub(super) unit: &'static str,
    pub(super) target: Option<Target>,
}

#[derive(Serialize, Clone, Copy)]
pub(super) enum Target {
    AtLeast(f64),
    AtMost(f64),
}

impl Comparison {
    pub(super) fn met(&self) -> Option<bool> {
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

    pub(super) fn is_good(&self) -> bool {
        !self.verified.starts_with("WRONG") && !self.verified.starts_with("FAILED") && !self.is_disputed()
    }
}

impl Entry {
    pub(super) fn take_medians(&mut self) {
        let good: Vec<&Figures> = self.runs.iter().filter(|r| r.is_good()).map(|r| &r.figures).collect();
        let names: Vec<String> = good.iter().flat_map(|f| f.keys().cloned()).collect();
        for name in names {
            let values = good.iter().filter_map(|f| f.get(&name).copied()).collect();
            self.medians.insert(name, median(values));
        }
    }
}

impl Record {
    pub(super) fn median(&self, contestant: &str, figure: &str) -> Option<f64> {
        let entry = self.contestants.iter().find(|e| e.name == contestant)?;
        entry.medians.get(figure).copied()
    }

    /// `slower` / `faster` of a figure, if both were measured.
    pub(super) fn compare(&mut self, figure: &str, slower: &str, faster: &str, target: Option<Target>) {
        if let (Some(above), Some(below)) = (self.median(slower, figure), self.median(faster, figure)) {
            let what = format!("{figure}: {slower} / {faster}");
            self.comparisons.push(Comparison { what, value: above / below, unit: "x", target });
        }
    }

    /// A figure of one contestant against a limit.
    pub(super) fn limit(&mut self, figure: &str, contestant: &str, target: Target) {
        if let Some(value) = self.median(contestant, figure) {
            let what = format!("{figure} of {contestant}");
            self.comparisons.push(Comparison { what, value, unit: "", target: Some(target) });
        }
    }

    /// The floor's time as a share of the contestant's: 100% would be all device and no waiting.
    pub(super) fn share_of_floor(&mut self, contestant: &str, target: Option<Target>) {
        let (Some(floor), Some(wall_s)) = (&self.floor, self.median(contestant, "wall_s")) else {
            return;
        };
        let shares = [("best setting's medians", floor.floor_s, target), ("fastest runs", floor.floor_fastest_s, None)];
        for (which, floor_s, target) in shares {
            let what = format!("two-pass I/O floor ({which}) / wall of {contestant}");
            self.comparisons.push(Comparison { what, value: floor_s / wall_s * 100.0, unit: "%", target });
        }
    }

    /// What makes the command fail: any wrong output, and a failed run of ours. That a peer could not do the job
    /// in its budget is a result and stands in the table, as a missed target does.
    pub(super) fn troubles(&self) -> Vec<String> {
        let runs = self.contestants.iter().flat_map(|e| e.runs.iter().map(move |run| (e, run)));
        let serious = |e: &Entry, run: &Run| e.name.starts_with("dpipe") || !run.verified.starts_with("FAILED");
        let troubles = runs.filter(|(e, run)| !run.is_good() && serious(e, run));
        troubles.map(|(e, run)| format!("{}: {}", e.name, run.verified)).collect()
    }
}

pub(super) fn median(mut values: Vec<f64>) -> f64 {
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
