//! What the tests of the command share.
#![allow(dead_code, clippy::unwrap_used)] // Not every test needs all of it.

pub(crate) mod helps;
pub(crate) mod streams;
pub(crate) mod tmux;
pub(crate) mod twins;

pub(crate) use datapipes_testkit::TempFolder;

/// Under the target folder, for /tmp may be memory.
pub(crate) fn folder() -> TempFolder {
    TempFolder::under(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

pub(crate) fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e} in {text}"))
}

/// Whether the tests run as root, who may change users and mount.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether calls of the kernel can be held: strace is installed and may trace.
pub(crate) fn can_hold_calls() -> bool {
    let traced = std::process::Command::new("strace").args(["-o", "/dev/null", "true"]).output();
    traced.is_ok_and(|output| output.status.success())
}

/// Whether a program can be started by its name.
pub(crate) fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}
