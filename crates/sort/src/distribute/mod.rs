//! Sorting records of one length by distributing them, so that each is sorted once and nothing is
//! merged: for inputs that can be read anywhere.
//!
//! ```text
//! sample      keys at many places of the input                             (splitters.rs)
//! splitters   cut the sample into K equal buckets; a frequent key has a bucket of its own
//! distribute  each thread reads a stripe of the input                      (stripes.rs)
//!               classify    prefixes against the splitters, without branches (classify.rs)
//!               scatter     into a small buffer a bucket, which stays in L2;
//!                           full buffers go past the caches to the bucket's block,
//!                           full blocks to the spill                       (scatter.rs)
//! buckets     each thread, bucket by bucket:                               (finish.rs)
//!               load        the next one while this one is sorted          (load.rs)
//!               sort        entries of eight bytes, in cache               (narrow.rs)
//!                           or the numbers themselves                      (numbers.rs)
//!               gather      records in order, to the output
//! ```
//! A bucket holds the stripes in their order, and a stripe its records in theirs, so records with
//! equal keys stay in the order of the input.
//!
//! Each byte is read twice and written twice, as by runs and one merge. The processor does less:
//! no tournament, and no second sort. A bucket that is larger than expected and does not fit its
//! share of the memory becomes runs, which are merged; so does no other. What cannot be distributed
//! (`plan.rs`, `splitters.rs`) is sorted by runs and merge from the start.
//!
//! Sources: sample sort (Frazer and McKellar 1970); the classification without branches (Sanders
//! and Winkel, "Super scalar sample sort", ESA 2004); buckets of equal keys and buffers a bucket
//! (Axtmann, Witt, Ferizovic and Sanders, "In-place parallel super scalar samplesort", ESA 2017);
//! buffers written past the caches (Satish et al., SIGMOD 2010).

mod buckets;
mod classify;
mod extents;
mod finish;
mod load;
mod method;
mod narrow;
mod numbers;
mod plan;
mod scatter;
mod splitters;
mod stripes;
#[cfg(test)]
mod tests;

pub(crate) use method::Attempt;
