//! A chart over time: a picture that is as wide as its place, and axes of ordinary text beside it,
//! so that words keep their size on a narrow screen.

use std::fmt::Write as _;
use std::ops::Range;

use super::markup::Markup;
use super::model::{PageTable, TimelineChart, TimelineForm, TimelineSeries};
use super::table::table;
use crate::chart::short;

/// The picture's own units; it is stretched to its place.
const WIDE: f64 = 1000.0;
const HIGH: f64 = 200.0;
/// Rows of the table beside a chart: more are put together.
const MAX_ROWS: usize = 40;
/// Colours of series, as the style has them.
const COLORS: [&str; 8] = ["s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7"];

/// A chart of which every number can be drawn.
struct Drawable<'a> {
    chart: &'a TimelineChart,
    begin: f64,
    len: f64,
    top: f64,
    step: f64,
}

pub(super) fn chart(out: &mut Markup, chart: &TimelineChart) {
    let mut whole = chart.clone();
    mend(&mut whole);
    let chart = &whole;
    out.tag("<figure>\n<figcaption><strong>").words(&chart.title).tag("</strong> <span class=\"unit\">");
    out.words(&chart.unit).tag("</span></figcaption>\n");
    if chart.seconds.len() < 2 || chart.series.is_empty() {
        out.tag("<p>It was over before anything could be sampled.</p>\n</figure>\n");
        return;
    }
    let drawable = Drawable::new(chart);
    legend(out, chart);
    drawable.picture(out);
    drawable.times(out);
    out.tag("<details><summary>The same as a table</summary>\n");
    table(out, &as_table(chart));
    out.tag("</details>\n</figure>\n");
}

/// Makes numbers of what is none, and each row as long as there are intervals.
fn mend(chart: &mut TimelineChart) {
    let valid = chart.seconds.iter().take_while(|s| s.is_finite()).count();
    chart.seconds.truncate(valid);
    let intervals = valid.saturating_sub(1);
    for series in &mut chart.series {
        series.values.resize(intervals, 0.0);
        series.values.iter_mut().filter(|v| !v.is_finite()).for_each(|v| *v = 0.0);
    }
    chart.marks.retain(|(at, _)| at.is_finite());
}

fn legend(out: &mut Markup, chart: &TimelineChart) {
    out.tag("<ul class=\"legend\">");
    // Areas are named from the top down, as they lie.
    let mut order: Vec<usize> = (0..chart.series.len()).collect();
    if chart.form == TimelineForm::Areas {
        order.reverse();
    }
    for at in order {
        out.tag("<li><span class=\"key ").tag(COLORS[at % COLORS.len()]).tag("\"></span>");
        out.words(&chart.series[at].name).tag("</li>");
    }
    out.tag("</ul>\n");
}

impl<'a> Drawable<'a> {
    fn new(chart: &'a TimelineChart) -> Drawable<'a> {
        let begin = chart.seconds.first().copied().unwrap_or(0.0);
        let end = chart.seconds.last().copied().unwrap_or(1.0);
        let most = match chart.form {
            TimelineForm::Lines => chart.series.iter().flat_map(|s| &s.values).copied().fold(0.0, f64::max),
            TimelineForm::Areas => (0..chart.seconds.len() - 1)
                .map(|at| chart.series.iter().map(|s| s.values[at].max(0.0)).sum::<f64>())
                .fold(0.0, f64::max),
        };
        let wanted = chart.top.filter(|top| top.is_finite() && *top > 0.0).unwrap_or(most);
        let (top, step) = round(wanted);
        Drawable { chart, begin, len: (end - begin).max(1e-9), top: chart.top.map_or(top, |_| wanted), step }
    }

    fn x(&self, seconds: f64) -> f64 {
        ((seconds - self.begin) / self.len).clamp(0.0, 1.0) * WIDE
    }

    fn y(&self, value: f64) -> f64 {
        (1.0 - (value / self.top).clamp(0.0, 1.0)) * HIGH
    }

    fn picture(&self, out: &mut Markup) {
        let id = out.new_id();
        out.tag("<div class=\"plot\">\n<div class=\"ticks\" aria-hidden=\"true\">");
        let ticks: Vec<f64> = (0..=(self.top / self.step + 1e-6) as usize).map(|n| n as f64 * self.step).collect();
        for tick in &ticks {
            out.tag("<span style=\"bottom:").number(tick / self.top * 100.0, 2).tag("%\">");
            out.words(&on_axis(*tick, self.step)).tag("</span>");
        }
        out.tag("</div>\n<svg role=\"img\" viewBox=\"0 0 1000 200\" preserveAspectRatio=\"none\" aria-labelledby=\"c");
        out.integer(id).tag("t c").integer(id).tag("d\">\n<title id=\"c").integer(id).tag("t\">");
        out.words(&self.chart.title).tag(", ").words(&self.chart.unit).tag("</title>\n<desc id=\"c").integer(id);
        out.tag("d\">").words(&description(self.chart)).tag("</desc>\n<path class=\"grid\" d=\"");
        for tick in &ticks {
            out.tag("M0 ").number(self.y(*tick), 1).tag("H1000");
        }
        out.tag("\"/>\n");
        match self.chart.form {
            TimelineForm::Lines => self.lines(out),
            TimelineForm::Areas => self.areas(out),
        }
        for (at, _) in &self.chart.marks {
            out.tag("<path class=\"mark\" d=\"M").number(self.x(*at), 1).tag(" 0V200\"/>\n");
        }
        out.tag("</svg>\n</div>\n");
    }

    /// Each interval is a step: its value is a mean, and a slope would say more than is known.
    fn lines(&self, out: &mut Markup) {
        for (nth, series) in self.chart.series.iter().enumerate() {
            out.tag("<path class=\"line ").tag(COLORS[nth % COLORS.len()]).tag("\" d=\"");
            let mut follows = None;
            for (at, value) in series.known() {
                out.tag(if follows == Some(at) { "L" } else { "M" });
                self.step(out, value, self.chart.seconds[at], self.chart.seconds[at + 1]);
                follows = Some(at + 1);
            }
            out.tag("\"/>\n");
        }
    }

    fn areas(&self, out: &mut Markup) {
        let mut below = vec![0.0; self.chart.seconds.len() - 1];
        for (nth, series) in self.chart.series.iter().enumerate() {
            out.tag("<path class=\"area ").tag(COLORS[nth % COLORS.len()]).tag("\" d=\"");
            // Along its upper edge, and back along the lower one.
            for (at, value) in series.values.iter().enumerate() {
                let (begin, end) = (self.chart.seconds[at], self.chart.seconds[at + 1]);
                out.tag(if at == 0 { "M" } else { "L" });
                self.step(out, below[at] + value.max(0.0), begin, end);
            }
            for at in (0..below.len()).rev() {
                out.tag("L");
                self.step(out, below[at], self.chart.seconds[at + 1], self.chart.seconds[at]);
            }
            out.tag("Z\"/>\n");
            below.iter_mut().zip(&series.values).for_each(|(below, value)| *below += value.max(0.0));
        }
    }

    /// A level line from one time to another.
    fn step(&self, out: &mut Markup, value: f64, begin: f64, end: f64) {
        out.number(self.x(begin), 1).tag(" ").number(self.y(value), 1).tag("H").number(self.x(end), 1);
    }

    /// The time axis, and above it the names of what began.
    fn times(&self, out: &mut Markup) {
        out.tag("<div class=\"times\" aria-hidden=\"true\">");
        let (_, step) = round(self.len);
        for at in (0..).map(|n| f64::from(n) * step).take_while(|at| *at <= self.len * 0.84) {
            out.tag("<span style=\"left:").number(at / self.len * 100.0, 2).tag("%\">");
            out.words(&on_axis(self.begin + at, step)).tag("</span>");
        }
        out.tag("<span class=\"last\">").words(&short(self.begin + self.len)).tag(" s</span></div>\n");
        if !self.chart.marks.is_empty() {
            out.tag("<p class=\"marks\">");
            for (nth, (at, name)) in self.chart.marks.iter().enumerate() {
                out.tag(if nth == 0 { "Dashed lines: " } else { "; " });
                out.words(name).tag(" from ").number(*at, 2).tag(" s");
            }
            out.tag("</p>\n");
        }
    }
}

/// A round number not below a value, and a round step of at most a quarter of it.
fn round(value: f64) -> (f64, f64) {
    let value = if value.is_finite() && value > 0.0 { value } else { 1.0 };
    let rough = value / 4.0;
    let unit = 10f64.powi(libm::log10(rough).floor() as i32);
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|s| s * unit).find(|s| *s >= rough * 0.999).unwrap_or(unit);
    ((value / step * 0.999).ceil().max(1.0) * step, step)
}

/// What somebody who does not see the picture is told: for each row its mean, and where it is most.
fn description(chart: &TimelineChart) -> String {
    let mut text = String::new();
    for series in &chart.series {
        let most = series.known().max_by(|a, b| a.1.total_cmp(&b.1));
        let Some((at, most)) = most else { continue };
        let (when, busy) = (chart.seconds[at], busy(series));
        let average = mean(chart, series, busy.clone()).map_or_else(String::new, short);
        let between = match busy == (0..series.values.len()) {
            true => String::new(),
            false => format!(" from {:.2} to {:.2} s", chart.seconds[busy.start], chart.seconds[busy.end]),
        };
        // Writing to a String cannot fail.
        let _ =
            write!(text, "{}: {average} on average{between}, at most {} at {when:.2} s. ", series.name, short(most));
    }
    for (at, name) in &chart.marks {
        let _ = write!(text, "{name} begins at {at:.2} s. ");
    }
    text
}

/// The intervals from the first that is not 0 to the last: a phase in which nothing of it ran says
/// nothing of its rate.
fn busy(series: &TimelineSeries) -> Range<usize> {
    let not_zero = || series.known().filter(|(_, value)| *value != 0.0).map(|(at, _)| at);
    match (not_zero().next(), not_zero().last()) {
        (Some(first), Some(last)) => first..last + 1,
        _ => 0..series.values.len(),
    }
}

/// The mean of some intervals over their time, not over their number, for their lengths differ.
/// `None` where none of them has a value.
fn mean(chart: &TimelineChart, series: &TimelineSeries, intervals: Range<usize>) -> Option<f64> {
    let spans = series.known().filter(|(at, _)| intervals.contains(at));
    let spans = spans.map(|(at, value)| (value, chart.seconds[at + 1] - chart.seconds[at]));
    let (sum, time) = spans.fold((0.0, 0.0), |(sum, time), (v, s)| (sum + v * s, time + s));
    (time > 0.0).then(|| sum / time)
}

/// A number on an axis, with the digits that its step needs to tell it from the next.
fn on_axis(value: f64, step: f64) -> String {
    let (scale, ending) = match value.abs() {
        v if v >= 1e6 => (1e6, "M"),
        v if v >= 1e4 => (1e3, "k"),
        _ => (1.0, ""),
    };
    let is_whole = |digits: &usize| {
        let steps = step / scale * 10f64.powi(i32::try_from(*digits).unwrap_or(9));
        (steps - steps.round()).abs() < steps * 1e-6
    };
    let digits = (0..9).find(is_whole).unwrap_or(9);
    let text = format!("{:.digits$}", value / scale);
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{ending}")
}

fn as_table(chart: &TimelineChart) -> PageTable {
    let intervals = chart.seconds.len() - 1;
    let each = intervals.div_ceil(MAX_ROWS).max(1);
    let mut columns = vec!["seconds".to_owned()];
    columns.extend(chart.series.iter().map(|series| series.name.clone()));
    let rows = (0..intervals).step_by(each).map(|from| {
        let to = (from + each).min(intervals);
        let cell = |series: &TimelineSeries| mean(chart, series, from..to).map_or_else(|| "none".to_owned(), short);
        let time = format!("{:.2} to {:.2}", chart.seconds[from], chart.seconds[to]);
        std::iter::once(time).chain(chart.series.iter().map(cell)).collect()
    });
    let caption = format!("{}, {}", chart.title, chart.unit);
    PageTable { caption, numbers: chart.series.len(), rows: rows.collect(), columns }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp(intervals: usize) -> TimelineChart {
        let series =
            |name: &str, scale: f64| TimelineSeries::new(name, (0..intervals).map(|n| n as f64 * scale).collect());
        TimelineChart {
            title: "rate".into(),
            unit: "GB/s".into(),
            seconds: (0..=intervals).map(|n| n as f64 * 0.1).collect(),
            series: vec![series("read", 1.0), series("written", 0.5)],
            ..TimelineChart::default()
        }
    }

    #[test]
    fn a_table_has_means_over_time_and_few_rows() {
        let mut chart = ramp(100);
        mend(&mut chart);
        let table = as_table(&chart);
        assert_eq!(table.rows.len(), 34);
        assert_eq!(table.rows[0], ["0.00 to 0.30", "1", "0.5"]);
        // The first interval is 0, so the mean is that of the others.
        let said = description(&chart);
        assert!(said.starts_with("read: 50 on average from 0.10 to 10.00 s, at most 99 at 9.90 s. "), "{said}");
        // Intervals count by their length.
        let uneven = TimelineChart { seconds: vec![0.0, 3.0, 4.0], ..TimelineChart::default() };
        let series = TimelineSeries::new("a", vec![1.0, 5.0]);
        assert!((mean(&uneven, &series, 0..2).unwrap() - 2.0).abs() < 1e-9);
    }

    #[test]
    fn an_interval_without_a_value_is_a_gap_and_no_zero() {
        let mut chart = ramp(4);
        chart.series.truncate(1);
        chart.series[0] = TimelineSeries { gaps: vec![1], ..TimelineSeries::new("hits", vec![90.0, 0.0, 80.0, 70.0]) };
        let mut out = Markup::default();
        super::chart(&mut out, &chart);
        let html = out.finish();
        let line = html.split("class=\"line s0\" d=\"").nth(1).unwrap().split('"').next().unwrap();
        assert_eq!((line.matches('M').count(), line.matches('L').count()), (2, 1), "{line}");
        assert!(line.starts_with("M0 20H250M500 "), "{line}");
        assert_eq!(as_table(&chart).rows[1], ["0.10 to 0.20", "none"]);
        assert!(description(&chart).starts_with("hits: 80 on average, at most 90 "), "{}", description(&chart));
    }

    #[test]
    fn numbers_on_an_axis_differ() {
        for value in [0.000_9, 0.003, 0.02, 0.11, 1.0, 3.2, 9.0, 13.0, 99.0, 1234.5, 13_000.0, 1.3e6, 9e9] {
            let (top, step) = round(value);
            let ticks: Vec<String> =
                (0..=(top / step + 1e-6) as usize).map(|n| on_axis(n as f64 * step, step)).collect();
            let spaces: Vec<f64> = ticks.iter().map(|tick| number(tick)).collect();
            let evenly = spaces.windows(2).all(|pair| (pair[1] - pair[0] - step).abs() < step * 1e-6);
            assert!(evenly, "{value}: {ticks:?}");
            assert!(ticks.iter().all(|tick| tick.len() <= 8), "{value}: {ticks:?}");
        }
        assert_eq!(on_axis(0.015, 0.005), "0.015");
    }

    /// The number of a text on an axis.
    fn number(text: &str) -> f64 {
        let (digits, scale) = match text.strip_suffix('k') {
            Some(digits) => (digits, 1e3),
            None => text.strip_suffix('M').map_or((text, 1.0), |digits| (digits, 1e6)),
        };
        digits.parse::<f64>().unwrap() * scale
    }

    #[test]
    fn areas_lie_on_each_other_within_the_picture() {
        let chart = TimelineChart {
            form: TimelineForm::Areas,
            top: Some(2.0),
            seconds: vec![0.0, 1.0, 2.0],
            series: ["a", "b"].map(|n| TimelineSeries::new(n, vec![1.0, 0.5])).into(),
            ..TimelineChart::default()
        };
        let mut out = Markup::default();
        super::chart(&mut out, &chart);
        let html = out.finish();
        assert!(html.contains("class=\"area s0\" d=\"M0 100H500L500 150H1000L1000 200H500L500 200H0Z\""), "{html}");
        assert!(html.contains("class=\"area s1\" d=\"M0 0H500L500 100H1000L1000 150H500L500 100H0Z\""), "{html}");
    }

    #[test]
    fn scales_are_round_and_hold_their_values() {
        for value in [0.0, 0.003, 0.9, 1.0, 3.2, 4.0, 5.1, 99.0, 1234.5, f64::NAN, 1e300] {
            let (top, step) = round(value);
            let value = if value.is_finite() && value > 0.0 { value } else { 1.0 };
            assert!(top >= value * 0.999 && top <= value * 2.6, "{value}: {top}");
            assert!((2.0..=5.01).contains(&(top / step)), "{value}: {top} in steps of {step}");
        }
    }

    #[test]
    fn what_was_not_sampled_is_said() {
        for chart in [TimelineChart::default(), TimelineChart { seconds: vec![f64::NAN, 1.0], ..ramp(0) }] {
            let mut out = Markup::default();
            super::chart(&mut out, &chart);
            assert!(out.finish().contains("before anything could be sampled"));
        }
    }
}
