//! `--report-html`: a page about what a command did, to be looked at in a browser.
//!
//! | module | what it holds |
//! |---|---|
//! | `options` | the option, and the file that is written as a whole at the end |
//! | `recorder` | the thread that reads counters again and again while the command works |
//! | `bottleneck` | shares of time, and the sentence that names the largest |
//! | `thread_clock` | what the kernel counts of one thread |
//! | `parts` | sections that several commands have: rates, memory, routes, bytes by primitive |
//!
//! The page itself is a value (`datapipes_picture::page`). Each command makes its own from these.

pub(crate) mod bottleneck;
pub(crate) mod options;
pub(crate) mod parts;
pub(crate) mod recorder;
pub(crate) mod thread_clock;
