//! Memory of GPUs on the command line: `hbm:DEVICE[?len=SIZE]`, and the devices. A program that was
//! built without the feature `gpu` knows the form, and says what it lacks.

#[cfg(not(feature = "gpu"))]
mod absent;
#[cfg(feature = "gpu")]
mod built;

#[cfg(not(feature = "gpu"))]
pub(crate) use absent::{AnyHbm, GpuFacts};
#[cfg(feature = "gpu")]
pub(crate) use built::{AnyHbm, GpuFacts};
