//! Every interleaving of a few readers and a writer, with the versions and pending reads of the
//! real code.
//!
//! Each actor is a list of steps. A step is what a thread does between two moments at which another
//! thread may affect it. The search runs all orders of all steps, each from the beginning, and
//! stops at a state from which it has gone on before. The file has two stripes, each with one
//! number. The device reads and writes one stripe after the other.
//!
//! ```text
//! reader: stamp of its range | is it quiet?  claim its extent
//!         | mine: read a stripe, read the other | land; unchanged?  return the bytes
//!         | another's: wait for it              | unchanged?  return the bytes
//! writer: begin | a stripe, the other | end
//! ```

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::ops::Range;
use std::rc::Rc;

use crate::coherence::writes::{STRIPE, Stamp, Writes};
use crate::device::engine::Extent;
use crate::miss::info::{Claim, InfoArea, Own, PendingRead};
use crate::sync::Arc;

/// The offset of a granule before the border of the two stripes.
const BEFORE: u64 = STRIPE - 512;

/// The part that an actor reads or writes: the granule before the border, the one behind it, or
/// both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    First,
    Second,
    Both,
}

impl Part {
    fn range(self) -> Range<u64> {
        match self {
            Part::First => BEFORE..STRIPE,
            Part::Second => STRIPE..STRIPE + 512,
            Part::Both => BEFORE..STRIPE + 512,
        }
    }

    fn extent(self) -> Extent {
        let range = self.range();
        Extent { offset: range.start, len: (range.end - range.start) as u32 }
    }

    fn stripes(self) -> &'static [usize] {
        match self {
            Part::First => &[0],
            Part::Second => &[1],
            Part::Both => &[0, 1],
        }
    }
}

/// How pending reads are found: by the real code, or by a wrong rule that the search must detect.
trait Area {
    type Mine;
    type Others;

    fn claim(&self, part: Part, writes: &Writes) -> Result<Self::Mine, Self::Others>;
    fn land(&self, mine: Self::Mine, numbers: &[u8]);
    /// The numbers that it brought, if it has landed.
    fn landed(&self, pending: &Self::Others) -> Option<Vec<u8>>;
    /// Whether `others` is the pending read `mine`.
    fn is_of(&self, others: &Self::Others, mine: &Self::Mine) -> bool;
}

impl<'a> Area for &'a InfoArea {
    type Mine = Own<'a>;
    type Others = Arc<PendingRead>;

    fn claim(&self, part: Part, writes: &Writes) -> Result<Own<'a>, Arc<PendingRead>> {
        match InfoArea::claim(self, part.extent(), writes) {
            Claim::Mine(own) => Ok(own),
            Claim::Others(pending) => Err(pending),
        }
    }

    fn land(&self, mine: Own<'a>, numbers: &[u8]) {
        mine.finish(Ok(numbers));
    }

    fn landed(&self, pending: &Arc<PendingRead>) -> Option<Vec<u8>> {
        pending.is_over().then(|| pending.wait().map(|bytes| bytes.to_vec()).unwrap_or_default())
    }

    fn is_of(&self, others: &Arc<PendingRead>, mine: &Own<'a>) -> bool {
        mine.is_of(others)
    }
}

/// At most one pending read, which is joined by any reader with the same sum of versions, over any
/// stripes.
#[derive(Default)]
struct BySums(RefCell<Option<(Part, u64, Brought)>>);

/// The numbers that a pending read brought, once it has landed.
type Brought = Rc<RefCell<Option<Vec<u8>>>>;

impl Area for &BySums {
    type Mine = Brought;
    type Others = Brought;

    fn claim(&self, part: Part, writes: &Writes) -> Result<Self::Mine, Self::Others> {
        let sum = |part: Part| writes.stamp(&part.range()).sum();
        let mut pending = self.0.borrow_mut();
        if let Some((of, then, brought)) = &*pending
            && of.range().start == part.range().start
            && of.range().end >= part.range().end
            && *then == sum(part)
        {
            return Err(brought.clone());
        }
        let mine = Brought::default();
        *pending = (!writes.is_changing(&part.range())).then(|| (part, sum(part), mine.clone()));
        Ok(mine)
    }

    fn land(&self, mine: Self::Mine, numbers: &[u8]) {
        *mine.borrow_mut() = Some(numbers.to_vec());
        self.0.borrow_mut().take_if(|(_, _, pending)| Rc::ptr_eq(pending, &mine));
    }

    fn landed(&self, pending: &Self::Others) -> Option<Vec<u8>> {
        pending.borrow().clone()
    }

    fn is_of(&self, others: &Self::Others, mine: &Self::Mine) -> bool {
        Rc::ptr_eq(others, mine)
    }
}

/// The state that all actors share.
struct World<'w> {
    writes: &'w Writes,
    content: [Cell<u8>; 2],
    claims: Cell<u32>,
    /// The last claim that became a pending read, by the stripe in which it begins. Earlier ones
    /// are not found any more.
    last: [Cell<u32>; 2],
}

impl World<'_> {
    /// The versions, and which parts are changing.
    fn versions(&self) -> String {
        let of = |part: Part| (self.writes.stamp(&part.range()).sum(), self.writes.is_changing(&part.range()));
        format!("{:?}", [Part::First, Part::Second].map(of))
    }
}

/// A pending read that this reader owns: the number of its claim, and the versions then.
struct Claimed<M> {
    mine: M,
    number: u32,
    versions: String,
}

enum At<A: Area> {
    Begin,
    Stamped(Stamp),
    Reading(Stamp, Vec<u8>, Claimed<A::Mine>),
    Waiting(Stamp, A::Others),
    Done,
}

struct Reader<A: Area> {
    part: Part,
    at: At<A>,
}

impl<A: Area> Reader<A> {
    fn is_enabled(&self, world: &World<'_>, area: &A) -> bool {
        match &self.at {
            At::Begin | At::Reading(..) => true,
            At::Stamped(_) => !world.writes.is_changing(&self.part.range()),
            At::Waiting(_, pending) => area.landed(pending).is_some(),
            At::Done => false,
        }
    }

    /// Runs one step. The error describes bytes that must not have been returned.
    fn step(&mut self, world: &World<'_>, area: &A) -> Result<(), String> {
        self.at = match std::mem::replace(&mut self.at, At::Done) {
            At::Begin => At::Stamped(world.writes.stamp(&self.part.range())),
            At::Stamped(stamp) => match area.claim(self.part, world.writes) {
                Ok(mine) => {
                    let number = world.claims.get() + 1;
                    world.claims.set(number);
                    world.last[self.part.stripes()[0]].set(number);
                    At::Reading(stamp, Vec::new(), Claimed { mine, number, versions: world.versions() })
                }
                Err(pending) => At::Waiting(stamp, pending),
            },
            At::Reading(stamp, mut numbers, mine) => match self.part.stripes().get(numbers.len()) {
                Some(&stripe) => {
                    numbers.push(world.content[stripe].get());
                    At::Reading(stamp, numbers, mine)
                }
                None => {
                    area.land(mine.mine, &numbers);
                    self.give_out(world, stamp, &numbers)?
                }
            },
            At::Waiting(stamp, pending) => {
                let numbers = area.landed(&pending).unwrap_or_default();
                self.give_out(world, stamp, &numbers)?
            }
            At::Done => At::Done,
        };
        Ok(())
    }

    fn give_out(&self, world: &World<'_>, stamp: Stamp, numbers: &[u8]) -> Result<At<A>, String> {
        if !world.writes.unchanged(&self.part.range(), stamp) {
            return Ok(At::Begin);
        }
        for (&stripe, &number) in self.part.stripes().iter().zip(numbers) {
            // No byte was changing after the stamp, and no change began since. So the number must
            // be the one that the file has had all the time.
            let has = world.content[stripe].get();
            if number != has {
                return Err(format!("{:?}: {number} of stripe {stripe}, which has {has}", self.part));
            }
        }
        Ok(At::Done)
    }
}

/// A writer of its parts one after the other, each with the next number.
struct Writer<'s> {
    parts: &'s [Part],
    number: u8,
    /// The steps of the present write that are done.
    done: usize,
}

impl Writer<'_> {
    fn step(&mut self, world: &World<'_>) {
        let Some(part) = self.parts.first() else { return };
        let stripes = part.stripes();
        match self.done {
            0 => _ = world.writes.begin(&part.range()),
            nth if nth <= stripes.len() => world.content[stripes[nth - 1]].set(self.number),
            _ => {
                world.writes.end(&part.range());
                (self.parts, self.number, self.done) = (&self.parts[1..], self.number + 1, 0);
                return;
            }
        }
        self.done += 1;
    }
}

/// The choices of one order: at each step, the chosen actor and the number of enabled ones.
#[derive(Default)]
struct Order(Vec<(usize, usize)>);

impl Order {
    /// Moves to the next order. Returns false after the last one.
    fn advance(&mut self) -> bool {
        while let Some((chosen, of)) = self.0.pop() {
            if chosen + 1 < of {
                self.0.push((chosen + 1, of));
                return true;
            }
        }
        false
    }
}

struct Case<'s> {
    /// The changes of each stripe before the actors begin.
    before: [usize; 2],
    readers: &'s [Part],
    writer: &'s [Part],
}

/// Everything that determines the next steps. Pending reads that landed and were not joined are
/// left out.
fn state<A: Area>(world: &World<'_>, area: &A, readers: &[Reader<A>], writer: &Writer<'_>) -> String {
    let is_found = |part: Part, number: u32| world.last[part.stripes()[0]].get() == number;
    let owner = |pending: &A::Others| {
        readers.iter().position(|r| matches!(&r.at, At::Reading(_, _, c) if area.is_of(pending, &c.mine)))
    };
    let of = |r: &Reader<A>| match &r.at {
        At::Begin => "begin".to_owned(),
        At::Stamped(stamp) => format!("stamped {stamp:?}"),
        At::Reading(stamp, numbers, c) => {
            format!("{stamp:?} {numbers:?} {} {}", is_found(r.part, c.number), c.versions)
        }
        At::Waiting(stamp, pending) => format!("{stamp:?} for {:?} {:?}", area.landed(pending), owner(pending)),
        At::Done => "done".to_owned(),
    };
    let readers: Vec<String> = readers.iter().map(of).collect();
    format!("{} {:?} {} {} {readers:?}", world.versions(), world.content, writer.parts.len(), writer.done)
}

/// Runs one order. Extends it where it ends before the actors do and the state is new.
fn run<A: Area>(
    case: &Case<'_>,
    writes: &Writes,
    area: A,
    order: &mut Order,
    seen: &mut HashSet<String>,
) -> Result<(), String> {
    let given = order.0.len();
    let world = World { writes, content: Default::default(), claims: Cell::new(0), last: Default::default() };
    for (part, &times) in [Part::First, Part::Second].into_iter().zip(&case.before) {
        for _ in 0..times {
            writes.begin(&part.range());
            writes.end(&part.range());
        }
    }
    let mut readers: Vec<Reader<A>> = case.readers.iter().map(|&part| Reader { part, at: At::Begin }).collect();
    let mut writer = Writer { parts: case.writer, number: 1, done: 0 };
    for step in 0.. {
        let mut enabled: Vec<usize> = (0..readers.len()).filter(|&r| readers[r].is_enabled(&world, &area)).collect();
        if !writer.parts.is_empty() {
            enabled.push(readers.len());
        }
        if enabled.is_empty() {
            break;
        }
        if step >= given {
            if !seen.insert(state(&world, &area, &readers, &writer)) {
                return Ok(());
            }
            order.0.push((0, enabled.len()));
        }
        match enabled[order.0[step].0] {
            reader if reader < readers.len() => readers[reader].step(&world, &area)?,
            _ => writer.step(&world),
        }
    }
    match readers.iter().all(|r| matches!(r.at, At::Done)) {
        true => Ok(()),
        false => Err("a reader waits for ever".into()),
    }
}

/// Visits all states of a case. Returns their number, or the first order that fails.
fn search(
    case: &Case<'_>,
    run: impl Fn(&mut Order, &mut HashSet<String>) -> Result<(), String>,
) -> Result<usize, String> {
    let (mut order, mut seen) = (Order::default(), HashSet::new());
    loop {
        run(&mut order, &mut seen).map_err(|why| {
            let choices: Vec<usize> = order.0.iter().map(|(chosen, _)| *chosen).collect();
            format!(
                "{why}; {:?} before, {:?} read, {:?} written, order {choices:?}",
                case.before, case.readers, case.writer
            )
        })?;
        if !order.advance() {
            return Ok(seen.len());
        }
    }
}

fn as_it_is(case: &Case<'_>) -> Result<usize, String> {
    search(case, |order, seen| run(case, &Writes::default(), &InfoArea::default(), order, seen))
}

fn by_sums(case: &Case<'_>) -> Result<usize, String> {
    search(case, |order, seen| run(case, &Writes::default(), &BySums::default(), order, seen))
}

const BEFORES: [[usize; 2]; 5] = [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2]];
const PAIRS: [[Part; 2]; 4] =
    [[Part::Both, Part::First], [Part::Both, Part::Both], [Part::Both, Part::Second], [Part::First, Part::First]];

#[test]
fn no_order_returns_bytes_older_than_a_returned_write() {
    let mut states = 0;
    for readers in &PAIRS {
        for before in BEFORES {
            for writer in [[Part::First], [Part::Second], [Part::Both]] {
                states += as_it_is(&Case { before, readers, writer: &writer }).unwrap();
            }
        }
    }
    // The first of two writes may end before any reader begins.
    for before in [[0, 1], [1, 0]] {
        let writer = [Part::Second, Part::First];
        states += as_it_is(&Case { before, readers: &[Part::Both, Part::First], writer: &writer }).unwrap();
    }
    println!("{states} states");
    assert!(states > 10_000, "the search ended early: {states} states");
}

#[test]
fn the_search_finds_what_sums_over_different_stripes_let_through() {
    let found: Vec<String> = BEFORES
        .iter()
        .filter_map(|&before| {
            by_sums(&Case { before, readers: &[Part::Both, Part::First], writer: &[Part::First] }).err()
        })
        .collect();
    assert!(found.iter().any(|why| why.contains("First: 0 of stripe 0, which has 1")), "{found:?}");
}
