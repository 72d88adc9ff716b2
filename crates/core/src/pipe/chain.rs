//! Routes of two hops.
#![deny(clippy::arithmetic_side_effects)]

use std::collections::VecDeque;
use std::sync::Arc;

use super::queue::Queue;
use crate::backend::{Counters, InlineMover};
use crate::error::Result;
use crate::locator::Dram;
use crate::locks::Mutex;
use crate::plan::{BOUNCE_BYTES, RouteShape};
use crate::span::{CheckedSpan, Span};

pub(crate) enum Stage {
    Inline(Box<dyn InlineMover>),
    Queued(Arc<Queue>),
}

/// A started piece of a stage.
enum Started {
    Now(Result<()>),
    Later(u64),
}

impl Stage {
    fn start(&self, span: Span) -> Result<Started> {
        match self {
            Stage::Inline(inline) => Ok(Started::Now(inline.transfer(span))),
            Stage::Queued(queue) => queue.submit(span).map(Started::Later),
        }
    }

    fn finish(&self, started: Started) -> Result<()> {
        match (self, started) {
            (_, Started::Now(result)) => result,
            (Stage::Queued(queue), Started::Later(token)) => queue.wait(token),
            (Stage::Inline(_), Started::Later(_)) => unreachable!("an inline stage finishes when it starts"),
        }
    }

    fn counters(&self) -> Counters {
        match self {
            Stage::Inline(inline) => inline.counters(),
            Stage::Queued(queue) => queue.counters(),
        }
    }
}

pub(crate) struct Chain {
    shape: RouteShape,
    stages: Vec<Stage>,
    /// Buffers of a bounce. One transfer at a time has them.
    bounce: Mutex<Vec<Dram>>,
}

impl Chain {
    pub(crate) fn new(shape: RouteShape, stages: Vec<Stage>, bounce: Vec<Dram>) -> Self {
        Chain { shape, stages, bounce: Mutex::new(bounce) }
    }

    pub(crate) fn counters(&self) -> Vec<Counters> {
        self.stages.iter().map(Stage::counters).collect()
    }

    pub(crate) fn transfer(&self, span: CheckedSpan) -> Result<()> {
        match self.shape {
            RouteShape::Bounce => self.bounce(span),
            RouteShape::Direct | RouteShape::Placement => self.place(span),
        }
    }

    /// The first hop brings the bytes, the later ones work on them where they are.
    fn place(&self, span: CheckedSpan) -> Result<()> {
        let mut span = span.span();
        for (number, stage) in (1_u64..).zip(&self.stages) {
            let traced = datapipes_metrics::span!(Trace, "hop", [number = number, len_bytes = span.len], empty: []);
            let moved = stage.start(span).and_then(|started| stage.finish(started));
            traced.ended(moved.is_ok());
            moved?;
            span.source = span.target;
        }
        Ok(())
    }

    /// Fills one buffer while the other is emptied.
    fn bounce(&self, span: CheckedSpan) -> Result<()> {
        let [up, down] = self.stages.as_slice() else { unreachable!("a bounce has two hops") };
        let buffers = self.bounce.lock();
        let mut pieces = Pieces { span, at: 0, number: 0, buffers: buffers.len() };
        // Pieces whose bytes are on their way into a buffer, and out of it, in order.
        let mut reading: VecDeque<(Piece, Started)> = VecDeque::new();
        let mut writing: VecDeque<(Piece, Started)> = VecDeque::new();
        let mut moved = 0;
        let mut run = || -> Result<()> {
            loop {
                while reading.len() < buffers.len() {
                    let Some(piece) = pieces.next() else { break };
                    // A buffer is free once the write that used it is done.
                    if let Some((before, _)) = writing.front()
                        && before.slot == piece.slot
                        && let Some((before, started)) = writing.pop_front()
                    {
                        down.finish(started)?;
                        moved = before.end;
                    }
                    let started = up.start(Span { target: piece.slot, ..piece.span.span() })?;
                    reading.push_back((piece, started));
                }
                let Some((piece, started)) = reading.pop_front() else { break };
                up.finish(started)?;
                let started = down.start(Span { source: piece.slot, ..piece.span.span() })?;
                writing.push_back((piece, started));
            }
            while let Some((piece, started)) = writing.pop_front() {
                down.finish(started)?;
                moved = piece.end;
            }
            Ok(())
        };
        let result = run();
        // After an error the others are waited for: they hold the buffers.
        for (_, started) in reading {
            let _ = up.finish(started);
        }
        for (_, started) in writing {
            let _ = down.finish(started);
        }
        result.map_err(|e| e.with_bytes_done(moved))
    }
}

/// What a buffer holds of a span.
#[derive(Clone, Copy)]
struct Piece {
    span: CheckedSpan,
    /// Where the buffer begins in the memory of all buffers.
    slot: u64,
    /// Where the piece ends in the whole span.
    end: u64,
}

/// A span in pieces of a buffer's length, which take the buffers in turns.
struct Pieces {
    span: CheckedSpan,
    at: u64,
    number: usize,
    buffers: usize,
}

impl Iterator for Pieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let left = self.span.len.checked_sub(self.at).filter(|left| *left > 0)?;
        let len = left.min(BOUNCE_BYTES as u64);
        let slot = self.number.checked_rem(self.buffers)?.checked_mul(BOUNCE_BYTES)? as u64;
        let span = self.span.part(self.at, len).ok()?;
        let end = self.at.checked_add(len)?;
        (self.at, self.number) = (end, self.number.wrapping_add(1));
        Some(Piece { span, slot, end })
    }
}
