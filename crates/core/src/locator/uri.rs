//! Names of places, for command lines: `ssd:/path?access=direct`, `dram:64M`, `cache:l2/core0`,
//! `pmem:/mnt/pmem/x`, `numa:1?len=64M`, `hbm:0?len=64M`, or a plain path.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::FileAccess;
use crate::error::{Error, ErrorKind, Result};

/// A place, parsed but not opened.
///
/// ```
/// use datapipes_core::{FileAccess, Uri};
/// assert_eq!("/data/x".parse::<Uri>()?, Uri::Ssd { path: "/data/x".into(), access: FileAccess::Auto });
/// assert_eq!("dram:64M".parse::<Uri>()?, Uri::Dram { len: 64 << 20, node: None });
/// assert_eq!("pmem:/mnt/x?emulated".parse::<Uri>()?, Uri::Pmem { path: "/mnt/x".into(), emulated: true });
/// assert_eq!("numa:1?len=64M".parse::<Uri>()?, Uri::Numa { node: 1, len: 64 << 20 });
/// assert_eq!("hbm:0?len=64M".parse::<Uri>()?, Uri::Hbm { device: 0, len: 64 << 20 });
/// assert!("tape:0".parse::<Uri>().is_err_and(|e| e.to_string().contains("tape")));
/// # Ok::<(), datapipes_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Uri {
    /// A file or block device: `ssd:PATH[?access=auto|direct|cached]`, or just a path.
    Ssd {
        /// The path.
        path: PathBuf,
        /// The access asked for.
        access: FileAccess,
    },
    /// Fresh memory: `dram:SIZE[?node=N]`. Without a size (0), it is as long as the other end.
    Dram {
        /// The length in bytes.
        len: u64,
        /// The NUMA node to bind to.
        node: Option<u32>,
    },
    /// A core's cache over fresh memory: `cache:l2/core0` or `cache:l3/core1`.
    CoreCache {
        /// The cache level, 2 or 3.
        level: u8,
        /// The core's index.
        core: usize,
    },
    /// Persistent memory: `pmem:PATH[?emulated]`, a file or a DAX device.
    Pmem {
        /// The path.
        path: PathBuf,
        /// Whether to accept a file that is not on persistent memory.
        emulated: bool,
    },
    /// Fresh memory of a NUMA node: `numa:NODE[?len=SIZE]`. Without a size (0), it is as long as
    /// the other end.
    Numa {
        /// The number of the node.
        node: u32,
        /// The length in bytes.
        len: u64,
    },
    /// Fresh memory of a GPU: `hbm:DEVICE[?len=SIZE]`. Without a size (0), it is as long as the
    /// other end.
    Hbm {
        /// The number of the device.
        device: u32,
        /// The length in bytes.
        len: u64,
    },
}

impl Uri {
    /// The path of a file or device; `None` for memory.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Uri::Ssd { path, .. } | Uri::Pmem { path, .. } => Some(path),
            Uri::Dram { .. } | Uri::CoreCache { .. } | Uri::Numa { .. } | Uri::Hbm { .. } => None,
        }
    }
}

const FORMS: &str = "write a path, ssd:PATH[?access=auto|direct|cached], dram:SIZE[?node=N], cache:l2/core0, \
                     pmem:PATH[?emulated], numa:NODE[?len=SIZE], or hbm:DEVICE[?len=SIZE]";

impl FromStr for Uri {
    type Err = Error;

    fn from_str(text: &str) -> Result<Uri> {
        let bad = |why: String| {
            Error::new(ErrorKind::InvalidInput, "parse", format!("place `{text}`: {why}")).with_advice(FORMS)
        };
        if text.is_empty() {
            return Err(bad("it is empty".into()));
        }
        let scheme = text.split_once(':').filter(|(s, _)| {
            !s.is_empty() && s.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        });
        // A colon in a file's name is no scheme if the text is clearly a path.
        let Some((scheme, rest)) = scheme else {
            return Ok(Uri::Ssd { path: text.into(), access: FileAccess::Auto });
        };
        let (body, query) = match rest.rsplit_once('?') {
            Some((body, query)) => (body, Some(query)),
            None => (rest, None),
        };
        let setting = |name: &str| -> Result<Option<&str>> {
            match query.map(|q| q.split_once('=')) {
                None => Ok(None),
                Some(Some((key, value))) if key == name => Ok(Some(value)),
                Some(_) => Err(bad(format!("`?{}` is not a setting of {scheme}", query.unwrap_or("")))),
            }
        };
        match scheme {
            "ssd" | "file" => {
                let path = if scheme == "file" { body.strip_prefix("//").unwrap_or(body) } else { body };
                if path.is_empty() {
                    return Err(bad("the path is empty".into()));
                }
                let access = match setting("access")? {
                    None | Some("auto") => FileAccess::Auto,
                    Some("direct") => FileAccess::Direct,
                    Some("cached") => FileAccess::Cached,
                    Some(other) => return Err(bad(format!("access `{other}` is not one of auto, direct, cached"))),
                };
                Ok(Uri::Ssd { path: path.into(), access })
            }
            "dram" => {
                let node = match setting("node")? {
                    None => None,
                    Some(n) => Some(n.parse().map_err(|_| bad(format!("node `{n}` is not a number")))?),
                };
                let len = if body.is_empty() { 0 } else { parse_size(body).map_err(|e| bad(e.to_string()))? };
                Ok(Uri::Dram { len, node })
            }
            "cache" => {
                setting("")?;
                let parsed = body.split_once('/').and_then(|(level, core)| {
                    let level = level.strip_prefix('l')?.parse::<u8>().ok().filter(|l| (2..=3).contains(l))?;
                    Some((level, core.strip_prefix("core")?.parse::<usize>().ok()?))
                });
                let (level, core) = parsed.ok_or_else(|| bad("a cache is named like l2/core0 or l3/core1".into()))?;
                Ok(Uri::CoreCache { level, core })
            }
            "pmem" => {
                let emulated = match query {
                    None => false,
                    Some("emulated") => true,
                    Some(other) => return Err(bad(format!("`?{other}` is not a setting of pmem"))),
                };
                if body.is_empty() {
                    return Err(bad("the path is empty".into()));
                }
                Ok(Uri::Pmem { path: body.into(), emulated })
            }
            "numa" => {
                let node = body.parse().map_err(|_| bad(format!("node `{body}` is not a number")))?;
                let len = setting("len")?.map_or(Ok(0), parse_size).map_err(|e| bad(e.to_string()))?;
                Ok(Uri::Numa { node, len })
            }
            "hbm" => {
                let device = body.parse().map_err(|_| bad(format!("device `{body}` is not a number")))?;
                let len = setting("len")?.map_or(Ok(0), parse_size).map_err(|e| bad(e.to_string()))?;
                Ok(Uri::Hbm { device, len })
            }
            other => Err(bad(format!("no place is called `{other}`"))),
        }
    }
}

/// Parses a size: a number and an optional unit of 1024 (`K`, `M`, `G`, `T`, also `KiB`) or 1000
/// (`KB`, `MB`, ...).
///
/// # Errors
/// `InvalidInput` with the reason; a size over 2^63 - 1 is refused.
pub fn parse_size(text: &str) -> Result<u64> {
    let bad = |why: &str| {
        Error::new(ErrorKind::InvalidInput, "parse", format!("size `{text}`: {why}"))
            .with_advice("write a number and a unit, such as 512M, 2GiB or 10GB")
    };
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(bad("the unit is not known")),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return Err(bad("it does not start with a number"));
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| bad("the number is too large"))? };
    let mut bytes = whole.checked_mul(factor).ok_or_else(|| bad("it is too large"))?;
    if !fraction.is_empty() {
        let value: f64 = format!("0.{fraction}").parse().map_err(|_| bad("it does not start with a number"))?;
        bytes = bytes.checked_add((value * factor as f64) as u64).ok_or_else(|| bad("it is too large"))?;
    }
    if bytes > i64::MAX as u64 {
        return Err(bad("it is too large"));
    }
    Ok(bytes)
}
