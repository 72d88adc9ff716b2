//! The places of a staging: what they are before they are needed, and opened.

use std::fmt;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::holes::GRAIN;
use super::ledger::Store;
use crate::error::{Error, ErrorKind, Result};
use crate::locator::{Dram, Endpoint, FileAccess, Locator, NumaMemory, Pmem, PmemOptions, Ssd, Uri, parse_size};
use crate::memory::{MapOptions, Pages};

/// Scratch files have this length at once (which takes no space), so that the planner does not take
/// them for small ones.
const NOT_SMALL: u64 = 1 << 20;

/// Any locator, as a staging keeps it.
type Kept = Arc<dyn Locator + Send + Sync>;
type Opens = Arc<dyn Fn() -> Result<Kept> + Send + Sync>;

/// A place that a [`Staging`](super::Staging) may use: opened when the staging is.
///
/// ```
/// use datapipes_core::StagePlace;
/// let places = StagePlace::parse_list("dram:64M,/tmp,ssd:/var/tmp?limit=10G")?;
/// assert_eq!(places[1].name(), "/tmp");
/// assert_eq!((places[0].tier(), places[2].tier()), (0, 2));
/// assert!(StagePlace::parse_list("tape:0").is_err());
/// # Ok::<(), datapipes_core::Error>(())
/// ```
#[derive(Clone)]
pub struct StagePlace {
    name: String,
    opens: Opens,
    limit: Option<u64>,
    tier: usize,
    folder: Option<PathBuf>,
    len: Option<u64>,
}

impl StagePlace {
    /// A place that is there already: memory of any kind, a file that grows, a device of a fixed
    /// length. It must be used by nobody else while the staging lives.
    pub fn over(locator: impl Locator + Send + Sync + 'static) -> StagePlace {
        let facts = locator.endpoint().facts;
        let (name, len, kept) = (facts.name.clone(), facts.len, Arc::new(locator) as Kept);
        StagePlace { len, ..StagePlace::opened_by(name, move || Ok(kept.clone())) }
    }

    /// A place that `open` opens when the staging is opened; `name` is for reports and messages.
    pub fn opened_by(
        name: impl Into<String>,
        open: impl Fn() -> Result<Arc<dyn Locator + Send + Sync>> + Send + Sync + 'static,
    ) -> StagePlace {
        StagePlace { name: name.into(), opens: Arc::new(open), limit: None, tier: 0, folder: None, len: None }
    }

    /// A nameless scratch file in a folder ([`Ssd::scratch_in`]).
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

    /// `len` bytes of main memory, of a NUMA node where one is given; pages are touched when they
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
    /// `InvalidInput` with what is wrong.
    pub fn parse(text: &str) -> Result<StagePlace> {
        let (plain, limit) = split_limit(text)?;
        let place = match plain.parse::<Uri>()? {
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
            other => return Err(bad(text, &format!("{other:?} is not a place for staging"))),
        };
        Ok(match limit {
            Some(limit) => place.limit(limit),
            None => place,
        })
    }

    /// Parses places between commas, to be used one after the other. A folder whose name has commas
    /// is taken as one.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn parse_list(text: &str) -> Result<Vec<StagePlace>> {
        if Path::new(text).is_dir() {
            return Ok(vec![StagePlace::folder(text)]);
        }
        text.split(',').enumerate().map(|(tier, one)| Ok(StagePlace::parse(one)?.in_tier(tier))).collect()
    }

    /// Uses no more than so many bytes of it at once (rounded down to 4 KiB).
    #[must_use]
    pub fn limit(self, bytes: u64) -> StagePlace {
        StagePlace { limit: Some(bytes), ..self }
    }

    /// Puts it into a tier: places of one tier take turns, those of the next come when none of it
    /// takes any more.
    #[must_use]
    pub fn in_tier(self, tier: usize) -> StagePlace {
        StagePlace { tier, ..self }
    }

    /// Its tier.
    pub fn tier(&self) -> usize {
        self.tier
    }

    /// Its name in reports: as it was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The folder of its scratch file, where it is one.
    pub fn as_folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// The most bytes it can ever hold, where that is known: its limit or its length. A folder may
    /// have less free.
    pub fn most_bytes(&self) -> Option<u64> {
        self.limit.into_iter().chain(self.len).min()
    }

    pub(super) fn open(self) -> Result<(Opened, Store)> {
        if self.limit.is_some_and(|limit| limit < GRAIN) {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "stage",
                format!("{}: a limit below {GRAIN} bytes", self.name),
            )
            .advice("a place with a limit has at least 4 KiB"));
        }
        let kept = (self.opens)()?;
        let endpoint = kept.endpoint();
        if endpoint.staging().is_some() {
            return Err(Error::new(ErrorKind::InvalidInput, "stage", format!("{}: a staging in a staging", self.name)));
        }
        let len = endpoint.facts.len;
        let file = match (len, endpoint.file()) {
            (None, Some(file)) => Some(Ssd::of(file.clone())),
            (None, None) => {
                let why = format!("{}: a place that states no length and is no file", self.name);
                return Err(Error::new(ErrorKind::Unsupported, "stage", why));
            }
            (Some(_), _) => None,
        };
        let mut store = Store::new(len, self.limit);
        store.tier = self.tier;
        Ok((Opened { name: self.name, endpoint, file, limit: self.limit, _kept: kept }, store))
    }
}

impl From<&Path> for StagePlace {
    fn from(dir: &Path) -> StagePlace {
        StagePlace::folder(dir)
    }
}

impl fmt::Debug for StagePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StagePlace({}, limit {:?}, tier {})", self.name, self.limit, self.tier)
    }
}

/// A nameless file in a folder on persistent memory, or a whole DAX device.
fn scratch_pmem(path: &Path, limit: Option<u64>, emulated: bool) -> Result<Pmem> {
    let refuse = |why: &str| Error::new(ErrorKind::InvalidInput, "stage", format!("pmem:{}: {why}", path.display()));
    if !path.is_dir() {
        if path.is_file() {
            // Its bytes may be dear to somebody.
            return Err(refuse("a file that is there would be overwritten").advice("name its folder"));
        }
        return Pmem::open_with(path, PmemOptions { len: None, emulated });
    }
    let Some(len) = limit else {
        return Err(refuse("a folder needs to know how much to map").advice("add ?limit=SIZE"));
    };
    // The mapping keeps the file when its descriptor is gone, and the kernel frees it with the
    // process.
    let file = Ssd::scratch_in(path)?;
    let by_descriptor = format!("/proc/self/fd/{}", file.file().cached_fd().as_raw_fd());
    Pmem::open_with(by_descriptor, PmemOptions { len: Some(len), emulated })
}

/// Takes `limit=` out of a URI's settings.
fn split_limit(text: &str) -> Result<(String, Option<u64>)> {
    let is_uri = text.split_once(':').is_some_and(|(s, _)| !s.is_empty() && s.bytes().all(|b| b.is_ascii_lowercase()));
    let Some((body, query)) = text.rsplit_once('?').filter(|(_, q)| is_uri || q.starts_with("limit=")) else {
        return Ok((text.to_owned(), None));
    };
    let (limits, others): (Vec<&str>, Vec<&str>) = query.split('&').partition(|s| s.starts_with("limit="));
    let limit = match limits[..] {
        [] => None,
        [one] => Some(parse_size(one.trim_start_matches("limit="))?),
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
        .advice("write a folder, ssd:FOLDER[?limit=SIZE], dram:SIZE, numa:NODE?len=SIZE or pmem:FOLDER?limit=SIZE; several places \
                 with commas between them")
}

/// A place in use.
pub(super) struct Opened {
    pub(super) name: String,
    pub(super) endpoint: Endpoint,
    /// Where it grows.
    pub(super) file: Option<Ssd>,
    limit: Option<u64>,
    _kept: Kept,
}

impl Opened {
    /// Bytes that nobody uses where it grows, those included that the system keeps for itself; None
    /// where that is not known.
    pub(super) fn unused_bytes(&self) -> Option<u64> {
        let fs = rustix::fs::fstatvfs(self.file.as_ref()?.file().cached_fd()).ok().filter(|fs| fs.f_blocks > 0)?;
        fs.f_bfree.checked_mul(fs.f_frsize)
    }

    /// Bytes that it could take now, as far as that is known.
    pub(super) fn free_bytes(&self) -> Option<u64> {
        let free = match (&self.file, self.endpoint.facts.len) {
            (_, Some(len)) => Some(len),
            (Some(ssd), None) => {
                // A file system that states no blocks at all does not count them; it is not full.
                let fs = rustix::fs::fstatvfs(ssd.file().cached_fd()).ok().filter(|fs| fs.f_blocks > 0);
                fs.and_then(|fs| fs.f_bavail.checked_mul(fs.f_frsize))
            }
            (None, None) => None,
        };
        free.into_iter().chain(self.limit).min()
    }
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
