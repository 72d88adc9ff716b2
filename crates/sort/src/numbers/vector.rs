//! A vectorized sort of numbers: a quicksort whose partition and smallest case run in AVX-512 or
//! AVX2 registers.
//!
//! ```text
//! sort      if few numbers are out of order, they are sorted and merged into the others;
//!           done if the input is a run, up or down; otherwise quicksort
//! quicksort while there are more elements than a network sorts:
//!             pivot = median of a sample of vectors
//!             if the pivot is the least possible element: its equals go left and are done
//!             else: partition; recurse into the smaller side, continue with the larger
//!           network
//! ```
//! There is one algorithm over [`lanes::Lanes`]; the instructions and the widths differ only in
//! their intrinsics. It is compiled once for each set of [`instructions`]. A CPU without AVX2, and
//! an input that keeps splitting badly, get `sort_unstable`. The method is that of Bramas (2017)
//! and of Google's vqsort (2022). Compressing *stores* are avoided, because Zen 4 runs them in
//! microcode; registers are compressed and then stored. AVX2 has none, and permutes by a table.
//!
//! It uses one core and does not allocate.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod instructions;
#[cfg(target_arch = "x86_64")]
mod lanes;
mod nearly_sorted;
#[cfg(target_arch = "x86_64")]
mod network;
#[cfg(target_arch = "x86_64")]
mod pairs;
#[cfg(target_arch = "x86_64")]
mod partition;
#[cfg(target_arch = "x86_64")]
mod quicksort;
#[cfg(test)]
mod tests;

#[cfg(target_arch = "x86_64")]
pub(crate) use instructions::{Avx2, Avx512};

/// Sorts in place, ascending.
pub(crate) fn sort_u64(values: &mut [u64]) {
    nearly_sorted::sort_nearly_sorted(values, sort_any_u64);
}

fn sort_any_u64(values: &mut [u64]) {
    #[cfg(target_arch = "x86_64")]
    {
        if let Some(avx512) = Avx512::detect() {
            return quicksort::sort(avx512::Words64(avx512), values);
        }
        if let Some(avx2) = Avx2::detect() {
            return quicksort::sort(avx2::Words64(avx2), values);
        }
    }
    values.sort_unstable();
}

/// Sorts in place, ascending.
pub(crate) fn sort_u32(values: &mut [u32]) {
    nearly_sorted::sort_nearly_sorted(values, sort_any_u32);
}

fn sort_any_u32(values: &mut [u32]) {
    #[cfg(target_arch = "x86_64")]
    {
        if let Some(avx512) = Avx512::detect() {
            return quicksort::sort(avx512::Words32(avx512), values);
        }
        if let Some(avx2) = Avx2::detect() {
            return quicksort::sort(avx2::Words32(avx2), values);
        }
    }
    values.sort_unstable();
}

/// Sorts in place, ascending. It is fastest if the high words differ, because these are sorted
/// first.
pub(crate) fn sort_u128(values: &mut [u128]) {
    #[cfg(target_arch = "x86_64")]
    {
        if let Some(avx512) = Avx512::detect() {
            return pairs::sort(avx512::Words128::<false>::new(avx512), avx512::Words128::<true>::new(avx512), values);
        }
        if let Some(avx2) = Avx2::detect() {
            return pairs::sort(avx2::Words128::<false>::new(avx2), avx2::Words128::<true>::new(avx2), values);
        }
    }
    values.sort_unstable();
}
