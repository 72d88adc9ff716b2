//! Which bytes are read, in which order: by a law, or as the standard input says.

use std::str::FromStr;

use datapipes::{Error, ErrorKind, Result};
use datapipes_data::access::{ItemLayout, Items, Popularity, ReadRequest};

use crate::system::standard_streams;

/// What a phase reads: items of so many bytes, by a law.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Phase {
    pub(super) len: u32,
    pub(super) law: AccessPattern,
}

/// How items are picked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum AccessPattern {
    Uniform,
    Zipf(f64),
    /// Zipf, whose ranks move on by a hundredth of the items forty times a phase.
    Drift(f64),
    /// One after the other.
    Scan,
    /// Offsets, or offset and length, a line each.
    Stdin,
}

impl FromStr for AccessPattern {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<AccessPattern, String> {
        let (name, exponent) = text.split_once(':').unwrap_or((text, "0.8"));
        let exponent = exponent.parse::<f64>().ok().filter(|e| (0.0..=4.0).contains(e));
        let exponent = exponent.ok_or_else(|| format!("{text}: an exponent is a number from 0 to 4"))?;
        match name {
            "uniform" => Ok(AccessPattern::Uniform),
            "zipf" => Ok(AccessPattern::Zipf(exponent)),
            "drift" => Ok(AccessPattern::Drift(exponent)),
            "scan" => Ok(AccessPattern::Scan),
            "stdin" | "-" => Ok(AccessPattern::Stdin),
            _ => Err(format!("{text}: give uniform, zipf:EXPONENT, drift:EXPONENT, scan, or stdin")),
        }
    }
}

impl std::fmt::Display for AccessPattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            AccessPattern::Uniform => write!(f, "uniform"),
            AccessPattern::Zipf(e) => write!(f, "zipf {e}"),
            AccessPattern::Drift(e) => write!(f, "drifting zipf {e}"),
            AccessPattern::Scan => write!(f, "scan"),
            AccessPattern::Stdin => write!(f, "standard input"),
        }
    }
}

/// A list of phases, `LEN@LAW,LEN@LAW,...`.
pub(super) fn phases(text: &str) -> std::result::Result<Vec<Phase>, String> {
    let phase = |part: &str| {
        let (len, law) = part.split_once('@').ok_or_else(|| format!("{part}: give LEN@LOAD, as in 128@zipf:0.8"))?;
        let len = datapipes::parse_size(len).map_err(|e| e.to_string())?;
        let len = u32::try_from(len).ok().filter(|l| (1..=1 << 20).contains(l));
        let len = len.ok_or_else(|| format!("{part}: an item has 1 byte to 1 MiB"))?;
        Ok(Phase { len, law: law.parse()? })
    };
    text.split(',').map(phase).collect()
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} B, {}", self.len, self.law)
    }
}

impl Phase {
    /// Whether another program says what is read.
    pub(super) fn is_listed(&self) -> bool {
        self.law == AccessPattern::Stdin
    }

    /// The items that a file of so many bytes has.
    pub(super) fn items(&self, file_bytes: u64) -> Result<u64> {
        let items = file_bytes / u64::from(self.len);
        if items == 0 && self.law != AccessPattern::Stdin {
            let why = format!("a file of {file_bytes} bytes has no item of {}", self.len);
            return Err(Error::new(ErrorKind::InvalidInput, "read", why));
        }
        Ok(items)
    }

    /// The reads of this phase in a file; `reads`: how many it will be, which drifting goes by.
    pub(super) fn requests(
        &self,
        file_bytes: u64,
        reads: u64,
        seed: u64,
    ) -> Result<Box<dyn Iterator<Item = Result<ReadRequest>>>> {
        let items = self.items(file_bytes)?;
        let layout = ItemLayout { items, item_bytes: self.len, stride_bytes: u64::from(self.len) };
        let by = |popularity| Box::new(Items::new(layout, popularity, seed).map(Ok));
        Ok(match self.law {
            AccessPattern::Uniform => by(Popularity::Uniform),
            AccessPattern::Zipf(exponent) => by(Popularity::Zipf { exponent }),
            AccessPattern::Drift(exponent) => {
                by(Popularity::Drifting { exponent, period: (reads / 40).max(1), step: (items / 100).max(1) })
            }
            AccessPattern::Scan => {
                let len = self.len;
                Box::new((0..items).cycle().map(move |i| Ok(ReadRequest { offset: i * u64::from(len), len })))
            }
            AccessPattern::Stdin => Box::new(standard_streams::lines()?.map(line_reader(self.len))),
        })
    }
}

/// A line as a read: an offset, and a length unless it is the usual one.
fn line_reader(usual: u32) -> impl FnMut(std::io::Result<String>) -> Result<ReadRequest> {
    let mut number = 0;
    move |line| {
        number += 1;
        let line = line.map_err(|e| Error::io("read", e, standard_streams::INPUT))?;
        let mut words = line.split_whitespace();
        let offset = words.next().and_then(|w| w.parse().ok());
        let len = words.next().map_or(Some(usual), |w| w.parse().ok().filter(|l| (1..=1 << 20).contains(l)));
        match (offset, len, words.next()) {
            (Some(offset), Some(len), None) => Ok(ReadRequest { offset, len }),
            _ => {
                let why = format!("line {number} of the standard input is no `OFFSET [LEN]`: {line:?}");
                Err(Error::new(ErrorKind::InvalidInput, "read", why))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_told_as_they_were_given() {
        let list = phases("128@zipf:0.9,4K@scan,512@uniform,128@drift,8@stdin").unwrap();
        let told: Vec<String> = list.iter().map(ToString::to_string).collect();
        let wanted =
            ["128 B, zipf 0.9", "4096 B, scan", "512 B, uniform", "128 B, drifting zipf 0.8", "8 B, standard input"];
        assert_eq!(told, wanted);
        for wrong in ["", "128", "128@", "0@scan", "128@zipf:x", "128@zipf:-1", "128@pareto", "2M@scan"] {
            assert!(phases(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_scan_goes_round_and_all_stay_in_the_file() {
        let scan = Phase { len: 100, law: AccessPattern::Scan };
        let offsets: Vec<u64> = scan.requests(350, 8, 1).unwrap().take(5).map(|r| r.unwrap().offset).collect();
        assert_eq!(offsets, [0, 100, 200, 0, 100]);
        for law in [AccessPattern::Uniform, AccessPattern::Zipf(0.8), AccessPattern::Drift(0.9)] {
            let phase = Phase { len: 100, law };
            assert!(phase.requests(350, 1000, 1).unwrap().take(1000).all(|r| r.unwrap().offset <= 200));
            assert!(phase.requests(99, 10, 1).is_err());
        }
    }

    #[test]
    fn a_line_is_an_offset_and_a_length() {
        let mut read = line_reader(128);
        let mut of = |line: &str| read(Ok(line.to_owned()));
        assert_eq!(of("4096").unwrap(), ReadRequest { offset: 4096, len: 128 });
        assert_eq!(of(" 7 9 ").unwrap(), ReadRequest { offset: 7, len: 9 });
        for wrong in ["", "x", "1 2 3", "-1", "1 0"] {
            assert!(of(wrong).is_err(), "{wrong:?}");
        }
        assert!(of("x").unwrap_err().to_string().contains("line 8"));
    }
}
