//! Charts of figures, as one SVG that stands alone (no scripts, fonts or links). Pure functions
//! from values to text.
//!
//! ```text
//!   title                       a panel: groups of bars, or lines; published figures hollow or dashed
//!   remark
//!   +--------+ +--------+
//!   | panel  | | panel  |       two beside each other
//!   +--------+ +--------+
//! ```

use crate::svg::{Drawing, FAINT, PALETTE, Text, escape};

/// The form in which a panel shows its series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A group of bars for each label.
    Bars,
    /// A line over the labels, at equal distances.
    Lines,
}

/// One row of figures.
#[derive(Clone, Debug)]
pub struct Series {
    /// What the legend says.
    pub name: String,
    /// Index into the palette; a published series has the colour of ours.
    pub color: usize,
    /// From the paper: drawn hollow, or dashed.
    pub is_published: bool,
    /// One for each label; `None` leaves a gap.
    pub values: Vec<Option<f64>>,
}

/// One chart.
#[derive(Clone, Debug)]
pub struct Panel {
    /// What is above it.
    pub title: String,
    /// The quantity on the axis.
    pub unit: String,
    /// Bars or lines.
    pub form: Form,
    /// Whether equal distances are equal ratios.
    pub is_logarithmic: bool,
    /// The places on the other axis.
    pub labels: Vec<String>,
    /// The rows of figures.
    pub series: Vec<Series>,
}

const PANEL: (f64, f64) = (612.0, 330.0);
const GAP: f64 = 16.0;
const MARGIN: f64 = 20.0;
const TOP: f64 = 72.0;
/// The margins of the plot within its panel: left, top, right, bottom.
const INSET: (f64, f64, f64, f64) = (58.0, 66.0, 14.0, 34.0);

/// Draws the panels, two in a row, below a title and a remark.
pub fn svg(title: &str, remark: &str, panels: &[Panel]) -> String {
    let rows = panels.len().div_ceil(2) as f64;
    let width = 2.0 * (PANEL.0 + MARGIN) + GAP;
    let height = TOP + rows * (PANEL.1 + GAP) + MARGIN;
    let mut out = Drawing::new((width, height), title);
    out.text(Text::new((MARGIN, 32.0), 18.0), title);
    out.text(Text::new((MARGIN, 54.0), 12.0).fill(FAINT), remark);
    for (at, chart) in panels.iter().enumerate() {
        let x = MARGIN + (at % 2) as f64 * (PANEL.0 + GAP);
        let y = TOP + (at / 2) as f64 * (PANEL.1 + GAP);
        panel(&mut out, chart, (x, y));
    }
    out.finish()
}

/// From values to heights.
struct Scale {
    low: f64,
    high: f64,
    is_logarithmic: bool,
    ticks: Vec<f64>,
}

impl Scale {
    fn of(panel: &Panel) -> Scale {
        let usable = |v: &f64| v.is_finite() && (!panel.is_logarithmic || *v > 0.0);
        let values = || panel.series.iter().flat_map(|s| s.values.iter().flatten().copied()).filter(usable);
        let most = values().fold(f64::MIN, f64::max);
        let most = if most > 0.0 { most } else { 1.0 };
        if panel.is_logarithmic {
            let least = values().fold(most, f64::min);
            let (low, high) = (libm::log10(least).floor() as i32, libm::log10(most).ceil() as i32);
            let high = high.max(low + 1);
            let ticks = (low..=high).map(|e| 10f64.powi(e)).collect();
            return Scale { low: 10f64.powi(low), high: 10f64.powi(high), is_logarithmic: true, ticks };
        }
        let rough = most / 5.0;
        let unit = 10f64.powi(libm::log10(rough).floor() as i32);
        let step = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|s| s * unit).find(|s| *s >= rough).unwrap_or(unit);
        let count = (most / step).ceil().max(1.0);
        let ticks = (0..=count as u32).map(|t| f64::from(t) * step).collect();
        Scale { low: 0.0, high: count * step, is_logarithmic: false, ticks }
    }

    /// 0 at the bottom, 1 at the top.
    fn part(&self, value: f64) -> f64 {
        let part = match self.is_logarithmic {
            true => libm::log(value.max(self.low) / self.low) / libm::log(self.high / self.low),
            false => value / self.high,
        };
        part.clamp(0.0, 1.0)
    }
}

fn panel(out: &mut Drawing, chart: &Panel, (x, y): (f64, f64)) {
    let scale = Scale::of(chart);
    let (left, top) = (x + INSET.0, y + INSET.1);
    let (right, bottom) = (x + PANEL.0 - INSET.2, y + PANEL.1 - INSET.3);
    let height_of = |value: f64| bottom - scale.part(value) * (bottom - top);
    out.add(format_args!(
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#d0d7de\"/>",
        PANEL.0, PANEL.1
    ));
    out.text(Text::new((x + 12.0, y + 22.0), 13.5), &chart.title);
    legend(out, chart, (x + 12.0, y + 42.0));
    out.text(Text::new((left, top - 6.0), 10.0).fill(FAINT), &chart.unit);
    for &tick in &scale.ticks {
        out.level((left, right), height_of(tick), &short(tick));
    }
    let slot = (right - left) / chart.labels.len().max(1) as f64;
    let middle = |at: usize| left + (at as f64 + 0.5) * slot;
    for (at, label) in chart.labels.iter().enumerate() {
        out.text(Text::new((middle(at), bottom + 16.0), 10.5).anchor("middle"), label);
    }
    for (nth, series) in chart.series.iter().enumerate() {
        let color = PALETTE[series.color % PALETTE.len()];
        match chart.form {
            Form::Bars => {
                let wide = slot * 0.84 / chart.series.len().max(1) as f64;
                for (at, value) in points(series) {
                    let from = middle(at) - slot * 0.42 + nth as f64 * wide;
                    bar(out, series, color, (from, height_of(value), wide - 1.5, bottom), value);
                }
            }
            Form::Lines => line(out, series, color, points(series).map(|(at, v)| (middle(at), height_of(v), v))),
        }
    }
}

/// The values that are there, with their places.
fn points(series: &Series) -> impl Iterator<Item = (usize, f64)> {
    series.values.iter().enumerate().filter_map(|(at, v)| v.filter(|v| v.is_finite()).map(|v| (at, v)))
}

fn bar(out: &mut Drawing, series: &Series, color: &str, (x, y, wide, bottom): (f64, f64, f64, f64), value: f64) {
    let fill = if series.is_published { "#ffffff" } else { color };
    out.add(format_args!(
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{wide:.1}\" height=\"{:.1}\" fill=\"{fill}\" stroke=\"{color}\">\
         <title>{}: {}</title></rect>",
        (bottom - y).max(0.5),
        escape(&series.name),
        short(value)
    ));
}

fn line(out: &mut Drawing, series: &Series, color: &str, points: impl Iterator<Item = (f64, f64, f64)>) {
    let points: Vec<_> = points.collect();
    out.line(color, series.is_published, points.iter().map(|(x, y, _)| Some((*x, *y))));
    let fill = if series.is_published { "#ffffff" } else { color };
    for (x, y, value) in points {
        out.add(format_args!(
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{fill}\" stroke=\"{color}\"><title>{}: {}</title></circle>",
            escape(&series.name),
            short(value)
        ));
    }
}

fn legend(out: &mut Drawing, chart: &Panel, (mut x, y): (f64, f64)) {
    for series in &chart.series {
        out.key((x, y), PALETTE[series.color % PALETTE.len()], series.is_published, &series.name);
        // An estimate: the viewer's font is not known here.
        x += 22.0 + series.name.chars().count() as f64 * 5.8;
    }
}

/// At most three digits that say something.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{}M", trimmed(value / 1e6)),
        v if v >= 1e4 => format!("{}k", trimmed(value / 1e3)),
        v if v >= 100.0 => format!("{value:.0}"),
        _ => trimmed(value),
    }
}

fn trimmed(value: f64) -> String {
    let digits = match value.abs() {
        10.0.. => 1,
        1.0.. => 2,
        0.1.. => 3,
        0.01.. => 4,
        0.001.. => 5,
        _ => 6,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A scale from 1 to 1000 would have another tick if a logarithm were a bit less than 3.
    #[test]
    fn logarithms_of_powers_of_ten_are_whole() {
        for exponent in 0..=22 {
            assert_eq!(libm::log10(10f64.powi(exponent)), f64::from(exponent));
        }
    }

    fn panel(form: Form, is_logarithmic: bool, values: &[Option<f64>]) -> Panel {
        let series = |is_published| Series { name: "a<b".into(), color: 7, is_published, values: values.to_vec() };
        Panel {
            title: "t & u".into(),
            unit: "us".into(),
            form,
            is_logarithmic,
            labels: values.iter().enumerate().map(|(n, _)| n.to_string()).collect(),
            series: vec![series(false), series(true)],
        }
    }

    #[test]
    fn what_is_there_is_drawn_within_its_panel() {
        let odd = [Some(3.0), None, Some(0.0), Some(f64::NAN), Some(1e7)];
        for form in [Form::Bars, Form::Lines] {
            for is_logarithmic in [false, true] {
                let picture = svg("x", "", &[panel(form, is_logarithmic, &odd), panel(form, is_logarithmic, &[])]);
                assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
                assert!(picture.contains("a&lt;b") && picture.contains("t &amp; u") && !picture.contains("NaN"));
                // Three values that can be drawn in each of two series, and a legend of four boxes
                // in all.
                let marks = if form == Form::Bars { "</title></rect>" } else { "<circle" };
                assert_eq!(picture.matches(marks).count(), 6, "{form:?}");
            }
        }
    }

    #[test]
    fn the_axis_holds_every_value() {
        for most in [0.3, 1.0, 7.9, 31.2, 2973.6, 9765.6] {
            for is_logarithmic in [false, true] {
                let scale = Scale::of(&panel(Form::Bars, is_logarithmic, &[Some(most), Some(most / 50.0)]));
                assert!(scale.high >= most * 0.999_999 && scale.part(most) > 0.3 && scale.part(most / 50.0) < 0.8);
                assert!(scale.ticks.len() >= 2 && scale.ticks.len() < 8);
            }
        }
        assert_eq!([0.0, 0.25, 12.0, 123.4, 12_345.0, 2.5e6].map(short), ["0", "0.25", "12", "123", "12.3k", "2.5M"]);
        assert_eq!([0.0025, 0.00004].map(short), ["0.0025", "0.00004"]);
    }
}
