//! The text of a Rust file as words, `::` and single characters: comments, strings and lifetimes
//! are left out.

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    Word(String),
    Separator,
    Sign(char),
}

impl Token {
    pub(crate) fn is(&self, word: &str) -> bool {
        matches!(self, Token::Word(own) if own == word)
    }

    pub(crate) fn is_sign(&self, sign: char) -> bool {
        *self == Token::Sign(sign)
    }

    pub(crate) fn word(&self) -> Option<&str> {
        match self {
            Token::Word(word) => Some(word),
            _ => None,
        }
    }
}

/// The tokens of a file.
pub(crate) fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let mut found = Vec::new();
    let mut at = 0;
    while at < chars.len() {
        let rest = &chars[at..];
        at += match rest {
            ['/', '/', ..] => until(rest, '\n'),
            ['/', '*', ..] => comment(rest),
            ['"', ..] => string(rest),
            ['b' | 'c', '"', ..] => 1 + string(&rest[1..]),
            ['r', '"' | '#', ..] if raw(rest, 1) > 0 => raw(rest, 1),
            ['b' | 'c', 'r', '"' | '#', ..] if raw(rest, 2) > 0 => raw(rest, 2),
            ['\'', ..] => quote(rest),
            [':', ':', ..] => {
                found.push(Token::Separator);
                2
            }
            [c, ..] if is_of_word(*c) => {
                let len = rest.iter().take_while(|c| is_of_word(**c)).count();
                found.push(Token::Word(rest[..len].iter().collect()));
                len
            }
            [c, ..] => {
                if !c.is_whitespace() {
                    found.push(Token::Sign(*c));
                }
                1
            }
            [] => 1,
        };
    }
    found
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn until(rest: &[char], end: char) -> usize {
    rest.iter().take_while(|c| **c != end).count()
}

/// The length of a comment, in which others may be.
fn comment(rest: &[char]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match rest[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// The length of a string, quotes included.
fn string(rest: &[char]) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != '"' {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// The length of a raw string whose hashes begin at `at`; 0 if it is none.
fn raw(rest: &[char], at: usize) -> usize {
    let hashes = rest[at..].iter().take_while(|c| **c == '#').count();
    let mut end = at + hashes;
    if rest.get(end) != Some(&'"') {
        return 0;
    }
    end += 1;
    while end < rest.len() {
        end += 1;
        let closing = rest[end..].iter().take(hashes).filter(|c| **c == '#').count();
        if rest[end - 1] == '"' && closing == hashes {
            return end + hashes;
        }
    }
    end
}

/// The length of a character, or of a lifetime's quote and name.
fn quote(rest: &[char]) -> usize {
    match rest {
        [_, '\\', _, more @ ..] => 3 + until(more, '\'') + 1,
        [_, _, '\'', ..] => 3,
        _ => 1 + rest[1..].iter().take_while(|c| is_of_word(**c)).count(),
    }
}
