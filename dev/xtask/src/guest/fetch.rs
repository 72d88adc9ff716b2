//! `cargo xtask guest --fetch`: the parts by the system's package tools, extracted and not
//! installed.

use crate::TaskResult;
use crate::steps::finish;
use std::path::Path;
use std::process::Command;

/// As Debian and those who follow it call them.
const PACKAGES: [&str; 3] = ["qemu-system-x86", "linux-image-amd64", "busybox-static"];

/// Downloads the packages and what they need that this system lacks, and extracts them into the
/// folder. They are the newer ones of the backports if the system's lists have those: some guests
/// need hardware and drivers that came later than a stable release.
pub(crate) fn run(folder: &Path) -> TaskResult<()> {
    let archives = folder.join("archives");
    std::fs::create_dir_all(archives.join("partial"))?;
    // The system's own lists and sources; nothing of the system is changed, so its lock is not
    // needed.
    let mut download = Command::new("apt-get");
    download.args(["install", "--download-only", "--yes", "--no-install-recommends", "-o", "Debug::NoLocking=1"]);
    download.arg("-o").arg(format!("Dir::Cache::archives={}/", archives.display()));
    if let Some(release) = backports() {
        println!("from {release}");
        download.args(["--target-release", &release]);
    }
    download.args(PACKAGES);
    finish(&mut download).map_err(|e| format!("{e} (are the system's package lists there and fresh?)"))?;
    for entry in std::fs::read_dir(&archives)?.flatten() {
        if entry.path().extension().is_some_and(|e| e == "deb") {
            finish(Command::new("dpkg").arg("-x").arg(entry.path()).arg(folder))?;
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// The name of the backports among the system's package lists, such as `bookworm-backports`.
fn backports() -> Option<String> {
    let policy = Command::new("apt-cache").arg("policy").output().ok()?;
    let text = String::from_utf8_lossy(&policy.stdout).into_owned();
    text.split([',', ' ', '\n'])
        .filter_map(|word| word.strip_prefix("n="))
        .find(|n| n.ends_with("-backports"))
        .map(str::to_owned)
}
