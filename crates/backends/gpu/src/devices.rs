//! The devices that the driver has.

use datapipes_core::Result;
use serde::Serialize;

use crate::driver::device::Device;
use crate::driver::{self, Driver};

/// A GPU.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct GpuDevice {
    /// Its number, counted from 0 in the driver's order.
    pub number: u32,
    /// Its name.
    pub name: String,
    /// The bytes of its memory.
    pub total_bytes: u64,
    /// Those that are free.
    pub free_bytes: u64,
    /// Its PCI address, such as `0000:41:00.0`.
    pub pci_address: String,
    /// The NUMA node that it is attached to, where the kernel says so.
    pub node: Option<u32>,
    /// Copies that it makes at the same time, beside its computations.
    pub copy_engines: u32,
    /// The version of CUDA that the driver supports.
    pub driver: String,
}

/// Returns the GPUs. It loads the driver and makes a context on each device.
///
/// # Errors
/// `Unavailable` with what is absent; `Forked` in a child of a process that used the driver; the
/// driver's errors.
pub fn gpu_devices() -> Result<Vec<GpuDevice>> {
    let driver = Driver::get("discover")?;
    driver::devices("discover")?.iter().map(|device| facts(driver, device)).collect()
}

fn facts(driver: &Driver, device: &Device) -> Result<GpuDevice> {
    let (free_bytes, total_bytes) = device.memory()?;
    Ok(GpuDevice {
        number: device.number,
        name: device.name.clone(),
        total_bytes,
        free_bytes,
        pci_address: device.pci.clone(),
        node: node(&device.pci),
        copy_engines: device.copy_engines,
        driver: driver.version.clone(),
    })
}

/// The NUMA node of a PCI device; the kernel says -1 where there is none.
fn node(pci: &str) -> Option<u32> {
    of_pci(pci, "numa_node")?.parse().ok()
}

/// What the kernel says of a PCI device.
pub(crate) fn of_pci(pci: &str, attribute: &str) -> Option<String> {
    // A name of the driver, which becomes a part of a path.
    let is_address = |c: char| c.is_ascii_hexdigit() || c == ':' || c == '.';
    if pci.is_empty() || !pci.chars().all(is_address) || pci.starts_with('.') {
        return None;
    }
    let text = std::fs::read_to_string(format!("/sys/bus/pci/devices/{pci}/{attribute}")).ok()?;
    Some(text.trim().to_owned())
}
