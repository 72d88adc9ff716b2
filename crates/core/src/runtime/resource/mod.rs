//! What transfers of several pipes compete for: a device, or a group of threads.
//!
//! | file | what it holds |
//! |---|---|
//! | `worker_pool` | threads that carry out what has no queue of its own |
//! | `shared_resource` | transfers that wait, under one scheduler |
//! | `part_execution` | a part that a thread of a worker pool carries out |

mod part_execution;
pub(crate) mod shared_resource;
pub(crate) mod worker_pool;
