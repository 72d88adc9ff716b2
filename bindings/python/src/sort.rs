//! The external sort.

use std::fs::File;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use datapipes::locks::Mutex;
use datapipes::sort::{Input, Output, SortJob, SpillCompression, sort_telling};
use datapipes::{Error, ErrorKind, Result, StagePlace};
use pyo3::prelude::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::errors::{attached, detached, json, to_py_at};
use crate::machine;
use crate::order::Order;

/// How often progress is told, and a signal looked for.
pub(crate) const TURN: Duration = Duration::from_millis(50);

/// Where runs go that do not fit the memory.
#[derive(FromPyObject)]
pub(crate) enum SpillArgument {
    /// Places as the command line has them.
    Text(String),
    Folders(Vec<PathBuf>),
}

impl SpillArgument {
    /// The places; `None` where none is named. They may never be used, and then a wrong one would be
    /// found out another day, so folders are looked at.
    fn places(self) -> datapipes::Result<Option<Vec<StagePlace>>> {
        let places = match self {
            SpillArgument::Text(text) => StagePlace::parse_list(&text)?,
            SpillArgument::Folders(folders) => folders.into_iter().map(StagePlace::folder).collect(),
        };
        for folder in places.iter().filter_map(StagePlace::as_folder) {
            if !folder.is_dir() {
                let why = format!("spill: {} is not a folder", folder.display());
                return Err(Error::new(ErrorKind::NotFound, "sort", why));
            }
        }
        Ok(Some(places).filter(|places| !places.is_empty()))
    }
}

/// The sort's end of a stream, whose other end is a socket of Python.
#[pyclass(frozen, module = "datapipes._datapipes", name = "StreamEnd")]
pub(crate) struct StreamEnd(Mutex<Option<OwnedFd>>);

#[pymethods]
impl StreamEnd {
    /// Closes it, if no sort has taken it.
    fn close(&self) {
        drop(self.0.lock().take());
    }
}

/// A stream for a sort: its end, and the descriptor of the other one, which is the caller's. (A pipe
/// would send SIGPIPE to whoever writes when the other end is closed.)
#[pyfunction]
pub(crate) fn sort_stream(py: Python<'_>) -> PyResult<(StreamEnd, i32)> {
    let pair = || {
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(|e| Error::os("sort", e.raw_os_error(), "a stream"))
    };
    let (end, other) = attached(py, pair)?;
    Ok((StreamEnd(Mutex::new(Some(end))), other.into_raw_fd()))
}

/// What is sorted, or where it goes.
#[derive(FromPyObject)]
pub(crate) enum SortPlace<'py> {
    Stream(Bound<'py, StreamEnd>),
    File(PathBuf),
}

/// The same without the interpreter.
enum Place {
    Stream(OwnedFd),
    File(PathBuf),
}

impl SortPlace<'_> {
    fn take(self) -> Result<Place> {
        match self {
            SortPlace::File(path) => Ok(Place::File(path)),
            SortPlace::Stream(stream) => match stream.get().0.lock().take() {
                Some(end) => Ok(Place::Stream(end)),
                None => Err(Error::new(ErrorKind::InvalidInput, "sort", "the stream was used already")),
            },
        }
    }
}

impl Place {
    fn path(&self) -> Option<&Path> {
        match self {
            Place::File(path) => Some(path),
            Place::Stream(_) => None,
        }
    }

    fn input(self) -> Result<Input> {
        match self {
            Place::File(path) => Input::open(&path),
            Place::Stream(fd) => Ok(Input::Stream { name: "what the program gives".into(), fd }),
        }
    }

    fn output(self) -> Result<Output> {
        match self {
            Place::File(path) => Output::to(&path),
            Place::Stream(fd) => Ok(Output::Stream { name: "what the program takes".into(), file: File::from(fd) }),
        }
    }
}

/// Sorts a file or a stream into another. Returns the report as text and as JSON.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // Keyword arguments of one function of Python.
pub(crate) fn sort(
    py: Python<'_>,
    input: SortPlace<'_>,
    output: SortPlace<'_>,
    format: &str,
    record: Option<(usize, usize, usize)>,
    reverse: bool,
    unique: bool,
    keys: Vec<String>,
    separator: Option<u8>,
    how: (Option<u64>, SpillArgument, Option<usize>, Option<bool>, bool),
    progress: Option<Py<PyAny>>,
) -> PyResult<(String, String)> {
    let order = Order {
        format: format.to_owned(),
        record,
        reverse,
        unique,
        stable: false,
        keys,
        letters: String::new(),
        separator,
        zero_terminated: false,
    };
    let format = order.compile(py)?;
    let (input, output) = attached(py, || Ok((input.take()?, output.take()?)))?;
    let paths: Vec<PathBuf> = [&input, &output].into_iter().filter_map(Place::path).map(Path::to_owned).collect();
    // An error that is about one of the files has its path as the context.
    let named = |error: Error| {
        let path = paths.iter().find(|path| error.context() == path.display().to_string());
        to_py_at(py, &error, path.map(PathBuf::as_path))
    };
    let (memory, spill, threads, compression, sync) = how;
    let opened = detached(py, || {
        let between = || {
            let output = output.output()?.synced(sync);
            Ok(SortJob::between(machine(), format, vec![input.input()?], output))
        };
        Ok(between())
    })?;
    let mut job = opened.map_err(named)?.unique(unique);
    if let Some(bytes) = memory {
        job = job.memory_bytes(bytes);
    }
    if let Some(places) = attached(py, || spill.places())? {
        job = job.spill(places);
    }
    if let Some(threads) = threads {
        job = job.threads(threads);
    }
    job = job.compression(match compression {
        None => SpillCompression::Auto,
        Some(true) => SpillCompression::On,
        Some(false) => SpillCompression::Off,
    });
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
