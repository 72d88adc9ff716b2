//! What is demanded of one way between two places.
//!
//! Each demand moves bytes by the pipe and in two arrays (the twin), and compares the whole target
//! afterwards, so that a byte outside the span that changed is seen as well as one inside that is
//! wrong.

use datapipes_core::locator::{Persistence, PlaceFacts, Reach};
use datapipes_core::memory::Access;
use datapipes_core::{Constraints, Error, ErrorKind, Machine, Pipe, Result, Span};

use super::place::TestPlace;

type Checked<T = ()> = Result<T, String>;

/// xorshift64*: the same numbers for a seed, everywhere.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

struct Case<'a> {
    places: (&'a TestPlace, &'a TestPlace),
    facts: (std::sync::Arc<PlaceFacts>, std::sync::Arc<PlaceFacts>),
    /// What the source has and the target must have.
    twins: (Vec<u8>, Vec<u8>),
    pipe: Pipe,
    moved: u64,
    random: Random,
}

fn text(e: Error) -> String {
    e.to_string()
}

fn demand(holds: bool, what: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(what()) }
}

/// Holds a fresh pair of places to every demand that their facts make apply.
pub(super) fn certify(
    machine: &Machine,
    source: &TestPlace,
    target: &TestPlace,
    constraints: &Constraints,
    seed: u64,
) -> Checked {
    let mut random = Random::new(seed);
    let mut fill = |place: &TestPlace| -> Checked<Vec<u8>> {
        let mut bytes = place.bytes().map_err(text)?;
        bytes.iter_mut().for_each(|b| *b = (random.next() >> 56) as u8);
        place.fill(&bytes).map_err(text)?;
        Ok(bytes)
    };
    let twins = (fill(source)?, fill(target)?);
    let pipe = machine.connect_with(source.locator(), target.locator(), constraints).map_err(text)?;
    let facts = (source.endpoint().facts, target.endpoint().facts);
    let mut case = Case { places: (source, target), facts, twins, pipe, moved: 0, random };
    case.facts_are_sane()?;
    case.spans()?;
    case.many_at_once()?;
    case.busy()?;
    case.counters()?;
    case.out_of_range()?;
    case.beyond_the_end()?;
    case.grows()?;
    case.dropped()
}

impl Case<'_> {
    fn lens(&self) -> (u64, u64) {
        (self.twins.0.len() as u64, self.twins.1.len() as u64)
    }

    fn move_twin(&mut self, span: Span) {
        let part = |at: u64| at as usize..(at + span.len) as usize;
        self.twins.1[part(span.target)].copy_from_slice(&self.twins.0[part(span.source)]);
        self.moved += span.len;
    }

    fn compare(&self, after: &dyn std::fmt::Debug) -> Checked {
        for (place, twin, name) in [(self.places.0, &self.twins.0, "source"), (self.places.1, &self.twins.1, "target")]
        {
            let bytes = place.bytes().map_err(text)?;
            demand(bytes.len() == twin.len(), || {
                format!("after {after:?} the {name} has {} bytes instead of {}", bytes.len(), twin.len())
            })?;
            if let Some(at) = (0..bytes.len()).find(|at| bytes[*at] != twin[*at]) {
                return Err(format!("after {after:?} byte {at} of the {name} is wrong"));
            }
        }
        Ok(())
    }

    fn transfer(&mut self, span: Span) -> Checked {
        self.pipe.transfer(span).map_err(|e| format!("{span:?}: {e}"))?;
        self.move_twin(span);
        self.compare(&span)
    }

    /// The span must be refused as `kind`, and nothing may move.
    fn refused(&mut self, span: Span, kinds: &[ErrorKind]) -> Checked {
        match self.pipe.transfer(span) {
            Ok(()) => return Err(format!("{span:?} succeeded instead of {kinds:?}")),
            Err(e) if kinds.contains(&e.kind()) => {}
            Err(e) => return Err(format!("{span:?} failed as {:?} instead of {kinds:?}: {e}", e.kind())),
        }
        self.compare(&("the refusal of", span))
    }

    fn facts_are_sane(&self) -> Checked {
        for (facts, twin) in [(&self.facts.0, &self.twins.0), (&self.facts.1, &self.twins.1)] {
            let len = twin.len() as u64;
            demand(facts.granularity.is_power_of_two() && facts.alignment.is_power_of_two(), || {
                format!("{}: granularity {} and alignment {}", facts.name, facts.granularity, facts.alignment)
            })?;
            demand(facts.len.is_none_or(|l| l == len), || format!("{} declares {:?} of {len}", facts.name, facts.len))?;
            demand(facts.reach != Reach::Memory || facts.len.is_some(), || {
                format!("{}: memory has a length: {facts:?}", facts.name)
            })?;
            let said = facts.reach != Reach::Memory
                || facts.persistence == Persistence::Volatile
                || facts.kind.starts_with("pmem");
            demand(said, || format!("{}: memory that keeps its bytes says so by its kind: {facts:?}", facts.name))?;
        }
        Ok(())
    }

    /// None, one, all, whole units, and heads and tails that are no units.
    fn spans(&mut self) -> Checked {
        let (source, target) = self.lens();
        let most = source.min(target);
        let unit = self.facts.0.granularity.max(self.facts.1.granularity).max(4096);
        let fixed = [
            (0, 0, 0),
            (source, target, 0),
            (0, 0, 1),
            (source - 1, target - 1, 1),
            (1, unit - 1, 1),
            (0, 0, most),
            (unit, 2 * unit, 3 * unit),
            (unit - 1, unit - 1, 2),
            (unit - 1, unit - 1, 2 * unit + 2),
            (1, 0, 5 * unit),
            (0, 1, 5 * unit),
            (source - 4097, target - 4097, 4097),
        ];
        for (source, target, len) in fixed {
            self.transfer(Span { source, target, len })?;
        }
        for _ in 0..12 {
            let len = self.awkward(most);
            let span = Span { source: self.awkward(source - len), target: self.awkward(target - len), len };
            self.transfer(span)?;
        }
        Ok(())
    }

    /// Often whole pages or sectors, often nearly so.
    fn awkward(&mut self, most: u64) -> u64 {
        let n = self.random.next() % (most + 1);
        let near = self.random.next() % 3;
        match self.random.next() % 4 {
            0 => n / 4096 * 4096,
            1 => n / 512 * 512,
            2 => (n / 512 * 512 + near).saturating_sub(1).min(most),
            _ => n,
        }
    }

    /// Neighbours that share blocks, all started before the first is waited for.
    fn many_at_once(&mut self) -> Checked {
        const PIECE: u64 = 3001;
        let (source, target) = self.lens();
        let pieces = source.min(target) / PIECE;
        let mut started = Vec::new();
        for i in 0..pieces {
            // Odd ones first, so that neighbours are far apart in the queue.
            let i = (2 * i + 1) % (2 * pieces.div_ceil(2) + 1);
            if i >= pieces {
                continue;
            }
            let span = Span { source: (pieces - 1 - i) * PIECE, target: i * PIECE, len: PIECE };
            started.push(self.pipe.start(span).map_err(|e| format!("start {span:?}: {e}"))?);
            self.move_twin(span);
        }
        for transfer in started.into_iter().rev() {
            transfer.wait().map_err(|e| format!("one of many: {e}"))?;
        }
        self.compare(&"many at once")
    }

    fn busy(&mut self) -> Checked {
        let over = Span { source: 100, target: 200, len: 5000 };
        let (source, target) = (self.places.0.endpoint(), self.places.1.endpoint());
        if let Some(memory) = source.memory() {
            let part = memory.range(5000, 10).map_err(text)?;
            let writer = part.raw_lease(Access::Write).map_err(text)?;
            let held = self.pipe.transfer(over);
            drop(writer);
            demand(held.as_ref().is_err_and(|e| e.kind() == ErrorKind::Busy), || {
                format!("the source is written by somebody, and the transfer says {held:?}")
            })?;
            self.compare(&"a busy source")?;
            let reader = part.raw_lease(Access::Read).map_err(text)?;
            self.transfer(over)?;
            drop(reader);
        }
        if let Some(memory) = target.memory() {
            let part = memory.range(200, 1).map_err(text)?;
            let reader = part.raw_lease(Access::Read).map_err(text)?;
            let held = self.pipe.transfer(over);
            demand(held.as_ref().is_err_and(|e| e.kind() == ErrorKind::Busy), || {
                format!("the target is read by somebody, and the transfer says {held:?}")
            })?;
            self.compare(&"a busy target")?;
            self.transfer(Span { source: 100, target: 201, len: 5000 })?;
            drop(reader);
        }
        // No lease may be left over.
        self.transfer(over)
    }

    /// The report says what was moved, hop by hop, and of files which way.
    fn counters(&self) -> Checked {
        let report = self.pipe.report();
        demand(report.bytes() == self.moved, || format!("{} bytes were moved, and\n{report}", self.moved))?;
        let files: Vec<_> = [&self.facts.0, &self.facts.1].into_iter().filter(|f| f.reach == Reach::File).collect();
        for hop in &report.hops {
            let c = &hop.counters;
            demand(c.bytes == self.moved, || format!("{} bytes were moved, and\n{report}", self.moved))?;
            let at_file = files.iter().any(|f| f.name == hop.from || f.name == hop.to);
            demand(!at_file || c.direct_bytes + c.cached_bytes == c.bytes, || {
                format!("direct and cached bytes are not all bytes:\n{report}")
            })?;
            demand(!at_file || c.requests > 0 && c.max_outstanding > 0, || format!("no requests:\n{report}"))?;
            demand(c.bounced_bytes <= c.bytes && (c.bounces == 0) == (c.bounced_bytes == 0), || {
                format!("bounces do not add up:\n{report}")
            })?;
        }
        Ok(())
    }

    fn out_of_range(&mut self) -> Checked {
        let (source, target) = self.lens();
        let far = u64::MAX - 1;
        let wrong = [ErrorKind::OutOfRange, ErrorKind::InvalidInput];
        if self.facts.0.reach == Reach::Memory {
            for at in [source - 1, source, source + 1, far] {
                self.refused(Span { source: at, target: 0, len: 2 }, &wrong[..1])?;
            }
            self.refused(Span { source: 0, target: 0, len: source + 1 }, &wrong[..1])?;
        }
        if self.facts.1.reach == Reach::Memory {
            for at in [target - 1, target, target + 1, far] {
                self.refused(Span { source: 0, target: at, len: 2 }, &wrong[..1])?;
            }
            self.refused(Span { source: 0, target: 0, len: target + 1 }, &wrong[..1])?;
        }
        self.refused(Span { source: 0, target: far, len: 3 }, &wrong)
    }

    /// Reading on after the last byte names the offset at which there was none.
    fn beyond_the_end(&mut self) -> Checked {
        if self.facts.0.reach != Reach::File {
            return Ok(());
        }
        let (end, _) = self.lens();
        for (have, len) in [(0, 1), (100, 200), (4096, 8192), (5000, 9000)] {
            let span = Span { source: end - have, target: 300, len };
            let Err(e) = self.pipe.transfer(span) else { return Err(format!("{span:?} went beyond {end}")) };
            demand(e.kind() == ErrorKind::EndOfFile && e.offset() == Some(end) && e.bytes_done() <= have, || {
                format!("{span:?} with {have} bytes to the end at {end}: {:?} {e}", e.kind())
            })?;
            // What the error says was done is there; nothing is promised of the rest of the span.
            let done = e.bytes_done() as usize;
            let bytes = self.places.1.bytes().map_err(text)?;
            let at = |twin: &[u8], at: u64| twin[at as usize..at as usize + done].to_vec();
            demand(at(&bytes, 300) == at(&self.twins.0, span.source), || format!("{span:?}: not the bytes done"))?;
            let rest = 300..300 + len as usize;
            self.twins.1[rest.clone()].copy_from_slice(&bytes[rest]);
            self.compare(&("the end in", span))?;
        }
        Ok(())
    }

    /// A place without a length grows by exactly what is written, whatever its granularity.
    fn grows(&mut self) -> Checked {
        let (_, target) = self.lens();
        if self.facts.1.len.is_some() {
            return Ok(());
        }
        for (gap, len) in [(0, 1000), (13, 9001)] {
            let at = self.lens().1 + gap;
            self.twins.1.resize((at + len) as usize, 0);
            self.transfer(Span { source: 7, target: at, len })?;
        }
        demand(self.lens().1 > target, || "it did not grow".into())
    }

    /// A transfer whose handle is gone has its bytes until it is done; the pipe waits for it.
    fn dropped(mut self) -> Checked {
        let span = Span { source: 11, target: 12, len: self.lens().0.min(self.lens().1) - 4096 };
        drop(self.pipe.start(span).map_err(text)?);
        self.move_twin(span);
        if let Some(memory) = self.places.1.endpoint().memory() {
            match memory.to_vec() {
                Ok(bytes) => demand(bytes == self.twins.1, || "the bytes are free before they are there".into())?,
                Err(e) => demand(e.kind() == ErrorKind::Busy, || text(e))?,
            }
        }
        if let Some(memory) = self.places.0.endpoint().memory()
            && let Err(e) = memory.raw_lease(Access::Write)
        {
            demand(e.kind() == ErrorKind::Busy, || text(e))?;
        }
        let Case { places, twins, pipe, .. } = self;
        drop(pipe);
        demand(places.1.bytes().map_err(text)? == twins.1, || "the pipe went before its transfer was done".into())?;
        // Nothing is leased any more.
        for place in [places.0, places.1] {
            if let Some(memory) = place.endpoint().memory() {
                drop(memory.raw_lease(Access::Write).map_err(text)?);
            }
        }
        Ok(())
    }
}

/// Places that share their bytes: what is in place stays, is counted, and is refused while somebody
/// writes it. `offset` gives the two offsets of a byte that both have.
pub(super) fn certify_in_place(
    machine: &Machine,
    (source, target): (&TestPlace, &TestPlace),
    constraints: &Constraints,
    offset: &dyn Fn(u64) -> (u64, u64),
    seed: u64,
) -> Checked {
    let mut random = Random::new(seed);
    let mut twin = source.bytes().map_err(text)?;
    twin.iter_mut().for_each(|b| *b = (random.next() >> 56) as u8);
    source.fill(&twin).map_err(text)?;
    let pipe = machine.connect_with(source.locator(), target.locator(), constraints).map_err(text)?;
    let at = |inside: u64, len: u64| {
        let (source, target) = offset(inside);
        Span { source, target, len }
    };
    let mut moved = 0;
    for (inside, len) in [(0, 0), (0, 1), (63, 2), (0, 65536), (4095, 4098), (1, 70_000)] {
        pipe.transfer(at(inside, len)).map_err(text)?;
        moved += len;
        demand(source.bytes().map_err(text)? == twin, || format!("bytes changed by {:?}", at(inside, len)))?;
    }
    let report = pipe.report();
    demand(report.bytes() == moved, || format!("{moved} bytes were placed, and\n{report}"))?;
    let endpoint = source.endpoint();
    let Some(memory) = endpoint.memory() else { return Err("not memory".into()) };
    let writer = memory.range(at(100, 1).source as usize, 1).and_then(|r| r.raw_lease(Access::Write)).map_err(text)?;
    let held = pipe.transfer(at(0, 4096));
    demand(held.as_ref().is_err_and(|e| e.kind() == ErrorKind::Busy), || format!("busy, and it says {held:?}"))?;
    drop(writer);
    let beyond = pipe.transfer(Span { source: 0, target: 0, len: u64::MAX / 2 });
    demand(beyond.as_ref().is_err_and(|e| e.kind() == ErrorKind::OutOfRange), || format!("beyond: {beyond:?}"))
}
