//! What two bridges tell each other: a word with each message.

/// The most messages with bytes that the peer may have and has not written to its socket.
pub(super) const WINDOW: usize = 16;
/// What both sides must have in common.
const VERSION: u64 = 1;

/// The meaning of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// The first message of each side.
    Hello,
    /// Bytes from the socket. It uses a credit.
    Bytes,
    /// Returns so many credits: that many messages were written to the socket.
    Credit(usize),
    /// Nothing follows after so many bytes.
    End(u64),
    /// The socket takes no more bytes. What comes is thrown away.
    Stop,
    /// All bytes up to the end were written, or thrown away.
    Done,
}

impl Word {
    pub(super) fn words(self) -> [u64; 2] {
        match self {
            Word::Hello => [0, VERSION],
            Word::Bytes => [1, 0],
            Word::Credit(count) => [2, count as u64],
            Word::End(total) => [3, total],
            Word::Stop => [4, 0],
            Word::Done => [5, 0],
        }
    }

    /// Decodes a word. Returns None for what no bridge of this version says.
    pub(super) fn of(words: [u64; 2]) -> Option<Word> {
        match words {
            [0, VERSION] => Some(Word::Hello),
            [1, 0] => Some(Word::Bytes),
            [2, count] => usize::try_from(count).ok().filter(|n| (1..=WINDOW).contains(n)).map(Word::Credit),
            [3, total] => Some(Word::End(total)),
            [4, 0] => Some(Word::Stop),
            [5, 0] => Some(Word::Done),
            _ => None,
        }
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;

    #[test]
    fn words_mean_what_was_said_and_others_nothing() {
        for word in [Word::Hello, Word::Bytes, Word::Credit(1), Word::Credit(WINDOW), Word::End(u64::MAX), Word::Stop]
            .into_iter()
            .chain([Word::Done])
        {
            assert_eq!(Word::of(word.words()), Some(word));
        }
        for other in [[0, VERSION + 1], [1, 1], [2, 0], [2, WINDOW as u64 + 1], [2, u64::MAX], [4, 1], [5, 1], [6, 0]] {
            assert_eq!(Word::of(other), None, "{other:?}");
        }
    }
}
