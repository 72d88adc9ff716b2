//! Demands on a route, from the command line.

use datapipes::Constraints;

use crate::arguments::command_line::size;

/// What the route must meet; what cannot be met is refused, with the alternatives.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Demands {
    /// Take only this primitive (may be repeated)
    #[arg(long, value_name = "PRIMITIVE")]
    require: Vec<String>,
    /// Do not take this primitive (may be repeated)
    #[arg(long, value_name = "PRIMITIVE")]
    deny: Vec<String>,
    /// The bytes must be moved by a device, not by a core
    #[arg(long)]
    offload: bool,
    /// The bytes must not go through the page cache
    #[arg(long)]
    bypass_page_cache: bool,
    /// The bytes must not displace what is in the processor's caches
    #[arg(long)]
    bypass_processor_cache: bool,
    /// The estimated rate must be at least this, per second
    #[arg(long, value_name = "SIZE", value_parser = size)]
    at_least: Option<u64>,
    /// Keep this many requests outstanding at a device
    #[arg(long, value_name = "N")]
    queue_depth: Option<u32>,
    /// Bytes of one request to a device
    #[arg(long, value_name = "SIZE", value_parser = size)]
    request: Option<u64>,
}

impl Demands {
    /// As the library takes them.
    pub(crate) fn constraints(&self, typical_len: u64) -> Constraints {
        Constraints {
            only: self.require.clone(),
            deny: self.deny.clone(),
            require_offload: self.offload,
            bypass_page_cache: self.bypass_page_cache,
            bypass_processor_cache: self.bypass_processor_cache,
            at_least: self.at_least.map(|rate| rate as f64),
            typical_len: Some(typical_len.max(1)),
            queue_depth: self.queue_depth,
            request_bytes: self.request.map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX)),
            urgent: false,
        }
    }
}
