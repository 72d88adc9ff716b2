//! The table of what each primitive was tried on names every primitive, and the page says the same.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;

use datapipes_bundle::{TRIED, TriedOn, tried_on};
use datapipes_core::topology::Topology;

#[test]
fn every_primitive_is_in_the_table_once_and_nothing_else() {
    let backends = datapipes_bundle::all(&Topology::discover());
    let mut primitives: Vec<&str> = backends.iter().flat_map(|b| b.primitives()).map(|p| p.name).collect();
    // A backend of a feature that is off has its rows all the same.
    let is_built = |name: &str| {
        (cfg!(feature = "object") || !name.starts_with("object-"))
            && (cfg!(feature = "gpu") || !name.starts_with("gpu-"))
            && (cfg!(feature = "net") || !name.starts_with("ucx-"))
    };
    let mut listed: Vec<&str> = TRIED.iter().map(|(name, _)| *name).filter(|name| is_built(name)).collect();
    primitives.sort_unstable();
    listed.sort_unstable();
    assert_eq!(primitives, listed);
    assert_eq!(tried_on("a primitive that nobody has"), TriedOn::Nothing);
}

/// The rows are `| primitives, with commas between them | what they were tried on |`, below the
/// heading "Primitives".
#[test]
fn the_page_says_what_the_table_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/hardware.md");
    let page = std::fs::read_to_string(path).unwrap();
    let section = page.split("\n## Primitives\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let mut said = BTreeMap::new();
    for row in section.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        for name in cells[0].split(',').map(|name| name.trim().trim_matches('`')) {
            assert!(said.insert(name, cells[1]).is_none(), "{name} is there twice");
        }
    }
    let expected: BTreeMap<&str, &str> = TRIED.iter().map(|(name, on)| (*name, on.words())).collect();
    assert_eq!(said, expected);
}
