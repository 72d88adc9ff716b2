//! The order of records, as Python describes it.

use datapipes::sort::text::{KeySpec, TextOptions};
use datapipes::sort::{NumberKind, RecordFormat};
use pyo3::prelude::*;

use crate::errors::{attached, invalid};

/// What the records are and how they are ordered: the attributes of an object of Python.
#[derive(FromPyObject)]
pub(crate) struct Order {
    pub(crate) format: String,
    /// Length of a record, offset and length of its key.
    pub(crate) record: Option<(usize, usize, usize)>,
    pub(crate) reverse: bool,
    pub(crate) unique: bool,
    pub(crate) stable: bool,
    pub(crate) keys: Vec<String>,
    /// Ordering letters for keys without letters, or for the line.
    pub(crate) letters: String,
    pub(crate) separator: Option<u8>,
    pub(crate) zero_terminated: bool,
}

impl Order {
    pub(crate) fn compile(&self, py: Python<'_>) -> PyResult<RecordFormat> {
        let reverse = self.reverse;
        let number = |kind| Ok(RecordFormat::Numbers { kind, reverse });
        match (self.format.as_str(), self.record) {
            ("lines", None) => self.lines(py),
            ("records", Some((len, key_at, key_len))) => Ok(RecordFormat::Records { len, key_at, key_len, reverse }),
            ("records", None) => {
                Err(invalid(py, "sort", "format \"records\" needs record=(length, key offset, key length)"))
            }
            ("u32", None) => number(NumberKind::U32),
            ("u64", None) => number(NumberKind::U64),
            ("i64", None) => number(NumberKind::I64),
            ("f64", None) => number(NumberKind::F64),
            (other, Some(_)) => Err(invalid(py, "sort", format!("record= is for format \"records\", not {other:?}"))),
            (other, None) => {
                let why =
                    format!("format {other:?}: give \"lines\", \"records\", \"u32\", \"u64\", \"i64\" or \"f64\"");
                Err(invalid(py, "sort", why))
            }
        }
    }

    fn lines(&self, py: Python<'_>) -> PyResult<RecordFormat> {
        let keys = self.keys.iter().map(|key| attached(py, || KeySpec::parse(key.as_bytes())));
        let mut options = TextOptions::default().keys(keys.collect::<PyResult<_>>()?).separator(self.separator);
        for letter in self.letters.bytes().chain(self.reverse.then_some(b'r')) {
            if !options.modifiers.set(letter) {
                return Err(invalid(py, "sort", format!("no order has the letter {:?}", char::from(letter))));
            }
        }
        let order = attached(py, || options.stable(self.stable).unique(self.unique).compile())?;
        Ok(RecordFormat::Lines { order, terminator: if self.zero_terminated { 0 } else { b'\n' } })
    }
}
