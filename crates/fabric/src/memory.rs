//! Memory endpoints: memory for which the controller decides who may read and write it.
//!
//! This module has unsafe code. It accesses a memory only within its mapping, and writes only to
//! mappings for writing. Other processes may write the same bytes at the same time, so bytes are
//! copied and never shown in place.
#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use datapipes_core::process::OwningProcess;
use datapipes_core::{Error, ErrorKind, Result};

use crate::channel::memory::Mapping;

/// A memory endpoint of this party. It belongs to the process that took it: a child made by `fork`
/// would not learn of a revocation.
#[derive(Clone)]
pub struct MemoryEndpoint {
    mapping: Arc<Mapping>,
    writable: bool,
    owner: OwningProcess,
}

impl MemoryEndpoint {
    pub(crate) fn new(mapping: Arc<Mapping>, writable: bool) -> MemoryEndpoint {
        MemoryEndpoint { mapping, writable, owner: OwningProcess::here() }
    }

    /// The length in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.mapping.len()
    }

    /// Whether this party may write it.
    pub fn writable(&self) -> bool {
        self.writable
    }

    /// Copies bytes out of the memory.
    ///
    /// # Errors
    /// `OutOfRange`, and `PermissionDenied` after a revocation.
    pub fn read(&self, at: usize, target: &mut [u8]) -> Result<()> {
        self.check(at, target.len())?;
        // SAFETY: the range is within the mapping, as was just checked, and the target is private
        // memory.
        unsafe { self.mapping.read(at, target) };
        Ok(())
    }

    /// Copies bytes into the memory.
    ///
    /// # Errors
    /// `OutOfRange`. `PermissionDenied` for a memory that may only be read, and after a revocation.
    pub fn write(&self, at: usize, source: &[u8]) -> Result<()> {
        self.check(at, source.len())?;
        if !self.writable {
            return Err(Error::new(ErrorKind::PermissionDenied, "write", "the memory may only be read"));
        }
        // SAFETY: the range is within the mapping, which is writable, as was just checked.
        unsafe { self.mapping.write(at, source) };
        Ok(())
    }

    fn check(&self, at: usize, len: usize) -> Result<()> {
        self.owner.check("use")?;
        if self.mapping.is_apart() {
            return Err(Error::new(ErrorKind::PermissionDenied, "use", "the memory was revoked"));
        }
        if at > self.len() || len > self.len() - at {
            let context = format!("{len} bytes at {at} of a memory of {}", self.len());
            return Err(Error::new(ErrorKind::OutOfRange, "use", context));
        }
        Ok(())
    }
}

impl fmt::Debug for MemoryEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedMemory({} bytes{})", self.len(), if self.writable { ", writable" } else { "" })
    }
}
