//! From sorted entries to bytes in order: every core fills blocks, and full blocks are written.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use datapipes_core::Result;
use datapipes_core::locks::Mutex;

use crate::control::{Control, count};
use crate::form::bucket::SlotBucket;
use crate::form::slot_sorter::SlotSorter;
use crate::memory::blocks::{ALIGN, BlockPool, Target};
use crate::memory::parallel::run_parts;
use crate::memory::short_copy::copy_record;
use crate::records::entry;
use crate::records::layout::Layout;
use crate::records::memo::Scope;
use crate::records::prefetch::prefetch_record;
use crate::records::tally::Tally;
use crate::runs::checksum;
use crate::runs::packing::{Frame, Packing};
use crate::runs::spill::{IndexEntry, mark_distance};

/// How many entries ahead a record is prefetched. Records lie in the order of the input, so each is
/// a cache miss, or several: a record of 100 bytes that is not aligned lies in three lines more
/// often than in two.
const PREFETCH_ENTRIES: usize = 24;
/// The most bytes of a record that are prefetched; of a longer one the processor fetches the rest
/// while the first bytes are copied.
const MAX_PREFETCH_BYTES: usize = 512;

/// The facts of a block that was filled.
struct BlockDone {
    marks: Vec<IndexEntry>,
    sums: Vec<u32>,
    tally: Tally,
    frames: Vec<Frame>,
}

/// The facts of everything that was written.
#[derive(Default)]
pub(crate) struct Gathered {
    /// For a run: an entry for each block in which a record begins, or more, and the checksums of
    /// its grains.
    pub(crate) key_index: Vec<IndexEntry>,
    pub(crate) sums: Vec<u32>,
    /// For a run that may be compressed: its frames, and the bytes that they take.
    pub(crate) frames: Vec<Frame>,
    pub(crate) stored: u64,
    /// For an output: the tally of its records.
    pub(crate) tally: Tally,
}

/// The buckets of a slot, whose records are written in order.
pub(crate) struct Gather<'a, L> {
    pub(crate) arranger: SlotSorter<'a, L>,
    pub(crate) buckets: Vec<SlotBucket<'a>>,
}

impl<L: Layout> Gather<'_, L> {
    pub(crate) fn bytes(&self) -> u64 {
        self.buckets.iter().map(|b| b.bytes).sum()
    }

    /// Records that were dropped as duplicates.
    pub(crate) fn dropped(&self) -> Tally {
        let mut dropped = Tally::default();
        self.buckets.iter().for_each(|b| dropped.join(b.dropped));
        dropped
    }

    /// Writes all records to the target, in order.
    pub(crate) fn write(
        &self,
        blocks: &BlockPool,
        target: Target<'_>,
        control: &Control,
        counter: &AtomicU64,
        packing: Option<&Packing<'_>>,
    ) -> Result<Gathered> {
        let mut starts = Vec::with_capacity(self.buckets.len());
        let mut total = 0;
        for bucket in &self.buckets {
            starts.push(total);
            total += bucket.bytes;
        }
        let wanted = total.div_ceil(blocks.size as u64) as usize;
        let next = AtomicUsize::new(0);
        // It is decided anew for each run. A run that is not compressed needs no table of frames.
        let packs = packing.is_some_and(|packing| packing.is_on());
        // Where the next compressed block goes.
        let end = AtomicU64::new(0);
        let outcome = Mutex::new((Ok(()), Vec::<(usize, BlockDone)>::with_capacity(wanted)));
        let threads = self.arranger.threads;
        run_parts(&control.progress.waits, threads, threads.min(wanted), |_| {
            // The slot's bytes stay as they are while their buckets are sorted.
            let _scope = Scope::enter();
            let work = || -> Result<()> {
                loop {
                    let index = next.fetch_add(1, Relaxed);
                    if index >= wanted {
                        return Ok(());
                    }
                    control.check()?;
                    let at = index as u64 * blocks.size as u64;
                    let len = (total - at).min(blocks.size as u64) as usize;
                    let mut block = blocks.take(control, target.wait())?;
                    let mut filled = self.fill(&mut block.bytes[..len], at, &starts, target, blocks.size);
                    match target {
                        Target::Run { pipe, base, .. } if packs && let Some(packing) = packing => {
                            let mut packed = blocks.take(control, target.wait())?;
                            let lens = packing.pack(&block.bytes[..len], &mut packed.bytes);
                            let (kept, spare, stored) = match &lens {
                                Some(lens) => (packed, block, lens.iter().map(|len| *len as usize).sum()),
                                None => (block, packed, len),
                            };
                            blocks.cancel(spare);
                            let mut kept = kept;
                            let to = stored.next_multiple_of(ALIGN);
                            kept.bytes[stored..to].fill(0);
                            let at = base + end.fetch_add(to as u64, Relaxed);
                            let raw = || (0..len).step_by(packing.frame).map(|i| packing.frame.min(len - i) as u32);
                            let lens = lens.unwrap_or_else(|| raw().collect());
                            let mut frame_at = at;
                            filled.frames = lens
                                .into_iter()
                                .map(|len| {
                                    let frame = Frame { at: frame_at, len };
                                    frame_at += u64::from(len);
                                    frame
                                })
                                .collect();
                            packing.wrote(to as u64);
                            blocks.write((control, target.wait()), pipe, kept, (0, to), at)?;
                        }
                        Target::File { pipe, .. } | Target::Run { pipe, .. } => {
                            if let Some(packing) = packing {
                                packing.consider(&block.bytes[..len]);
                            }
                            let base = target.place().map_or(0, |(_, base)| base);
                            let to = target.written_end(len);
                            block.bytes[len..to].fill(0);
                            blocks.write((control, target.wait()), pipe, block, (0, to), base + at)?;
                        }
                        Target::Stream(stream) | Target::CompressedRun(stream) => {
                            let waits = control.waits_for(target.wait());
                            let result = stream.write(at, &block.bytes[..len]);
                            drop(waits);
                            blocks.cancel(block);
                            result?;
                        }
                    }
                    count(counter, len as u64);
                    outcome.lock().1.push((index, filled));
                }
            };
            if let Err(e) = work() {
                // The other threads find nothing more to do.
                next.store(wanted, Relaxed);
                if let Some(stream) = target.stream() {
                    stream.abandon();
                }
                let mut outcome = outcome.lock();
                if outcome.0.is_ok() {
                    outcome.0 = Err(e);
                }
            }
        });
        let (result, mut filled) = outcome.into_inner();
        result?;
        filled.sort_unstable_by_key(|(index, _)| *index);
        let mut gathered = Gathered { stored: end.into_inner(), ..Gathered::default() };
        for (_, BlockDone { marks, sums, tally, mut frames }) in filled {
            gathered.frames.append(&mut frames);
            gathered.key_index.extend(marks);
            gathered.sums.extend(sums);
            gathered.tally.join(tally);
        }
        Ok(gathered)
    }

    /// Fills a block with the bytes from offset `at` of the sorted records. The first and the last
    /// record may be cut. The bytes of a run are summed grain by grain while they are in the cache.
    /// For an output the records that begin in the block are counted. `block` is the length of a
    /// whole block.
    fn fill(&self, out: &mut [u8], at: u64, starts: &[u64], target: Target<'_>, block: usize) -> BlockDone {
        let layout = self.arranger.layout;
        let grain = match target {
            Target::Run { grain, .. } => grain,
            Target::File { .. } | Target::Stream(_) | Target::CompressedRun(_) => usize::MAX,
        };
        let mut bucket = starts.partition_point(|s| *s <= at) - 1;
        let mut entries = self.buckets[bucket].entries(&self.arranger);
        let (mut index, mut skip) = self.buckets[bucket].find(&self.arranger, (at - starts[bucket]) as usize);
        let (mut done, mut summed) = (0, 0);
        let (mut next_mark, distance) = (0, mark_distance(block, grain, self.arranger.unique));
        let mut filled = BlockDone { marks: Vec::new(), sums: Vec::new(), tally: Tally::default(), frames: Vec::new() };
        while done < out.len() {
            while index < entries.len() && done < out.len() {
                let e = entries[index];
                if let Some(ahead) = entries.get(index + PREFETCH_ENTRIES) {
                    let len = layout.fixed_len().or(entry::short_len(*ahead)).unwrap_or(MAX_PREFETCH_BYTES);
                    prefetch_record(self.arranger.raw, entry::offset(*ahead), len.min(MAX_PREFETCH_BYTES));
                }
                let record = self.arranger.record(e);
                if skip == 0 {
                    if target.is_output() {
                        filled.tally.add(record);
                    }
                    if done >= next_mark {
                        filled.marks.push(IndexEntry { at: at + done as u64, prefix: layout.prefix(record) });
                        next_mark = done + distance;
                    }
                }
                let len = record.len() - skip;
                let bytes = &self.arranger.raw[entry::offset(e) + skip..];
                if copy_record(out, done, bytes, len) {
                    done += len;
                } else {
                    let left = out.len() - done;
                    out[done..].copy_from_slice(&bytes[..left]);
                    done = out.len();
                }
                while done - summed >= grain {
                    filled.sums.push(checksum::sum(&out[summed..summed + grain]));
                    summed += grain;
                }
                skip = 0;
                index += 1;
            }
            if done < out.len() {
                (bucket, index) = (bucket + 1, 0);
                let Some(next) = self.buckets.get(bucket) else { break };
                entries = next.entries(&self.arranger);
            }
        }
        if grain < usize::MAX && summed < out.len() {
            filled.sums.push(checksum::sum(&out[summed..]));
        }
        filled
    }
}
