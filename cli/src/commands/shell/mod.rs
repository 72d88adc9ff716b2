//! Commands that set up a shell: completions and man pages, made from the definition of the command
//! line.

pub(crate) mod completions;
pub(crate) mod man;
