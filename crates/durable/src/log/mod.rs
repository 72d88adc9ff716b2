//! A log: small sequential records to low-latency persistent storage (CIDR'23, section 2).
//!
//! ```
//! use datapipes::durable::log::{Log, LogFolder, LogOptions};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let dir = std::env::temp_dir().join(format!("datapipes-log-{}", std::process::id()));
//!     let machine = datapipes::discover();
//!     let options = LogOptions::default().segment_bytes(1 << 20).batch_bytes(64 << 10);
//!
//!     let log = Log::open(&machine, LogFolder::at(&machine, &dir), options)?;
//!     let first = log.append(b"one")?; // gathers with others
//!     let second = log.append(b"two")?;
//!     assert_eq!(second.wait()?, 2); // durable, and so is the first
//!     assert!(first.is_done());
//!     drop(first);
//!     log.close()?;
//!
//!     let log = Log::open(&machine, LogFolder::at(&machine, &dir), options)?; // recovers
//!     let records: Result<Vec<_>, _> = log.read_from(1)?.collect();
//!     assert_eq!(records?[1].payload, b"two");
//!     drop(log);
//!     std::fs::remove_dir_all(&dir)?;
//!     Ok(())
//! }
//! ```
//!
//! | module | what |
//! |---|---|
//! | `writing/commit` | appends of many threads, gathered in batches (with `options`, `failure`, `stats`) |
//! | `writing/writer` | batches onto segments: write, sync, change over |
//! | `format` | frames and segments, and what makes a stale or damaged byte recognizable; what a closed log says of its end |
//! | `reading` | reading, and the difference between a torn tail and damage |
//! | `place` | where a log lies: three traits, and files |
//!
//! A torn tail is what a crash leaves of a batch that was not acknowledged: recovery cuts it off.
//! Damage is a byte that changed after it was durable: recovery returns `Corrupt` with the offset,
//! and changes nothing. Later frames tell them apart, because each says what was durable when it
//! was written. So damage to the last batch before a crash looks like a torn tail, and so does the
//! loss of the last segment: nothing shows then that there was more. A log that was closed
//! ([`Log::close`], or dropped) has a note of where it begins and ends (the file `closed` of a
//! folder), which is removed when the log is opened again. While the note exists, anything before
//! that end that is missing or changed is `Corrupt`. A log without a note, from an older program or
//! after a crash, is opened as after a crash. A copy of a closed log must include the note.
//!
//! It does not replicate, compress, encrypt or retry.

mod format;
mod options;
mod place;
mod reading;
mod writing;

pub use options::LogOptions;
pub use place::folder::LogFolder;
pub use place::storage::{SegmentSpace, SegmentStorage, UnpublishedSegment};
pub use reading::reader::{LogReader, LogRecord, LogSummary, examine};
pub use writing::commit::{Log, Ticket};
pub use writing::stats::{LatencySummary, LogLatencies, LogStats};
