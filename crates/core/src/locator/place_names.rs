//! Places of a staging by their names: scratch files in folders, memory, persistent memory.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::ledger::GRAIN;
use super::stage_place::{Kept, StagePlace};
use super::{Dram, FileAccess, NumaMemory, Pmem, PmemOptions, Ssd, Uri, parse_size};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{MapOptions, Pages};

/// Scratch files get this length at once (which takes no space), so that the planner does not treat
/// them as small.
const NOT_SMALL: u64 = 1 << 20;

/// What is a place for staging.
const PLACES: &str = "name a folder, or ssd:FOLDER, dram:SIZE, numa:NODE?len=SIZE, pmem:FOLDER?limit=SIZE";

impl StagePlace {
    /// Uses an unlinked scratch file in a folder ([`Ssd::scratch_in`]).
    pub fn folder(dir: impl Into<PathBuf>) -> StagePlace {
        StagePlace::scratch(dir.into(), FileAccess::Auto)
    }

    fn scratch(dir: PathBuf, access: FileAccess) -> StagePlace {
        let (name, folder) = (dir.display().to_string(), Some(dir.clone()));
        let open = move || {
            let mut ssd = Ssd::scratch_in(&dir)?;
            ssd.set_len(NOT_SMALL)?;
            if access != FileAccess::Auto {
                ssd = ssd.with_access(access)?;
            }
            Ok(Arc::new(ssd) as Kept)
        };
        StagePlace { folder, ..StagePlace::opened_by(name, open) }
    }

    /// Uses `len` bytes of main memory, on a NUMA node if one is given. Pages are touched when they
    /// are used.
    pub fn memory(len: u64, node: Option<u32>) -> StagePlace {
        let name = match node {
            Some(node) => format!("dram:{len}?node={node}"),
            None => format!("dram:{len}"),
        };
        let open = move || {
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            let options = MapOptions { pages: Pages::Huge, prefault: false, node };
            Ok(Arc::new(Dram::allocate_with(len, options)?) as Kept)
        };
        StagePlace { len: Some(len), ..StagePlace::opened_by(name, open) }
    }

    /// Parses one place: a folder, or a URI with an optional `limit=SIZE` among its settings.
    ///
    /// # Errors
    /// `InvalidInput` with the reason.
    pub fn parse(text: &str) -> Result<StagePlace> {
        let (plain, limit) = split_limit(text)?;
        let place = match plain.parse::<Uri>().map_err(|e| e.with_advice(PLACES))? {
            Uri::Ssd { path, access } => StagePlace::scratch(path, access),
            Uri::Dram { len: 0, .. } => return Err(bad(text, "memory needs a size, as in dram:1G")),
            Uri::Dram { len, node } => StagePlace { name: plain, ..StagePlace::memory(len, node) },
            Uri::Numa { len: 0, .. } => return Err(bad(text, "memory needs a size, as in numa:1?len=1G")),
            Uri::Numa { node, len } => {
                let open = move || {
                    let len = usize::try_from(len).unwrap_or(usize::MAX);
                    Ok(Arc::new(NumaMemory::allocate(node, len)?) as Kept)
                };
                StagePlace { len: Some(len), ..StagePlace::opened_by(plain, open) }
            }
            Uri::Pmem { path, emulated } => {
                let open = move || Ok(Arc::new(scratch_pmem(&path, limit, emulated)?) as Kept);
                StagePlace { len: limit, ..StagePlace::opened_by(plain, open) }
            }
            _ => {
                let error = bad(text, "it is not a place for staging");
                return Err(error.with_advice(PLACES));
            }
        };
        Ok(match limit {
            Some(limit) => place.limit(limit),
            None => place,
        })
    }

    /// Parses places separated by commas, to be used one after the other. A text that is the name
    /// of an existing folder is one place, even if it has commas.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn parse_list(text: &str) -> Result<Vec<StagePlace>> {
        if Path::new(text).is_dir() {
            return Ok(vec![StagePlace::folder(text)]);
        }
        text.split(',').enumerate().map(|(tier, one)| Ok(StagePlace::parse(one)?.in_tier(tier))).collect()
    }
}

impl From<&Path> for StagePlace {
    fn from(dir: &Path) -> StagePlace {
        StagePlace::folder(dir)
    }
}

/// Opens an unlinked file in a folder on persistent memory, or a whole DAX device.
fn scratch_pmem(path: &Path, limit: Option<u64>, emulated: bool) -> Result<Pmem> {
    let refuse = |why: &str| Error::new(ErrorKind::InvalidInput, "stage", format!("pmem:{}: {why}", path.display()));
    if !path.is_dir() {
        if path.is_file() {
            // Someone may need its bytes.
            return Err(refuse("an existing file would be overwritten").with_advice("name its folder"));
        }
        return Pmem::open_with(path, PmemOptions { len: None, emulated });
    }
    let Some(len) = limit else {
        return Err(refuse("a folder needs to know how much to map").with_advice("add ?limit=SIZE"));
    };
    // The mapping keeps the file alive without its descriptor, and the kernel frees it with the
    // process.
    let file = Ssd::scratch_in(path)?;
    let by_descriptor = format!("/proc/self/fd/{}", file.file().cached_fd().as_raw_fd());
    Pmem::open_with(by_descriptor, PmemOptions { len: Some(len), emulated })
}

/// Removes `limit=` from a URI's settings, and returns both.
fn split_limit(text: &str) -> Result<(String, Option<u64>)> {
    let is_uri = text.split_once(':').is_some_and(|(s, _)| !s.is_empty() && s.bytes().all(|b| b.is_ascii_lowercase()));
    let Some((body, query)) = text.rsplit_once('?').filter(|(_, q)| is_uri || q.starts_with("limit=")) else {
        return Ok((text.to_owned(), None));
    };
    let (limits, others): (Vec<&str>, Vec<&str>) = query.split('&').partition(|s| s.starts_with("limit="));
    let limit = match limits[..] {
        [] => None,
        [one] => {
            let size = parse_size(one.trim_start_matches("limit="));
            Some(size.map_err(|e| bad(text, e.context()).with_advice("write it as in ?limit=10G"))?)
        }
        _ => return Err(bad(text, "more than one limit")),
    };
    if limit.is_some_and(|limit| limit < GRAIN) {
        return Err(bad(text, "a limit below 4096 bytes leaves no room"));
    }
    let others = if others.is_empty() { String::new() } else { format!("?{}", others.join("&")) };
    Ok((format!("{body}{others}"), limit))
}

fn bad(text: &str, why: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, "parse", format!("place `{text}`: {why}"))
        .with_advice("write a folder, ssd:FOLDER[?limit=SIZE], dram:SIZE, numa:NODE?len=SIZE or pmem:FOLDER?limit=SIZE; several places \
                 with commas between them")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_by_name() {
        let one = |text: &str| StagePlace::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(one("ssd:/a?limit=1M&access=cached").most_bytes(), Some(1 << 20));
        assert_eq!(one("/a?limit=1M").as_folder(), Some(Path::new("/a")));
        assert_eq!(one("/what?").as_folder(), Some(Path::new("/what?")));
        assert_eq!(one("dram:2G?limit=1G").most_bytes(), Some(1 << 30));
        for wrong in [
            "",
            "dram:",
            "tape:1",
            "ssd:",
            "/a?limit=",
            "/a?limit=1",
            "ssd:/a?limit=1M&limit=2M",
            "cache:l2/core0",
            "numa:0",
        ] {
            assert!(StagePlace::parse(wrong).is_err_and(|e| e.kind() == ErrorKind::InvalidInput), "{wrong}");
        }
        let list = StagePlace::parse_list("dram:1g,ssd:/fast,/big").unwrap_or_else(|e| panic!("{e}"));
        let shown: Vec<_> = list.iter().map(|p| (p.name(), p.tier())).collect();
        assert_eq!(shown, [("dram:1g", 0), ("/fast", 1), ("/big", 2)]);
        assert!(StagePlace::parse_list("/a,,/b").is_err());
    }
}
