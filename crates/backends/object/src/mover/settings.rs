//! Settings of one pipe.

/// How a pipe makes its requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestSettings {
    /// Bytes of a ranged read.
    pub(crate) read_bytes: u64,
    /// The most requests at once, of one job.
    pub(crate) depth: usize,
}
