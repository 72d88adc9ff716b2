//! The locator of a GPU's memory.

mod content;
mod lease;
mod memory;

use std::any::Any;
use std::sync::Arc;

use datapipes_core::locator::{EndpointHandle, PlaceFacts};
use datapipes_core::memory::Access;
use datapipes_core::{Endpoint, Error, ErrorKind, Locator, Persistence, Reach, Result};

use crate::driver::abi::DeviceAddress;
use crate::driver::device::Device;

pub use self::lease::{HbmLease, HbmLeaseMut};
use self::memory::HbmMemory;
pub(crate) use self::memory::{HbmHold, is_pinned};

/// A range of the memory of a GPU. A clone refers to the same bytes.
///
/// A pipe to it or from it leases the bytes for the time of a transfer, so an overlapping lease is
/// refused as `Busy`, as in main memory.
#[derive(Clone, Debug)]
pub struct Hbm {
    memory: Arc<HbmMemory>,
    at: u64,
    len: u64,
}

impl Hbm {
    /// Allocates `len` bytes on a device; their content is undefined. The first call in a process
    /// loads the driver, and the first on a device makes its context (some 100 ms).
    ///
    /// # Errors
    /// `Unavailable` where the driver is absent, `NotFound` where the device is, `OutOfMemory`,
    /// `InvalidInput` for 0 bytes, `Forked` in a child of a process that used the driver.
    pub fn allocate(device: u32, len: u64) -> Result<Hbm> {
        Ok(Hbm { memory: Arc::new(HbmMemory::allocate(device, len)?), at: 0, len })
    }

    /// Takes memory of another library, such as that of a tensor. `owner` is dropped with the last
    /// reference to the bytes.
    ///
    /// # Safety
    /// `address..address + len` stays allocated until `owner` is dropped, and nothing else accesses
    /// the bytes while a transfer or a lease holds them, but for work on streams that a lease was
    /// told of ([`HbmLease::order_after`]).
    ///
    /// # Errors
    /// `InvalidInput` where the driver does not know the bytes as plain memory of the device; else
    /// as [`allocate`](Self::allocate).
    #[allow(unsafe_code)] // Declares what the caller promises.
    pub unsafe fn foreign(device: u32, address: u64, len: u64, owner: Box<dyn Any + Send + Sync>) -> Result<Hbm> {
        Ok(Hbm { memory: Arc::new(HbmMemory::foreign(device, (address, len), owner)?), at: 0, len })
    }

    /// The bytes of a range of this one.
    ///
    /// # Errors
    /// `OutOfRange` where they do not lie within.
    pub fn slice(&self, range: std::ops::Range<u64>) -> Result<Hbm> {
        if range.start > range.end || range.end > self.len {
            let context = format!("bytes {}..{} of {}, which has {}", range.start, range.end, self.name(), self.len);
            return Err(Error::new(ErrorKind::OutOfRange, "slice", context));
        }
        Ok(Hbm { memory: self.memory.clone(), at: self.at + range.start, len: range.end - range.start })
    }

    /// The length in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The number of the device.
    pub fn device(&self) -> u32 {
        self.memory.device.number
    }

    /// The address in the device's memory. It gives no right to the bytes, which are leased.
    pub fn address(&self) -> u64 {
        self.memory.address + self.at
    }

    /// Leases the bytes for reading.
    ///
    /// # Errors
    /// `Busy` while another lease or a transfer may write them; `Forked`.
    pub fn lease(&self) -> Result<HbmLease> {
        Ok(HbmLease::over(self.hold(0, self.len, Access::Read, "lease")?))
    }

    /// Leases the bytes for writing.
    ///
    /// # Errors
    /// `Busy` while another lease or a transfer holds them; `Forked`.
    pub fn lease_mut(&self) -> Result<HbmLeaseMut> {
        Ok(HbmLeaseMut::over(self.hold(0, self.len, Access::Write, "lease")?))
    }

    /// The device.
    pub(crate) fn on(&self) -> &'static Device {
        self.memory.device
    }

    /// Whether both are parts of one allocation.
    pub(crate) fn is_of_same_memory(&self, other: &Hbm) -> bool {
        Arc::ptr_eq(&self.memory, &other.memory)
    }

    /// Where the byte at an offset of this place lies in its allocation.
    pub(crate) fn offset_in_memory(&self, at: u64) -> u64 {
        self.at.saturating_add(at)
    }

    /// Leases a part.
    ///
    /// # Errors
    /// `OutOfRange`, `Busy`, `Forked`.
    pub(crate) fn hold(&self, at: u64, len: u64, access: Access, operation: &'static str) -> Result<HbmHold> {
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            let context = format!("{len} bytes at {at} of {}, which has {}", self.name(), self.len);
            return Err(Error::new(ErrorKind::OutOfRange, operation, context));
        }
        HbmHold::take(&self.memory, self.at + at..self.at + at + len, access, operation)
    }

    pub(crate) fn name(&self) -> String {
        format!("hbm:{}/{}@{}+{}", self.device(), self.memory.id, self.at, self.len)
    }

    /// The place of an endpoint, if it is one of these.
    pub(crate) fn of(endpoint: &Endpoint) -> Option<Hbm> {
        match &endpoint.handle {
            EndpointHandle::Other(value) => value.downcast_ref::<Hbm>().cloned(),
            _ => None,
        }
    }
}

/// The address of a byte of a hold.
pub(crate) fn address_in(hold: &HbmHold, at: u64) -> DeviceAddress {
    hold.address().saturating_add(at)
}

impl Locator for Hbm {
    fn endpoint(&self) -> Endpoint {
        let facts = PlaceFacts {
            kind: "hbm",
            name: self.name(),
            reach: Reach::Device,
            granularity: 1,
            alignment: 256,
            persistence: Persistence::Volatile,
            len: Some(self.len),
            node: None,
            core: None,
        };
        Endpoint { facts: Arc::new(facts), handle: EndpointHandle::Other(Arc::new(self.clone())) }
    }
}
