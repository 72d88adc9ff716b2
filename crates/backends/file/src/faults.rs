//! Fault injection, so that tests meet what a healthy machine does not show.

/// A request that is about to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Whether it writes to the file.
    pub write: bool,
    /// The offset in the file, in bytes.
    pub offset: u64,
    /// The length in bytes.
    pub len: u32,
    /// The number of requests that the mover made before this one.
    pub nth: u64,
}

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultVerdict {
    /// It is made unchanged.
    Pass,
    /// Only this many bytes are asked of the kernel. Direct requests are rounded up to the
    /// alignment, so that the kernel accepts them; a request of one block cannot be shortened.
    Short(u32),
    /// It is made, and its result is replaced by this errno.
    Errno(i32),
    /// A ring does not answer it before it is cancelled, as if the kernel had lost it. Other
    /// engines treat it as [`FaultVerdict::Pass`].
    Lost,
}

/// Decides what happens to requests; see
/// [`FileBackendOptions::faults`](crate::FileBackendOptions::faults).
///
/// ```
/// use datapipes_file::{FaultInjector, Operation, FaultVerdict};
/// /// The first MiB cannot be read.
/// struct BadSpot;
/// impl FaultInjector for BadSpot {
///     fn verdict(&self, op: &Operation) -> FaultVerdict {
///         if !op.write && op.offset < 1 << 20 { FaultVerdict::Errno(5) } else { FaultVerdict::Pass }
///     }
/// }
/// # let _: &dyn FaultInjector = &BadSpot;
/// ```
pub trait FaultInjector: Send + Sync {
    /// Decides about one request. It is called with a lock held and must not use the pipe.
    fn verdict(&self, operation: &Operation) -> FaultVerdict;
}
