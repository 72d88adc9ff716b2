//! Words of others that can be shown.

use crate::outcome::harmless;

/// The longest words of others that are shown.
const MAX_WORDS: usize = 80;

/// The longest reason why something could not be read.
pub(super) const MAX_REASON: usize = 300;

/// Words of others without what a terminal would obey.
pub(super) fn printable(words: &str) -> String {
    harmless(words, MAX_WORDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_others_cannot_command_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\n\u{9b}\u{202e}c"), "a\u{fffd}[2Jb\u{fffd}\u{fffd}\u{fffd}c");
        assert_eq!(printable(&"x".repeat(1000)).len(), MAX_WORDS);
    }
}
