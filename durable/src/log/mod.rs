//! A log: small sequential records to low-latency persistent storage (CIDR'23, section 2).
//!
//! ```
//! use datapipes_core::{Machine, topology::Topology};
//! use datapipes_durable::log::{LogFolder, Log, LogOptions};
//! # use std::sync::Arc;
//! # let topology = Topology::discover();
//! # let cpu = datapipes_cpu::CpuBackend::new(&topology, datapipes_cpu::Calibration::assumed(&topology));
//! # let machine = Machine::new(topology, vec![Arc::new(datapipes_file::FileBackend::probe()), Arc::new(cpu)]);
//! # let dir = std::env::temp_dir().join(format!("durable-doc-{}", std::process::id()));
//! let options = LogOptions { segment_bytes: 1 << 20, batch_bytes: 64 << 10 };
//! let log = Log::open(&machine, LogFolder::at(&machine, &dir), options)?;
//! let first = log.append(b"one")?; // gathers with others
//! let second = log.append(b"two")?;
//! assert_eq!(second.wait()?, 2); // durable, and so is the first
//! assert!(first.is_done());
//! drop(first);
//! log.close()?;
//!
//! let log = Log::open(&machine, LogFolder::at(&machine, &dir), options)?; // recovers
//! let records: Result<Vec<_>, _> = log.read_from(1)?.collect();
//! assert_eq!(records?[1].payload, b"two");
//! # drop(log);
//! # std::fs::remove_dir_all(&dir).unwrap();
//! # Ok::<(), datapipes_core::Error>(())
//! ```
//!
//! | module | what |
//! |---|---|
//! | `commit` | appends of many threads, gathered into batches; who waits for what (`options`, `failure`, `stats` are its parts) |
//! | `writer` | batches onto segments: write, sync, change over |
//! | `frame`, `segment` | the format, and what makes a stale or damaged byte recognizable |
//! | `closing` | what a closed log says of its end |
//! | `scan`, `chain`, `reader` | reading, and the difference between a torn tail and damage |
//! | `storage`, `folder` | the place: three traits, and files |
//!
//! A torn tail is what a crash leaves of a batch that nobody was told is durable: recovery cuts it
//! off. Damage is a byte that changed after it was durable: recovery says `Corrupt`, with the
//! offset, and changes nothing. They are told apart by later frames, each of which says what was
//! durable when it was written. So damage to the last batch before a crash looks like a torn tail,
//! and so does the loss of its last segment: nothing says then that there was more. A log that was
//! closed ([`Log::close`], or dropped) has a note of where it begins and ends (the file `closed` of
//! a folder), which goes when it is opened again: until then anything that is missing before that
//! end, or changed, is `Corrupt`. A log without a note, of an older program or after a crash, opens
//! as before. Whoever copies a closed log copies the note.
//!
//! It does not replicate, compress, encrypt or retry.

mod chain;
mod close_note;
mod commit;
mod failure;
mod folder;
mod frame;
mod options;
mod reader;
mod scan;
mod sealed;
mod segment;
mod stats;
mod storage;
mod writer;

pub use commit::{Log, Ticket};
pub use folder::LogFolder;
pub use options::LogOptions;
pub use reader::{LogReader, LogRecord, LogSummary, examine};
pub use stats::{LatencySummary, LogStats};
pub use storage::{SegmentSpace, SegmentStorage, UnpublishedSegment};
