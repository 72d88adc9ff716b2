//! What a terminal sends for keys: characters, and the sequences of ECMA-48 that xterm and its
//! relatives send. Others are skipped.

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    /// A character of text that was pasted: it is no command.
    Pasted(char),
    /// A letter with the control key.
    Control(char),
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Backspace,
    Escape,
}

/// Before and after pasted text (xterm's mode 2004). A terminal removes them from the text itself.
const PASTE_BEGINS: &str = "\u{1b}[200~";
const PASTE_ENDS: &str = "\u{1b}[201~";

/// Reads what a terminal sends.
#[derive(Debug, Default)]
pub(super) struct KeyReader {
    /// The end of pasted text has not come yet.
    pastes: bool,
    /// The beginning of that end, where the bytes were cut in it.
    end_so_far: String,
}

impl KeyReader {
    /// The keys in bytes that came together. A sequence that is cut at their end is skipped:
    /// terminals send each in one piece, except the one after a long text that was pasted.
    pub(super) fn keys(&mut self, bytes: &[u8]) -> Vec<Key> {
        let text = std::mem::take(&mut self.end_so_far) + &String::from_utf8_lossy(bytes);
        let mut rest = text.as_str();
        let mut found = Vec::new();
        while let Some(c) = rest.chars().next() {
            if self.pastes {
                if let Some(behind) = rest.strip_prefix(PASTE_ENDS) {
                    (self.pastes, rest) = (false, behind);
                    continue;
                }
                if PASTE_ENDS.starts_with(rest) {
                    self.end_so_far = rest.to_owned();
                    break;
                }
            } else if let Some(behind) = rest.strip_prefix(PASTE_BEGINS) {
                (self.pastes, rest) = (true, behind);
                continue;
            }
            rest = &rest[c.len_utf8()..];
            match c {
                c if self.pastes => found.extend((!c.is_control() && c != '\u{fffd}').then_some(Key::Pasted(c))),
                '\u{1b}' => {
                    let (key, behind) = sequence(rest);
                    found.extend(key);
                    rest = behind;
                }
                '\r' | '\n' => found.push(Key::Enter),
                '\u{7f}' | '\u{8}' => found.push(Key::Backspace),
                '\u{1}'..='\u{1a}' => found.push(Key::Control(char::from(c as u8 - 1 + b'a'))),
                '\u{fffd}' => {}
                c if c.is_control() => {}
                c => found.push(Key::Char(c)),
            }
        }
        found
    }
}

/// The key of what follows an escape, and what is behind it.
fn sequence(text: &str) -> (Option<Key>, &str) {
    let Some(body) = text.strip_prefix(['[', 'O']) else { return (Some(Key::Escape), text) };
    let end = body.find(|c: char| !matches!(c, '0'..='9' | ';' | '?'));
    let Some((end, last)) = end.and_then(|end| Some((end, body[end..].chars().next()?))) else { return (None, "") };
    let number = body[..end].split(';').next().unwrap_or("");
    let key = match (last, number) {
        ('A', _) => Some(Key::Up),
        ('B', _) => Some(Key::Down),
        ('H', _) | ('~', "1" | "7") => Some(Key::Home),
        ('F', _) | ('~', "4" | "8") => Some(Key::End),
        ('~', "5") => Some(Key::PageUp),
        ('~', "6") => Some(Key::PageDown),
        _ => None,
    };
    (key, &body[end + last.len_utf8()..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(bytes: &[u8]) -> Vec<Key> {
        KeyReader::default().keys(bytes)
    }

    #[test]
    fn pasted_text_is_no_command_however_it_is_cut() {
        let sent = "j\u{1b}[200~q\r\u{e4}\u{3}\u{1b}[2\u{1b}[201~k".as_bytes();
        let pasted = ['q', '\u{e4}', '[', '2'].map(Key::Pasted);
        let expected: Vec<Key> = [Key::Char('j')].into_iter().chain(pasted).chain([Key::Char('k')]).collect();
        assert_eq!(keys(sent), expected);
        // The mark before it comes in one piece; a character of several bytes may be cut.
        for cut in (7..sent.len()).filter(|cut| *cut != 10) {
            let mut reader = KeyReader::default();
            let mut found = reader.keys(&sent[..cut]);
            found.extend(reader.keys(&sent[cut..]));
            assert_eq!(found, expected, "cut at {cut}");
        }
    }

    #[test]
    fn keys_are_told_apart_and_nothing_else_is_a_key() {
        let sent = b"q/\xc3\xa4\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b[1;5H\x1b[4~\r\x7f\x03\x0c";
        let expected = [
            Key::Char('q'),
            Key::Char('/'),
            Key::Char('\u{e4}'),
            Key::Up,
            Key::Down,
            Key::PageUp,
            Key::PageDown,
            Key::Home,
            Key::End,
            Key::Enter,
            Key::Backspace,
            Key::Control('c'),
            Key::Control('l'),
        ];
        assert_eq!(keys(sent), expected);
        assert_eq!(keys(b"\x1b"), [Key::Escape]);
        assert_eq!(
            keys(b"\x1b[15~\x1b[<0;1;1M\xff\x00x"),
            [
                Key::Char('0'),
                Key::Char(';'),
                Key::Char('1'),
                Key::Char(';'),
                Key::Char('1'),
                Key::Char('M'),
                Key::Char('x')
            ]
        );
        assert_eq!(keys(b"\x1b[1;"), []);
    }
}
