//! Rows of a table by their numbers, through the fine-grained cache.
//!
//! Unsafe code: the bytes of a caller's array as a slice, for the time of one call.
#![allow(unsafe_code)]

use std::path::PathBuf;

use datapipes::cache::{CacheOptions, FineGrained};
use datapipes::{Error, ErrorKind, Ssd};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;

use crate::errors::{detached_at, invalid, json};
use crate::foreign::{Use, raw};
use crate::machine;

/// Memory that a cache of any table may have: what it keeps of its own, and room for a few rows.
const MIN_ROOM: u64 = 16 << 20;

/// A table of rows of one length.
#[pyclass(frozen, module = "datapipes._datapipes", name = "RowReader")]
pub(crate) struct RowReader {
    cache: FineGrained,
    path: PathBuf,
    row: usize,
    first: u64,
    rows: u64,
}

#[pymethods]
impl RowReader {
    #[new]
    fn new(py: Python<'_>, path: PathBuf, row: usize, first: u64, budget: usize) -> PyResult<RowReader> {
        if row == 0 {
            return Err(invalid(py, "open", "rows of 0 bytes"));
        }
        let (cache, len) = detached_at(py, &path, || {
            let ssd = Ssd::open(&path)?;
            let len = ssd.len()?;
            // More memory than for all of its rows, with what is kept about them, is never used, but
            // it would be touched.
            let most = usize::try_from(len.saturating_mul(2).saturating_add(MIN_ROOM)).unwrap_or(usize::MAX);
            Ok((FineGrained::over(&ssd, CacheOptions::new(machine()).budget(budget.min(most)))?, len))
        })?;
        let payload = len.checked_sub(first).ok_or_else(|| {
            let context = format!("{}: rows from {first} on, of {len} bytes", path.display());
            crate::errors::to_py_at(py, &Error::new(ErrorKind::OutOfRange, "open", context), Some(&path))
        })?;
        let rows = payload / row as u64;
        Ok(RowReader { cache, path, row, first, rows })
    }

    /// The number of whole rows when it was opened.
    #[getter]
    fn rows(&self) -> u64 {
        self.rows
    }

    /// Reads rows by their numbers into `out`, which has exactly their bytes. Returns how many were
    /// cached, and how many needed the device.
    fn gather(&self, py: Python<'_>, ids: PyBuffer<i64>, out: &Bound<'_, PyAny>) -> PyResult<(u64, u64)> {
        let (mut numbers, mut offsets) = (Vec::new(), Vec::new());
        let count = ids.item_count();
        if numbers.try_reserve_exact(count).is_err() || offsets.try_reserve_exact(count).is_err() {
            let context = format!("the offsets of {count} rows");
            return Err(crate::errors::to_py(py, &Error::new(ErrorKind::OutOfMemory, "gather", context)));
        }
        numbers.resize(count, 0);
        ids.copy_to_slice(py, &mut numbers)?;
        for (at, id) in numbers.into_iter().enumerate() {
            let row = u64::try_from(id).ok().filter(|row| *row < self.rows);
            let row = row.ok_or_else(|| {
                let context = format!("number {at} asks for row {id} of a table of {} rows", self.rows);
                crate::errors::to_py(py, &Error::new(ErrorKind::OutOfRange, "gather", context))
            })?;
            // A row below `rows` ends within the file.
            offsets.push(self.first + row * self.row as u64);
        }
        drop(ids);
        let target = raw(out, Use::Write, "gather")?;
        if offsets.len().checked_mul(self.row) != Some(target.len()) {
            let why = format!("{} rows of {} bytes into {} bytes", offsets.len(), self.row, target.len());
            return Err(invalid(py, "gather", why));
        }
        let Some(start) = target.start() else { return Ok((0, 0)) };
        // SAFETY: the exporter keeps the bytes where they are while `target` lives, they are
        // writable and side by side (`raw` checked both), and this is their number. That no other
        // thread touches them during the call is asked of the caller (docs/python.md), as by every
        // function that fills an array without the interpreter's lock.
        let bytes = unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), target.len()) };
        let gathered = detached_at(py, &self.path, || self.cache.gather(&offsets, self.row, bytes)?.all());
        drop(target);
        let gathered = gathered?;
        Ok((gathered.hits, gathered.misses))
    }

    /// The cache's counters, as JSON.
    fn metrics(&self, py: Python<'_>) -> PyResult<String> {
        json(py, &self.cache.metrics())
    }

    fn explain(&self) -> String {
        self.cache.explain()
    }
}
