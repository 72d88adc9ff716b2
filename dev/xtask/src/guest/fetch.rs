//! `cargo xtask guest --fetch`: the parts by the system's package tools, extracted and not
//! installed.

use crate::TaskResult;
use crate::steps::finish;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

/// As Debian and those who follow it call them.
const PACKAGES: [&str; 6] =
    ["qemu-system-x86", "linux-image-amd64", "busybox-static", "libucx0", "ibverbs-providers", "iproute2"];

/// Downloads the packages and what they need that this system lacks, and extracts them into the
/// folder. They are the newer ones of the backports where there are such: some guests need
/// hardware and drivers that came later than a stable release.
///
/// The lists are in the folder, too, and fresh. Nothing of the system is changed, so its lock is
/// not needed.
pub(crate) fn run(folder: &Path) -> TaskResult<()> {
    let archives = folder.join("archives");
    let (sources, lists) = (folder.join("sources"), folder.join("lists"));
    for made in [archives.join("partial"), lists.join("partial"), sources.clone()] {
        fs::create_dir_all(made)?;
    }
    write_sources(Path::new("/etc"), &sources)?;
    let settings = [
        "Debug::NoLocking=1".to_owned(),
        "Dir::Etc::SourceList=/dev/null".to_owned(),
        format!("Dir::Etc::SourceParts={}/", sources.display()),
        format!("Dir::State::Lists={}/", lists.display()),
        format!("Dir::Cache::Archives={}/", archives.display()),
        "Dir::Cache::PkgCache=".to_owned(),
        "Dir::Cache::SrcPkgCache=".to_owned(),
    ];
    let apt = |program: &str, word: &str| {
        let mut command = Command::new(program);
        command.arg(word);
        settings.iter().for_each(|setting| _ = command.args(["-o", setting]));
        command
    };
    // One source that does not answer is no reason to go without the others.
    if let Err(why) = finish(apt("apt-get", "update").arg("--quiet")) {
        println!("{why}; what was listed is used");
    }
    let mut download = apt("apt-get", "install");
    download.args(["--quiet", "--download-only", "--yes", "--no-install-recommends"]);
    let policy = apt("apt-cache", "policy").output();
    if let Some(release) = policy.ok().and_then(|policy| backports(&String::from_utf8_lossy(&policy.stdout))) {
        println!("from {release}");
        download.args(["--target-release", &release]);
    }
    finish(download.args(PACKAGES))?;
    for entry in fs::read_dir(&archives)?.flatten() {
        if entry.path().extension().is_some_and(|e| e == "deb") {
            finish(Command::new("dpkg").arg("-x").arg(entry.path()).arg(folder))?;
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// The system's sources, and Debian's backports, which it may not have.
fn write_sources(etc: &Path, sources: &Path) -> TaskResult<()> {
    let of_system = fs::read_dir(etc.join("apt/sources.list.d")).into_iter().flatten().flatten();
    let of_system = of_system.map(|entry| entry.path()).chain([etc.join("apt/sources.list")]);
    for file in of_system.filter(|file| file.is_file()) {
        fs::copy(&file, sources.join(file.file_name().unwrap_or_default()))?;
    }
    let backports = sources.join("datapipes-backports.sources");
    match fs::read_to_string(etc.join("os-release")).ok().and_then(|system| source_of_backports(&system)) {
        Some(text) => fs::write(backports, text)?,
        None => _ = fs::remove_file(backports),
    }
    Ok(())
}

/// Where a Debian has its backports; other systems call theirs otherwise, and list them by default.
fn source_of_backports(os_release: &str) -> Option<String> {
    let value = |name: &str| {
        let line = os_release.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        line.map(|value| value.trim_matches('"'))
    };
    let release = value("VERSION_CODENAME").filter(|_| value("ID") == Some("debian"))?;
    let mut text = String::new();
    for (name, value) in [
        ("Types", "deb"),
        ("URIs", "http://deb.debian.org/debian"),
        ("Suites", &format!("{release}-backports")),
        ("Components", "main"),
        ("Signed-By", "/usr/share/keyrings/debian-archive-keyring.gpg"),
    ] {
        _ = writeln!(text, "{name}: {value}");
    }
    Some(text)
}

/// The name of the backports among the package lists, such as `bookworm-backports`.
fn backports(policy: &str) -> Option<String> {
    policy
        .split([',', ' ', '\n'])
        .filter_map(|word| word.strip_prefix("n="))
        .find(|n| n.ends_with("-backports"))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_debian_has_backports_of_its_release() {
        let text = source_of_backports("ID=debian\nVERSION_CODENAME=bookworm\nID_LIKE=x\n").unwrap();
        assert!(text.contains("\nSuites: bookworm-backports\n"), "{text}");
        assert_eq!(source_of_backports("ID=ubuntu\nVERSION_CODENAME=noble\n"), None);
        assert_eq!(source_of_backports("ID=\"debian\"\n"), None);
    }

    #[test]
    fn backports_are_found_among_the_lists() {
        let policy = " 100 http://deb.debian.org/debian bookworm-backports/main amd64 Packages\n     \
             release o=Debian Backports,a=stable-backports,n=bookworm-backports,l=Debian Backports,c=main,b=amd64\n";
        assert_eq!(backports(policy).as_deref(), Some("bookworm-backports"));
        assert_eq!(backports("release o=Debian,a=oldstable,n=bookworm,l=Debian\n"), None);
    }
}
