//! A portion of a bucket, read back into memory and checked.

use std::collections::VecDeque;

use datapipes_core::{Dram, Error, ErrorKind, Pipe, Result, Span, Transfer};

use super::buckets::{Bucket, Piece, Portion, Stripe};
use crate::control::Control;
use crate::memory::blocks::ALIGN;
use crate::runs::checksum;
use crate::waits::SortWait;

/// The most bytes that are read at once; neighbouring blocks are read together.
const MAX_READ: u64 = 1 << 20;

/// A portion that is being read.
pub(super) struct Loading<'a> {
    portion: &'a Portion,
    bucket: &'a Bucket,
    /// Where it begins in memory.
    at: usize,
    block: u64,
    coming: VecDeque<Transfer>,
}

/// Where the records of a piece lie in the memory of a portion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Loaded {
    pub(super) at: usize,
    pub(super) len: usize,
}

/// The blocks that a piece needs, and where they are loaded, from the portion's start.
struct Blocks {
    first: u64,
    /// The bytes of all of them.
    len: u64,
    at: usize,
}

impl<'a> Loading<'a> {
    /// Starts to read a portion to offset `at` of the memory.
    pub(super) fn start(
        (pipe, control): (&Pipe, &Control),
        portion: &'a Portion,
        bucket: &'a Bucket,
        (block, extent): (usize, u64),
        at: usize,
    ) -> Result<Loading<'a>> {
        let mut loading = Loading { portion, bucket, at, block: block as u64, coming: VecDeque::new() };
        for (piece, blocks) in loading.blocks() {
            let stripe = &bucket.stripes[piece.stripe];
            let mut done = 0;
            while done < blocks.len {
                let from = blocks.first * loading.block + done;
                let within = from % extent;
                let len = (blocks.len - done).min(extent - within).min(MAX_READ.max(loading.block));
                let source = stripe.extents[(from / extent) as usize] + within;
                let target = (at + blocks.at) as u64 + done;
                // What is behind the last record of a stripe was written as zeros.
                let len = len.next_multiple_of(ALIGN as u64);
                let span = Span { source, target, len };
                loading.coming.push_back(control.start_read(SortWait::Runs, pipe, span)?);
                done += len;
            }
        }
        Ok(loading)
    }

    /// The pieces, and the blocks that each needs.
    fn blocks(&self) -> Vec<(Piece, Blocks)> {
        let mut at = 0;
        let blocks = |piece: &Piece| {
            let first = piece.from / self.block;
            let end = piece.to.next_multiple_of(self.block).min(self.bucket.stripes[piece.stripe].len);
            let blocks = Blocks { first, len: end - first * self.block, at };
            at += (blocks.len as usize).next_multiple_of(ALIGN);
            (*piece, blocks)
        };
        self.portion.pieces.iter().map(blocks).collect()
    }

    /// Waits for all bytes and checks them. Returns where the records are, from the portion's
    /// start, and the bytes in which they lie.
    pub(super) fn finish(mut self, memory: &Dram, control: &Control) -> Result<(Vec<Loaded>, usize)> {
        let waits = control.waits_for(SortWait::Runs);
        while let Some(transfer) = self.coming.pop_front() {
            transfer.wait()?;
        }
        drop(waits);
        let (mut loaded, mut end) = (Vec::with_capacity(self.portion.pieces.len()), 0);
        for (piece, blocks) in self.blocks() {
            let bytes = memory.range(self.at + blocks.at, blocks.len as usize)?.lease()?;
            check(&bytes, &self.bucket.stripes[piece.stripe], blocks.first, self.block as usize)?;
            let skip = (piece.from - blocks.first * self.block) as usize;
            loaded.push(Loaded { at: blocks.at + skip, len: (piece.to - piece.from) as usize });
            end = blocks.at + blocks.len as usize;
        }
        Ok((loaded, end))
    }
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        // The memory will be used for something else: nothing may be in flight into it.
        for transfer in self.coming.drain(..) {
            // The outcome no longer matters.
            let _ = transfer.wait();
        }
    }
}

/// Checks the blocks of a stripe from `first` on.
fn check(bytes: &[u8], stripe: &Stripe, first: u64, block: usize) -> Result<()> {
    for (index, bytes) in (first..).zip(bytes.chunks(block)) {
        let at = index * block as u64;
        let sum = usize::try_from(index).ok().and_then(|index| stripe.sums.get(index));
        let Some(sum) = sum else {
            return Err(Error::new(ErrorKind::Corrupt, "read", "a spilled block has no checksum").with_offset(at));
        };
        checksum::check(bytes, *sum, at)?;
    }
    Ok(())
}
