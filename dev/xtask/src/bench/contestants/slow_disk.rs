//! A disk that is held to a rate: an ext4 in a file, on a loop device that a block I/O cgroup
//! (version 1 or 2) limits for the processes in it.

use crate::{TaskResult, steps};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The mounted file system, and the cgroup. Both go with this value.
pub(in crate::bench) struct SlowDisk {
    image: PathBuf,
    mounted: PathBuf,
    group: PathBuf,
    bytes_a_second: u64,
}

impl SlowDisk {
    /// Makes one of `bytes` in a folder, held to a rate for reads and to the same for writes.
    ///
    /// # Errors
    /// The step that failed; that needs root, a loop device and a cgroup controller.
    pub(in crate::bench) fn make(folder: &Path, bytes: u64, bytes_a_second: u64) -> TaskResult<Self> {
        let (image, mounted) = (folder.join("slow-disk.image"), folder.join("slow-disk"));
        // Space that was never written would be allocated while it is measured.
        let size = bytes.to_string();
        steps::finish(Command::new("fallocate").args(["-l", &size]).arg(&image))?;
        // From here on, what was made goes if a step fails.
        let mut disk = Self { image, mounted, group: PathBuf::new(), bytes_a_second };
        steps::finish(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&disk.image))?;
        std::fs::create_dir_all(&disk.mounted)?;
        steps::finish(Command::new("mount").args(["-o", "loop"]).arg(&disk.image).arg(&disk.mounted))?;
        let device = std::fs::metadata(&disk.mounted)?.dev();
        let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
        disk.group = limited(&device, bytes_a_second)?;
        Ok(disk)
    }

    pub(in crate::bench) fn folder(&self) -> &Path {
        &self.mounted
    }

    pub(in crate::bench) fn describe(&self) -> String {
        let rate = self.bytes_a_second / 1_000_000;
        format!("runs go to an ext4 on a loop device that a cgroup holds to {rate} MB/s for reads and for writes each")
    }

    /// The beginning of a command line whose program is limited.
    pub(in crate::bench) fn shell(&self) -> Command {
        let mut inside = Command::new("sh");
        inside.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(self.group.join("cgroup.procs"));
        inside
    }
}

/// Makes a cgroup that limits a device.
fn limited(device: &str, rate: u64) -> TaskResult<PathBuf> {
    let name = format!("dpipe-bench-slow-{}", std::process::id());
    let version_1 = Path::new("/sys/fs/cgroup/blkio").join(&name);
    if version_1.parent().is_some_and(Path::exists) {
        std::fs::create_dir_all(&version_1)?;
        for file in ["blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device"] {
            std::fs::write(version_1.join(file), format!("{device} {rate}"))?;
        }
        return Ok(version_1);
    }
    let version_2 = Path::new("/sys/fs/cgroup").join(&name);
    std::fs::create_dir_all(&version_2)?;
    std::fs::write(version_2.join("io.max"), format!("{device} rbps={rate} wbps={rate}"))?;
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
