//! Huge pages and the placement of memory.

use crate::knob::{About, AllowedValues, MachineKnob, Place, THIS_KIND};
use crate::tree::MachineTree;

const PAGES: About = About {
    affects: "pipes with an end in DRAM, buffers of the sort and of caches",
    needs: "root",
    verified: THIS_KIND,
};
const NUMA: About =
    About { affects: "pipes between memories of a machine with several nodes", needs: "root", verified: THIS_KIND };
/// Huge pages may take this much of the memory that is available now, in hundredths: with more, the
/// kernel kills programs.
const MAX_TAKEN_PERCENT: u64 = 75;

pub(super) fn knobs(tree: &MachineTree) -> Vec<MachineKnob> {
    let text = |name: &str, what: &str, about: About, file: &str| {
        MachineKnob::text(tree, name.to_owned(), what, about, file.to_owned())
    };
    let mut all = vec![
        text(
            "memory.thp",
            "Which memory gets transparent huge pages; the kernel may change vm.min_free_kbytes with it",
            PAGES,
            "sys/kernel/mm/transparent_hugepage/enabled",
        )
        .changing("vm.min_free_kbytes".into(), "proc/sys/vm/min_free_kbytes".into()),
        text(
            "memory.thp_defrag",
            "Whether a page fault waits until memory is compacted for a huge page",
            PAGES,
            "sys/kernel/mm/transparent_hugepage/defrag",
        ),
        text(
            "memory.thp_shared",
            "Which shared memory and tmpfs gets huge pages",
            PAGES,
            "sys/kernel/mm/transparent_hugepage/shmem_enabled",
        ),
    ];
    let max_taken = max_taken_kib(tree);
    for folder in tree.names("sys/kernel/mm/hugepages") {
        let kib = folder.strip_prefix("hugepages-").and_then(|rest| rest.strip_suffix("kB"));
        let Some(kib) = kib.and_then(|kib| kib.parse::<u64>().ok()).filter(|kib| *kib > 0) else { continue };
        let size = page_size(kib);
        let what = format!("How many huge pages of {size} are set aside");
        let file = format!("sys/kernel/mm/hugepages/{folder}/nr_hugepages");
        let mut knob = MachineKnob::text(tree, format!("memory.hugepages_{size}"), &what, PAGES, file);
        let now = knob.value.as_deref().and_then(|value| value.parse::<u64>().ok()).unwrap_or(0);
        let max = now.saturating_add(max_taken / kib);
        knob = knob.allowing(AllowedValues::Number { min: 0, max });
        if let Place::Text { kib_each, .. } = &mut knob.place {
            *kib_each = kib;
        }
        all.push(knob);
    }
    let balancing = "Whether the kernel moves pages to the node that uses them: 0 no, 1 yes, 2 between tiers";
    all.push(
        text("memory.numa_balancing", balancing, NUMA, "proc/sys/kernel/numa_balancing")
            .allowing(AllowedValues::Number { min: 0, max: 2 }),
    );
    let reclaim = "Whether a full node frees its own pages before it takes those of others (bits 1, 2, 4)";
    all.push(
        text("memory.zone_reclaim_mode", reclaim, NUMA, "proc/sys/vm/zone_reclaim_mode")
            .allowing(AllowedValues::Number { min: 0, max: 7 }),
    );
    all
}

/// The size of a page, in the largest unit that divides it: so no two sizes get one name.
fn page_size(kib: u64) -> String {
    match kib {
        _ if kib.is_multiple_of(1 << 20) => format!("{}G", kib >> 20),
        _ if kib.is_multiple_of(1 << 10) => format!("{}M", kib >> 10),
        _ => format!("{kib}K"),
    }
}

/// How much more memory huge pages of all sizes may take, in KiB.
pub(crate) fn max_taken_kib(tree: &MachineTree) -> u64 {
    let facts = tree.text("proc/meminfo").unwrap_or_default();
    let line = facts.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let available: u64 = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0);
    available / 100 * MAX_TAKEN_PERCENT
}

#[cfg(test)]
mod tests {
    use super::page_size;

    #[test]
    fn sizes_of_pages_that_differ_have_names_that_differ() {
        assert_eq!([64, 2048, 2049, 1 << 20].map(page_size), ["64K", "2M", "2049K", "1G"]);
    }
}
