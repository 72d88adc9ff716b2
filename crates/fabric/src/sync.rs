//! The types that the two sides of a ring share: the standard library's, or those of a model in
//! which every interleaving can be chosen (`--cfg shuttle`, `cargo xtask shuttle`).

#[cfg(not(shuttle))]
pub(crate) use {datapipes_core::locks::Mutex, std::sync::atomic};

#[cfg(shuttle)]
pub(crate) use {datapipes_core::locks::model::Mutex, shuttle::sync::atomic};

pub(crate) use std::sync::Arc;
