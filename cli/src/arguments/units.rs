//! Amounts: read from the command line, and written for people.

use datapipes_metrics::{ByteCount, ByteRate};

/// Reads a size argument: a number with a unit of 1024 (K, M, ...) or 1000 (KB, MB, ...).
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    datapipes::parse_size(text).map_err(|e| e.to_string())
}

/// Parses a count of at least 1.
pub(crate) fn parse_count<T: std::str::FromStr + PartialEq + Default>(text: &str) -> Result<T, String>
where
    T::Err: std::fmt::Display,
{
    match text.parse::<T>() {
        Ok(count) if count == T::default() => Err("it is at least 1".into()),
        Ok(count) => Ok(count),
        Err(e) => Err(e.to_string()),
    }
}

/// Bytes with a unit of 1000, as disks and rates are given.
pub(crate) fn bytes(count: u64) -> String {
    ByteCount(count).to_string()
}

/// Bytes with a unit of 1024, as memory is given.
pub(crate) fn memory(count: u64) -> String {
    datapipes::topology::Size(count).to_string()
}

/// A rate with a fitting unit.
pub(crate) fn rate(bytes: u64, seconds: f64) -> String {
    ByteRate::of(bytes, seconds).to_string()
}

/// A rate in bytes per second; 0 for no time.
pub(crate) fn bytes_per_second(bytes: u64, seconds: f64) -> f64 {
    ByteRate::of(bytes, seconds).0
}

/// A time with a fitting unit.
pub(crate) fn nanoseconds(ns: f64) -> String {
    match ns {
        ..1e3 => format!("{ns:.1} ns"),
        ..1e6 => format!("{:.1} us", ns / 1e3),
        ..1e9 => format!("{:.1} ms", ns / 1e6),
        _ => format!("{:.2} s", ns / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_change_where_they_should() {
        assert_eq!(memory(128 << 20), "128 MiB");
        assert_eq!(memory(5 << 29), "2.5 GiB");
        assert_eq!(rate(3_000_000_000, 2.0), "1.50 GB/s");
        assert_eq!(rate(1, 0.0), "0 B/s");
        assert_eq!(nanoseconds(1500.0), "1.5 us");
    }
}
