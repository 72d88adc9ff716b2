//! The progress of a working device.

use datapipes_core::Result;

/// The progress of a stream that leaves a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamProgress {
    /// The number of blocks sent, without empty ones.
    pub blocks_out: u64,
    /// Their bytes.
    pub bytes_out: u64,
    /// The number of blocks without a reply: the credits in use, over all outlets.
    pub under_way: u64,
    /// Whether the last block was sent. The device then waits, or has waited, for blocks still in
    /// flight.
    pub at_end: bool,
}

/// A receiver of progress reports.
pub trait ProgressSink {
    /// Receives the progress after each sent block, and at the end of a stream before and after the
    /// wait for downstream devices. It runs on the data path and should be brief.
    ///
    /// # Errors
    /// Any error. It ends the device's work as if a channel had failed.
    fn note(&mut self, standing: &StreamProgress) -> Result<()>;
}
