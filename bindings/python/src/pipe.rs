//! Pipes that are kept by the caller: for many transfers between the same two places.

use datapipes::process::OwningProcess;
use datapipes::{Constraints, Locator, Pipe, Span};
use pyo3::prelude::*;

use crate::buffer::Buffer;
use crate::device::hbm::DeviceMemory;
use crate::errors::{attached, detached, invalid, json};
use crate::file::File;
use crate::foreign::Place;
use crate::machine;

/// Up to this many bytes a copy between memories is shorter than letting other threads run.
const SHORT_COPY: u64 = 4 << 10;

/// A pipe between two places, which are Files, Buffers or Hbm. `datapipes.connect` makes it.
///
/// It keeps both places: an open file, the memory. Several threads may use it.
#[pyclass(frozen, subclass, weakref, module = "datapipes", name = "Pipe")]
pub(crate) struct PyPipe {
    pipe: Pipe,
    /// Bytes of each place that is memory.
    lens: [Option<u64>; 2],
    /// Whether both are memory of the processor.
    is_copy: bool,
    owner: OwningProcess,
}

enum End {
    File(datapipes::Ssd),
    Memory(Place),
}

impl End {
    fn of(py: Python<'_>, object: &Bound<'_, PyAny>) -> PyResult<End> {
        if let Ok(file) = object.cast::<File>() {
            return Ok(End::File(file.get().opened(py, "connect")?.ssd.clone()));
        }
        if let Ok(buffer) = object.cast::<Buffer>() {
            return Ok(End::Memory(Place::Host(buffer.get().place(py)?)));
        }
        if let Ok(memory) = object.cast::<DeviceMemory>() {
            return Ok(End::Memory(Place::Device(memory.get().place(py)?)));
        }
        Err(invalid(py, "connect", "a pipe connects Files, Buffers and Hbm"))
    }

    fn locator(&self) -> &(dyn Locator + Sync) {
        match self {
            End::File(ssd) => ssd,
            End::Memory(place) => place.locator(),
        }
    }

    fn len(&self) -> Option<u64> {
        match self {
            End::File(_) => None,
            End::Memory(place) => Some(place.len()),
        }
    }

    fn is_host(&self) -> bool {
        matches!(self, End::Memory(Place::Host(_)))
    }
}

#[pymethods]
impl PyPipe {
    #[new]
    #[pyo3(signature = (source, target, *, typical_len = None))]
    fn new(
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        target: &Bound<'_, PyAny>,
        typical_len: Option<u64>,
    ) -> PyResult<PyPipe> {
        if let Ok(target) = target.cast::<Buffer>()
            && target.get().is_readonly()
        {
            return Err(invalid(py, "connect", "the buffer is read-only"));
        }
        if let Ok(target) = target.cast::<File>() {
            target.get().writable(py, "connect")?;
        }
        let (source, target) = (End::of(py, source)?, End::of(py, target)?);
        let mut constraints = Constraints::default();
        constraints.typical_len = typical_len;
        let pipe = detached(py, || machine().connect_with(source.locator(), target.locator(), &constraints))?;
        let is_copy = source.is_host() && target.is_host();
        Ok(PyPipe { pipe, lens: [source.len(), target.len()], is_copy, owner: OwningProcess::here() })
    }

    /// Moves `len` bytes from offset `source` of the one place to offset `target` of the other.
    /// Returns when they are there. If no length is given, it is that of the memory from its offset
    /// on (of two memories, the shorter).
    #[pyo3(signature = (source = 0, target = 0, len = None))]
    fn transfer(&self, py: Python<'_>, source: u64, target: u64, len: Option<u64>) -> PyResult<()> {
        let rests = self.lens.iter().zip([source, target]).filter_map(|(len, at)| Some((*len)?.saturating_sub(at)));
        let Some(len) = len.or_else(|| rests.min()) else {
            return Err(invalid(py, "transfer", "a pipe between files needs a length"));
        };
        let work = || {
            self.owner.check("transfer")?;
            self.pipe.transfer(Span { source, target, len })
        };
        if self.is_copy && len <= SHORT_COPY { attached(py, work) } else { detached(py, work) }
    }

    /// The route, as text and as JSON.
    fn _route(&self, py: Python<'_>) -> PyResult<(String, String)> {
        let route = self.pipe.route();
        Ok((route.to_string(), json(py, route)?))
    }

    /// What was moved so far, as text and as JSON.
    fn _report(&self, py: Python<'_>) -> PyResult<(String, String)> {
        let report = self.pipe.report();
        Ok((report.to_string(), json(py, &report)?))
    }

    fn __repr__(&self) -> String {
        let route = self.pipe.route();
        format!("<datapipes.Pipe from {} to {} by {}>", route.source, route.target, route.primitives().join(", "))
    }
}
