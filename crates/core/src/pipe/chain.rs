//! Routes of two hops.
#![deny(clippy::arithmetic_side_effects)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::queue::Queue;
use crate::backend::{Counters, InlineMover};
use crate::error::Result;
use crate::locator::Dram;
use crate::locks::Mutex;
use crate::plan::RouteShape;
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

    /// Whether a piece is over: a ring, too, may copy what the page cache has when it is asked to.
    fn is_over(&self, started: &Started) -> bool {
        match (self, started) {
            (Stage::Queued(queue), Started::Later(token)) => queue.is_done(*token),
            _ => true,
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

    /// Whether no hop has a queue.
    pub(crate) fn is_inline(&self) -> bool {
        self.stages.iter().all(|stage| matches!(stage, Stage::Inline(_)))
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
        let buffer_bytes = buffers.first().map_or(0, Dram::len);
        let mut pieces = Pieces { span, at: 0, number: 0, buffers: buffers.len(), buffer_bytes };
        // Before a write was looked at, reads are waited for.
        let (mut reads, mut writes) = (InOrder::new(up, Duration::ZERO), InOrder::new(down, Duration::MAX));
        let mut moved = 0;
        let mut run = || -> Result<()> {
            loop {
                let handed_on = match reads.take_over()? {
                    Some(piece) => {
                        writes.start(piece, Span { source: piece.slot, ..piece.span.span() })?;
                        true
                    }
                    None => false,
                };
                while let Some(piece) = writes.take_over()? {
                    moved = piece.end;
                }
                // Both hops work in order. So with fewer pieces than buffers the next one is free.
                // It is filled before another one is handed on, which may take this thread's time.
                if reads.len().saturating_add(writes.len()) < buffers.len()
                    && let Some(piece) = pieces.next()
                {
                    reads.start(piece, Span { target: piece.slot, ..piece.span.span() })?;
                    continue;
                }
                if handed_on {
                    continue;
                }
                // What is over first is waited for: then the other hop has work meanwhile.
                match (reads.expected(), writes.expected()) {
                    (None, None) => return Ok(()),
                    (Some(read), write) if write.is_none_or(|write| read <= write) => reads.wait(),
                    _ => writes.wait(),
                }
            }
        };
        let result = run();
        // After an error the others are waited for: they hold the buffers.
        reads.end();
        writes.end();
        result.map_err(|e| e.with_bytes_done(moved))
    }
}

/// Pieces that a hop of a bounce moves, in order.
struct InOrder<'a> {
    stage: &'a Stage,
    pieces: VecDeque<(Piece, Started, Instant)>,
    /// The time that a piece takes: that of the last one that was waited for, or less where one was
    /// over sooner.
    takes: Duration,
    /// Whether the first one was waited for.
    is_awaited: bool,
}

impl InOrder<'_> {
    fn new(stage: &Stage, takes: Duration) -> InOrder<'_> {
        InOrder { stage, pieces: VecDeque::new(), takes, is_awaited: false }
    }

    fn len(&self) -> usize {
        self.pieces.len()
    }

    fn start(&mut self, piece: Piece, span: Span) -> Result<()> {
        let begun = Instant::now();
        let started = self.stage.start(span)?;
        self.pieces.push_back((piece, started, begun));
        Ok(())
    }

    /// Takes the first piece, if it is over.
    fn take_over(&mut self) -> Result<Option<Piece>> {
        if !self.pieces.front().is_some_and(|(_, started, _)| self.stage.is_over(started)) {
            return Ok(None);
        }
        let Some((piece, started, begun)) = self.pieces.pop_front() else { return Ok(None) };
        if !std::mem::take(&mut self.is_awaited) {
            // It may have been over for long.
            self.takes = self.takes.min(begun.elapsed());
        }
        self.stage.finish(started).map(|()| Some(piece))
    }

    /// How long it may be until the first piece is over; `None` without one.
    fn expected(&self) -> Option<Duration> {
        self.pieces.front().map(|(_, _, begun)| self.takes.saturating_sub(begun.elapsed()))
    }

    /// Waits until the first piece is over. How it ended is told when it is taken.
    fn wait(&mut self) {
        let Some((_, started, begun)) = self.pieces.front_mut() else { return };
        let result = self.stage.finish(std::mem::replace(started, Started::Now(Ok(()))));
        *started = Started::Now(result);
        (self.takes, self.is_awaited) = (begun.elapsed(), true);
    }

    /// Waits for all that is left.
    fn end(&mut self) {
        for (_, started, _) in self.pieces.drain(..) {
            let _ = self.stage.finish(started);
        }
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
    /// Bytes of each buffer; they lie one behind another.
    buffer_bytes: usize,
}

impl Iterator for Pieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let left = self.span.len.checked_sub(self.at).filter(|left| *left > 0)?;
        let len = left.min(self.buffer_bytes as u64);
        let slot = self.number.checked_rem(self.buffers)?.checked_mul(self.buffer_bytes)? as u64;
        let span = self.span.part(self.at, len).ok()?;
        let end = self.at.checked_add(len)?;
        (self.at, self.number) = (end, self.number.wrapping_add(1));
        Some(Piece { span, slot, end })
    }
}
