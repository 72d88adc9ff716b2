//! `dpipe model`: hardware that is not here, in virtual time, beside what its papers published.

mod cloudsort;
mod dca;
mod ddio;
mod llc_options;
mod pipette;
mod placements;
mod platform_dma;

use datapipes::Result;

use crate::arguments::ending::Ending;
use crate::outcome::CommandStatus;

const ENDING: Ending = Ending {
    notes: "\
Nothing is measured on this machine. Equal options give equal figures everywhere.",
    zero: "the model is shown",
    one: None,
    examples: &["dpipe model placements", "dpipe model pipette --reads 5000 --nodes 2000"],
};

/// Shows models of hardware in virtual time, beside what the papers published.
#[derive(Debug, clap::Args)]
#[command(after_help = ENDING.text())]
pub(crate) struct Args {
    #[command(subcommand)]
    model: Model,
}

#[derive(Debug, clap::Subcommand)]
enum Model {
    /// Model a sort of many terabytes on a cluster, beside the published record
    Cloudsort(cloudsort::Args),
    /// Model a DMA engine that writes to persistent memory through the cache, beside the published
    /// write amplification
    Dca(dca::Args),
    /// Model a device that writes into some ways of the cache beside a load, beside the published
    /// misses
    Ddio(ddio::Args),
    /// Model reads of a few bytes from SSDs, by pages or by bytes, beside the published tables
    Pipette(pipette::Args),
    /// Model data channels between devices under three placements of the protocol, beside the
    /// published ranges
    Placements(placements::Args),
    /// Model messages to and from a device over PCI Express, by descriptors or by an engine beside
    /// the cores, beside the published figures
    PlatformDma(platform_dma::Args),
}

pub(crate) fn run(args: &Args) -> Result<CommandStatus> {
    match &args.model {
        Model::Cloudsort(args) => cloudsort::run(args),
        Model::Dca(args) => dca::run(args),
        Model::Ddio(args) => ddio::run(args),
        Model::Pipette(args) => pipette::run(args),
        Model::Placements(args) => placements::run(args),
        Model::PlatformDma(args) => platform_dma::run(args),
    }
}
