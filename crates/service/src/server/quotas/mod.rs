//! Who may have how much, and has it.

pub(super) mod account;
pub(super) mod limits;
pub(super) mod numbers;
pub(super) mod token_bucket;
