//! The one list of backends. A new backend is added here, and nowhere else.
//!
//! It chooses nothing: the planner in `datapipes-core` asks every backend of the list what it offers.
#![deny(unsafe_code)]

use std::sync::Arc;

use datapipes_core::backend::Backend;
use datapipes_core::topology::Topology;
use datapipes_cpu::{Calibration, CpuBackend};
use datapipes_dax::DaxBackend;
use datapipes_file::FileBackend;

/// Every backend for this machine, ready for [`Machine::new`](datapipes_core::Machine::new).
///
/// It never measures and never fails: the processor's costs are those that `dpipe calibrate` left on disk, or assumed
/// ones until it ran; they are looked up when the first pipe is planned. Primitives that this machine lacks are in the list too, as absent, with the reason.
///
/// ```
/// use datapipes_core::topology::Topology;
/// let topology = Topology::discover();
/// let names: Vec<_> = datapipes_bundle::all(&topology).iter().map(|b| b.name()).collect();
/// assert_eq!(names, ["cpu", "dax", "file"]);
/// ```
pub fn all(topology: &Topology) -> Vec<Arc<dyn Backend>> {
    let this_machine = topology.clone();
    let cpu = CpuBackend::calibrated_by(topology, move || Calibration::load_or_assumed(&this_machine));
    vec![Arc::new(cpu), Arc::new(DaxBackend::new(topology)), Arc::new(FileBackend::probe())]
}
