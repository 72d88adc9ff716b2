//! Differential tests; the naive twin is `sort_unstable`.

use proptest::prelude::*;

use super::{sort_u32, sort_u64, sort_u128};

/// Pseudo-random numbers, the same in each run (splitmix64).
fn random(seed: u64) -> impl Iterator<Item = u64> {
    (1..).map(move |step: u64| {
        let x = seed.wrapping_add(step).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    })
}

/// Typical and adverse inputs of a quicksort.
fn patterns(len: usize, seed: u64) -> Vec<(&'static str, Vec<u64>)> {
    let len = len as u64;
    let few = |distinct: u64| random(seed ^ distinct).take(len as usize).map(move |x| x % distinct).collect();
    vec![
        ("random", random(seed).take(len as usize).collect()),
        ("extremes", random(seed).take(len as usize).map(|x| if x & 1 == 0 { 0 } else { u64::MAX }).collect()),
        ("near max", random(seed).take(len as usize).map(|x| u64::MAX - x % 3).collect()),
        ("2 distinct", few(2)),
        ("7 distinct", few(7)),
        ("100 distinct", few(100)),
        ("one word's high half", random(seed).take(len as usize).map(|x| x << 32).collect()),
        ("all equal", vec![seed; len as usize]),
        ("all max", vec![u64::MAX; len as usize]),
        ("up", (0..len).collect()),
        ("down", (0..len).rev().collect()),
        ("down with equals", (0..len).rev().map(|x| x / 3).collect()),
        ("organ pipe", (0..len).map(|x| x.min(len - x)).collect()),
        ("saw", (0..len).map(|x| x % 37).collect()),
        ("up but the last", (1..len).chain((len > 0).then_some(0)).collect()),
        ("down but the last", (1..len).rev().chain((len > 0).then_some(len)).collect()),
        ("mostly one", random(seed).take(len as usize).map(|x| if x % 50 == 0 { x } else { 5 }).collect()),
    ]
}

fn check(name: &str, input: &[u64]) {
    let (mut sorted, mut expected) = (input.to_vec(), input.to_vec());
    sort_u64(&mut sorted);
    expected.sort_unstable();
    assert!(sorted == expected, "64 bits, {name}, {} elements", input.len());

    // Whole numbers in the high word, in the low one, and in both with many equal high words.
    let pair = |high: u64, low: u64| u128::from(high) << 64 | u128::from(low);
    let turned = |i: usize| input[input.len() - 1 - i];
    for (place, wide) in [
        ("high", input.iter().enumerate().map(|(i, x)| pair(*x, turned(i))).collect::<Vec<_>>()),
        ("low", input.iter().map(|x| pair(0, *x)).collect()),
        ("max high", input.iter().enumerate().map(|(i, x)| pair(u64::MAX - x % 2, turned(i))).collect()),
        ("both", input.iter().enumerate().map(|(i, x)| pair(x % 3, turned(i))).collect()),
    ] {
        let (mut sorted, mut expected) = (wide.clone(), wide);
        sort_u128(&mut sorted);
        expected.sort_unstable();
        assert!(sorted == expected, "128 bits, {name} in {place}, {} elements", input.len());
    }

    for shift in [0, 32] {
        let narrow: Vec<u32> = input.iter().map(|x| (x >> shift) as u32).collect();
        let (mut sorted, mut expected) = (narrow.clone(), narrow);
        sort_u32(&mut sorted);
        expected.sort_unstable();
        assert!(sorted == expected, "32 bits, {name} >> {shift}, {} elements", input.len());
    }
}

#[test]
fn small_inputs_of_each_length_and_pattern() {
    for len in 0..=600 {
        for (name, input) in patterns(len, len as u64) {
            check(name, &input);
        }
    }
}

#[test]
fn large_inputs_of_each_pattern() {
    for len in [4095, 4096, 10_007, 65_536, 1 << 20] {
        for (name, input) in patterns(len, 1) {
            check(name, &input);
        }
    }
}

#[test]
fn elements_beside_the_slice_stay() {
    for len in 0..400 {
        let mut values: Vec<u64> = random(9).take(len + 32).collect();
        let before = values.clone();
        sort_u64(&mut values[16..16 + len]);
        assert_eq!(values[..16], before[..16]);
        assert_eq!(values[16 + len..], before[16 + len..]);

        let mut values: Vec<u32> = before.iter().map(|x| *x as u32).collect();
        let before = values.clone();
        sort_u32(&mut values[16..16 + len]);
        assert_eq!(values[..16], before[..16]);
        assert_eq!(values[16 + len..], before[16 + len..]);

        let mut values: Vec<u128> = before.iter().map(|x| u128::from(*x) << 64).collect();
        let before = values.clone();
        sort_u128(&mut values[16..16 + len]);
        assert_eq!(values[..16], before[..16]);
        assert_eq!(values[16 + len..], before[16 + len..]);
    }
}

/// With no chances, the first uneven split, which inputs of few values have, ends in the fallback.
#[cfg(target_arch = "x86_64")]
#[test]
fn uneven_splits_end_in_the_fallback() {
    use super::{Avx2, Avx512, avx2, avx512, quicksort};

    fn check(lanes: impl super::lanes::Lanes<Element = u64>) {
        for (name, input) in patterns(10_007, 3) {
            let (mut sorted, mut expected) = (input.clone(), input);
            quicksort::sort_with_chances(lanes, &mut sorted, 0);
            expected.sort_unstable();
            assert!(sorted == expected, "{name}");
        }
    }
    match Avx512::detect() {
        Some(avx512) => check(avx512::Words64(avx512)),
        None => println!("SKIPPED: uneven_splits_end_in_the_fallback: this CPU has no AVX-512"),
    }
    match Avx2::detect() {
        Some(avx2) => check(avx2::Words64(avx2)),
        None => println!("SKIPPED: uneven_splits_end_in_the_fallback: this CPU has no AVX2"),
    }
}

proptest! {
    #[test]
    fn any_words(input in prop::collection::vec(any::<u64>(), 0..3000)) {
        check("any", &input);
    }

    #[test]
    fn few_words(input in prop::collection::vec(prop_oneof![Just(0), Just(u64::MAX), 0..9u64], 0..3000)) {
        check("few", &input);
    }
}
