//! Programs that are measured, and the floors they are compared with.

pub(super) mod fine_limit;
pub(super) mod fine_readers;
pub(super) mod fio;
pub(super) mod floor;
pub(super) mod peers;
pub(super) mod rows;
pub(super) mod sort_job;
