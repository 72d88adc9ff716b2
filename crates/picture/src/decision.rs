//! The planner's decision as a picture: the two places, the route between them, and every candidate
//! with what it would cost or why it was refused. A pure function.
//!
//! ```text
//!   [ source ] --- [ primitive ] --> [ target ]
//!   1. primitive, because ...
//!   candidates:  o primitive   =====------ 31 ms    why it was (not) chosen
//! ```

use crate::svg::Point;
use crate::themed::{Area, Lettering, ShapeTone, ThemedDrawing};

/// A decision.
#[derive(Clone, Debug, Default)]
pub struct Decision {
    /// What is above the picture.
    pub title: String,
    /// A line below it.
    pub remark: String,
    /// The places on the way, from the source to the target: one more than hops.
    pub places: Vec<String>,
    /// The primitives between them, with what each promises and why it was chosen.
    pub hops: Vec<DecidedHop>,
    /// All that was considered.
    pub candidates: Vec<RouteCandidate>,
}

/// One step of the route that was chosen.
#[derive(Clone, Debug, Default)]
pub struct DecidedHop {
    /// The primitive.
    pub primitive: String,
    /// Its backend.
    pub backend: String,
    /// Lines on what it promises.
    pub promises: Vec<String>,
    /// Why it was chosen.
    pub why: String,
}

/// A primitive that was considered.
#[derive(Clone, Debug)]
pub struct RouteCandidate {
    /// The part of the way that it is for; empty for the whole way.
    pub leg: String,
    /// The primitive.
    pub primitive: String,
    /// Its backend.
    pub backend: String,
    /// Whether it was chosen, could have been, or was refused.
    pub verdict: CandidateVerdict,
    /// The estimate for a typical transfer in nanoseconds, where there is one.
    pub estimate_ns: Option<f64>,
    /// What it promises, in a line.
    pub promise: String,
    /// Why it was chosen or not.
    pub why: String,
}

/// What became of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CandidateVerdict {
    /// It is part of the route.
    Chosen,
    /// It could have been, and is estimated to take longer.
    Slower,
    /// It cannot serve, or was forbidden.
    Refused,
}

impl CandidateVerdict {
    fn tone(self) -> ShapeTone {
        match self {
            CandidateVerdict::Chosen => ShapeTone::Chosen,
            CandidateVerdict::Slower => ShapeTone::Open,
            CandidateVerdict::Refused => ShapeTone::Refused,
        }
    }

    fn word(self) -> &'static str {
        match self {
            CandidateVerdict::Chosen => "chosen",
            CandidateVerdict::Slower => "slower",
            CandidateVerdict::Refused => "refused",
        }
    }
}

const WIDTH: f64 = 1120.0;
const MARGIN: f64 = 24.0;
const ROUTE_TOP: f64 = 84.0;
const ROUTE_HEIGHT: f64 = 96.0;
/// Where the columns of candidates begin.
const NAME: f64 = MARGIN + 24.0;
const COST: f64 = 264.0;
const COST_WIDTH: f64 = 250.0;
const WHY: f64 = 540.0;
const WHY_WIDTH: f64 = WIDTH - MARGIN - WHY;
const SMALL: f64 = 11.0;
const LINE: f64 = SMALL * 1.3;

/// Draws a decision.
pub fn svg(decision: &Decision) -> String {
    drawing(decision).finish()
}

fn drawing(decision: &Decision) -> ThemedDrawing {
    let whys = whys(decision);
    let rows: Vec<Row<'_>> = rows(decision);
    let list_top = ROUTE_TOP + ROUTE_HEIGHT + 30.0 + whys.len() as f64 * LINE + 30.0;
    let list_height: f64 = rows.iter().map(Row::height).sum();
    let height = list_top + list_height + 40.0;
    let mut out = ThemedDrawing::new((WIDTH, height), &decision.title, &description(decision));
    let heading = Lettering::new(18.0).bold();
    for (at, line) in heading.wrap(&decision.title, WIDTH - 2.0 * MARGIN, 1).iter().enumerate() {
        out.text((MARGIN, 36.0 + at as f64 * 22.0), heading, line);
    }
    let remark = Lettering::new(12.0).faint();
    out.lines((MARGIN, 60.0), remark, &remark.wrap(&decision.remark, WIDTH - 2.0 * MARGIN, 1));
    route(&mut out, decision);
    out.lines((MARGIN, ROUTE_TOP + ROUTE_HEIGHT + 30.0), Lettering::new(SMALL), &whys);
    let head = Lettering::new(12.0).bold();
    for (x, words) in [(NAME, "Candidate"), (COST, "Estimate for a typical transfer"), (WHY, "Why")] {
        out.text((x, list_top - 10.0), head, words);
    }
    let longest = decision.candidates.iter().filter_map(|c| c.estimate_ns).fold(0.0, f64::max);
    let mut top = list_top;
    for row in &rows {
        row.draw(&mut out, top, longest);
        top += row.height();
    }
    legend(&mut out, top + 24.0);
    out
}

/// The reasons of the hops, in lines.
fn whys(decision: &Decision) -> Vec<String> {
    let letters = Lettering::new(SMALL);
    let of = |(at, hop): (usize, &DecidedHop)| {
        let text = format!("{}. {} because {}", at + 1, hop.primitive, hop.why);
        letters.wrap(&text, WIDTH - 2.0 * MARGIN, 3)
    };
    decision.hops.iter().enumerate().flat_map(of).collect()
}

/// The places in a row, and the primitives between them.
fn route(out: &mut ThemedDrawing, decision: &Decision) {
    let places = decision.places.len().max(1) as f64;
    let hops = decision.hops.len() as f64;
    let gap = 34.0;
    let room = WIDTH - 2.0 * MARGIN - 2.0 * hops * gap;
    let each = room / (places + hops);
    let y = ROUTE_TOP;
    let middle = y + ROUTE_HEIGHT / 2.0;
    let mut x = MARGIN;
    for (at, place) in decision.places.iter().enumerate() {
        out.area(Area { x, y, width: each, height: ROUTE_HEIGHT }, ShapeTone::Plain, place);
        let letters = Lettering::new(12.0).bold().centered();
        centered_lines(out, (x + each / 2.0, middle), letters, &letters.wrap(place, each - 16.0, 5));
        x += each;
        let Some(hop) = decision.hops.get(at) else { break };
        out.line(&[(x, middle), (x + gap, middle)], ShapeTone::Chosen, true, false);
        x += gap;
        out.area(Area { x, y, width: each, height: ROUTE_HEIGHT }, ShapeTone::Chosen, &hop.why);
        let letters = Lettering::new(13.0).bold().centered();
        let name = letters.wrap(&hop.primitive, each - 12.0, 1);
        out.lines((x + each / 2.0, y + 22.0), letters, &name);
        let small = Lettering::new(SMALL).centered();
        let mut lines = small.faint().wrap(&hop.backend, each - 12.0, 1);
        lines.extend(hop.promises.iter().flat_map(|line| small.wrap(line, each - 12.0, 1)));
        out.lines((x + each / 2.0, y + 40.0), small, &lines);
        x += each;
        out.line(&[(x, middle), (x + gap, middle)], ShapeTone::Chosen, true, false);
        x += gap;
    }
}

/// Lines around a height.
fn centered_lines(out: &mut ThemedDrawing, (x, middle): Point, letters: Lettering, lines: &[String]) {
    const STEP: f64 = 12.0 * 1.3;
    let top = middle - (lines.len() as f64 - 1.0) / 2.0 * STEP + 4.0;
    out.lines((x, top), letters, lines);
}

/// A row of the list.
enum Row<'a> {
    Leg(&'a str),
    Of { candidate: &'a RouteCandidate, why: Vec<String> },
}

fn rows(decision: &Decision) -> Vec<Row<'_>> {
    let mut legs: Vec<&str> = Vec::new();
    for candidate in &decision.candidates {
        if !legs.contains(&candidate.leg.as_str()) {
            legs.push(&candidate.leg);
        }
    }
    let mut rows = Vec::new();
    for leg in legs {
        if !leg.is_empty() {
            rows.push(Row::Leg(leg));
        }
        let mut of_leg: Vec<&RouteCandidate> = decision.candidates.iter().filter(|c| c.leg == leg).collect();
        let key = |c: &RouteCandidate| (c.verdict, c.estimate_ns.unwrap_or(f64::MAX));
        of_leg.sort_by(|a, b| key(a).0.cmp(&key(b).0).then(key(a).1.total_cmp(&key(b).1)));
        rows.extend(
            of_leg
                .into_iter()
                .map(|candidate| Row::Of { candidate, why: Lettering::new(SMALL).wrap(&candidate.why, WHY_WIDTH, 5) }),
        );
    }
    rows
}

impl Row<'_> {
    fn height(&self) -> f64 {
        match self {
            Row::Leg(_) => 26.0,
            Row::Of { why, .. } => (why.len() as f64 * LINE + 14.0).max(40.0),
        }
    }

    fn draw(&self, out: &mut ThemedDrawing, top: f64, longest: f64) {
        match self {
            Row::Leg(leg) => {
                let letters = Lettering::new(SMALL).bold().faint();
                out.lines((MARGIN, top + 17.0), letters, &letters.wrap(leg, WIDTH - 2.0 * MARGIN, 1));
            }
            Row::Of { candidate, why } => {
                out.line(&[(MARGIN, top), (WIDTH - MARGIN, top)], ShapeTone::Empty, false, false);
                candidate.draw(out, top, longest);
                out.lines((WHY, top + 16.0), Lettering::new(SMALL), why);
            }
        }
    }
}

impl RouteCandidate {
    fn draw(&self, out: &mut ThemedDrawing, top: f64, longest: f64) {
        out.sign((MARGIN + 8.0, top + 14.0), self.verdict.tone());
        let name = Lettering::new(12.5).bold();
        out.lines((NAME, top + 18.0), name, &name.wrap(&self.primitive, COST - NAME - 10.0, 1));
        let small = Lettering::new(SMALL).faint();
        let below = format!("{}, {}", self.backend, self.verdict.word());
        out.lines((NAME, top + 33.0), small, &small.wrap(&below, COST - NAME - 10.0, 1));
        let letters = Lettering::new(SMALL);
        let Some(ns) = self.estimate_ns.filter(|ns| ns.is_finite()) else {
            out.text((COST, top + 18.0), letters.faint(), "none");
            return;
        };
        let share = if longest > 0.0 { ns / longest } else { 0.0 };
        let bar = Area { x: COST, y: top + 8.0, width: share * (COST_WIDTH - 90.0), height: 12.0 };
        out.area(bar, self.verdict.tone(), &format!("{}: {}", self.primitive, time(ns)));
        out.text((COST + bar.width.max(0.5) + 6.0, top + 18.0), letters.bold(), &time(ns));
        out.lines((COST, top + 33.0), letters.faint(), &letters.wrap(&self.promise, COST_WIDTH + 16.0, 1));
    }
}

fn legend(out: &mut ThemedDrawing, y: f64) {
    let mut x = MARGIN;
    for (verdict, words) in [
        (CandidateVerdict::Chosen, "chosen"),
        (CandidateVerdict::Slower, "could serve, estimated to take longer"),
        (CandidateVerdict::Refused, "cannot serve, or was forbidden"),
    ] {
        out.sign((x + 8.0, y - 4.0), verdict.tone());
        let letters = Lettering::new(SMALL).faint();
        out.text((x + 22.0, y), letters, words);
        x += 22.0 + letters.width_of(words) + 28.0;
    }
}

/// A time in words: at most three digits that say something.
fn time(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns >= 1e9 => (ns / 1e9, "s"),
        ns if ns >= 1e6 => (ns / 1e6, "ms"),
        ns if ns >= 1e3 => (ns / 1e3, "us"),
        ns => (ns, "ns"),
    };
    let digits = if value >= 100.0 { 0 } else { 1 };
    format!("{value:.digits$} {unit}")
}

/// The picture in words.
fn description(decision: &Decision) -> String {
    let hops: Vec<&str> = decision.hops.iter().map(|hop| hop.primitive.as_str()).collect();
    let mut text = format!("The way is {}, by {}. ", decision.places.join(" to "), hops.join(", then "));
    for candidate in &decision.candidates {
        text += &format!("{} is {}", candidate.primitive, candidate.verdict.word());
        if let Some(ns) = candidate.estimate_ns.filter(|ns| ns.is_finite()) {
            text += &format!(", {}", time(ns));
        }
        text += &format!(": {}. ", candidate.why);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn decision(hops: usize, words: &str) -> Decision {
        let candidate = |at: usize, verdict| RouteCandidate {
            leg: if hops > 1 { format!("leg {}", at % 2) } else { String::new() },
            primitive: format!("primitive-{at}"),
            backend: "file".into(),
            verdict,
            estimate_ns: (verdict != CandidateVerdict::Refused).then_some(10f64.powi(at as i32)),
            promise: "2.15 GB/s, 12.0 us, 0.30 cores, measured".into(),
            why: words.repeat(at + 1),
        };
        let verdicts = [CandidateVerdict::Refused, CandidateVerdict::Slower, CandidateVerdict::Chosen];
        Decision {
            title: "a < b".into(),
            remark: words.into(),
            places: (0..=hops).map(|at| format!("ssd:/a/rather/long/path/{at}/{}", words.replace(' ', "-"))).collect(),
            hops: (0..hops)
                .map(|at| DecidedHop {
                    primitive: format!("primitive-{at}"),
                    backend: "file".into(),
                    promises: vec!["2.15 GB/s".into(), "12.0 us".into(), "0.30 cores".into()],
                    why: words.repeat(3),
                })
                .collect(),
            candidates: (0..9).map(|at| candidate(at, verdicts[at % 3])).collect(),
        }
    }

    #[test]
    fn all_texts_stay_in_the_frame_and_off_each_other() {
        for hops in 1..=2 {
            for words in ["short ", "a reason of some words that go on for a while, with 8% of this & that; ", "W"] {
                let drawing = drawing(&decision(hops, words));
                assert!(drawing.faults().is_empty(), "{hops} hops of {words:?}: {:#?}", drawing.faults());
            }
        }
    }

    #[test]
    fn every_candidate_is_there_with_its_time_and_its_reason() {
        let picture = svg(&decision(1, "because "));
        for at in 0..9 {
            assert!(picture.contains(&format!(">primitive-{at}</text>")), "{at}");
        }
        assert!(picture.contains("10.0 ms") || picture.contains(">10.0 us</text>"), "{picture}");
        assert!(picture.contains("primitive-0 is refused") && picture.contains("a &lt; b"));
        assert_eq!([1.0, 1500.0, 2.5e7, 3.21e9, 5e11].map(time), ["1.0 ns", "1.5 us", "25.0 ms", "3.2 s", "500 s"]);
    }

    #[test]
    fn a_decision_without_anything_is_drawn_too() {
        assert!(drawing(&Decision::default()).faults().is_empty());
    }
}
