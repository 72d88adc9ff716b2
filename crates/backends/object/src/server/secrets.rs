//! Words that no message contains, in whatever form a server gives them back.

use std::fmt;
use std::sync::Arc;

/// The fewest bytes of a word that is taken out: a short word would take pieces out of ordinary
/// text.
const MIN_WORD: usize = 6;

/// What stands in the place of a secret.
const HIDDEN: &str = "***";

/// What is followed by a credential or a signature, in requests and in what servers send back.
const SHOWN_WITHOUT_VALUE: [&str; 10] = [
    "X-Amz-Signature=",
    "X-Amz-Security-Token=",
    "X-Amz-Credential=",
    "Signature=",
    "sig=",
    "client_assertion=",
    "client_secret=",
    "refresh_token=",
    "Bearer ",
    "SharedKey ",
];

/// The words that no message may contain.
#[derive(Clone, Default)]
pub(crate) struct Secrets(Arc<Vec<String>>);

impl Secrets {
    pub(crate) fn new(words: Vec<String>) -> Secrets {
        // A word may be percent-encoded already, as in the query of an address.
        let mut all: Vec<String> = words.into_iter().flat_map(|word| [percent_decoded(&word), word]).collect();
        all.retain(|word| word.len() >= MIN_WORD);
        // A long word may have a short one in it.
        all.sort_unstable_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        all.dedup();
        Secrets(Arc::new(all))
    }

    /// The query of an address, as a whole and by its values.
    pub(crate) fn of_query(query: &str) -> Secrets {
        let values = query.split(['&', ';']).filter_map(|pair| pair.split_once('=')).map(|(_, value)| value.to_owned());
        Secrets::new(values.chain([query.to_owned()]).collect())
    }

    /// Words of others, printable, without secrets, and with at most so many characters. A secret
    /// that is cut is none that can be found any more, so they are cut last.
    pub(crate) fn shown(&self, text: &str, most: usize) -> String {
        let printable: String = text.chars().filter(|c| !c.is_control()).collect();
        self.scrub(&printable).chars().take(most).collect()
    }

    /// The text with `***` in the place of secrets.
    pub(crate) fn scrub(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for word in self.0.iter() {
            text = without_word(&text, word);
        }
        for name in SHOWN_WITHOUT_VALUE {
            text = without_value(&text, name);
        }
        text
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({})", self.0.len())
    }
}

/// The text with `***` in the place of a word, each of whose bytes may be written in any way.
fn without_word(text: &str, word: &str) -> String {
    let (bytes, mut out, mut at, mut copied) = (text.as_bytes(), String::new(), 0, 0);
    while at < bytes.len() {
        match end_of(bytes, at, word.as_bytes()) {
            Some(end) if text.is_char_boundary(at) && text.is_char_boundary(end) => {
                out.push_str(text.get(copied..at).unwrap_or(""));
                out.push_str(HIDDEN);
                (at, copied) = (end, end);
            }
            _ => at += 1,
        }
    }
    out.push_str(text.get(copied..).unwrap_or(""));
    out
}

/// Where a word ends that begins at an offset of a text, if it does.
fn end_of(text: &[u8], at: usize, word: &[u8]) -> Option<usize> {
    // A byte can be written in two ways at one place: as itself, and by something that begins with
    // the same character.
    let mut ends = vec![at];
    for byte in word {
        let mut next = Vec::new();
        for end in ends {
            let rest = text.get(end..).unwrap_or(&[]);
            if rest.first() == Some(byte) {
                next.push(end + 1);
            }
            if let Some(len) = escaped(rest, *byte) {
                next.push(end + len);
            }
        }
        if next.is_empty() {
            return None;
        }
        next.dedup();
        ends = next;
    }
    ends.into_iter().max()
}

/// The length of what stands for a byte at the beginning of a text: percent-encoding, an entity of
/// XML, or an escape of JSON.
fn escaped(text: &[u8], byte: u8) -> Option<usize> {
    let hex = |digits: &[u8]| u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
    match text.first()? {
        b'%' => (hex(text.get(1..3)?)? == u32::from(byte)).then_some(3),
        b'\\' if text.get(1)? == &b'u' => (hex(text.get(2..6)?)? == u32::from(byte)).then_some(6),
        b'\\' => (byte.is_ascii_punctuation() && text.get(1)? == &byte).then_some(2),
        b'&' => {
            let end = text.iter().take(12).position(|c| *c == b';')?;
            let name = std::str::from_utf8(text.get(1..end)?).ok()?;
            let its = match name {
                "amp" => u32::from(b'&'),
                "lt" => u32::from(b'<'),
                "gt" => u32::from(b'>'),
                "quot" => u32::from(b'"'),
                "apos" => u32::from(b'\''),
                _ => match name.strip_prefix('#')? {
                    number if number.starts_with(['x', 'X']) => u32::from_str_radix(number.get(1..)?, 16).ok()?,
                    number => number.parse().ok()?,
                },
            };
            (its == u32::from(byte)).then_some(end + 1)
        }
        b'+' => (byte == b' ').then_some(1),
        _ => None,
    }
}

/// A word without its percent-encoding.
fn percent_decoded(word: &str) -> String {
    let (mut decoded, mut rest) = (Vec::new(), word.as_bytes());
    while let Some((first, more)) = rest.split_first() {
        let hex = more.get(..2).filter(|_| *first == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                decoded.push(byte);
                rest = more.get(2..).unwrap_or(&[]);
            }
            None => {
                decoded.push(*first);
                rest = more;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

/// The text with `***` in the place of the values that follow a name.
fn without_value(text: &str, name: &str) -> String {
    let mut parts = text.split(name);
    let mut out = parts.next().unwrap_or("").to_owned();
    for part in parts {
        let end = part.find(|c: char| c.is_whitespace() || "&\"'<>,;)".contains(c)).unwrap_or(part.len());
        out.push_str(name);
        out.push_str(HIDDEN);
        out.push_str(part.get(end..).unwrap_or(""));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_query_do_not_pass_in_any_form() {
        let secrets = Secrets::of_query("token=tok%2FEN12345&se=1&id=visible+id");
        for text in [
            "tok%2FEN12345",
            "tok%2fEN12345",
            "tok/EN12345",
            "tok\\/EN12345",
            "tok&#x2f;EN12345",
            "token=tok%2FEN12345&amp;se=1&amp;id=visible+id",
        ] {
            let shown = secrets.scrub(text);
            assert!(!shown.contains("EN12345"), "{shown}");
        }
        let session = Secrets::new(vec!["abc/def+ghi==".into()]);
        assert_eq!(session.scrub("abc/def+ghi== abc%2Fdef%2Bghi%3D%3D abc/def%2bghi=%3d."), "*** *** ***.");
        let odd = Secrets::new(vec!["a<b>&\"'é%41".into()]);
        assert_eq!(odd.scrub("(a&lt;b&gt;&amp;&quot;&apos;é%41) a<b>&\\\"'%C3%a9%2541"), "(***) ***");
    }

    #[test]
    fn secrets_do_not_pass() {
        let secrets = Secrets::new(vec!["verysecret".into(), "abc".into()]);
        let text = secrets.scrub("verysecret and X-Amz-Signature=12ab&x=1 and sig=q%3D, Bearer t0ken end abc");
        assert_eq!(text, "*** and X-Amz-Signature=***&x=1 and sig=***, Bearer *** end abc");
        let text =
            secrets.scrub("SharedKey me:c2lnbmF0dXJl, client_assertion=tok.en&x client_secret=a refresh_token=b");
        assert_eq!(text, "SharedKey ***, client_assertion=***&x client_secret=*** refresh_token=***");
    }

    #[test]
    fn a_cut_goes_through_no_secret() {
        let secrets = Secrets::new(vec!["s".repeat(1000)]);
        for before in 200..=240 {
            let text = format!("{}{}", "x".repeat(before), "s".repeat(1000));
            let shown = secrets.shown(&text, 240);
            assert!(!shown.contains('s') && shown.len() <= 240, "{shown}");
        }
        assert_eq!(secrets.shown(&format!("a{}\n{}b", "s".repeat(500), "s".repeat(500)), 240), "a***b");
    }
}
