//! Shares of caches and of memory bandwidth (Linux, Documentation/filesystems/resctrl.rst). They
//! are given to a group of threads that is made for the transaction.

use crate::knob::{About, AllowedValues, MADE_TREES, MAX_OF_KERNEL, MachineKnob, Place, hexadecimal};
use crate::tree::MachineTree;

pub(crate) const RESCTRL: &str = "sys/fs/resctrl";
const ABOUT: About = About {
    affects: "pipes of the threads that get the share",
    needs: "root and `mount -t resctrl resctrl /sys/fs/resctrl`",
    verified: MADE_TREES,
};
/// All of the bandwidth, where it is counted in percent.
const WHOLE_PERCENT: u64 = 100;

/// A share, and its line in the schemata.
struct Share {
    name: &'static str,
    what: &'static str,
    resource: &'static str,
}

/// Where code and data have shares apart (CDP), the lines of code and data stand in place of one.
const SHARES: [Share; 5] = [
    Share {
        name: "share.l3",
        what: "Which ways of the last-level cache the threads of the command may allocate in (CAT)",
        resource: "L3",
    },
    Share {
        name: "share.l3_code",
        what: "Which ways of the last-level cache the code of the threads may be in (CDP)",
        resource: "L3CODE",
    },
    Share {
        name: "share.l3_data",
        what: "Which ways of the last-level cache the data of the threads may be in (CDP)",
        resource: "L3DATA",
    },
    Share {
        name: "share.l2",
        what: "Which ways of the L2 cache the threads of the command may allocate in (CAT)",
        resource: "L2",
    },
    Share {
        name: "share.memory_bandwidth",
        what: "How much memory bandwidth the threads of the command may use (MBA): percent; units of the processor (AMD); MB/s if mounted with mba_MBps",
        resource: BANDWIDTH,
    },
];
const BANDWIDTH: &str = "MB";

pub(super) fn knobs(tree: &MachineTree) -> Vec<MachineKnob> {
    let whole = tree.text(&format!("{RESCTRL}/schemata"));
    let of = |share: &Share| {
        let resource = share.resource;
        let is_mask = resource != BANDWIDTH;
        let mut knob = MachineKnob::absent(share.name, share.what, ABOUT, String::new());
        let schemata = match &whole {
            Ok(text) => text,
            Err(error) => {
                knob.absent = Some(format!("/{RESCTRL}/schemata: {error}; {}", support(tree)));
                return knob;
            }
        };
        let line = schemata.lines().find_map(|line| line.trim().strip_prefix(resource)?.strip_prefix(':'));
        let Some(line) = line else {
            knob.absent =
                Some(format!("/{RESCTRL}/schemata has no line {resource}: {}", why_no_line(schemata, resource)));
            return knob;
        };
        let parts: Option<Vec<(u64, u64)>> = line.split(';').map(|part| parse(part, is_mask)).collect();
        let Some(parts) = parts.filter(|parts| !parts.is_empty()) else {
            knob.absent = Some(format!("/{RESCTRL}/schemata: `{line}` is not understood"));
            return knob;
        };
        let info = |name: &str| tree.text(&format!("{RESCTRL}/info/{resource}/{name}")).ok();
        let each = if is_mask {
            let whole = parts.iter().fold(0, |all, (_, share)| all | share);
            AllowedValues::Mask {
                bits: info("cbm_mask").and_then(|mask| hexadecimal(&mask)).unwrap_or(whole),
                min_bits: info("min_cbm_bits").and_then(|min| min.parse().ok()).unwrap_or(1),
                may_have_gaps: info("sparse_masks").is_some_and(|allowed| allowed == "1"),
            }
        } else {
            let number = |name: &str| info(name).and_then(|min| min.parse().ok()).unwrap_or(1).max(1);
            let (min, step) = (number("min_bandwidth"), number("bandwidth_gran"));
            bandwidth(tree, min, step, parts.iter().map(|(_, share)| *share).max().unwrap_or(0))
        };
        knob.absent = None;
        knob.value = Some(line.trim().to_owned());
        knob.lives_at = format!("/{RESCTRL}, line {resource} of a group made for the command");
        let domains = parts.iter().map(|(domain, _)| *domain).collect();
        knob.allowed = AllowedValues::Shares { domains, each: Box::new(each), is_mask };
        knob.place = Place::Shares { resource };
        knob
    };
    SHARES.iter().map(of).collect()
}

/// What a share of bandwidth may be. What the group of all has now may be less than there is, where
/// somebody throttled it; `most` is the largest of its shares. The kernel rounds a percentage up to
/// the step of the processor (`bandwidth_gran`).
fn bandwidth(tree: &MachineTree, min: u64, step: u64, most: u64) -> AllowedValues {
    let is_intel = tree.text("proc/cpuinfo").is_ok_and(|facts| facts.contains("GenuineIntel"));
    // A least share above all of it makes no sense.
    let min = if is_intel { min.min(WHOLE_PERCENT) } else { min };
    match is_intel {
        true if most <= WHOLE_PERCENT && step > 1 => AllowedValues::Steps { min, max: WHOLE_PERCENT, step },
        true if most <= WHOLE_PERCENT => AllowedValues::Number { min, max: WHOLE_PERCENT },
        // MB/s (option mba_MBps), which the kernel takes below the least percent, too.
        true => AllowedValues::Number { min: 1, max: MAX_OF_KERNEL },
        false => AllowedValues::Number { min, max: MAX_OF_KERNEL },
    }
}

fn parse(part: &str, is_mask: bool) -> Option<(u64, u64)> {
    let (domain, share) = part.trim().split_once('=')?;
    let share = if is_mask { hexadecimal(share.trim()) } else { share.trim().parse().ok() };
    Some((domain.trim().parse().ok()?, share?))
}

fn why_no_line(schemata: &str, resource: &str) -> &'static str {
    let has = |line: &str| schemata.lines().any(|other| other.trim().starts_with(line));
    match resource {
        "L3" if has("L3CODE:") => "code and data have shares apart (option cdp): `share.l3_code`, `share.l3_data`",
        "L2" if has("L2CODE:") => "code and data have shares apart (option cdpl2), which this library does not set",
        "L3CODE" | "L3DATA" if has("L3:") => "resctrl is mounted without the option cdp",
        _ => "the processor lacks it",
    }
}

/// What the processor says of it, where it is not mounted.
fn support(tree: &MachineTree) -> String {
    let facts = match tree.text("proc/cpuinfo") {
        Ok(facts) => facts,
        Err(error) => return format!("/proc/cpuinfo: {error}"),
    };
    let has = |flag: &str| facts.split_whitespace().any(|word| word == flag);
    match has("cat_l3") || has("cat_l2") || has("mba") {
        true => "the processor has shares: `mount -t resctrl resctrl /sys/fs/resctrl`",
        false => "the processor shows none of cat_l3, cat_l2 and mba",
    }
    .to_owned()
}
