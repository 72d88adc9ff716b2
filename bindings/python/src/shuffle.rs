//! The tasks of a sort on several machines: samples, a sorted part that is cut at splitters, and
//! the merge of one range of all parts. Who runs them is `datapipes.ray`.
//!
//! Unsafe code: a region over the bytes of buffers that are merged. The module of Python that calls
//! this gives buffers that nobody writes to: objects of Ray's store, which are sealed.
#![allow(unsafe_code)]

use std::path::{Path, PathBuf};

use datapipes::locks::Mutex;
use datapipes::memory::Region;
use datapipes::sort::{
    Input, InputPlace, Output, PlacedRecord, RecordBorders, RecordFormat, ShuffleOrder, SortJob, SortReport, merge,
    sort_telling,
};
use datapipes::{Dram, Error, MapOptions, Pages, Pool, Ssd, StagePlace};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::buffer::Buffer;
use crate::errors::{attached, detached, detached_at, json, to_py};
use crate::machine;
use crate::objects;
use crate::order::Order;
use crate::sort::TURN;
use crate::view::{Use, bytes_of};

/// The least unit of memory for an output.
const BLOCK: usize = 4096;

/// The memory of the last task, for the next one of the same process. Fresh memory costs more the
/// first time that it is touched than to sort what is put there.
static WARM: Mutex<Option<Pool>> = Mutex::new(None);

/// Returns memory of so many bytes or more.
pub(crate) fn pool(len: u64) -> datapipes::Result<Pool> {
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    let mut warm = WARM.lock();
    if let Some(pool) = warm.as_ref().filter(|pool| pool.region().len() >= len) {
        return Ok(pool.clone());
    }
    // Two would need twice the memory.
    *warm = None;
    let made = Pool::new(len, MapOptions::default().pages(Pages::Huge).prefault(false))?;
    *warm = Some(made.clone());
    Ok(made)
}

/// Lets go of memory that is kept, if it and `beside` are more than `most` bytes. Returns whether
/// it did.
#[pyfunction]
pub(crate) fn limit_kept_memory(beside: u64, most: u64) -> bool {
    let mut warm = WARM.lock();
    let kept = warm.as_ref().map_or(0, |pool| pool.region().len() as u64);
    let over = kept.saturating_add(beside) > most;
    if over {
        *warm = None;
    }
    over
}

/// The memory of a task: what its sort or merge uses, and what the process keeps for the next one.
#[derive(Clone, Copy)]
pub(crate) struct TaskMemory {
    pub(crate) uses: u64,
    pub(crate) keeps: u64,
}

/// What the tasks of one sort have in common: their records and the order of these.
pub(crate) struct Task {
    format: RecordFormat,
    unique: bool,
    pub(crate) shuffle: ShuffleOrder,
}

impl Task {
    pub(crate) fn of(py: Python<'_>, order: &Order) -> PyResult<Task> {
        let (format, unique) = (order.compile(py)?, order.unique);
        let shuffle = attached(py, || ShuffleOrder::new(&format, unique))?;
        Ok(Task { format, unique, shuffle })
    }

    /// A sort or a merge by one thread, in memory that this process keeps.
    pub(crate) fn job(
        &self,
        inputs: Vec<Input>,
        output: Output,
        memory: TaskMemory,
        spill: Option<PathBuf>,
    ) -> datapipes::Result<SortJob> {
        let job = SortJob::between(machine(), self.format.clone(), inputs, output).unique(self.unique).threads(1);
        let job = job.memory_bytes(memory.uses).pool(Some(pool(memory.keeps)?));
        Ok(match spill {
            Some(folder) => job.spill(vec![StagePlace::folder(folder)]),
            None => job,
        })
    }
}

pub(crate) fn placed(splitters: &[(PyBackedBytes, u64)]) -> Vec<PlacedRecord> {
    splitters.iter().map(|(record, part)| PlacedRecord { record: record.to_vec(), part: *part }).collect()
}

/// Runs a sort, and looks for signals meanwhile.
pub(crate) fn told(py: Python<'_>, job: SortJob) -> PyResult<SortReport> {
    let mut stopped_by: Option<PyErr> = None;
    let outcome = detached(py, || {
        Ok(sort_telling(machine(), job, TURN, |_| {
            Python::attach(|py| {
                stopped_by = stopped_by.take().or_else(|| py.check_signals().err());
                stopped_by.is_none()
            })
        }))
    })?;
    match stopped_by {
        Some(error) => Err(error),
        None => outcome.map_err(|error| to_py(py, &error)),
    }
}

/// Returns records of a file, each the first that begins at one of these offsets or behind it, with
/// its own offset. Near which none begins is left out.
#[pyfunction]
pub(crate) fn sample_records(
    py: Python<'_>,
    order: Order,
    path: PathBuf,
    offsets: Vec<u64>,
) -> PyResult<Vec<(u64, Py<PyBytes>)>> {
    let (format, unique) = (order.compile(py)?, order.unique);
    let found = detached_at(py, &path, || {
        let (borders, _) = borders_of(&ShuffleOrder::new(&format, unique)?, &path)?;
        // No record is looked up twice, and none where it is known that none begins.
        let (mut found, mut known) = (Vec::new(), 0);
        for near in offsets.into_iter().filter(|near| *near < borders.len()) {
            if near < known {
                continue;
            }
            match borders.sample(near)? {
                Some((at, record)) => {
                    known = at + 1;
                    found.push((at, record));
                }
                None => known = near + RecordBorders::MAX_SEARCH,
            }
        }
        Ok(found)
    })?;
    Ok(found.into_iter().map(|(at, record)| (at, PyBytes::new(py, &record).unbind())).collect())
}

/// Chooses splitters from samples: records with the numbers of their parts.
#[pyfunction]
pub(crate) fn choose_splitters(
    py: Python<'_>,
    order: Order,
    samples: Vec<(PyBackedBytes, u64)>,
    ranges: usize,
) -> PyResult<Vec<(Py<PyBytes>, u64)>> {
    let (format, unique) = (order.compile(py)?, order.unique);
    let samples = placed(&samples);
    let chosen = detached(py, || Ok(ShuffleOrder::new(&format, unique)?.splitters(samples, ranges)))?;
    Ok(chosen.into_iter().map(|one| (PyBytes::new(py, &one.record).unbind(), one.part)).collect())
}

/// A file or an object, of which single records are looked up.
pub(crate) fn borders_of(order: &ShuffleOrder, path: &Path) -> datapipes::Result<(RecordBorders, Option<InputPlace>)> {
    match path.to_str().filter(|name| objects::is_address(name)) {
        Some(address) => {
            let place = objects::Source::open(address)?.place()?;
            Ok((RecordBorders::of_place(machine(), order, &place)?, Some(place)))
        }
        None => Ok((RecordBorders::open(order, path)?, None)),
    }
}

/// The inputs of a part, and the most bytes that they become.
pub(crate) fn open_pieces(
    order: &ShuffleOrder,
    pieces: Vec<(PathBuf, u64, u64)>,
) -> datapipes::Result<(Vec<Input>, u64)> {
    let (mut inputs, mut most) = (Vec::new(), 0_u64);
    for (path, from, to) in pieces {
        let (borders, place) = borders_of(order, &path)?;
        let (from, to) = (borders.at_or_behind(from)?, borders.at_or_behind(to)?);
        if from < to {
            // A last line may lack its terminator.
            most += to - from + 1;
            inputs.push(match place {
                Some(place) => Input::Place(place.part(from, to)?),
                // It is opened when its turn comes: there may be more files than descriptors.
                None if from == 0 && to == borders.len() => Input::deferred(&path)?,
                None => Input::Range { ssd: Ssd::open(&path)?, from, to },
            });
        }
    }
    Ok((inputs, most))
}

/// Where a merged range goes: a file, or an object of about so many bytes.
pub(crate) fn output_of(path: PathBuf, expected_len: u64) -> datapipes::Result<Output> {
    match path.to_str().filter(|name| objects::is_address(name)) {
        Some(address) => objects::output(address, expected_len),
        None => Ok(Output::file(path)),
    }
}

/// Sorts a part of the input into memory, and cuts it at the splitters. The pieces are files with
/// the bytes of each that records of the part begin in. Returns the memory, where it is cut, and
/// the report as JSON.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // Arguments of one function of Python.
pub(crate) fn sort_part(
    py: Python<'_>,
    order: Order,
    pieces: Vec<(PathBuf, u64, u64)>,
    part: u64,
    splitters: Vec<(PyBackedBytes, u64)>,
    memory: u64,
    spill: Option<PathBuf>,
    into: Option<Bound<'_, Buffer>>,
) -> PyResult<(Py<Buffer>, Vec<usize>, String)> {
    let (task, splitters) = (Task::of(py, &order)?, placed(&splitters));
    let (inputs, most) = detached(py, || open_pieces(&task.shuffle, pieces))?;
    let room = usize::try_from(most).unwrap_or(usize::MAX).max(1).saturating_add(BLOCK - 1) / BLOCK * BLOCK;
    let buffer = match into.filter(|buffer| buffer.get().len() >= room) {
        Some(buffer) => buffer.unbind(),
        None => Py::new(py, Buffer::over(detached(py, || crate::buffer::allocate(room, false))?))?,
    };
    let whole = buffer.get().place(py)?;
    let place = attached(py, || whole.range(0, room))?;
    if inputs.is_empty() {
        return Ok((buffer, vec![0; splitters.len() + 2], json(py, &SortReport::default())?));
    }
    let output = Output::Memory { name: "the sorted part".into(), memory: place.clone() };
    let memory = TaskMemory { uses: memory, keeps: memory };
    let job = detached(py, || task.job(inputs, output, memory, spill))?;
    let report = told(py, job)?;
    let cuts = detached(py, || {
        let sorted = place.range(0, usize::try_from(report.bytes_out).unwrap_or(usize::MAX))?.lease()?;
        task.shuffle.cuts(&sorted, part, &splitters)
    })?;
    Ok((buffer, cuts, json(py, &report)?))
}

/// The error of a range with a record that is not between its two splitters.
pub(crate) fn another_range() -> Error {
    Error::new(datapipes::ErrorKind::Corrupt, "merge", "a sorted part has records of another range")
}

/// Merges sorted parts that are in memory into a file. All records must lie between two splitters,
/// where these are given. Returns the report as JSON.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // Arguments of one function of Python.
pub(crate) fn merge_parts(
    py: Python<'_>,
    order: Order,
    parts: Vec<Bound<'_, PyAny>>,
    output: PathBuf,
    lower: Option<PyBackedBytes>,
    upper: Option<PyBackedBytes>,
    memory: u64,
    spill: Option<PathBuf>,
) -> PyResult<String> {
    let task = Task::of(py, &order)?;
    let mut records = Vec::with_capacity(parts.len());
    for part in &parts {
        let view = bytes_of(part, Use::Read, "merge")?;
        let len = view.len();
        let Some(start) = view.start() else { continue };
        // SAFETY: an exporter keeps the bytes where they are until the view is dropped, which the
        // region keeps. They are only leased for reading here, and nobody writes to them: see the
        // module's first lines.
        let region = unsafe { Region::foreign(start, len, Box::new(view)) };
        records.push(attached(py, || Ok(Dram::over(region.range(0, len)?)))?);
    }
    let report = detached(py, || {
        let bounds = [lower.as_deref(), upper.as_deref()];
        for part in &records {
            if !task.shuffle.lie_between(&part.lease()?, bounds)? {
                return Err(another_range());
            }
        }
        let input = |(i, memory)| Input::Memory { name: format!("sorted part {i}").into(), memory };
        let len = records.iter().map(|part| part.len() as u64).sum();
        let inputs = records.into_iter().enumerate().map(input).collect();
        let memory = TaskMemory { uses: memory, keeps: memory };
        merge(machine(), task.job(inputs, output_of(output, len)?, memory, spill)?)
    })?;
    json(py, &report)
}
