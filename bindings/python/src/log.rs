//! Logs: records that survive a crash.
//!
//! Unsafe code: a record that is copied out of a Python object.
#![allow(unsafe_code)]

use std::path::PathBuf;
use std::sync::Arc;

use datapipes::durable::log::{self, LogFolder, LogOptions};
use datapipes::locks::Mutex;
use datapipes::memory::guarded;
use datapipes::process::OwningProcess;
use datapipes::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::{attached, detached_at, invalid, json, to_py, to_py_at};
use crate::foreign::{Use, raw};
use crate::machine;

/// A log of records in a folder.
///
/// Records have numbers from 1 on, without gaps. One that was appended is durable when a later
/// `append_durable` or `sync` returns. If a crash left the log, opening it finds its end: what was
/// not durable is cut off, and damage of what was durable is `Corrupt`, with the offset.
#[pyclass(frozen, subclass, weakref, module = "datapipes", name = "Log")]
pub(crate) struct Log {
    path: PathBuf,
    /// `None` once it is closed. Locked only by holders of the interpreter's lock.
    log: Mutex<Option<Arc<log::Log>>>,
    owner: OwningProcess,
}

impl Log {
    fn opened(&self, py: Python<'_>, operation: &'static str) -> PyResult<Arc<log::Log>> {
        attached(py, || self.owner.check(operation))?;
        let log = self.log.lock().clone();
        log.ok_or_else(|| invalid(py, operation, format!("the log {} is closed", self.path.display())))
    }

    fn records(&self, py: Python<'_>, start: u64, operation: &'static str) -> PyResult<LogReader> {
        let log = self.opened(py, operation)?;
        let reader = detached_at(py, &self.path, || log.read_from(start))?;
        Ok(LogReader::over(reader, self.path.clone()))
    }
}

/// The bytes of a record. They are copied: another thread may change an array while it is written.
fn record_of(py: Python<'_>, log: &log::Log, object: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let buffer = raw(object, Use::Read, "append")?;
    let (len, most) = (buffer.len(), log.record_limit());
    if len > most {
        return Err(invalid(py, "append", format!("a record of {len} bytes; this log takes at most {most}")));
    }
    attached(py, || {
        let mut record = Vec::new();
        let no_memory = |_| Error::new(ErrorKind::OutOfMemory, "append", format!("{len} bytes for a record"));
        record.try_reserve_exact(len).map_err(no_memory)?;
        let Some(start) = buffer.start() else { return Ok(record) };
        guarded::install()?;
        // SAFETY: the exporter keeps the bytes where they are while `buffer` lives, and they lie side
        // by side (`raw` checked it). Where they are those of a mapped file, pages may be missing. The
        // vector has room for them.
        let copied = unsafe { guarded::copy(start.as_ptr(), record.as_mut_ptr(), len) };
        copied.map_err(|gone| {
            let (why, advice) = gone.reason();
            let why = format!("a page of the record is gone: {why}");
            Error::new(ErrorKind::Device, "append", why).with_bytes_done(gone.done as u64).with_advice(advice)
        })?;
        // SAFETY: all of them were written.
        unsafe { record.set_len(len) };
        Ok(record)
    })
}

#[pymethods]
impl Log {
    /// Opens the log of a folder for appending, and makes one if there is none. Only one writer may
    /// have it (`Busy`). A new segment has `segment_bytes`, and a batch of records that are made
    /// durable together at most `batch_bytes`.
    #[new]
    #[pyo3(signature = (folder, *, segment_bytes = None, batch_bytes = None))]
    fn new(py: Python<'_>, folder: PathBuf, segment_bytes: Option<u64>, batch_bytes: Option<u32>) -> PyResult<Log> {
        let mut options = LogOptions::default();
        options.segment_bytes = segment_bytes.unwrap_or(options.segment_bytes);
        options.batch_bytes = batch_bytes.unwrap_or(options.batch_bytes);
        let opened =
            detached_at(py, &folder, || log::Log::open(machine(), LogFolder::at(machine(), &folder), options))?;
        Ok(Log { path: folder, log: Mutex::new(Some(Arc::new(opened))), owner: OwningProcess::here() })
    }

    /// Appends a record, which has a buffer, and returns its number. It is durable after the next
    /// `sync`, or with a later record of `append_durable`.
    fn append(&self, py: Python<'_>, record: &Bound<'_, PyAny>) -> PyResult<u64> {
        let log = self.opened(py, "append")?;
        let record = record_of(py, &log, record)?;
        detached_at(py, &self.path, || Ok(log.append(&record)?.number()))
    }

    /// Appends a record, and returns its number when it is durable. Records of several threads share
    /// one write.
    fn append_durable(&self, py: Python<'_>, record: &Bound<'_, PyAny>) -> PyResult<u64> {
        let log = self.opened(py, "append")?;
        let record = record_of(py, &log, record)?;
        detached_at(py, &self.path, || log.append_durable(&record))
    }

    /// Returns when everything that was appended before is durable.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let log = self.opened(py, "sync")?;
        detached_at(py, &self.path, || log.sync())
    }

    /// One record that is durable.
    fn read<'py>(&self, py: Python<'py>, number: u64) -> PyResult<Bound<'py, PyBytes>> {
        let found = match number {
            0 => None,
            _ => self.records(py, number, "read")?.take(py)?.filter(|record| record.number == number),
        };
        match found {
            Some(record) => Ok(PyBytes::new(py, &record.payload)),
            None => {
                let context = format!("record {number} of {}: there is no such durable record", self.path.display());
                Err(to_py(py, &Error::new(ErrorKind::OutOfRange, "read", context)))
            }
        }
    }

    /// An iterator over the records that are durable now, from a number on (0: the first that
    /// exists): (number, bytes).
    #[pyo3(signature = (start = 0))]
    fn records_from(&self, py: Python<'_>, start: u64) -> PyResult<LogReader> {
        self.records(py, start, "read")
    }

    fn __iter__(&self, py: Python<'_>) -> PyResult<LogReader> {
        self.records(py, 0, "read")
    }

    /// Frees the space of records before a number, by whole segments, and returns how many segments
    /// were removed.
    fn release_before(&self, py: Python<'_>, number: u64) -> PyResult<usize> {
        let log = self.opened(py, "release")?;
        detached_at(py, &self.path, || log.release_before(number))
    }

    /// The longest record, in bytes.
    #[getter]
    fn record_limit(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.opened(py, "describe")?.record_limit())
    }

    /// The folder.
    #[getter]
    fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.log.lock().is_none()
    }

    /// What the log did since it was opened, as JSON.
    fn _stats(&self, py: Python<'_>) -> PyResult<String> {
        let log = self.opened(py, "describe")?;
        json(py, &detached_at(py, &self.path, || Ok(log.stats()))?)
    }

    /// Makes everything durable, and closes the log. Until it is opened again, a record that is
    /// missing or damaged is `Corrupt`, the last ones too.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(log) = self.log.lock().take() else { return Ok(()) };
        if !self.owner.is_here() {
            // The parent's: a child writes nothing.
            drop(log);
            return Ok(());
        }
        match Arc::try_unwrap(log) {
            Ok(log) => detached_at(py, &self.path, || log.close()),
            Err(log) => {
                self.log.lock().get_or_insert(log);
                let context = format!("the log {} is in use by another thread", self.path.display());
                Err(to_py(py, &Error::new(ErrorKind::Busy, "close", context)))
            }
        }
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().opened(slf.py(), "open")?;
        Ok(slf)
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        let closed = if self.closed() { ", closed" } else { "" };
        format!("<datapipes.Log {}{closed}>", self.path.display())
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let Some(log) = self.log.lock().take() else { return };
        // An object is dropped with the interpreter's lock held. Dropping the log writes.
        let _ = Python::try_attach(|py| py.detach(move || drop(log)));
    }
}

/// An iterator over records: (number, bytes). It ends at the log's end, or after its first error.
#[pyclass(frozen, module = "datapipes", name = "LogReader")]
pub(crate) struct LogReader {
    /// `None` while a thread reads. Locked only by holders of the interpreter's lock.
    reader: Mutex<Option<log::LogReader>>,
    /// The folder.
    path: PathBuf,
    owner: OwningProcess,
}

impl LogReader {
    fn over(reader: log::LogReader, path: PathBuf) -> LogReader {
        LogReader { reader: Mutex::new(Some(reader)), path, owner: OwningProcess::here() }
    }

    fn take(&self, py: Python<'_>) -> PyResult<Option<log::LogRecord>> {
        attached(py, || self.owner.check("read"))?;
        let Some(mut reader) = self.reader.lock().take() else {
            let error = Error::new(ErrorKind::Busy, "read", "another thread reads by this iterator");
            return Err(to_py(py, &error));
        };
        let (record, reader) = detached_at(py, &self.path, move || {
            let record = reader.next();
            Ok((record, reader))
        })?;
        *self.reader.lock() = Some(reader);
        record.transpose().map_err(|error| to_py_at(py, &error, Some(&self.path)))
    }
}

#[pymethods]
impl LogReader {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<(u64, Bound<'py, PyBytes>)>> {
        Ok(self.take(py)?.map(|record| (record.number, PyBytes::new(py, &record.payload))))
    }
}

/// Reads a log without opening it for appending: an iterator as of `Log`. Another process may
/// append meanwhile.
#[pyfunction]
#[pyo3(signature = (folder, start = 0))]
pub(crate) fn read_log(py: Python<'_>, folder: PathBuf, start: u64) -> PyResult<LogReader> {
    let open = || log::LogReader::open(machine(), &LogFolder::at(machine(), &folder), start);
    let reader = detached_at(py, &folder, open)?;
    Ok(LogReader::over(reader, folder))
}

/// Reads and checks a whole log. Returns a summary as JSON.
#[pyfunction]
pub(crate) fn examine_log(py: Python<'_>, folder: PathBuf) -> PyResult<String> {
    json(py, &detached_at(py, &folder, || log::examine(machine(), &LogFolder::at(machine(), &folder)))?)
}
