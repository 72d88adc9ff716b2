//! `dpipe fine`: reads of a few bytes through a cache, on real files: what it does under a load,
//! and two applications.

mod applications;
mod content;
mod limit;
mod load;
mod memory;
mod plot;
mod stat;

use datapipes::Result;

use crate::arguments::ending::Ending;
use crate::outcome::CommandStatus;

const ENDING: Ending = Ending {
    notes: "",
    zero: "the reads are done",
    one: None,
    examples: &["dpipe fine stat data.bin --reads 20000 --memory 4M"],
};

/// Reads a few bytes at random from files larger than memory, through a cache that does not hold
/// whole pages.
#[derive(Debug, clap::Args)]
#[command(after_help = ENDING.text())]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Read files under a load, and show what the cache did: hits, amplification, classes,
    /// threshold
    Stat(stat::Args),
    /// Look up embeddings of a recommender (the tables of Criteo Kaggle), beside the page cache
    Recommender(applications::RecommenderArgs),
    /// Read nodes, counts and link lists of a social graph (LinkBench), beside the page cache
    Social(applications::SocialArgs),
}

pub(crate) fn run(args: &Args) -> Result<CommandStatus> {
    match &args.what {
        What::Stat(args) => stat::run(args),
        What::Recommender(args) => applications::run(applications::Application::Recommender, &args.all()),
        What::Social(args) => applications::run(applications::Application::Social, &args.common),
    }
}
