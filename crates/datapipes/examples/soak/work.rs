//! The work of one thread, again and again: bytes of a new generation go from its own memory
//! through some places and back into its own memory, in random spans and flavors. All bytes that
//! come back are compared.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use datapipes::runtime::{ConnectOptions, PriorityClass, ServiceLevel};
use datapipes::{ConnectFdOptions, Constraints, Dram, Error, ErrorKind, Locator, Result, Runtime, Span};
use datapipes_core::Machine;
use datapipes_core::locks::Mutex;

use crate::flavors::{AnyPipe, Fate};
use crate::harm;
use crate::places::{Bench, INJECTED, Place, SLOT, STAGING};
use crate::random::{Random, mix};

/// The most spans of one leg.
const SPANS: u64 = 12;
/// The most pipes that a thread keeps open.
const OPEN: usize = 12;
/// How often a span with an injected failure is tried.
const TRIES: usize = 40;

/// A machine, its runtime, and whether its files have injected faults.
pub(crate) struct Side {
    pub(crate) machine: Machine,
    pub(crate) runtime: Runtime,
    pub(crate) is_rough: bool,
}

/// Counters of all threads.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) rounds: AtomicU64,
    pub(crate) started: AtomicU64,
    pub(crate) completed: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    /// Cancelled ones among these, on the machine without faults.
    pub(crate) cancelled_sound: AtomicU64,
    /// Transfers of dropped handles and the like: they were carried out, but their outcome was not
    /// reported.
    pub(crate) unheard: AtomicU64,
    /// Pipes that could not be connected because threads were refused.
    pub(crate) refused: AtomicU64,
    pub(crate) verified_bytes: AtomicU64,
    pub(crate) connects: AtomicU64,
}

impl Counts {
    fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn of(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }
}

type Key = (bool, usize, usize, u8);

/// The open pipes of a thread; they can be taken away from it between two rounds.
pub(crate) type Pipes = Mutex<HashMap<Key, AnyPipe>>;

pub(crate) struct Worker {
    pub(crate) number: u64,
    pub(crate) bench: Bench,
    pub(crate) sides: Arc<[Side; 2]>,
    pub(crate) pipes: Arc<Pipes>,
    pub(crate) counts: Arc<Counts>,
    pub(crate) random: Random,
}

/// The thread's own memory, as numbers of places.
const SOURCE: usize = usize::MAX;
const TARGET: usize = usize::MAX - 1;

impl Worker {
    /// Does one round. An error is something that must not happen.
    pub(crate) fn round(&mut self) -> std::result::Result<(), String> {
        let pipes = self.pipes.clone();
        let mut pipes = pipes.lock();
        let generation = self.random.next();
        // The bytes go through one place or several.
        let mut way = vec![SOURCE];
        for _ in 0..1 + self.random.below(3) {
            let next = self.random.below(self.bench.places.len() as u64) as usize;
            if way.last() != Some(&next) {
                way.push(next);
            }
        }
        way.push(TARGET);
        let most = way.iter().map(|place| self.place(*place).1).min().unwrap_or(SLOT);
        let len = self.random.length(most);
        // The offset of the bytes in each place of the way.
        let at: Vec<u64> = way
            .iter()
            .map(|place| {
                let (first, room) = self.place(*place);
                first + self.random.offset(len, room)
            })
            .collect();
        write_generation(&self.bench.source, at[0], len, generation).map_err(|e| format!("fill: {e}"))?;
        self.bench.target.lease_mut().map_err(|e| format!("a lease was left behind: {e}"))?.fill(!generation as u8);
        for leg in 0..way.len() - 1 {
            let whole = Span { source: at[leg], target: at[leg + 1], len };
            self.leg(&mut pipes, (way[leg], way[leg + 1]), whole)
                .map_err(|e| format!("{} -> {}, {whole:?}: {e}", self.name(way[leg]), self.name(way[leg + 1])))?;
        }
        let names: Vec<_> = way.iter().map(|place| self.name(*place)).collect();
        verify(&self.bench.target, at[at.len() - 1], len, generation).map_err(|e| format!("{names:?}: {e}"))?;
        Counts::add(&self.counts.verified_bytes, len);
        Counts::add(&self.counts.rounds, 1);
        Ok(())
    }

    fn name(&self, place: usize) -> &'static str {
        self.bench.places.get(place).map_or("own memory", |place| place.name)
    }

    /// The offset and the length of this thread's part.
    fn place(&self, place: usize) -> (u64, u64) {
        self.bench.places.get(place).map_or((0, SLOT), |place| (place.at, place.len))
    }

    fn locator(&self, place: usize) -> &dyn Locator {
        match place {
            SOURCE => &self.bench.source,
            TARGET => &self.bench.target,
            _ => &*self.bench.places[place].locator,
        }
    }

    /// Moves a span from one place to the next, in pieces. Pieces that fail or are stopped are
    /// tried again.
    fn leg(
        &mut self,
        pipes: &mut HashMap<Key, AnyPipe>,
        ends: (usize, usize),
        whole: Span,
    ) -> std::result::Result<(), String> {
        let mut pieces = cut(whole, &mut self.random);
        for _ in 0..TRIES {
            // A place of a staging that failed once is not used again: with faults there would soon
            // be no place left.
            let may_fail = self.name(ends.0) != STAGING && self.name(ends.1) != STAGING;
            let key: Key = (self.random.one_in(2) && may_fail, ends.0, ends.1, self.random.below(4) as u8);
            if self.random.one_in(6) || pipes.len() > OPEN {
                let victim = pipes.keys().nth(self.random.below(pipes.len().max(1) as u64) as usize).copied();
                victim.map(|victim| pipes.remove(&victim));
            }
            let pipe = match pipes.entry(key) {
                Entry::Occupied(open) => open.into_mut(),
                Entry::Vacant(none) => {
                    Counts::add(&self.counts.connects, 1);
                    match self.connect(key) {
                        Ok(pipe) => none.insert(pipe),
                        Err(e) if harm::is_refusal(&e) => {
                            Counts::add(&self.counts.refused, 1);
                            std::thread::sleep(std::time::Duration::from_millis(5));
                            continue;
                        }
                        Err(e) => return Err(format!("connect: {e}")),
                    }
                }
            };
            let side = &self.sides[usize::from(key.0)];
            Counts::add(&self.counts.started, pieces.len() as u64);
            let fates = pipe.carry(&side.runtime, &pieces, &mut self.random);
            if fates.len() != pieces.len() {
                return Err(format!("{} of {} completions", fates.len(), pieces.len()));
            }
            // If nothing fails, transfers without a reported outcome have completed. Otherwise they
            // are moved again, whatever their outcome.
            let mut again = Vec::new();
            for (piece, fate) in pieces.into_iter().zip(fates) {
                match fate {
                    Fate::Done(Ok(())) => Counts::add(&self.counts.completed, 1),
                    Fate::Unheard if !side.is_rough => Counts::add(&self.counts.unheard, 1),
                    Fate::Unheard => {
                        Counts::add(&self.counts.unheard, 1);
                        again.push(piece);
                    }
                    Fate::Cancelled => {
                        Counts::add(&self.counts.cancelled, 1);
                        Counts::add(&self.counts.cancelled_sound, u64::from(!side.is_rough));
                        again.push(piece);
                    }
                    Fate::Done(Err(e)) => {
                        let cause = was_injected(&e, side.is_rough) || harm::is_refusal(&e);
                        if !cause {
                            return Err(format!("a failure that nobody asked for, of {piece:?}: {e} ({:?})", e.kind()));
                        }
                        Counts::add(&self.counts.failed, 1);
                        again.push(piece);
                    }
                }
            }
            if again.is_empty() {
                return Ok(());
            }
            pieces = again;
        }
        Err(format!("{} pieces still fail after {TRIES} tries", pieces.len()))
    }

    fn connect(&mut self, key: Key) -> Result<AnyPipe> {
        let (rough, from, to, kind) = key;
        let random = &mut self.random;
        let class = *random.pick(&PriorityClass::ALL);
        let at_most = random.one_in(5).then(|| 20e6 * (1 + random.below(100)) as f64);
        let queue = *random.pick(&[None, Some(1), Some(2), Some(7)]);
        let depth = *random.pick(&[None, Some(1), Some(3)]);
        let constraints = Constraints::default().queue_depth(random.one_in(4).then_some(2));
        let connect = ConnectOptions::default()
            .constraints(constraints)
            .service(ServiceLevel::default().class(class).at_most(at_most))
            .queue(queue);
        let ask = ConnectFdOptions::default().connect(connect.clone()).depth(depth).place(self.number);
        let side = &self.sides[usize::from(rough)];
        let (from, to) = (self.locator(from), self.locator(to));
        Ok(match kind {
            0 => AnyPipe::Blocking(Box::new(side.machine.connect_with(from, to, &connect.constraints)?)),
            1 => AnyPipe::Descriptor(side.runtime.connect_fd_with(from, to, &ask)?),
            2 => AnyPipe::Packets(side.runtime.connect_raw_fd(from, to, &ask)?.0),
            _ => AnyPipe::Runtime(side.runtime.connect_with(from, to, &connect)?),
        })
    }

    /// Checks that every lease on the places of this thread is free.
    pub(crate) fn is_quiet(bench: &Bench) -> std::result::Result<(), String> {
        let places = bench.places.iter().filter_map(|Place { name, memory, .. }| Some((*name, memory.as_ref()?)));
        for (name, memory) in places.chain([("source", &bench.source), ("target", &bench.target)]) {
            memory.lease_mut().map_err(|e| format!("{name}: a lease was left behind: {e}"))?;
        }
        Ok(())
    }
}

fn was_injected(e: &Error, is_rough: bool) -> bool {
    let by_errno = e.errno().is_some_and(|errno| INJECTED.contains(&errno));
    is_rough && by_errno && matches!(e.kind(), ErrorKind::Device | ErrorKind::NoSpace)
}

/// Cuts a span into pieces, in any order.
fn cut(whole: Span, random: &mut Random) -> Vec<Span> {
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < whole.len {
        let left = whole.len - at;
        let last = pieces.len() as u64 + 1 == SPANS;
        let len = if last { left } else { random.length(left).max(whole.len / SPANS).min(left) };
        pieces.push(Span { source: whole.source + at, target: whole.target + at, len });
        at += len;
    }
    for i in (1..pieces.len()).rev() {
        pieces.swap(i, random.below(i as u64 + 1) as usize);
    }
    pieces
}

/// The eight bytes at an offset that is a multiple of eight.
fn word(generation: u64, at: u64) -> u64 {
    mix(generation ^ at)
}

fn write_generation(memory: &Dram, at: u64, len: u64, generation: u64) -> Result<()> {
    let mut lease = memory.range(at as usize, len as usize)?.lease_mut()?;
    for (i, chunk) in lease.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&word(generation, i as u64).to_le_bytes()[..chunk.len()]);
    }
    Ok(())
}

/// Checks that the bytes are of this generation, and that those around them are unchanged.
fn verify(memory: &Dram, at: u64, len: u64, generation: u64) -> std::result::Result<(), String> {
    let lease = memory.lease().map_err(|e| e.to_string())?;
    let (at, len) = (at as usize, len as usize);
    for (i, chunk) in lease[at..at + len].chunks(8).enumerate() {
        let expected = word(generation, i as u64).to_le_bytes();
        if chunk != &expected[..chunk.len()] {
            return Err(format!("other bytes at {} of {len}: {chunk:02x?}, not {expected:02x?}", i * 8));
        }
    }
    let untouched = !generation as u8;
    match lease[..at].iter().chain(&lease[at + len..]).position(|byte| *byte != untouched) {
        Some(_) => Err(format!("bytes beside the {len} at {at} were written")),
        None => Ok(()),
    }
}
