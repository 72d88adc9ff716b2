//! A share of caches and memory bandwidth for the threads of a transfer, from the command line.

use std::path::PathBuf;

use datapipes::{Constraints, Locator, Machine, Pipe, Result};
use datapipes_knobs::{MachineTree, ThreadGroup};

use crate::arguments::setting::parse_setting;

/// The share that threads get while they carry out a transfer.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TransferShareArgs {
    /// Give the threads a share of caches or memory bandwidth during transfers, by a group of
    /// resctrl; `dpipe knobs --only share` lists them (may be repeated)
    #[arg(long = "share", value_name = "KNOB=VALUE", value_parser = parse_setting)]
    shares: Vec<(String, String)>,
    /// Make that group under this folder, a made tree, instead of the machine's
    #[arg(long, value_name = "DIR", default_value = "/", value_parser = crate::arguments::folder, requires = "shares")]
    share_root: PathBuf,
}

impl TransferShareArgs {
    pub(crate) fn is_asked(&self) -> bool {
        !self.shares.is_empty()
    }

    /// Connects two places, with the share where one is asked for. The group is removed with the
    /// pipe.
    pub(crate) fn connect(
        &self,
        machine: &Machine,
        (source, target): (&dyn Locator, &dyn Locator),
        constraints: &Constraints,
    ) -> Result<Pipe> {
        if !self.is_asked() {
            return machine.connect_with(source, target, constraints);
        }
        let group = ThreadGroup::make(&MachineTree::under(&self.share_root), &self.shares)?;
        machine.connect_with_share(source, target, constraints, group)
    }
}
