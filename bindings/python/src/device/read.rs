//! Long reads of files into the memory of a GPU: several threads share them.
//!
//! Bytes that the page cache has are copied by cores into pinned memory, from where the device
//! fetches them, and one core does not reach what the device's bus could. Bytes of the disk are read
//! into that memory by the disk: several threads keep more of its requests under way.

use datapipes::gpu::Hbm;
use datapipes::{Result, Span, Ssd};

use crate::machine;
use crate::opened::{Moved, constraints};
use crate::shared::Shares;

/// The most threads that share a read of bytes that the page cache has: their copies reach the rate of
/// a bus of 16 lanes of PCI Express 5.
const MAX_WORKERS: u64 = 8;

/// Bytes of a part: some times the buffers of a pipe, which are empty at its ends.
const PART: u64 = 32 << 20;

/// The primitives by which each thread copies.
const COPYING: [&str; 2] = ["pread-cached", "gpu-upload"];

/// Offsets at multiples of this can be read past the page cache, whatever the file system.
const BLOCK: u64 = 4096;

/// Reads from the file into memory of at least as many bytes.
pub(crate) fn read_into(ssd: &Ssd, offset: u64, target: &Hbm, len: u64) -> Result<Moved> {
    if len == 0 {
        return Ok(Moved::new());
    }
    // What a device moves all the way needs no cores, and a disk is quickest in order.
    let route = machine().explain(ssd, target, &constraints(len))?;
    let is_copied = route.hops.iter().any(|hop| hop.primitive.ends_with("-cached"));
    let cores = machine().topology().usable_cores().count() as u64;
    let most = if is_copied { MAX_WORKERS.min(cores) } else { 1 };
    // The rest begins at a block, so that it needs no bounce on its way past the page cache.
    let first = (BLOCK - offset % BLOCK).min(len);
    let workers = most.min((len - first).div_ceil(PART)).max(1);
    let connect = || match workers {
        1 => machine().connect_with(ssd, target, &constraints(len)),
        // Each thread waits for its own copies, and needs no ring for that.
        _ => machine().connect_with(ssd, target, &constraints(len).only(COPYING.map(str::to_owned).to_vec())),
    };
    let part = if workers == 1 { len } else { PART };
    let span = Span { source: offset, target: 0, len };
    Shares { span, first, part, workers }.carry_out(connect()?, &connect, &|_, _| ())
}
