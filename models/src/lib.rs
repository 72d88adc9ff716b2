//! Hardware that is not here, in virtual time: models, and called models wherever their figures are
//! shown.
//!
//! - [`time`]: the kernel: a clock that only events move, and the agenda of what is to happen.
//! - [`placements`]: data channels between devices under three protocol placements (Asmussen and
//!   Roitzsch, *Towards Disaggregation-Native Data Streaming between Devices*, section 4).
//! - [`pipette`]: SSDs that are read by pages or by bytes, with and without the fine-grained cache
//!   of this project (Bai et al., *Pipette*, DAC 2022).
//!
//! Nothing here reads a clock or draws a random number that is not from a seed: the same parameters
//! give the same figures on every machine. What a model takes from its paper, what was calibrated
//! so that the paper's figures come out, and what nobody can know from the text is said beside the
//! figures.
#![forbid(unsafe_code)]

pub mod pipette;
pub mod placements;
pub mod time;
