//! Words of others that can be shown.

use crate::columns;
use crate::outcome::harmless;

/// The longest words of others that are shown.
const MAX_WORDS: usize = 80;

/// The longest reason why something could not be read.
pub(super) const MAX_REASON: usize = 300;

/// Words of others without what a terminal would obey, or would put over other words: marks that
/// take no column.
pub(super) fn printable(words: &str) -> String {
    harmless(words, MAX_WORDS).chars().map(|c| if columns::of(c) == 0 { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_others_cannot_command_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\n\u{9b}\u{202e}c"), "a\u{fffd}[2Jb\u{fffd}\u{fffd}\u{fffd}c");
        assert_eq!(printable("e\u{301}\u{20dd}\u{5b57}"), "e\u{fffd}\u{fffd}\u{5b57}");
        assert_eq!(printable(&"x".repeat(1000)).len(), MAX_WORDS);
    }
}
