//! A loser tree: a tournament of sorted sources, which is replayed along one path for each record.
//!
//! What is compared in a match is a number for each source, its key. A [`Contest`] gives the keys,
//! and decides between equal ones.

use datapipes_core::Result;

/// Sources that compete to have the next record.
pub(crate) trait Contest {
    /// The number of sources.
    fn count(&self) -> usize;

    /// Goes to the next record of a source, and returns its key. The source whose key is smaller
    /// comes first.
    fn advance(&mut self, source: usize) -> Result<u64>;

    /// Whether the source of an entrant has no more records. Its key is then the largest of all.
    fn is_done(&self, entrant: Entrant) -> bool;

    /// Decides between two entrants with equal keys.
    fn settle(&mut self, a: Entrant, b: Entrant) -> Match;
}

/// A source, and the key of its record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entrant {
    pub(crate) key: u64,
    pub(crate) source: usize,
}

/// The outcome of a match.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Match {
    pub(crate) winner: Entrant,
    /// The loser, whose key may have changed.
    pub(crate) loser: Entrant,
}

/// A tournament of sources: each inner node keeps the loser of its match; the winner is kept beside
/// the tree.
pub(crate) struct LoserTree {
    winner: Entrant,
    /// The match of nodes 2n and 2n+1 is at n. Source s enters at node s + count. Node 0 is not
    /// used.
    losers: Vec<Entrant>,
}

impl LoserTree {
    /// Plays all matches from the leaves up.
    pub(crate) fn new(contest: &mut impl Contest) -> Result<LoserTree> {
        let count = contest.count();
        let nobody = Entrant { key: u64::MAX, source: 0 };
        let mut losers = vec![nobody; count];
        let mut winners = vec![nobody; 2 * count];
        for source in 0..count {
            winners[count + source] = Entrant { key: contest.advance(source)?, source };
        }
        for node in (1..count).rev() {
            let Match { winner, loser } = play(contest, winners[2 * node], winners[2 * node + 1]);
            (winners[node], losers[node]) = (winner, loser);
        }
        Ok(LoserTree { winner: winners.get(1).copied().unwrap_or(nobody), losers })
    }

    /// Returns the source of the next record, and that record's key.
    #[inline]
    pub(crate) fn winner(&self, contest: &impl Contest) -> Option<Entrant> {
        (!self.losers.is_empty() && !contest.is_done(self.winner)).then_some(self.winner)
    }

    /// Replaces the winner's record by the next one of its source, and plays its matches again.
    #[inline]
    pub(crate) fn advance(&mut self, contest: &mut impl Contest) -> Result<()> {
        let source = self.winner.source;
        let mut winner = Entrant { key: contest.advance(source)?, source };
        let mut node = (source + self.losers.len()) / 2;
        while node > 0 {
            let played = play(contest, self.losers[node], winner);
            self.losers[node] = played.loser;
            winner = played.winner;
            node /= 2;
        }
        self.winner = winner;
        Ok(())
    }
}

/// Plays one match. Which of two keys is smaller cannot be predicted, so the result is selected
/// without a branch.
#[inline]
fn play(contest: &mut impl Contest, a: Entrant, b: Entrant) -> Match {
    if a.key == b.key {
        return contest.settle(a, b);
    }
    let a_wins = a.key < b.key;
    Match { winner: select(a_wins, a, b), loser: select(a_wins, b, a) }
}

/// Returns `yes` or `no` without a branch.
#[inline]
fn select(which: bool, yes: Entrant, no: Entrant) -> Entrant {
    Entrant {
        key: std::hint::select_unpredictable(which, yes.key, no.key),
        source: std::hint::select_unpredictable(which, yes.source, no.source),
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use proptest::prelude::*;

    use super::*;
    use crate::records::offset_value::{Coding, EXHAUSTED};

    /// Sorted lines in memory, matched by codes.
    struct Coded {
        coding: Coding,
        runs: Vec<Vec<Vec<u8>>>,
        /// The number of lines that each run has handed out.
        taken: Vec<usize>,
    }

    impl Coded {
        fn line(&self, source: usize) -> &[u8] {
            &self.runs[source][self.taken[source] - 1]
        }
    }

    impl Contest for Coded {
        fn count(&self) -> usize {
            self.runs.len()
        }

        fn advance(&mut self, source: usize) -> Result<u64> {
            let (run, taken) = (&self.runs[source], &mut self.taken[source]);
            *taken += 1;
            Ok(match (run.get(*taken - 1), taken.checked_sub(2)) {
                (None, _) => EXHAUSTED,
                (Some(line), None) => self.coding.first(line),
                (Some(line), Some(base)) => self.coding.beside(&run[base], line),
            })
        }

        fn is_done(&self, entrant: Entrant) -> bool {
            entrant.key == EXHAUSTED
        }

        fn settle(&mut self, a: Entrant, b: Entrant) -> Match {
            let (order, later) = match a.key {
                EXHAUSTED => (Ordering::Equal, EXHAUSTED),
                code => {
                    let settled = self.coding.settle(code, self.line(a.source), self.line(b.source));
                    (settled.order, settled.later)
                }
            };
            let (winner, loser) = if order.then(a.source.cmp(&b.source)).is_lt() { (a, b) } else { (b, a) };
            Match { winner, loser: Entrant { key: later, ..loser } }
        }
    }

    /// Lines of few letters with shared beginnings, whose ends lie near multiples of six and eight.
    fn line() -> impl Strategy<Value = Vec<u8>> {
        let tail = proptest::collection::vec(prop_oneof![Just(0u8), Just(b'a'), Just(b'b')], 0..8);
        (prop_oneof![Just(0usize), 0usize..20], tail)
            .prop_map(|(common, tail)| [&vec![b'a'; common][..], &tail].concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn codes_merge_as_a_stable_sort_does(
            mut runs in proptest::collection::vec(proptest::collection::vec(line(), 0..12), 0..9),
            reverse in any::<bool>(),
        ) {
            for run in &mut runs {
                run.sort();
                if reverse {
                    run.reverse();
                }
            }
            let mut expected: Vec<(&[u8], usize)> =
                runs.iter().enumerate().flat_map(|(s, run)| run.iter().map(move |line| (&line[..], s))).collect();
            expected.sort_by(|(a, s), (b, t)| if reverse { b.cmp(a) } else { a.cmp(b) }.then(s.cmp(t)));
            let coding = Coding::new(reverse);
            let mut contest = Coded { coding, runs: runs.clone(), taken: vec![0; runs.len()] };
            let mut merged: Vec<(Vec<u8>, usize)> = Vec::new();
            let mut tree = LoserTree::new(&mut contest).unwrap_or_else(|e| panic!("{e}"));
            while let Some(winner) = tree.winner(&contest) {
                let line = contest.line(winner.source);
                let repeats = merged.last().is_some_and(|(last, _)| last == line);
                prop_assert_eq!(coding.equals_base(winner.key), Some(repeats));
                merged.push((line.to_vec(), winner.source));
                tree.advance(&mut contest).unwrap_or_else(|e| panic!("{e}"));
            }
            let merged: Vec<(&[u8], usize)> = merged.iter().map(|(line, s)| (&line[..], *s)).collect();
            prop_assert_eq!(merged, expected);
        }
    }
}
