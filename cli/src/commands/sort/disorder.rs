//! The first record that may not stand where it stands. Bytes come in pieces that need not end
//! where records end.

use std::cmp::Ordering;

use datapipes_sort::text::TextOrder;

/// The shape of a record, and the order.
#[derive(Clone, Debug)]
pub(super) enum Rule {
    /// Records of a fixed length, by the bytes of a key.
    Records { len: usize, key_at: usize, key_len: usize, reverse: bool },
    /// Little-endian numbers of a fixed length, by a word that orders as they do.
    Numbers { len: usize, word: fn(u64) -> u64, reverse: bool },
    /// Lines; a reverse order is in the order itself.
    Lines { order: Box<TextOrder>, terminator: u8 },
}

impl Rule {
    /// Where the first record ends in `bytes`, of which `before` bytes came earlier; and what
    /// follows it.
    fn end_of_first(&self, before: usize, bytes: &[u8]) -> Option<usize> {
        match self {
            Rule::Records { len, .. } | Rule::Numbers { len, .. } => Some(len - before).filter(|n| *n <= bytes.len()),
            Rule::Lines { terminator, .. } => memchr::memchr(*terminator, bytes).map(|at| at + 1),
        }
    }

    /// A record as it is compared: lines without their terminator.
    fn body<'r>(&self, record: &'r [u8]) -> &'r [u8] {
        match self {
            Rule::Lines { .. } => &record[..record.len() - 1],
            Rule::Records { .. } | Rule::Numbers { .. } => record,
        }
    }

    fn compare(&self, one: &[u8], other: &[u8]) -> Ordering {
        let turned = |order: Ordering, reverse: bool| if reverse { order.reverse() } else { order };
        match self {
            Rule::Records { key_at, key_len, reverse, .. } => {
                let key = *key_at..key_at + key_len;
                turned(one[key.clone()].cmp(&other[key]), *reverse)
            }
            Rule::Numbers { word, reverse, .. } => turned(word(little(one)).cmp(&word(little(other))), *reverse),
            Rule::Lines { order, .. } => order.compare(one, other),
        }
    }
}

/// Orders an unsigned number's bits as the number.
pub(super) fn unsigned(bits: u64) -> u64 {
    bits
}

/// Orders a signed number's bits as the number.
pub(super) fn signed(bits: u64) -> u64 {
    bits ^ (1 << 63)
}

/// Orders a double's bits in IEEE 754's total order.
pub(super) fn float(bits: u64) -> u64 {
    if bits >> 63 == 1 { !bits } else { bits | (1 << 63) }
}

fn little(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    let len = bytes.len().min(8);
    word[..len].copy_from_slice(&bytes[..len]);
    u64::from_le_bytes(word)
}

/// A record out of order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Disorder {
    /// Its number, from 0.
    pub(super) record: u64,
    /// Lines come without their terminator.
    pub(super) bytes: Vec<u8>,
}

/// Looks for it.
#[derive(Debug)]
pub(super) struct Search<'a> {
    rule: &'a Rule,
    /// Whether equal neighbours are out of order too.
    strict: bool,
    records: u64,
    last: Option<Vec<u8>>,
    /// The beginning of a record whose end has not come yet.
    carry: Vec<u8>,
    found: Option<Disorder>,
}

impl<'a> Search<'a> {
    pub(super) fn new(rule: &'a Rule, strict: bool) -> Self {
        Search { rule, strict, records: 0, last: None, carry: Vec::new(), found: None }
    }

    /// Looks at the bytes that follow; whether it has found one.
    pub(super) fn push(&mut self, mut bytes: &[u8]) -> bool {
        if !self.carry.is_empty() {
            let Some(end) = self.rule.end_of_first(self.carry.len(), bytes) else {
                self.carry.extend_from_slice(bytes);
                return false;
            };
            let mut record = std::mem::take(&mut self.carry);
            record.extend_from_slice(&bytes[..end]);
            self.after_last(&record);
            bytes = &bytes[end..];
        }
        let mut previous: Option<&[u8]> = None;
        while self.found.is_none()
            && let Some(end) = self.rule.end_of_first(0, bytes)
        {
            let (record, rest) = bytes.split_at(end);
            match previous {
                None => self.after_last(record),
                Some(previous) => self.follow(previous, self.rule.body(record)),
            }
            previous = Some(self.rule.body(record));
            bytes = rest;
        }
        if let Some(previous) = previous {
            self.last = Some(previous.to_vec());
        }
        self.carry.extend_from_slice(bytes);
        self.found.is_some()
    }

    /// Returns what was found. The last line may lack its terminator.
    ///
    /// # Errors
    /// The number of bytes at the end that are less than a record, where nothing was found before
    /// them.
    pub(super) fn finish(mut self) -> Result<Option<Disorder>, usize> {
        if self.found.is_none() && !self.carry.is_empty() {
            let Rule::Lines { terminator, .. } = self.rule else { return Err(self.carry.len()) };
            let mut rest = std::mem::take(&mut self.carry);
            rest.push(*terminator);
            self.after_last(&rest);
        }
        Ok(self.found)
    }

    /// A record after the last one of the piece before.
    fn after_last(&mut self, record: &[u8]) {
        let body = self.rule.body(record);
        match self.last.take() {
            Some(last) => self.follow(&last, body),
            None => self.records += 1,
        }
        self.last = Some(body.to_vec());
    }

    #[inline]
    fn follow(&mut self, previous: &[u8], body: &[u8]) {
        let order = self.rule.compare(previous, body);
        if order == Ordering::Greater || (self.strict && order == Ordering::Equal) {
            self.found.get_or_insert_with(|| Disorder { record: self.records, bytes: body.to_vec() });
        }
        self.records += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(rule: &Rule, strict: bool, bytes: &[u8], piece: usize) -> Option<(u64, Vec<u8>)> {
        let mut search = Search::new(rule, strict);
        let _ = bytes.chunks(piece).find(|p| search.push(p));
        search.finish().unwrap().map(|d| (d.record, d.bytes))
    }

    #[test]
    fn pieces_do_not_matter() {
        let order = datapipes_sort::text::TextOptions::default().compile();
        let rule = Rule::Lines { order: Box::new(order.unwrap_or_else(|e| panic!("{e}"))), terminator: b'\n' };
        for piece in 1..20 {
            assert_eq!(search(&rule, false, b"a\nb\nb\nlonger line\na\nno end", piece), Some((4, b"a".to_vec())));
            assert_eq!(search(&rule, true, b"a\nb\nb\nlonger line\na\nno end", piece), Some((2, b"b".to_vec())));
            assert_eq!(search(&rule, true, b"a\nb\na", piece), Some((2, b"a".to_vec())));
            assert_eq!(search(&rule, true, b"\na\nb\n", piece), None);
        }
    }

    #[test]
    fn numbers_and_records() {
        let numbers: Vec<u8> = [-5i64, -5, 3, 9, 2].into_iter().flat_map(i64::to_le_bytes).collect();
        let rule = Rule::Numbers { len: 8, word: signed, reverse: false };
        assert_eq!(search(&rule, false, &numbers, 13).map(|d| d.0), Some(4));
        assert_eq!(search(&rule, true, &numbers, 13).map(|d| d.0), Some(1));
        let rule = Rule::Records { len: 8, key_at: 0, key_len: 1, reverse: true };
        assert_eq!(search(&rule, false, &numbers, 64).map(|d| d.0), Some(3));
        let ordered = [f64::NEG_INFINITY, -1.0, -0.0, 0.0, 1e-300, 1.0, f64::INFINITY];
        assert!(ordered.is_sorted_by_key(|n| float(n.to_bits())));
    }
}
