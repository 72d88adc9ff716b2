//! The list of backends. A new backend is added only here.
//!
//! It chooses nothing: the planner in `datapipes-core` asks every backend in the list for its
//! offers.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(unsafe_code)]

mod tried_on;

pub use datapipes_file::{cached_share, is_cached};
/// Memory of GPUs as a place.
#[cfg(feature = "gpu")]
pub use datapipes_gpu as gpu;
/// Memory of other processes as a place.
#[cfg(feature = "net")]
pub use datapipes_net as net;
/// Objects in buckets as places.
#[cfg(feature = "object")]
pub use datapipes_object as object;
pub use tried_on::{TRIED, TriedOn, tried_on};

use std::path::PathBuf;
use std::sync::Arc;

use datapipes_core::Machine;
use datapipes_core::backend::Backend;
use datapipes_core::topology::Topology;
use datapipes_cpu::{Calibration, CpuBackend};
use datapipes_dax::DaxBackend;
use datapipes_dma::{DmadevBackend, DsaBackend, MoveCost};
use datapipes_file::FileBackend;

/// Returns every backend for this machine, ready for
/// [`Machine::new`](datapipes_core::Machine::new).
///
/// It never measures and never fails. The processor's costs are those that `dpipe calibrate` saved,
/// or assumed ones until then; they are loaded when the first pipe is planned. Primitives that this
/// machine lacks are listed as absent, with the reason.
///
/// ```
/// use datapipes_core::topology::Topology;
/// let topology = Topology::discover();
/// let names: Vec<_> = datapipes_bundle::all(&topology).iter().map(|b| b.name()).collect();
/// assert_eq!(names[..5], ["cpu", "dax", "dsa", "dmadev", "file"]);
/// // With the features `gpu`, `net` and `object` there is one more each.
/// let more = [cfg!(feature = "gpu"), cfg!(feature = "net"), cfg!(feature = "object")];
/// assert_eq!(names.len(), 5 + more.into_iter().filter(|is_built| *is_built).count());
/// ```
pub fn all(topology: &Topology) -> Vec<Arc<dyn Backend>> {
    let this_machine = topology.clone();
    let cpu = CpuBackend::calibrated_by(topology, move || Calibration::load_or_assumed(&this_machine));
    vec![
        Arc::new(cpu),
        Arc::new(DaxBackend::new(topology)),
        Arc::new(DsaBackend::new(topology).calibrated_by(|| MoveCost::load_from(&engine_cost_path(topology)?).ok())),
        Arc::new(dmadev(topology)),
        Arc::new(FileBackend::probe()),
        #[cfg(feature = "gpu")]
        Arc::new(datapipes_gpu::GpuBackend::new()),
        #[cfg(feature = "net")]
        Arc::new(datapipes_net::UcxBackend::new()),
        #[cfg(feature = "object")]
        Arc::new(datapipes_object::ObjectBackend::new()),
    ]
}

/// Returns where `dpipe calibrate` keeps what a DMA engine costs: beside the processor's costs.
/// `None` where there is no such place.
pub fn engine_cost_path(topology: &Topology) -> Option<PathBuf> {
    Calibration::path(topology).ok().map(|path| path.with_extension("dsa.json"))
}

/// Returns the backend for engines that DPDK drives, with the costs that `dpipe calibrate` saved.
pub fn dmadev(topology: &Topology) -> DmadevBackend {
    let topology = topology.clone();
    DmadevBackend::from_environment()
        .calibrated_by(move |device| MoveCost::load_from(&dmadev_cost_path(&topology, device)?).ok())
}

/// Returns where `dpipe calibrate` keeps what an engine of DPDK costs, by the device's name. `None`
/// where there is no such place.
pub fn dmadev_cost_path(topology: &Topology, device: &str) -> Option<PathBuf> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.:".contains(c);
    let device: String = device.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
    Calibration::path(topology).ok().map(|path| path.with_extension(format!("dmadev.{device}.json")))
}

/// Returns the machine that the process runs on, with every backend.
///
/// It takes some milliseconds, measures nothing and never fails. What could not be found out is in
/// [`Topology::unknown`]; what is absent is in the backends' primitives.
///
/// ```
/// use datapipes_core::{Dram, Span};
/// let machine = datapipes_bundle::discover();
/// let (source, target) = (Dram::allocate(1 << 20)?, Dram::allocate(1 << 20)?);
/// source.lease_mut()?.fill(7);
/// let pipe = machine.connect(&source, &target)?;
/// pipe.transfer(Span { source: 0, target: 0, len: 1 << 20 })?;
/// assert_eq!(target.lease()?[1 << 19], 7);
/// println!("{}{}", pipe.route(), pipe.report());
/// # Ok::<(), datapipes_core::Error>(())
/// ```
pub fn discover() -> Machine {
    let topology = Topology::discover();
    let backends = all(&topology);
    Machine::new(topology, backends)
}
