//! Checkpoints of named arrays.
//!
//! Unsafe code: arrays as regions that are leased for reading while they are saved.
#![allow(unsafe_code)]

use std::ops::ControlFlow;
use std::path::PathBuf;

use datapipes::durable::checkpoint::{CheckpointProgress, Checkpoints, SaveOptions, ignore_progress};
use datapipes::memory::{Region, guarded};
use datapipes::{Dram, Error, ErrorKind};
use pyo3::prelude::*;

use crate::buffer::{Buffer, allocate};
use crate::errors::{attached, detached_at, json};
use crate::foreign::{Use, raw};
use crate::machine;

/// Saves named buffers. Returns the report as JSON.
#[pyfunction]
pub(crate) fn checkpoint_save(
    py: Python<'_>,
    folder: PathBuf,
    regions: Vec<(String, Bound<'_, PyAny>)>,
    keep: Option<usize>,
) -> PyResult<String> {
    attached(py, guarded::install)?;
    let mut buffers = Vec::with_capacity(regions.len());
    let mut places = Vec::with_capacity(regions.len());
    for (name, object) in &regions {
        let buffer = raw(object, Use::Read, "save")?;
        let len = buffer.len();
        let place = match buffer.start() {
            // SAFETY: the bytes stay where they are until `buffers` is dropped, after `places` and
            // all that the save made of them: it blocks, and leaves nothing behind. They are only
            // read. That nobody changes them during the call is asked of the caller
            // (docs/python.md). They may be those of a mapped file that becomes shorter, and memory
            // that is shared may lose its pages: then the save ends with an error.
            Some(start) => unsafe { Region::shared(start, len, Box::new(())) },
            None => attached(py, || allocate(0, false))?.memory().region().clone(),
        };
        places.push((name.as_str(), attached(py, || Ok(Dram::over(place.range(0, len)?)))?));
        buffers.push(buffer);
    }
    let saved = detached_at(py, &folder, || {
        let regions: Vec<(&str, &Dram)> = places.iter().map(|(name, place)| (*name, place)).collect();
        let mut options = SaveOptions::default();
        options.keep = keep;
        Checkpoints::at(machine(), &folder).save(&regions, &options, &mut ignore_progress)
    });
    drop(places);
    drop(buffers);
    json(py, &saved?)
}

/// Restores all regions of a checkpoint, the newest if no number is given.
#[pyfunction]
pub(crate) fn checkpoint_restore(
    py: Python<'_>,
    folder: PathBuf,
    number: Option<u64>,
) -> PyResult<(u64, Vec<(String, Buffer)>)> {
    let (number, regions) = detached_at(py, &folder, || {
        let store = Checkpoints::at(machine(), &folder);
        let checkpoint = match number {
            Some(number) => store.open(number)?,
            None => store.latest()?,
        };
        let regions = checkpoint.restore(&mut |_: CheckpointProgress| ControlFlow::Continue(()))?;
        Ok((checkpoint.manifest().number, regions))
    })?;
    Ok((number, regions.into_iter().map(|(name, place)| (name, Buffer::over(place))).collect()))
}

/// The checkpoints of a folder: number, path, bytes (or None), reason of the damage (or None).
#[pyfunction]
#[allow(clippy::type_complexity)] // A row of a list.
pub(crate) fn checkpoint_list(
    py: Python<'_>,
    folder: PathBuf,
) -> PyResult<Vec<(u64, PathBuf, Option<u64>, Option<String>)>> {
    let entries = detached_at(py, &folder, || {
        if !folder.is_dir() {
            let context = format!("{} is not a folder", folder.display());
            return Err(Error::new(ErrorKind::NotFound, "list", context));
        }
        Checkpoints::at(machine(), &folder).list()
    })?;
    let row = |entry: datapipes::durable::checkpoint::CheckpointEntry| match entry.state {
        Ok(manifest) => (entry.number, entry.path, Some(manifest.bytes()), None),
        Err(why) => (entry.number, entry.path, None, Some(why)),
    };
    Ok(entries.into_iter().map(row).collect())
}
