//! Buckets in the spill, and the portions in which they are sorted.

/// The bytes of one bucket that one thread wrote, in the order of the input.
#[derive(Debug, Default)]
pub(crate) struct Stripe {
    /// The offsets of its extents in the spill.
    pub(crate) extents: Vec<u64>,
    /// The checksum of each block.
    pub(crate) sums: Vec<u32>,
    pub(crate) len: u64,
}

/// The records whose prefixes lie in a range.
#[derive(Debug)]
pub(crate) struct Bucket {
    /// The least and the greatest prefix that it may have.
    pub(crate) low: u64,
    pub(crate) high: u64,
    /// Whether all its records are the same number, which are counted and not spilled.
    pub(crate) counted: bool,
    /// What each thread wrote; together in the order of the input.
    pub(crate) stripes: Vec<Stripe>,
}

/// Bytes `from..to` of a stripe, which begin and end with records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) stripe: usize,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// A part of a bucket that is sorted at once; nearly always all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Portion {
    pub(crate) bucket: usize,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) bytes: u64,
}

/// What comes next in the output.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Portions that follow each other in the output. They are sorted side by side.
    Write(Vec<Portion>),
    /// The portions of one bucket that does not fit: each becomes a run, and the runs are merged.
    Merge(Vec<Portion>),
}

impl Bucket {
    pub(crate) fn len(&self) -> u64 {
        self.stripes.iter().map(|s| s.len).sum()
    }

    /// Divides it, in the order of the input, into portions of at most `most` bytes, a multiple of
    /// the record length.
    fn portions(&self, bucket: usize, most: u64) -> Vec<Portion> {
        let mut portions: Vec<Portion> = Vec::new();
        for (stripe, Stripe { len, .. }) in self.stripes.iter().enumerate() {
            let mut from = 0;
            while from < *len {
                if portions.last().is_none_or(|p| p.bytes == most) {
                    portions.push(Portion { bucket, pieces: Vec::new(), bytes: 0 });
                }
                let Some(portion) = portions.last_mut() else { break };
                let to = (*len).min(from + most - portion.bytes);
                portion.pieces.push(Piece { stripe, from, to });
                portion.bytes += to - from;
                from = to;
            }
        }
        portions
    }
}

/// The steps for all buckets, in the order of the output. `most` says how many bytes a portion of a
/// bucket may have, and `in_order` which buckets may be written portion by portion, because the
/// order of their records is that of the input.
pub(crate) fn steps(
    buckets: &[Bucket],
    most: impl Fn(&Bucket) -> u64,
    in_order: impl Fn(&Bucket) -> bool,
) -> Vec<Step> {
    let mut steps = Vec::new();
    for (index, bucket) in buckets.iter().enumerate() {
        let portions = bucket.portions(index, most(bucket));
        match steps.last_mut() {
            _ if portions.len() > 1 && !in_order(bucket) => steps.push(Step::Merge(portions)),
            Some(Step::Write(before)) => before.extend(portions),
            _ => steps.push(Step::Write(portions)),
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(lens: &[u64]) -> Bucket {
        let stripes = lens.iter().map(|&len| Stripe { len, ..Stripe::default() }).collect();
        Bucket { low: 0, high: 0, counted: false, stripes }
    }

    fn shown(steps: &[Step]) -> Vec<String> {
        let portion = |p: &Portion| {
            let pieces: Vec<String> = p.pieces.iter().map(|p| format!("{}:{}-{}", p.stripe, p.from, p.to)).collect();
            format!("{} {}", p.bucket, pieces.join(" "))
        };
        let show = |step: &Step| match step {
            Step::Write(portions) => format!("write {}", portions.iter().map(portion).collect::<Vec<_>>().join(", ")),
            Step::Merge(portions) => format!("merge {}", portions.iter().map(portion).collect::<Vec<_>>().join(", ")),
        };
        steps.iter().map(show).collect()
    }

    #[test]
    fn buckets_that_fit_are_written_side_by_side_and_larger_ones_merged() {
        let buckets = [bucket(&[10, 20]), bucket(&[0, 0]), bucket(&[70, 50]), bucket(&[0, 100]), bucket(&[1])];
        assert_eq!(
            shown(&steps(&buckets, |_| 100, |_| false)),
            ["write 0 0:0-10 1:0-20", "merge 2 0:0-70 1:0-30, 2 1:30-50", "write 3 1:0-100, 4 0:0-1"]
        );
        assert_eq!(
            shown(&steps(&buckets, |_| 100, |_| true)),
            ["write 0 0:0-10 1:0-20, 2 0:0-70 1:0-30, 2 1:30-50, 3 1:0-100, 4 0:0-1"]
        );
    }
}
