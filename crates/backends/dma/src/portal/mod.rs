//! Portals: where descriptors enter a work queue.
//!
//! This module has no unsafe code; it says what a portal has to promise.
#![allow(unsafe_code)]

pub(crate) mod device_file;
mod instructions;

use crate::descriptor::DescriptorBytes;

pub use device_file::DevicePortal;
pub(crate) use instructions::{SubmitInstructions, Umwait};

/// What became of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Submission {
    /// The queue has it.
    Accepted,
    /// The queue is full: the descriptor was not taken.
    Full,
    /// The queue takes no descriptors any more, and why.
    Lost(String),
}

/// The way into a work queue: that of a device, or of a model of one.
///
/// # Safety
/// An implementation reads and writes memory for a descriptor only between its submission and its
/// answer, and not after [`stop`](Portal::stop) has returned without an error.
pub unsafe trait Portal: Send {
    /// Hands a descriptor to the queue. A queue in dedicated mode is never given more descriptors
    /// than it has entries.
    ///
    /// # Safety
    /// The memory that the descriptor names stays valid, and is accessed by nobody else as far as
    /// it is written, until the answer is there or [`stop`](Portal::stop) has returned without an
    /// error.
    unsafe fn submit(&mut self, descriptor: &DescriptorBytes) -> Submission;

    /// Whether the queue still works.
    ///
    /// # Errors
    /// What is wrong with it.
    fn check(&mut self) -> Result<(), String>;

    /// Whether answers are written only by [`poll`](Portal::poll), not by the device.
    fn is_polled(&self) -> bool {
        false
    }

    /// Looks for answers, and writes them where the descriptors say.
    fn poll(&mut self) {}

    /// Whether batches are accepted.
    fn takes_batches(&self) -> bool;

    /// Ends the queue for this process: when this returns, no descriptor touches memory any more.
    /// Some may have been answered, others not.
    ///
    /// # Errors
    /// Why nobody can be sure of that.
    fn stop(&mut self) -> Result<(), String>;
}

/// Waits a moment: first busily, then asleep.
pub(crate) fn pause_by_rounds(round: u32) {
    match round {
        0..256 => std::hint::spin_loop(),
        256..512 => std::thread::yield_now(),
        _ => std::thread::sleep(std::time::Duration::from_micros(50)),
    }
}
