//! Inputs and outputs that are neither files nor streams: places that a pipe connects, such as
//! objects in buckets.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datapipes_core::{Dram, Error, ErrorKind, Locator, Machine, Result, Span};

/// A place of known length, or a part of it, that is read as an input.
#[derive(Clone)]
pub struct InputPlace {
    name: PathBuf,
    locator: Arc<dyn Locator + Send + Sync>,
    /// Where the records begin and end in the place.
    from: u64,
    to: u64,
}

impl InputPlace {
    /// Takes a place, with its name for messages.
    ///
    /// # Errors
    /// `InvalidInput` where the place does not state its length.
    pub fn new(name: impl Into<PathBuf>, locator: Arc<dyn Locator + Send + Sync>) -> Result<InputPlace> {
        let name = name.into();
        let Some(len) = locator.endpoint().facts.len else {
            let why = format!("{}: a place that does not state its length", name.display());
            return Err(Error::new(ErrorKind::InvalidInput, "sort", why));
        };
        Ok(InputPlace { name, locator, from: 0, to: len })
    }

    /// Returns bytes `from..to` of it, which begin and end with records. See
    /// [`RecordBorders`](crate::RecordBorders).
    ///
    /// # Errors
    /// `OutOfRange` for bytes that it does not have.
    pub fn part(&self, from: u64, to: u64) -> Result<InputPlace> {
        if from > to || to > self.len() {
            let context = format!("bytes {from} to {to} of {}, which has {}", self.name.display(), self.len());
            return Err(Error::new(ErrorKind::OutOfRange, "open", context));
        }
        Ok(InputPlace { from: self.from + from, to: self.from + to, ..self.clone() })
    }

    /// Its name for messages.
    pub fn name(&self) -> &Path {
        &self.name
    }

    /// Its length in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.to - self.from
    }

    /// Where it begins and ends in the place.
    pub(crate) fn span(&self) -> (u64, u64) {
        (self.from, self.to)
    }

    /// The place, for connecting.
    pub fn locator(&self) -> &dyn Locator {
        &*self.locator
    }

    /// Reads its first bytes, to see how long its records are. Returns how many there are.
    pub(crate) fn sample(&self, machine: &Machine, buffer: &mut [u8]) -> Option<usize> {
        let len = usize::try_from(self.len()).unwrap_or(usize::MAX).min(buffer.len());
        if len > 0 {
            let memory = Dram::allocate(len).ok()?;
            let pipe = machine.connect(self.locator(), &memory).ok()?;
            pipe.transfer(Span { source: self.from, target: 0, len: len as u64 }).ok()?;
            buffer.get_mut(..len)?.copy_from_slice(&memory.lease().ok()?);
        }
        Some(len)
    }
}

impl fmt::Debug for InputPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InputPlace({}, {} bytes)", self.name.display(), self.len())
    }
}

/// A place that is written as an output, each byte once, and appears as a whole when it is
/// published.
pub trait OutputPlace: Locator + fmt::Debug + Send + Sync {
    /// Its name for messages.
    fn name(&self) -> &Path;

    /// Makes it visible. `len` is the number of bytes that were written.
    ///
    /// # Errors
    /// Those of the place; nothing is visible then, unless the error says so.
    fn publish(&self, len: u64) -> Result<()>;
}
