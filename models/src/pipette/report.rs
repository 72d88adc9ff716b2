//! Figures of ours beside the paper's, and how far each can be trusted.

use serde::Serialize;

/// How a figure of ours stands to the paper's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Agreement {
    /// Follows from the text alone.
    Exact,
    /// Met, within the tolerance that is said, by parameters that were chosen for it.
    Calibrated,
    /// The text does not suffice, or contradicts itself; the note says where.
    OutOfReach,
    /// The paper prints no figure.
    Unpublished,
}

/// One figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// The paper's.
    pub published: Option<f64>,
    /// Ours.
    pub ours: f64,
    /// How they stand to each other.
    pub standing: Agreement,
}

impl Cell {
    /// Ours over the paper's, less one.
    pub fn deviation(&self) -> Option<f64> {
        self.published.map(|p| self.ours / p - 1.0)
    }
}

/// A row of figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReportRow {
    /// Whose.
    pub name: String,
    /// One for each column.
    pub cells: Vec<Cell>,
}

/// A table or a figure of the paper.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Grid {
    /// Which.
    pub title: &'static str,
    /// Of all its figures.
    pub unit: &'static str,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// The rows.
    pub rows: Vec<ReportRow>,
    /// What is exact, what is calibrated by what, what is out of reach and why.
    pub note: &'static str,
}

/// Something that the text says about a figure whose values it does not print.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Relation {
    /// What it says.
    pub what: &'static str,
    /// Between which values, by the paper.
    pub published: (f64, f64),
    /// Between which values, by the model.
    pub ours: (f64, f64),
    /// How they stand to each other.
    pub standing: Agreement,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelReport {
    /// Tables 2 to 4 and figures 6 to 9.
    pub grids: Vec<Grid>,
    /// What the text says of figure 8.
    pub relations: Vec<Relation>,
}
