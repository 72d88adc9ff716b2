//! Whether a standard stream gets colours: the rules of `NO_COLOR`, `CLICOLOR` and
//! `CLICOLOR_FORCE` (no-color.org, bixense.com/clicolors), and terminals that have none.

use std::ffi::{OsStr, OsString};

use rustix::stdio::{stderr, stdout};
use rustix::termios::isatty;

/// A colour with a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Color {
    /// It is under way.
    Progress,
    /// It holds.
    Good,
    /// It does not hold.
    Bad,
}

impl Color {
    const fn code(self) -> &'static str {
        match self {
            Color::Progress => "36",
            Color::Good => "32",
            Color::Bad => "1;31",
        }
    }
}

/// Words in a colour, where colours are wanted.
pub(crate) fn paint(words: &str, color: Color, wanted: bool) -> String {
    if wanted { format!("\x1b[{}m{words}\x1b[0m", color.code()) } else { words.to_owned() }
}

/// Whether the standard output gets colours.
pub(crate) fn on_output() -> bool {
    decide(|name| std::env::var_os(name), isatty(stdout()))
}

/// Whether the standard error gets colours.
pub(crate) fn on_error() -> bool {
    decide(|name| std::env::var_os(name), isatty(stderr()))
}

fn decide(variable: impl Fn(&str) -> Option<OsString>, is_terminal: bool) -> bool {
    let is = |name: &str, word: &str| variable(name).is_some_and(|value| value == OsStr::new(word));
    let is_set = |name: &str| variable(name).is_some_and(|value| !value.is_empty());
    if is_set("NO_COLOR") {
        return false;
    }
    if is_set("CLICOLOR_FORCE") && !is("CLICOLOR_FORCE", "0") {
        return true;
    }
    is_terminal && !is("CLICOLOR", "0") && !is("TERM", "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_decide_in_their_order() {
        let with = |set: &[(&str, &str)], is_terminal| {
            decide(|name| set.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(*v)), is_terminal)
        };
        assert!(with(&[], true) && !with(&[], false));
        assert!(!with(&[("NO_COLOR", "1")], true) && with(&[("NO_COLOR", "")], true));
        assert!(!with(&[("NO_COLOR", "1"), ("CLICOLOR_FORCE", "1")], true));
        assert!(with(&[("CLICOLOR_FORCE", "1")], false) && !with(&[("CLICOLOR_FORCE", "0")], false));
        assert!(!with(&[("CLICOLOR", "0")], true) && with(&[("CLICOLOR", "1")], true));
        assert!(!with(&[("TERM", "dumb")], true));
        assert_eq!(paint("x", Color::Good, true), "\x1b[32mx\x1b[0m");
        assert_eq!(paint("x", Color::Bad, false), "x");
    }
}
