//! Data Pipes for C and C++ ("programming language agnostic", CIDR'23, section 5.2).
//!
//! ```text
//! C program -> include/datapipes.h -> a function here -> door::enter -> the crate `datapipes`
//!                                                     -> handles: numbers, never pointers
//! ```
//!
//! * Every object is a handle: a number with a generation, in a struct of its own type. A handle
//!   that was closed, closed twice or never made is refused (`InvalidInput`), whatever other
//!   threads do (`handles`).
//! * Every function that can fail returns a `dp_error`, which is 0 for success (`error`).
//! * No panic leaves a function (`door`); callbacks must not unwind into the library.
//! * `include/datapipes.h` is generated from this crate by cbindgen; a test compares the two.
//!
//! Unsafe code: what a caller passes as a pointer is read or written. Each function's documentation
//! says what the pointer must be; null is refused.
#![allow(unsafe_code, non_camel_case_types, unreachable_pub)]
#![allow(clippy::missing_safety_doc)] // The header says what pointers must be, for its readers.

mod arguments;
mod cache;
mod channel;
mod checkpoint;
mod descriptor;
mod device_body;
mod device_graph;
mod door;
mod endpoint;
mod error;
mod fabric;
mod graph;
mod handles;
mod log;
mod machine;
mod pipe;
mod place;
mod process_lock;
mod report;
mod runtime;
mod service;
mod sort;
mod sort_streams;

pub use arguments::dp_format;
pub use cache::*;
pub use channel::*;
pub use checkpoint::*;
pub use descriptor::*;
pub use device_body::*;
pub use device_graph::*;
pub use endpoint::*;
pub use error::*;
pub use fabric::*;
pub use graph::*;
pub use log::*;
pub use machine::*;
pub use pipe::*;
pub use place::*;
pub use report::dp_text_told;
pub use runtime::*;
pub use service::*;
pub use sort::*;
pub use sort_streams::*;

/// The version of the interface: it grows when functions are added, and the first part changes
/// when programs must be compiled anew. Struct arguments begin with their size, so that they can
/// grow without that.
pub const DP_ABI_VERSION: u32 = 1;

/// Returns `DP_ABI_VERSION` of the library that is loaded, for comparing it with the header's.
#[unsafe(no_mangle)]
pub extern "C" fn dp_abi_version() -> u32 {
    DP_ABI_VERSION
}

/// Returns how many handles are open in this process, for tests that search for leaks.
#[unsafe(no_mangle)]
pub extern "C" fn dp_open_handles() -> u64 {
    handles::open()
}
