//! One vocabulary of measurements (CIDR'23, section 6, principle 4: visible state).
//!
//! | module | what it holds |
//! |---|---|
//! | [`vocabulary`] | every measurement once: name, kind, unit, labels, help |
//! | [`Sample`] | a value of a measurement, with its labels |
//! | [`ByteCount`], [`ByteRate`] | bytes and rates as people read them |
//! | [`Course`] | values over time, in bounded memory |
//! | [`Histogram`], [`Recorder`] | distributions of times, with a bounded relative error |
//! | [`prometheus()`], [`Document`] | samples as Prometheus' text, and as JSON |
//! | [`spans`], [`trace`] | every span and event for `tracing` once, and the macros that tell of them (feature `tracing`) |
//! | `FacadePublisher` | samples for the recorder of the crate `metrics` (feature `facade`) |
//!
//! Reports of the other crates give samples (`samples()`). They are values: nothing is registered,
//! and nothing is counted for them that the reports do not have.
//!
//! ```
//! use datapipes_metrics::{Label, Sample, prometheus, vocabulary};
//!
//! let sample = Sample::new(&vocabulary::CACHE_READS, 3u64).label(Label::Outcome, "hit");
//! let text = prometheus(&[sample]);
//! assert!(text.ends_with("datapipes_cache_reads_total{outcome=\"hit\"} 3\n"));
//! ```
#![deny(unsafe_code)]

mod amounts;
mod course;
mod document;
#[cfg(feature = "facade")]
mod facade;
mod histogram;
mod measurement;
mod prometheus;
mod sample;
pub mod spans;
pub mod trace;
pub mod vocabulary;

pub use amounts::{ByteCount, ByteRate};
pub use course::{Course, CourseColumn};
pub use document::Document;
#[cfg(feature = "facade")]
pub use facade::FacadePublisher;
pub use histogram::{Histogram, Recorder};
pub use measurement::{Label, Measurement, MeasurementKind, Unit};
pub use prometheus::{prometheus, prometheus_of_run};
pub use sample::{Sample, SampleValue, continued};
