//! The compiled half of the Python package `datapipes`: places, transfers and products of the
//! library as Python classes. The other half, in `python/datapipes`, adds what is easier said in
//! Python: formats of files, arrays, reports.
//!
//! | module | what it holds |
//! |---|---|
//! | `interpreter` | who may import the package |
//! | `errors` | exceptions; calls without the interpreter's lock |
//! | `view`, `foreign` | buffers of Python objects; their memory as places |
//! | `buffer` | memory of the library as a Python object |
//! | `device` | memory of GPUs, and tensors of others in it |
//! | `opened` | a file as one process opened it, with its kept pipes |
//! | `file` | files |
//! | `header`, `gguf` | the headers of safetensors and of GGUF files |
//! | `at_once` | reads of what the page cache has, without a transfer |
//! | `short` | a few bytes of a file, by one system call |
//! | `shared` | long reads of bytes that the page cache has, by several cores |
//! | `pipe` | pipes that the caller keeps |
//! | `pending` | transfers that were started |
//! | `notifier` | their completions, for event loops |
//! | `kept` | pipes that a file keeps for them |
//! | `watched` | a pipe that an event loop watches itself |
//! | `objects` | objects in buckets; a feature |
//! | `rows` | rows of a table, through the cache |
//! | `order` | the order of records, as Python describes it |
//! | `sort`, `checkpoint`, `log` | the products |
//! | `shuffle` | the tasks of a sort on several machines |
//! | `exchange` | the same, with sorted parts that stay on their nodes and are sent in ranges |
//!
//! Unsafe code is in `interpreter`, `view`, `foreign`, `buffer`, `device`, `at_once`, `short`, `kept`, `watched`, `rows`,
//! `shuffle`, `checkpoint` and `log`, which begin with what they guarantee.
#![deny(unsafe_code)]

mod at_once;
mod buffer;
mod checkpoint;
mod device;
mod errors;
mod exchange;
mod file;
mod foreign;
mod gguf;
mod header;
mod interpreter;
mod kept;
mod log;
mod notifier;
mod objects;
mod opened;
mod order;
mod pending;
mod pipe;
mod rows;
mod shared;
mod short;
mod shuffle;
mod sort;
mod turn;
mod view;
mod watched;

use std::sync::OnceLock;

use datapipes::{Constraints, Dram, FileAccess, Locator, Machine, Ssd, Uri};
use pyo3::prelude::*;

use buffer::Buffer;
use device::hbm::DeviceMemory;
use errors::{detached, invalid, json};
use file::File;

/// The machine, discovered once. A child of `fork` may use it.
pub(crate) fn machine() -> &'static Machine {
    static MACHINE: OnceLock<Machine> = OnceLock::new();
    MACHINE.get_or_init(datapipes::discover)
}

/// The machine as text and as JSON.
#[pyfunction]
fn machine_facts(py: Python<'_>) -> PyResult<(String, String)> {
    let topology = detached(py, || Ok(machine().topology()))?;
    Ok((topology.to_string(), json(py, topology)?))
}

/// A place of Python: a File, a Buffer, an Hbm, or the name of a place.
fn place(py: Python<'_>, object: &Bound<'_, PyAny>) -> PyResult<Box<dyn Locator + Send + Sync>> {
    if let Ok(file) = object.cast::<File>() {
        return Ok(Box::new(file.get().opened(py, "explain")?.ssd.clone()));
    }
    if let Ok(buffer) = object.cast::<Buffer>() {
        return Ok(Box::new(buffer.get().place(py)?));
    }
    if let Ok(memory) = object.cast::<DeviceMemory>() {
        return Ok(Box::new(memory.get().place(py)?));
    }
    let Ok(name) = object.extract::<String>().or_else(|_| object.call_method0("__fspath__")?.extract()) else {
        return Err(invalid(
            py,
            "explain",
            "a place is a File, a Buffer, an Hbm, or a name such as \"ssd:/path\" or \"dram:1G\"",
        ));
    };
    detached(py, || -> datapipes::Result<Box<dyn Locator + Send + Sync>> {
        match name.parse::<Uri>()? {
            Uri::Ssd { path, access } => {
                let ssd = Ssd::open_rw(&path).or_else(|_| Ssd::open(&path))?;
                Ok(Box::new(if access == FileAccess::Auto { ssd } else { ssd.with_access(access)? }))
            }
            Uri::Dram { len, node } => {
                // Only its facts are asked for: no page is touched.
                let options = datapipes::MapOptions::default().prefault(false).node(node);
                let len = usize::try_from(len).unwrap_or(usize::MAX).max(1);
                Ok(Box::new(Dram::allocate_with(len, options)?))
            }
            _ => {
                let why = format!("{name}: this package explains `ssd:` and `dram:`; `dpipe explain` knows all places");
                Err(datapipes::Error::new(datapipes::ErrorKind::Unsupported, "explain", why))
            }
        }
    })
}

/// The route between two places, as text and as JSON.
#[pyfunction]
fn explain(py: Python<'_>, source: &Bound<'_, PyAny>, target: &Bound<'_, PyAny>) -> PyResult<(String, String)> {
    let (source, target) = (place(py, source)?, place(py, target)?);
    let route = detached(py, || machine().explain(&*source, &*target, &Constraints::default()))?;
    Ok((route.to_string(), json(py, &route)?))
}

/// Bytes of a size such as "256M".
#[pyfunction]
fn parse_size(py: Python<'_>, text: &str) -> PyResult<u64> {
    detached(py, || datapipes::parse_size(text))
}

/// The compiled half of the package.
#[pymodule]
fn _datapipes(module: &Bound<'_, PyModule>) -> PyResult<()> {
    interpreter::check_is_main(module.py())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<Buffer>()?;
    module.add_class::<DeviceMemory>()?;
    module.add_class::<device::lease::Lease>()?;
    module.add_function(wrap_pyfunction!(device::gpu_facts, module)?)?;
    module.add_class::<File>()?;
    module.add_class::<pipe::PyPipe>()?;
    module.add_class::<objects::PyObjectSource>()?;
    module.add_class::<objects::PyObjectTarget>()?;
    module.add_function(wrap_pyfunction!(objects::list_objects, module)?)?;
    module.add_function(wrap_pyfunction!(objects::remove_object, module)?)?;
    module.add_function(wrap_pyfunction!(objects::end_object_uploads, module)?)?;
    module.add("_OBJECTS", objects::BUILT)?;
    module.add_class::<pending::Pending>()?;
    module.add_class::<notifier::Notifier>()?;
    module.add_class::<rows::RowReader>()?;
    module.add_class::<log::Log>()?;
    module.add_class::<log::LogReader>()?;
    module.add_function(wrap_pyfunction!(machine_facts, module)?)?;
    module.add_function(wrap_pyfunction!(explain, module)?)?;
    module.add_function(wrap_pyfunction!(parse_size, module)?)?;
    module.add_function(wrap_pyfunction!(sort::sort, module)?)?;
    module.add_function(wrap_pyfunction!(sort::sort_stream, module)?)?;
    module.add_class::<sort::StreamEnd>()?;
    module.add_function(wrap_pyfunction!(shuffle::sample_records, module)?)?;
    module.add_function(wrap_pyfunction!(shuffle::choose_splitters, module)?)?;
    module.add_function(wrap_pyfunction!(shuffle::sort_part, module)?)?;
    module.add_function(wrap_pyfunction!(shuffle::merge_parts, module)?)?;
    module.add_function(wrap_pyfunction!(shuffle::limit_kept_memory, module)?)?;
    module.add_class::<exchange::Keeper>()?;
    module.add_function(wrap_pyfunction!(exchange::sort_part_kept, module)?)?;
    module.add_function(wrap_pyfunction!(exchange::merge_kept, module)?)?;
    module.add_function(wrap_pyfunction!(checkpoint::checkpoint_save, module)?)?;
    module.add_function(wrap_pyfunction!(checkpoint::checkpoint_restore, module)?)?;
    module.add_function(wrap_pyfunction!(checkpoint::checkpoint_list, module)?)?;
    module.add_function(wrap_pyfunction!(log::read_log, module)?)?;
    module.add_function(wrap_pyfunction!(log::examine_log, module)?)?;
    module.add_function(wrap_pyfunction!(turn::is_due, module)?)?;
    module.add_function(wrap_pyfunction!(pending::_shutdown, module)?)?;
    module.add_function(wrap_pyfunction!(pending::_after_fork_in_child, module)?)?;
    Ok(())
}
