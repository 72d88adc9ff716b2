//! What each stage of a graph did, and what it waited for.

use std::fmt;

use datapipes_metrics::ByteRate;
use serde::Serialize;

/// What one stage did.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct StageReport {
    /// Its name.
    pub name: String,
    /// Items that went through.
    pub items: u64,
    /// Bytes that its transfers moved.
    pub moved_bytes: u64,
    /// Time in which at least one item was in it, in nanoseconds.
    pub busy_ns: u64,
    /// Time that items spent in it, added up.
    pub work_ns: u64,
    /// Time that items which it could have begun waited for it, added up: for a thread, its turn,
    /// or room in the pipe.
    pub queued_ns: u64,
    /// Time that items waited for one of its buffers, added up.
    pub buffer_ns: u64,
}

/// What a graph did.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct GraphReport {
    /// Its name.
    pub name: String,
    /// From the first item to the last, in nanoseconds.
    pub wall_ns: u64,
    /// In the order of their declaration.
    pub stages: Vec<StageReport>,
}

impl fmt::Display for GraphReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |ns: u64| ns as f64 / 1e6;
        writeln!(f, "{}: {:.1} ms", self.name, ms(self.wall_ns))?;
        for s in &self.stages {
            writeln!(
                f,
                "  {:<12} {:>6} items, busy {:>5.1}%, {:>8.1} ms of work, waited {:.1} ms for its turn and {:.1} ms for buffers{}",
                s.name,
                s.items,
                s.busy_ns as f64 / self.wall_ns.max(1) as f64 * 100.0,
                ms(s.work_ns),
                ms(s.queued_ns),
                ms(s.buffer_ns),
                if s.moved_bytes > 0 {
                    format!(
                        ", {} bytes at {}",
                        s.moved_bytes,
                        ByteRate::of(s.moved_bytes, s.busy_ns.max(1) as f64 / 1e9)
                    )
                } else {
                    String::new()
                }
            )?;
        }
        Ok(())
    }
}
