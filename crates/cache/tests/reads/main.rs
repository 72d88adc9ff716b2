//! Reads: what they find and give out, from the cache alone and many at once, over a device that
//! fails, and with whatever comes from outside. One topic alone: `--test reads views::`.
#![allow(clippy::unwrap_used)]

mod exact;
mod faults;
#[path = "../fixture/mod.rs"]
mod fixture;
mod hostile_inputs;
mod places;
mod views;
