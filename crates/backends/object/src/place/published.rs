//! An object after it was published.

/// An object that was published, as the server has it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PublishedObject {
    /// The length in bytes, as the server says.
    pub len: u64,
    /// The server's tag of this version.
    pub e_tag: Option<String>,
    /// The server's name of this version, where the bucket keeps versions.
    pub version: Option<String>,
    /// Whether the server's checksum of the whole object is that of the bytes that were written.
    pub checksum_verified: bool,
}
