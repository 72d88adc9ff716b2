//! `dpipe fine`: reads of a few bytes through a cache, on real files: what it does under a load,
//! and two applications.

mod applications;
mod content;
mod limit;
mod load;
mod plot;
mod stat;

use datapipes::Result;

use crate::outcome::CommandStatus;

/// Fine-grained reads: a few bytes from files larger than memory, without paying for pages.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Read files by a load, and show what the cache did: hits, amplification, classes, threshold
    Stat(stat::Args),
    /// Look up embeddings of a recommender (the tables of Criteo Kaggle), beside the page cache
    Recommender(applications::Args),
    /// Read nodes, counts and link lists of a social graph (LinkBench), beside the page cache
    Social(applications::Args),
}

pub(crate) fn run(args: &Args) -> Result<CommandStatus> {
    match &args.what {
        What::Stat(args) => stat::run(args),
        What::Recommender(args) => applications::run(applications::Application::Recommender, args),
        What::Social(args) => applications::run(applications::Application::Social, args),
    }
}
