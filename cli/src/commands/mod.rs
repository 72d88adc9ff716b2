//! The commands. Each module holds the arguments of a command, its work and its output.

pub(crate) mod data;
pub(crate) mod demo;
pub(crate) mod durable;
pub(crate) mod experiment;
pub(crate) mod fine;
pub(crate) mod host;
pub(crate) mod model;
pub(crate) mod shell;
pub(crate) mod sort;
pub(crate) mod stream;
pub(crate) mod top;
