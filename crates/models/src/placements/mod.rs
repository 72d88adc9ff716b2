//! Three placements of the data channel protocol, in virtual time.
//!
//! The system of Asmussen and Roitzsch, *Towards Disaggregation-Native Data Streaming between
//! Devices*: an application sends blocks through a chain of devices in resource pools and gets them
//! back. The same protocol runs on the application's machine, on a CPU of the pool, or on the
//! devices ([`SimulatedPlacement`]).
//!
//! - [`simulate`] is the model: units, channels and protocol steps as events ([`Parameters`],
//!   [`Scenario`]).
//! - [`closed_form_latency`] is the sum that it must equal if one block is in flight and links have
//!   latency only; a property test compares them to the picosecond.
//! - [`figure_3`] is the paper's figure over block sizes, [`published`] its ranges, and
//!   [`what_ifs`] the questions that it leaves open.
//!
//! # What is known and what is not
//!
//! The paper publishes two ranges over 1 to 32 KiB: the distributed placement is 45 to 67 % faster
//! than the application-side one and 21 to 28 % faster than the central one (`T_other /
//! T_distributed - 1`). It does not publish the heights of its bars, the costs of software steps,
//! or the rates of links. So the step costs and rates of the sets with that name are *calibrated*.
//! All absolute latencies are *unknown*, whatever the set. The counts of round trips *follow from
//! the protocol*, and with them the shape over sizes, and that each 4 KiB packet costs a round
//! trip.
//!
//! Not modelled: the accelerators' work (a constant can be given), memory, packets that overtake
//! each other, and the kernel that sets channels up.

mod closed_form;
mod figure;
mod parameters;
mod simulation;
#[cfg(test)]
mod tests;
mod wiring;

pub use closed_form::latency as closed_form_latency;
pub use figure::{Figure3, PlacementRow, Point, PublishedRanges, ValueRange, WhatIf, figure_3, published, what_ifs};
pub use parameters::{ParameterSet, Parameters, PathCost, Scenario, SimulatedPlacement, Steps, calibrated, sets};
pub use simulation::{Repetitions, SimulationResult, simulate};
