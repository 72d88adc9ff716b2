//! The choice between merging and distribution.

/// How an input that does not fit the memory is sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SortMethod {
    /// By the method that is likely to take less time. At present that is distribution for numbers,
    /// where the memory allows good blocks, and merging for records: to distribute these took 23%
    /// less of the processor and 9% more time where the disk was the limit
    /// (`benchmarks/results/2026-11-23-sort-distribution.md`).
    #[default]
    Auto,
    /// By sorted runs, and merging them.
    Merge,
    /// By buckets, each of which is sorted once, wherever that is possible.
    Distribution,
}
