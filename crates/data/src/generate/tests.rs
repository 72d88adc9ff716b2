//! Known answers of gensort 1.5, and ranges compared with the whole.

use proptest::prelude::*;

use super::*;
use crate::validate::{Checker, DataFormat};

fn content(generator: &Generator) -> Vec<u8> {
    let mut bytes = vec![0; generator.len_bytes() as usize];
    assert_eq!(generator.fill(0, &mut bytes), bytes.len());
    bytes
}

fn generated(kind: RecordForm, first_record: u128, records: u64) -> Vec<u8> {
    content(&Generator::new(DataKind::Records(kind), Amount::Records(records)).with_first_record(first_record))
}

fn checksum(bytes: &[u8]) -> u128 {
    let mut checker = Checker::new(DataFormat::benchmark_records());
    checker.feed(bytes);
    checker.finish().checksum
}

#[test]
fn ascii_records_begin_as_gensort_a() {
    // These are the first and last lines of `gensort -a 10`.
    let text = String::from_utf8(generated(RecordForm::Ascii, 0, 10)).unwrap();
    let expected = "\
        AsfAGHM5om  00000000000000000000000000000000  0000222200002222000022220000222200002222000000001111\r\n\
        ~sHd0jDv6X  00000000000000000000000000000001  77779999444488885555CCCC777755555555BBBB666644446666\r\n\
        uI^EYm8s=|  00000000000000000000000000000002  CCCCFFFF777799995555FFFF11112222999988884444DDDDFFFF\r\n";
    assert!(text.starts_with(expected), "{text}");
    let keys: Vec<&str> = text.lines().map(|line| &line[..10]).collect();
    let expected = "Q)JN)R9z-L o4FoBkqERn *}-Wz1;TD- 0fssx}~[oB mz4VCN@a#\" my+=5r7(N| 5HA\\z%qt{%";
    assert_eq!(keys[3..].join(" "), expected);
}

#[test]
fn binary_records_begin_as_gensort() {
    let first = generated(RecordForm::Binary, 0, 1);
    assert!(first.starts_with(b"JimGrayRIP"));
    // This is the output of `gensort -b1000000 1`.
    let expected = "32c9af20bff42df02caad10b35214296ed308badc658d912b20521ea0875b47d7760bb99b3c3de52fb257f7ba725563328\
        6985def956746d3a50a0221acea632be879a15ee9a20c5e3560118e4093602b4b166ccf3cd2ed6f6ef741685271525355545a5";
    let hex: String = generated(RecordForm::Binary, 1_000_000, 1).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, expected);
}

#[test]
fn checksums_are_those_of_gensort_c() {
    // The sums are those of `gensort [-a] [-s] -c 100000 f`; for the first form also of the million
    // records of `gensort -c 1000000 f`.
    let forms = [RecordForm::Binary, RecordForm::Ascii, RecordForm::Skewed, RecordForm::AsciiSkewed];
    let sums = [0xc306_8574_c6ff, 0xc34e_19c8_1885, 0xc348_0c05_3dda, 0xc30e_6c1f_e3e5];
    for (form, sum) in forms.into_iter().zip(sums) {
        assert_eq!(checksum(&generated(form, 0, 100_000)), sum, "{form:?}");
    }
    assert_eq!(checksum(&generated(RecordForm::Binary, 0, 1_000_000)), 0x7_a0e0_d486_8cd4);
    // `gensort -a -b18446744073709551614 -c 1000 f` crosses the 64-bit boundary of the record
    // number.
    assert_eq!(checksum(&generated(RecordForm::Ascii, u128::from(u64::MAX) - 1, 1000)), 0x1f0_d1b7_7862);
}

#[test]
fn every_skew_class_is_gensorts() {
    // The checksums of four records from 2^k - 2 on, added up over k in 1..128, are those of
    // gensort's output.
    for (form, expected) in [(RecordForm::Skewed, 0x104_b14c_2fea), (RecordForm::AsciiSkewed, 0x108_a7ed_e8d4)] {
        let sum: u128 = (1..128).map(|power| checksum(&generated(form, (1u128 << power) - 2, 4))).sum();
        assert_eq!(sum, expected, "{form:?}");
    }
}

#[test]
fn record_forms_are_what_they_say() {
    let keys = |form| {
        let records = generated(form, 0, 20_000);
        records.chunks(RECORD_LEN).map(|record| record[..KEY_LEN].to_vec()).collect::<Vec<_>>()
    };
    let distinct = |keys: &[Vec<u8>]| keys.iter().collect::<std::collections::HashSet<_>>().len();
    assert!(keys(RecordForm::Sorted).is_sorted_by(|left, right| left < right));
    assert!(keys(RecordForm::Reverse).is_sorted_by(|left, right| left > right));
    assert_eq!(distinct(&keys(RecordForm::AllEqual)), 1);
    assert_eq!(distinct(&keys(RecordForm::Duplicates)), 1000);
    let hot = distinct(&keys(RecordForm::Hot));
    assert!((3_700..4_300).contains(&hot), "{hot}");
    let descents = keys(RecordForm::NearlySorted).windows(2).filter(|pair| pair[0] > pair[1]).count();
    assert!((100..400).contains(&descents), "{descents}");
}

fn lines(form: LineForm, len: u64) -> Vec<Vec<u8>> {
    let bytes = content(&Generator::new(DataKind::Lines(form), Amount::Bytes(len)).with_seed(9));
    assert_eq!(bytes.last(), Some(&b'\n'), "{form:?}");
    bytes[..bytes.len() - 1].split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
}

#[test]
fn line_forms_are_what_they_say() {
    let distinct = |lines: &[Vec<u8>]| lines.iter().collect::<std::collections::HashSet<_>>().len();
    // These lengths leave last lines of every kind in the last block.
    for len in [1, 5, 64, 65_536, 65_537, 65_536 + 23, 65_536 + 24, 1_000_000] {
        assert!(lines(LineForm::Sorted, len).is_sorted_by(|left, right| left < right), "{len}");
        assert!(lines(LineForm::Reverse, len).is_sorted_by(|left, right| left > right), "{len}");
    }
    assert_eq!(distinct(&lines(LineForm::AllEqual, 1_000_000)), 1);
    let words = lines(LineForm::Words, 1_000_000);
    // Lines of one or two words may be equal; the others are not.
    assert!(distinct(&words) + 20 > words.len());
    assert!(words.iter().all(|line| line.len() < 110 && line.is_ascii()));
    let mean = 1_000_000 / words.len();
    assert!((58..62).contains(&mean), "{mean}");
    let duplicates = distinct(&lines(LineForm::Duplicates, 1_000_000));
    assert!((1000..1050).contains(&duplicates), "{duplicates}");
    let hot = lines(LineForm::Hot, 1_000_000);
    let most = hot.iter().filter(|line| **line == hot[100] || **line == hot[101]).count();
    assert!(most * 10 > hot.len() * 7, "{most} of {}", hot.len());
    assert!(
        lines(LineForm::Urls, 1_000_000).iter().all(|line| b"https://www.example.org/library/".starts_with(&line[..9]))
    );
    assert!(lines(LineForm::Nul, 100_000).iter().filter(|line| line.contains(&0)).count() > 1000);
    assert!(lines(LineForm::Bytes, 100_000).iter().flatten().any(|byte| *byte > 127));
    assert!(lines(LineForm::Long, 8 << 20).iter().any(|line| line.len() > 300_000));
    for line in lines(LineForm::Numbers, 100_000) {
        let text = String::from_utf8(line).unwrap();
        assert!(text.is_empty() || text.parse::<f64>().is_ok(), "{text:?}");
    }
    let fields = lines(LineForm::Fields, 100_000);
    let full = fields.iter().filter(|line| line.iter().filter(|byte| **byte == b'\t').count() == 3).count();
    assert!(full * 10 > fields.len() * 7, "{full} of {}", fields.len());
}

#[test]
fn seeds_differ_and_repeat() {
    for kind in DataKind::all() {
        let bytes = |seed| content(&Generator::new(kind, Amount::Bytes(100_000)).with_seed(seed));
        assert_eq!(bytes(1), bytes(1), "{kind}");
        let one_for_all = matches!(
            kind,
            DataKind::Records(form) if !matches!(form, RecordForm::Duplicates | RecordForm::Hot | RecordForm::NearlySorted)
        );
        assert_eq!(bytes(1) == bytes(2), one_for_all, "{kind}");
    }
}

#[test]
fn parallel_ranges_equal_the_whole() {
    for kind in DataKind::all() {
        let generator = Generator::new(kind, Amount::Bytes(900_000)).with_seed(7).with_first_record(1 << 40);
        let whole = content(&generator);
        let mut parts = vec![0; whole.len()];
        std::thread::scope(|scope| {
            for (index, part) in parts.chunks_mut(131_071).enumerate() {
                scope.spawn(move || generator.fill(131_071 * index as u64, part));
            }
        });
        assert!(whole == parts, "{kind}");
        let blocks: Vec<u8> = (0..generator.blocks().min(5)).flat_map(|block| generator.block(block)).collect();
        assert!(whole.starts_with(&blocks), "{kind}");
    }
}

proptest! {
    #[test]
    fn any_range_is_a_part_of_the_whole(
        kind in prop::sample::select(DataKind::all().collect::<Vec<_>>()),
        amount in 0u64..300_000,
        seed: u64,
        first_record: u128,
        ranges in proptest::collection::vec((0u64..320_000, 0usize..70_000), 1..6),
    ) {
        let generator =
            Generator::new(kind, Amount::Bytes(amount)).with_seed(seed).with_first_record(first_record);
        let whole = content(&generator);
        for (offset, len) in ranges {
            let mut part = vec![0xEE; len];
            let filled = generator.fill(offset, &mut part);
            let from = (offset as usize).min(whole.len());
            prop_assert_eq!(filled, len.min(whole.len() - from));
            prop_assert!(part[..filled] == whole[from..from + filled], "{} at {}", kind, offset);
            prop_assert!(part[filled..].iter().all(|byte| *byte == 0xEE));
        }
    }
}
