//! Files.

use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use datapipes::locks::Mutex;
use datapipes::{Counters, Dram, Error, ErrorKind, Result, Span, Ssd};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};

use crate::at_once;
use crate::buffer::{Buffer, allocate};
use crate::device;
use crate::errors::{detached_at, invalid, json, to_py_at};
use crate::foreign::{Bytes, Place, Use};
use crate::gguf;
use crate::header::{self, Tensor, Texts};
use crate::machine;
use crate::notifier::Notifier;
use crate::opened::{Moved, Opened, available, check_memory, constraints, note};
use crate::pending::{self, Pending};
use crate::shared;
use crate::short::{self, AT_ONCE, SHORT};
use crate::turn;

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
fn read_into(opened: &Opened, offset: u64, target: &Dram, len: u64) -> Result<Moved> {
    let ssd = &opened.ssd;
    let mut moved = Moved::new();
    if len == 0 {
        return Ok(moved);
    }
    if len <= SHORT {
        short::read(ssd, offset, &target.range(0, len as usize)?)?;
        moved.insert("pread", short::counters(len));
        return Ok(moved);
    }
    if len <= AT_ONCE && opened.may_be_cached(offset, len) {
        let hit = short::read_cached(ssd, offset, &target.range(0, len as usize)?)?;
        opened.note_cached(hit);
        if hit {
            moved.insert("pread-cached", short::counters(len));
            return Ok(moved);
        }
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
fn write_from(ssd: &Ssd, offset: u64, source: &Place, len: u64) -> Result<Moved> {
    let mut moved = Moved::new();
    if let Place::Host(source) = source
        && len <= SHORT
        && short::may_write(ssd)
    {
        short::write(ssd, offset, source)?;
        moved.insert("pwrite", short::counters(len));
        return Ok(moved);
    }
    let pipe = machine().connect_with(source.locator(), ssd, &constraints(len))?;
    let result = pipe.transfer(Span { source: 0, target: offset, len });
    note(&mut moved, &pipe);
    result.map(|()| moved)
}

impl File {
    pub(crate) fn opened(&self, py: Python<'_>, operation: &'static str) -> PyResult<Arc<Opened>> {
        pending::sweep(py);
        // The lock is free again before an exception is made, which may let other threads run.
        let opened = self.opened.lock().clone();
        match opened {
            Some(opened) if opened.owner.is_here() => Ok(opened),
            Some(parents) => self.in_child(py, &parents.ssd),
            None => {
                let error =
                    Error::new(ErrorKind::InvalidInput, operation, format!("{} is closed", self.path.display()));
                Err(to_py_at(py, &error, Some(&self.path)))
            }
        }
    }

    /// In a child made by `fork`, the same open file becomes a place of the child: what watches the
    /// parent's place is the parent's.
    fn in_child(&self, py: Python<'_>, parents: &Ssd) -> PyResult<Arc<Opened>> {
        let own = detached_at(py, &self.path, || {
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

    /// As [`opened`](Self::opened), for a change of the file.
    pub(crate) fn writable(&self, py: Python<'_>, operation: &'static str) -> PyResult<Arc<Opened>> {
        let opened = self.opened(py, operation)?;
        if opened.ssd.file().writable() {
            return Ok(opened);
        }
        let why = format!("{} is open for reading only (mode {:?})", self.path.display(), self.mode);
        let error = Error::new(ErrorKind::InvalidInput, operation, why);
        Err(to_py_at(py, &error.with_advice("open it with mode \"r+\""), Some(&self.path)))
    }

    fn add(&self, moved: Moved) {
        add(&mut self.moved.lock(), &moved);
    }
}

/// Adds what was moved to a sum.
fn add(sum: &mut Moved, moved: &Moved) {
    moved.iter().for_each(|(primitive, counters)| sum.entry(primitive).or_default().add(counters));
}

/// The bytes of a GGUF file that are read first, in which most headers end.
const FIRST_PART: u64 = 1 << 20;

#[pymethods]
impl File {
    #[new]
    fn new(py: Python<'_>, path: PathBuf, mode: &str) -> PyResult<File> {
        #[allow(clippy::redundant_closure)] // A generic function is none of every reference.
        let open: fn(&Path) -> Result<Ssd> = match mode {
            "r" | "rb" => |path| Ssd::open(path),
            "r+" | "r+b" | "rb+" => |path| Ssd::open_rw(path),
            "w" | "wb" | "w+" | "w+b" | "wb+" => |path| Ssd::create(path),
            "x" | "xb" | "x+" | "x+b" | "xb+" => |path| Ssd::create_new(path),
            other => {
                let why = format!("mode {other:?}: give \"r\", \"r+\", \"w\" or \"x\"");
                return Err(invalid(py, "open", why));
            }
        };
        let opened = detached_at(py, &path, || open(&path))?;
        let opened = Mutex::new(Some(Opened::new(opened)));
        Ok(File { path, mode: mode.to_owned(), opened, moved: Mutex::default() })
    }

    /// The path it was opened by.
    #[getter]
    fn path(&self) -> &Path {
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
        detached_at(py, &self.path, || opened.ssd.len())
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
        Ok(Buffer::over(detached_at(py, &self.path, || place_for(ssd, offset, len, prefault))?))
    }

    /// Memory whose pages are those of the file until they are written: nothing is read or copied.
    /// The file must not be truncated while it is used.
    #[pyo3(signature = (offset, len))]
    fn map(&self, py: Python<'_>, offset: u64, len: usize) -> PyResult<Buffer> {
        let opened = self.opened(py, "map")?;
        let ssd = &opened.ssd;
        let place = detached_at(py, &self.path, || {
            if len == 0 {
                return allocate(0, false);
            }
            let place = Dram::map_file(ssd, offset, len)?;
            // All at once is quicker than page by page. Where a page is gone or there is no memory for
            // tables, whoever touches it learns that.
            let _ = place.memory().prefault();
            Ok(place)
        })?;
        let counters = Counters::default().transfers(1).bytes(len as u64).cached_bytes(len as u64);
        self.add(Moved::from([("mapped", counters)]));
        Ok(Buffer::over(place))
    }

    /// The share of the file that the page cache has, from 0 to 1, or None where it is not known.
    fn cached_share(&self, py: Python<'_>) -> PyResult<Option<f64>> {
        let opened = self.opened(py, "look at")?;
        detached_at(py, &self.path, || Ok(datapipes::cached_share(&opened.ssd)))
    }

    /// Fills `buffer` from `offset`. Returns the number of bytes, fewer at the file's end.
    #[pyo3(signature = (buffer, offset = 0))]
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<u64> {
        let opened = self.opened(py, "read")?;
        if let Some(len) = at_once::read(py, &opened, offset, buffer)? {
            let primitive = if len as u64 <= SHORT { "pread" } else { "pread-cached" };
            self.moved.lock().entry(primitive).or_default().add(&short::counters(len as u64));
            return Ok(len as u64);
        }
        let ssd = &opened.ssd;
        let bytes = Bytes::anywhere(buffer, Use::Write, "read")?;
        let Some(target) = bytes.place() else { return Ok(0) };
        let (len, moved) = detached_at(py, &self.path, || {
            let len = available(ssd, offset, target.len())?;
            let moved = match target {
                Place::Host(target) => read_into(&opened, offset, target, len)?,
                Place::Device(target) => device::read::read_into(ssd, offset, target, len)?,
            };
            Ok((len, moved))
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
        let (place, moved) = detached_at(py, &self.path, || {
            let len = available(ssd, offset, len.unwrap_or(u64::MAX))?;
            // The device writes the pages first: touching them before would cost a pass.
            let place = place_for(ssd, offset, to_usize(len)?, false)?;
            let moved = read_into(&opened, offset, &place, len)?;
            Ok((place, moved))
        })?;
        self.add(moved);
        Ok(Buffer::over(place))
    }

    /// Writes all bytes of `buffer` at `offset`. Returns their number.
    #[pyo3(signature = (buffer, offset = 0))]
    fn write(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<u64> {
        let opened = self.writable(py, "write")?;
        let ssd = &opened.ssd;
        let bytes = Bytes::anywhere(buffer, Use::Read, "write")?;
        let len = bytes.len();
        let moved = detached_at(py, &self.path, || match bytes.place() {
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
        for (at, range) in ranges.try_iter()?.enumerate() {
            let (source, len) = pair(&range?)?;
            if at % MANY == MANY - 1 {
                py.detach(|| ());
                py.check_signals()?;
            }
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
                let place = detached_at(py, &self.path, || place_for(ssd, first, to_usize(sum)?, false))?;
                Bound::new(py, Buffer::over(place))?.into_any()
            }
        };
        let bytes = Bytes::anywhere(&out, Use::Write, "read")?;
        if bytes.len() != sum {
            return Err(invalid(py, "read", format!("ranges of {sum} bytes, and {} bytes to fill", bytes.len())));
        }
        let Some(target) = bytes.place() else { return Ok(out) };
        let moved = detached_at(py, &self.path, || {
            let typical = sum / spans.len().max(1) as u64;
            let pipe = machine().connect_with(ssd, target.locator(), &constraints(typical.max(1)))?;
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
        let begun = Instant::now();
        let opened = self.opened(py, "read")?;
        if let Some(len) = at_once::read(py, &opened, offset, buffer)? {
            turn::add(begun);
            return Ok(Pending::done_at_once(len as u64, &opened));
        }
        let bytes = Bytes::anywhere(buffer, Use::Write, "read")?;
        pending::start(py, &opened, offset, bytes, None)
    }

    /// Fills `buffer` from `offset` if the page cache has the bytes, and they are not too many.
    /// Returns their number n, or -1 - n where the event loop should have a turn, or None: then the
    /// bytes of `buffer` may be old or new.
    #[pyo3(signature = (buffer, offset))]
    fn _at_once(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<Option<i64>> {
        let begun = Instant::now();
        let opened = self.opened(py, "read")?;
        let done = at_once::read(py, &opened, offset, buffer)?.map(|len| len as i64);
        Ok(done.map(|len| {
            turn::add(begun);
            if turn::is_due() { -1 - len } else { len }
        }))
    }

    /// As `pread`, of what was not read at once; `notifier` becomes readable when it is done.
    #[pyo3(signature = (buffer, offset, notifier))]
    fn _start(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64, notifier: &Notifier) -> PyResult<Pending> {
        let begun = Instant::now();
        let opened = self.opened(py, "read")?;
        let bytes = Bytes::anywhere(buffer, Use::Write, "read")?;
        let pending = pending::start(py, &opened, offset, bytes, Some(notifier))?;
        turn::note(begun, pending.is_done());
        Ok(pending)
    }

    /// Returns when everything written would survive a power failure.
    fn fsync(&self, py: Python<'_>) -> PyResult<()> {
        let opened = self.opened(py, "sync")?;
        let ssd = &opened.ssd;
        detached_at(py, &self.path, || ssd.sync())
    }

    /// Truncates or extends the file.
    fn truncate(&self, py: Python<'_>, len: u64) -> PyResult<()> {
        let opened = self.writable(py, "set length")?;
        let ssd = &opened.ssd;
        detached_at(py, &self.path, || ssd.set_len(len))
    }

    /// The tensors of a safetensors file, with a header of `len` bytes: (name, type, shape, begin,
    /// end), in the order of their bytes; and the texts about the file.
    fn _tensors(
        &self,
        py: Python<'_>,
        len: u64,
        payload: u64,
        sizes: HashMap<String, u64>,
    ) -> PyResult<(Vec<Tensor>, Texts)> {
        let opened = self.opened(py, "load")?;
        let (tensors, moved) = detached_at(py, &self.path, || {
            let place = allocate(to_usize(len)?, false)?;
            let moved = read_into(&opened, 8, &place, len)?;
            let text = place.lease()?;
            Ok((header::parse(&text, payload, &sizes, &self.path.display().to_string())?, moved))
        })?;
        self.add(moved);
        Ok(tensors)
    }

    /// The header of a GGUF file: its metadata, its tensors (name, type, shape, begin, end) in the
    /// order of their bytes, and the offset from which these are counted.
    fn _gguf<'py>(&self, py: Python<'py>, size: u64) -> PyResult<(Bound<'py, PyDict>, Vec<gguf::Tensor>, u64)> {
        let opened = self.opened(py, "load")?;
        let (header, moved) = detached_at(py, &self.path, || {
            let (mut part, mut all) = (FIRST_PART, Moved::new());
            loop {
                let len = size.min(part).min(gguf::MAX_HEADER);
                let place = allocate(to_usize(len)?, false)?;
                add(&mut all, &read_into(&opened, 0, &place, len)?);
                let text = place.lease()?;
                match gguf::parse(&text, size, &self.path.display().to_string())? {
                    gguf::Read::Header(header) => return Ok((header, all)),
                    // What was read is parsed once more, in all at most a third of the bytes.
                    gguf::Read::Longer => part = part.saturating_mul(4),
                }
            }
        })?;
        self.add(moved);
        Ok((gguf::dict(py, header.metadata)?, header.tensors, header.first))
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

fn to_usize(len: u64) -> Result<usize> {
    usize::try_from(len).map_err(|_| Error::new(ErrorKind::OutOfMemory, "allocate", format!("{len} bytes")))
}

/// Memory placed for a part of the file.
fn place_for(ssd: &Ssd, offset: u64, len: usize, prefault: bool) -> Result<Dram> {
    check_memory(len as u64)?;
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

/// After so many ranges of an iterator, other threads may run, and signals are looked for.
const MANY: usize = 1 << 16;

/// The two numbers of a range: a tuple, a list, a row of an array.
fn pair(range: &Bound<'_, PyAny>) -> PyResult<(u64, u64)> {
    if range.is_instance_of::<PyString>() || range.is_instance_of::<PyBytes>() {
        return Err(invalid(range.py(), "read", "a range is an offset and a length, not a text"));
    }
    let mut numbers = range.try_iter()?;
    match (numbers.next().transpose()?, numbers.next().transpose()?, numbers.next().transpose()?) {
        (Some(offset), Some(len), None) => Ok((offset.extract()?, len.extract()?)),
        _ => Err(invalid(range.py(), "read", "a range is an offset and a length")),
    }
}
