//! What a runtime costs, and what it keeps for those in a hurry.

use crate::bench::contestants::rows::{self, Rows};
use crate::bench::context::Example;

pub(in crate::bench) mod flavors;
pub(in crate::bench) mod qos;

/// Both definitions have their turns taken by an example of the library, on a disk.
const fn by_example(example: &'static str, verified: &'static str) -> Rows {
    Rows {
        example: Example { package: "datapipes", name: example },
        on_disk: true,
        name: rows::words,
        figures: rows::numbers,
        verified,
    }
}
