//! What the tests of the command share.
#![allow(dead_code, clippy::unwrap_used)] // Not every test needs all of it.

pub(crate) use datapipes_testkit::Folder;

/// Under the target folder, for /tmp may be memory.
pub(crate) fn folder() -> Folder {
    Folder::under(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

pub(crate) fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e} in {text}"))
}
