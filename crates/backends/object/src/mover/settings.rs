//! Settings of one pipe.

/// How a pipe makes its requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestSettings {
    /// Bytes of a ranged read; `None` where they follow from what requests take.
    pub(crate) read_bytes: Option<u64>,
    /// The most requests at once, of one job.
    pub(crate) depth: usize,
}
