//! Leases of a GPU's memory for the program, and their order with its streams.
//!
//! A transfer is done when it says so, and a lease is given only when no transfer holds the bytes.
//! So work that a stream of the program is given under a lease needs no further order. But such
//! work may still be under way when the lease ends: `order_after` makes later transfers wait for
//! it, on the device.
//!
//! Unsafe code: the caller's streams are passed to the driver.
#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use datapipes_core::Result;

use super::memory::HbmHold;
use crate::driver::Failure;
use crate::driver::stream::Event;

/// The right to read bytes of a GPU's memory.
pub struct HbmLease(HbmHold);

/// The exclusive right to bytes of a GPU's memory.
pub struct HbmLeaseMut(HbmHold);

macro_rules! lease {
    ($lease:ident) => {
        impl $lease {
            pub(super) fn over(hold: HbmHold) -> $lease {
                $lease(hold)
            }

            /// The address of the first byte, for calls of CUDA on the device's primary context.
            pub fn address(&self) -> u64 {
                self.0.address()
            }

            /// The length in bytes.
            #[allow(clippy::len_without_is_empty)]
            pub fn len(&self) -> u64 {
                self.0.len()
            }

            /// Transfers of these bytes that are started later come after the work that `stream`
            /// has now. Call it after the last work that uses the bytes was given to the stream;
            /// the lease may end before the work does.
            ///
            /// # Safety
            /// `stream` is a stream of the device's primary context (`CUstream`; 0, 1 and 2 are the
            /// default ones), and lives.
            ///
            /// # Errors
            /// Those of the driver; `Forked`.
            pub unsafe fn order_after(&self, stream: u64) -> Result<()> {
                // SAFETY: as the caller promises.
                unsafe { order_after(&self.0, stream) }
            }

            /// Work that `stream` is given from now on comes after what earlier leases of these
            /// bytes left on other streams. Transfers need no order: a lease is given when they are
            /// done.
            ///
            /// # Safety
            /// As for [`order_after`](Self::order_after).
            ///
            /// # Errors
            /// Those of the driver; `Forked`.
            pub unsafe fn order_before(&self, stream: u64) -> Result<()> {
                // SAFETY: as the caller promises.
                unsafe { order_before(&self.0, stream) }
            }
        }

        impl fmt::Debug for $lease {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({:?} of {:?})", stringify!($lease), self.0.range(), self.0.memory())
            }
        }
    };
}

lease!(HbmLease);
lease!(HbmLeaseMut);

/// # Safety
/// `stream` is a stream of the device's primary context, and lives.
unsafe fn order_after(hold: &HbmHold, stream: u64) -> Result<()> {
    hold.owner().check("order")?;
    let entered = hold.on().enter("order")?;
    let told = |failure: Failure| entered.driver.error("order", failure, &format!("a stream of {}", hold.on().shown()));
    let event = Event::new(entered.driver, hold.on()).map_err(told)?;
    // SAFETY: as the caller promises; the context is current.
    unsafe { event.record_on_foreign(entered.driver, stream) }.map_err(told)?;
    hold.memory().await_later(entered.driver, hold.range().clone(), Arc::new(event));
    Ok(())
}

/// # Safety
/// As [`order_after`].
unsafe fn order_before(hold: &HbmHold, stream: u64) -> Result<()> {
    hold.owner().check("order")?;
    let entered = hold.on().enter("order")?;
    let wait = |event: &Event| {
        // SAFETY: as the caller promises; the context is current.
        unsafe { event.hold_foreign(entered.driver, stream) }
    };
    let told = |failure: Failure| entered.driver.error("order", failure, &format!("a stream of {}", hold.on().shown()));
    hold.memory().for_each_awaited(entered.driver, hold.range(), wait).map_err(told)
}
