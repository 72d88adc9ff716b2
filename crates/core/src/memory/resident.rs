//! How much of a range is in memory, and in huge pages.

use std::io::BufRead;

use super::range::MemoryRange;

/// What the kernel says of a range's pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResidentBytes {
    /// Bytes in memory: those that were touched.
    pub bytes: u64,
    /// Those of them in transparent huge pages.
    pub huge_bytes: u64,
}

impl MemoryRange {
    /// Looks at the kernel's account of this process (`/proc/self/smaps`). `None` where there is
    /// none, or where it does not know the range. The kernel counts by mappings: of a range that
    /// shares its mapping with other memory, that is counted too, up to the range's length.
    pub fn resident(&self) -> Option<ResidentBytes> {
        let from = self.address().addr() as u64;
        let to = from + self.len() as u64;
        let file = std::fs::File::open("/proc/self/smaps").ok()?;
        let found = of_account(std::io::BufReader::new(file), from..to)?;
        let most = |bytes: u64| bytes.min(self.len() as u64);
        Some(ResidentBytes { bytes: most(found.bytes), huge_bytes: most(found.huge_bytes) })
    }
}

/// Adds up the mappings that overlap a range of addresses.
fn of_account(account: impl BufRead, range: std::ops::Range<u64>) -> Option<ResidentBytes> {
    let (mut found, mut is_known, mut counts) = (ResidentBytes::default(), false, false);
    // A mapped file may have any name.
    for line in account.split(b'\n') {
        let line = line.ok()?;
        let line = String::from_utf8_lossy(&line);
        let mut words = line.split_ascii_whitespace();
        let Some(first) = words.next() else { continue };
        if let Some((from, to)) = first.split_once('-') {
            let at = |text| u64::from_str_radix(text, 16).ok();
            counts = at(from)? < range.end && at(to)? > range.start;
            is_known |= counts;
            continue;
        }
        let mut kilobytes = || words.next()?.parse::<u64>().ok()?.checked_mul(1024);
        match first {
            "Rss:" if counts => found.bytes = found.bytes.checked_add(kilobytes()?)?,
            "AnonHugePages:" if counts => found.huge_bytes = found.huge_bytes.checked_add(kilobytes()?)?,
            _ => {}
        }
    }
    is_known.then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{MapOptions, Region};

    const ACCOUNT: &[u8] = b"\
1000-3000 rw-p 00000000 00:00 0 \nSize: 8 kB\nRss:                  8 kB\nAnonHugePages:         4 kB
VmFlags: rd wr\n3000-9000 rw-p 00000000 00:00 0    [heap]\nRss: 16 kB\nAnonHugePages: 0 kB
9000-a000 r--p 00000000 08:01 17    /lib/\xff-y\nRss: 4 kB\n";

    #[test]
    fn mappings_that_overlap_are_added_up() {
        let of = |from, to| of_account(ACCOUNT, from..to).map(|found| (found.bytes, found.huge_bytes));
        assert_eq!(of(0x1000, 0x3000), Some((8 << 10, 4 << 10)));
        assert_eq!(of(0x2fff, 0x3001), Some((24 << 10, 4 << 10)));
        assert_eq!(of(0x9000, 0xf000), Some((4 << 10, 0)));
        assert_eq!(of(0, 0x1000), None);
        assert_eq!(of_account(&b"1000-zzz rw\n"[..], 0..1), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "there is no account")]
    fn touched_memory_is_resident() {
        let memory = Region::map(8 << 20, MapOptions::default()).unwrap().range(0, 8 << 20).unwrap();
        let Some(found) = memory.resident() else { return println!("SKIPPED: no account of this process") };
        assert_eq!(found.bytes, 8 << 20);
        assert!(found.huge_bytes <= found.bytes);
    }
}
