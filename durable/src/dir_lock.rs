//! One writer at a time for a folder.
//!
//! The folder itself is locked, which nobody can remove while it is used, as they could a file in
//! it: whoever tidies up would let a second writer in. Where the file system locks no folders (some
//! network file systems), a file `.lock` in it is locked, and must be left alone.

use std::fs::{File, Metadata, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use datapipes_core::process::OwningProcess;
use datapipes_core::{Error, ErrorKind, Result};
use rustix::fs::AtFlags;

/// The name of the file that is locked where folders cannot be.
const NAME: &str = ".lock";
/// How often a folder or a file may be replaced while we look at it.
const LOOKS: usize = 16;

/// The sole right to write to a folder. The kernel takes it back with the process, whatever happens
/// to that, and with the children that it made by `fork` and that became no other program: they
/// have the open file, too.
#[derive(Debug)]
pub(crate) struct DirLock {
    file: File,
    /// The name under which it was locked.
    path: PathBuf,
    owner: OwningProcess,
}

impl DirLock {
    /// Takes the right, or says that somebody has it.
    pub(crate) fn of(folder: &Path) -> Result<DirLock> {
        match lock(folder, &|| File::open(folder)) {
            Ok(file) => Ok(DirLock::held(file, folder)),
            Err(TryLockError::Error(e)) if locks_no_folders(&e) => DirLock::by_file(folder),
            Err(e) => Err(refusal(folder, folder, e)),
        }
    }

    fn held(file: File, path: &Path) -> DirLock {
        DirLock { file, path: path.to_owned(), owner: OwningProcess::here() }
    }

    /// Removes a file of the folder: of this one, whatever has its name by then (where the file
    /// system locks folders).
    pub(crate) fn remove(&self, path: &Path) -> Result<()> {
        self.check()?;
        let locks_folder = self.path.file_name().is_none_or(|name| name != NAME);
        let removed = match path.file_name() {
            Some(name) if locks_folder => {
                rustix::fs::unlinkat(&self.file, name, AtFlags::empty()).map_err(std::io::Error::from)
            }
            _ => std::fs::remove_file(path),
        };
        removed.map_err(|e| Error::io("remove", &e, path.display().to_string()))
    }

    /// Whether the name still leads to what is locked. If not, the folder was moved, and whoever
    /// goes on by its name would change what belongs to somebody else.
    ///
    /// # Errors
    /// `NotFound` where it does not; what looking meets.
    pub(crate) fn check(&self) -> Result<()> {
        let fail = |e: std::io::Error| Error::io("look at", &e, self.path.display().to_string());
        let ours = self.file.metadata().map_err(fail)?;
        match std::fs::metadata(&self.path) {
            Ok(there) if is_same(&there, &ours) => Ok(()),
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(fail(e)),
            gone_or_another => {
                let what = if gone_or_another.is_ok() { "was replaced by another" } else { "was moved or removed" };
                let why = format!("{} {what} while it was in use", self.path.display());
                Err(Error::new(ErrorKind::NotFound, "find", why)
                    .advice("put what was there back under its name, and open it again"))
            }
        }
    }

    /// The same by a file in it.
    fn by_file(folder: &Path) -> Result<DirLock> {
        let path = folder.join(NAME);
        let open = || File::options().create(true).append(true).open(&path);
        lock(&path, &open).map(|file| DirLock::held(file, &path)).map_err(|e| refusal(folder, &path, e))
    }
}

/// Opens and locks what has this path, and has it still when it is locked.
fn lock(path: &Path, open: &dyn Fn() -> std::io::Result<File>) -> Result<File, TryLockError> {
    for _ in 0..LOOKS {
        let file = open().map_err(TryLockError::Error)?;
        file.try_lock()?;
        let ours = file.metadata().map_err(TryLockError::Error)?;
        match std::fs::metadata(path) {
            Ok(there) if is_same(&there, &ours) => return Ok(file),
            Ok(_) => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(TryLockError::Error(e)),
        }
    }
    Err(TryLockError::WouldBlock)
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// What a file system says that knows locks of files only, or none.
fn locks_no_folders(e: &std::io::Error) -> bool {
    let cannot = [libc::EBADF, libc::EINVAL, libc::EISDIR, libc::ENOLCK, libc::ENOSYS, libc::EOPNOTSUPP];
    e.raw_os_error().is_some_and(|errno| cannot.contains(&errno))
}

fn refusal(folder: &Path, locked: &Path, e: TryLockError) -> Error {
    match e {
        TryLockError::WouldBlock => {
            let holder = holders(locked).map(|who| format!(" ({who})")).unwrap_or_default();
            let why = format!("{}: another writer has it{holder}", folder.display());
            Error::new(ErrorKind::Busy, "lock", why)
                .advice("close the other one (or end the children that it left by fork), or use another folder")
        }
        TryLockError::Error(e) => Error::io("lock", &e, locked.display().to_string()),
    }
}

/// The processes that have a lock on this, as far as this one may see them: the writer where it
/// lives, and else children that it left by `fork`, if they are of this user. Asked only for the
/// text of an error.
///
/// What `/proc` says of the files of a process can take for ever, if that wants it: so it is asked
/// of this user's alone, and of those only that the kernel names, where it names one.
fn holders(locked: &Path) -> Option<String> {
    let there = std::fs::metadata(locked).ok()?;
    let (major, minor) = (rustix::fs::major(there.dev()), rustix::fs::minor(there.dev()));
    let place = format!(" {major:02x}:{minor:02x}:{} ", there.ino());
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    // `1: FLOCK  ADVISORY  WRITE 12 fe:00:34 0 EOF`, and with `->` who waits.
    let writer = |line: &str| line.split_whitespace().nth(4)?.parse::<u32>().ok();
    let writers = locks.lines().filter(|line| line.contains(" FLOCK ") && line.contains(&place)).filter_map(writer);
    let own = rustix::process::getuid().as_raw();
    // The number is that of the process that took the lock, and may be another's by now.
    let mut found: Vec<u32> =
        writers.filter(|pid| user_of(*pid).is_some_and(|user| user != own || has_lock(*pid, &place))).collect();
    if found.is_empty() {
        let processes = std::fs::read_dir("/proc").ok()?.flatten();
        let pids = processes.filter_map(|process| process.file_name().to_str()?.parse::<u32>().ok());
        found = pids.filter(|pid| user_of(*pid) == Some(own) && has_lock(*pid, &place)).collect();
    }
    match &found[..] {
        [] => None,
        [one] => Some(format!("process {one}")),
        several => Some(format!("processes {}", several.iter().map(u32::to_string).collect::<Vec<_>>().join(", "))),
    }
}

/// Who started a process, if it lives. Its status is told at once, whatever it does.
fn user_of(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    ids.split_whitespace().next()?.parse().ok()
}

/// Whether a process has a file open that has a lock on the file at this place.
fn has_lock(pid: u32, place: &str) -> bool {
    // Those that ended meanwhile, or belong to others, tell nothing.
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
    let mut texts = descriptors.map(|entry| std::fs::read_to_string(entry.path()).unwrap_or_default());
    let is_lock = |line: &str| line.starts_with("lock:") && line.contains(" FLOCK ") && line.contains(place);
    texts.any(|text| text.lines().any(is_lock))
}

impl Drop for DirLock {
    fn drop(&mut self) {
        // Children share the open file, and with it the lock: it ends here, though they live on;
        // and not with one of them.
        if self.owner.is_here() {
            let _ = self.file.unlock();
        }
    }
}

/// Makes a folder with those above it, durably: each new name is synced in its parent.
pub(crate) fn make_folder(folder: &Path) -> Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let fail = |e: &std::io::Error| Error::io("create", e, folder.display().to_string());
    let parent = datapipes_core::locator::parent_dir(folder);
    make_folder(&parent)?;
    match std::fs::create_dir(folder) {
        Ok(()) => {}
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && folder.is_dir() => {}
        Err(e) => return Err(fail(&e)),
    }
    sync_folder(&parent)
}

/// Returns when names made and removed in a folder would survive a power failure.
pub(crate) fn sync_folder(folder: &Path) -> Result<()> {
    let synced = File::open(folder).and_then(|dir| dir.sync_all());
    synced.map_err(|e| Error::io("sync", &e, folder.display().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Lock = fn(&Path) -> Result<DirLock>;

    #[test]
    fn one_at_a_time_whatever_is_locked() {
        let dir = std::env::temp_dir().join(format!("sole-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        for (how, lock) in [("the folder", DirLock::of as Lock), ("a file", DirLock::by_file as Lock)] {
            let one = lock(&dir).unwrap();
            let refused = lock(&dir).unwrap_err();
            let named = format!("another writer has it (process {})", std::process::id());
            let text = refused.to_string();
            // Where /proc tells nothing of locks, nobody is named.
            let tells = std::fs::read_dir("/proc/self/fdinfo").is_ok();
            assert!(refused.kind() == ErrorKind::Busy && (text.contains(&named) || !tells), "{how}: {text}");
            drop(one);
            drop(lock(&dir).unwrap());
            // While it comes and goes, nobody has it together with another who looked at the same
            // name.
            let held = std::sync::atomic::AtomicU32::new(0);
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        for _ in 0..2000 {
                            if let Ok(sole) = lock(&dir) {
                                assert_eq!(held.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0, "{how}");
                                held.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                                // Who is done may tidy up: the next one makes its own.
                                let _ = std::fs::remove_file(dir.join(NAME));
                                drop(sole);
                            }
                        }
                    });
                }
            });
        }
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(DirLock::of(&dir).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
