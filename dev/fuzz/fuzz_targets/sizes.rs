//! Sizes of the command line, and of -S.
#![no_main]

use datapipes_core::parse_size;
use datapipes_sort::text::BufferSize;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(size) = BufferSize::parse(data) {
        for physical in [0, 1 << 34, u64::MAX] {
            let _ = size.resolve(physical);
        }
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(size) = parse_size(text) {
        assert!(i64::try_from(size).is_ok());
        assert_eq!(parse_size(&size.to_string()).ok(), Some(size));
    }
});
