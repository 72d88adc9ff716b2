//! Opening a log, which may take long.

use datapipes::Result;
use datapipes_durable::log::{Log, LogFolder, LogOptions};

use crate::progress::{self, State};

/// Opens a log for appending. On a slow disk its first segment takes long, and that is shown. A log
/// that is there needs none: its end is read.
pub(super) fn open_shown(folder: &LogFolder, options: LogOptions, open: impl FnOnce() -> Result<Log>) -> Result<Log> {
    let state = || match folder.zero_filled_bytes() {
        0 => State { phase: "opening the log", ..State::default() },
        done => State { phase: "making a segment", done, total: options.segment_bytes, later: 0 },
    };
    progress::during(progress::wanted(), state, open)
}
