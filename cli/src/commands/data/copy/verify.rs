//! Whether two places have the same bytes: both are read again and compared byte by byte, which is
//! stronger than a checksum and costs no more than reading does.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use datapipes::in_flight_limit::InFlightLimit;
use datapipes::{Dram, Error, ErrorKind, Machine, Result, Span, Ssd};

use crate::any_locator::AnyLocator;
use crate::system::signals;
use crate::system::window::{BLOCK, Window, direct};

/// The most bytes of a block of an object: enough for several requests at once.
const LARGE_BLOCK: usize = 32 << 20;

/// The first byte of the first `len` in which two places differ. What is in files is read past the
/// page cache where that is possible, so that it is what the device has.
pub(crate) fn first_difference(
    machine: &Machine,
    one: &AnyLocator,
    other: &AnyLocator,
    len: u64,
    done: &AtomicU64,
) -> Result<Option<u64>> {
    let mut compare = Compare { at: 0, found: None, done };
    if [one, other]
        .iter()
        .any(|place| matches!(place, AnyLocator::Object(_) | AnyLocator::Remote(_) | AnyLocator::Hbm(_)))
    {
        by_pipes(machine, one, other, len, &mut compare)?;
        return Ok(compare.found);
    }
    match (one, other) {
        (AnyLocator::Ssd(one), AnyLocator::Ssd(other)) => files(machine, one, other, len, &mut compare)?,
        (AnyLocator::Ssd(file), memory) | (memory, AnyLocator::Ssd(file)) => {
            Window::over(machine, &direct(file)?, len)?.read(0..len, |bytes| {
                let there = memory.look(compare.at as usize, bytes.len())?.ok_or_else(unseen)?;
                compare.step(bytes, &there)
            })?;
        }
        (one, other) => {
            let mut at = 0;
            while at < len {
                let piece = (len - at).min(BLOCK as u64);
                let bytes = |place: &AnyLocator| place.look(at as usize, piece as usize)?.ok_or_else(unseen);
                if compare.step(&bytes(one)?, &bytes(other)?)?.is_break() {
                    break;
                }
                at += piece;
            }
        }
    }
    Ok(compare.found)
}

/// Files are read by pipes and all else is looked at, so this is not met.
fn unseen() -> Error {
    Error::new(ErrorKind::Unsupported, "verify", "a place whose bytes cannot be looked at")
}

/// Reads both ends by pipes, block by block: what an object or remote memory has can only be asked
/// for.
fn by_pipes(
    machine: &Machine,
    one: &AnyLocator,
    other: &AnyLocator,
    len: u64,
    compare: &mut Compare<'_>,
) -> Result<()> {
    let buffers = [Dram::allocate(LARGE_BLOCK)?, Dram::allocate(LARGE_BLOCK)?];
    let pipes = [machine.connect(one, &buffers[0])?, machine.connect(other, &buffers[1])?];
    let is_object = |place: &AnyLocator| matches!(place, AnyLocator::Object(_));
    let mut limit = match is_object(one) || is_object(other) {
        true => InFlightLimit::fixed(LARGE_BLOCK as u64),
        false => InFlightLimit::new(1 << 20, LARGE_BLOCK as u64 / 8, LARGE_BLOCK as u64),
    };
    while compare.at < len {
        let span = Span { source: compare.at, target: 0, len: (len - compare.at).min(limit.bytes()) };
        let begun = limit.begin();
        let started = [pipes[0].start(span)?, pipes[1].start(span)?];
        started.into_iter().try_for_each(datapipes::Transfer::wait)?;
        limit.arrived(begun);
        let bytes = [&buffers[0], &buffers[1]].map(|buffer| buffer.range(0, span.len as usize)?.lease());
        let [one, other] = bytes;
        if compare.step(&one?, &other?)?.is_break() {
            return Ok(());
        }
    }
    Ok(())
}

fn files(machine: &Machine, one: &Ssd, other: &Ssd, len: u64, compare: &mut Compare<'_>) -> Result<()> {
    let buffer = Dram::allocate(BLOCK)?;
    let second = machine.connect(&direct(other)?, &buffer)?;
    Window::over(machine, &direct(one)?, len)?.read(0..len, |bytes| {
        second.transfer(Span { source: compare.at, target: 0, len: bytes.len() as u64 })?;
        let there = buffer.range(0, bytes.len())?.lease()?;
        compare.step(bytes, &there)
    })
}

struct Compare<'a> {
    at: u64,
    found: Option<u64>,
    done: &'a AtomicU64,
}

impl Compare<'_> {
    fn step(&mut self, one: &[u8], other: &[u8]) -> Result<ControlFlow<()>> {
        signals::check("verify")?;
        if self.found.is_none() && one != other {
            let at = one.iter().zip(other).position(|(a, b)| a != b).unwrap_or(one.len().min(other.len()));
            self.found = Some(self.at + at as u64);
        }
        self.at += one.len() as u64;
        self.done.fetch_add(one.len() as u64, Relaxed);
        Ok(if self.found.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }
}
