//! Rows of embedding tables.

use super::items::{Picker, Popularity};
use super::{Random, ReadRequest, Scatter, Zipf};

/// The rows of the 26 categorical features of the Criteo Kaggle data set, as counted by the public
/// DLRM code. Together they are 33,762,577 rows; with 128 bytes each these are 4121 MiB, the 4.1 GB
/// of Pipette (DAC'22, section 4.3).
pub const CRITEO_ROWS: [u64; 26] = [
    1460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5683, 8_351_593, 3194, 27, 14_992, 5_461_306,
    10, 5652, 2173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572,
];

const ROW_BYTES: u32 = 128;

/// How unequally rows are read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Skew {
    /// One row of every table for each sample, by Zipf's law within the table: 19 of the tables are
    /// small and always hot.
    PerTable {
        /// The exponent of Zipf's law within a table.
        exponent: f64,
    },
    /// The statistics of public DLRM traces over `reads` reads: of the rows that are read at all,
    /// 4.7 % are read more than 32 times, and these take 62 % of the reads. Among the hot rows
    /// Zipf's law has the exponent 0.3; the others are uniform, at three reads each. Both lie
    /// anywhere in the tables.
    Traces {
        /// The number of reads that the proportions hold for.
        reads: u64,
    },
}

/// Endless reads of 128-byte embeddings.
#[derive(Clone, Debug)]
pub struct Recommender {
    source: Source,
}

#[derive(Clone, Debug)]
enum Source {
    PerTable {
        /// The first row and the picker of each table.
        tables: Vec<(u64, Picker)>,
        next: usize,
    },
    Traces {
        hot: Zipf,
        hot_rows: u64,
        cold_rows: u64,
        scatter: Scatter,
        random: Random,
    },
}

/// The share of reads that go to hot rows, and the share of hot rows among all rows that are read.
const HOT_READS: f64 = 0.62;
const HOT_ROWS: f64 = 0.047;
/// Mean reads of a row that is not hot. With three, a twentieth of them (e^-3) is never read, which
/// is compensated for.
const COLD_READS: f64 = 3.0;

impl Recommender {
    /// Reads rows of the tables by `skew`.
    pub fn new(skew: Skew, seed: u64) -> Recommender {
        let source = match skew {
            Skew::PerTable { exponent } => {
                let mut first = 0;
                let table = |(at, rows): (usize, &u64)| {
                    let picker = Picker::new(*rows, Popularity::Zipf { exponent }, seed ^ (at as u64 + 1));
                    first += rows;
                    (first - rows, picker)
                };
                Source::PerTable { tables: CRITEO_ROWS.iter().enumerate().map(table).collect(), next: 0 }
            }
            Skew::Traces { reads } => {
                let rows = Recommender::rows();
                let cold = (reads as f64 * (1.0 - HOT_READS) / COLD_READS).clamp(1.0, rows as f64 * 0.9);
                let seen = cold * (1.0 - libm::exp(-COLD_READS));
                let hot_rows = (seen * HOT_ROWS / (1.0 - HOT_ROWS)).round().max(1.0) as u64;
                let hot = Zipf::new(hot_rows, 0.3);
                let (scatter, random) = (Scatter::new(rows, seed), Random::new(seed, 1));
                Source::Traces { hot, hot_rows, cold_rows: cold as u64, scatter, random }
            }
        };
        Recommender { source }
    }

    /// Returns the number of rows of all tables.
    pub fn rows() -> u64 {
        CRITEO_ROWS.iter().sum()
    }

    /// Returns the bytes of the file that holds all tables, one after the other.
    pub fn file_bytes() -> u64 {
        Recommender::rows() * u64::from(ROW_BYTES)
    }

    fn next_row(&mut self) -> u64 {
        match &mut self.source {
            Source::PerTable { tables, next } => {
                let (first, picker) = &mut tables[*next];
                *next = (*next + 1) % CRITEO_ROWS.len();
                *first + picker.next()
            }
            Source::Traces { hot, hot_rows, cold_rows, scatter, random } => {
                let index = match random.unit() < HOT_READS {
                    true => hot.draw(random),
                    false => *hot_rows + random.below(*cold_rows),
                };
                scatter.place(index)
            }
        }
    }
}

impl Iterator for Recommender {
    type Item = ReadRequest;

    #[inline]
    fn next(&mut self) -> Option<ReadRequest> {
        Some(ReadRequest { offset: self.next_row() * u64::from(ROW_BYTES), len: ROW_BYTES })
    }
}
