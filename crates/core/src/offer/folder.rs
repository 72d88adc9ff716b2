//! The folder with the pages of a user.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::page::{self, LookBudget, OfferedPage, OfferedPages, PageOwner};
use crate::error::{Error, ErrorKind, Result};

/// The most pages that are read: more than that is not a view that a person could use.
const MAX_PAGES: usize = 1000;
/// The most files of the folder that are opened.
const MAX_FILES: usize = 10_000;
/// A page that cannot be read is removed when it is so old, and nobody holds it.
const GIVE_UP: Duration = Duration::from_secs(60);

/// The open folder.
pub(super) struct Folder {
    path: PathBuf,
    fd: OwnedFd,
}

impl Folder {
    /// Opens the folder; makes it if it is not there.
    pub(super) fn create() -> Result<Folder> {
        let path = path();
        match rustix::fs::mkdir(&path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(Error::os("create", e.raw_os_error(), path.display().to_string())),
        }
        Folder::open(path)
    }

    /// Opens the folder, if there is one.
    pub(super) fn existing() -> Result<Option<Folder>> {
        match Folder::open(path()) {
            Err(e) if e.errno() == Some(libc::ENOENT) => Ok(None),
            folder => folder.map(Some),
        }
    }

    /// Others can make the folder in /dev/shm before its user does: what counts is what it is.
    fn open(path: PathBuf) -> Result<Folder> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
        let fail = |e: Errno| Error::os("open", e.raw_os_error(), path.display().to_string());
        let fd = rustix::fs::open(&path, flags, Mode::empty()).map_err(fail)?;
        let stat = rustix::fs::fstat(&fd).map_err(fail)?;
        if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & 0o077 != 0 {
            let why = format!("{} is another user's, or others may enter it", path.display());
            return Err(Error::new(ErrorKind::PermissionDenied, "open", why)
                .with_advice("remove it, or set XDG_RUNTIME_DIR to a folder of your own"));
        }
        Ok(Folder { path, fd })
    }

    /// Makes a new, empty page for this process, which holds it by a lock as long as it has it
    /// open. Returns its name, too.
    pub(super) fn new_page(&self, owner: PageOwner) -> Result<(OwnedFd, String)> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for nth in 0..100 {
            let name = format!("{}-{}-{nth}", owner.pid, owner.started);
            let fail = |operation, e: Errno| {
                Error::os(operation, e.raw_os_error(), self.path.join(&name).display().to_string())
            };
            let file = match rustix::fs::openat(&self.fd, &name, flags, Mode::RUSR | Mode::WUSR) {
                Ok(file) => file,
                Err(Errno::EXIST) => continue,
                Err(e) => return Err(fail("create", e)),
            };
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                // A reader looks just now whether somebody holds it, and removes it.
                Err(Errno::WOULDBLOCK) => continue,
                Err(e) => {
                    self.remove(&name);
                    return Err(fail("lock", e));
                }
            }
            // A reader may have been faster than the lock.
            if rustix::fs::fstat(&file).is_ok_and(|stat| stat.st_nlink > 0) {
                return Ok((file, name));
            }
        }
        Err(Error::new(ErrorKind::Busy, "create", "this process offers 100 pages of statistics"))
    }

    /// Removes a page; that it is gone already is as good.
    pub(super) fn remove(&self, name: &str) {
        let _ = rustix::fs::unlinkat(&self.fd, name, AtFlags::empty());
    }

    /// Reads all pages, by the process numbers in their names.
    pub(super) fn pages(&self) -> Result<OfferedPages> {
        let fail = |e: Errno| Error::os("read", e.raw_os_error(), self.path.display().to_string());
        let (mut found, mut opened, mut left_out, mut budget) = (Vec::new(), 0, 0, LookBudget::new());
        for entry in Dir::read_from(&self.fd).map_err(fail)? {
            let name = OsString::from(std::ffi::OsStr::from_bytes(entry.map_err(fail)?.file_name().to_bytes()));
            let Some((name, whose)) = name.to_str().and_then(|name| Some((name, of_name(name)?))) else { continue };
            if found.len() == MAX_PAGES || opened == MAX_FILES {
                left_out += 1;
                continue;
            }
            opened += 1;
            if let Some(page) = self.page(name, whose, &mut budget) {
                found.push(page);
            }
        }
        found.sort_by_key(|page| (page.owner.pid, page.owner.started, page.number));
        Ok(OfferedPages { pages: found, left_out })
    }

    /// Reads a page. `None` for one that is gone, or whose process is.
    fn page(&self, name: &str, whose: (PageOwner, u32), budget: &mut LookBudget) -> Option<OfferedPage> {
        let (owner, number) = whose;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return None,
            Err(e) => return Some(OfferedPage::unreadable(owner, number, format!("it cannot be opened: {e}"))),
        };
        let stat = match rustix::fs::fstat(&file) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => stat,
            _ => return Some(OfferedPage::unreadable(owner, number, "it is not a file".to_owned())),
        };
        let namespace = page::namespace_of(&file);
        let is_of_here = namespace == Some(page::namespace());
        let is_over = match namespace {
            // A child made by `fork` may hold the page of a process that is gone.
            Some(_) => is_free(&file) || is_of_here && !owner.is_alive(),
            None => is_old(&stat) && is_free(&file),
        };
        if is_over {
            self.remove(name);
            return None;
        }
        // Numbers and times from elsewhere mean another process here, or none.
        if namespace.is_some() && !is_of_here {
            return None;
        }
        Some(page::read(&file, whose, budget).unwrap_or_else(|why| OfferedPage::unreadable(owner, number, why)))
    }
}

/// Whether no process holds a page that still has its name, wherever it runs: the kernel lets go of
/// it with its process. One that lives removes the name first, and may give it to another page.
fn is_free(file: &OwnedFd) -> bool {
    rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
        && rustix::fs::fstat(file).is_ok_and(|stat| stat.st_nlink > 0)
}

/// The folder of this user.
fn path() -> PathBuf {
    // The folder of another user, which `su` leaves in the variable, would be given a folder that
    // its owner cannot enter.
    let me = rustix::process::geteuid().as_raw();
    let is_own = |dir: &OsString| {
        Path::new(dir).is_absolute() && rustix::fs::stat(Path::new(dir)).is_ok_and(|stat| stat.st_uid == me)
    };
    match std::env::var_os("XDG_RUNTIME_DIR").filter(is_own) {
        Some(dir) => Path::new(&dir).join("datapipes"),
        None => PathBuf::from(format!("/dev/shm/datapipes-{me}")),
    }
}

/// The process in the name of a page, and the page's number: `PID-START-N`.
fn of_name(name: &str) -> Option<(PageOwner, u32)> {
    let mut parts = name.split('-');
    let owner = PageOwner { pid: parts.next()?.parse().ok()?, started: parts.next()?.parse().ok()? };
    let number = parts.next()?.parse::<u32>().ok()?;
    (parts.next().is_none() && owner.pid > 0).then_some((owner, number))
}

fn is_old(stat: &Stat) -> bool {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let changed = Duration::from_secs(u64::try_from(stat.st_mtime).unwrap_or(0));
    now.checked_sub(changed).is_some_and(|age| age > GIVE_UP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_processes() {
        assert_eq!(of_name("12-345-6"), Some((PageOwner { pid: 12, started: 345 }, 6)));
        for odd in
            ["", "12", "12-345", "12-345-", "12-345-0-1", "-1-2-3", "0-1-2", "x-1-2", "12-99999999999999999999999-0"]
        {
            assert_eq!(of_name(odd), None, "{odd}");
        }
    }
}
