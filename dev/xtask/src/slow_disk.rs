//! A disk that is held to a rate: an ext4 in a file, on a loop device that a block I/O cgroup
//! (version 1 or 2) limits for the processes in it.

use crate::{TaskResult, steps};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The mounted file system, and the cgroup. Both go with this value.
pub(crate) struct SlowDisk {
    image: PathBuf,
    mounted: PathBuf,
    group: PathBuf,
    rates: DiskRates,
}

/// Bytes a second, for reads and for writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiskRates {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
}

impl SlowDisk {
    /// Makes one of `bytes` in a folder, held to rates.
    ///
    /// # Errors
    /// The step that failed; that needs root, a loop device and a cgroup controller.
    pub(crate) fn make(folder: &Path, bytes: u64, rates: DiskRates) -> TaskResult<Self> {
        let (image, mounted) = (folder.join("slow-disk.image"), folder.join("slow-disk"));
        // Space that was never written would be allocated while it is measured.
        let size = bytes.to_string();
        steps::finish(Command::new("fallocate").args(["-l", &size]).arg(&image))?;
        // From here on, what was made goes if a step fails.
        let mut disk = Self { image, mounted, group: PathBuf::new(), rates };
        steps::finish(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&disk.image))?;
        std::fs::create_dir_all(&disk.mounted)?;
        steps::finish(Command::new("mount").args(["-o", "loop"]).arg(&disk.image).arg(&disk.mounted))?;
        let device = std::fs::metadata(&disk.mounted)?.dev();
        let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
        disk.group = limited(&device, rates)?;
        Ok(disk)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.mounted
    }

    pub(crate) fn describe(&self) -> String {
        let [reads, writes] = [self.rates.reads, self.rates.writes].map(|rate| rate / 1_000_000);
        format!(
            "runs go to an ext4 on a loop device that a cgroup holds to {reads} MB/s for reads and {writes} MB/s for writes"
        )
    }

    /// The beginning of a command line whose program is limited.
    pub(crate) fn shell(&self) -> Command {
        let mut inside = Command::new("sh");
        inside.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(self.group.join("cgroup.procs"));
        inside
    }
}

/// Makes a cgroup that limits a device.
fn limited(device: &str, DiskRates { reads, writes }: DiskRates) -> TaskResult<PathBuf> {
    let name = format!("dpipe-slow-{}", std::process::id());
    let version_1 = Path::new("/sys/fs/cgroup/blkio").join(&name);
    if version_1.parent().is_some_and(Path::exists) {
        std::fs::create_dir_all(&version_1)?;
        for (file, rate) in [("blkio.throttle.read_bps_device", reads), ("blkio.throttle.write_bps_device", writes)] {
            std::fs::write(version_1.join(file), format!("{device} {rate}"))?;
        }
        return Ok(version_1);
    }
    let version_2 = Path::new("/sys/fs/cgroup").join(&name);
    std::fs::create_dir_all(&version_2)?;
    std::fs::write(version_2.join("io.max"), format!("{device} rbps={reads} wbps={writes}"))?;
    Ok(version_2)
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        // What cannot be removed is left: it is in the benchmark's folder, and named for it.
        let _ = Command::new("umount").arg(&self.mounted).status();
        let _ = std::fs::remove_dir(&self.mounted);
        let _ = std::fs::remove_file(&self.image);
        if !self.group.as_os_str().is_empty() {
            let _ = std::fs::remove_dir(&self.group);
        }
    }
}
