//! Reads what test programs print and adds it up. It does not run anything.
//!
//! A test that could not run a case prints `SKIPPED: name: why` where something is missing here (a
//! tool, a right, a device), and `NOT APPLICABLE: name: why` where the case says nothing about this
//! machine, whatever is installed. libtest knows nothing of these lines and counts the test as
//! passed. So one whose name is that of a passed test is taken off the passed ones, and any other
//! is one case of a larger test that did run.
//!
//! A test that is ignored as `run by ...` is a process of another test. It does run, with that one.

use std::collections::{BTreeMap, BTreeSet};

const SKIPPED: &str = "SKIPPED: ";
const NOT_APPLICABLE: &str = "NOT APPLICABLE: ";
/// What a test is ignored as that another test runs in a process of its own.
const RUN_BY: &str = "run by ";

#[derive(Default, Debug)]
pub(crate) struct TestOutputParser {
    passed: usize,
    failed: usize,
    programs_started: usize,
    programs_finished: usize,
    passed_names: BTreeSet<String>,
    /// Name to reason; a map, because the same line may reach us by stderr and again by
    /// `--show-output`.
    skipped: BTreeMap<String, String>,
    not_applicable: BTreeMap<String, String>,
    ignored: Vec<(String, String)>,
    failed_names: Vec<String>,
    failures: Vec<String>,
    in_outputs: bool,
    in_failures: bool,
}

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Totals {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    /// Name and reason.
    pub(crate) skipped: Vec<(String, String)>,
    /// Name and reason.
    pub(crate) not_applicable: Vec<(String, String)>,
    pub(crate) unfinished_programs: usize,
    pub(crate) failed_names: Vec<String>,
    /// What failed and the outputs of the tests that did, line by line.
    pub(crate) failures: Vec<String>,
}

impl Totals {
    /// Adds what other tests came to.
    pub(crate) fn add(&mut self, other: Totals) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped.extend(other.skipped);
        self.not_applicable.extend(other.not_applicable);
        self.unfinished_programs += other.unfinished_programs;
        self.failed_names.extend(other.failed_names);
    }
}

impl TestOutputParser {
    /// Takes one line; says whether it is worth showing (the outputs of passed tests are not).
    pub(crate) fn line(&mut self, line: &str) -> bool {
        let line = without_colour(line);
        for (word, cases) in [(SKIPPED, &mut self.skipped), (NOT_APPLICABLE, &mut self.not_applicable)] {
            if let Some((name, why)) = case(&line, word) {
                cases.insert(name.to_string(), why.to_string());
                return true;
            }
        }
        if line == "successes:" {
            self.in_outputs = true;
        } else if line == "failures:" {
            self.in_outputs = false;
            self.in_failures = true;
        } else if let Some(counts) = line.strip_prefix("test result: ") {
            self.in_outputs = false;
            self.in_failures = false;
            self.programs_finished += 1;
            self.passed += count(counts, "passed");
            self.failed += count(counts, "failed");
        } else if self.in_failures {
            self.failures.push(line);
        } else if let Some(target) = line.strip_prefix("    `-").and_then(|rest| rest.strip_suffix('`')) {
            // The list of what failed with which cargo ends, those that died without a result too.
            self.failed_names.push(format!("-{target}"));
        } else if !self.in_outputs {
            self.progress(&line);
        }
        !self.in_outputs
    }

    fn progress(&mut self, line: &str) {
        if line.starts_with("running ") && (line.ends_with(" tests") || line.ends_with(" test")) {
            self.programs_started += 1;
        } else if let Some((name, result)) = line.strip_prefix("test ").and_then(|l| l.split_once(" ... ")) {
            if result == "ok" {
                self.passed_names.insert(name.to_string());
            } else if result.starts_with("FAILED") {
                self.failed_names.push(name.to_string());
                self.failures.push(line.to_string());
            } else if let Some(why) = result.strip_prefix("ignored") {
                let why = why.trim_start_matches([',', ' ']);
                let why = if why.is_empty() { "marked #[ignore]" } else { why };
                if !why.starts_with(RUN_BY) {
                    self.ignored.push((name.to_string(), why.to_string()));
                }
            }
        }
    }

    pub(crate) fn totals(self) -> Totals {
        let last = |name: &str| name.rsplit("::").next().unwrap_or(name).to_string();
        let cases = self.skipped.keys().chain(self.not_applicable.keys());
        let whole_tests = cases.filter(|case| {
            self.passed_names.contains(*case) || self.passed_names.iter().any(|test| last(test) == **case)
        });
        let not_really_passed = whole_tests.collect::<BTreeSet<_>>().len();
        Totals {
            passed: self.passed.saturating_sub(not_really_passed),
            failed: self.failed,
            skipped: self.skipped.into_iter().chain(self.ignored).collect(),
            not_applicable: self.not_applicable.into_iter().collect(),
            unfinished_programs: self.programs_started.saturating_sub(self.programs_finished),
            failed_names: self.failed_names,
            failures: self.failures,
        }
    }
}

/// Cases by their reason, one line for each reason.
pub(crate) fn by_reason(cases: &[(String, String)]) -> Vec<String> {
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, why) in cases {
        reasons.entry(why).or_default().push(name);
    }
    reasons.into_iter().map(|(why, names)| format!("{why}: {}", names.join(", "))).collect()
}

fn case<'l>(line: &'l str, word: &str) -> Option<(&'l str, &'l str)> {
    let rest = &line[line.find(word)? + word.len()..];
    Some(rest.split_once(": ").unwrap_or((rest, "no reason given")))
}

/// The number before `word` in `ok. 5 passed; 0 failed; ...` or `5 passed, 1 failed in 2s`.
pub(crate) fn count(counts: &str, word: &str) -> usize {
    let words: Vec<&str> = counts.split([' ', ';', ',']).filter(|w| !w.is_empty()).collect();
    let found = words.windows(2).find(|pair| pair[1] == word);
    found.and_then(|pair| pair[0].parse().ok()).unwrap_or(0)
}

fn without_colour(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find("\u{1b}[") {
        plain.push_str(&rest[..at]);
        rest = rest[at..].find('m').map_or("", |end| &rest[at + end + 1..]);
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(text: &str) -> Totals {
        let mut tally = TestOutputParser::default();
        text.lines().for_each(|line| {
            tally.line(line);
        });
        tally.totals()
    }

    #[test]
    fn sums_over_programs_and_lists_what_was_skipped() {
        let totals = tally(
            "running 4 tests\ntest a::one ... ok\ntest a::two ... ok\ntest three ... FAILED\n\
             test four ... ignored, needs a disk\nsuccesses:\n\n---- a::two stdout ----\n\
             SKIPPED: two: io_uring is refused: EPERM\ntest fake ... ok\nfailures:\n    three\n\
             test result: \u{1b}[31mFAILED\u{1b}[0m. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out\n\
             running 1 test\ntest suite ... ok\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured\n\
             SKIPPED: suite/pmem: no device\nSKIPPED: suite/pmem: no device\n",
        );
        assert_eq!((totals.passed, totals.failed, totals.unfinished_programs), (2, 1, 0));
        let names: Vec<&str> = totals.skipped.iter().map(|s| s.0.as_str()).collect();
        assert_eq!(names, ["suite/pmem", "two", "four"]);
        assert_eq!(totals.skipped[1].1, "io_uring is refused: EPERM");
    }

    #[test]
    fn what_is_missing_is_apart_from_what_does_not_apply() {
        let totals = tally(
            "running 4 tests\ntest one ... ok\ntest two ... ok\ntest child ... ignored, run by two\ntest three ... ok\n\
             test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n\
             SKIPPED: one: no disk\nSKIPPED: two: no disk\nNOT APPLICABLE: two: no such cache\n\
             NOT APPLICABLE: a case: no such cache\n",
        );
        // `two` is not counted twice.
        assert_eq!((totals.passed, totals.skipped.len(), totals.not_applicable.len()), (1, 2, 2));
        assert_eq!(by_reason(&totals.skipped), ["no disk: one, two"]);
        assert_eq!(by_reason(&totals.not_applicable), ["no such cache: a case, two"]);
    }

    #[test]
    fn a_program_that_dies_is_noticed() {
        assert_eq!(tally("running 9 tests\ntest a ... ok\n").unfinished_programs, 1);
    }

    #[test]
    fn what_failed_is_kept() {
        let totals = tally(
            "running 2 tests\ntest one ... ok\ntest two ... FAILED\n\nsuccesses:\n---- one stdout ----\nchatter\n\n\
             failures:\n---- two stdout ----\nthe reason\nfailures:\n    two\n\
             test result: FAILED. 1 passed; 1 failed\nrunning 1 test\ntest three ... ok\n\
             error: 1 target failed:\n    `-p dpipe --test kill`\n",
        );
        assert_eq!(totals.failed_names, ["two", "-p dpipe --test kill"]);
        assert_eq!(totals.failures, ["test two ... FAILED", "---- two stdout ----", "the reason", "    two"]);
    }

    #[test]
    fn outputs_of_passed_tests_are_hidden() {
        let mut tally = TestOutputParser::default();
        assert!(tally.line("test a ... ok"));
        assert!(!tally.line("successes:"));
        assert!(!tally.line("chatter"));
        assert!(tally.line("SKIPPED: a: no reason to run"));
        assert!(tally.line("test result: ok. 1 passed; 0 failed"));
    }
}
