//! The settings of a machine that decide how bytes move (CIDR'23, section 6, principle 3): the ways
//! of the last-level cache that devices write to, prefetchers, shares of cache and memory
//! bandwidth, huge pages, queues of block devices, work queues of DMA engines.
//!
//! [`list`] tells of each what it does, where it lives, its value, what a change needs and which
//! pipes it affects; of what is absent, why. [`KnobTransaction`] sets some of them together and
//! restores them at the end. A journal in `/run/datapipes` and a guard process restore them where
//! the program dies.
//!
//! Everything is found under one root, so a recorded or made tree can stand for a machine.
//!
//! **Not verified on hardware:** the registers of DDIO, DCA and prefetchers, `resctrl` and DSA work
//! queues were tried on made trees only, as the field `verified` of each knob says.
//!
//! ```
//! use datapipes_knobs::{MachineTree, list};
//! for knob in list(&MachineTree::live()) {
//!     match (&knob.value, &knob.absent) {
//!         (Some(value), _) => println!("{} = {value}", knob.name),
//!         (None, why) => println!("{} is absent: {}", knob.name, why.as_deref().unwrap_or("")),
//!     }
//! }
//! ```
#![forbid(unsafe_code)]

mod guard;
mod journal;
mod knob;
mod list;
mod plan;
mod restore;
mod step;
mod thread_group;
mod thread_stay;
mod transaction;
mod tree;
mod write;

pub use guard::restore_when_closed;
pub use knob::{AllowedValues, MachineKnob};
pub use list::list;
pub use plan::{KnobChange, KnobPlan};
pub use restore::{RestoredKnobs, forget_left_over, journaled, restore_left_over};
pub use step::TransactionStep;
pub use thread_group::{ThreadGroup, remove_stale_groups};
pub use transaction::KnobTransaction;
pub use tree::MachineTree;
