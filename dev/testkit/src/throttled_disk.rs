//! A disk that a block I/O cgroup (version 1 or 2) holds to a rate.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::Mounted;

static COUNT: AtomicU64 = AtomicU64::new(0);

/// An ext4 on a loop device whose reads and writes are held to a rate, for the processes of a
/// control group. What goes by the page cache is not held. Both go with this value.
#[derive(Debug)]
pub struct ThrottledDisk {
    // The group goes first: it names the device.
    group: Group,
    disk: Mounted,
    /// Its numbers, as the kernel names it.
    device: String,
}

#[derive(Debug)]
struct Group {
    folder: PathBuf,
    /// Where processes of this group go when it ends.
    parent: PathBuf,
}

impl ThrottledDisk {
    /// Makes one of `bytes` (some of which are the file system's own) under `parent` that reads and
    /// writes `rate` bytes a second.
    ///
    /// # Errors
    /// Why it cannot be had here, for a line that says that a test was skipped.
    pub fn new(parent: impl AsRef<Path>, bytes: u64, rate: u64) -> Result<ThrottledDisk, String> {
        let groups = std::fs::read_to_string("/proc/self/cgroup").map_err(|e| format!("/proc/self/cgroup: {e}"))?;
        let ours = groups.lines().find_map(|line| line.split_once(":blkio:")).map(|(_, path)| path);
        let above = match ours {
            Some(ours) => Path::new("/sys/fs/cgroup/blkio").join(ours.trim_start_matches('/')),
            None => PathBuf::from("/sys/fs/cgroup"),
        };
        let disk = Mounted::ext4(parent, bytes)?;
        let device = std::fs::metadata(disk.at()).map_err(|e| format!("{}: {e}", disk.at().display()))?.dev();
        let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
        let folder = above.join(format!("datapipes-disk-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed)));
        std::fs::create_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let group = Group { folder, parent: above };
        let limits = match ours {
            Some(_) => vec![
                ("blkio.throttle.read_bps_device", format!("{device} {rate}")),
                ("blkio.throttle.write_bps_device", format!("{device} {rate}")),
            ],
            None => vec![("io.max", format!("{device} rbps={rate} wbps={rate}"))],
        };
        for (file, limit) in limits {
            let file = group.folder.join(file);
            std::fs::write(&file, limit).map_err(|e| format!("{}: {e}", file.display()))?;
        }
        Ok(ThrottledDisk { group, disk, device })
    }

    /// The bytes that the device has written since it was made.
    ///
    /// # Errors
    /// Why the kernel does not say it.
    pub fn written(&self) -> Result<u64, String> {
        let file = format!("/sys/dev/block/{}/stat", self.device);
        let text = std::fs::read_to_string(&file).map_err(|e| format!("{file}: {e}"))?;
        let sectors = text.split_whitespace().nth(6).and_then(|sectors| sectors.parse::<u64>().ok());
        sectors.map(|sectors| sectors * 512).ok_or_else(|| format!("{file}: {text}"))
    }

    /// Where it is mounted.
    pub fn at(&self) -> &Path {
        self.disk.at()
    }

    /// The program, to be run with the disk held to its rate.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut inside = Command::new("sh");
        inside.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]);
        inside.arg(self.group.folder.join("cgroup.procs")).arg(program.as_ref());
        inside
    }

    /// Holds the disk to its rate for this process, as long as it lives.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn hold_this_process(&self) -> Result<(), String> {
        let file = self.group.folder.join("cgroup.procs");
        std::fs::write(&file, std::process::id().to_string()).map_err(|e| format!("{}: {e}", file.display()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let left = std::fs::read_to_string(self.folder.join("cgroup.procs")).unwrap_or_default();
        for process in left.lines() {
            let _ = std::fs::write(self.parent.join("cgroup.procs"), process);
        }
        // A group that is not empty is left, and ends with the machine.
        let _ = std::fs::remove_dir(&self.folder);
    }
}
