//! Where the sorted records go, where runs wait, how much memory and how many threads there are.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use datapipes::{Error, ErrorKind, Machine, Result, StagePlace};
use datapipes_sort::{Output, default_memory};

use super::words::trouble;
use crate::arguments::sort_args::Parsed;
use crate::objects::{is_object, shown};
use crate::system::side_files::CommandPlaces;
use crate::system::standard_streams;

/// The file of -o, or the standard output.
pub(super) fn output(parsed: &Parsed) -> Result<Output> {
    match &parsed.output {
        // No file has it; a folder and a name made of it would be another file.
        Some(path) if path.is_empty() => Err(Error::os("open", libc::ENOENT, "")),
        Some(path) => Ok(Output::to(Path::new(path))?.synced(parsed.sync)),
        None => Ok(Output::Stream {
            name: PathBuf::from(standard_streams::OUTPUT),
            file: File::from(standard_streams::output_fd()?),
        }),
    }
}

/// All files that the sort reads and writes, but its runs, whose names nobody knows before.
pub(super) fn all(parsed: &Parsed) -> CommandPlaces {
    let lists = [&parsed.output, &parsed.files0_from, &parsed.random_source, &parsed.compress_program];
    let names = parsed.inputs.iter().chain(lists.into_iter().flatten());
    // The standard streams are places of all commands.
    CommandPlaces::of("sort").files(names.filter(|name| *name != "-"))
}

/// -T, else $TMPDIR, else /tmp, as GNU has it. The places of one list come one after the other,
/// lists beside each other.
pub(super) fn spill(parsed: &Parsed) -> Result<Vec<StagePlace>> {
    if parsed.temp_dirs.is_empty() {
        let variable = std::env::var_os("TMPDIR").filter(|dir| !dir.as_bytes().is_empty());
        return Ok(vec![StagePlace::folder(variable.map_or_else(|| PathBuf::from("/tmp"), PathBuf::from))]);
    }
    let mut places = Vec::new();
    for list in &parsed.temp_dirs {
        if list.is_empty() {
            let why = "-T '': an empty name is no folder; give one, or leave -T out";
            return Err(trouble(ErrorKind::InvalidInput, why));
        }
        match list.to_str() {
            Some(list) if is_object(list) => {
                let why = format!("-T {}: runs are not kept in objects; give a folder", shown(list));
                return Err(trouble(ErrorKind::Unsupported, why));
            }
            Some(list) => places.append(&mut StagePlace::parse_list(list)?),
            None => places.push(StagePlace::folder(list)),
        }
    }
    Ok(places)
}

/// The folders among the places for runs, for messages. One that is named as the output too is what
/// cannot be opened as that.
pub(super) fn folders(parsed: &Parsed) -> Vec<PathBuf> {
    let places = spill(parsed).unwrap_or_default();
    let folders = places.iter().filter_map(|place| place.as_folder().map(Path::to_path_buf));
    folders.filter(|folder| parsed.output.as_ref().is_none_or(|output| Path::new(output) != folder)).collect()
}

/// -S, in percent a part of physical memory, and never more than that; half of what is available
/// without one.
///
/// # Errors
/// Where a percentage is more than can be counted.
pub(super) fn memory_bytes(machine: &Machine, parsed: &Parsed) -> Result<u64> {
    let topology = machine.topology();
    let physical = topology.memory.limit_bytes.into_iter().chain(topology.memory.total_bytes).min();
    let asked = parsed.buffer_bytes(physical.unwrap_or(1 << 30));
    let asked = asked.map_err(|e| trouble(ErrorKind::InvalidInput, e.message))?;
    let bytes = asked.map_or_else(|| default_memory(topology), |asked| asked.min(physical.unwrap_or(asked)));
    Ok(bytes.max(datapipes_sort::MIN_MEMORY))
}

/// The most threads: all cores, or as told; fewer where the memory has no room for so many
/// threads' buffers.
pub(super) fn threads(machine: &Machine, parsed: &Parsed, memory_bytes: u64) -> usize {
    const EACH: u64 = 640 << 10;
    const PROGRAM: u64 = 10 << 20;
    let cores = machine.topology().usable_cores().count().max(1);
    let wanted = parsed.parallel.unwrap_or(cores).min(cores.max(8));
    let room = usize::try_from(memory_bytes.saturating_sub(PROGRAM) / EACH).unwrap_or(usize::MAX);
    wanted.min(room).max(1)
}
