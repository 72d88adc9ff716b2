//! The settings that are known.

mod block;
mod dma;
mod memory;
mod processor;
mod shares;
mod uring;
pub(crate) use memory::max_taken_kib;
pub(crate) use processor::has_core;
pub(crate) use shares::RESCTRL;

use crate::knob::MachineKnob;
use crate::tree::MachineTree;

/// Returns every setting that is known, those that this machine lacks with the reason.
pub fn list(tree: &MachineTree) -> Vec<MachineKnob> {
    let mut knobs = processor::knobs(tree);
    knobs.extend(shares::knobs(tree));
    knobs.extend(memory::knobs(tree));
    knobs.extend(block::knobs(tree));
    knobs.extend(uring::knobs(tree));
    knobs.extend(dma::knobs(tree));
    knobs
}
