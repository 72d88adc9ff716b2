//! What a benchmark leaves behind: every single number, and the medians made of them.

use crate::bench::measuring::machine::Machine;
use datapipes_picture::chart::Panel;
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
    /// What speaks against the results: a changed tree, a busy machine, few turns. Empty as a rule.
    pub(in crate::bench) objections: Vec<String>,
    pub(in crate::bench) machine: Machine,
    pub(in crate::bench) page_cache: String,
    pub(in crate::bench) measured_by: String,
    pub(in crate::bench) inputs: Vec<String>,
    pub(in crate::bench) contestants: Vec<Entry>,
    pub(in crate::bench) floor: Option<FloorRecord>,
    pub(in crate::bench) comparisons: Vec<Comparison>,
    pub(in crate::bench) notes: Vec<String>,
    /// Drawn beside the record.
    #[serde(skip)]
    pub(in crate::bench) charts: Vec<Panel>,
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

/// Which way a figure is better.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::bench) enum Better {
    /// Rates.
    More,
    /// Times, processor time, memory.
    Less,
}

/// Why an entry was not measured that `--only` left out.
pub(in crate::bench) const LEFT_OUT: &str = "left out by --only";

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

    /// A figure of ours by that of the best of the peers. Each figure has its own best peer: the
    /// fastest setting need not be the cheapest.
    pub(in crate::bench) fn compare_best(
        &mut self,
        (figure, better): (&str, Better),
        ours: &str,
        peers: &[&str],
        target: Option<Target>,
    ) {
        let measured = peers.iter().filter_map(|peer| Some((self.median(peer, figure)?, *peer)));
        let best = measured.reduce(|best, other| {
            let is_better = if better == Better::More { other.0 > best.0 } else { other.0 < best.0 };
            if is_better { other } else { best }
        });
        if let Some((_, peer)) = best {
            self.compare(figure, ours, peer, target);
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

    /// What makes the command fail: any wrong output, and ours if it failed or could not be
    /// measured. That a peer could not do the job in its budget is a result and stands in the
    /// table, as a missed target and an absent peer do.
    pub(in crate::bench) fn troubles(&self) -> Vec<String> {
        let is_ours = |e: &Entry| e.name.starts_with("dpipe");
        let runs = self.contestants.iter().flat_map(|e| e.runs.iter().map(move |run| (e, run)));
        let bad = runs.filter(|(e, run)| !run.is_good() && (is_ours(e) || !run.verified.starts_with("FAILED")));
        let bad = bad.map(|(e, run)| format!("{}: {}", e.name, run.verified));
        let absent = self.contestants.iter().filter(|e| is_ours(e)).filter_map(|e| {
            let why = e.not_measured.as_ref().filter(|why| *why != LEFT_OUT)?;
            Some(format!("{}: not measured: {why}", e.name))
        });
        bad.chain(absent).collect()
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

    #[test]
    fn each_figure_has_its_own_best_peer() {
        let entry = |name: &str, rate: f64, cpu: f64| Entry {
            name: name.into(),
            medians: [("rate".to_string(), rate), ("cpu".to_string(), cpu)].into(),
            ..Entry::default()
        };
        let contestants = vec![entry("dpipe", 6.0, 6.0), entry("fast", 4.0, 9.0), entry("cheap", 2.0, 3.0)];
        let mut record = Record { contestants, ..Record::default() };
        let peers = ["fast", "absent", "cheap"];
        record.compare_best(("rate", Better::More), "dpipe", &peers, None);
        record.compare_best(("cpu", Better::Less), "dpipe", &peers, None);
        record.compare_best(("cpu", Better::Less), "dpipe", &["absent"], None);
        let found: Vec<(&str, f64)> = record.comparisons.iter().map(|c| (c.what.as_str(), c.value)).collect();
        assert_eq!(found, [("rate: dpipe / fast", 1.5), ("cpu: dpipe / cheap", 2.0)]);
    }

    #[test]
    fn ours_must_have_been_measured() {
        let entry = |name: &str, why: &str| Entry {
            name: name.into(),
            not_measured: Some(why.to_string()),
            ..Entry::default()
        };
        let contestants =
            vec![entry("dpipe, a", "no such program"), entry("dpipe, b", LEFT_OUT), entry("fio", "not installed")];
        let record = Record { contestants, ..Record::default() };
        assert_eq!(record.troubles(), ["dpipe, a: not measured: no such program"]);
    }
}
