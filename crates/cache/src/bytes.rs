//! The bytes that a read returns: in the cache, or in memory of their own.

use std::ops::Deref;

use datapipes_core::{Error, ErrorKind, Result};

use crate::store::memory::Pinned;
use crate::sync::Arc;

/// Bytes of a file, as they were at one moment between the call and its return.
pub struct Bytes(pub(crate) Held);

pub(crate) enum Held {
    Cached(Pinned),
    Read(Box<[u8]>),
    /// A part of a buffer that several values share.
    Part {
        buffer: Arc<Vec<u8>>,
        at: usize,
        len: usize,
    },
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Held::Cached(pinned) => pinned,
            Held::Read(bytes) => bytes,
            Held::Part { buffer, at, len } => buffer.get(*at..*at + *len).unwrap_or_default(),
        }
    }
}

impl Bytes {
    /// Whether they lie in the cache, and not in memory of their own.
    pub fn is_cached(&self) -> bool {
        matches!(self.0, Held::Cached(_))
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bytes({}, cached: {})", self.len(), self.is_cached())
    }
}

/// Returns `len` zeros, if there is memory for them.
pub(crate) fn zeroed(len: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(len)
        .map_err(|_| Error::new(ErrorKind::OutOfMemory, "read", format!("no memory for {len} bytes")))?;
    bytes.resize(len, 0);
    Ok(bytes)
}
