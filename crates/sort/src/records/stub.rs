//! The record that takes the place of a long line in slots and runs.
//!
//! ```text
//! | the line's first bytes | its key, escaped | its pieces | length, length of the key, hash | end |
//! ```
//! A stub has one byte more of its line than any line has that is not long. So the first bytes
//! order it among these. Two stubs that agree in all that they hold are told apart when they are
//! written (`long/tied.rs`). A stub has no terminator within it: numbers are hexadecimal digits.

/// Bytes of a number.
const NUMBER: usize = 16;
/// Bytes of a piece's place and checksum.
const PIECE: usize = NUMBER + 8;
/// The length, the length of the key, and the hash.
const TRAILER: usize = 3 * NUMBER;
/// The byte that begins an escaped one.
const ESCAPE: u8 = 2;
const TURNED: u8 = 0x40;

/// A stub, taken apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stub<'r> {
    /// What is known of its key, escaped.
    key: &'r [u8],
    /// The part that says where the line is, for [`StoredPlace::of`].
    pub(crate) place: &'r [u8],
    /// Bytes of the line and its terminator.
    pub(crate) len: u64,
    /// The hash of the line and its terminator.
    pub(crate) hash: u64,
}

/// Where a long line is, and what its bytes must be.
#[derive(Clone, Debug)]
pub(crate) struct StoredPlace {
    /// Bytes of the line without its terminator.
    pub(crate) len: u64,
    pub(crate) pieces: Vec<StoredPiece>,
}

/// Where a piece of a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredPiece {
    /// The offset in the spill places.
    pub(crate) at: u64,
    pub(crate) sum: u32,
}

fn number(digits: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

impl<'r> Stub<'r> {
    /// Takes the stub apart of a line of more than `limit` bytes; `None` if it is no stub.
    pub(crate) fn of(record: &'r [u8], limit: usize) -> Option<Stub<'r>> {
        let rest = record.get(limit.checked_add(1)?..)?;
        let rest = rest.get(..rest.len().checked_sub(1)?)?;
        let trailer = rest.get(rest.len().checked_sub(TRAILER)?..)?;
        let len = number(&trailer[..NUMBER])?;
        let key_len = usize::try_from(number(&trailer[NUMBER..2 * NUMBER])?).ok()?;
        let hash = number(&trailer[2 * NUMBER..])?;
        let (key, place) = rest.split_at_checked(key_len)?;
        Some(Stub { key, place, len, hash })
    }

    /// What is known of the key, byte by byte: two keys mostly differ soon.
    pub(crate) fn key(&self) -> impl Iterator<Item = u8> + Clone + use<'r> {
        let mut rest = self.key.iter();
        std::iter::from_fn(move || match *rest.next()? {
            ESCAPE => rest.next().map(|byte| byte ^ TURNED),
            byte => Some(byte),
        })
    }

    /// Whether the same is known of both keys.
    pub(crate) fn has_key_of(&self, other: &Stub<'_>) -> bool {
        self.key == other.key
    }
}

/// What a stub is made of.
pub(crate) struct StubParts<'p> {
    pub(crate) head: &'p [u8],
    pub(crate) key: &'p [u8],
    pub(crate) place: &'p StoredPlace,
    pub(crate) hash: u64,
    pub(crate) terminator: u8,
}

impl StubParts<'_> {
    /// Makes the stub.
    pub(crate) fn record(&self) -> Vec<u8> {
        let StoredPlace { len, pieces } = self.place;
        let rest = PIECE * pieces.len() + TRAILER + 1;
        let mut record = Vec::with_capacity(self.head.len() + self.key.len() + rest);
        record.extend_from_slice(self.head);
        for byte in self.key {
            if *byte == self.terminator || *byte == ESCAPE {
                record.extend_from_slice(&[ESCAPE, byte ^ TURNED]);
            } else {
                record.push(*byte);
            }
        }
        let key_len = (record.len() - self.head.len()) as u64;
        let numbers = |piece: &StoredPiece| format!("{:016x}{:08x}", piece.at, piece.sum);
        pieces.iter().for_each(|piece| record.extend_from_slice(numbers(piece).as_bytes()));
        let numbers = format!("{:016x}{key_len:016x}{:016x}", len.saturating_add(1), self.hash);
        record.extend_from_slice(numbers.as_bytes());
        record.push(self.terminator);
        record
    }
}

impl StoredPlace {
    /// Reads the place of a stub.
    pub(crate) fn of(place: &[u8]) -> Option<StoredPlace> {
        let (pieces, trailer) = place.split_at_checked(place.len().checked_sub(TRAILER)?)?;
        let piece = |digits: &[u8]| {
            let (at, sum) = digits.split_at_checked(NUMBER)?;
            Some(StoredPiece { at: number(at)?, sum: u32::try_from(number(sum)?).ok()? })
        };
        let len = number(&trailer[..NUMBER])?.checked_sub(1)?;
        Some(StoredPlace { len, pieces: pieces.chunks(PIECE).map(piece).collect::<Option<_>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_back_and_no_terminator_is_inside() {
        for terminator in [b'\n', 0] {
            let pieces = [(7 << 60, 0), (0, 10), (1, u32::MAX)].map(|(at, sum)| StoredPiece { at, sum });
            let place = StoredPlace { len: 1 << 40, pieces: pieces.to_vec() };
            let key: Vec<u8> = (0..=255).chain([ESCAPE, terminator]).collect();
            let record = StubParts { head: b"head", key: &key, place: &place, hash: 77, terminator }.record();
            assert_eq!(memchr::memchr(terminator, &record), Some(record.len() - 1));
            let stub = Stub::of(&record, 3).unwrap();
            assert_eq!((stub.len, stub.hash), (place.len + 1, 77));
            assert!(record.starts_with(b"head"));
            assert_eq!(stub.key().collect::<Vec<_>>(), key);
            let found = StoredPlace::of(stub.place).unwrap();
            assert_eq!((found.len, found.pieces), (place.len, place.pieces));
        }
        assert!(Stub::of(b"too short\n", 3).is_none());
        assert!(Stub::of(&[b'x'; 200], 3).is_none());
    }
}
