//! The segments of a log in order, each starting where the one before ends.

use std::collections::VecDeque;

use datapipes_core::{Error, ErrorKind, Machine, Result};

use super::scan::{SegmentScan, Step, read_header};
use crate::log::format::close_note::CloseNote;
use crate::log::format::segment::{LogPosition, Segment};
use crate::log::place::storage::SegmentStorage;

/// The segments of an open log, and the close note, if the log was closed.
pub(crate) struct Chain {
    pub(crate) segments: Vec<Segment>,
    pub(crate) closing: Option<CloseNote>,
}

/// Opens the segments that exist. If there are none, the list is empty.
///
/// # Errors
/// `Corrupt` if they are not those with which the log was closed, or do not follow each other.
pub(crate) fn open(machine: &Machine, storage: &dyn SegmentStorage, writable: bool) -> Result<Chain> {
    loop {
        // The note is read before the segments: a writer that comes meanwhile removes the note
        // before it changes anything.
        let closing = CloseNote::read(storage)?;
        let segments = open_segments(machine, storage, writable)?;
        let Some(closing) = closing else { return Ok(Chain { segments, closing }) };
        match closing.check_segments(storage, &segments) {
            Ok(()) => return Ok(Chain { segments, closing: Some(closing) }),
            // A writer came and released segments; by now it may have left another note.
            Err(_) if CloseNote::read(storage)? != Some(closing) => {}
            Err(e) => return Err(e),
        }
    }
}

fn open_segments(machine: &Machine, storage: &dyn SegmentStorage, writable: bool) -> Result<Vec<Segment>> {
    let mut segments: Vec<Segment> = Vec::new();
    let mut numbers = VecDeque::from(storage.list()?);
    while let Some(number) = numbers.pop_front() {
        let name = format!("{} segment {number}", storage.name());
        let medium = match storage.open(number, writable) {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                // The segment was released after the list was made, and so were all before it: the
                // log begins later by now.
                let now = storage.list()?;
                if now.first().is_some_and(|first| *first <= number) {
                    return Err(e);
                }
                segments.clear();
                numbers = now.into();
                continue;
            }
            opened => opened?,
        };
        let header = read_header(machine, &*medium, &name)?;
        let segment = Segment { header, medium, name };
        if header.number != number {
            return Err(segment.corrupt(header.base, &format!("its header has the number {}", header.number)));
        }
        if let Some(before) = segments.last() {
            follows(before, &segment)?;
        }
        segments.push(segment);
    }
    Ok(segments)
}

fn follows(before: &Segment, segment: &Segment) -> Result<()> {
    let (a, b) = (&before.header, &segment.header);
    if a.log_id != b.log_id {
        return Err(segment.corrupt(b.base, "it belongs to another log than the segment before it"));
    }
    if b.number != a.number + 1 {
        let why = format!("log {}: segments {} to {} are missing", before.name, a.number + 1, b.number - 1);
        return Err(Error::new(ErrorKind::Corrupt, "read", why));
    }
    if b.base < a.base || b.base - a.base > a.room() || b.first < a.first || b.epoch < a.epoch {
        return Err(segment.corrupt(b.base, "it does not continue the segment before it"));
    }
    Ok(())
}

/// Walks over all frames of a list of segments.
pub(crate) struct ChainScan {
    machine: Machine,
    /// The segments still to come, in reverse order.
    rest: Vec<Segment>,
    scan: Option<SegmentScan>,
    /// The position where the walk ends.
    until: u64,
    /// The close note to check at the end.
    closing: Option<CloseNote>,
}

impl ChainScan {
    /// Walks to a position before which everything is durable.
    pub(crate) fn until(machine: &Machine, mut segments: Vec<Segment>, until: u64) -> ChainScan {
        segments.reverse();
        ChainScan { machine: machine.clone(), rest: segments, scan: None, until, closing: None }
    }

    /// Walks to the end of the log, and checks it against the close note, if there is one.
    pub(crate) fn to_end(machine: &Machine, chain: Chain) -> ChainScan {
        let Chain { segments, closing } = chain;
        ChainScan { closing, ..ChainScan::until(machine, segments, u64::MAX) }
    }

    /// Returns the next record; `None` at the end of the log. A lease on the payload must end
    /// before the next call.
    ///
    /// # Errors
    /// `Corrupt` for damage; errors of reading.
    pub(crate) fn next(&mut self) -> Result<Option<(u64, datapipes_core::Lease)>> {
        loop {
            let Some(scan) = &mut self.scan else {
                let Some(segment) = self.rest.pop() else { return Ok(None) };
                self.scan = Some(SegmentScan::over(&self.machine, segment)?);
                continue;
            };
            let at = scan.tail();
            if at.position >= self.until {
                return Ok(None);
            }
            if let Some(next) = self.rest.last()
                && at.position >= next.header.base
            {
                if (at.position, at.number) != (next.header.base, next.header.first) || at.epoch > next.header.epoch {
                    return Err(next.corrupt(next.header.base, "it does not continue the segment before it"));
                }
                self.scan = None;
                continue;
            }
            match scan.step()? {
                Step::Record { number, payload } => return Ok(Some((number, payload))),
                Step::Mark => {}
                Step::End => {
                    scan.check_length()?;
                    // The next segment was begun when all of this one was durable.
                    if !self.rest.is_empty() || self.until != u64::MAX {
                        let what =
                            format!("record {} is damaged; later records were written after it was durable", at.number);
                        return Err(scan.segment().corrupt(at.position, &what));
                    }
                    if scan.ends_here()?.is_some() {
                        let closing = self.closing;
                        closing.map_or(Ok(()), |closing| closing.check_end(scan.segment(), scan.tail()))?;
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Returns the position of the walk; `None` before its first step, and if there is no segment.
    pub(crate) fn tail(&self) -> Option<LogPosition> {
        self.scan.as_ref().map(SegmentScan::tail)
    }
}
