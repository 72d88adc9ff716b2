//! `dpipe experiment`: the experiments of the papers on the machine at hand.

mod control;
mod device;
mod figure;
mod load;
mod persistent;
mod ring;

use datapipes::Result;

use crate::arguments::ending::Ending;
use crate::outcome::CommandStatus;

const ENDING: Ending = Ending {
    notes: "\
What this machine cannot do is left out by name. `dpipe model ddio` and `dpipe model dca` show the
same figures of a model with the paper's hardware.",
    zero: "measured",
    one: None,
    examples: &["dpipe experiment fig3 --size 8M --ms 5 --chunks 4K,64K", "dpipe experiment control --ms 5"],
};

/// Repeats experiments of the papers on this machine.
#[derive(Debug, clap::Args)]
#[command(after_help = ENDING.text())]
pub(crate) struct Args {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Debug, clap::Subcommand)]
enum Experiment {
    /// Read from storage at a queue depth and sum what arrives, alone and beside a load on the
    /// memory (Data Pipes, CIDR 2023, figure 3)
    Fig3(device::Args),
    /// The same beside the load, for each number of ways of the cache that devices may write to
    /// (figure 4)
    Fig4(device::Args),
    /// Copy from persistent memory to DRAM, by a core or by an engine (figure 5a)
    Fig5a(persistent::Args),
    /// Copy from DRAM to persistent memory, by a core or by an engine (figure 5b)
    Fig5b(persistent::Args),
    /// Count what moving a payload costs in control: bytes, system calls, doorbells (Platform IO
    /// DMA, figure 10, in software)
    Control(control::Args),
}

pub(crate) fn run(args: &Args) -> Result<CommandStatus> {
    match &args.experiment {
        Experiment::Fig3(args) => device::run(args, device::Varied::Load),
        Experiment::Fig4(args) => device::run(args, device::Varied::Ways),
        Experiment::Fig5a(args) => persistent::run(args, persistent::Direction::FromPersistent),
        Experiment::Fig5b(args) => persistent::run(args, persistent::Direction::ToPersistent),
        Experiment::Control(args) => control::run(args),
    }
    .map(|()| CommandStatus::Good)
}
