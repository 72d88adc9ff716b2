//! The external sort.

use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use datapipes::Error;
use datapipes::sort::text::{KeySpec, TextOptions};
use datapipes::sort::{NumberKind, RecordFormat, SortJob, sort_telling};
use pyo3::prelude::*;

use crate::errors::{attached, detached, invalid, json, to_py_at};
use crate::machine;

/// How often progress is told, and a signal looked for.
const TURN: Duration = Duration::from_millis(50);

/// What the records are.
fn format_of(
    py: Python<'_>,
    format: &str,
    record: Option<(usize, usize, usize)>,
    (reverse, unique): (bool, bool),
    (keys, separator): (Vec<String>, Option<u8>),
) -> PyResult<RecordFormat> {
    let number = |kind| Ok(RecordFormat::Numbers { kind, reverse });
    match (format, record) {
        ("lines", None) => {
            let keys = keys.iter().map(|key| attached(py, || KeySpec::parse(key.as_bytes())));
            let mut options = TextOptions::default().keys(keys.collect::<PyResult<_>>()?).separator(separator);
            if reverse {
                options.modifiers.set(b'r');
            }
            let order = attached(py, || options.unique(unique).compile())?;
            Ok(RecordFormat::Lines { order, terminator: b'\n' })
        }
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
            let why = format!("format {other:?}: give \"lines\", \"records\", \"u32\", \"u64\", \"i64\" or \"f64\"");
            Err(invalid(py, "sort", why))
        }
    }
}

/// Sorts a file into another. Returns the report as text and as JSON.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // Keyword arguments of one function of Python.
pub(crate) fn sort(
    py: Python<'_>,
    input: PathBuf,
    output: PathBuf,
    format: &str,
    record: Option<(usize, usize, usize)>,
    reverse: bool,
    unique: bool,
    keys: Vec<String>,
    separator: Option<u8>,
    memory: Option<u64>,
    progress: Option<Py<PyAny>>,
) -> PyResult<(String, String)> {
    let format = format_of(py, format, record, (reverse, unique), (keys, separator))?;
    // An error that is about one of the files has its path as the context.
    let named = |error: Error| {
        let path = [&input, &output].into_iter().find(|path| error.context() == path.display().to_string());
        to_py_at(py, &error, path.map(PathBuf::as_path))
    };
    let opened = detached(py, || Ok(SortJob::new(machine(), format, &input, &output)))?;
    let mut job = opened.map_err(named)?.unique(unique);
    if let Some(bytes) = memory {
        job = job.memory_bytes(bytes);
    }
    let mut stopped_by: Option<PyErr> = None;
    let outcome = detached(py, || {
        Ok(sort_telling(machine(), job, TURN, |seen| {
            Python::attach(|py| {
                if stopped_by.is_none() {
                    let counts = (seen.total.load(Relaxed), seen.read.load(Relaxed), seen.written.load(Relaxed));
                    let call = || progress.as_ref().map(|call| call.call1(py, counts)).transpose();
                    stopped_by = py.check_signals().and_then(|()| call()).err();
                }
                stopped_by.is_none()
            })
        }))
    });
    if let Some(error) = stopped_by {
        return Err(error);
    }
    let report = outcome?.map_err(named)?;
    Ok((report.to_string(), json(py, &report)?))
}
