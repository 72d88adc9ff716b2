//! Facts about long records, remembered while a record is compared again and again.
//!
//! The end of a line and the position of its key are found by reading it. For a short line that
//! costs as much as a lookup. A line of a megabyte that is compared with a million others would be
//! read a million times. So each thread keeps some facts about long lines, by the line's address.
//!
//! A fact holds as long as the bytes stay in place, so facts are kept only within a [`Scope`].
//! Sorting a slot is a scope, in which no byte moves. In a merge the bytes change: there each long
//! record is forgotten when it arrives.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;

/// Records shorter than this are read again each time.
pub(crate) const LONG: usize = 1024;
/// The number of facts that a thread keeps at once, a power of two.
const FACTS: usize = 64;

/// A question about some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    /// The address of the record.
    pub(crate) address: usize,
    /// The record's length, as far as it is known.
    pub(crate) len: usize,
    /// Tells questions about the same record apart.
    pub(crate) about: usize,
}

#[derive(Clone, Copy)]
struct Fact {
    question: Question,
    answer: (usize, usize),
}

const NOTHING: Fact = Fact { question: Question { address: 0, len: 0, about: 0 }, answer: (0, 0) };

thread_local! {
    /// `None` outside of all scopes; empty until a long record appears.
    ///
    /// Without a destructor, so that a handler of `atexit` can sort. The last scope empties it.
    static KNOWN: ManuallyDrop<RefCell<Option<Vec<Fact>>>> = const { ManuallyDrop::new(RefCell::new(None)) };
}

/// This thread remembers facts while the scope lives.
pub(crate) struct Scope {
    before: Option<Vec<Fact>>,
    /// A scope belongs to one thread.
    _not_send: PhantomData<*const ()>,
}

impl Scope {
    pub(crate) fn enter() -> Scope {
        Scope { before: KNOWN.with(|known| known.replace(Some(Vec::new()))), _not_send: PhantomData }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        drop(KNOWN.with(|known| known.replace(self.before.take())));
    }
}

fn slot(address: usize, about: usize) -> usize {
    // Lines lie close to each other: the upper bits of a product depend on all of them.
    let mixed = ((address ^ about.rotate_left(32)) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as usize % FACTS
}

/// Returns the remembered answer, or finds it now.
pub(crate) fn recall(question: Question, find: impl FnOnce() -> (usize, usize)) -> (usize, usize) {
    let at = slot(question.address, question.about);
    let known = KNOWN.with(|known| {
        let known = known.borrow();
        let fact = known.as_ref()?.get(at)?;
        (fact.question == question).then_some(fact.answer)
    });
    if let Some(answer) = known {
        return answer;
    }
    let answer = find();
    KNOWN.with(|known| {
        let mut known = known.borrow_mut();
        let Some(known) = &mut *known else { return };
        if known.is_empty() {
            known.resize(FACTS, NOTHING);
        }
        known[at] = Fact { question, answer };
    });
    answer
}

/// Forgets the facts about this address, if the record that is there now is long.
#[inline]
pub(crate) fn forget_long(record: &[u8]) {
    if record.len() >= LONG {
        forget(record);
    }
}

#[cold]
fn forget(record: &[u8]) {
    let address = record.as_ptr().addr();
    KNOWN.with(|known| {
        let mut known = known.borrow_mut();
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
