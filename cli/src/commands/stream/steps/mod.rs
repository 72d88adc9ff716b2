//! The steps of a stream: devices, the functions in them, compression formats, and programs.

pub(in crate::commands::stream) mod blocks;
pub(in crate::commands::stream) mod bodies;
pub(in crate::commands::stream) mod chain;
pub(in crate::commands::stream) mod codecs;
pub(in crate::commands::stream) mod device_progress;
pub(in crate::commands::stream) mod program;
pub(in crate::commands::stream) mod supervisor;
pub(in crate::commands::stream) mod trust;
