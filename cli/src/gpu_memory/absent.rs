//! The same names without the feature `gpu`: such memory cannot be reached, so there is none.

use datapipes::{Endpoint, Error, ErrorKind, Locator, Result};
use serde::Serialize;

/// No memory.
#[derive(Debug)]
pub(crate) enum AnyHbm {}

const WHY: &str = "this dpipe was built without memory of GPUs";

impl AnyHbm {
    pub(crate) fn allocate(_: u32, _: u64) -> Result<AnyHbm> {
        Err(Error::new(ErrorKind::Unavailable, "open", WHY).with_advice("build it with `--features gpu`"))
    }

    pub(crate) fn len(&self) -> u64 {
        match *self {}
    }
}

impl Locator for AnyHbm {
    fn endpoint(&self) -> Endpoint {
        match *self {}
    }
}

/// Why there is no GPU.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum GpuFacts {
    Absent(String),
}

impl GpuFacts {
    pub(crate) fn find() -> GpuFacts {
        GpuFacts::Absent(WHY.to_owned())
    }

    pub(crate) fn text(&self) -> String {
        let GpuFacts::Absent(why) = self;
        format!("GPUs\n  none: {why}\n\n")
    }
}
