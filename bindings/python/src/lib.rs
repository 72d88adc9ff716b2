//! The compiled half of the Python package `datapipes`: places, transfers and products of the
//! library as Python classes. The other half, in `python/datapipes`, adds what is easier said in
//! Python: formats of files, arrays, reports.
//!
//! | module | what it holds |
//! |---|---|
//! | `errors` | exceptions; calls without the interpreter's lock |
//! | `view`, `foreign` | buffers of Python objects; their memory as places |
//! | `buffer` | memory of the library as a Python object |
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
//! | `rows` | rows of a table, through the cache |
//! | `sort`, `checkpoint`, `log` | the products |
//!
//! Unsafe code is in `view`, `foreign`, `buffer`, `at_once`, `short`, `kept`, `watched`, `rows`, `checkpoint` and `log`,
//! which begin with what they guarantee.
#![deny(unsafe_code)]

mod at_once;
mod buffer;
mod checkpoint;
mod errors;
mod file;
mod foreign;
mod gguf;
mod header;
mod kept;
mod log;
mod notifier;
mod opened;
mod pending;
mod pipe;
mod rows;
mod shared;
mod short;
mod sort;
mod view;
mod watched;

use std::sync::OnceLock;

use datapipes::{Constraints, Dram, FileAccess, Locator, Machine, Ssd, Uri};
use pyo3::prelude::*;

use buffer::Buffer;
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

/// A place of Python: a File, a Buffer, or the name of a place.
fn place(py: Python<'_>, object: &Bound<'_, PyAny>) -> PyResult<Box<dyn Locator + Send + Sync>> {
    if let Ok(file) = object.cast::<File>() {
        return Ok(Box::new(file.get().opened(py, "explain")?.ssd.clone()));
    }
    if let Ok(buffer) = object.cast::<Buffer>() {
        return Ok(Box::new(buffer.get().place(py)?));
    }
    let Ok(name) = object.extract::<String>().or_else(|_| object.call_method0("__fspath__")?.extract()) else {
        return Err(invalid(
            py,
            "explain",
            "a place is a File, a Buffer, or a name such as \"ssd:/path\" or \"dram:1G\"",
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
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<Buffer>()?;
    module.add_class::<File>()?;
    module.add_class::<pipe::PyPipe>()?;
    module.add_class::<pending::Pending>()?;
    module.add_class::<notifier::Notifier>()?;
    module.add_class::<rows::RowReader>()?;
    module.add_class::<log::Log>()?;
    module.add_class::<log::LogReader>()?;
    module.add_function(wrap_pyfunction!(machine_facts, module)?)?;
    module.add_function(wrap_pyfunction!(explain, module)?)?;
    module.add_function(wrap_pyfunction!(parse_size, module)?)?;
    module.add_function(wrap_pyfunction!(sort::sort, module)?)?;
    module.add_function(wrap_pyfunction!(checkpoint::checkpoint_save, module)?)?;
    module.add_function(wrap_pyfunction!(checkpoint::checkpoint_restore, module)?)?;
    module.add_function(wrap_pyfunction!(checkpoint::checkpoint_list, module)?)?;
    module.add_function(wrap_pyfunction!(log::read_log, module)?)?;
    module.add_function(wrap_pyfunction!(log::examine_log, module)?)?;
    module.add_function(wrap_pyfunction!(pending::_shutdown, module)?)?;
    module.add_function(wrap_pyfunction!(pending::_after_fork_in_child, module)?)?;
    Ok(())
}
