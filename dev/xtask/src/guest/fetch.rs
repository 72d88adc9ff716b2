//! `cargo xtask guest --fetch`: the parts by the system's package tools, extracted and not
//! installed.

use crate::TaskResult;
use crate::steps::finish;
use std::path::Path;
use std::process::Command;

/// As Debian and those who follow it call them.
const PACKAGES: [&str; 3] = ["qemu-system-x86", "linux-image-amd64", "busybox-static"];

/// Downloads the packages and what they need that this system lacks, and extracts them into the
/// folder.
pub(crate) fn run(folder: &Path) -> TaskResult<()> {
    let archives = folder.join("archives");
    std::fs::create_dir_all(archives.join("partial"))?;
    // The system's own lists and sources; nothing of the system is changed, so its lock is not
    // needed.
    let mut download = Command::new("apt-get");
    download.args(["install", "--download-only", "--yes", "--no-install-recommends", "-o", "Debug::NoLocking=1"]);
    download.arg("-o").arg(format!("Dir::Cache::archives={}/", archives.display())).args(PACKAGES);
    finish(&mut download).map_err(|e| format!("{e} (are the system's package lists there and fresh?)"))?;
    for entry in std::fs::read_dir(&archives)?.flatten() {
        if entry.path().extension().is_some_and(|e| e == "deb") {
            finish(Command::new("dpkg").arg("-x").arg(entry.path()).arg(folder))?;
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
