//! Many spans of one pipe, moved by one blocking call.
#![deny(clippy::arithmetic_side_effects)]

use std::ops::RangeInclusive;

use super::{Body, Pipe};
use crate::error::{Error, ErrorKind, Result};
use crate::span::Span;

/// The most spans under way at once. A group is submitted when half of them are done.
const WINDOW: usize = 256;

/// Spans that continue each other, moved as one.
struct MergedSpan {
    /// The numbers of its spans in the caller's list; those between without bytes count.
    spans: RangeInclusive<usize>,
    span: Span,
}

impl Pipe {
    /// Moves many spans, and returns the number of their bytes when all are there. Where the route
    /// has a queue, many are under way at once, in no particular order; else they are moved one
    /// after the other. Neighbors in the list that continue each other at both ends are moved as
    /// one.
    ///
    /// ```no_run
    /// # fn main() -> datapipes_core::Result<()> {
    /// # let pipe: datapipes_core::Pipe = todo!();
    /// use datapipes_core::Span;
    /// let spans: Vec<Span> = (0..64).map(|i| Span { source: i * 8192, target: i * 512, len: 512 }).collect();
    /// assert_eq!(pipe.transfer_all(&spans)?, 64 * 512);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Before anything moves: `OutOfRange` for a span beyond an end; `InvalidInput` for spans that
    /// write the same bytes; `Forked`. Later: the error of the failed span that comes first in the
    /// list, after everything that was started has ended. The context names the span's number, from
    /// 0, and [`bytes_done`](Error::bytes_done) counts the bytes of all spans that were moved.
    pub fn transfer_all(&self, spans: &[Span]) -> Result<u64> {
        self.owner.check("transfer")?;
        for (number, span) in spans.iter().enumerate() {
            self.check(*span).map_err(|e| e.within(format!("span {number}")).with_bytes_done(0))?;
        }
        check_targets(spans)?;
        let merged = self.merge(spans);
        // Once for all of them.
        let _lent = self.lend()?;
        let (mut done, mut failed): (u64, Option<(usize, Error)>) = (0, None);
        let mut finish = |number: usize, result: Result<()>| {
            match result {
                Ok(()) => done = done.saturating_add(merged[number].span.len),
                Err(error) => {
                    done = done.saturating_add(error.bytes_done());
                    if failed.as_ref().is_none_or(|(first, _)| number < *first) {
                        failed = Some((number, error));
                    }
                    return false;
                }
            }
            true
        };
        if let Body::Queued(_) = &self.body {
            self.move_queued(&merged, &mut finish)?;
        } else {
            let _ = merged.iter().enumerate().all(|(number, one)| finish(number, self.transfer(one.span)));
        }
        match failed {
            None => Ok(done),
            Some((number, error)) => Err(name_span(spans, &merged[number], error).with_bytes_done(done)),
        }
    }

    /// Keeps a window of spans under way. After a failure nothing more is started.
    fn move_queued(&self, merged: &[MergedSpan], finish: &mut dyn FnMut(usize, Result<()>) -> bool) -> Result<()> {
        let mut batch = self.batch();
        let mut rest = merged.iter().enumerate();
        let mut goes_on = true;
        loop {
            if goes_on && batch.under_way() <= WINDOW / 2 {
                let room = WINDOW.saturating_sub(batch.under_way());
                batch.submit(rest.by_ref().take(room).map(|(number, one)| (number as u64, one.span)));
            }
            let Some(finished) = batch.next()? else { return Ok(()) };
            // The tag is a number of the list.
            goes_on &= finish(usize::try_from(finished.tag).unwrap_or(usize::MAX), finished.result);
        }
    }

    /// Puts spans together that continue each other. Within one region of memory or one file, a
    /// longer span could overlap itself where its parts do not.
    fn merge(&self, spans: &[Span]) -> Vec<MergedSpan> {
        let one_region = match (self.source.memory(), self.target.memory()) {
            (Some(source), Some(target)) => source.region().id() == target.region().id(),
            _ => false,
        };
        let apart = one_region || self.bounds.one_file.is_some();
        let mut merged: Vec<MergedSpan> = Vec::new();
        for (number, span) in spans.iter().enumerate().filter(|(_, span)| span.len > 0) {
            if !apart
                && let Some(last) = merged.last_mut()
                && last.span.source.checked_add(last.span.len) == Some(span.source)
                && last.span.target.checked_add(last.span.len) == Some(span.target)
            {
                last.span.len = last.span.len.saturating_add(span.len);
                last.spans = *last.spans.start()..=number;
                continue;
            }
            merged.push(MergedSpan { spans: number..=number, span: *span });
        }
        merged
    }
}

/// Refuses spans that write the same bytes: they have no order.
fn check_targets(spans: &[Span]) -> Result<()> {
    let mut order: Vec<usize> = (0..spans.len()).filter(|number| spans[*number].len > 0).collect();
    if !order.is_sorted_by_key(|number| spans[*number].target) {
        order.sort_by_key(|number| spans[*number].target);
    }
    for pair in order.windows(2) {
        let (a, b) = (pair[0], pair[1]);
        // Both were checked to lie within the target.
        if spans[a].target.saturating_add(spans[a].len) > spans[b].target {
            let (first, second) = (a.min(b), a.max(b));
            let context = format!("spans {first} and {second} write the same bytes, at {}", spans[b].target);
            return Err(Error::new(ErrorKind::InvalidInput, "transfer", context).with_bytes_done(0));
        }
    }
    Ok(())
}

/// Names the span that failed: the one of the byte after those that were moved.
fn name_span(spans: &[Span], one: &MergedSpan, error: Error) -> Error {
    let mut before = 0u64;
    let found = one.spans.clone().find(|number| {
        before = before.saturating_add(spans[*number].len);
        before > error.bytes_done()
    });
    let number = found.unwrap_or(*one.spans.end());
    match one.spans.start() == one.spans.end() {
        true => error.within(format!("span {number}")),
        false => {
            error.within(format!("span {number} (moved as one with {} to {})", one.spans.start(), one.spans.end()))
        }
    }
}
