//! What is said between the tasks of a sort and those that keep their blocks.
//!
//! ```text
//! request   magic (8)  ticket (32)  what (8)  file (8)  from (8)  to (8)
//! answer    magic (8)  errno (8)    number (8)
//! ```
//! All numbers are little-endian. A connection carries one request. Over TCP the bytes follow the
//! answer; over a Unix socket a file comes with the request or with the answer.

use std::fmt;

/// The first bytes of each request and answer. The last one counts versions.
const MAGIC: [u8; 8] = *b"dpblock\x01";

pub(super) const REQUEST_BYTES: usize = 72;
pub(super) const ANSWER_BYTES: usize = 24;

/// What lets a task have the blocks of a sort: 32 random bytes, which all tasks of one sort know.
///
/// It is sent as it is: whoever reads the network reads the blocks as well.
#[derive(Clone, Copy)]
pub struct BlockTicket([u8; 32]);

impl BlockTicket {
    /// Takes random bytes.
    pub fn new(bytes: [u8; 32]) -> BlockTicket {
        BlockTicket(bytes)
    }

    /// Compares in a time that does not tell how many bytes agree.
    pub(super) fn is(&self, other: &BlockTicket) -> bool {
        let differs = self.0.iter().zip(other.0).fold(0, |differs, (a, b)| differs | (a ^ b));
        std::hint::black_box(differs) == 0
    }
}

impl fmt::Debug for BlockTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BlockTicket(..)")
    }
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// Take the file that comes with this, and answer its number.
    Keep,
    /// Give the file.
    Open,
    /// Send bytes of the file.
    Send,
    /// Say whether the file is there.
    Ask,
}

const WHATS: [What; 4] = [What::Keep, What::Open, What::Send, What::Ask];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) what: What,
    pub(super) file: u64,
    pub(super) from: u64,
    pub(super) to: u64,
}

impl Request {
    pub(super) fn to_bytes(self, ticket: &BlockTicket) -> [u8; REQUEST_BYTES] {
        let what = WHATS.iter().position(|what| *what == self.what).unwrap_or(0) as u64;
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..40].copy_from_slice(&ticket.0);
        for (place, number) in bytes[40..].chunks_exact_mut(8).zip([what, self.file, self.from, self.to]) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Returns the request, if it is one, and the ticket that comes with it.
    pub(super) fn parse(bytes: &[u8]) -> Option<(BlockTicket, Request)> {
        if bytes.len() != REQUEST_BYTES || bytes[..8] != MAGIC {
            return None;
        }
        let ticket = BlockTicket(bytes[8..40].try_into().ok()?);
        let [what, file, from, to] = numbers(&bytes[40..])?;
        let what = *WHATS.get(usize::try_from(what).ok()?)?;
        Some((ticket, Request { what, file, from, to }))
    }
}

/// An answer: an error's number, 0 if all is well, and a number that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) errno: i32,
    pub(super) number: u64,
}

impl Answer {
    pub(super) fn to_bytes(self) -> [u8; ANSWER_BYTES] {
        let mut bytes = [0; ANSWER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&i64::from(self.errno).to_le_bytes());
        bytes[16..].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Answer> {
        if bytes.len() != ANSWER_BYTES || bytes[..8] != MAGIC {
            return None;
        }
        let [errno, number] = numbers(&bytes[8..])?;
        Some(Answer { errno: i32::try_from(errno.cast_signed()).ok()?, number })
    }
}

fn numbers<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let mut numbers = [0; N];
    for (number, place) in numbers.iter_mut().zip(bytes.chunks_exact(8)) {
        *number = u64::from_le_bytes(place.try_into().ok()?);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood_and_a_wrong_ticket_is_not() {
        let ticket = BlockTicket::new([7; 32]);
        for what in WHATS {
            let request = Request { what, file: 3, from: 1 << 40, to: u64::MAX };
            let bytes = request.to_bytes(&ticket);
            let parsed = |bytes: &[u8]| Request::parse(bytes).filter(|(came, _)| ticket.is(came)).map(|(_, of)| of);
            assert_eq!(parsed(&bytes), Some(request));
            for i in 0..48 {
                let mut wrong = bytes;
                wrong[i] ^= 0x40;
                assert_eq!(parsed(&wrong), None, "byte {i}");
            }
            assert_eq!(parsed(&bytes[..71]), None);
        }
        let answer = Answer { errno: 28, number: 9 };
        assert_eq!(Answer::parse(&answer.to_bytes()), Some(answer));
        assert_eq!(Answer::parse(&[0; ANSWER_BYTES]), None);
        assert_eq!(format!("{ticket:?}"), "BlockTicket(..)");
    }
}
