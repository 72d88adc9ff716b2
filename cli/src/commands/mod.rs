//! One module a command: its arguments, what it does, what it prints.

pub(crate) mod calibrate;
pub(crate) mod check;
pub(crate) mod checkpoint;
pub(crate) mod constraints;
pub(crate) mod copy;
pub(crate) mod demo;
pub(crate) mod explain;
pub(crate) mod fine;
pub(crate) mod generate;
pub(crate) mod log;
pub(crate) mod machine;
pub(crate) mod model;
pub(crate) mod sort;
pub(crate) mod stream;
