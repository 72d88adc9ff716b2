//! The same names without the feature `object`: an object cannot be opened, so there is none.

use datapipes::{Endpoint, Error, ErrorKind, Locator, Result};

use super::account::ObjectAccount;

/// The name of a file that is made of an object: there is none.
pub(crate) fn file_name(_: &str) -> Option<String> {
    None
}

/// The address of an object of this name behind a text that ends in `/`.
pub(crate) fn address_in(folder: &str, name: &str) -> String {
    format!("{folder}{name}")
}

/// How many uploads of this command may have been left at servers: none.
pub(crate) fn unfinished_uploads() -> u64 {
    0
}

/// No object.
#[derive(Debug)]
pub(crate) enum AnyObject {}

/// What refuses to open objects.
#[derive(Clone, Debug)]
pub(crate) struct ObjectAccess(std::convert::Infallible);

impl ObjectAccess {
    pub(crate) fn to_read() -> Result<ObjectAccess> {
        Err(Error::new(ErrorKind::Unavailable, "open", "this dpipe was built without objects")
            .with_advice("build it with `--features object`"))
    }

    pub(crate) fn to_write() -> Result<ObjectAccess> {
        ObjectAccess::to_read()
    }

    pub(crate) fn check_address(&self, _: &str) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn open(&self, _: &str) -> Result<AnyObject> {
        match self.0 {}
    }

    pub(crate) fn create(&self, _: &str, _: Option<u64>, _: usize) -> Result<AnyObject> {
        match self.0 {}
    }

    pub(crate) fn create_only_new(&self, _: &str, _: u64) -> Result<AnyObject> {
        match self.0 {}
    }

    pub(crate) fn remove(&self, _: &str) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn list(&self, _: &str) -> Result<Vec<String>> {
        match self.0 {}
    }
}

impl AnyObject {
    pub(crate) fn came(&self) -> (u64, u64) {
        match *self {}
    }

    pub(crate) fn len(&self) -> u64 {
        match *self {}
    }

    pub(crate) fn address(&self) -> String {
        match *self {}
    }

    pub(crate) fn file_name(&self) -> Option<&str> {
        match *self {}
    }

    pub(crate) fn part_bytes(&self) -> Option<usize> {
        match *self {}
    }

    pub(crate) fn publish(&self, _: u64) -> Result<()> {
        match *self {}
    }

    pub(crate) fn notes(&self) -> Vec<String> {
        match *self {}
    }

    pub(crate) fn report(&self) -> ObjectAccount {
        match *self {}
    }
}

impl Locator for AnyObject {
    fn endpoint(&self) -> Endpoint {
        match *self {}
    }
}
