//! One pass over the input: each record goes to its bucket, and buckets go to the spill.
//!
//! ```text
//! record --copy--> buffer (W bytes, in L2) --past the caches--> block (B bytes) --pipe--> spill
//! ```
//! Blocks are summed while their bytes are in the buffer, so they are not read again before they
//! are written.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crc32fast::Hasher;
use datapipes_core::locks::Mutex;
use datapipes_core::memory::as_bytes;
use datapipes_core::{LeaseMut, Pipe, Result};

use super::buckets::{Bucket, Stripe};
use super::classify::Classifier;
use super::extents::Extents;
use super::plan::{CHUNKS, Shape};
use super::stripes::{Chunks, Source, StripeReader, cuts, ranges};
use crate::control::{Control, count};
use crate::engine::Engine;
use crate::memory::blocks::{ALIGN, Block, BlockPool};
use crate::memory::parallel::run_parts;
use crate::memory::short_copy::copy_record;
use crate::memory::streaming::{copy_past_caches, fence};
use crate::numbers::{Numbers, Unsigned};
use crate::records::layout::Layout;
use crate::records::tally::Tally;
use crate::report::MovementRole;
use crate::runs::spill::Spill;
use crate::waits::SortWait;

/// Records that are classified together. They and their keys stay in the first-level cache.
const BATCH: usize = 128;
/// Numbers of which it is seen whether all go to one bucket.
const GROUP: usize = 32;

/// Where the parts of the memory begin, while the input is distributed.
struct Division {
    chunks: usize,
    buffers: usize,
    blocks: usize,
}

impl Division {
    fn of(shape: &Shape, at: usize) -> Division {
        let chunks = at.next_multiple_of(ALIGN);
        let buffers = chunks + shape.threads * shape.chunks_len();
        Division { chunks, buffers, blocks: buffers + shape.threads * shape.buckets * shape.buffer }
    }
}

impl<L: Layout> Engine<'_, L> {
    /// Distributes all records over buckets in the spill. Returns these, and what was read.
    pub(super) fn distribute(
        &self,
        record: usize,
        shape: &Shape,
        sources: &[Source],
        splitters: &[u64],
        spill: &Spill<'_>,
    ) -> Result<(Vec<Bucket>, Tally)> {
        let division = Division::of(shape, self.budget.arenas_at);
        let count = shape.threads * shape.buckets + shape.spare_blocks;
        let blocks = BlockPool::new(&self.memory, division.blocks, shape.block, count);
        let pipe = self.machine.connect(&self.memory, &spill.staging()?)?;
        let classifier = Classifier::new(splitters);
        let cuts = cuts(sources.iter().map(|s| s.len).sum(), record, shape.threads);
        let extents = Extents::new(spill, shape.extent, shape.reservation);
        let failed = AtomicBool::new(false);
        let done = Mutex::new((Ok(()), Tally::default(), Vec::with_capacity(shape.threads)));
        run_parts(&self.control.progress.waits, shape.threads, shape.threads, |t| {
            let chunks = Chunks {
                at: division.chunks + t * shape.chunks_len(),
                count: CHUNKS,
                len: shape.chunk,
                headroom: shape.headroom,
            };
            let stripe = ranges(sources, cuts[t], cuts[t + 1]);
            let reader = StripeReader::new(self.machine, &self.memory, sources, stripe, record, chunks);
            let buffers = division.buffers + t * shape.buckets * shape.buffer;
            let outcome = self.scatter_stripe(record, reader, &classifier, &failed, || {
                Scatter::new(
                    self,
                    shape,
                    (buffers, splitters),
                    SpillTarget { blocks: &blocks, pipe: &pipe, extents: &extents, control: self.control },
                )
            });
            let mut done = done.lock();
            match outcome {
                Ok((tally, stripes)) => {
                    done.1.join(tally);
                    done.2.push((t, stripes));
                }
                Err(e) => {
                    failed.store(true, Relaxed);
                    if done.0.is_ok() {
                        done.0 = Err(e);
                    }
                }
            }
        });
        let waits = self.control.progress.waits.begin(SortWait::Spill, shape.threads);
        let drained = blocks.drain();
        drop(waits);
        self.movements.keep(MovementRole::Spill, pipe);
        let (result, tally, mut stripes) = done.into_inner();
        result?;
        drained?;
        extents.finish()?;
        stripes.sort_by_key(|(t, _)| *t);
        Ok((self.buckets(splitters, stripes.into_iter().map(|(_, stripes)| stripes)), tally))
    }

    /// Puts the stripes of all threads together, bucket by bucket.
    fn buckets(&self, splitters: &[u64], threads: impl Iterator<Item = Vec<Stripe>>) -> Vec<Bucket> {
        let mut buckets: Vec<Bucket> = bounds(splitters)
            .map(|(low, high)| Bucket { low, high, counted: self.counts(low, high), stripes: Vec::new() })
            .collect();
        for stripes in threads {
            buckets.iter_mut().zip(stripes).for_each(|(bucket, stripe)| bucket.stripes.push(stripe));
        }
        buckets
    }

    /// Whether the records of a bucket are counted: they are all the same number.
    fn counts(&self, low: u64, high: u64) -> bool {
        low == high && self.layout.numbers().is_some()
    }

    /// Distributes one thread's stripe. Returns what was read, and its part of each bucket.
    fn scatter_stripe<'s>(
        &'s self,
        record: usize,
        mut reader: StripeReader<'_>,
        classifier: &Classifier,
        failed: &AtomicBool,
        scatter: impl FnOnce() -> Result<Scatter<'s>>,
    ) -> Result<(Tally, Vec<Stripe>)> {
        let mut scatter = scatter()?;
        let mut tally = Tally::default();
        while let Some((records, came)) = reader.next(self.control)? {
            self.control.check()?;
            if failed.load(Relaxed) {
                break;
            }
            count(&self.control.progress.read, came);
            match self.layout.numbers() {
                None => self.scatter_records(record, &records, classifier, &mut tally, &mut scatter)?,
                Some(n) if record == 4 => scatter_numbers::<u32>(n, &records, classifier, &mut tally, &mut scatter)?,
                Some(n) => scatter_numbers::<u64>(n, &records, classifier, &mut tally, &mut scatter)?,
            }
        }
        reader.finish(&self.movements);
        Ok((tally, scatter.finish()?))
    }

    /// Distributes whole records.
    fn scatter_records(
        &self,
        record: usize,
        bytes: &[u8],
        classifier: &Classifier,
        tally: &mut Tally,
        scatter: &mut Scatter<'_>,
    ) -> Result<()> {
        let (mut prefixes, mut ids) = ([0_u64; BATCH], [0_u16; BATCH]);
        for batch_bytes in bytes.chunks(BATCH * record) {
            let batch = batch_bytes.chunks_exact(record);
            let n = batch.len();
            for (prefix, bytes) in prefixes.iter_mut().zip(batch) {
                tally.add(bytes);
                *prefix = self.layout.prefix(bytes);
            }
            classifier.classify(&prefixes[..n], &mut ids[..n]);
            for (i, bucket) in ids[..n].iter().enumerate() {
                scatter.put(usize::from(*bucket), &batch_bytes[i * record..], record)?;
            }
        }
        Ok(())
    }
}

/// Distributes numbers. In buckets they are encoded, as in runs.
fn scatter_numbers<T: Unsigned>(
    numbers: Numbers,
    bytes: &[u8],
    classifier: &Classifier,
    tally: &mut Tally,
    scatter: &mut Scatter<'_>,
) -> Result<()> {
    let width = size_of::<T>();
    let (mut codes, mut ids) = ([0_u64; BATCH], [0_u16; BATCH]);
    let encoded = |bytes| T::read(bytes).encode(numbers);
    // Whether the numbers before went to one bucket. Otherwise it is tried once a batch.
    let mut ordered = false;
    for batch in bytes.chunks(BATCH * width) {
        let n = batch.len() / width;
        tally.add_numbers(width, batch.chunks_exact(width).map(|number| T::read(number).widen()));
        for (code, number) in codes.iter_mut().zip(batch.chunks_exact(width)) {
            *code = encoded(number).widen();
        }
        let mut at = 0;
        while at < n && (ordered || at == 0) {
            let end = n.min(at + GROUP);
            let bucket = scatter.bucket_of_all(classifier, &codes[at..end]);
            ordered = bucket.is_some();
            let Some(bucket) = bucket else { break };
            scatter.put_alike(bucket, batch[at * width..end * width].chunks_exact(width).map(encoded))?;
            at = end;
        }
        classifier.classify(&codes[at..n], &mut ids[at..n]);
        let rest = batch[at * width..].chunks_exact(width).map(encoded);
        scatter.put_numbers(ids[at..n].iter().map(|id| usize::from(*id)).zip(rest))?;
    }
    Ok(())
}

/// The least and the greatest prefix of each bucket.
fn bounds(splitters: &[u64]) -> impl Iterator<Item = (u64, u64)> {
    let low = std::iter::once(0).chain(splitters.iter().map(|s| s.saturating_add(1)));
    low.zip(splitters.iter().copied().chain([u64::MAX]))
}

/// The buckets of one thread.
struct Scatter<'a> {
    /// The buffers of all buckets, one behind the other.
    buffers: LeaseMut,
    buffer: usize,
    /// The bytes in each buffer.
    filled: Vec<u32>,
    /// The least and the greatest prefix of each bucket.
    bounds: Vec<(u64, u64)>,
    writers: Vec<StripeWriter>,
    target: SpillTarget<'a>,
}

/// What the writers of one thread share.
struct SpillTarget<'a> {
    blocks: &'a BlockPool,
    pipe: &'a Pipe,
    extents: &'a Extents<'a>,
    control: &'a Control,
}

/// Writes a thread's part of one bucket.
#[derive(Default)]
struct StripeWriter {
    block: Option<Block>,
    filled: usize,
    /// Whether it only counts bytes, because all its records are the same number.
    counts: bool,
    hasher: Hasher,
    /// The bytes that are left of its last extent.
    left: u64,
    stripe: Stripe,
}

impl<'a> Scatter<'a> {
    fn new<L: Layout>(
        engine: &'a Engine<'_, L>,
        shape: &Shape,
        (at, splitters): (usize, &[u64]),
        target: SpillTarget<'a>,
    ) -> Result<Scatter<'a>> {
        let writer = |(low, high)| StripeWriter { counts: engine.counts(low, high), ..StripeWriter::default() };
        let writers: Vec<StripeWriter> = bounds(splitters).map(writer).collect();
        let count = writers.len();
        Ok(Scatter {
            buffers: engine.memory.range(at, count * shape.buffer)?.lease_mut()?,
            buffer: shape.buffer,
            filled: vec![0; count],
            bounds: bounds(splitters).collect(),
            writers,
            target,
        })
    }

    /// Adds the first `len` of these bytes to a bucket as a record, which is faster if more follow
    /// them.
    #[inline]
    fn put(&mut self, bucket: usize, bytes: &[u8], len: usize) -> Result<()> {
        let from = self.filled[bucket] as usize;
        let to = from + len;
        let start = bucket * self.buffer;
        if to < self.buffer && copy_record(&mut self.buffers[start..start + self.buffer], from, bytes, len) {
            self.filled[bucket] = to as u32;
            return Ok(());
        }
        self.put_across(bucket, &bytes[..len])
    }

    /// Returns the bucket of all these numbers, if the first and the last are in one. In ordered
    /// input nearly all neighbours are.
    #[inline]
    fn bucket_of_all(&self, classifier: &Classifier, codes: &[u64]) -> Option<usize> {
        let ends = [*codes.first()?, *codes.last()?];
        let mut buckets = [0; 2];
        classifier.classify(&ends, &mut buckets);
        if buckets[0] != buckets[1] {
            return None;
        }
        let bucket = usize::from(buckets[0]);
        let (low, high) = *self.bounds.get(bucket)?;
        let outside = codes.iter().fold(false, |outside, code| outside | (*code < low) | (*code > high));
        (!outside).then_some(bucket)
    }

    /// Adds numbers to one bucket.
    #[inline]
    fn put_alike<T: Unsigned>(&mut self, bucket: usize, mut numbers: impl ExactSizeIterator<Item = T>) -> Result<()> {
        let room = self.buffer / size_of::<T>();
        let buffer = &mut self.buffers.as_slice_of::<T>()?[bucket * room..][..room];
        let mut at = self.filled[bucket] as usize / size_of::<T>();
        while numbers.len() > 0 {
            let end = room.min(at + numbers.len());
            buffer[at..end].iter_mut().zip(numbers.by_ref()).for_each(|(to, number)| *to = number);
            at = end;
            if at == room {
                self.writers[bucket].append(as_bytes(buffer), &self.target)?;
                at = 0;
            }
        }
        self.filled[bucket] = (at * size_of::<T>()) as u32;
        Ok(())
    }

    /// Adds numbers to their buckets. A buffer holds a whole number of them.
    #[inline]
    fn put_numbers<T: Unsigned>(&mut self, numbers: impl Iterator<Item = (usize, T)>) -> Result<()> {
        let room = self.buffer / size_of::<T>();
        let buffers = self.buffers.as_slice_of::<T>()?;
        for (bucket, number) in numbers {
            let filled = &mut self.filled[bucket];
            let at = *filled as usize / size_of::<T>();
            buffers[bucket * room + at] = number;
            *filled += size_of::<T>() as u32;
            if *filled as usize == self.buffer {
                *filled = 0;
                let full = &buffers[bucket * room..][..room];
                self.writers[bucket].append(as_bytes(full), &self.target)?;
            }
        }
        Ok(())
    }

    /// Adds a record that fills the buffer, and perhaps goes on in the next.
    fn put_across(&mut self, bucket: usize, mut record: &[u8]) -> Result<()> {
        let buffer = &mut self.buffers[bucket * self.buffer..][..self.buffer];
        let mut from = self.filled[bucket] as usize;
        while !record.is_empty() {
            let (now, rest) = record.split_at(record.len().min(buffer.len() - from));
            buffer[from..from + now.len()].copy_from_slice(now);
            (from, record) = (from + now.len(), rest);
            if from == buffer.len() {
                self.writers[bucket].append(buffer, &self.target)?;
                from = 0;
            }
        }
        self.filled[bucket] = from as u32;
        Ok(())
    }

    /// Writes what is left in buffers and blocks.
    fn finish(mut self) -> Result<Vec<Stripe>> {
        let mut stripes = Vec::with_capacity(self.writers.len());
        for (bucket, mut writer) in std::mem::take(&mut self.writers).into_iter().enumerate() {
            let rest = &self.buffers[bucket * self.buffer..][..self.filled[bucket] as usize];
            writer.append(rest, &self.target)?;
            stripes.push(writer.finish(&self.target)?);
        }
        Ok(stripes)
    }
}

impl StripeWriter {
    /// Appends a whole buffer; the last one may be shorter. Blocks hold whole buffers.
    fn append(&mut self, bytes: &[u8], target: &SpillTarget<'_>) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        if self.counts {
            self.stripe.len += bytes.len() as u64;
            return target.control.check();
        }
        self.hasher.update(bytes);
        let block = match &mut self.block {
            Some(block) => block,
            None => self.block.insert(target.blocks.take(target.control, SortWait::Spill)?),
        };
        copy_past_caches(&mut block.bytes[self.filled..self.filled + bytes.len()], bytes);
        self.filled += bytes.len();
        if self.filled == target.blocks.size {
            self.write(target)?;
        }
        Ok(())
    }

    /// Writes the block.
    fn write(&mut self, target: &SpillTarget<'_>) -> Result<()> {
        let Some(mut block) = self.block.take() else { return Ok(()) };
        target.control.check()?;
        if self.left == 0 {
            self.stripe.extents.push(target.extents.take(target.control)?);
            self.left = target.extents.each();
        }
        let extent = self.stripe.extents.last().copied().unwrap_or_default();
        let len = self.filled.next_multiple_of(ALIGN);
        block.bytes[self.filled..len].fill(0);
        fence();
        let waits = (target.control, SortWait::Spill);
        target.blocks.write(waits, target.pipe, block, (0, len), extent + target.extents.each() - self.left)?;
        self.stripe.sums.push(std::mem::take(&mut self.hasher).finalize());
        self.stripe.len += self.filled as u64;
        count(&target.control.progress.spilled, self.filled as u64);
        self.left -= target.blocks.size as u64;
        self.filled = 0;
        Ok(())
    }

    /// Writes the last block, and frees what is left of the last extent.
    fn finish(mut self, target: &SpillTarget<'_>) -> Result<Stripe> {
        self.write(target)?;
        if let (Some(extent), true) = (self.stripe.extents.last(), self.left > 0) {
            target.extents.free_end(*extent, self.left)?;
        }
        Ok(self.stripe)
    }
}
