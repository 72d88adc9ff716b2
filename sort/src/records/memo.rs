//! What reading a long record showed, remembered while the record is compared again and again.
//!
//! Where a line ends and where its key lies is found by reading it. For a short line that costs as
//! much as looking it up would; a line of a megabyte that is compared with a million others is read
//! a million times. So the facts of the long ones are kept, a few for each thread, by the address
//! of the line.
//!
//! They hold while the bytes stay where they are, and no longer. So they are kept within a
//! [`Scope`] only: sorting a slot is one, in which no byte moves. In a merge bytes come and go:
//! there each long record that arrives is forgotten first.

use std::cell::RefCell;
use std::marker::PhantomData;

/// Records shorter than this are read again.
pub(crate) const LONG: usize = 1024;
/// Facts that a thread keeps at once, a power of two.
const FACTS: usize = 64;

/// What is asked: of which bytes, and which question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    /// Where the record begins.
    pub(crate) address: usize,
    /// The record's length, as far as it is known.
    pub(crate) len: usize,
    /// Tells one question about a record from another.
    pub(crate) about: usize,
}

#[derive(Clone, Copy)]
struct Fact {
    question: Question,
    answer: (usize, usize),
}

const NOTHING: Fact = Fact { question: Question { address: 0, len: 0, about: 0 }, answer: (0, 0) };

thread_local! {
    /// None outside of every scope; empty until something is long.
    static KNOWN: RefCell<Option<Vec<Fact>>> = const { RefCell::new(None) };
}

/// While it lives, this thread remembers.
pub(crate) struct Scope {
    before: Option<Vec<Fact>>,
    /// It is the thread's.
    _not_send: PhantomData<*const ()>,
}

impl Scope {
    pub(crate) fn enter() -> Scope {
        Scope { before: KNOWN.replace(Some(Vec::new())), _not_send: PhantomData }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        KNOWN.replace(self.before.take());
    }
}

fn slot(address: usize, about: usize) -> usize {
    // Lines lie close to each other: the upper bits of a product depend on all of them.
    let mixed = ((address ^ about.rotate_left(32)) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as usize % FACTS
}

/// The answer, as it was when this was asked before, or found now.
pub(crate) fn recall(question: Question, find: impl FnOnce() -> (usize, usize)) -> (usize, usize) {
    let at = slot(question.address, question.about);
    let known = KNOWN.with_borrow(|known| {
        let fact = known.as_ref()?.get(at)?;
        (fact.question == question).then_some(fact.answer)
    });
    if let Some(answer) = known {
        return answer;
    }
    let answer = find();
    KNOWN.with_borrow_mut(|known| {
        let Some(known) = known else { return };
        if known.is_empty() {
            known.resize(FACTS, NOTHING);
        }
        known[at] = Fact { question, answer };
    });
    answer
}

/// Another record is at this address now, which may be long.
#[inline]
pub(crate) fn forget_long(record: &[u8]) {
    if record.len() >= LONG {
        forget(record);
    }
}

#[cold]
fn forget(record: &[u8]) {
    let address = record.as_ptr().addr();
    KNOWN.with_borrow_mut(|known| {
        let known = known.iter_mut().flatten();
        known.filter(|fact| fact.question.address == address).for_each(|fact| *fact = NOTHING);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_kept_within_a_scope_until_they_are_forgotten() {
        let bytes = [0; 8];
        let question = Question { address: bytes.as_ptr().addr(), len: 8, about: 1 };
        let asked = |answer| recall(question, || answer);
        assert_eq!([asked((1, 1)), asked((2, 2))], [(1, 1), (2, 2)], "outside of a scope");
        {
            let _scope = Scope::enter();
            assert_eq!([asked((3, 3)), asked((4, 4))], [(3, 3); 2]);
            assert_eq!(recall(Question { len: 9, ..question }, || (5, 5)), (5, 5), "another length");
            assert_eq!([asked((6, 6)), asked((7, 7))], [(6, 6); 2]);
            {
                let _inner = Scope::enter();
                assert_eq!(asked((8, 8)), (8, 8), "a scope of its own");
            }
            assert_eq!(asked((9, 9)), (6, 6), "as it was before the inner one");
            forget(&bytes);
            assert_eq!(asked((10, 10)), (10, 10));
        }
        assert_eq!(asked((11, 11)), (11, 11));
    }

    #[test]
    fn many_questions_push_each_other_out_and_are_answered_rightly() {
        let _scope = Scope::enter();
        for round in 0..3 {
            for n in 0..1000 {
                let question = Question { address: n * 4096 + 4096, len: n, about: n % 3 };
                assert_eq!(recall(question, || (n, n + 1)), (n, n + 1), "round {round}");
            }
        }
    }
}
