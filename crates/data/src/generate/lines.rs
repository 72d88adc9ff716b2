//! Text lines, generated block by block.
//!
//! A block is filled to its last byte with whole lines, so block `i` lies at `i * block_len` and
//! any thread can make any block. The price is that the lines at a block's end are cut to fit.
//! Rejected: blocks of varying length, which a writer could place only after all blocks before them
//! were made.

use super::random::{self, Stream};

/// The contents of lines. If a form states no lengths, they are 10 to 110 bytes, 60 on average.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LineForm {
    /// Random words.
    Words,
    /// Addresses with a long common prefix.
    Urls,
    /// Decimal numbers with signs, fractions and up to twelve digits; 9 bytes on average.
    Numbers,
    /// Four columns separated by tabs: word, integer, fraction, words.
    Fields,
    /// One thousand distinct lines.
    Duplicates,
    /// Four of five lines are the same one.
    Hot,
    /// Lines in ascending order.
    Sorted,
    /// Lines in descending order.
    Reverse,
    /// Lines in ascending order, except that one in a hundred is out of place.
    NearlySorted,
    /// The same line again and again, 64 bytes long.
    AllEqual,
    /// Lines of words, 1 KiB to 512 KiB long.
    Long,
    /// Words in which one byte of eight is NUL.
    Nul,
    /// Random bytes except the line end.
    Bytes,
}

/// The length of the lines of [`LineForm::AllEqual`]. It divides the block length, so that no line
/// is cut.
pub(super) const EQUAL_LEN: usize = 64;

impl LineForm {
    /// The bytes of each block; the last one of a stream may be shorter.
    pub(super) const fn block_len(self) -> usize {
        match self {
            Self::Long => 4 << 20,
            _ => 64 << 10,
        }
    }

    /// The mean bytes of a line, with its end.
    pub(super) const fn mean_len(self) -> usize {
        match self {
            Self::Numbers => 9,
            Self::Long => 256 << 10,
            Self::AllEqual => EQUAL_LEN,
            _ => 60,
        }
    }

    /// The most bytes, up to `bytes`, that can be filled without a last line that breaks the form's
    /// promise.
    pub(super) const fn usable_len(self, bytes: u64) -> u64 {
        let least = self.lengths().least as u64;
        let block_len = self.block_len() as u64;
        match self {
            Self::AllEqual => bytes - bytes % EQUAL_LEN as u64,
            // A shorter last line could not hold the letters that show its order.
            Self::Sorted | Self::NearlySorted if bytes > block_len && bytes % block_len < least => {
                bytes - bytes % block_len
            }
            _ => bytes,
        }
    }

    /// The lengths of lines with their ends; they are drawn uniformly.
    const fn lengths(self) -> Lengths {
        match self {
            Self::Numbers => Lengths { least: 2, most: 16 },
            Self::Long => Lengths { least: 1 << 10, most: 512 << 10 },
            Self::AllEqual => Lengths { least: EQUAL_LEN, most: EQUAL_LEN },
            // The sixteen letters that hold the order, and something behind them.
            Self::Sorted | Self::Reverse | Self::NearlySorted => Lengths { least: 24, most: 110 },
            _ => Lengths { least: 10, most: 110 },
        }
    }
}

#[derive(Clone, Copy)]
struct Lengths {
    least: usize,
    most: usize,
}

impl Lengths {
    fn draw(self, random: u64) -> usize {
        self.least + random::below(random, (self.most - self.least + 1) as u64) as usize
    }

    /// The length of a line if `room` bytes are left: cut so that the block ends with a line.
    fn fit(self, random: u64, room: usize) -> usize {
        if room <= self.most {
            room
        } else {
            // Two lines share the end, because the second would otherwise be too short.
            self.draw(random).min(room - self.least)
        }
    }
}

/// The stream that a block of lines is a part of.
#[derive(Clone, Copy, Debug)]
pub(super) struct LineSource {
    pub(super) form: LineForm,
    pub(super) seed: u64,
    /// Bytes in the whole stream; ordered forms spread their keys over it.
    pub(super) len_bytes: u64,
}

impl LineSource {
    /// Fills `out` with block number `block`.
    pub(super) fn fill(&self, block: u64, out: &mut [u8]) {
        let mut random = Stream::of_block(self.seed, block);
        let mut offset = block * self.form.block_len() as u64;
        let mut rest = out;
        while !rest.is_empty() {
            let len = self.line(offset, &mut random, rest);
            rest[len - 1] = b'\n';
            offset += len as u64;
            rest = &mut rest[len..];
        }
    }

    /// Writes the content of the line that starts at `offset` to the start of `room`, and returns
    /// the line's length. Bytes behind it in `room` may be overwritten too: they belong to later
    /// lines.
    fn line(&self, offset: u64, random: &mut Stream, room: &mut [u8]) -> usize {
        let first = random.next();
        let repeated = match self.form {
            LineForm::Duplicates => Some(random::mix(self.seed ^ (random::below(first, 1000) + 1))),
            LineForm::Hot if random::below(first, 5) != 0 => Some(random::mix(self.seed ^ 1)),
            LineForm::AllEqual => Some(random::mix(self.seed ^ 1)),
            _ => None,
        };
        if let Some(identity) = repeated {
            let mut fixed = Stream::of_block(identity, 0);
            let len = self.form.lengths().fit(fixed.next(), room.len());
            words(&mut fixed, room, len);
            return len;
        }
        let len = self.form.lengths().fit(random.next(), room.len());
        match self.form {
            LineForm::Urls => url(random, room, len),
            LineForm::Numbers => number(random, room, len),
            LineForm::Fields => fields(random, room, len),
            LineForm::Sorted => ordered(self.rank(offset), random, room, len),
            LineForm::Reverse => ordered(!self.rank(offset), random, room, len),
            LineForm::NearlySorted => {
                let rank = if random::below(first, 100) == 0 { random.next() } else { self.rank(offset) };
                ordered(rank, random, room, len);
            }
            LineForm::Nul => {
                words(random, room, len);
                sprinkle_nul(random, &mut room[..len]);
            }
            LineForm::Bytes => bytes(random, &mut room[..len]),
            _ => words(random, room, len),
        }
        len
    }

    /// The position of `offset` in the stream, as a fraction of 2^64.
    fn rank(&self, offset: u64) -> u64 {
        offset.wrapping_mul(u64::MAX / self.len_bytes.max(1))
    }
}

const BEGINNINGS: [&[u8]; 16] = [
    b"ca", b"de", b"fo", b"gra", b"hu", b"ki", b"lo", b"mar", b"ne", b"or", b"pla", b"ri", b"sto", b"ta", b"ve", b"wi",
];
const ENDINGS: [&[u8]; 16] = [
    b"b", b"ck", b"ding", b"er", b"fel", b"gh", b"lin", b"ment", b"nt", b"on", b"p", b"ry", b"sh", b"ter", b"um",
    b"zed",
];

/// Every beginning with every ending, and a blank, in eight bytes each.
const WORDS: [[u8; 8]; 256] = {
    let mut words = [[b' '; 8]; 256];
    let mut index = 0;
    while index < 256 {
        let (beginning, ending) = (BEGINNINGS[index / 16], ENDINGS[index % 16]);
        let mut at = 0;
        while at < beginning.len() + ending.len() {
            words[index][at] = if at < beginning.len() { beginning[at] } else { ending[at - beginning.len()] };
            at += 1;
        }
        index += 1;
    }
    words
};

/// The bytes of each word, with its blank.
const WORD_LENS: [u8; 256] = {
    let mut lens = [0; 256];
    let mut index = 0;
    while index < 256 {
        lens[index] = (BEGINNINGS[index / 16].len() + ENDINGS[index % 16].len() + 1) as u8;
        index += 1;
    }
    lens
};

/// Fills `room` with words up to `len`, and possibly some bytes further.
#[inline]
fn words(random: &mut Stream, room: &mut [u8], len: usize) {
    let mut at = 0;
    loop {
        let bits = random.next().to_le_bytes();
        for word in bits.map(usize::from) {
            if at >= len {
                return;
            }
            // Eight bytes are stored whatever the word's length; the next word overwrites the
            // surplus.
            put(&mut room[at..], &WORDS[word]);
            at += usize::from(WORD_LENS[word]);
        }
    }
}

/// Copies as much of `text` as fits to the start of `out`.
#[inline]
fn put<const N: usize>(out: &mut [u8], text: &[u8; N]) {
    if let Some(head) = out.first_chunk_mut::<N>() {
        *head = *text;
    } else {
        let len = out.len();
        out.copy_from_slice(&text[..len]);
    }
}

/// Eight decimal digits, uniform except for one part in 64.
#[inline]
fn digits(random: u64) -> [u8; 8] {
    // Each byte b becomes b * 10 / 256, in two halves, so that the products have room.
    const EVEN: u64 = 0x00FF_00FF_00FF_00FF;
    let even = (((random & EVEN) * 10) >> 8) & EVEN;
    let odd = ((((random >> 8) & EVEN) * 10) >> 8) & EVEN;
    ((even | odd << 8) | 0x3030_3030_3030_3030).to_le_bytes()
}

/// Returns `pattern` with digits in place of `#`.
#[inline]
fn filled<const N: usize>(pattern: &[u8; N], random: &mut Stream) -> [u8; N] {
    let mut text = *pattern;
    for group in text.chunks_mut(8) {
        if group.contains(&b'#') {
            let digits = digits(random.next());
            group.iter_mut().zip(digits).filter(|(byte, _)| **byte == b'#').for_each(|(byte, digit)| *byte = digit);
        }
    }
    text
}

fn url(random: &mut Stream, room: &mut [u8], len: usize) {
    const PATTERN: &[u8; 48] = b"https://www.example.org/library/###/#########?q=";
    put(room, &filled(PATTERN, random));
    if let Some(rest) = room.get_mut(PATTERN.len()..).filter(|_| len > PATTERN.len()) {
        let len = len - PATTERN.len();
        words(random, rest, len);
        rest[..len].iter_mut().for_each(|byte| *byte = if *byte == b' ' { b'+' } else { *byte });
    }
}

/// Writes a number that takes `len` bytes, with the line's end.
fn number(random: &mut Stream, room: &mut [u8], len: usize) {
    let shape = random.next();
    let mut text = [0; 16];
    text[..8].copy_from_slice(&digits(random.next()));
    text[8..].copy_from_slice(&digits(random.next()));
    let content_len = (len - 1) & 15;
    // A leading zero is legal but rare in such files.
    if text[0] == b'0' && shape & 48 != 0 {
        text[0] = b'1' + (shape >> 8) as u8 % 9;
    }
    if shape & 12 == 0 && content_len > 4 {
        text[content_len - 3] = b'.';
    }
    if shape & 3 == 0 && content_len > 1 {
        text[0] = b'-';
    }
    put(room, &text);
}

fn fields(random: &mut Stream, room: &mut [u8], len: usize) {
    let word = random.below(256) as usize;
    put(room, &WORDS[word]);
    let word_len = usize::from(WORD_LENS[word]);
    // The columns have three lengths each, so that fields do not begin at fixed offsets.
    let columns = match random.below(3) {
        0 => filled(b"\t####\t##.##\t         ", random),
        1 => filled(b"\t##\t-#.##\t           ", random),
        _ => filled(b"\t#######\t-###.#\t     ", random),
    };
    let columns_len = columns.iter().rposition(|byte| *byte == b'\t').map_or(0, |tab| tab + 1);
    put(&mut room[(word_len - 1).min(len)..], &columns);
    let start = (word_len - 1 + columns_len).min(len);
    words(random, &mut room[start..], len - start);
}

/// Writes a line that begins with `rank` in sixteen letters, so that lines have the order of their
/// ranks.
fn ordered(rank: u64, random: &mut Stream, room: &mut [u8], len: usize) {
    let mut letters = [b' '; 17];
    for (index, letter) in letters[..16].iter_mut().enumerate() {
        *letter = b'a' + ((rank >> (60 - 4 * index)) & 15) as u8;
    }
    put(room, &letters);
    let start = letters.len().min(len);
    words(random, &mut room[start..], len - start);
}

fn sprinkle_nul(random: &mut Stream, out: &mut [u8]) {
    let mut places = random.next();
    for group in out.chunks_mut(8) {
        let at = (places & 7) as usize;
        places = places.rotate_right(3);
        if let Some(byte) = group.get_mut(at) {
            *byte = 0;
        }
    }
}

fn bytes(random: &mut Stream, out: &mut [u8]) {
    let mut groups = out.chunks_exact_mut(8);
    for group in &mut groups {
        group.copy_from_slice(&random.next().to_le_bytes());
    }
    let rest = groups.into_remainder();
    let len = rest.len();
    rest.copy_from_slice(&random.next().to_le_bytes()[..len]);
    out.iter_mut().for_each(|byte| *byte = if *byte == b'\n' { 0xFF } else { *byte });
}
