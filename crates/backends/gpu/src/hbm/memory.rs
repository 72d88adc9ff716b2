//! An allocation on a device, and who holds which of its bytes.
//!
//! Unsafe code: memory of the driver is freed when nothing refers to it any more; each lease and
//! transfer holds an `Arc`.
#![allow(unsafe_code)]

use std::any::Any;
use std::ffi::{c_int, c_uint};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use datapipes_core::guard::DeferredDrop;
use datapipes_core::locks::Mutex;
use datapipes_core::memory::Access;
use datapipes_core::process::OwningProcess;
use datapipes_core::{Error, ErrorKind, Result};

use crate::driver::abi::{self, DeviceAddress};
use crate::driver::device::Device;
use crate::driver::stream::{Event, Stream};
use crate::driver::{self, Driver, Failure, checked};

/// Memory of a device.
pub(crate) struct HbmMemory {
    pub(super) id: u64,
    pub(super) device: &'static Device,
    pub(super) address: DeviceAddress,
    /// `None` where it is freed by the driver.
    keeper: Option<DeferredDrop>,
    held: Mutex<Vec<(Range<u64>, Access)>>,
    /// What streams of the program may still do with bytes whose leases have ended.
    awaited: Mutex<Vec<(Range<u64>, Arc<Event>)>>,
    owner: OwningProcess,
}

impl HbmMemory {
    pub(super) fn allocate(device: u32, len: u64) -> Result<HbmMemory> {
        let device = driver::device(device, "allocate")?;
        let what = || format!("{len} bytes on {}", device.shown());
        let Some(bytes) = usize::try_from(len).ok().filter(|bytes| *bytes > 0) else {
            return Err(Error::new(ErrorKind::InvalidInput, "allocate", what()));
        };
        let entered = device.enter("allocate")?;
        let mut address = 0;
        // SAFETY: it writes an address. The context is current.
        let status = unsafe { (entered.driver.functions.allocate)(&raw mut address, bytes) };
        checked("cuMemAlloc", status).map_err(|failure| entered.driver.error("allocate", failure, &what()))?;
        Ok(HbmMemory::over(device, address, None))
    }

    pub(super) fn foreign(
        device: u32,
        (address, len): (DeviceAddress, u64),
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<HbmMemory> {
        let device = driver::device(device, "take")?;
        let what = || format!("{len} bytes at address {address:#x} of {}", device.shown());
        let refused = |why: &str| Error::new(ErrorKind::InvalidInput, "take", format!("{}: {why}", what()));
        let Some(last) = len.checked_sub(1).and_then(|less| address.checked_add(less)) else {
            return Err(refused("no range of memory"));
        };
        let entered = device.enter("take")?;
        for byte in [address, last] {
            let facts = PointerFacts::of(entered.driver, byte)
                .map_err(|failure| entered.driver.error("take", failure, &what()))?;
            if facts.kind != abi::TYPE_DEVICE || facts.is_managed {
                return Err(refused("the driver does not know it as plain memory of a device"));
            }
            if u32::try_from(facts.device) != Ok(device.number) {
                return Err(refused(&format!("it lies on GPU {}", facts.device)));
            }
        }
        Ok(HbmMemory::over(device, address, Some(DeferredDrop::new(owner))))
    }

    fn over(device: &'static Device, address: DeviceAddress, keeper: Option<DeferredDrop>) -> HbmMemory {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        HbmMemory {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            device,
            address,
            keeper,
            held: Mutex::default(),
            awaited: Mutex::default(),
            owner: OwningProcess::here(),
        }
    }

    /// Notes that what a stream of the program was given before `event` may use these bytes. The
    /// context is current.
    pub(super) fn await_later(&self, driver: &Driver, range: Range<u64>, event: Arc<Event>) {
        let mut awaited = self.awaited.lock();
        awaited.retain(|(_, event)| !event.is_over(driver).unwrap_or(false));
        awaited.push((range, event));
    }

    /// Calls `wait` for each event that these bytes wait for, and forgets those that are over.
    pub(super) fn for_each_awaited(
        &self,
        driver: &Driver,
        range: &Range<u64>,
        mut wait: impl FnMut(&Event) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut awaited = self.awaited.lock();
        if awaited.is_empty() {
            return Ok(());
        }
        // What cannot be asked stays, and the stream that waits for it fails.
        awaited.retain(|(_, event)| !event.is_over(driver).unwrap_or(false));
        let overlapping = |other: &Range<u64>| other.start < range.end && range.start < other.end;
        awaited.iter().filter(|(other, _)| overlapping(other)).try_for_each(|(_, event)| wait(event))
    }
}

impl Drop for HbmMemory {
    fn drop(&mut self) {
        if !self.owner.is_here() {
            // It is the parent's, and so is what keeps it.
            return std::mem::forget(self.keeper.take());
        }
        if self.keeper.is_some() {
            return;
        }
        // A lost device keeps its memory until the process ends.
        if let Ok(entered) = self.device.enter("free") {
            // SAFETY: the driver gave this address, and nothing refers to the bytes any more.
            unsafe { (entered.driver.functions.free)(self.address) };
        }
    }
}

impl fmt::Debug for HbmMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HbmMemory({} on {})", self.id, self.device.shown())
    }
}

/// What the driver says of an address.
struct PointerFacts {
    kind: c_uint,
    is_managed: bool,
    device: c_int,
}

impl PointerFacts {
    fn of(driver: &Driver, address: DeviceAddress) -> Result<PointerFacts, Failure> {
        let ask = |attribute: c_int| {
            // Each of these attributes has at most four bytes.
            let mut value: c_uint = 0;
            // SAFETY: it writes at most so many bytes.
            let status = unsafe { (driver.functions.pointer_attribute)((&raw mut value).cast(), attribute, address) };
            checked("cuPointerGetAttribute", status).map(|()| value)
        };
        Ok(PointerFacts {
            kind: ask(abi::POINTER_MEMORY_TYPE)?,
            is_managed: ask(abi::POINTER_IS_MANAGED)? != 0,
            device: ask(abi::POINTER_DEVICE)?.cast_signed(),
        })
    }
}

/// Whether the driver knows an address of this process as pinned memory.
pub(crate) fn is_pinned(driver: &Driver, address: *const u8) -> bool {
    const TYPE_HOST: c_uint = 1;
    let mut kind: c_uint = 0;
    let asked = address.expose_provenance() as u64;
    // SAFETY: it writes four bytes.
    let status =
        unsafe { (driver.functions.pointer_attribute)((&raw mut kind).cast(), abi::POINTER_MEMORY_TYPE, asked) };
    status == abi::SUCCESS && kind == TYPE_HOST
}

/// The right to bytes of a device's memory, without a view of them.
pub(crate) struct HbmHold {
    memory: Arc<HbmMemory>,
    range: Range<u64>,
    access: Access,
}

impl HbmHold {
    /// Leases bytes, which lie within the memory.
    ///
    /// # Errors
    /// `Busy`, `Forked`.
    pub(super) fn take(
        memory: &Arc<HbmMemory>,
        range: Range<u64>,
        access: Access,
        operation: &'static str,
    ) -> Result<HbmHold> {
        memory.owner.check(operation)?;
        let mut held = memory.held.lock();
        let conflicts = |(other, by): &&(Range<u64>, Access)| {
            (access == Access::Write || *by == Access::Write) && other.start < range.end && range.start < other.end
        };
        if !range.is_empty() {
            if let Some((other, _)) = held.iter().find(conflicts) {
                let context = format!(
                    "bytes {}..{} of memory of {} are wanted, bytes {}..{} are held by another lease or transfer",
                    range.start,
                    range.end,
                    memory.device.shown(),
                    other.start,
                    other.end
                );
                return Err(Error::new(ErrorKind::Busy, operation, context)
                    .with_advice("drop the other lease, or wait for the transfer"));
            }
            held.push((range.clone(), access));
        }
        drop(held);
        Ok(HbmHold { memory: memory.clone(), range, access })
    }

    /// The address of the first byte.
    pub(crate) fn address(&self) -> DeviceAddress {
        self.memory.address + self.range.start
    }

    pub(crate) fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    pub(crate) fn on(&self) -> &'static Device {
        self.memory.device
    }

    /// What the stream is given from now on comes after what streams of the program were to do with
    /// these bytes.
    ///
    /// # Errors
    /// Those of the driver. The stream's context must be current.
    pub(crate) fn order(&self, driver: &Driver, stream: &Stream) -> Result<(), Failure> {
        self.memory.for_each_awaited(driver, &self.range, |event| stream.wait_for(driver, event))
    }

    /// Whether streams of the program may still use these bytes.
    pub(crate) fn is_awaited(&self, driver: &Driver) -> bool {
        let mut some = false;
        let _ = self.memory.for_each_awaited(driver, &self.range, |_| {
            some = true;
            Ok(())
        });
        some
    }

    pub(super) fn memory(&self) -> &HbmMemory {
        &self.memory
    }

    pub(super) fn range(&self) -> &Range<u64> {
        &self.range
    }

    /// The process that leased the bytes.
    pub(super) fn owner(&self) -> OwningProcess {
        self.memory.owner
    }
}

impl Drop for HbmHold {
    fn drop(&mut self) {
        if !self.memory.owner.is_here() || self.range.is_empty() {
            return;
        }
        let mut held = self.memory.held.lock();
        if let Some(at) = held.iter().position(|(range, access)| *range == self.range && *access == self.access) {
            held.swap_remove(at);
        }
    }
}
