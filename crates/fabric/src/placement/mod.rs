//! Where the protocol between devices runs (section 2 of the paper, Figure 1).
//!
//! ```text
//! application-side      app -> d1 -> app -> d2 -> app     a relay in the application
//! central               app -> CPU -> d1 -> CPU -> d2 -> CPU -> app
//! distributed           app -> d1 -> d2 -> app
//! ```
//!
//! A [`DeviceGraph`] declares the devices and the streams between them. Starting it under a
//! [`Placement`] changes only the wires: the devices' processes and the application's code are the
//! same under all three. [`Placement::Auto`] leaves the choice to [`Choice::make`], which explains
//! what it measured and estimated.

mod choice;
mod flow;
mod graph;
mod wires;

pub use choice::{Choice, Costs, Estimate};
pub use flow::Flow;
pub use graph::{DeviceGraph, DeviceNode};
pub use wires::{Stop, Wire, Wiring};

use serde::{Deserialize, Serialize};

/// The party that moves blocks from device to device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// The application, which talks to each device (section 2.1).
    ApplicationSide,
    /// A CPU beside the devices, which alone talks to them (section 2.2).
    CentralResourceSide,
    /// The devices themselves (section 2.3).
    DistributedResourceSide,
    /// The one of the three with the best estimate for the graph on this machine.
    Auto,
}

impl Placement {
    /// The three placements of the paper, without [`Auto`](Placement::Auto), which stands for one
    /// of them.
    pub const ALL: [Placement; 3] =
        [Placement::ApplicationSide, Placement::CentralResourceSide, Placement::DistributedResourceSide];

    /// The name of the placement, for display.
    pub fn name(self) -> &'static str {
        match self {
            Placement::ApplicationSide => "application-side",
            Placement::CentralResourceSide => "central resource-side",
            Placement::DistributedResourceSide => "distributed resource-side",
            Placement::Auto => "auto",
        }
    }
}
