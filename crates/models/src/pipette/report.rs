//! Our figures beside the paper's, and how far each can be trusted.

use serde::Serialize;

/// The agreement of our figure with the paper's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Agreement {
    /// It follows from the text alone.
    Exact,
    /// It is met, within the stated tolerance, by parameters that were chosen for it.
    Calibrated,
    /// It cannot be met: the text does not suffice, or contradicts itself. The note says where.
    OutOfReach,
    /// The paper prints no figure.
    Unpublished,
}

/// One figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// The paper's figure.
    pub published: Option<f64>,
    /// Our figure.
    pub ours: f64,
    /// Their agreement.
    pub standing: Agreement,
}

impl Cell {
    /// Returns the relative deviation: our figure over the paper's, less one.
    pub fn deviation(&self) -> Option<f64> {
        self.published.map(|p| self.ours / p - 1.0)
    }
}

/// A row of figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReportRow {
    /// The name of the row's system.
    pub name: String,
    /// The figures, one for each column.
    pub cells: Vec<Cell>,
}

/// A table or a figure of the paper.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Grid {
    /// The title.
    pub title: &'static str,
    /// The unit of all figures.
    pub unit: &'static str,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// The rows.
    pub rows: Vec<ReportRow>,
    /// What is exact, what is calibrated and how, and what is out of reach and why.
    pub note: &'static str,
}

/// A statement of the text about a figure whose values it does not print.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Relation {
    /// The statement.
    pub what: &'static str,
    /// The range of values in the paper.
    pub published: (f64, f64),
    /// The range of values in the model.
    pub ours: (f64, f64),
    /// Their agreement.
    pub standing: Agreement,
}

/// The whole comparison with the paper.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ModelReport {
    /// Tables 2 to 4 and figures 6 to 9.
    pub grids: Vec<Grid>,
    /// The statements of the text about figure 8.
    pub relations: Vec<Relation>,
}
