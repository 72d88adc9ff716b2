//! Memory endpoints: bytes of which the controller says who may read and who may write them.
//!
//! This module is unsafe code. It promises that a memory is touched within its mapping, and written
//! only where it was mapped for writing. Other processes may write the same bytes meanwhile: so
//! they are copied, never shown in place.
#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use datapipes_core::process::OwningProcess;
use datapipes_core::{Error, ErrorKind, Result};

use crate::channel::memory::Mapping;

/// A memory endpoint of this party. It belongs to the process that took it: a child made by `fork`
/// would not hear of a revocation.
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

    /// Copies bytes out.
    ///
    /// # Errors
    /// `OutOfRange`; `PermissionDenied` after it was revoked.
    pub fn read(&self, at: usize, target: &mut [u8]) -> Result<()> {
        self.check(at, target.len())?;
        // SAFETY: within the mapping, as was just checked; the target is private memory.
        unsafe { self.mapping.read(at, target) };
        Ok(())
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// `OutOfRange`; `PermissionDenied` where it was given for reading, and after it was revoked.
    pub fn write(&self, at: usize, source: &[u8]) -> Result<()> {
        self.check(at, source.len())?;
        if !self.writable {
            return Err(Error::new(ErrorKind::PermissionDenied, "write", "a memory that was given for reading"));
        }
        // SAFETY: within the mapping and mapped for writing, as was just checked.
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
