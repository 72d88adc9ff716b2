//! The external sort.

use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use datapipes::sort::text::{KeySpec, TextOptions};
use datapipes::sort::{NumberKind, RecordFormat, SortJob};
use datapipes::{Error, ErrorKind};
use pyo3::prelude::*;

use crate::errors::{attached, detached, invalid, json};
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
    progress: Option<Bound<'_, PyAny>>,
) -> PyResult<(String, String)> {
    let format = format_of(py, format, record, (reverse, unique), (keys, separator))?;
    let mut job = detached(py, || SortJob::new(machine(), format, &input, &output))?.unique(unique);
    if let Some(bytes) = memory {
        job = job.memory_bytes(bytes);
    }
    let control = job.control.clone();
    let (tell, mut told) = mpsc::channel();
    let thread = attached(py, || {
        datapipes::threads::spawn("dp-py-sort", move || {
            let outcome = datapipes::sort::sort(machine(), job);
            // The receiver waits until this was told.
            let _ = tell.send(outcome);
        })
    })?;
    let mut stopped_by: Option<PyErr> = None;
    let outcome = loop {
        let turn = &mut told; // A receiver goes to another thread whole, not by a shared reference.
        let waited = detached(py, move || Ok(turn.recv_timeout(TURN)))?;
        let outcome = match waited {
            Ok(outcome) => Some(outcome),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                Some(Err(Error::new(ErrorKind::Panicked, "sort", "the thread of the sort panicked")))
            }
        };
        if stopped_by.is_none() {
            let seen = &control.progress;
            let counts = (seen.total.load(Relaxed), seen.read.load(Relaxed), seen.written.load(Relaxed));
            let called = py.check_signals().and_then(|()| progress.as_ref().map(|call| call.call1(counts)).transpose());
            if let Err(error) = called {
                control.stop();
                stopped_by = Some(error);
            }
        }
        if let Some(outcome) = outcome {
            break outcome;
        }
    };
    detached(py, || {
        let _ = datapipes::threads::join(thread);
        Ok(())
    })?;
    if let Some(error) = stopped_by {
        return Err(error);
    }
    let report = attached(py, || outcome)?;
    Ok((report.to_string(), json(py, &report)?))
}
