//! What the processor, the memory and the disks count while bytes move (CIDR'23, section 6,
//! principle 4: visible state).
//!
//! [`CounterSet::open`] begins to count: cache misses, instructions and system calls of the calling
//! thread and of what it starts from then on; bytes of memory, of disks and between nodes of the
//! whole machine. What this machine does not count, or what is not permitted, is named with the
//! reason, and is never 0.
//!
//! ```
//! use datapipes_counters::CounterSet;
//! use datapipes_metrics::{Sample, prometheus};
//! let counters = CounterSet::open();
//! let bytes = vec![1u8; 1 << 20];
//! for reading in counters.read() {
//!     match (&reading.value, &reading.absent) {
//!         (Some(value), _) => println!("{} {value} {}", reading.name, reading.unit),
//!         (None, why) => println!("{} is absent: {}", reading.name, why.as_deref().unwrap_or("")),
//!     }
//! }
//! let samples: Vec<Sample> = counters.read().iter().map(|reading| reading.sample()).collect();
//! println!("{}", prometheus(&samples));
//! # drop(bytes);
//! ```
//!
//! **Not verified on hardware:** events of the processor's caches, memory controllers and resctrl
//! were tried on made trees, and on machines that count none of them.
#![deny(unsafe_code)]

mod files;
mod perf;
mod set;
mod tree;
mod uncore;

pub use set::{CounterReading, CounterScope, CounterSet, difference};
