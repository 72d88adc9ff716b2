//! The settings of a log.

use datapipes_core::{Error, ErrorKind, Result};

use crate::log::format::segment::DATA_AT;

/// The settings of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogOptions {
    /// Bytes of a new segment; 32 MiB by default.
    pub segment_bytes: u64,
    /// Bytes of a batch; a record is at most 40 bytes shorter. The log holds two batches in memory.
    /// 1 MiB by default.
    pub batch_bytes: u32,
}

datapipes_core::setters! {
    LogOptions {
        segment_bytes: u64,
        batch_bytes: u32,
    }
}

impl Default for LogOptions {
    fn default() -> Self {
        LogOptions { segment_bytes: 32 << 20, batch_bytes: 1 << 20 }
    }
}

impl LogOptions {
    pub(super) fn check(self) -> Result<LogOptions> {
        let LogOptions { segment_bytes, batch_bytes } = self;
        let bad = |why: String| Err(Error::new(ErrorKind::InvalidInput, "open a log", why));
        if !(4096..=1 << 30).contains(&batch_bytes) || batch_bytes % 4096 != 0 {
            return bad(format!("batches of {batch_bytes} bytes: give a multiple of 4096, at most 1 GiB"));
        }
        if segment_bytes % 4096 != 0 || segment_bytes < DATA_AT + u64::from(batch_bytes) || segment_bytes > 1 << 40 {
            return bad(format!(
                "segments of {segment_bytes} bytes: give a multiple of 4096, at least one batch ({batch_bytes}) and 4096 \
                 more, at most 1 TiB"
            ));
        }
        Ok(self)
    }
}
