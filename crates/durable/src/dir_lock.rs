//! One writer at a time for a folder.
//!
//! The folder itself is locked. Nobody can remove it while it is used. A lock file in it could be
//! tidied away, which would let a second writer in. On file systems that cannot lock folders (some
//! network file systems), a file `.lock` in the folder is locked, and must be left alone.

use std::fs::{File, Metadata, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use datapipes_core::file_lock::FileLock;
use datapipes_core::{Error, ErrorKind, Result};
use rustix::fs::AtFlags;

/// The name of the file that is locked if folders cannot be locked.
const NAME: &str = ".lock";
/// How often a folder or a file may be replaced while it is being locked.
const LOOKS: usize = 16;

/// The exclusive right to write to a folder. The kernel releases it when the process has ended,
/// however that happens, and all its children made by `fork` that executed no other program have
/// ended too, because they share the open file.
#[derive(Debug)]
pub(crate) struct DirLock {
    lock: FileLock,
    /// The path that was locked.
    path: PathBuf,
}

impl DirLock {
    /// Locks a folder, or returns `Busy` if another writer has it.
    pub(crate) fn of(folder: &Path) -> Result<DirLock> {
        match lock(folder, &|| File::open(folder)) {
            Ok(lock) => Ok(DirLock::held(lock, folder)),
            Err(TryLockError::Error(e)) if locks_no_folders(&e) => DirLock::by_file(folder),
            Err(e) => Err(refusal(folder, folder, e)),
        }
    }

    fn held(lock: FileLock, path: &Path) -> DirLock {
        DirLock { lock, path: path.to_owned() }
    }

    /// Removes a file of the folder. On file systems that lock folders this is a file of the locked
    /// folder, even if another folder has its name by now.
    pub(crate) fn remove(&self, path: &Path) -> Result<()> {
        self.check()?;
        let locks_folder = self.path.file_name().is_none_or(|name| name != NAME);
        let removed = match path.file_name() {
            Some(name) if locks_folder => {
                rustix::fs::unlinkat(self.lock.file(), name, AtFlags::empty()).map_err(std::io::Error::from)
            }
            _ => std::fs::remove_file(path),
        };
        removed.map_err(|e| Error::io("remove", e, path.display().to_string()))
    }

    /// Checks that the path still leads to the locked folder or file. If it does not, the folder
    /// was moved, and further changes by its name would hit another folder.
    ///
    /// # Errors
    /// `NotFound` if it does not; errors of `stat`.
    pub(crate) fn check(&self) -> Result<()> {
        let fail = |e: std::io::Error| Error::io("look at", e, self.path.display().to_string());
        let ours = self.lock.file().metadata().map_err(fail)?;
        match std::fs::metadata(&self.path) {
            Ok(there) if is_same(&there, &ours) => Ok(()),
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(fail(e)),
            gone_or_another => {
                let what = if gone_or_another.is_ok() { "was replaced by another" } else { "was moved or removed" };
                let why = format!("{} {what} while it was in use", self.path.display());
                Err(Error::new(ErrorKind::NotFound, "find", why)
                    .with_advice("move the folder back to its name, and open it again"))
            }
        }
    }

    /// Locks the folder by a file in it.
    fn by_file(folder: &Path) -> Result<DirLock> {
        let path = folder.join(NAME);
        let open = || File::options().create(true).append(true).open(&path);
        lock(&path, &open).map(|lock| DirLock::held(lock, &path)).map_err(|e| refusal(folder, &path, e))
    }
}

/// Opens and locks the file of this path, and checks that the path still leads to it then.
fn lock(path: &Path, open: &dyn Fn() -> std::io::Result<File>) -> Result<FileLock, TryLockError> {
    for _ in 0..LOOKS {
        let lock = FileLock::take(open().map_err(TryLockError::Error)?)?;
        let ours = lock.file().metadata().map_err(TryLockError::Error)?;
        match std::fs::metadata(path) {
            Ok(there) if is_same(&there, &ours) => return Ok(lock),
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

/// Whether the error is that of a file system that locks only files, or nothing.
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
                .with_advice("close the other one (or end the children that it left by fork), or use another folder")
        }
        TryLockError::Error(e) => Error::io("lock", e, locked.display().to_string()),
    }
}

/// The processes that hold a lock on this file, as far as they are visible: the writer if it lives,
/// otherwise children that it left by `fork`, if they are of this user. This is only for the text
/// of an error.
///
/// Reading what `/proc` shows of a process's files can block for ever, if that process wants it. So
/// only this user's processes are read, and only those that the kernel names, if it names any.
fn holders(locked: &Path) -> Option<String> {
    let there = std::fs::metadata(locked).ok()?;
    let (major, minor) = (rustix::fs::major(there.dev()), rustix::fs::minor(there.dev()));
    let place = format!(" {major:02x}:{minor:02x}:{} ", there.ino());
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    // A line is `1: FLOCK  ADVISORY  WRITE 12 fe:00:34 0 EOF`; waiters have `->`.
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

/// The user of a process, if it lives. Reading its status never blocks.
fn user_of(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    ids.split_whitespace().next()?.parse().ok()
}

/// Whether a process has a file open that holds a lock on the file at this place.
fn has_lock(pid: u32, place: &str) -> bool {
    // Processes that ended meanwhile, or belong to others, show nothing.
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
    let mut texts = descriptors.map(|entry| std::fs::read_to_string(entry.path()).unwrap_or_default());
    let is_lock = |line: &str| line.starts_with("lock:") && line.contains(" FLOCK ") && line.contains(place);
    texts.any(|text| text.lines().any(is_lock))
}

/// Folders that were made for a writer. Those that are still empty when this is dropped are
/// removed: what they were made for failed.
#[derive(Debug, Default)]
pub(crate) struct MadeFolders(Vec<PathBuf>);

impl MadeFolders {
    /// Leaves them: they are another writer's by now.
    fn leave(mut self) {
        self.0.clear();
    }
}

impl Drop for MadeFolders {
    fn drop(&mut self) {
        // A folder that is not empty is not removed, and neither are those above it.
        while self.0.pop().is_some_and(|folder| std::fs::remove_dir(folder).is_ok()) {}
    }
}

/// Locks a folder, which is made if there is none. What was made is removed before others may lock
/// it, unless something was written there: the folders must be dropped before the lock.
///
/// Several may make it at once. One of them gets it, and the others are `Busy`.
pub(crate) fn make_and_lock(folder: &Path) -> Result<(MadeFolders, DirLock)> {
    // Who made it and gives it up removes it, perhaps after it was found here.
    let is_gone = |e: &Error| e.kind() == ErrorKind::NotFound;
    let mut looks = 0;
    loop {
        looks += 1;
        let made = match make_folder(folder) {
            Err(e) if is_gone(&e) && looks < LOOKS => continue,
            made => made?,
        };
        match DirLock::of(folder) {
            Ok(lock) => return Ok((made, lock)),
            Err(e) if is_gone(&e) && looks < LOOKS => {}
            Err(e) => {
                // Whoever has it found it empty, and is about to write there.
                if e.kind() == ErrorKind::Busy {
                    made.leave();
                }
                return Err(e);
            }
        }
    }
}

/// Creates a folder and its parents durably: each new name is synced in its parent.
fn make_folder(folder: &Path) -> Result<MadeFolders> {
    if folder.is_dir() {
        return Ok(MadeFolders::default());
    }
    let fail = |e: std::io::Error| Error::io("create", e, folder.display().to_string());
    let parent = datapipes_core::locator::parent_dir(folder);
    let mut made = make_folder(&parent)?;
    match std::fs::create_dir(folder) {
        Ok(()) => made.0.push(folder.to_owned()),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && folder.is_dir() => {}
        // What was there a moment ago is gone: that is the error, and another look helps.
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
            return Err(fail(std::fs::symlink_metadata(folder).err().unwrap_or(e)));
        }
        Err(e) => return Err(fail(e)),
    }
    sync_folder(&parent)?;
    Ok(made)
}

/// Syncs a folder: names created and removed in it before survive a power failure.
pub(crate) fn sync_folder(folder: &Path) -> Result<()> {
    let synced = File::open(folder).and_then(|dir| dir.sync_all());
    synced.map_err(|e| Error::io("sync", e, folder.display().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Lock = fn(&Path) -> Result<DirLock>;

    #[test]
    fn folders_without_a_file_are_removed() {
        let dir = std::env::temp_dir().join(format!("made-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let deep = dir.join("a/b");
        drop(make_folder(&deep).unwrap());
        assert!(!dir.exists());
        let made = make_folder(&deep).unwrap();
        std::fs::write(dir.join("a/file"), b"").unwrap();
        // Whoever finds a folder there has not made it.
        drop(make_folder(&deep).unwrap());
        assert!(deep.exists());
        drop(made);
        assert!(!deep.exists() && dir.join("a/file").exists());
        std::fs::remove_dir_all(&dir).unwrap();
    }

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
            // If /proc shows no locks, no process is named.
            let tells = std::fs::read_dir("/proc/self/fdinfo").is_ok();
            assert!(refused.kind() == ErrorKind::Busy && (text.contains(&named) || !tells), "{how}: {text}");
            drop(one);
            drop(lock(&dir).unwrap());
            // While the lock is taken and released, two threads that looked at the same name never
            // have it together.
            let held = std::sync::atomic::AtomicU32::new(0);
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        for _ in 0..2000 {
                            if let Ok(sole) = lock(&dir) {
                                assert_eq!(held.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0, "{how}");
                                held.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                                // A writer that is done may remove the file: the next one creates
                                // its own.
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

    /// A writer that came too late removed the folder that it had made: the one that had locked it
    /// lost it, and nobody got in.
    #[test]
    fn of_writers_that_make_a_folder_at_once_one_gets_it() {
        let dir = std::env::temp_dir().join(format!("made-at-once-{}", std::process::id()));
        for round in 0..300 {
            let folder = dir.join(format!("{round}/below"));
            let start = std::sync::Barrier::new(4);
            let got = std::sync::atomic::AtomicU32::new(0);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        start.wait();
                        match make_and_lock(&folder) {
                            Ok((made, lock)) => {
                                std::thread::yield_now();
                                std::fs::write(folder.join("written"), "").unwrap();
                                lock.check().unwrap();
                                got.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                                drop((made, lock));
                            }
                            Err(e) => assert_eq!(e.kind(), ErrorKind::Busy, "{e}"),
                        }
                    });
                }
            });
            assert!(got.into_inner() > 0, "nobody got in, in round {round}");
            assert!(folder.join("written").exists());
        }
        // And where each of them writes nothing, and so gives up what it made.
        for round in 0..300 {
            let folder = dir.join(format!("given-up-{round}/below"));
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| match make_and_lock(&folder) {
                        Ok((made, lock)) => {
                            lock.check().unwrap();
                            drop((made, lock));
                        }
                        Err(e) => assert_eq!(e.kind(), ErrorKind::Busy, "{e}"),
                    });
                }
            });
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
