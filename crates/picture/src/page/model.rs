//! What a page is made of, as values.

use serde::{Deserialize, Serialize};

/// A page.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HtmlPage {
    /// The title of the page and of the window.
    pub title: String,
    /// The answer in one sentence.
    pub headline: Headline,
    /// A few figures: a name and a value.
    pub facts: Vec<(String, String)>,
    /// The sections, in order.
    pub sections: Vec<PageSection>,
    /// A line at the end: the program, its version, the machine.
    pub footer: String,
}

/// The answer of a page, and whether it is a good one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Headline {
    /// One or more sentences.
    pub text: String,
    /// How it is to be taken.
    pub tone: Tone,
}

/// The way in which a sentence is to be taken. A word says so where something is not good, so that
/// nobody depends on a colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tone {
    /// It says what was found.
    #[default]
    Neutral,
    /// All is as it should be.
    Good,
    /// Something should be looked at.
    Warning,
    /// Something is wrong.
    Bad,
}

/// A part of a page below a heading.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PageSection {
    /// The heading.
    pub title: String,
    /// What there is to know before looking.
    pub note: String,
    /// What is in it, in order.
    pub blocks: Vec<PageBlock>,
    /// Whether it is folded away until somebody opens it.
    pub is_folded: bool,
}

/// A part of a section.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum PageBlock {
    /// A paragraph.
    Text(String),
    /// Lines whose spaces count, such as the report of a command.
    Verbatim(String),
    /// Figures over time.
    Timeline(TimelineChart),
    /// Amounts beside each other.
    Bars(BarList),
    /// A table.
    Table(PageTable),
    /// What was verified, and what came of it.
    Checks(Vec<PageCheck>),
}

/// A table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PageTable {
    /// What the table says.
    pub caption: String,
    /// Names of the columns. The first column names the rows.
    pub columns: Vec<String>,
    /// The cells, row by row.
    pub rows: Vec<Vec<String>>,
    /// How many columns at the end are numbers, and stand at the right.
    pub numbers: usize,
}

/// Amounts that are compared, with a bar each.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BarList {
    /// The words that say what is compared.
    pub caption: String,
    /// Each bar: its name, its amount, and the amount in words.
    pub bars: Vec<(String, f64, String)>,
    /// The amount of a bar of the whole width; the largest one if there is none.
    #[serde(default)]
    pub top: Option<f64>,
}

/// Something that was verified, or was not.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PageCheck {
    /// What was verified, with the figures.
    pub text: String,
    /// Whether it holds; `None` where it was not looked at.
    pub holds: Option<bool>,
}

/// How a chart over time shows its series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TimelineForm {
    /// A line each.
    #[default]
    Lines,
    /// Areas on top of each other, as parts of a whole.
    Areas,
}

/// Figures over time. Values are means of intervals that follow each other.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimelineChart {
    /// The words that say what is shown.
    pub title: String,
    /// The quantity and its unit.
    pub unit: String,
    /// Lines or areas.
    pub form: TimelineForm,
    /// The value at the top of the picture; without one, as much as the values need.
    pub top: Option<f64>,
    /// When the first interval begins, and when each interval ends, in seconds.
    pub seconds: Vec<f64>,
    /// The rows of figures; each has one value less than `seconds`.
    pub series: Vec<TimelineSeries>,
    /// When something began, and its name.
    pub marks: Vec<(f64, String)>,
}

/// A row of figures over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimelineSeries {
    /// What the legend says.
    pub name: String,
    /// The values of the intervals.
    pub values: Vec<f64>,
    /// The positions of intervals that have no value, such as a part of nothing. A line stops
    /// before them and goes on behind them; areas have 0 there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gaps: Vec<usize>,
}

impl TimelineSeries {
    /// A row with a value for each interval.
    pub fn new(name: impl Into<String>, values: Vec<f64>) -> TimelineSeries {
        TimelineSeries { name: name.into(), values, gaps: Vec::new() }
    }

    /// The intervals that have a value.
    pub(super) fn known(&self) -> impl Iterator<Item = (usize, f64)> + '_ {
        self.values.iter().copied().enumerate().filter(|(at, _)| !self.gaps.contains(at))
    }
}
