//! Messages between memory and a device over PCI Express, packet by packet, in virtual time: by
//! descriptors that the device fetches, or pushed by an engine beside the cores.
//!
//! The system of Larsen and Lee, *Platform IO DMA Transaction Acceleration*: they measured what
//! descriptors, doorbells and interrupts cost on the link of a network adapter, and propose an
//! integrated DMA engine (iDMA) that needs none of them there.
//!
//! - [`simulate`] is the model: a link with its packets, acknowledgements and credits, a device and
//!   a host as events ([`DmaPlatform`], [`MessageStream`]).
//! - [`closed_form_traffic`] and [`closed_form_latency`] are the sums that it must equal; property
//!   tests compare them to the byte and to the picosecond.
//! - [`paper_figures`] is table 1 and figures 7 to 10, beside the paper's numbers; [`link_shares`],
//!   [`priorities`] and [`questions`] go beyond it, for any platform.
//!
//! # What is known and what is not
//!
//! *Inputs*, which the text gives and nothing derives: 230, 759 and 781 ns of the descriptor path,
//! 20 and 50 ns of the integrated one, 8.8 us from application to application, and 2.1 Gb/s a lane.
//! *Exact*: the sums of these. *Calibrated*: the shares of figure 10, for the text says neither how
//! often doorbells and interrupts come nor which headers frames have ([`DriverPractice`] says what
//! is chosen). *Out of reach*: the heights of figure 10's bars, which are not printed. What has no
//! published number is marked as the model's own.
//!
//! Not modelled: switches, retries, several lanes' skew, the adapter's network side, memory beyond
//! one rate, and the ordering of reads behind writes. CXL.io is modelled as its flits carry
//! packets; CXL.mem and CXL.cache are left out by name: the bytes of their slots are published, but
//! neither who would write which lines in this design, nor what that takes.

mod closed_form;
mod figures;
mod link;
mod parameters;
mod priorities;
mod questions;
mod simulation;
#[cfg(test)]
mod tests;
mod traffic;
mod transport;
mod wire;

pub use closed_form::{
    TwoWayTraffic, max_rate, traffic as closed_form_traffic, transmit_latency as closed_form_latency,
};
pub use figures::{DmaFigure, DmaFinding, FindingStanding, LinkShare, PaperFigures, link_shares, paper_figures};
pub use link::{LinkFraming, PcieGeneration, PcieLink};
pub use parameters::{
    DataMover, DmaPlatform, DriverPractice, MeasuredDelays, MessageLoad, MessageStream, MessageWay, PathCosts,
    QueueArbitration, QueueHabits,
};
pub use priorities::{PriorityRow, priorities};
pub use questions::{DmaAnswer, DmaQuestion, questions};
pub use simulation::{DmaResult, StreamResult, simulate};
pub use traffic::{LinkTraffic, TrafficClass};
