//! The places of a staging: their descriptions, and the opened places.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::ledger::{GRAIN, Store};
use super::{Endpoint, Locator, Ssd};
use crate::error::{Error, ErrorKind, Result};

/// Any locator, as a staging holds it.
pub(super) type Kept = Arc<dyn Locator + Send + Sync>;
pub(super) type Opens = Arc<dyn Fn() -> Result<Kept> + Send + Sync>;

/// A place that a [`Staging`](super::Staging) may use. It is opened together with the staging.
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
    pub(super) name: String,
    pub(super) opens: Opens,
    pub(super) limit: Option<u64>,
    pub(super) tier: usize,
    pub(super) folder: Option<PathBuf>,
    pub(super) len: Option<u64>,
}

impl StagePlace {
    /// Uses an existing place: memory of any kind, a file that grows, a device of a fixed length.
    /// Nothing else may use it while the staging lives.
    pub fn over(locator: impl Locator + Send + Sync + 'static) -> StagePlace {
        let facts = locator.endpoint().facts;
        let (name, len, kept) = (facts.name.clone(), facts.len, Arc::new(locator) as Kept);
        StagePlace { len, ..StagePlace::opened_by(name, move || Ok(kept.clone())) }
    }

    /// Uses a place that `open` opens together with the staging; `name` is for reports and
    /// messages.
    pub fn opened_by(
        name: impl Into<String>,
        open: impl Fn() -> Result<Arc<dyn Locator + Send + Sync>> + Send + Sync + 'static,
    ) -> StagePlace {
        StagePlace { name: name.into(), opens: Arc::new(open), limit: None, tier: 0, folder: None, len: None }
    }

    /// Limits how many bytes of it are used at once (rounded down to 4 KiB).
    #[must_use]
    pub fn limit(self, bytes: u64) -> StagePlace {
        StagePlace { limit: Some(bytes), ..self }
    }

    /// Puts it into a tier. Places of one tier take turns; the next tier is used when none of them
    /// takes more.
    #[must_use]
    pub fn in_tier(self, tier: usize) -> StagePlace {
        StagePlace { tier, ..self }
    }

    /// The tier of the place.
    pub fn tier(&self) -> usize {
        self.tier
    }

    /// Its name in reports, as it was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The folder of its scratch file, if it has one.
    pub fn as_folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// The most bytes that it can ever hold, if known: its limit or its length. A folder may have
    /// less space free.
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
            .with_advice("a place with a limit has at least 4 KiB"));
        }
        let kept = (self.opens)()?;
        let endpoint = kept.endpoint();
        if endpoint.staging().is_some() {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "stage",
                format!("{}: a staging cannot be a place of a staging", self.name),
            ));
        }
        let len = endpoint.facts.len;
        let file = match (len, endpoint.file()) {
            (None, Some(file)) => Some(Ssd::of(file.clone())),
            (None, None) => {
                let why = format!("{}: the place states no length and is not a file", self.name);
                return Err(Error::new(ErrorKind::Unsupported, "stage", why));
            }
            (Some(_), _) => None,
        };
        let mut store = Store::new(len, self.limit);
        store.tier = self.tier;
        Ok((Opened { name: self.name, endpoint, file, limit: self.limit, _kept: kept }, store))
    }
}

impl fmt::Debug for StagePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StagePlace({}, limit {:?}, tier {})", self.name, self.limit, self.tier)
    }
}

/// An opened place.
pub(super) struct Opened {
    pub(super) name: String,
    pub(super) endpoint: Endpoint,
    /// The file that grows, if it is one.
    pub(super) file: Option<Ssd>,
    limit: Option<u64>,
    _kept: Kept,
}

impl Opened {
    /// Unused bytes of the file system in which it grows, including those reserved for the system;
    /// `None` if not known.
    pub(super) fn unused_bytes(&self) -> Option<u64> {
        let fs = rustix::fs::fstatvfs(self.file.as_ref()?.file().cached_fd()).ok().filter(|fs| fs.f_blocks > 0)?;
        fs.f_bfree.checked_mul(fs.f_frsize)
    }

    /// The bytes that it could take now, if known.
    pub(super) fn free_bytes(&self) -> Option<u64> {
        let free = match (&self.file, self.endpoint.facts.len) {
            (_, Some(len)) => Some(len),
            (Some(ssd), None) => {
                // A file system that reports 0 blocks does not count them; it is not full.
                let fs = rustix::fs::fstatvfs(ssd.file().cached_fd()).ok().filter(|fs| fs.f_blocks > 0);
                fs.and_then(|fs| fs.f_bavail.checked_mul(fs.f_frsize))
            }
            (None, None) => None,
        };
        free.into_iter().chain(self.limit).min()
    }
}
