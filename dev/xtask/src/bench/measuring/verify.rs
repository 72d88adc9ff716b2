//! Whether an output is right, judged here and not by any contestant: the records are in order, and
//! they are the input's records (count and the sum of a hash of each, which does not depend on
//! order). Once an output has passed, the same bytes from another run need only the cheap digest of
//! the file.

use crate::TaskResult;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// Small enough that our own memory never shows in a child's peak RSS (see `measure::METHOD`).
const BUFFER_BYTES: usize = 1 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::bench) enum Order {
    /// Records of 100 bytes by their first 10, as the sort benchmark has them.
    Records,
    /// Little-endian numbers.
    U64,
    /// Whole lines by bytes.
    Lines,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Content {
    count: u64,
    hash_sum: u64,
    first_disorder: Option<u64>,
}

#[derive(Default)]
pub(in crate::bench) struct Verifier {
    inputs: HashMap<(PathBuf, Order), Content>,
    good: HashMap<PathBuf, u64>,
}

impl Verifier {
    /// Says how the output was found right, or `WRONG: ...`.
    pub(in crate::bench) fn check(&mut self, input: &Path, output: &Path, order: Order) -> TaskResult<String> {
        let digest = digest(output)?;
        let known = self.good.get(input).copied();
        if known == Some(digest) {
            return Ok("right (same bytes as an output that was examined)".into());
        }
        let expected = match self.inputs.get(&(input.to_path_buf(), order)) {
            Some(content) => content.clone(),
            None => examine(input, order)?,
        };
        self.inputs.insert((input.to_path_buf(), order), expected.clone());
        let found = examine(output, order)?;
        if let Some(at) = found.first_disorder {
            return Ok(format!("WRONG: record {at} is smaller than the one before it"));
        }
        if (found.count, found.hash_sum) != (expected.count, expected.hash_sum) {
            return Ok(format!("WRONG: {} records of other content; the input has {}", found.count, expected.count));
        }
        if known.is_some() {
            return Ok("right (in order, the input's records; bytes differ from another right output: ties)".into());
        }
        self.good.insert(input.to_path_buf(), digest);
        Ok(format!("right (examined: {} records in order, the input's multiset)", found.count))
    }
}

fn open(path: &Path) -> TaskResult<BufReader<File>> {
    let file = File::open(path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(BufReader::with_capacity(BUFFER_BYTES, file))
}

fn examine(path: &Path, order: Order) -> TaskResult<Content> {
    let mut reader = open(path)?;
    let mut content = Content { count: 0, hash_sum: 0, first_disorder: None };
    let (mut last, mut next) = (Vec::new(), Vec::new());
    while next_record(&mut reader, order, &mut next)? {
        if content.count > 0 && content.first_disorder.is_none() && is_before(&next, &last, order) {
            content.first_disorder = Some(content.count);
        }
        content.hash_sum = content.hash_sum.wrapping_add(hash(&next, 0));
        content.count += 1;
        std::mem::swap(&mut last, &mut next);
    }
    Ok(content)
}

fn next_record(reader: &mut BufReader<File>, order: Order, record: &mut Vec<u8>) -> TaskResult<bool> {
    record.clear();
    let record_len = match order {
        Order::Records => 100,
        Order::U64 => 8,
        Order::Lines => {
            let more = reader.read_until(b'\n', record)? > 0;
            // A last line without its newline is the same line with it.
            record.pop_if(|last| *last == b'\n');
            return Ok(more);
        }
    };
    // read_to_end on the limited reader finishes short reads; what is left over is a torn record.
    reader.take(record_len).read_to_end(record)?;
    match record.len() as u64 {
        0 => Ok(false),
        n if n == record_len => Ok(true),
        n => Err(format!("the last record has {n} of {record_len} bytes").into()),
    }
}

fn is_before(a: &[u8], b: &[u8], order: Order) -> bool {
    match order {
        Order::Records => a[..10] < b[..10],
        Order::U64 => a.iter().rev().lt(b.iter().rev()), // most significant byte first
        Order::Lines => a < b,
    }
}

fn digest(path: &Path) -> TaskResult<u64> {
    let mut reader = open(path)?;
    let mut digest = 0;
    let mut block = Vec::with_capacity(BUFFER_BYTES);
    loop {
        block.clear();
        if (&mut reader).take(BUFFER_BYTES as u64).read_to_end(&mut block)? == 0 {
            return Ok(digest);
        }
        digest = hash(&block, digest);
    }
}

/// A hash that tells apart what went wrong by accident; nobody attacks it. The length takes part.
fn hash(bytes: &[u8], seed: u64) -> u64 {
    const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;
    let (words, tail) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..tail.len()].copy_from_slice(tail);
    let mix = |h: u64, word: u64| (h ^ word).wrapping_mul(MULTIPLIER).rotate_left(29);
    let h = words.iter().fold(seed ^ bytes.len() as u64, |h, word| mix(h, u64::from_le_bytes(*word)));
    let h = mix(h, u64::from_le_bytes(last));
    (h ^ (h >> 32)).wrapping_mul(MULTIPLIER)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(input: &[u8], output: &[u8], order: Order) -> String {
        let name = format!("xtask-verify-{}-{:x}", std::process::id(), hash(output, hash(input, order as u64)));
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let (a, b) = (dir.join("in"), dir.join("out"));
        std::fs::write(&a, input).unwrap();
        std::fs::write(&b, output).unwrap();
        let mut verifier = Verifier::default();
        let first = verifier.check(&a, &b, order).unwrap();
        if first.starts_with("right") {
            assert!(verifier.check(&a, &b, order).unwrap().contains("same bytes"));
        }
        std::fs::remove_dir_all(&dir).unwrap();
        first
    }

    #[test]
    fn lines() {
        assert!(check(b"b\na\n\nc", b"\na\nb\nc\n", Order::Lines).starts_with("right"));
        assert!(check(b"b\na\n", b"b\na\n", Order::Lines).contains("WRONG: record 1"));
        assert!(check(b"b\na\n", b"a\na\n", Order::Lines).contains("other content"));
        assert!(check(b"b\na\n", b"a\n", Order::Lines).contains("other content"));
    }

    #[test]
    fn numbers_compare_by_value() {
        let bytes = |numbers: &[u64]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
        assert!(check(&bytes(&[256, 1]), &bytes(&[1, 256]), Order::U64).starts_with("right"));
        assert!(check(&bytes(&[256, 1]), &bytes(&[256, 1]), Order::U64).starts_with("WRONG"));
    }

    #[test]
    fn records_compare_by_key() {
        let record = |key: u8, rest: u8| [&[key; 10][..], &[rest; 90][..]].concat();
        let input = [record(2, 0), record(1, 9), record(1, 3)].concat();
        let sorted = [record(1, 9), record(1, 3), record(2, 0)].concat();
        assert!(check(&input, &sorted, Order::Records).starts_with("right"));
        assert!(check(&input, &input, Order::Records).starts_with("WRONG"));
    }
}
