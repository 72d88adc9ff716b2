//! Amounts: read from the command line, and written for people.

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
    const UNITS: [&str; 5] = ["kB", "MB", "GB", "TB", "PB"];
    if count < 1000 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1e3;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1e3;
        unit += 1;
    }
    let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// Bytes with a unit of 1024, as memory is given.
pub(crate) fn memory(count: u64) -> String {
    datapipes::topology::Size(count).to_string()
}

/// A rate in GB/s.
pub(crate) fn rate(bytes: u64, seconds: f64) -> String {
    let gb_s = bytes_per_second(bytes, seconds) / 1e9;
    let digits = if gb_s < 0.1 { 3 } else { 2 };
    format!("{gb_s:.digits$} GB/s")
}

/// A rate in bytes per second; 0 for no time.
pub(crate) fn bytes_per_second(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes as f64 / seconds } else { 0.0 }
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
        let shown: Vec<String> = [0, 999, 1000, 1_500_000, 999_600, 12_340_000_000].map(bytes).into();
        assert_eq!(shown, ["0 B", "999 B", "1.00 kB", "1.50 MB", "1.00 MB", "12.3 GB"]);
        assert_eq!(memory(128 << 20), "128 MiB");
        assert_eq!(memory(5 << 29), "2.5 GiB");
        assert_eq!(rate(3_000_000_000, 2.0), "1.50 GB/s");
        assert_eq!(rate(1, 0.0), "0.000 GB/s");
        assert_eq!(nanoseconds(1500.0), "1.5 us");
    }
}
