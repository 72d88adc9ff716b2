//! Faults on request, so that tests meet what a healthy machine does not show.

/// A request that is about to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Whether it writes to the file.
    pub write: bool,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
    /// How many requests the mover made before this one.
    pub nth: u64,
}

/// What is to become of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultVerdict {
    /// Nothing special.
    Pass,
    /// Only so many bytes are asked of the kernel. Direct requests are rounded up to the alignment,
    /// so that the kernel takes them; a request of one block cannot be shortened.
    Short(u32),
    /// It is carried out, and its result replaced by this errno.
    Errno(i32),
    /// A ring does not answer it before it is asked back, as if the kernel had lost it. Elsewhere
    /// as [`FaultVerdict::Pass`].
    Lost,
}

/// Decides the fate of requests; see [`FileConfig::faults`](crate::FileConfig::faults).
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
    /// The fate of one request. It is called with a lock held and must not use the pipe.
    fn verdict(&self, operation: &Operation) -> FaultVerdict;
}
