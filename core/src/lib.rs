//! Vocabulary and decisions of Data Pipes (under construction).
#![deny(unsafe_code)]

mod error;
pub mod topology;

pub use error::{Error, ErrorKind, Result};
