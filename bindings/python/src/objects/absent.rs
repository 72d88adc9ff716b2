//! Objects in buckets, in a build without the feature `object`: they are refused by name.

use std::convert::Infallible;

use datapipes::sort::{InputPlace, Output};
use datapipes::{Dram, Error, ErrorKind, Result};

/// Whether this build has objects.
pub(crate) const BUILT: bool = false;

fn absent<T>(address: &str) -> Result<T> {
    let why = format!("{address}: this package was built without objects");
    Err(Error::new(ErrorKind::Unsupported, "open", why)
        .with_advice("build it with objects: pip install ./bindings/python -C build-args=--features=object"))
}

/// An object that is open for reading; there is none.
#[derive(Clone)]
pub(crate) struct Source(Infallible);

impl Source {
    pub(crate) fn open(address: &str) -> Result<Source> {
        absent(address)
    }

    pub(crate) fn len(&self) -> u64 {
        match self.0 {}
    }

    pub(crate) fn version(&self) -> String {
        match self.0 {}
    }

    pub(crate) fn read(&self, _: u64, _: &Dram, _: u64) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn place(&self) -> Result<InputPlace> {
        match self.0 {}
    }
}

pub(crate) fn list(address: &str) -> Result<Vec<String>> {
    absent(address)
}

pub(crate) fn remove(address: &str) -> Result<()> {
    absent(address)
}

pub(crate) fn end_uploads(pattern: &str) -> Result<usize> {
    absent(pattern)
}

/// An object that is being written; there is none.
pub(crate) struct Target(Infallible);

impl Target {
    pub(crate) fn create(address: &str, _: Option<u64>, _: bool) -> Result<Target> {
        absent(address)
    }

    pub(crate) fn len(&self) -> u64 {
        match self.0 {}
    }

    pub(crate) fn write(&self, _: u64, _: &Dram, _: u64) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn publish(&self, _: u64) -> Result<()> {
        match self.0 {}
    }
}

pub(crate) fn output(address: &str, _: u64) -> Result<Output> {
    absent(address)
}
