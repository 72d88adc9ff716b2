//! Sizes for people.

use std::fmt;

/// A size in bytes that prints in binary units: `48 KiB`, `1.5 GiB`, `100 B`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(
    /// The bytes.
    pub u64,
);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return f.pad(&format!("{} B", self.0));
        }
        let mut unit = (63 - self.0.leading_zeros() as usize) / 10 - 1;
        let mut tenths = tenths(self.0, unit);
        // 1023.96 KiB rounds to 1 MiB, not to 1024 KiB.
        if tenths >= 10240 && unit + 1 < UNITS.len() {
            unit += 1;
            tenths = 10;
        }
        match tenths % 10 {
            0 => f.pad(&format!("{} {}", tenths / 10, UNITS[unit])),
            tenth => f.pad(&format!("{}.{tenth} {}", tenths / 10, UNITS[unit])),
        }
    }
}

/// Returns the size in tenths of a unit (0 is KiB), rounded to the nearest.
fn tenths(bytes: u64, unit: usize) -> u64 {
    let shift = 10 * (unit + 1);
    let rounded = (u128::from(bytes) * 10 + (1_u128 << (shift - 1))) >> shift;
    u64::try_from(rounded).unwrap_or(u64::MAX)
}
