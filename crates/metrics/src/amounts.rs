//! Amounts for people: bytes and rates with a unit that leaves three digits.

use std::fmt;

const UNITS: [&str; 5] = ["kB", "MB", "GB", "TB", "PB"];

/// Bytes, shown with a unit of 1000.
///
/// ```
/// use datapipes_metrics::ByteCount;
/// assert_eq!(ByteCount(25_000_000).to_string(), "25.0 MB");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteCount(pub u64);

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1000 {
            return f.pad(&format!("{} B", self.0));
        }
        let mut value = self.0 as f64 / 1e3;
        let mut unit = 0;
        while value >= 999.5 && unit + 1 < UNITS.len() {
            value /= 1e3;
            unit += 1;
        }
        let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
        f.pad(&format!("{value:.digits$} {}", UNITS[unit]))
    }
}

/// Bytes a second, shown as [`ByteCount`] is.
///
/// ```
/// use datapipes_metrics::ByteRate;
/// assert_eq!(ByteRate(998_004.0).to_string(), "998 kB/s");
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ByteRate(pub f64);

impl ByteRate {
    /// So many bytes in so many seconds; none in no time.
    pub fn of(bytes: u64, seconds: f64) -> ByteRate {
        ByteRate(if seconds > 0.0 { bytes as f64 / seconds } else { 0.0 })
    }
}

impl fmt::Display for ByteRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What is not a number becomes 0, and what is too large the largest.
        f.pad(&format!("{}/s", ByteCount(self.0.round() as u64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_change_where_they_should() {
        let shown: Vec<String> =
            [0, 999, 1000, 1_500_000, 999_600, 12_340_000_000].map(|n| ByteCount(n).to_string()).into();
        assert_eq!(shown, ["0 B", "999 B", "1.00 kB", "1.50 MB", "1.00 MB", "12.3 GB"]);
        let rates = [(3_000_000_000, 2.0), (25_000_000, 25.05), (589_000, 4.02), (1, 0.0)];
        let shown: Vec<String> = rates.map(|(bytes, seconds)| ByteRate::of(bytes, seconds).to_string()).into();
        assert_eq!(shown, ["1.50 GB/s", "998 kB/s", "147 kB/s", "0 B/s"]);
        assert_eq!(format!("{:>10}|{}", ByteRate(1e6), ByteRate(f64::NAN)), " 1.00 MB/s|0 B/s");
    }
}
