//! Runs the fuzz targets that concern the core, briefly and from a seed (`SEED` sets it).

use datapipes_core::{Uri, parse_size};

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) as usize % n
    }
}

const PIECES: &[&str] = &[
    "ssd:",
    "file:",
    "//",
    "dram:",
    "cache:",
    "l2",
    "l3",
    "/core",
    "?",
    "access=",
    "pmem:",
    "numa:",
    "emulated",
    "len=",
    "direct",
    "auto",
    "node=",
    "=",
    ":",
    "0",
    "1",
    "18446744073709551615",
    "18446744073709551616",
    "9223372036854775807",
    "9223372036854775808",
    ".",
    "..",
    "e",
    "-",
    "+",
    "K",
    "MiB",
    "GB",
    "t",
    "b",
    "\u{e9}",
    "\u{1f980}",
    "\0",
    " ",
    "\n",
    "%",
    "inf",
    "nan",
    "_",
];

/// Calls `each` with texts made of the words that the parsers know, and of other bytes.
fn texts(each: impl Fn(&str)) {
    let seed = datapipes_testkit::seed(0x5eed);
    let mut random = Random(seed | 1);
    for step in 0..if cfg!(miri) { 200 } else { 200_000 } {
        let mut text = String::new();
        for _ in 0..random.below(8) {
            match random.below(5) {
                0 => text.push(char::from_u32(random.below(0x11_0000) as u32).unwrap_or('\u{fffd}')),
                _ => text.push_str(PIECES[random.below(PIECES.len())]),
            }
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| each(&text)));
        assert!(outcome.is_ok(), "seed {seed}, step {step}: {text:?}");
    }
}

#[test]
fn sizes() {
    texts(|text| match parse_size(text) {
        Ok(size) => {
            assert!(i64::try_from(size).is_ok());
            assert_eq!(parse_size(&size.to_string()).unwrap(), size, "bytes in digits are that size");
        }
        Err(e) => assert!(e.to_string().contains(text), "{e}"),
    });
}

#[test]
fn uris() {
    texts(|text| match text.parse::<Uri>() {
        Ok(Uri::Ssd { path, .. }) => assert!(!path.as_os_str().is_empty()),
        Ok(Uri::CoreCache { level, .. }) => assert!((2..=3).contains(&level)),
        Ok(Uri::Dram { len, .. }) => assert!(i64::try_from(len).is_ok()),
        Ok(_) => {}
        Err(e) => assert!(e.to_string().contains(text), "{e}"),
    });
}
