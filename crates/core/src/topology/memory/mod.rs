//! Memory: how much there is, how much this process may use, and its page sizes.

pub(super) mod cgroup;
pub(super) mod room;

use serde::{Deserialize, Serialize};

use super::tree::{Tree, chosen, meminfo_bytes, parse_size};
use cgroup::CgroupLimit;

/// Memory of the machine and the part of it that this process may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MemoryFacts {
    /// Memory of the machine in bytes.
    pub total_bytes: Option<u64>,
    /// The kernel's estimate of memory that is available without swapping (`MemAvailable`).
    pub available_bytes: Option<u64>,
    /// The smallest container limit from this process's control group upwards; `None` without a
    /// limit.
    pub limit_bytes: Option<u64>,
    /// Every such control group that has a limit.
    pub limits: Vec<CgroupLimit>,
    /// How much memory may be locked (`RLIMIT_MEMLOCK`).
    pub memlock: Memlock,
    /// Bytes in an ordinary page.
    pub page_bytes: Option<u64>,
    /// Transparent huge pages: `always`, `madvise` or `never`.
    pub thp: Option<String>,
    /// What a page fault does when no huge page is free: `always`, `defer`, `madvise`, `never`, ...
    pub thp_defrag: Option<String>,
    /// Bytes in a transparent huge page.
    pub thp_bytes: Option<u64>,
    /// Reserved huge pages, a pool for each size, smallest first.
    pub hugepages: Vec<HugePages>,
}

/// How much memory a process may lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Memlock {
    /// There is no limit.
    Unlimited,
    /// This many bytes.
    Bytes(u64),
    /// The limit could not be read.
    Unknown,
}

/// One pool of reserved huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HugePages {
    /// Bytes in a page.
    pub page_bytes: u64,
    /// Pages in the pool.
    pub total: u64,
    /// Unused pages.
    pub free: u64,
    /// Unused pages that are already promised to a mapping.
    pub reserved: u64,
}

impl MemoryFacts {
    /// The bytes that this process can take now: the smaller of `MemAvailable` and what its
    /// container limits leave.
    ///
    /// Usage does not count the page cache that the kernel drops under pressure (`inactive_file`).
    /// Swap is not counted either: bytes that a pipe moves through must not be paged out. Returns
    /// `None` only if neither figure is known.
    pub fn usable_bytes(&self) -> Option<u64> {
        let limited = self.limits.iter().map(CgroupLimit::headroom_bytes).min();
        [self.available_bytes, limited].into_iter().flatten().min()
    }
}

pub(super) fn discover(tree: &Tree) -> MemoryFacts {
    const THP: &str = "sys/kernel/mm/transparent_hugepage";
    let meminfo = tree.required("proc/meminfo", "memory").unwrap_or_default();
    let total_bytes = meminfo_bytes(&meminfo, "MemTotal");
    let limits = cgroup::discover(tree, total_bytes);
    MemoryFacts {
        total_bytes,
        available_bytes: meminfo_bytes(&meminfo, "MemAvailable"),
        limit_bytes: limits.iter().map(|limit| limit.limit_bytes).min(),
        limits,
        memlock: memlock(tree),
        page_bytes: page_bytes(tree),
        thp: tree.required(&format!("{THP}/enabled"), "transparent huge pages").map(|text| chosen(&text)),
        thp_defrag: tree.text(&format!("{THP}/defrag")).map(|text| chosen(&text)),
        thp_bytes: tree.number(&format!("{THP}/hpage_pmd_size")),
        hugepages: hugepages(tree),
    }
}

/// Returns the page size, which the running kernel tells. A recorded tree has it in smaps, since
/// AT_PAGESZ of auxv is binary.
fn page_bytes(tree: &Tree) -> Option<u64> {
    if tree.is_live() {
        return u64::try_from(crate::process::page_size()).ok();
    }
    tree.text("proc/self/smaps").and_then(|smaps| meminfo_bytes(&smaps, "KernelPageSize"))
}

/// Reads `/proc/self/limits`, which says the same as `getrlimit` and exists in recorded trees.
fn memlock(tree: &Tree) -> Memlock {
    let limits = tree.required("proc/self/limits", "memlock").unwrap_or_default();
    let soft = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max locked memory"))
        .and_then(|line| line.split_whitespace().next());
    match soft {
        Some("unlimited") => Memlock::Unlimited,
        Some(text) => text.parse().map_or(Memlock::Unknown, Memlock::Bytes),
        None => Memlock::Unknown,
    }
}

fn hugepages(tree: &Tree) -> Vec<HugePages> {
    const POOLS: &str = "sys/kernel/mm/hugepages";
    let mut pools: Vec<HugePages> = tree
        .names(POOLS)
        .iter()
        .filter_map(|name| {
            let size = name.strip_prefix("hugepages-")?.strip_suffix('B')?;
            let figure = |file: &str| tree.number::<u64>(&format!("{POOLS}/{name}/{file}"));
            Some(HugePages {
                page_bytes: parse_size(size)?,
                total: figure("nr_hugepages")?,
                free: figure("free_hugepages")?,
                reserved: figure("resv_hugepages").unwrap_or(0),
            })
        })
        .collect();
    if pools.is_empty() {
        tree.unknown(format!("huge pages: /{POOLS} has no pools"));
    }
    pools.sort_by_key(|pool| pool.page_bytes);
    pools
}
