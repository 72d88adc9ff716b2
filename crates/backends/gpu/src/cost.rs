//! What copies cost, by the device's facts. Nothing is measured.

use datapipes_core::backend::Quality;

use crate::devices::of_pci;
use crate::driver::device::Device;

/// The time from the start of a copy until its end is known: about that of an empty copy on every
/// device of the last ten years.
const LATENCY_NS: f64 = 8_000.0;
/// The rate of a bus that the kernel says nothing of: PCI Express 3 with 16 lanes.
const ASSUMED_BUS_BYTES_PER_S: f64 = 12.5e9;
/// What packets leave of a bus's rate for data.
const BUS_SHARE: f64 = 0.85;
/// The rate of a memory that the driver says nothing of.
const ASSUMED_MEMORY_BYTES_PER_S: f64 = 400e9;
/// The rate at which a core copies between two places in memory.
const CORE_BYTES_PER_S: f64 = 8e9;

/// How the bytes of this process's memory get to a copy engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The engine reads and writes the memory itself, once it is registered.
    Registered,
    /// A core copies to or from pinned buffers.
    Staged,
}

/// Between memory of this process and a device.
pub(crate) fn over_bus(device: &Device, way: Way) -> Quality {
    let bus = bus_bytes_per_s(device).unwrap_or(ASSUMED_BUS_BYTES_PER_S);
    let engine = Quality {
        latency_ns: LATENCY_NS,
        bytes_per_s: bus,
        cpu_share: 0.05,
        offload: true,
        fills_processor_cache: false,
        fills_page_cache: false,
        measured: false,
    };
    match way {
        Way::Registered => engine,
        Way::Staged => Quality {
            bytes_per_s: bus.min(CORE_BYTES_PER_S),
            cpu_share: 1.0,
            offload: false,
            fills_processor_cache: true,
            ..engine
        },
    }
}

/// Within a device: each byte is read and written.
pub(crate) fn within(device: &Device) -> Quality {
    let memory = device.memory_bytes_per_s.unwrap_or(ASSUMED_MEMORY_BYTES_PER_S);
    Quality { bytes_per_s: memory / 2.0, ..over_bus(device, Way::Registered) }
}

/// The rate of the bus by its greatest speed and width: at rest, devices slow it down.
fn bus_bytes_per_s(device: &Device) -> Option<f64> {
    let speed = of_pci(&device.pci, "max_link_speed")?;
    let width = of_pci(&device.pci, "max_link_width")?;
    rate_of_link(&speed, &width)
}

/// The rate of a link such as `32.0 GT/s PCIe` with 16 lanes.
fn rate_of_link(speed: &str, width: &str) -> Option<f64> {
    let transfers: f64 = speed.split_whitespace().next()?.parse().ok()?;
    let lanes: f64 = width.parse().ok()?;
    let rate = transfers * 1e9 / 8.0 * lanes * BUS_SHARE;
    (rate.is_finite() && rate > 0.0 && lanes <= 64.0).then_some(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_has_the_rate_of_its_speed_and_its_lanes() {
        assert_eq!(rate_of_link("32.0 GT/s PCIe", "16"), Some(54.4e9));
        for (speed, width) in [("Unknown", "16"), ("32.0 GT/s PCIe", "255"), ("", ""), ("8.0 GT/s PCIe", "0")] {
            assert_eq!(rate_of_link(speed, width), None, "{speed} {width}");
        }
    }
}
