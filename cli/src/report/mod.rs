//! `--report-html`: a page about what a command did, to be looked at in a browser.
//!
//! | module | what it holds |
//! |---|---|
//! | `options` | the option, and the file that is written as a whole at the end |
//! | `recorder` | the thread that reads counters again and again while the command works |
//! | `bottleneck` | shares of time, and the sentence that names the largest |
//! | `held_up` | time without a core, under a quota, or stopped: no step's own |
//! | `thread_clock` | what the kernel counts of threads |
//! | `quota_clock` | what limits of containers kept off the cores |
//! | `parts` | sections that several commands have: rates, memory, routes, bytes by primitive |
//!
//! The page itself is a value (`datapipes_picture::page`). Each command makes its own from these.

pub(crate) mod bottleneck;
pub(crate) mod held_up;
pub(crate) mod options;
pub(crate) mod parts;
mod quota_clock;
pub(crate) mod recorder;
pub(crate) mod thread_clock;
