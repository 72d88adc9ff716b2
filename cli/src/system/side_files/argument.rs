//! What an option says.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The file of an option, as it was given. What opens one is in `writing`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SideFileArgument(PathBuf);

impl SideFileArgument {
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl From<OsString> for SideFileArgument {
    fn from(text: OsString) -> SideFileArgument {
        SideFileArgument(text.into())
    }
}
