//! How a distribution divides the memory, or why it is not possible.
//!
//! ```text
//! distribute: output blocks | input: some chunks a thread | buffers: W bytes a bucket and thread
//!                           | blocks: B bytes a bucket and thread, and some in flight
//! buckets:    output blocks | two portions and the entries of one, for each lane
//! ```

use crate::memory::blocks::ALIGN;

/// The facts that decide.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// Bytes of the input, and of a record.
    pub(crate) total: u64,
    pub(crate) record: usize,
    /// Whether the records are numbers.
    pub(crate) numbers: bool,
    /// Bytes of memory behind the output blocks.
    pub(crate) memory: usize,
    pub(crate) threads: usize,
    /// The most runs that one thread merges at once in this memory.
    pub(crate) fan_in: usize,
    /// Bytes of a core's second-level cache.
    pub(crate) l2: usize,
    /// Bytes that a block must have at least.
    pub(crate) least_block: usize,
}

/// A distribution: its buckets, and how it divides the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Threads that distribute, each a stripe of the input.
    pub(crate) threads: usize,
    /// The most buckets.
    pub(crate) buckets: usize,
    /// Bytes of a bucket's buffer in the cache; a power of two.
    pub(crate) buffer: usize,
    /// Bytes of a bucket's block, which is written to the spill at once; whole buffers.
    pub(crate) block: usize,
    /// Blocks beyond those that buckets fill.
    pub(crate) spare_blocks: usize,
    /// Bytes of spill space that a bucket of one thread takes at a time.
    pub(crate) extent: u64,
    /// Bytes of spill space that are reserved at once.
    pub(crate) reservation: u64,
    /// Bytes of one read of the input.
    pub(crate) chunk: usize,
    /// Bytes in front of a chunk, for the start of a record that began in the chunk before.
    pub(crate) headroom: usize,
    /// Threads that sort buckets.
    pub(crate) lanes: usize,
    /// The most bytes that one lane sorts at once.
    pub(crate) portion: usize,
}

/// Bytes of an entry.
const ENTRY: usize = size_of::<u64>();
/// Chunks that a thread has: one that it distributes, and those in flight.
pub(crate) const CHUNKS: usize = 5;
const MAX_CHUNK: usize = 1 << 20;
/// The smallest block that a job may ask for.
pub(crate) const MIN_BLOCK: usize = BLOCK_GRAIN;
const MAX_BLOCK: usize = 1 << 20;
const BLOCK_GRAIN: usize = 16 << 10;
/// All blocks are at most this part of the input, if they are good blocks then: the first touch of
/// memory is slow.
const BLOCKS_PART: u64 = 16;
const MAX_EXTENT: u64 = 8 << 20;
const MAX_RESERVATION: u64 = 64 << 20;
/// A buffer takes several records, so that most are copied in one piece.
const MIN_BUFFER: usize = 1 << 10;
const MAX_BUFFER: usize = 4 << 10;
/// Bytes of a bucket, in second-level caches. Its entries are sorted there, and its records are
/// gathered at random: with a quarter of it that took 3% less of the processor, and writing four
/// times as many blocks of a quarter 10% to 20% more time.
const CACHES_A_BUCKET: u64 = 24;
/// The same for numbers, which are sorted in place. With twice as much, sorting took 10% more of
/// the processor, and with half as much, distributing did.
const CACHES_A_BUCKET_OF_NUMBERS: u64 = 12;
/// A level of splitters costs a number as much as half a level of sorting, once it does not fit
/// registers.
const MAX_BUCKETS_OF_NUMBERS: usize = 256;
/// How much larger than the mean a bucket may become.
const UNEVEN: u64 = 2;

impl Shape {
    /// Chooses a shape, or says why there is none.
    pub(crate) fn choose(facts: Facts) -> Result<Shape, String> {
        let Facts { total, record, memory, l2, .. } = facts;
        if record > MIN_BLOCK {
            return Err(format!("records of {record} bytes are too long to be distributed"));
        }
        let caches = if facts.numbers { CACHES_A_BUCKET_OF_NUMBERS } else { CACHES_A_BUCKET };
        let wanted = total.div_ceil(caches * l2 as u64);
        // All buffers of a thread stay in half of its cache.
        let most = (l2 / 2 / MIN_BUFFER).clamp(16, if facts.numbers { MAX_BUCKETS_OF_NUMBERS } else { 1 << 12 });
        for lanes in (1..=facts.threads).rev() {
            let portion = facts.portion(memory / lanes);
            if portion < 8 * record.max(ALIGN) {
                continue;
            }
            let least = (UNEVEN * total).div_ceil(portion as u64);
            // Even a bucket of everything is merged at once.
            let runs = total.div_ceil(portion as u64);
            if least > most as u64 || runs > facts.fan_in as u64 {
                continue;
            }
            let buckets = wanted.max(least).clamp(16, most as u64) as usize;
            return Shape::with_buckets(facts, buckets, lanes, portion);
        }
        Err(format!("{total} bytes are too many for {most} buckets in {memory} bytes of memory"))
    }

    fn with_buckets(facts: Facts, buckets: usize, lanes: usize, portion: usize) -> Result<Shape, String> {
        let Facts { total, record, memory, l2, least_block, .. } = facts;
        let buffer = prev_power_of_two(l2 / 2 / buckets).clamp(MIN_BUFFER, MAX_BUFFER);
        let headroom = record.next_multiple_of(ALIGN);
        for threads in (1..=facts.threads).rev() {
            let chunk = (memory / (16 * threads) / ALIGN * ALIGN).min(MAX_CHUNK);
            let spare_blocks = 16 * threads + 16;
            let spare_blocks = spare_blocks.min(threads * buckets);
            let fixed = threads * (CHUNKS * (headroom + chunk) + buckets * buffer);
            let blocks = threads * buckets + spare_blocks;
            let possible = memory.saturating_sub(fixed + ALIGN) / blocks;
            let thrifty = ((total / BLOCKS_PART) as usize / blocks).max(least_block);
            let block = possible.min(thrifty).min(facts.most_block()) / BLOCK_GRAIN * BLOCK_GRAIN;
            if block < least_block || chunk < headroom {
                continue;
            }
            let each = total / (threads * buckets) as u64;
            let extent = (each / 8).clamp(block as u64, MAX_EXTENT).next_multiple_of(block as u64);
            // The checksum of each block, and the offset of each extent.
            if total / block as u64 * 4 + total / extent * 8 > (memory / 128) as u64 {
                return Err(format!("the checksums of {total} bytes take too much of {memory} bytes of memory"));
            }
            return Ok(Shape {
                threads,
                buckets,
                buffer,
                block,
                spare_blocks,
                extent,
                reservation: (total / 64).clamp(extent, MAX_RESERVATION),
                chunk,
                headroom,
                lanes,
                portion,
            });
        }
        Err(format!("{memory} bytes of memory are too few for {buckets} buckets with blocks of {least_block}"))
    }

    /// Bytes of spill space that are taken for `total` bytes at most.
    pub(crate) fn spill_bytes(&self, total: u64) -> u64 {
        total + (self.threads * self.buckets) as u64 * self.extent + self.reservation
    }

    /// Bytes of a thread's chunks, with the room in front of each.
    pub(crate) fn chunks_len(&self) -> usize {
        CHUNKS * (self.headroom + self.chunk)
    }

    /// Bytes that a portion takes when it is loaded: its stripes begin at multiples of `ALIGN`, and
    /// blocks are loaded whole.
    pub(crate) fn loaded_len(&self) -> usize {
        (self.portion + loading_slack(self.threads, self.block)).next_multiple_of(ALIGN)
    }

    /// Bytes of the entries of a portion.
    pub(crate) fn entries_len(&self, record: usize) -> usize {
        (self.portion / record * ENTRY).next_multiple_of(ALIGN)
    }
}

fn loading_slack(threads: usize, block: usize) -> usize {
    2 * block + threads * ALIGN
}

impl Facts {
    fn most_block(&self) -> usize {
        prev_power_of_two(self.memory / 64).clamp(MIN_BLOCK, MAX_BLOCK)
    }

    /// The most bytes that a lane with so much memory sorts while it loads as many.
    fn portion(&self, memory: usize) -> usize {
        let rounding = 4 * ALIGN;
        let slack = 2 * loading_slack(self.threads, self.most_block()) + rounding;
        let bytes = memory.saturating_sub(slack) as f64 / (2.0 + ENTRY as f64 / self.record as f64);
        bytes as usize / self.record * self.record
    }
}

fn prev_power_of_two(n: usize) -> usize {
    if n == 0 { 0 } else { 1 << n.ilog2() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;
    const GOOD_BLOCK: usize = 128 << 10;

    fn facts(total: u64, memory: usize, threads: usize) -> Facts {
        let fan_in = memory / (128 << 10);
        Facts { total, record: 100, numbers: false, memory, threads, fan_in, l2: MIB, least_block: GOOD_BLOCK }
    }

    /// Checks that everything has room.
    fn assert_fits(shape: Shape, facts: Facts) {
        let Shape { threads, buckets, buffer, block, .. } = shape;
        let blocks = (threads * buckets + shape.spare_blocks) * block;
        assert!(threads * (shape.chunks_len() + buckets * buffer) + blocks <= facts.memory, "{shape:?} in {facts:?}");
        let lane = 2 * shape.loaded_len() + shape.entries_len(facts.record);
        assert!(shape.lanes * lane <= facts.memory, "{shape:?} in {facts:?}");
        assert!(block % buffer == 0 && block % ALIGN == 0 && shape.extent.is_multiple_of(block as u64), "{shape:?}");
        assert!(buffer * buckets <= facts.l2 / 2, "{shape:?}");
        // A bucket may be twice the mean.
        assert!(2 * facts.total / buckets as u64 <= shape.portion as u64, "{shape:?} in {facts:?}");
    }

    #[test]
    fn shapes_fit_the_memory() {
        for total in [1_000_000_000, 5_000_000_000, 20_000_000_000, 200_000_000_000] {
            for memory in [64, 256, 500, 1000, 4000, 16_000].map(|mib| mib * MIB) {
                for threads in [1, 2, 8, 64] {
                    let facts = facts(total, memory, threads);
                    if let Ok(shape) = Shape::choose(facts) {
                        assert_fits(shape, facts);
                    }
                    if let Ok(shape) = Shape::choose(Facts { least_block: MIN_BLOCK, ..facts }) {
                        assert_fits(shape, facts);
                    }
                }
            }
        }
    }

    #[test]
    fn usual_jobs_are_distributed_and_hopeless_ones_are_not() {
        let chosen = |total, memory, threads| Shape::choose(facts(total, memory, threads));
        for threads in [1, 2, 4, 8] {
            chosen(10_000_000_000, 2000 * MIB, threads).unwrap();
            chosen(5_000_000_000, 1000 * MIB, threads).unwrap();
        }
        assert!(chosen(10_000_000_000, 2000 * MIB, 64).unwrap().threads < 64);
        assert!(chosen(10_000_000_000_000, 1000 * MIB, 2).unwrap_err().contains("too many"));
        assert!(chosen(100_000_000, 16 * MIB, 2).unwrap_err().contains("too few"));
        let long = Facts { record: 1 << 20, ..facts(10_000_000_000, 2000 * MIB, 2) };
        assert!(Shape::choose(long).unwrap_err().contains("too long"));
    }
}
