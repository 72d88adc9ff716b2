//! Cores and their caches, from `/sys/devices/system/cpu`.

use serde::{Deserialize, Serialize};

use crate::topology::tree::{Tree, parse_list, parse_size};

/// One logical processor, as the kernel numbers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Core {
    /// The kernel's number, which affinity calls take.
    pub index: usize,
    /// Physical package (socket).
    pub package: Option<usize>,
    /// NUMA node.
    pub node: Option<usize>,
    /// Logical processors of the same physical core, this one included.
    pub siblings: Vec<usize>,
    /// Whether the kernel schedules on it.
    pub online: bool,
    /// Whether it is online and in the affinity of this process (which also honours cpusets).
    pub usable: bool,
    /// `performance` or `efficiency` on hybrid processors, else `None`.
    pub kind: Option<String>,
    /// The relative capacity (1024 is the fastest core), where the kernel gives it.
    pub capacity: Option<u32>,
    /// The highest frequency in kHz, where the kernel gives it.
    pub frequency_max_khz: Option<u64>,
    /// The caches that this core uses, nearest first.
    pub caches: Vec<Cache>,
}

/// What a cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheKind {
    /// Data only.
    Data,
    /// Instructions only.
    Instruction,
    /// Data and instructions.
    Unified,
}

/// One cache as one core sees it. A shared cache is listed under each core that shares it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Cache {
    /// 1 is nearest to the core.
    pub level: u32,
    /// Whether it holds data, instructions or both.
    pub kind: CacheKind,
    /// Capacity in bytes.
    pub size_bytes: Option<u64>,
    /// Associativity; 0 is fully associative, as the kernel writes it.
    pub ways: Option<u32>,
    /// Bytes in a line.
    pub line_bytes: Option<u32>,
    /// Number of sets.
    pub sets: Option<u32>,
    /// Logical processors that share it, this core included.
    pub shared_with: Vec<usize>,
}

const CPU: &str = "sys/devices/system/cpu";

/// Returns all present cores. The list is never empty: in the worst case it is the affinity, or
/// core 0.
pub(super) fn discover(tree: &Tree) -> Vec<Core> {
    let allowed = affinity(tree);
    let present = tree
        .list(&format!("{CPU}/present"))
        .or_else(|| Some(tree.numbered(CPU, "cpu")))
        .filter(|present| !present.is_empty());
    let present = match (present, &allowed) {
        (Some(present), _) => present,
        (None, allowed) => {
            tree.unknown(format!("cores: /{CPU} is not readable; only the affinity is known"));
            allowed.clone().filter(|cores| !cores.is_empty()).unwrap_or_else(|| vec![0])
        }
    };
    let online = tree.list(&format!("{CPU}/online"));
    let nodes = node_of_core(tree);
    let performance = tree.list("sys/devices/cpu_core/cpus");
    let efficiency = tree.list("sys/devices/cpu_atom/cpus");
    let has = |list: &Option<Vec<usize>>, core: usize| list.as_ref().is_some_and(|list| list.contains(&core));

    let mut cores: Vec<Core> = present
        .into_iter()
        .map(|index| {
            let base = format!("{CPU}/cpu{index}");
            // Without an `online` list the kernel has no hot plug, and all present cores are
            // online.
            let online = online.as_ref().is_none_or(|list| list.contains(&index));
            Core {
                index,
                // The kernel writes -1 for "unknown", which does not parse and so becomes `None`.
                package: tree.number(&format!("{base}/topology/physical_package_id")),
                node: nodes.iter().find(|(_, cores)| cores.contains(&index)).map(|(node, _)| *node),
                siblings: tree
                    .list(&format!("{base}/topology/thread_siblings_list"))
                    .filter(|siblings| !siblings.is_empty())
                    .unwrap_or_else(|| vec![index]),
                online,
                usable: online && allowed.as_ref().is_none_or(|allowed| allowed.contains(&index)),
                kind: match (has(&performance, index), has(&efficiency, index)) {
                    (true, _) => Some("performance".to_owned()),
                    (_, true) => Some("efficiency".to_owned()),
                    _ => None,
                },
                capacity: tree.number(&format!("{base}/cpu_capacity")),
                frequency_max_khz: tree.number(&format!("{base}/cpufreq/cpuinfo_max_freq")),
                caches: caches(tree, &base, index),
            }
        })
        .collect();
    if cores.iter().all(|core| !core.online || core.caches.is_empty()) {
        tree.unknown(format!("caches: /{CPU}/cpu*/cache is absent (some virtual machines and sandboxes hide it)"));
    }
    if cores.iter().all(|core| !core.usable) {
        tree.unknown("cores: none of the affinity is listed as online; all online cores are taken as usable");
        for core in &mut cores {
            core.usable = core.online;
        }
    }
    cores
}

/// Returns the cores that this process may run on. `/proc/self/status` works for recorded trees
/// too.
fn affinity(tree: &Tree) -> Option<Vec<usize>> {
    let status = tree.text("proc/self/status");
    let listed = status.as_deref().and_then(|status| {
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        parse_list(line)
    });
    if listed.is_none() {
        tree.unknown("affinity: /proc/self/status has no Cpus_allowed_list; all online cores are taken as usable");
    }
    listed
}

/// Returns the cores of each NUMA node.
fn node_of_core(tree: &Tree) -> Vec<(usize, Vec<usize>)> {
    const NODE: &str = "sys/devices/system/node";
    tree.numbered(NODE, "node")
        .into_iter()
        .filter_map(|node| Some((node, tree.list(&format!("{NODE}/node{node}/cpulist"))?)))
        .collect()
}

/// Returns the caches of one core, nearest first, data before instructions.
fn caches(tree: &Tree, core: &str, index: usize) -> Vec<Cache> {
    let base = format!("{core}/cache");
    let mut caches: Vec<Cache> = tree
        .numbered(&base, "index")
        .into_iter()
        .filter_map(|entry| {
            let at = |file: &str| format!("{base}/index{entry}/{file}");
            let kind = match tree.text(&at("type"))?.as_str() {
                "Data" => CacheKind::Data,
                "Instruction" => CacheKind::Instruction,
                "Unified" => CacheKind::Unified,
                _ => return None,
            };
            let (ways, line_bytes, sets) = (
                tree.number(&at("ways_of_associativity")),
                tree.number(&at("coherency_line_size")),
                tree.number(&at("number_of_sets")),
            );
            let size_bytes = tree.text(&at("size")).and_then(|size| parse_size(&size));
            Some(Cache {
                level: tree.number(&at("level"))?,
                kind,
                // Some firmware omits the size but gives the geometry.
                size_bytes: size_bytes.filter(|size| *size > 0).or_else(|| geometry(ways, line_bytes, sets)),
                ways,
                line_bytes,
                sets,
                shared_with: tree
                    .list(&at("shared_cpu_list"))
                    .filter(|shared| !shared.is_empty())
                    .unwrap_or_else(|| vec![index]),
            })
        })
        .collect();
    caches.sort_by_key(|cache| (cache.level, cache.kind == CacheKind::Instruction));
    caches
}

fn geometry(ways: Option<u32>, line_bytes: Option<u32>, sets: Option<u32>) -> Option<u64> {
    let product = u64::from(ways?).checked_mul(u64::from(line_bytes?))?.checked_mul(u64::from(sets?))?;
    (product > 0).then_some(product)
}

impl Core {
    /// The data (or unified) cache of a level.
    pub fn data_cache(&self, level: u32) -> Option<&Cache> {
        self.caches.iter().find(|cache| cache.level == level && cache.kind != CacheKind::Instruction)
    }

    /// Whether this is the first of its siblings. Each physical core has one such core.
    pub fn is_first_sibling(&self) -> bool {
        self.siblings.first() == Some(&self.index)
    }
}

impl Cache {
    /// The cache's bytes per logical processor, when all processors that share it use it.
    pub fn share_bytes(&self) -> Option<u64> {
        let sharers = u64::try_from(self.shared_with.len().max(1)).ok()?;
        Some(self.size_bytes? / sharers)
    }
}
