//! File systems that a test mounts, and devices over files: real ones, with the gaps that real ones
//! have.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};

use crate::TempFolder;

/// A file system of another program, mounted over a folder of the test's own; it is unmounted with
/// this value.
#[derive(Debug)]
pub struct Mounted {
    at: PathBuf,
    folder: TempFolder,
}

impl Mounted {
    /// `bindfs` over a new folder under `parent`: it has no `fallocate` and no nameless files.
    ///
    /// # Errors
    /// Why it cannot be had here, for a line that says that a test was skipped.
    pub fn bindfs(parent: impl AsRef<Path>) -> Result<Mounted, String> {
        Mounted::over(under(parent)?, &mut Command::new("bindfs"))
    }

    /// `bindfs` over a new folder under `parent`, and its server, which can be stopped: then the
    /// file system answers no more.
    ///
    /// # Errors
    /// As [`bindfs`](Self::bindfs).
    pub fn that_stops(parent: impl AsRef<Path>) -> Result<(MountServer, Mounted), String> {
        let folder = under(parent)?;
        let (behind, at) = (folder.path("behind"), folder.path("mounted"));
        for dir in [&behind, &at] {
            std::fs::create_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        }
        let server = Command::new("bindfs").arg("-f").arg(&behind).arg(&at).spawn();
        let mut server = MountServer(server.map_err(|e| format!("bindfs: {e}"))?);
        let mounted = Mounted { at, folder };
        while !mounted.is_mounted() {
            if let Ok(Some(status)) = server.0.try_wait() {
                return Err(format!("bindfs: {status}"));
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        Ok((server, mounted))
    }

    /// `mergerfs` over a new folder under `parent`: it opens files for direct I/O and refuses
    /// direct writes (`EINVAL`).
    ///
    /// # Errors
    /// As [`bindfs`](Self::bindfs).
    pub fn mergerfs(parent: impl AsRef<Path>) -> Result<Mounted, String> {
        Mounted::over(under(parent)?, Command::new("mergerfs").args(["-o", "use_ino"]))
    }

    /// A file system in memory of so many bytes, over a new folder under `parent`; there is nothing
    /// behind it.
    ///
    /// # Errors
    /// As [`bindfs`](Self::bindfs).
    pub fn small(parent: impl AsRef<Path>, bytes: u64) -> Result<Mounted, String> {
        let folder = under(parent)?;
        let at = folder.path("mounted");
        std::fs::create_dir(&at).map_err(|e| format!("{}: {e}", at.display()))?;
        let size = format!("size={bytes}");
        Mounted::run(
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&at),
            "mount",
            at.clone(),
            folder,
        )
    }

    /// `bindfs` whose server answers a third of the requests short, as a server may, past the
    /// kernel's page cache.
    ///
    /// # Errors
    /// As [`bindfs`](Self::bindfs); also where there is no C compiler.
    pub fn answering_short(parent: impl AsRef<Path>) -> Result<Mounted, String> {
        let folder = under(parent)?;
        let (source, library) = (folder.path("short.c"), folder.path("short.so"));
        std::fs::write(&source, SHORT).map_err(|e| format!("{}: {e}", source.display()))?;
        let mut command = Command::new("cc");
        let compiled = command.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).output();
        let compiled = compiled.map_err(|e| format!("cc: {e}"))?;
        if !compiled.status.success() {
            return Err(format!("cc: {}", said(&compiled)));
        }
        Mounted::over(folder, Command::new("bindfs").env("LD_PRELOAD", &library).args(["-o", "direct_io"]))
    }

    /// An ext4 of so many bytes (some of which are its own) in a file of a new folder under
    /// `parent`, by a loop device.
    ///
    /// # Errors
    /// As [`bindfs`](Self::bindfs).
    pub fn ext4(parent: impl AsRef<Path>, bytes: u64) -> Result<Mounted, String> {
        Mounted::ext4_with(parent, bytes, &[])
    }

    /// The same with inodes of 128 bytes, as old file systems have: their times are whole seconds.
    ///
    /// # Errors
    /// As [`bindfs`](Self::bindfs).
    pub fn ext4_of_seconds(parent: impl AsRef<Path>, bytes: u64) -> Result<Mounted, String> {
        Mounted::ext4_with(parent, bytes, &["-I", "128"])
    }

    fn ext4_with(parent: impl AsRef<Path>, bytes: u64, options: &[&str]) -> Result<Mounted, String> {
        let folder = under(parent)?;
        let (image, at) = (folder.path("image"), folder.path("mounted"));
        std::fs::create_dir(&at).map_err(|e| format!("{}: {e}", at.display()))?;
        let made = std::fs::File::create(&image).and_then(|file| file.set_len(bytes));
        made.map_err(|e| format!("{}: {e}", image.display()))?;
        let output = Command::new("mkfs.ext4").args(["-q", "-F"]).args(options).arg(&image).output();
        let output = output.map_err(|e| format!("mkfs.ext4: {e}"))?;
        if !output.status.success() {
            return Err(format!("mkfs.ext4: {}", said(&output)));
        }
        Mounted::run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at), "mount", at.clone(), folder)
    }

    /// Mounts what [`ext4`](Self::ext4) made once more, with these bytes in the place of those
    /// wherever they are in it: as another image that was built in the same way.
    ///
    /// # Errors
    /// What went wrong, in words.
    ///
    /// # Panics
    /// Where the lengths differ.
    pub fn mount_again_with(&self, replaced: &[(Vec<u8>, Vec<u8>)]) -> Result<(), String> {
        let image = self.folder.path("image");
        let run = |command: &mut Command, program: &str| {
            let output = command.output().map_err(|e| format!("{program}: {e}"))?;
            output.status.success().then_some(()).ok_or_else(|| format!("{program}: {}", said(&output)))
        };
        // A program that another thread is starting may still have a file of it open.
        let begun = std::time::Instant::now();
        while let Err(why) = run(Command::new("umount").arg(&self.at), "umount") {
            if begun.elapsed() > crate::PATIENCE {
                return Err(why);
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        let mut bytes = std::fs::read(&image).map_err(|e| format!("{}: {e}", image.display()))?;
        for (from, to) in replaced {
            assert_eq!(from.len(), to.len());
            let places: Vec<_> = (0..bytes.len().saturating_sub(from.len()))
                .step_by(512)
                .filter(|&at| bytes[at..].starts_with(from))
                .collect();
            places.into_iter().for_each(|at| bytes[at..at + to.len()].copy_from_slice(to));
        }
        std::fs::write(&image, bytes).map_err(|e| format!("{}: {e}", image.display()))?;
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&self.at), "mount")
    }

    /// Starts a server over a new folder in `folder`.
    fn over(folder: TempFolder, server: &mut Command) -> Result<Mounted, String> {
        let (behind, at) = (folder.path("behind"), folder.path("mounted"));
        for dir in [&behind, &at] {
            std::fs::create_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        }
        let name = server.get_program().to_string_lossy().into_owned();
        Mounted::run(server.arg(&behind).arg(&at), &name, at.clone(), folder)
    }

    fn run(command: &mut Command, program: &str, at: PathBuf, folder: TempFolder) -> Result<Mounted, String> {
        let output = command.output();
        let output = output.map_err(|e| format!("{program}: {e}"))?;
        // The value exists from here on, so that what is mounted is unmounted whatever comes.
        let mounted = Mounted { at, folder };
        match (output.status.success(), mounted.is_mounted()) {
            (true, true) => Ok(mounted),
            _ => Err(format!("{program}: {}", said(&output))),
        }
    }

    fn is_mounted(&self) -> bool {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let at = self.at.canonicalize().unwrap_or_else(|_| self.at.clone());
        mounts.lines().any(|line| line.split(' ').nth(4).is_some_and(|point| Path::new(point) == at))
    }

    /// The folder that is mounted.
    pub fn at(&self) -> &Path {
        &self.at
    }

    /// Something in it by name.
    pub fn path(&self, name: &str) -> PathBuf {
        self.at.join(name)
    }

    /// The same file as the file system behind sees it.
    pub fn behind(&self, name: &str) -> PathBuf {
        self.folder.path("behind").join(name)
    }
}

/// The server of a mounted file system; it is ended with this value, and who waits for it hears of
/// that.
#[derive(Debug)]
pub struct MountServer(Child);

impl MountServer {
    /// It answers nobody from now on.
    ///
    /// # Errors
    /// Why it could not be stopped.
    pub fn stop(&self) -> Result<(), String> {
        self.signal("-STOP")
    }

    /// It answers again.
    ///
    /// # Errors
    /// As [`stop`](Self::stop).
    pub fn go_on(&self) -> Result<(), String> {
        self.signal("-CONT")
    }

    fn signal(&self, signal: &str) -> Result<(), String> {
        let output = Command::new("kill").arg(signal).arg(self.0.id().to_string()).output();
        let output = output.map_err(|e| format!("kill: {e}"))?;
        if output.status.success() { Ok(()) } else { Err(format!("kill: {}", said(&output))) }
    }
}

impl Drop for MountServer {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A block device whose bytes are those of a file.
#[derive(Debug)]
pub struct LoopDevice(PathBuf);

impl LoopDevice {
    /// The device over this file.
    ///
    /// # Errors
    /// As [`Mounted::bindfs`].
    pub fn over(file: &Path) -> Result<LoopDevice, String> {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(file).output();
        let output = output.map_err(|e| format!("losetup: {e}"))?;
        if !output.status.success() {
            return Err(format!("losetup: {}", said(&output)));
        }
        Ok(LoopDevice(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // One that stays is seen by the next who looks; a test's outcome does not depend on it.
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).output();
    }
}

/// Every third request that is long enough moves a third of its bytes.
const SHORT: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/types.h>
#include <unistd.h>
static unsigned calls;
static size_t cut(size_t len) { return __sync_fetch_and_add(&calls, 1) % 3 == 2 && len > 4096 ? len / 3 : len; }
#define READ(name) \
    ssize_t name(int fd, void *bytes, size_t len, off_t at) { \
        ssize_t (*next)(int, void *, size_t, off_t) = dlsym(RTLD_NEXT, #name); \
        return next(fd, bytes, cut(len), at); \
    }
#define WRITE(name) \
    ssize_t name(int fd, const void *bytes, size_t len, off_t at) { \
        ssize_t (*next)(int, const void *, size_t, off_t) = dlsym(RTLD_NEXT, #name); \
        return next(fd, bytes, cut(len), at); \
    }
READ(pread)
READ(pread64)
WRITE(pwrite)
WRITE(pwrite64)
"#;

fn under(parent: impl AsRef<Path>) -> Result<TempFolder, String> {
    TempFolder::under(parent).map_err(|e| format!("a folder: {e}"))
}

fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    format!("{} ({})", text.trim().replace('\n', "; "), output.status)
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Lazily: a failed test may still have files open.
        if self.is_mounted() {
            let _ = Command::new("umount").arg("-l").arg(&self.at).output();
        }
    }
}
