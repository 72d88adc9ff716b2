//! The bottleneck, from measured shares of time. Nothing is guessed: where no wait was measured,
//! the sentence says what was measured instead.

use datapipes_picture::page::{Headline, Tone};

/// A part of the time, and what it was spent with.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Share {
    /// The bottleneck if this is the largest share: "the disk's reads of the input".
    pub(crate) what: String,
    /// Its part of the time, from 0 to 1.
    pub(crate) part: f64,
}

/// Below this share of the time nothing is called a bottleneck.
const CLEAR: f64 = 0.4;

impl Share {
    pub(crate) fn new(what: impl Into<String>, part: f64) -> Share {
        let part = if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 };
        Share { what: what.into(), part }
    }
}

/// A part as people read it: "83%".
pub(crate) fn percent(part: f64) -> String {
    match part * 100.0 {
        p if p > 0.0 && p < 1.0 => "less than 1%".to_owned(),
        p => format!("{p:.0}%"),
    }
}

/// The share of a time in which nothing was done, as far as is known. It is no bottleneck.
pub(crate) const IDLE: &str = "no step had work, at least";

/// The share of a time in which a quota of processor time kept threads off the cores.
pub(crate) const QUOTA: &str = "the limit on processor time of the control group";

/// The sentence that names the largest share. `done` says what was done, and how fast.
pub(crate) fn headline(done: &str, shares: &[Share]) -> Headline {
    let Some(largest) = shares.iter().max_by(|a, b| a.part.total_cmp(&b.part)) else {
        return Headline { text: done.to_owned(), tone: Tone::Neutral };
    };
    let rest = shares.iter().filter(|share| *share != largest && share.part >= 0.05);
    let mut rest: Vec<&Share> = rest.collect();
    rest.sort_by(|a, b| b.part.total_cmp(&a.part));
    let rest: Vec<String> =
        rest.iter().take(3).map(|share| format!("{} {}", share.what, percent(share.part))).collect();
    let verdict = match largest.part >= CLEAR {
        _ if largest.what == IDLE => format!("No bottleneck: {}, {} of the time", largest.what, percent(largest.part)),
        true => format!("The bottleneck: {}, {} of the time", largest.what, percent(largest.part)),
        false => format!("No clear bottleneck: most was {}, {} of the time", largest.what, percent(largest.part)),
    };
    let rest = if rest.is_empty() { String::new() } else { format!("; then {}", rest.join(", ")) };
    Headline { text: format!("{done} {verdict}{rest}."), tone: Tone::Neutral }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_share_is_named_and_small_ones_are_not() {
        let shares = [Share::new("the processor", 0.09), Share::new("the disk's writes", 0.83), Share::new("x", 0.01)];
        let text = headline("1 GB in 2 s.", &shares).text;
        assert_eq!(text, "1 GB in 2 s. The bottleneck: the disk's writes, 83% of the time; then the processor 9%.");
        let even = [Share::new("a", 0.3), Share::new("b", 0.3), Share::new("c", f64::NAN)];
        assert!(headline("x.", &even).text.contains("No clear bottleneck"), "{}", headline("x.", &even).text);
        assert_eq!(headline("x.", &[]).text, "x.");
        let idle = headline("x.", &[Share::new(IDLE, 1.0)]).text;
        assert_eq!(idle, "x. No bottleneck: no step had work, at least, 100% of the time.");
        assert_eq!([percent(0.004), percent(0.0), percent(1.0)], ["less than 1%", "0%", "100%"]);
    }
}
