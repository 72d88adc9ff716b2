//! Memory of GPUs, reached by NVIDIA's driver.

use std::fmt::Write as _;

use datapipes::gpu::{GpuDevice, Hbm, gpu_devices};
use datapipes::{Endpoint, Locator, Result};
use serde::Serialize;

/// Memory of a GPU, made for the command.
#[derive(Debug)]
pub(crate) struct AnyHbm(Hbm);

impl AnyHbm {
    pub(crate) fn allocate(device: u32, len: u64) -> Result<AnyHbm> {
        Hbm::allocate(device, len).map(AnyHbm)
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.len()
    }
}

impl Locator for AnyHbm {
    fn endpoint(&self) -> Endpoint {
        self.0.endpoint()
    }
}

/// The GPUs, or why there is none.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum GpuFacts {
    Devices(Vec<GpuDevice>),
    Absent(String),
}

impl GpuFacts {
    pub(crate) fn find() -> GpuFacts {
        match gpu_devices() {
            Ok(devices) => GpuFacts::Devices(devices),
            Err(e) => GpuFacts::Absent(e.context().to_owned()),
        }
    }

    pub(crate) fn text(&self) -> String {
        let mut out = "GPUs\n".to_owned();
        match self {
            GpuFacts::Absent(why) => _ = writeln!(out, "  none: {why}"),
            GpuFacts::Devices(devices) => {
                for device in devices {
                    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
                    let node = device.node.map_or_else(String::new, |node| format!(", node {node}"));
                    let _ = writeln!(
                        out,
                        "  hbm:{}  {}, {:.1} of {:.1} GiB free, {} copy engines, {}{node}, driver for CUDA {}",
                        device.number,
                        device.name,
                        gib(device.free_bytes),
                        gib(device.total_bytes),
                        device.copy_engines,
                        device.pci_address,
                        device.driver
                    );
                }
            }
        }
        out.push('\n');
        out
    }
}
