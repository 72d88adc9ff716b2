//! The loop over pairs and ways, and what comes out of it.

use std::fmt;

use datapipes_core::{Constraints, ErrorKind, Machine};

use super::certify::{certify, certify_in_place};
use super::place::{LEN, PlaceKind, TestPlace};
use super::ways::{TestedRoute, ways};

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CaseVerdict {
    /// Every demand was met.
    Passed,
    /// A demand was not met.
    Failed(String),
    /// Something that it needs is missing here, and what.
    Skipped(String),
    /// There is nothing to demand of it, and why.
    NotApplicable(String),
}

/// One case: a way between two kinds of places.
#[derive(Clone, Debug)]
pub struct CaseOutcome {
    /// The kind of the source.
    pub source: String,
    /// The kind of the target.
    pub target: String,
    /// The primitives, one for each hop; none where no place could be made.
    pub way: Vec<&'static str>,
    /// The verdict.
    pub verdict: CaseVerdict,
}

impl fmt::Display for CaseOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = format!("{} -> {} by {}", self.source, self.target, self.way.join(" then "));
        match &self.verdict {
            CaseVerdict::Passed => write!(f, "passed: {name}"),
            CaseVerdict::Failed(why) => write!(f, "FAILED: {name}: {why}"),
            CaseVerdict::Skipped(why) => write!(f, "SKIPPED: {name}: {why}"),
            CaseVerdict::NotApplicable(why) => write!(f, "NOT APPLICABLE: {name}: {why}"),
        }
    }
}

/// Certifies every way between every ordered pair of kinds, and places that share their bytes.
/// Every pair is in the outcomes, whatever happened.
pub fn run(machine: &Machine, kinds: &[PlaceKind], seed: u64) -> Vec<CaseOutcome> {
    let mut outcomes = Vec::new();
    for source in kinds {
        for target in kinds {
            let fresh = || Ok((source.make()?, target.make()?));
            if target.read_only {
                outcomes.push(refused(machine, (&source.name, &target.name), &fresh));
                continue;
            }
            pair(machine, (&source.name, &target.name), &fresh, seed, &mut outcomes);
        }
    }
    in_place(machine, seed, &mut outcomes);
    outcomes
}

/// Into a place that is only read.
fn refused(machine: &Machine, names: (&str, &str), fresh: Fresh<'_>) -> CaseOutcome {
    let verdict = match fresh() {
        Err(why) => CaseVerdict::Skipped(why),
        Ok((source, target)) => match machine.connect(source.locator(), target.locator()) {
            Err(e) if e.kind() == ErrorKind::Unsupported => {
                CaseVerdict::NotApplicable("it is read, and never written".into())
            }
            Err(e) => CaseVerdict::Failed(format!("refused as {:?}: {e}", e.kind())),
            Ok(pipe) => CaseVerdict::Failed(format!("it is only read, yet connected: {pipe:?}")),
        },
    };
    CaseOutcome { source: names.0.to_owned(), target: names.1.to_owned(), way: Vec::new(), verdict }
}

type Fresh<'a> = &'a dyn Fn() -> Result<(TestPlace, TestPlace), String>;

fn pair(machine: &Machine, names: (&str, &str), fresh: Fresh<'_>, seed: u64, outcomes: &mut Vec<CaseOutcome>) {
    let outcome = |way: &[&'static str], verdict| CaseOutcome {
        source: names.0.to_owned(),
        target: names.1.to_owned(),
        way: way.to_vec(),
        verdict,
    };
    let (source, target) = match fresh() {
        Ok(places) => places,
        Err(why) => return outcomes.push(outcome(&[], CaseVerdict::Skipped(why))),
    };
    let ways = match ways(machine, &source.endpoint(), &target.endpoint()) {
        Ok(ways) if ways.is_empty() => {
            return outcomes.push(outcome(&[], CaseVerdict::Failed("no backend has an answer for it".into())));
        }
        Ok(ways) => ways,
        Err(e) => return outcomes.push(outcome(&[], CaseVerdict::Failed(e.to_string()))),
    };
    for way in &ways {
        let verdict = match &way.refused {
            Some(why) => refusal(machine, (&source, &target), &ways, way, why),
            None => served(machine, fresh, way, seed),
        };
        outcomes.push(outcome(&way.hops, verdict));
    }
}

fn only(hops: &[&str]) -> Constraints {
    Constraints::default().only(hops.iter().map(|p| (*p).to_owned()).collect())
}

fn served(machine: &Machine, fresh: Fresh<'_>, way: &TestedRoute, seed: u64) -> CaseVerdict {
    let run = || -> Result<Option<String>, String> {
        let (source, target) = fresh()?;
        let constraints = only(&way.hops);
        let route = machine.explain(source.locator(), target.locator(), &constraints).map_err(|e| e.to_string())?;
        if route.primitives() != way.hops {
            // Both hops may be served by both primitives; then the better one serves both, and is
            // tested as such.
            let known = route.primitives().iter().all(|p| way.hops.contains(p)) && way.hops.len() > 1;
            let taken = format!("the planner takes {} when these two are allowed", route.primitives().join(" then "));
            return if known { Ok(Some(taken)) } else { Err(taken) };
        }
        let seed = seed ^ way.hops.concat().bytes().fold(1u64, |n, b| n.wrapping_mul(31).wrapping_add(u64::from(b)));
        certify(machine, &source, &target, &constraints, seed).map_err(|e| format!("{e} (seed {seed})"))?;
        Ok(None)
    };
    match run() {
        Ok(None) => CaseVerdict::Passed,
        Ok(Some(why)) => CaseVerdict::NotApplicable(why),
        Err(why) => CaseVerdict::Failed(why),
    }
}

/// What no backend can must be refused as unsupported, with a reason for every primitive that was
/// asked.
fn refusal(
    machine: &Machine,
    (source, target): (&TestPlace, &TestPlace),
    ways: &[TestedRoute],
    way: &TestedRoute,
    why: &str,
) -> CaseVerdict {
    match machine.connect_with(source.locator(), target.locator(), &only(&way.hops)) {
        // With two names, one of them may serve both hops.
        Ok(_) if way.hops.len() > 1 => CaseVerdict::NotApplicable(why.to_owned()),
        Ok(pipe) => CaseVerdict::Failed(format!("refused in its offer ({why}), yet connected: {pipe:?}")),
        Err(e) if e.kind() != ErrorKind::Unsupported => CaseVerdict::Failed(format!("refused as {:?}: {e}", e.kind())),
        Err(e) => {
            let silent = ways.iter().filter(|w| w.hops.len() == 1).map(|w| w.hops[0]);
            match silent.into_iter().find(|name| !e.to_string().contains(&format!("{name}: "))) {
                Some(name) => CaseVerdict::Failed(format!("the refusal gives no reason for {name}: {e}")),
                None => CaseVerdict::NotApplicable(why.to_owned()),
            }
        }
    }
}

/// A cache over a part of a memory, both ways: the bytes stay, the demands are others.
fn in_place(machine: &Machine, seed: u64, outcomes: &mut Vec<CaseOutcome>) {
    use datapipes_core::{CoreCache, Dram, Locator};
    let Some(core) = machine.topology().usable_cores().next() else {
        let verdict = CaseVerdict::Skipped("no usable core was discovered".into());
        outcomes.push(CaseOutcome { source: "dram".into(), target: "cache over it".into(), way: Vec::new(), verdict });
        return;
    };
    const AT: usize = 8192;
    for up in [true, false] {
        let names = if up { ("dram", "cache over it") } else { ("cache", "dram under it") };
        let make = || -> Result<(TestPlace, TestPlace), String> {
            let dram = Dram::allocate(LEN + 2 * AT).map_err(|e| e.to_string())?;
            let part = dram.range(AT, LEN).map_err(|e| e.to_string())?;
            let cache = CoreCache::over(core, &part).map_err(|e| e.to_string())?;
            Ok(if up {
                (TestPlace::new(dram), TestPlace::new(cache))
            } else {
                (TestPlace::new(cache), TestPlace::new(dram))
            })
        };
        let mut push = |way: &[&'static str], verdict| {
            let (source, target) = (names.0.to_owned(), names.1.to_owned());
            outcomes.push(CaseOutcome { source, target, way: way.to_vec(), verdict });
        };
        let found = make().and_then(|(source, target)| {
            let (source, target): (&dyn Locator, &dyn Locator) = (source.locator(), target.locator());
            ways(machine, &source.endpoint(), &target.endpoint()).map_err(|e| e.to_string())
        });
        let found = match found {
            Ok(found) if found.is_empty() => {
                push(&[], CaseVerdict::Failed("no backend has an answer for it".into()));
                continue;
            }
            Ok(found) => found,
            Err(why) => {
                push(&[], CaseVerdict::Skipped(why));
                continue;
            }
        };
        for way in &found {
            let offset = |inside: u64| if up { (AT as u64 + inside, inside) } else { (inside, AT as u64 + inside) };
            let verdict = match (make(), &way.refused) {
                (Err(why), _) => CaseVerdict::Failed(why),
                (Ok((source, target)), Some(why)) => refusal(machine, (&source, &target), &found, way, why),
                (Ok((source, target)), None) => {
                    match certify_in_place(machine, (&source, &target), &only(&way.hops), &offset, seed) {
                        Ok(()) => CaseVerdict::Passed,
                        Err(why) => CaseVerdict::Failed(why),
                    }
                }
            };
            push(&way.hops, verdict);
        }
    }
}
