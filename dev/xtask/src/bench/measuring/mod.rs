//! How turns are taken, and what a run is judged by.

pub(super) mod conditions;
pub(super) mod machine;
pub(super) mod measure;
pub(super) mod page_cache;
pub(super) mod turns;
pub(super) mod verify;
