//! The costs of the steps, and the source of each figure.

use serde::Serialize;

use crate::time::Time;

/// The costs of the steps of a read, on the host and in the device.
///
/// Only the cost of a word by MMIO and the difference of the two byte interfaces can be read from
/// the paper (figure 8 and its text). The others were chosen so that figure 8's distances, its 2 us
/// and its 33.8 times, and figure 6's 31.2 times hold with table 2's hit ratios. This is no
/// evidence for each single cost: what is charged to the commands could belong to the flash.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Timing {
    /// A read of up to a page that the page cache serves, with system call and copy. Calibrated.
    pub page_hit: Time,
    /// A read that the fine-grained read cache serves. Calibrated.
    pub fine_hit: Time,
    /// Reading one flash page into the device's read buffer, with firmware. Calibrated: that of the
    /// fastest SLC flash.
    pub flash_read: Time,
    /// Bytes of a flash page, a power of two (others are rounded down to one). Calibrated; 64 of
    /// them are a read-ahead window.
    pub flash_page_bytes: u64,
    /// Bytes that the kernel reads ahead for a miss of the page cache: Linux's default of 128 KiB.
    /// Their flash pages are read one after the other ("cannot synchronously read data from
    /// parallel channels"). Only the time is charged: with the bytes, tables 2 and 3 are out of
    /// reach.
    pub read_ahead_bytes: u64,
    /// Block layer, driver, command and interrupt of a block read. Calibrated.
    pub block_command: Time,
    /// Constructor, requester and command of a byte-granular read. Calibrated.
    pub byte_command: Time,
    /// 2B-SSD by DMA: setting up the mapping for each access. The paper has 21.79 to 25.06 us more
    /// than Pipette without cache; this is the middle.
    pub dma_mapping: Time,
    /// 2B-SSD by MMIO: command and page fault. Calibrated: its line crosses Pipette without cache
    /// at 32 B.
    pub mmio_command: Time,
    /// 2B-SSD by MMIO: a non-posted read of 8 bytes. Figure 8's slope is 0.18 to 0.20 us.
    pub mmio_word: Time,
    /// The rate of the device's link (PCIe 3, 4 lanes), in bytes per second. Assumed.
    #[serde(rename = "link_bytes_per_second")]
    pub link_bytes_per_s: f64,
}

impl Timing {
    /// Returns the set used for all figures.
    pub fn calibrated() -> Timing {
        Timing {
            page_hit: Time::ns(500),
            fine_hit: Time::ns(500),
            flash_read: Time::ns(3200),
            flash_page_bytes: 2 << 10,
            read_ahead_bytes: 128 << 10,
            block_command: Time::ns(8000),
            byte_command: Time::ns(2500),
            dma_mapping: Time::ns(23_400),
            mmio_command: Time::ns(1740),
            mmio_word: Time::ns(190),
            link_bytes_per_s: 3.2e9,
        }
    }
}
