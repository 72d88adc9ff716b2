//! Knobs of made trees: what is listed, what is refused, and that a transaction restores whatever
//! happens.
#![allow(clippy::unwrap_used)]

mod crashes;
mod guards;
mod hostile;
mod journals;
mod listing;
mod made_tree;
mod pipe_shares;
mod probe;
mod thread_groups;
mod transactions;
