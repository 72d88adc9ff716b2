//! What is shown of a machine.

use std::collections::BTreeMap;

use datapipes::backend::{Knob, Primitive};
use datapipes::topology::{StorageFacts, Topology};
use datapipes_cpu::Calibration;
use serde::Serialize;

use crate::gpu_memory::GpuFacts;

use super::analytics::AnalyticsEngines;
use super::offload::KernelOffload;
use super::storage::StorageCost;

#[derive(Serialize)]
pub(super) struct Facts<'a> {
    pub(super) fingerprint: String,
    pub(super) topology: &'a Topology,
    pub(super) storage: Option<StorageFacts>,
    pub(super) backends: Vec<BackendFacts>,
    pub(super) analytics: AnalyticsEngines,
    pub(super) kernel_offload: KernelOffload,
    pub(super) gpus: GpuFacts,
    pub(super) io_uring: datapipes_file::UringFacts,
    pub(super) calibration: Calibration,
    pub(super) storage_cost: Option<StorageCost>,
}

#[derive(Serialize)]
pub(super) struct BackendFacts {
    pub(super) name: &'static str,
    pub(super) primitives: Vec<Primitive>,
    pub(super) tried_on: BTreeMap<&'static str, &'static str>,
    pub(super) knobs: Vec<Knob>,
}
