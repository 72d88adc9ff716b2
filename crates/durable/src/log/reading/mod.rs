//! Reading, and the difference between a torn tail and damage.

pub(super) mod chain;
pub(super) mod reader;
pub(super) mod scan;
