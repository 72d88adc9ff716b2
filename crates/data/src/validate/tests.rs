//! The checker compared with a naive twin, fed in any pieces, and joined from any parts.

use std::cmp::Ordering;

use proptest::prelude::*;

use super::*;
use crate::generate::{Amount, DataKind, Generator};

/// All formats; in data of a small alphabet they have many equal and unordered records.
fn formats() -> Vec<DataFormat> {
    let layout = RecordLayout { record_len: 7, key_offset: 2, key_len: 3 };
    vec![
        DataFormat::records(layout).unwrap(),
        DataFormat::records(RecordLayout { record_len: 13, key_offset: 1, key_len: 11 }).unwrap(),
        DataFormat::benchmark_records(),
        DataFormat::u32(),
        DataFormat::u64(),
        DataFormat::i64(),
        DataFormat::f64(),
        DataFormat::lines(),
        DataFormat::lines().terminated_by(0),
        DataFormat::lines().ordered_by(|left, right| left.len().cmp(&right.len())),
    ]
}

fn whole(format: &DataFormat, bytes: &[u8]) -> ValidationSummary {
    let mut checker = Checker::new(format.clone());
    checker.feed(bytes);
    checker.finish()
}

/// Returns the records of `bytes` with their offsets, found the simple way.
fn split<'a>(format: &DataFormat, bytes: &'a [u8]) -> Vec<(u64, &'a [u8])> {
    let mut records = Vec::new();
    let mut start = 0;
    while start < bytes.len() {
        let rest = &bytes[start..];
        let (record, taken) = match (format.record_len(), &format.0) {
            (Some(len), _) if rest.len() < len => break,
            (Some(len), _) => (&rest[..len], len),
            (None, super::format::Shape::Lines { terminator, .. }) => {
                let end = rest.iter().position(|byte| byte == terminator);
                (&rest[..end.unwrap_or(rest.len())], end.map_or(rest.len(), |end| end + 1))
            }
            (None, _) => unreachable!("only lines have no length"),
        };
        records.push((start as u64, record));
        start += taken;
    }
    records
}

fn naive(format: &DataFormat, bytes: &[u8]) -> ValidationSummary {
    let records = split(format, bytes);
    let orders: Vec<Ordering> = records.windows(2).map(|pair| naive_compare(format, pair[0].1, pair[1].1)).collect();
    let first_unordered = orders.iter().position(|order| order.is_gt()).map(|index| index + 1);
    let in_records = format.record_len().map_or(bytes.len(), |len| records.len() * len);
    ValidationSummary {
        records: records.len() as u64,
        bytes: bytes.len() as u64,
        unordered: orders.iter().filter(|order| order.is_gt()).count() as u64,
        first_unordered_record: first_unordered.map(|index| index as u64),
        first_unordered_offset: first_unordered.map(|index| records[index].0),
        duplicates: orders.iter().filter(|order| order.is_eq()).count() as u64,
        checksum: records.iter().map(|(_, record)| u128::from(crc32fast::hash(record))).sum(),
        trailing_bytes: (bytes.len() - in_records) as u64,
        first: records.first().map_or(Vec::new(), |(_, record)| record.to_vec()),
        last: records.last().map_or(Vec::new(), |(_, record)| record.to_vec()),
    }
}

fn naive_compare(format: &DataFormat, left: &[u8], right: &[u8]) -> Ordering {
    use super::format::Shape;
    use super::order::NumberOrder;
    let eight = |bytes: &[u8]| <[u8; 8]>::try_from(bytes).unwrap();
    match &format.0 {
        Shape::Records(order) => {
            let key = order.layout.key_offset..order.layout.key_offset + order.layout.key_len;
            left[key.clone()].cmp(&right[key])
        }
        Shape::Numbers(NumberOrder::U32) => {
            let four = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
            four(left).cmp(&four(right))
        }
        Shape::Numbers(NumberOrder::U64) => u64::from_le_bytes(eight(left)).cmp(&u64::from_le_bytes(eight(right))),
        Shape::Numbers(NumberOrder::I64) => i64::from_le_bytes(eight(left)).cmp(&i64::from_le_bytes(eight(right))),
        Shape::Numbers(NumberOrder::F64) => {
            f64::from_le_bytes(eight(left)).total_cmp(&f64::from_le_bytes(eight(right)))
        }
        Shape::Lines { order, .. } => match &order.0 {
            Some(compare) => compare(left, right),
            None => left.cmp(right),
        },
    }
}

/// Data of few values, so that keys repeat and terminators are frequent, and data of long runs, so
/// that whole records repeat.
fn data() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![4 => Just(0u8), 2 => Just(b'\n'), 2 => Just(b'a'), 1 => any::<u8>()];
    let few = proptest::collection::vec(byte, 0..900);
    let repeated =
        (proptest::collection::vec(any::<u8>(), 1..20), 0usize..60).prop_map(|(part, times)| part.repeat(times));
    prop_oneof![few, repeated, proptest::collection::vec(any::<u8>(), 0..900)]
}

proptest! {
    #[test]
    fn any_pieces_give_what_the_naive_twin_gives(
        bytes in data(), pieces in proptest::collection::vec(0usize..150, 1..40)
    ) {
        for format in formats() {
            let mut checker = Checker::new(format.clone());
            let mut rest = bytes.as_slice();
            for piece in pieces.iter().cycle().take(1000) {
                let (head, tail) = rest.split_at((*piece).min(rest.len()));
                checker.feed(head);
                rest = tail;
            }
            checker.feed(rest);
            prop_assert_eq!(checker.finish(), naive(&format, &bytes), "{:?}", &format);
        }
    }

    #[test]
    fn joined_parts_equal_the_whole(bytes in data(), cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..5)) {
        for format in formats() {
            let starts: Vec<usize> = split(&format, &bytes).iter().map(|(start, _)| *start as usize).collect();
            let mut cuts: Vec<usize> = match starts.len() {
                0 => Vec::new(),
                count => cuts.iter().map(|cut| starts[cut.index(count)]).collect(),
            };
            cuts.sort_unstable();
            let mut joined = ValidationSummary::default();
            let mut from = 0;
            for cut in cuts.into_iter().chain([bytes.len()]) {
                joined = joined.join(whole(&format, &bytes[from..cut]), &format);
                from = cut;
            }
            prop_assert_eq!(joined, whole(&format, &bytes), "{:?}", &format);
        }
    }

    #[test]
    fn sorting_keeps_the_checksum_and_makes_order(bytes in data()) {
        for format in formats() {
            let mut records: Vec<&[u8]> = split(&format, &bytes).into_iter().map(|(_, record)| record).collect();
            records.sort_by(|left, right| format.compare(left, right));
            let end: &[u8] = match &format.0 {
                super::format::Shape::Lines { terminator, .. } => std::slice::from_ref(terminator),
                _ => &[],
            };
            let sorted: Vec<u8> = records.iter().flat_map(|record| [*record, end].concat()).collect();
            let (before, after) = (whole(&format, &bytes), whole(&format, &sorted));
            prop_assert!(after.is_ordered());
            prop_assert_eq!((before.records, before.checksum), (after.records, after.checksum), "{:?}", &format);
        }
    }
}

#[test]
fn an_unsorted_file_gets_valsorts_verdict() {
    // valsort 1.5 says of it (`gensort -a 100000 f; valsort f`): first unordered record 2, 50051
    // unordered records.
    let generator = Generator::new("records-ascii".parse::<DataKind>().unwrap(), Amount::Records(100_000));
    let mut bytes = vec![0; 10_000_000];
    generator.fill(0, &mut bytes);
    let summary = whole(&DataFormat::benchmark_records(), &bytes);
    assert_eq!((summary.records, summary.unordered, summary.duplicates), (100_000, 50_051, 0));
    assert_eq!((summary.first_unordered_record, summary.first_unordered_offset), (Some(2), Some(200)));
    assert_eq!(summary.checksum_hex(), "c34e19c81885");
}

#[test]
fn keys_outside_the_record_are_refused() {
    assert!(DataFormat::records(RecordLayout { record_len: 10, key_offset: 5, key_len: 6 }).is_none());
    assert!(DataFormat::records(RecordLayout { record_len: 0, key_offset: 0, key_len: 0 }).is_none());
    assert!(DataFormat::records(RecordLayout { record_len: 10, key_offset: usize::MAX, key_len: 6 }).is_none());
}

#[test]
fn a_cut_record_is_not_order() {
    let summary = whole(&DataFormat::u64(), &[0; 20]);
    assert_eq!((summary.records, summary.trailing_bytes, summary.is_ordered()), (2, 4, false));
}
