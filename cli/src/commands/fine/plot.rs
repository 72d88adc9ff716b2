//! How a cache followed its load, as one SVG that stands alone: three panels over the same reads. A
//! pure function.
//!
//! ```text
//!   | phase 1      | phase 2    | ...       bands of the load
//!   hit ratio            a line
//!   threshold            a line; or where recency is preferred, a bar
//!   slabs                areas on top of each other, one a size class
//! ```

use std::fmt::Write as _;

use datapipes_picture::svg::{Drawing, FAINT, PALETTE, Text};

/// How the cache stood after so many reads.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) reads: u64,
    /// Of the reads since the sample before.
    pub(super) hit_percent: f64,
    /// Of Pipette's policy, in references an item.
    pub(super) threshold: Option<f64>,
    /// Whether the adaptive policy goes by recency.
    pub(super) recency: bool,
    /// Slabs by the capacity of their class, in bytes.
    pub(super) slabs: Vec<(usize, usize)>,
}

const WIDTH: f64 = 1120.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 960.0;
const TOP: f64 = 96.0;
/// Heights of the panels, and between them.
const PANELS: [f64; 3] = [190.0, 120.0, 190.0];
const GAP: f64 = 46.0;

/// Draws the samples; `phases`: their names, and after how many reads each began.
pub(super) fn svg(title: &str, remark: &str, phases: &[(String, u64)], samples: &[Sample]) -> String {
    let height = TOP + PANELS.iter().sum::<f64>() + 2.0 * GAP + 56.0;
    let last = samples.last().map_or(1, |s| s.reads).max(1);
    let axis = Axis { last };
    let mut out = Drawing::new((WIDTH, height), title);
    out.text(Text::new((20.0, 34.0), 18.0), title);
    out.text(Text::new((20.0, 56.0), 12.0).fill(FAINT), remark);
    bands(&mut out, phases, &axis, height - 56.0);
    let hits = Panel { top: TOP, height: PANELS[0], most: 100.0 };
    hits.frame(&mut out, "hit ratio, %");
    hits.line(&mut out, &axis, PALETTE[0], samples.iter().map(|s| (s.reads, Some(s.hit_percent))));
    decisions(&mut out, &axis, samples);
    slabs(&mut out, &axis, samples);
    let bottom = height - 56.0;
    for part in 0..=5u64 {
        let reads = last * part / 5;
        let at = Text::new((axis.x(reads), bottom + 18.0), 10.5).anchor("middle");
        out.text(at, &format!("{:.2} M", reads as f64 / 1e6));
    }
    out.text(Text::new(((LEFT + RIGHT) / 2.0, bottom + 38.0), 12.0).fill(FAINT).anchor("middle"), "reads");
    out.finish()
}

/// Reads along the bottom.
struct Axis {
    last: u64,
}

impl Axis {
    fn x(&self, reads: u64) -> f64 {
        LEFT + (RIGHT - LEFT) * reads as f64 / self.last as f64
    }
}

struct Panel {
    top: f64,
    height: f64,
    most: f64,
}

impl Panel {
    fn y(&self, value: f64) -> f64 {
        self.top + self.height * (1.0 - (value / self.most).clamp(0.0, 1.0))
    }

    fn frame(&self, out: &mut Drawing, name: &str) {
        out.text(Text::new((LEFT, self.top - 8.0), 12.5), name);
        for part in 0..=4 {
            let value = self.most * f64::from(part) / 4.0;
            let digits = if self.most < 10.0 { 2 } else { 0 };
            out.level((LEFT, RIGHT), self.y(value), &format!("{value:.digits$}"));
        }
    }

    fn line(&self, out: &mut Drawing, axis: &Axis, color: &str, values: impl Iterator<Item = (u64, Option<f64>)>) {
        let there = |v: Option<f64>| v.filter(|v| v.is_finite());
        out.line(color, false, values.map(|(reads, v)| Some((axis.x(reads), self.y(there(v)?)))));
    }
}

/// The phases of the load, behind everything.
fn bands(out: &mut Drawing, phases: &[(String, u64)], axis: &Axis, bottom: f64) {
    for (at, (name, from)) in phases.iter().enumerate() {
        let to = phases.get(at + 1).map_or(axis.last, |p| p.1);
        let (x, wide) = (axis.x(*from), axis.x(to) - axis.x(*from));
        let fill = if at % 2 == 0 { "#f6f8fa" } else { "#ffffff" };
        let (top, height) = (TOP - 22.0, bottom - TOP + 22.0);
        out.add(format_args!(
            "<rect x=\"{x:.1}\" y=\"{top}\" width=\"{wide:.1}\" height=\"{height:.1}\" fill=\"{fill}\"/>"
        ));
        out.text(Text::new((x + wide / 2.0, TOP - 26.0), 11.0).anchor("middle"), name);
    }
}

/// The threshold, or which of its two policies the adaptive one follows.
fn decisions(out: &mut Drawing, axis: &Axis, samples: &[Sample]) {
    let top = TOP + PANELS[0] + GAP;
    let most = samples.iter().filter_map(|s| s.threshold).fold(0.0, f64::max);
    if most > 0.0 {
        let panel = Panel { top, height: PANELS[1], most: ((most / 4.0).floor() + 1.0) * 4.0 };
        panel.frame(out, "threshold, references until an item is kept");
        panel.line(out, axis, PALETTE[1], samples.iter().map(|s| (s.reads, s.threshold)));
        return;
    }
    out.text(Text::new((LEFT, top - 8.0), 12.5), "preferred by the samples (this policy has no threshold)");
    let (frequency, recency) = (top + 24.0, top + PANELS[1] - 24.0);
    out.level((LEFT, RIGHT), frequency, "frequency");
    out.level((LEFT, RIGHT), recency, "recency");
    let mut path = String::new();
    for (at, sample) in samples.iter().enumerate() {
        let y = if sample.recency { recency } else { frequency };
        let x = axis.x(sample.reads);
        // Writing to a String cannot fail, here and below.
        let _ = if at == 0 { write!(path, "M{x:.1} {y:.1}") } else { write!(path, "H{x:.1}V{y:.1}") };
    }
    out.path(PALETTE[1], false, &path);
}

/// Slabs of all classes on top of each other, and their names beside.
fn slabs(out: &mut Drawing, axis: &Axis, samples: &[Sample]) {
    let total = |s: &Sample| s.slabs.iter().map(|(_, n)| *n as f64).sum::<f64>();
    let most = samples.iter().map(total).fold(1.0, f64::max);
    let panel = Panel { top: TOP + PANELS[0] + PANELS[1] + 2.0 * GAP, height: PANELS[2], most };
    panel.frame(out, "slabs of each size class");
    let mut classes: Vec<usize> = samples.iter().flat_map(|s| s.slabs.iter().map(|c| c.0)).collect();
    classes.sort_unstable();
    classes.dedup();
    classes.retain(|class| samples.iter().any(|s| s.slabs.iter().any(|(c, n)| c == class && *n > 0)));
    let mut below = vec![0.0; samples.len()];
    for (at, class) in classes.iter().enumerate() {
        let of = |s: &Sample| s.slabs.iter().find(|(c, _)| c == class).map_or(0.0, |(_, n)| *n as f64);
        let above: Vec<f64> = samples.iter().zip(&below).map(|(s, b)| b + of(s)).collect();
        let mut path = String::new();
        for (sample, value) in samples.iter().zip(&above) {
            let pen = if path.is_empty() { 'M' } else { 'L' };
            let _ = write!(path, "{pen}{:.1} {:.1}", axis.x(sample.reads), panel.y(*value));
        }
        for (sample, value) in samples.iter().zip(&below).rev() {
            let _ = write!(path, "L{:.1} {:.1}", axis.x(sample.reads), panel.y(*value));
        }
        let color = PALETTE[at % PALETTE.len()];
        let name = format!("{class} bytes");
        out.add(format_args!(
            "<path d=\"{path}Z\" fill=\"{color}\" fill-opacity=\"0.75\"><title>{name}</title></path>"
        ));
        out.key((RIGHT + 16.0, panel.top + 12.0 + at as f64 * 20.0), color, false, &name);
        below = above;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(threshold: Option<f64>) -> Vec<Sample> {
        let of = |at: u64| Sample {
            reads: (at + 1) * 1000,
            hit_percent: 10.0 * at as f64,
            threshold: threshold.map(|t| t + at as f64),
            recency: at > 2,
            slabs: vec![(128, 5), (512, at as usize), (4096, 0)],
        };
        (0..5).map(of).collect()
    }

    #[test]
    fn classes_that_were_used_are_drawn_and_named() {
        let phases = [("a < b".to_string(), 0), ("c".to_string(), 2500)];
        let picture = svg("t", "r", &phases, &samples(Some(1.5)));
        assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
        assert!(picture.contains("a &lt; b") && picture.contains("threshold"));
        assert_eq!(picture.matches("<title>128 bytes").count() + picture.matches("<title>512 bytes").count(), 2);
        assert!(!picture.contains("4096 bytes") && !picture.contains("NaN") && !picture.contains("inf"));
    }

    #[test]
    fn without_a_threshold_the_preference_is_drawn() {
        let picture = svg("t", "r", &[("a".to_string(), 0)], &samples(None));
        assert!(picture.contains("recency") && !picture.contains("references until"));
        // No samples: an empty picture, and no panic.
        assert!(!svg("t", "r", &[], &[]).contains("NaN"));
    }
}
