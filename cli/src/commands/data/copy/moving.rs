//! Moving the bytes of a copy, in pieces.

use std::collections::VecDeque;

use datapipes::in_flight_limit::{InFlightLimit, InFlightMark};
use datapipes::{Pipe, Result, Span, Transfer};

use crate::any_locator::AnyLocator;
use crate::system::signals;

/// The most bytes of one transfer; two are under way at once.
const PIECE: u64 = 32 << 20;
/// The same where an end is at a server: at the end of each, its connections wait for the last one.
const DISTANT_PIECE: u64 = 256 << 20;
const IN_FLIGHT: u64 = 2;
/// The least bytes of a piece, on a slow device.
const SHORT_PIECE: u64 = 256 << 10;
/// The bytes under way at first, while the rate is not known.
const FIRST_IN_FLIGHT: u64 = 1 << 20;

/// How many bytes each end has before it starts over.
#[derive(Clone, Copy)]
pub(super) struct Windows {
    pub(super) source: u64,
    pub(super) target: u64,
}

/// How many bytes a place has before it starts over; only memory does.
pub(super) fn window(place: &AnyLocator, len: u64) -> Result<u64> {
    Ok(if place.memory().is_some() { place.len()?.min(len).max(1) } else { u64::MAX })
}

/// Moves so many bytes, in pieces, until a signal comes.
pub(super) fn move_all(pipe: &Pipe, windows: Windows, is_distant: bool, len: u64) -> Result<()> {
    let most = if is_distant { DISTANT_PIECE } else { PIECE };
    let smaller = windows.source.min(windows.target);
    // Transfers under way at once must not write the same bytes of memory.
    let piece = match smaller / IN_FLIGHT / 4096 * 4096 {
        0 => smaller,
        half => half.min(most),
    };
    let in_flight = (windows.target / piece).clamp(1, IN_FLIGHT) as usize;
    let mut flying: VecDeque<(Transfer, InFlightMark)> = VecDeque::new();
    let mut at = 0;
    let all = most.saturating_mul(IN_FLIGHT);
    let mut limit = match is_distant {
        true => InFlightLimit::fixed(all),
        false => InFlightLimit::new(SHORT_PIECE, FIRST_IN_FLIGHT, all),
    };
    loop {
        // What was begun is waited for, so that on a slow device little is begun at once.
        let piece = (limit.bytes() / IN_FLIGHT / SHORT_PIECE * SHORT_PIECE).max(SHORT_PIECE).min(piece);
        let in_flight = if limit.bytes() < IN_FLIGHT * SHORT_PIECE { 1 } else { in_flight };
        while flying.len() < in_flight && at < len {
            signals::check("copy")?;
            let (source, target) = (at % windows.source, at % windows.target);
            let part = piece.min(len - at).min(windows.source - source).min(windows.target - target);
            let begun = limit.begin();
            flying.push_back((pipe.start(Span { source, target, len: part })?, begun));
            at += part;
        }
        let Some((transfer, begun)) = flying.pop_front() else { return Ok(()) };
        transfer.wait()?;
        limit.arrived(begun);
    }
}
