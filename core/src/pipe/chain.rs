//! Routes of two hops.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use super::queue::Queue;
use crate::backend::{Counters, Inline};
use crate::error::Result;
use crate::locator::Dram;
use crate::plan::{BOUNCE_BYTES, Shape};
use crate::span::Span;

pub(crate) enum Stage {
    Inline(Box<dyn Inline>),
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
    shape: Shape,
    stages: Vec<Stage>,
    /// Buffers of a bounce. One transfer at a time has them.
    bounce: Mutex<Vec<Dram>>,
}

impl Chain {
    pub(crate) fn new(shape: Shape, stages: Vec<Stage>, bounce: Vec<Dram>) -> Self {
        Chain { shape, stages, bounce: Mutex::new(bounce) }
    }

    pub(crate) fn counters(&self) -> Vec<Counters> {
        self.stages.iter().map(Stage::counters).collect()
    }

    pub(crate) fn transfer(&self, span: Span) -> Result<()> {
        match self.shape {
            Shape::Bounce => self.bounce(span),
            Shape::Direct | Shape::Placement => self.place(span),
        }
    }

    /// The first hop brings the bytes, the later ones work on them where they are.
    fn place(&self, span: Span) -> Result<()> {
        let mut span = span;
        for stage in &self.stages {
            stage.finish(stage.start(span)?)?;
            span.source = span.target;
        }
        Ok(())
    }

    /// Fills one buffer while the other is emptied.
    fn bounce(&self, span: Span) -> Result<()> {
        let [up, down] = self.stages.as_slice() else { unreachable!("a bounce has two hops") };
        let buffers = self.bounce.lock().unwrap_or_else(PoisonError::into_inner);
        let pieces = span.len.div_ceil(BOUNCE_BYTES as u64);
        let piece = |i: u64| {
            let at = i * BOUNCE_BYTES as u64;
            (at, (span.len - at).min(BOUNCE_BYTES as u64))
        };
        let slot = |i: u64| (i % buffers.len() as u64) * BOUNCE_BYTES as u64;
        let read = |i: u64| {
            let (at, len) = piece(i);
            up.start(Span { source: span.source + at, target: slot(i), len })
        };
        let mut reading = VecDeque::new();
        let mut writing: VecDeque<(u64, Started)> = VecDeque::new();
        let mut moved = 0;
        let mut run = || -> Result<()> {
            let mut next = 0;
            for i in 0..pieces {
                while next < pieces && next < i + buffers.len() as u64 {
                    // The buffer is free once the write that used it is done.
                    if let Some((w, _)) = writing.front()
                        && w + buffers.len() as u64 <= next
                        && let Some((w, started)) = writing.pop_front()
                    {
                        down.finish(started)?;
                        moved = piece(w).0 + piece(w).1;
                    }
                    reading.push_back(read(next)?);
                    next += 1;
                }
                let Some(started) = reading.pop_front() else { unreachable!("piece {i} was started above") };
                up.finish(started)?;
                let (at, len) = piece(i);
                writing.push_back((i, down.start(Span { source: slot(i), target: span.target + at, len })?));
            }
            while let Some((w, started)) = writing.pop_front() {
                down.finish(started)?;
                moved = piece(w).0 + piece(w).1;
            }
            Ok(())
        };
        let result = run();
        // After an error the others are waited for: they hold the buffers.
        for started in reading {
            let _ = up.finish(started);
        }
        for (_, started) in writing {
            let _ = down.finish(started);
        }
        result.map_err(|e| e.bytes_done(moved))
    }
}
