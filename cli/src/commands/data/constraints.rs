//! Constraints on a route, from the command line.

use datapipes::Constraints;

use crate::arguments::units::parse_size;

/// The demands on a route. If no route meets them, the error lists the alternatives.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Demands {
    /// Use only this primitive (may be repeated)
    #[arg(long, alias = "require", value_name = "PRIMITIVE")]
    only: Vec<String>,
    /// Never use this primitive (may be repeated)
    #[arg(long, value_name = "PRIMITIVE")]
    deny: Vec<String>,
    /// Let a device move the bytes, not a core
    #[arg(long)]
    offload: bool,
    /// Keep the bytes out of the page cache
    #[arg(long)]
    bypass_page_cache: bool,
    /// Keep the bytes out of the processor's caches
    #[arg(long, conflicts_with = "fill_processor_cache")]
    bypass_processor_cache: bool,
    /// Have the bytes in the processor's caches afterwards, as far as they fit
    #[arg(long)]
    fill_processor_cache: bool,
    /// Require an estimated rate of at least this many bytes per second
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    at_least: Option<u64>,
    /// Requests to keep outstanding at a device
    #[arg(long, value_name = "N")]
    queue_depth: Option<u32>,
    /// Bytes of one request to a device
    #[arg(long, alias = "request", value_name = "SIZE", value_parser = parse_size)]
    request_size: Option<u64>,
}

impl Demands {
    /// Returns the constraints as the library takes them.
    pub(crate) fn constraints(&self, typical_len: u64) -> Constraints {
        Constraints::default()
            .only(self.only.clone())
            .deny(self.deny.clone())
            .require_offload(self.offload)
            .bypass_page_cache(self.bypass_page_cache)
            .bypass_processor_cache(self.bypass_processor_cache)
            .fill_processor_cache(self.fill_processor_cache)
            .at_least(self.at_least.map(|rate| rate as f64))
            .typical_len(typical_len.max(1))
            .queue_depth(self.queue_depth)
            .request_bytes(self.request_size.map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX)))
    }
}
