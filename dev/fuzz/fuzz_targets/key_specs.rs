//! -k, the obsolescent +POS1 -POS2, and orders compiled from them: no panic, and an order that
//! agrees with itself.
#![no_main]

use datapipes_sort::text::{KeySpec, TextOptions};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // The first two lines are specs, the next two are lines to compare.
    let mut parts = data.splitn(4, |b| *b == b'\n');
    let mut part = || parts.next().unwrap_or_default();
    let (spec, second, a, b) = (part(), part(), part(), part());
    let plus = KeySpec::parse_plus(spec).and_then(|key| key.clone().end_minus(second).ok().or(Some(key)));
    let keys: Vec<_> = [KeySpec::parse(spec).ok(), KeySpec::parse(second).ok(), plus].into_iter().flatten().collect();
    let options = TextOptions::default().keys(keys).separator(second.first().copied());
    let Ok(order) = options.compile() else { return };
    assert_eq!(order.compare(a, b), order.compare(b, a).reverse());
    assert!(order.compare(a, a).is_eq());
    // A prefix never contradicts the keys.
    if order.prefix(a) < order.prefix(b) {
        assert!(order.compare(a, b).is_lt());
    }
});
