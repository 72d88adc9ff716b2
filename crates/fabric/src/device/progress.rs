//! The progress of a working device.

use datapipes_core::Result;
use datapipes_metrics::Histogram;

/// The progress of a stream that leaves a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamProgress {
    /// The number of blocks sent, without empty ones.
    pub blocks_out: u64,
    /// Their bytes.
    pub bytes_out: u64,
    /// The number of blocks without a reply: the credits in use, over all outlets. While the device
    /// works, in a read of a slow file for example, it does not look for replies.
    pub under_way: u64,
    /// The number of blocks received, without empty ones.
    pub blocks_in: u64,
    /// Whether it waits for a block: it has none to work on.
    pub is_idle: bool,
    /// Where the device stands in its stream.
    pub stage: StreamStage,
}

/// Where a device stands in its stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamStage {
    /// It works: it has just sent a block.
    #[default]
    Sending,
    /// It waits: for a block, for a credit, or for the bytes that it sends.
    Waiting,
    /// It has sent the last block, and waits for the replies to blocks under way.
    Ending,
    /// All devices downstream are done.
    Ended,
}

/// A receiver of progress reports.
pub trait ProgressSink {
    /// Receives the progress after each sent block, during waits, and at the end of a stream before
    /// and after the wait for downstream devices. It runs on the data path and should be brief.
    ///
    /// # Errors
    /// Any error. It ends the device's work as if a channel had failed.
    fn note(&mut self, standing: &StreamProgress) -> Result<()>;

    /// Whether the outlets are to measure how long blocks are on their way: two looks at the clock
    /// a block. It is asked once, before the device works.
    fn measures_latencies(&self) -> bool {
        false
    }

    /// Receives, after each [`note`](Self::note), a way to read the times of blocks of all outlets
    /// so far, from the push until the reply was known. Reading them costs about a microsecond. It
    /// is not called unless they are [measured](Self::measures_latencies).
    ///
    /// # Errors
    /// As `note`.
    fn note_latencies(&mut self, _times: &dyn Fn() -> Histogram) -> Result<()> {
        Ok(())
    }
}
