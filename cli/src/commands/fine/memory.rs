//! The memory of a cache, as it is now, as a picture.

use datapipes_cache::{Metrics, SLAB_BYTES};
use datapipes_picture::budget::{self, CacheBudget, ClassMemory};

/// Draws it; `budget_bytes` is what the cache was given.
pub(super) fn svg(metrics: &Metrics, budget_bytes: u64, reads: u64) -> String {
    let classes = metrics.classes.iter().map(|class| ClassMemory {
        capacity_bytes: class.capacity as u64,
        slabs: class.slabs as u64,
        items: class.items as u64,
        hits: class.hits,
        misses: class.misses,
        evicted: class.evicted,
        ghost_hits: class.ghost_hits,
    });
    budget::svg(&CacheBudget {
        title: "The memory of a fine-grained cache".into(),
        remark: format!(
            "policy {}, after {reads} reads: {:.1}% hits, {} items of {} bytes together",
            metrics.policy,
            metrics.hit_percent(),
            metrics.items,
            metrics.item_bytes
        ),
        budget_bytes,
        used_bytes: metrics.memory_bytes as u64,
        table_bytes: metrics.table_bytes as u64,
        slab_bytes: SLAB_BYTES as u64,
        classes: classes.collect(),
    })
}
