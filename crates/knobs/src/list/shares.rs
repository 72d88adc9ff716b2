//! Shares of the last-level cache and of memory bandwidth (Linux,
//! Documentation/filesystems/resctrl.rst). They are given to a group of threads that is made for
//! the transaction.

use crate::knob::{About, AllowedValues, MachineKnob, Place, hexadecimal};
use crate::tree::MachineTree;

pub(crate) const RESCTRL: &str = "sys/fs/resctrl";
const ABOUT: About = About {
    affects: "pipes of the threads that get the share",
    needs: "root and `mount -t resctrl resctrl /sys/fs/resctrl`",
};
/// The share that a controller gives where nothing is set, in percent or in units of an eighth of a
/// GB/s.
const UNLIMITED: u64 = 100;

pub(super) fn knobs(tree: &MachineTree) -> Vec<MachineKnob> {
    let cache = "Which ways of the last-level cache the threads of the command may allocate in (CAT)";
    let memory =
        "How much memory bandwidth the threads of the command may use (MBA): percent, or units of the processor";
    let whole = tree.text(&format!("{RESCTRL}/schemata"));
    let of = |name: &str, what: &str, resource: &'static str| {
        let mut knob = MachineKnob::absent(name, what, ABOUT, String::new());
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
                Some(format!("/{RESCTRL}/schemata has no line {resource}: {}", cdp_or_lack(schemata, resource)));
            return knob;
        };
        let parts: Option<Vec<(u64, u64)>> = line.split(';').map(|part| parse(part, resource)).collect();
        let Some(parts) = parts.filter(|parts| !parts.is_empty()) else {
            knob.absent = Some(format!("/{RESCTRL}/schemata: `{line}` is not understood"));
            return knob;
        };
        let info = |name: &str| tree.text(&format!("{RESCTRL}/info/{resource}/{name}")).ok();
        let each = if resource == "L3" {
            let whole = parts.iter().fold(0, |all, (_, share)| all | share);
            AllowedValues::Mask { bits: info("cbm_mask").and_then(|mask| hexadecimal(&mask)).unwrap_or(whole) }
        } else {
            let min = info("min_bandwidth").and_then(|min| min.parse().ok()).unwrap_or(1).max(1);
            let max = parts.iter().map(|(_, share)| *share).max().unwrap_or(UNLIMITED);
            AllowedValues::Number { min, max }
        };
        knob.absent = None;
        knob.value = Some(line.trim().to_owned());
        knob.lives_at = format!("/{RESCTRL}, line {resource} of a group made for the command");
        let domains = parts.iter().map(|(domain, _)| *domain).collect();
        knob.allowed = AllowedValues::Shares { domains, each: Box::new(each), is_mask: resource == "L3" };
        knob.place = Place::Shares { resource };
        knob
    };
    vec![of("share.l3", cache, "L3"), of("share.memory_bandwidth", memory, "MB")]
}

fn parse(part: &str, resource: &str) -> Option<(u64, u64)> {
    let (domain, share) = part.trim().split_once('=')?;
    let share = if resource == "L3" { hexadecimal(share.trim()) } else { share.trim().parse().ok() };
    Some((domain.trim().parse().ok()?, share?))
}

fn cdp_or_lack(schemata: &str, resource: &str) -> &'static str {
    match resource == "L3" && schemata.contains("L3CODE") {
        true => "it is mounted with code and data apart (option cdp), which this library does not set",
        false => "the processor lacks it",
    }
}

/// What the processor says of it, where it is not mounted.
fn support(tree: &MachineTree) -> &'static str {
    let facts = tree.text("proc/cpuinfo").unwrap_or_default();
    let has = |flag: &str| facts.split_whitespace().any(|word| word == flag);
    match has("cat_l3") || has("mba") {
        true => "the processor has it: `mount -t resctrl resctrl /sys/fs/resctrl`",
        false => "the processor shows neither cat_l3 nor mba",
    }
}
