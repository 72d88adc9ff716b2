//! The compiled order of lines.
//!
//! ```text
//! plain:  memcmp of the line, ascending or descending; prefix = its first eight bytes
//! keyed:  key 1, key 2, ... each by its own rule,
//!         then the line by memcmp (unless stable or unique);
//!         prefix = the word of key 1, complemented if key 1 is descending
//! ```

pub(super) mod pieced;

use std::cmp::Ordering;
use std::sync::Arc;

use datapipes_core::Result;

use super::bytes::{Ignore, compare_folded, compare_ignoring, fold_and_find_zero, kept, load, load_kept};
use super::field::Place;
use super::key_spec::{KeySpec, Modifiers};
use super::{general, number, random, version};

/// The options of the command line for the order of lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TextOptions {
    /// -k, in the order given.
    pub keys: Vec<KeySpec>,
    /// The ordering letters outside -k: they apply to keys without letters, and to the line if
    /// there is no key.
    pub modifiers: Modifiers,
    /// -t: the byte that separates fields.
    pub separator: Option<u8>,
    /// -s: lines with equal keys keep their order.
    pub stable: bool,
    /// -u: only the first of lines with equal keys is kept.
    pub unique: bool,
    /// The salt of the random order (-R). The same salt gives the same order again.
    pub salt: [u8; 16],
}

datapipes_core::setters! {
    TextOptions {
        keys: Vec<KeySpec>,
        modifiers: Modifiers,
        separator: into Option<u8>,
        stable: bool,
        unique: bool,
        salt: [u8; 16],
    }
}

impl TextOptions {
    /// Compiles the order.
    ///
    /// # Errors
    /// `InvalidInput` for letters that exclude each other, with GNU's message as the context.
    pub fn compile(&self) -> Result<TextOrder> {
        TextOrder::new(self)
    }

    /// Returns the keys by which lines are compared. Keys without letters get the command line's;
    /// if there are letters but no key, the line is the key.
    pub fn effective_keys(&self) -> Vec<KeySpec> {
        let mut keys = self.keys.clone();
        for key in &mut keys {
            if key.modifiers.is_default() && !key.modifiers.reverse {
                key.modifiers = self.modifiers;
            }
        }
        if keys.is_empty() && !self.modifiers.is_default() {
            keys.push(KeySpec { modifiers: self.modifiers, ..KeySpec::default() });
        }
        keys
    }

    /// Whether the order depends on the salt.
    pub fn is_random(&self) -> bool {
        self.effective_keys().iter().any(|key| key.modifiers.random)
    }
}

/// An order of lines, that of GNU sort in the C locale. Lines are given without their terminator.
///
/// ```
/// use datapipes_sort::text::{KeySpec, TextOptions};
/// let mut options = TextOptions::default();
/// options.keys.push(KeySpec::parse(b"2,2n").unwrap());
/// let order = options.compile().unwrap();
/// assert!(order.compare(b"x 9", b"a 10").is_lt());
/// assert!(order.prefix(b"x 9") < order.prefix(b"a 10"));
/// ```
#[derive(Clone, Debug)]
pub struct TextOrder {
    shape: Shape,
    /// Whether the last-resort comparison is descending.
    reverse: bool,
    /// Whether there is a last-resort comparison.
    last_resort: bool,
    unique: bool,
    decides: bool,
}

#[derive(Clone, Debug)]
enum Shape {
    Plain,
    PlainReverse,
    Keyed { first: Key, rest: Arc<[Key]> },
}

#[derive(Clone, Copy, Debug)]
enum Rule {
    Bytes,
    Folded,
    Ignoring {
        ignore: Ignore,
        folded: bool,
    },
    /// At most seven bytes, packed with their number, so that the word decides.
    Short {
        ignore: Ignore,
        folded: bool,
    },
    Numeric,
    General,
    Human {
        folded: bool,
    },
    Month,
    /// The order of the MD5 digests of salt and key; keys with equal digests are ordered by bytes.
    Random {
        salt: [u8; 16],
        ignore: Ignore,
        folded: bool,
    },
    Version {
        ignore: Ignore,
        folded: bool,
    },
}

#[derive(Clone, Copy, Debug)]
struct Key {
    place: Place,
    rule: Rule,
    reverse: bool,
}

impl TextOrder {
    fn new(options: &TextOptions) -> Result<TextOrder> {
        let global = options.modifiers;
        let keys = options.effective_keys();
        keys.iter().try_for_each(|key| key.modifiers.check())?;
        let keys: Vec<Key> = keys.iter().map(|key| Key::new(key, options)).collect();
        let shape = match keys.split_first() {
            None if global.reverse => Shape::PlainReverse,
            None => Shape::Plain,
            // If entire lines are equal, every further key is equal too.
            Some((key, _)) if key.is_line() && key.reverse => Shape::PlainReverse,
            Some((key, _)) if key.is_line() => Shape::Plain,
            Some((first, rest)) => Shape::Keyed { first: *first, rest: rest.into() },
        };
        let decides = matches!(&shape, Shape::Keyed { first, rest } if rest.is_empty() && first.word_decides());
        let last_resort = !options.stable && !options.unique;
        Ok(TextOrder { shape, reverse: global.reverse, last_resort, unique: options.unique, decides })
    }

    /// Compares two lines in full: by the keys, then (unless -s or -u) by the entire lines.
    #[inline]
    pub fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        match &self.shape {
            Shape::Plain => a.cmp(b),
            Shape::PlainReverse => b.cmp(a),
            Shape::Keyed { first, rest } => {
                let order = compare_all(first, rest, a, b);
                if order != Ordering::Equal || !self.last_resort {
                    order
                } else if self.reverse {
                    b.cmp(a)
                } else {
                    a.cmp(b)
                }
            }
        }
    }

    /// Compares two lines by their keys only; without keys, by the line.
    #[inline]
    pub fn compare_keys(&self, a: &[u8], b: &[u8]) -> Ordering {
        match &self.shape {
            Shape::Plain => a.cmp(b),
            Shape::PlainReverse => b.cmp(a),
            Shape::Keyed { first, rest } => compare_all(first, rest, a, b),
        }
    }

    /// Whether `next` may follow `previous`, which -c checks. Under -u equal keys are out of order.
    #[inline]
    pub fn in_order(&self, previous: &[u8], next: &[u8]) -> bool {
        match self.compare(previous, next) {
            Ordering::Less => true,
            Ordering::Equal => !self.unique,
            Ordering::Greater => false,
        }
    }

    /// Returns a word whose order follows the line's: `prefix(a) < prefix(b)` implies that
    /// `compare(a, b)` is `Less`.
    ///
    /// Equal words decide nothing, unless [`TextOrder::prefix_decides`].
    #[inline]
    pub fn prefix(&self, line: &[u8]) -> u64 {
        match &self.shape {
            Shape::Plain => load(line),
            Shape::PlainReverse => !load(line),
            Shape::Keyed { first, .. } => first.word(line),
        }
    }

    /// Returns, for a plain order in either direction, the word of the eight bytes at `depth`,
    /// padded with zeros (complemented if the order is descending). For a keyed order it is 0,
    /// which decides nothing.
    #[inline]
    pub fn prefix_from(&self, line: &[u8], depth: usize) -> u64 {
        let rest = line.get(depth..).unwrap_or_default();
        match self.shape {
            Shape::Plain => load(rest),
            Shape::PlainReverse => !load(rest),
            Shape::Keyed { .. } => 0,
        }
    }

    /// Whether equal prefixes mean that `compare_keys` is `Equal` (short columns, months).
    #[inline]
    pub fn prefix_decides(&self) -> bool {
        self.decides
    }

    /// Whether `compare_keys` is `Equal` for this line and every other with an equal prefix. It is
    /// the same for all of them.
    #[inline]
    pub fn prefix_is_exact(&self, line: &[u8]) -> bool {
        match &self.shape {
            Shape::Keyed { first, .. } => self.decides || self.word_is_exact(first.word(line)),
            Shape::Plain | Shape::PlainReverse => false,
        }
    }

    /// Does the same for a line whose prefix this is.
    #[inline]
    pub(crate) fn word_is_exact(&self, word: u64) -> bool {
        match &self.shape {
            Shape::Keyed { first, rest } => {
                self.decides
                    || rest.is_empty()
                        && matches!(first.rule, Rule::Numeric | Rule::Human { .. })
                        && number::word_is_exact(first.directed(word))
            }
            Shape::Plain | Shape::PlainReverse => false,
        }
    }

    /// Appends bytes whose order is that of [`compare`](Self::compare): the keys in a normalized
    /// form, and then the line if it is compared too. Only the first `most` bytes are needed; more
    /// may be appended.
    ///
    /// ```
    /// use datapipes_sort::text::{KeySpec, TextOptions};
    /// let mut options = TextOptions::default();
    /// options.keys.push(KeySpec::parse(b"2,2nr").unwrap());
    /// let order = options.compile().unwrap();
    /// let (mut a, mut b) = (Vec::new(), Vec::new());
    /// order.push_key(b"x 9", 100, &mut a);
    /// order.push_key(b"a 10", 100, &mut b);
    /// assert!(b < a);
    /// ```
    #[inline]
    pub fn push_key(&self, line: &[u8], most: usize, out: &mut Vec<u8>) {
        match &self.shape {
            Shape::Plain => push_line(line, false, most, out),
            Shape::PlainReverse => push_line(line, true, most, out),
            Shape::Keyed { first, rest } => {
                let end = out.len().saturating_add(most);
                first.push(line, most, out);
                self.push_keys(rest, line, end, out);
            }
        }
    }

    /// Appends what the word of [`prefix`](Self::prefix) lacks of the bytes of
    /// [`push_key`](Self::push_key). It orders lines whose prefix is `prefix`.
    #[inline]
    pub(crate) fn push_behind_prefix(&self, line: &[u8], prefix: u64, most: usize, out: &mut Vec<u8>) {
        match &self.shape {
            Shape::Plain | Shape::PlainReverse => self.push_key(line, most, out),
            Shape::Keyed { first, rest } => {
                let end = out.len().saturating_add(most);
                first.push_behind_word(line, prefix, most, out);
                self.push_keys(rest, line, end, out);
            }
        }
    }

    /// Appends these keys, and then the line if it is compared too, up to about `end` bytes of
    /// `out`.
    #[inline]
    fn push_keys(&self, keys: &[Key], line: &[u8], end: usize, out: &mut Vec<u8>) {
        for key in keys {
            if out.len() >= end {
                return;
            }
            key.push(line, end - out.len(), out);
        }
        if self.last_resort {
            push_line(line, self.reverse, end.saturating_sub(out.len()), out);
        }
    }

    /// Appends the line in the form that follows its keys, if it is compared too.
    pub(crate) fn push_line_behind(&self, line: &[u8], out: &mut Vec<u8>) {
        if self.last_resort {
            push_line(line, self.reverse, usize::MAX, out);
        }
    }

    /// Whether lines with equal keys are ordered by their bytes, and, if so, whether descending.
    #[inline]
    pub fn last_resort(&self) -> Option<bool> {
        self.last_resort.then_some(self.reverse)
    }

    /// Whether the order is `memcmp` of the entire line (a shorter line first), ascending.
    #[inline]
    pub fn is_plain_bytes(&self) -> bool {
        matches!(self.shape, Shape::Plain)
    }

    /// Whether the order is exactly the opposite of `memcmp` of the entire line.
    #[inline]
    pub fn plain_reverse(&self) -> bool {
        matches!(self.shape, Shape::PlainReverse)
    }

    /// Whether the order is that of entire lines with letters folded (and then perhaps of their
    /// bytes) and no lines are dropped; if so, whether it is descending.
    pub(crate) fn folded_lines(&self) -> Option<bool> {
        match &self.shape {
            Shape::Keyed { first, rest } if rest.is_empty() && !self.unique => {
                let is_folded = matches!(first.rule, Rule::Folded) && first.place.is_line();
                is_folded.then_some(first.reverse)
            }
            _ => None,
        }
    }

    /// Whether lines that compare as equal must keep their order, so that the sort has to be
    /// stable.
    ///
    /// Otherwise equal lines have the same bytes. Under -u the first of the equal lines is the one
    /// kept.
    #[inline]
    pub fn needs_stable(&self) -> bool {
        matches!(self.shape, Shape::Keyed { .. }) && !self.last_resort
    }

    /// Whether only the first line of equal keys is kept (-u).
    #[inline]
    pub fn unique(&self) -> bool {
        self.unique
    }
}

#[inline]
fn compare_all(first: &Key, rest: &[Key], a: &[u8], b: &[u8]) -> Ordering {
    let order = first.compare(a, b);
    if order != Ordering::Equal {
        return order;
    }
    let orders = rest.iter().map(|key| key.compare(a, b));
    orders.into_iter().find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
}

impl Key {
    fn new(key: &KeySpec, options: &TextOptions) -> Key {
        let place = Place::new(key, options.separator);
        let Modifiers { ignore, fold_case: folded, .. } = key.modifiers;
        let short = place.max_len().is_some_and(|len| len <= 7);
        let rule = match key.modifiers {
            Modifiers { numeric: true, .. } => Rule::Numeric,
            Modifiers { general: true, .. } => Rule::General,
            Modifiers { human: true, .. } => Rule::Human { folded },
            Modifiers { month: true, .. } => Rule::Month,
            // This arm comes before -V: GNU sort treats the two together as -R.
            Modifiers { random: true, .. } => Rule::Random { salt: options.salt, ignore, folded },
            Modifiers { version: true, .. } => Rule::Version { ignore, folded },
            _ if short => Rule::Short { ignore, folded },
            _ if ignore != Ignore::Nothing => Rule::Ignoring { ignore, folded },
            _ if folded => Rule::Folded,
            _ => Rule::Bytes,
        };
        Key { place, rule, reverse: key.modifiers.reverse }
    }

    /// Whether the key is the entire line, unchanged.
    fn is_line(&self) -> bool {
        matches!(self.rule, Rule::Bytes) && self.place.is_line()
    }

    fn word_decides(&self) -> bool {
        matches!(self.rule, Rule::Month | Rule::Short { .. })
    }

    #[inline]
    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        self.compare_texts(self.place.slice(a), self.place.slice(b))
    }

    /// Compares two keys, given by their bytes.
    #[inline]
    fn compare_texts(&self, a: &[u8], b: &[u8]) -> Ordering {
        let order = match self.rule {
            Rule::Bytes => a.cmp(b),
            Rule::Folded => compare_folded(a, b),
            Rule::Ignoring { ignore, folded } => compare_ignoring(a, b, ignore, folded),
            Rule::Short { ignore, folded } => short_word(a, ignore, folded).cmp(&short_word(b, ignore, folded)),
            Rule::Numeric => number::compare_numeric(a, b),
            Rule::General => general::compare(a, b),
            Rule::Human { folded } => number::compare_human(a, b, folded),
            Rule::Month => number::month(a).cmp(&number::month(b)),
            Rule::Random { salt, ignore, folded } => with_seen(a, ignore, folded, |a| {
                with_seen(b, ignore, folded, |b| if a == b { Ordering::Equal } else { random::compare(&salt, a, b) })
            }),
            Rule::Version { ignore, folded } => {
                with_seen(a, ignore, folded, |a| with_seen(b, ignore, folded, |b| version::compare(a, b)))
            }
        };
        if self.reverse { order.reverse() } else { order }
    }

    #[inline]
    fn word(&self, line: &[u8]) -> u64 {
        self.word_of(self.place.slice(line))
    }

    /// Returns the word of a key, given by its bytes.
    #[inline]
    fn word_of(&self, text: &[u8]) -> u64 {
        let word = match self.rule {
            Rule::Bytes => load(text),
            Rule::Folded => load_kept(text, Ignore::Nothing, true),
            Rule::Ignoring { ignore, folded } => load_kept(text, ignore, folded),
            Rule::Short { ignore, folded } => short_word(text, ignore, folded),
            Rule::Numeric => number::numeric_prefix(text),
            Rule::General => general::prefix(text),
            Rule::Human { folded } => number::human_prefix(text, folded),
            Rule::Month => u64::from(number::month(text)),
            Rule::Random { salt, ignore, folded } => {
                with_seen(text, ignore, folded, |text| random::prefix(&salt, text))
            }
            Rule::Version { ignore, folded } => with_seen(text, ignore, folded, version::prefix),
        };
        self.directed(word)
    }

    #[inline]
    fn directed(&self, word: u64) -> u64 {
        if self.reverse { !word } else { word }
    }

    /// Appends what `word`, which is this line's, lacks of [`push`](Self::push).
    #[inline]
    fn push_behind_word(&self, line: &[u8], word: u64, most: usize, out: &mut Vec<u8>) {
        self.push_behind_word_of(self.place.slice(line), word, most, out);
    }

    #[inline]
    fn push_behind_word_of(&self, text: &[u8], word: u64, most: usize, out: &mut Vec<u8>) {
        let word = self.directed(word);
        let held = match self.rule {
            Rule::Short { .. } | Rule::Month => return,
            Rule::Numeric | Rule::Human { .. } if number::word_is_exact(word) => return,
            // A word that does not end in a zero holds eight bytes.
            Rule::Bytes | Rule::Folded if word & 0xff != 0 => size_of::<u64>(),
            _ => 0,
        };
        self.push_text(text.get(held..).unwrap_or_default(), most, out);
    }

    /// Appends the key in a form whose bytes have its order. No key's bytes begin another's, so
    /// what follows decides exactly if the keys are equal.
    #[inline]
    fn push(&self, line: &[u8], most: usize, out: &mut Vec<u8>) {
        self.push_text(self.place.slice(line), most, out);
    }

    /// Does the same for a key, given by its bytes.
    #[inline]
    fn push_text(&self, text: &[u8], most: usize, out: &mut Vec<u8>) {
        let from = out.len();
        match self.rule {
            Rule::Bytes => push_bytes::<false>(text, most, out),
            Rule::Folded => push_bytes::<true>(text, most, out),
            Rule::Ignoring { ignore, folded } => {
                with_kept(text, ignore, folded, |text| push_bytes::<false>(text, most, out));
            }
            Rule::Short { ignore, folded } => {
                out.extend_from_slice(&short_word(text, ignore, folded).to_be_bytes());
            }
            Rule::Numeric => number::push_numeric_key(text, out),
            Rule::General => general::push_key(text, out),
            Rule::Human { folded } => number::push_human_key(text, folded, out),
            Rule::Month => out.push(number::month(text)),
            Rule::Random { salt, ignore, folded } => with_seen(text, ignore, folded, |text| {
                random::push_digest(&salt, text, out);
                push_bytes::<false>(text, most, out);
            }),
            Rule::Version { ignore, folded } => with_seen(text, ignore, folded, |text| version::push_key(text, out)),
        }
        if self.reverse {
            complement(&mut out[from..]);
        }
    }
}

/// Appends at most about `most` bytes of a line, behind which nothing follows.
#[inline]
fn push_line(line: &[u8], reverse: bool, most: usize, out: &mut Vec<u8>) {
    if reverse {
        let from = out.len();
        push_bytes::<false>(line, most, out);
        complement(&mut out[from..]);
    } else {
        // The last part needs no end of its own.
        out.extend_from_slice(&line[..line.len().min(most)]);
    }
}

/// Appends at most about `most` of these bytes, folded or not, in a form that no other's begins: a
/// zero is followed by a one, and two zeros are the end.
#[inline]
fn push_bytes<const FOLDED: bool>(text: &[u8], most: usize, out: &mut Vec<u8>) {
    let (from, text) = (out.len(), &text[..text.len().min(most)]);
    out.extend_from_slice(text);
    if fold_and_find_zero::<FOLDED>(&mut out[from..]) {
        mark_zeros(from, out);
    }
    out.extend_from_slice(&[0, 0]);
}

/// Puts a one behind each zero from `from` on.
#[cold]
fn mark_zeros(from: usize, out: &mut Vec<u8>) {
    let text = out.split_off(from);
    for part in text.split_inclusive(|byte| *byte == 0) {
        out.extend_from_slice(part);
        if part.last() == Some(&0) {
            out.push(1);
        }
    }
}

#[inline]
fn complement(bytes: &mut [u8]) {
    bytes.iter_mut().for_each(|byte| *byte = !*byte);
}

/// Packs up to seven bytes and their number, which is all that `compare` needs.
#[inline]
fn short_word(text: &[u8], ignore: Ignore, folded: bool) -> u64 {
    let len = match ignore {
        Ignore::Nothing => text.len(),
        _ => kept(text, ignore, folded).count(),
    };
    load_kept(text, ignore, folded) | len as u64
}

/// The longest key that is gathered on the stack. Longer ones are rare; only they are allocated.
const STACK_BYTES: usize = 256;

/// Calls `f` with the bytes of `text` that a key compares: with the text itself, or with the bytes
/// kept, gathered on the stack.
#[inline]
fn with_seen<T>(text: &[u8], ignore: Ignore, folded: bool, f: impl FnOnce(&[u8]) -> T) -> T {
    if ignore == Ignore::Nothing && !folded { f(text) } else { with_kept(text, ignore, folded, f) }
}

fn with_kept<T>(text: &[u8], ignore: Ignore, folded: bool, f: impl FnOnce(&[u8]) -> T) -> T {
    if text.len() > STACK_BYTES {
        return f(&kept(text, ignore, folded).collect::<Vec<u8>>());
    }
    let mut buffer = [0; STACK_BYTES];
    let mut len = 0;
    for byte in kept(text, ignore, folded) {
        buffer[len] = byte;
        len += 1;
    }
    f(&buffer[..len])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn order(spec: &str, stable: bool, reverse: bool) -> TextOrder {
        let mut options = TextOptions { stable, separator: Some(b','), ..TextOptions::default() };
        if reverse {
            assert!(options.modifiers.set(b'r'));
        }
        options.keys.push(KeySpec::parse(spec.as_bytes()).unwrap_or_else(|_| panic!("{spec} is a key")));
        options.compile().unwrap_or_else(|e| panic!("{spec}: {e}"))
    }

    fn line() -> impl Strategy<Value = Vec<u8>> {
        let long = Just(b"12345678901234567".to_vec());
        let letters = proptest::collection::vec(prop_oneof![Just(0u8), Just(b'a'), Just(b'A'), Just(b'1')], 0..11);
        let field = prop_oneof![letters, long, Just(b"1.5K".to_vec()), Just(b"Jan".to_vec()), Just(b"-12".to_vec())];
        (field.clone(), field).prop_map(|(a, b)| [&a[..], b",", &b[..]].concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        /// The prefix and what follows it have the order of lines. No key begins another, unless it
        /// is a line as it is: nothing follows that.
        #[test]
        fn what_the_prefix_lacks(a in line(), b in line(), stable in any::<bool>(), reverse in any::<bool>()) {
            for spec in ["1,1", "1,1f", "1,1r", "1,1fr", "1.1,1.4", "1,1n", "1,1nr", "1,1g", "1,1h", "1,1M", "1,1V", "1,1d", "1"] {
                let order = order(spec, stable, reverse);
                let key = |line: &[u8]| {
                    let prefix = order.prefix(line);
                    let mut key = prefix.to_be_bytes().to_vec();
                    order.push_behind_prefix(line, prefix, usize::MAX, &mut key);
                    key
                };
                let (x, y) = (key(&a), key(&b));
                prop_assert_eq!(x.cmp(&y), order.compare(&a, &b), "{} {} {}", spec, stable, reverse);
                let nothing_follows = !stable || matches!(order.shape, Shape::Plain);
                prop_assert!(nothing_follows || x == y || !x.starts_with(&y) && !y.starts_with(&x), "{}", spec);
            }
        }
    }
}
