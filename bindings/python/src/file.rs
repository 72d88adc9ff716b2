//! Files.

use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;

use datapipes::locks::Mutex;
use datapipes::{Dram, Error, ErrorKind, Result, Span, Ssd};
use pyo3::prelude::*;

use crate::buffer::{Buffer, allocate};
use crate::errors::{detached, invalid, json};
use crate::foreign::{Bytes, Use};
use crate::machine;
use crate::opened::{Moved, Opened, available, constraints, note};
use crate::pending::{self, Notifier, Pending};
use crate::shared;
use crate::short::{self, SHORT};

/// An open file. `datapipes.open` makes it.
#[pyclass(frozen, subclass, weakref, module = "datapipes", name = "File")]
pub(crate) struct File {
    path: PathBuf,
    mode: String,
    /// `None` once it is closed. Both are locked only by holders of the interpreter's lock.
    opened: Mutex<Option<Arc<Opened>>>,
    moved: Mutex<Moved>,
}

/// Reads from the file into memory of at least as many bytes.
fn read_into(ssd: &Ssd, offset: u64, target: &Dram, len: u64) -> Result<Moved> {
    let mut moved = Moved::new();
    if len == 0 {
        return Ok(moved);
    }
    if len <= SHORT {
        short::read(ssd, offset, &target.range(0, len as usize)?)?;
        moved.insert("pread", short::counters(len));
        return Ok(moved);
    }
    let pipe = machine().connect_with(ssd, target, &constraints(len))?;
    let workers = shared::workers(&pipe, len);
    if workers > 1 {
        return shared::read(ssd, (offset, target, len), workers);
    }
    let result = pipe.transfer(Span { source: offset, target: 0, len });
    note(&mut moved, &pipe);
    result.map(|()| moved)
}

/// Writes `len` bytes of memory to the file.
fn write_from(ssd: &Ssd, offset: u64, source: &Dram, len: u64) -> Result<Moved> {
    let mut moved = Moved::new();
    if len <= SHORT && short::may_write(ssd) {
        short::write(ssd, offset, source)?;
        moved.insert("pwrite", short::counters(len));
        return Ok(moved);
    }
    let pipe = machine().connect_with(source, ssd, &constraints(len))?;
    let result = pipe.transfer(Span { source: 0, target: offset, len });
    note(&mut moved, &pipe);
    result.map(|()| moved)
}

impl File {
    pub(crate) fn opened(&self, py: Python<'_>, operation: &'static str) -> PyResult<Arc<Opened>> {
        // The lock is free again before an exception is made, which may let other threads run.
        let opened = self.opened.lock().clone();
        match opened {
            Some(opened) if opened.owner.is_here() => Ok(opened),
            Some(parents) => self.in_child(py, &parents.ssd),
            None => Err(invalid(py, operation, format!("{} is closed", self.path.display()))),
        }
    }

    /// In a child made by `fork`, the same open file becomes a place of the child: what watches the
    /// parent's place is the parent's.
    fn in_child(&self, py: Python<'_>, parents: &Ssd) -> PyResult<Arc<Opened>> {
        let own = detached(py, || {
            let fd = parents.file().cached_fd().try_clone_to_owned();
            Ssd::from_fd(fd.map_err(|e| Error::io("open", e, self.path.display().to_string()))?, &self.path)
        })?;
        let own = Opened::new(own);
        let mut opened = self.opened.lock();
        let before = match &*opened {
            // Another thread of the child was quicker.
            Some(other) if other.owner.is_here() => return Ok(other.clone()),
            _ => opened.replace(own.clone()),
        };
        drop(opened);
        // What it holds of the parent's does nothing here.
        drop(before);
        Ok(own)
    }

    /// Lets go of the file. That may close it, and wait for its pipes.
    fn let_go(&self, py: Python<'_>) {
        let opened = self.opened.lock().take();
        py.detach(move || drop(opened));
    }

    fn add(&self, moved: Moved) {
        let mut sum = self.moved.lock();
        moved.iter().for_each(|(primitive, counters)| sum.entry(primitive).or_default().add(counters));
    }
}

#[pymethods]
impl File {
    #[new]
    fn new(py: Python<'_>, path: PathBuf, mode: &str) -> PyResult<File> {
        let opened = match mode {
            "r" | "rb" => detached(py, || Ssd::open(&path)),
            "r+" | "r+b" | "rb+" => detached(py, || Ssd::open_rw(&path)),
            "w" | "wb" | "w+" | "w+b" | "wb+" => detached(py, || Ssd::create(&path)),
            "x" | "xb" | "x+" | "x+b" | "xb+" => detached(py, || Ssd::create_new(&path)),
            other => Err(invalid(py, "open", format!("mode {other:?}: give \"r\", \"r+\", \"w\" or \"x\""))),
        };
        let opened = Mutex::new(Some(Opened::new(opened?)));
        Ok(File { path, mode: mode.to_owned(), opened, moved: Mutex::default() })
    }

    /// The path it was opened by.
    #[getter]
    fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// The mode it was opened with.
    #[getter]
    fn mode(&self) -> &str {
        &self.mode
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.opened.lock().is_none()
    }

    /// The descriptor, which stays the file's.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        Ok(self.opened(py, "fileno")?.ssd.file().cached_fd().as_raw_fd())
    }

    /// The present length in bytes.
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        let opened = self.opened(py, "size")?;
        detached(py, || opened.ssd.len())
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(usize::try_from(self.size(py)?).unwrap_or(usize::MAX))
    }

    /// An open file is true, also an empty one.
    fn __bool__(&self) -> bool {
        true
    }

    /// Closes it. Transfers that were started go on.
    fn close(&self, py: Python<'_>) {
        self.let_go(py);
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().opened(slf.py(), "open")?;
        Ok(slf)
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.let_go(py);
    }

    /// Memory placed for `len` bytes at `offset`, so that they are read past the page cache without
    /// a bounce. Nothing is read.
    #[pyo3(signature = (offset, len, *, prefault = true))]
    fn buffer_for(&self, py: Python<'_>, offset: u64, len: usize, prefault: bool) -> PyResult<Buffer> {
        let opened = self.opened(py, "allocate")?;
        let ssd = &opened.ssd;
        Ok(Buffer::over(detached(py, || place_for(ssd, offset, len, prefault))?))
    }

    /// Fills `buffer` from `offset`. Returns the number of bytes, fewer at the file's end.
    #[pyo3(signature = (buffer, offset = 0))]
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<u64> {
        let opened = self.opened(py, "read")?;
        let ssd = &opened.ssd;
        let bytes = Bytes::of(buffer, Use::Write, "read")?;
        let Some(target) = bytes.place() else { return Ok(0) };
        let (len, moved) = detached(py, || {
            let len = available(ssd, offset, target.len() as u64)?;
            Ok((len, read_into(ssd, offset, target, len)?))
        })?;
        self.add(moved);
        Ok(len)
    }

    /// Reads `len` bytes at `offset` (all, if no length is given) into a new Buffer, which is
    /// shorter at the file's end.
    #[pyo3(signature = (offset = 0, len = None))]
    fn read(&self, py: Python<'_>, offset: u64, len: Option<u64>) -> PyResult<Buffer> {
        let opened = self.opened(py, "read")?;
        let ssd = &opened.ssd;
        let (place, moved) = detached(py, || {
            let len = available(ssd, offset, len.unwrap_or(u64::MAX))?;
            // The device writes the pages first: touching them before would cost a pass.
            let place = place_for(ssd, offset, to_usize(len)?, false)?;
            let moved = read_into(ssd, offset, &place, len)?;
            Ok((place, moved))
        })?;
        self.add(moved);
        Ok(Buffer::over(place))
    }

    /// Writes all bytes of `buffer` at `offset`. Returns their number.
    #[pyo3(signature = (buffer, offset = 0))]
    fn write(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<u64> {
        let opened = self.opened(py, "write")?;
        let ssd = &opened.ssd;
        let bytes = Bytes::of(buffer, Use::Read, "write")?;
        let len = bytes.len() as u64;
        let moved = detached(py, || match bytes.place() {
            Some(source) => write_from(ssd, offset, source, len),
            None => Ok(Moved::new()),
        })?;
        self.add(moved);
        Ok(len)
    }

    /// Reads `(offset, len)` ranges one behind the other, with many requests under way. Returns
    /// `out`, or a new Buffer.
    #[pyo3(signature = (ranges, out = None))]
    fn read_ranges<'py>(
        &self,
        py: Python<'py>,
        ranges: Bound<'py, PyAny>,
        out: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let opened = self.opened(py, "read")?;
        let ssd = &opened.ssd;
        // What an object says of its length is not believed.
        let (mut spans, mut sum) = (Vec::new(), 0u64);
        for range in ranges.try_iter()? {
            let (source, len) = pair(&range?)?;
            if spans.try_reserve(1).is_err() {
                return Err(invalid(py, "read", format!("{} ranges are more than fit the memory", spans.len())));
            }
            spans.push(Span { source, target: sum, len });
            sum = sum.checked_add(len).ok_or_else(|| invalid(py, "read", "the ranges are longer than any memory"))?;
        }
        let out = match out {
            Some(out) => out,
            None => {
                let first = spans.first().map_or(0, |span| span.source);
                let place = detached(py, || place_for(ssd, first, to_usize(sum)?, false))?;
                Bound::new(py, Buffer::over(place))?.into_any()
            }
        };
        let bytes = Bytes::of(&out, Use::Write, "read")?;
        if bytes.len() as u64 != sum {
            return Err(invalid(py, "read", format!("ranges of {sum} bytes, and {} bytes to fill", bytes.len())));
        }
        let Some(target) = bytes.place() else { return Ok(out) };
        let moved = detached(py, || {
            let typical = sum / spans.len().max(1) as u64;
            let pipe = machine().connect_with(ssd, target, &constraints(typical.max(1)))?;
            let mut moved = Moved::new();
            let result = pipe.transfer_all(&spans);
            note(&mut moved, &pipe);
            result.map(|_| moved)
        })?;
        self.add(moved);
        Ok(out)
    }

    /// Starts to fill `buffer` from `offset`. The result is the number of bytes.
    #[pyo3(signature = (buffer, offset = 0))]
    fn pread(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<Pending> {
        self.start(py, buffer, offset, None)
    }

    /// As `pread`; `notifier` becomes readable when it is done.
    #[pyo3(signature = (buffer, offset, notifier))]
    fn _start(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64, notifier: &Notifier) -> PyResult<Pending> {
        self.start(py, buffer, offset, Some(notifier))
    }

    /// Returns when everything written would survive a power failure.
    fn fsync(&self, py: Python<'_>) -> PyResult<()> {
        let opened = self.opened(py, "sync")?;
        let ssd = &opened.ssd;
        detached(py, || ssd.sync())
    }

    /// Truncates or extends the file.
    fn truncate(&self, py: Python<'_>, len: u64) -> PyResult<()> {
        let opened = self.opened(py, "set length")?;
        let ssd = &opened.ssd;
        detached(py, || ssd.set_len(len))
    }

    /// What was moved so far, by primitive, as JSON.
    fn _report(&self, py: Python<'_>) -> PyResult<String> {
        let moved = self.moved.lock().clone();
        json(py, &moved)
    }

    fn __repr__(&self) -> String {
        let closed = if self.closed() { ", closed" } else { "" };
        format!("<datapipes.File {} {:?}{closed}>", self.path.display(), self.mode)
    }
}

impl File {
    fn start(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        offset: u64,
        notifier: Option<&Notifier>,
    ) -> PyResult<Pending> {
        let opened = self.opened(py, "read")?;
        let bytes = Bytes::of(buffer, Use::Write, "read")?;
        pending::start(py, &opened, offset, bytes, notifier)
    }
}

fn to_usize(len: u64) -> Result<usize> {
    usize::try_from(len).map_err(|_| Error::new(ErrorKind::OutOfMemory, "allocate", format!("{len} bytes")))
}

/// Memory placed for a part of the file.
fn place_for(ssd: &Ssd, offset: u64, len: usize, prefault: bool) -> Result<Dram> {
    match len {
        0 => allocate(0, false),
        _ => Dram::allocate_for_with(ssd, offset, len, datapipes::MapOptions::default().prefault(prefault)),
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // An object is dropped with the interpreter's lock held.
        let _ = Python::try_attach(|py| self.let_go(py));
    }
}

/// The two numbers of a range: a tuple, a list, a row of an array.
fn pair(range: &Bound<'_, PyAny>) -> PyResult<(u64, u64)> {
    let mut numbers = range.try_iter()?;
    match (numbers.next().transpose()?, numbers.next().transpose()?, numbers.next().transpose()?) {
        (Some(offset), Some(len), None) => Ok((offset.extract()?, len.extract()?)),
        _ => Err(invalid(range.py(), "read", "a range is an offset and a length")),
    }
}
