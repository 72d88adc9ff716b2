//! The machine that we run on, with every backend.

use std::ops::Deref;

use datapipes_core::topology::{Core, Topology};

/// What is there on this machine, and every backend that moves bytes on it.
///
/// It is [`datapipes_core::Machine`] (to which it dereferences: `connect`, `explain`, `each_core` are there), filled.
///
/// ```
/// use datapipes::{Dram, Machine, Span};
/// let machine = Machine::discover();
/// let (source, target) = (Dram::allocate(1 << 20)?, Dram::allocate(1 << 20)?);
/// source.lease_mut()?.fill(7);
/// let pipe = machine.connect(&source, &target)?;
/// pipe.transfer(Span { source: 0, target: 0, len: 1 << 20 })?;
/// assert_eq!(target.lease()?[1 << 19], 7);
/// println!("{}{}", pipe.route(), pipe.report());
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone)]
pub struct Machine(datapipes_core::Machine);

impl Machine {
    /// Reads the machine that we run on and brings every backend. It takes some milliseconds, measures nothing and never
    /// fails: what could not be found out is in [`Topology::unknown`], what is absent in the backends' primitives.
    pub fn discover() -> Machine {
        let topology = Topology::discover();
        let backends = datapipes_bundle::all(&topology);
        Machine(datapipes_core::Machine::new(topology, backends))
    }

    /// The place of a core among the usable ones, from 0: the paper's `core_idx`. Numbers of cores may have gaps.
    pub fn position(&self, core: &Core) -> usize {
        self.topology().usable_cores().take_while(|c| c.index != core.index).count()
    }
}

impl Deref for Machine {
    type Target = datapipes_core::Machine;

    fn deref(&self) -> &datapipes_core::Machine {
        &self.0
    }
}
