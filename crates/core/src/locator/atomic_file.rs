//! Creating files: outputs that are published whole, and scratch files.
//!
//! **How.** An [`AtomicFile`] is written in the directory where it is to have its name. It has no
//! name yet (`O_TMPFILE`) where the file system supports that, so the kernel frees it with the
//! process, whatever happens. When it is complete and durable, it takes the name, or the place of
//! the file with that name, in one step: a reader sees the old file or the new one.
//!
//! **What is kept of a replaced file.** The new file takes over its owner, group, mode, extended
//! attributes, ACL, security label and inode flags. It does not take over its inode number, its
//! birth time and its project (of project quotas). A program that has the old file open still sees
//! the old bytes, and so does a mount of that one file in another container.
//!
//! **When a rename would lose something**, an [`OutputFile`] or an `AtomicFile` made by
//! [`AtomicFile::replacing`] writes the bytes into the existing file, as `cp` does, and gives the
//! reason ([`InPlaceReason`]). That is the case where
//! * the file has several names, or something is mounted on it;
//! * a part of its identity cannot be given to another file;
//! * its directory accepts no new files or does not allow the name to be replaced;
//! * another process held a lease on it;
//! * running it grants privileges;
//! * the path names a descriptor (`/dev/fd/3`).
//!
//! This is decided when the file is opened. An output file is written in place from
//! [`OutputFile::begin`] on. An `AtomicFile` is completed first, in its directory or in the one for
//! temporary files, and copied at the end. [`AtomicFile::create`] never writes in place: it is for
//! files that must never be seen incomplete, and takes over what it can.
//!
//! **Files that appear meanwhile.** A file that appears under the name after the `AtomicFile` was
//! opened gives it no part of its identity and is not written to: in a directory where everyone may
//! create files (`/tmp`), anyone may have made it. It is replaced. Where the kernel does not allow
//! that, the `AtomicFile` is not published.
//!
//! **What is refused.** A file that the process may not write is not replaced, even if its
//! directory would allow that. The error is that of `open(2)`.
//!
//! **Who may read an incomplete file.** Only its owner. The file gets its final mode when it is
//! published.
//!
//! **What a crash leaves.** Where files need no names: nothing, except a hidden name
//! (`.dpipe-output-*`) if the crash falls between two system calls, because no call gives a
//! nameless file the name of another. Where they need names (NFS, FUSE, overlayfs before Linux
//! 6.3): a hidden name with the bytes so far. The next user of the directory removes it; `names.rs`
//! explains how it knows that nobody uses the file. It looks only at the first 4096 names of a
//! directory. A file that was being written in place is incomplete after a crash: the missing bytes
//! are zeros, or the file is shorter.

mod decide;
mod folder;
mod identity;
mod in_place;
mod names;
mod output;
mod target;

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, RenameFlags, Stat};
use rustix::io::Errno;

use super::Ssd;
use crate::error::{Error, ErrorKind, Result};
use crate::process::OwningProcess;
pub use decide::{InPlaceReason, NameProtection, TargetKind};
use decide::{Way, decide};
use folder::Folder;
pub use folder::{PathEnd, parent_dir, path_end};
pub use identity::LostAttribute;
pub use in_place::InPlaceFile;
use in_place::{copy_all, write_all};
use names::Naming;
pub use output::OutputFile;
use target::{Beside, Target, look_again};
pub use target::{FileMode, target_kind};

/// How often a name may change between two looks at it.
const MAX_LOOKS: usize = 16;

/// How a file got its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublishOutcome {
    /// No file had this name.
    New,
    /// It took the place of another file, and its identity.
    Replaced,
    /// Its bytes were written into the existing file.
    InPlace(InPlaceReason),
}

/// A file that will get its name when it is complete. If it is dropped before
/// [`publish`](Self::publish), nothing of it is left.
///
/// ```
/// use datapipes_core::AtomicFile;
/// let path = std::env::temp_dir().join(format!("draft-{}", std::process::id()));
/// drop(AtomicFile::create(&path)?); // changed its mind: nothing is there
/// assert!(!path.exists());
/// AtomicFile::create(&path)?.publish(5)?;
/// assert_eq!(std::fs::read(&path).unwrap(), [0; 5]);
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), datapipes_core::Error>(())
/// ```
#[derive(Debug)]
pub struct AtomicFile {
    ssd: Ssd,
    /// The path, for messages.
    shown: PathBuf,
    /// The folder and the name that it will have; `None` if it is to be copied into an open file.
    place: Option<(Folder, OsString)>,
    /// Its hidden name, if it has one.
    hidden: Option<OsString>,
    naming: Naming,
    /// The mode that a new file gets.
    mode: Mode,
    /// The file that it is to replace, open for writing.
    there: Option<OwnedFd>,
    whole: Whole,
    is_synced: bool,
    owner: OwningProcess,
}

/// What has priority where a rename would lose a part of the replaced file's identity.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Whole {
    /// Nobody may ever see an incomplete file.
    Always,
    /// The replaced file keeps its identity.
    UnlessLost,
    /// It must be copied, for this reason.
    Copied(InPlaceReason),
}

impl AtomicFile {
    /// Makes a file that is to have the name `path`. What is at `path` stays until the file is
    /// published. If `path` is a link, the file behind it is replaced, not the link, even if the
    /// link leads to nothing yet. A reader sees only the old file or the new one.
    ///
    /// # Errors
    /// `InvalidInput` where `path` exists and is no regular file. `PermissionDenied`, and other
    /// errors of `open(2)`, where it may not be written. `Busy` or `PermissionDenied` where its
    /// name cannot be taken. Errors of creating a file in its directory.
    pub fn create(path: &Path) -> Result<AtomicFile> {
        AtomicFile::create_with(path, FileMode::USUAL)
    }

    /// As [`create`](Self::create), with the permissions of a new file.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_with(path: &Path, mode: FileMode) -> Result<AtomicFile> {
        let target = Target::of(path, mode)?;
        if let Way::InPlace(reason) = &target.way
            && let Some(errno) = never_whole(reason)
        {
            let context = format!("{}: {reason}", path.display());
            return Err(Error::os("replace", errno, context).with_advice("name another file"));
        }
        AtomicFile::of(target, Whole::Always)
    }

    /// Makes a file that is to take the place of the one at `path`, if there is one, and keeps the
    /// identity of that file. Where a rename would lose a part of it, the complete bytes are copied
    /// into the existing file, which is incomplete meanwhile.
    ///
    /// # Errors
    /// As [`create`](Self::create), except for a name that cannot be taken.
    pub fn replacing(path: &Path, mode: FileMode) -> Result<AtomicFile> {
        AtomicFile::of(Target::of(path, mode)?, Whole::UnlessLost)
    }

    fn of(mut target: Target, whole: Whole) -> Result<AtomicFile> {
        let whole = match &target.way {
            Way::Refuse(e) => return Err(target.refusal(*e)),
            Way::Stream => {
                let why = format!("{} exists and is not a regular file", target.shown.display());
                let error = Error::new(ErrorKind::InvalidInput, "write", why);
                return Err(error.with_advice("name a new file or one to be replaced"));
            }
            Way::InPlace(reason) if whole == Whole::UnlessLost => Whole::Copied(reason.clone()),
            Way::Rename | Way::InPlace(_) => whole,
        };
        let shown = std::mem::take(&mut target.shown);
        let there = target.there.take();
        match target.beside.take() {
            Some(Beside { fd, hidden, naming, mode }) => {
                let place = target.place.take();
                let ssd = Ssd::from_fd(fd, &shown).inspect_err(|_| {
                    if let (Some((folder, _)), Some(hidden)) = (&place, &hidden) {
                        // The first error is the one to report.
                        let _ = folder.remove(hidden);
                    }
                })?;
                let (is_synced, owner) = (true, OwningProcess::here());
                Ok(AtomicFile { ssd, shown, place, hidden, naming, mode, there, whole, is_synced, owner })
            }
            // Nothing can be made beside the target, so the file is completed elsewhere.
            None => {
                let ssd = Ssd::scratch_in(&std::env::temp_dir())?;
                let (hidden, naming, mode) = (None, Naming::ByDescriptor, names::PRIVATE);
                Ok(AtomicFile {
                    ssd,
                    shown,
                    place: None,
                    hidden,
                    naming,
                    mode,
                    there,
                    whole,
                    is_synced: true,
                    owner: OwningProcess::here(),
                })
            }
        }
    }

    /// The file, for writing.
    pub fn ssd(&self) -> &Ssd {
        &self.ssd
    }

    /// The path that the caller gave.
    pub fn path(&self) -> &Path {
        &self.shown
    }

    /// Writes bytes from its beginning, through the page cache; for small files.
    ///
    /// # Errors
    /// `NoSpace`, `Device`. `Forked` in a child of the process that made it.
    pub fn write(&self, bytes: &[u8]) -> Result<()> {
        self.owner.check("write")?;
        write_all(&self.ssd, bytes).map_err(|(e, done)| self.failed("write", e).with_offset(done))
    }

    /// Why its bytes will be copied into the existing file, if that is known already.
    pub fn copied_because(&self) -> Option<&InPlaceReason> {
        match &self.whole {
            Whole::Copied(reason) => Some(reason),
            Whole::Always | Whole::UnlessLost => None,
        }
    }

    /// Gives the file its name without waiting until it is durable: a power failure, or a crash of
    /// the system, soon after [`publish`](Self::publish) may leave it incomplete under its name.
    #[must_use]
    pub fn without_sync(mut self) -> AtomicFile {
        self.is_synced = false;
        self
    }

    /// Sets the file's length, makes it durable and gives it its name.
    ///
    /// # Errors
    /// `NoSpace` or `Device` from making it durable, and errors of naming it. Nothing of it is left
    /// then, and what was at the path is unchanged, unless the error says that it was being written
    /// in place. `Forked` in a child of the process that made it, where dropping it does nothing.
    pub fn publish(mut self, len: u64) -> Result<PublishOutcome> {
        self.owner.check("publish")?;
        if self.ssd.len()? != len {
            self.ssd.set_len(len)?;
        }
        if let Whole::Copied(reason) = &self.whole {
            let reason = reason.clone();
            return self.copy(len, reason);
        }
        for _ in 0..MAX_LOOKS {
            let Some((folder, name)) = &self.place else { break };
            match folder.stat_of(name) {
                Err(Errno::NOENT) => {
                    self.take_identity()?;
                    self.sync()?;
                    match self.name_it(Over::Nothing) {
                        // Another process was faster: the file that is there now is replaced.
                        Err(Errno::EXIST) => {}
                        Err(e) => self.get_name(e, len)?,
                        Ok(()) => return self.named(PublishOutcome::New),
                    }
                }
                Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
                    let replaced = if self.is_there(&stat) { self.replace(len)? } else { self.displace(len)? };
                    match replaced {
                        Some(published) => return Ok(published),
                        None => continue,
                    }
                }
                Ok(_) => {
                    let why = format!("{} exists now and is not a regular file", self.shown.display());
                    return Err(Error::new(ErrorKind::InvalidInput, "rename", why));
                }
                Err(e) => return Err(self.failed("rename", e)),
            }
        }
        Err(Error::new(ErrorKind::Busy, "rename", format!("{} keeps changing", self.shown.display())))
    }

    /// Takes the place of a file that appeared under the name since the beginning and may be
    /// anyone's. No part of its identity is taken over, and nothing is written into it. The new
    /// file keeps the identity of the first file at the path, if there was one. Returns `None`
    /// where the name must be looked at again.
    fn displace(&mut self, len: u64) -> Result<Option<PublishOutcome>> {
        self.take_identity()?;
        self.sync()?;
        match self.name_it(Over::File) {
            Ok(()) => self.named(PublishOutcome::Replaced).map(Some),
            // It belongs to another user, for example, and the directory is sticky.
            Err(e @ (Errno::PERM | Errno::ACCESS | Errno::BUSY)) => {
                Err(self.failed("rename", e).with_advice("another file got this name meanwhile"))
            }
            Err(e) => self.get_name(e, len).map(|()| None),
        }
    }

    /// Takes over the identity of the first file at the path, wherever that is now, so that a user
    /// who could not read it cannot read this one.
    fn take_identity(&self) -> Result<()> {
        match &self.there {
            Some(there) => identity::take_over(there.as_fd(), self.fd()).map(drop),
            None => rustix::fs::fchmod(self.fd(), self.mode),
        }
        .map_err(|e| self.failed("set owner and mode of", e))
    }

    /// Takes the place of the file that had the name in the beginning and still has it. Returns
    /// `None` where the name must be looked at again.
    fn replace(&mut self, len: u64) -> Result<Option<PublishOutcome>> {
        let Some(there) = self.there.take() else { return Ok(None) };
        let Some((folder, name)) = &self.place else { return Ok(None) };
        let mut facts = look_again(folder, name, there.as_fd()).map_err(|e| self.failed("look at", e))?;
        facts.lost = identity::take_over(there.as_fd(), self.fd()).map_err(|e| self.failed("take over", e))?;
        let way = decide(&facts);
        self.there = Some(there);
        if let (Way::InPlace(reason), Whole::UnlessLost) = (way, &self.whole) {
            return self.copy(len, reason).map(Some);
        }
        self.sync()?;
        match self.name_it(Over::File) {
            Ok(()) => self.named(PublishOutcome::Replaced).map(Some),
            // It is not allowed, or not supported by the file system. After a failure of the
            // device, the old bytes are left alone.
            Err(e) if self.whole == Whole::UnlessLost && !is_hopeless(e) => {
                self.copy(len, InPlaceReason::Refused(e.raw_os_error())).map(Some)
            }
            Err(e) => self.get_name(e, len).map(|()| None),
        }
    }

    /// Whether `stat` is of the file that was opened in the beginning.
    fn is_there(&self, stat: &Stat) -> bool {
        let open = self.there.as_ref().and_then(|there| rustix::fs::fstat(there).ok());
        open.is_some_and(|open| (open.st_dev, open.st_ino) == (stat.st_dev, stat.st_ino))
    }

    /// Gives the file its final name.
    fn name_it(&mut self, over: Over) -> Result<(), Errno> {
        let Some((folder, name)) = &self.place else { return Err(Errno::NOENT) };
        let fd = self.ssd.file().cached_fd();
        let hidden = match (&self.hidden, over) {
            (Some(hidden), _) => hidden,
            (None, Over::Nothing) => return self.naming.link(fd, folder, name),
            // From here on the hidden name must be removed in the end.
            (None, Over::File) => self.hidden.insert(names::link_hidden(self.naming, fd, folder)?),
        };
        let renamed = match over {
            Over::File => rustix::fs::renameat(folder.fd(), hidden, folder.fd(), name),
            Over::Nothing => {
                let careful = rustix::fs::renameat_with(folder.fd(), hidden, folder.fd(), name, RenameFlags::NOREPLACE);
                match careful {
                    // The file system does not support the flag: a file that appeared since the
                    // last look is replaced.
                    Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                        rustix::fs::renameat(folder.fd(), hidden, folder.fd(), name)
                    }
                    other => other,
                }
            }
        };
        renamed.map(|()| self.hidden = None)
    }

    /// Handles a nameless file that could not be given its name: its bytes go to a file with a
    /// hidden name, which can be renamed.
    fn get_name(&mut self, e: Errno, len: u64) -> Result<()> {
        let Some((folder, _)) = &self.place else { return Err(self.failed("name", e)) };
        let gone = folder.stat().is_ok_and(|stat| stat.st_nlink == 0);
        if gone || is_hopeless(e) || self.hidden.is_some() {
            let error = self.failed("name", e);
            return Err(if gone { error.with_advice("its directory was removed meanwhile") } else { error });
        }
        let (fd, hidden) = names::hidden(folder, names::OUTPUT, names::PRIVATE).map_err(|e| self.failed("name", e))?;
        self.hidden = Some(hidden);
        let named = Ssd::from_fd(fd, &self.shown)?;
        copy_all(&self.ssd, &named, len)?;
        self.ssd = named;
        Ok(())
    }

    /// Makes the name durable that the file now has.
    fn named(&self, published: PublishOutcome) -> Result<PublishOutcome> {
        names::unlock(self.fd());
        if let (Some((folder, _)), true) = (&self.place, self.is_synced) {
            let shown = || folder.path().display().to_string();
            folder.sync(self.fd()).map_err(|e| {
                Error::os("sync", e.raw_os_error(), shown()).with_advice(format!(
                    "{} has its name and all its bytes; whether the name survives a power failure is not known",
                    self.shown.display()
                ))
            })?;
        }
        Ok(published)
    }

    /// Copies the bytes into the existing file.
    fn copy(&mut self, len: u64, reason: InPlaceReason) -> Result<PublishOutcome> {
        let Some(there) = self.there.take() else { return Err(self.failed("open", Errno::NOENT)) };
        let mut target = InPlaceFile::new(there, &self.shown, reason)?;
        target.is_synced = self.is_synced;
        target.begin(Some(len))?;
        let why = target.reason().clone();
        copy_all(&self.ssd, target.ssd(), len)
            .map_err(|e| e.with_advice(format!("it was being written in place, because {why}, and is incomplete")))?;
        target.publish(len).map(PublishOutcome::InPlace)
    }

    fn sync(&self) -> Result<()> {
        if !self.is_synced {
            return Ok(());
        }
        rustix::fs::fsync(self.fd()).map_err(|e| self.failed("sync", e))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.ssd.file().cached_fd()
    }

    fn failed(&self, operation: &'static str, e: Errno) -> Error {
        Error::os(operation, e.raw_os_error(), self.shown.display().to_string())
    }
}

/// Whether another way of naming the file would fail as well.
fn is_hopeless(e: Errno) -> bool {
    matches!(e, Errno::NOENT | Errno::NOSPC | Errno::DQUOT | Errno::ROFS | Errno::IO)
}

/// What the complete file may replace when it takes its name.
#[derive(Clone, Copy)]
enum Over {
    Nothing,
    File,
}

/// Returns the errno where a reason to write in place rules out a rename.
fn never_whole(reason: &InPlaceReason) -> Option<i32> {
    match reason {
        InPlaceReason::Descriptor => Some(libc::EINVAL),
        InPlaceReason::Mounted => Some(libc::EBUSY),
        InPlaceReason::Held(_) => Some(libc::EPERM),
        InPlaceReason::Folder(errno) | InPlaceReason::Refused(errno) => Some(*errno),
        InPlaceReason::Links(_) | InPlaceReason::Leased | InPlaceReason::GivesRights | InPlaceReason::Lost(_) => None,
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if let (Some((folder, _)), Some(hidden), true) = (&self.place, &self.hidden, self.owner.is_here()) {
            // It may be gone already, which is fine.
            let _ = folder.remove(hidden);
        }
    }
}

impl Ssd {
    /// Makes a file in `dir` that nobody else sees and that is freed with its last user, even after
    /// `kill -9`. Where the file system has no nameless files, it has a name for a moment, and only
    /// its owner may open it then.
    ///
    /// # Errors
    /// `NotFound` where there is no such directory; `PermissionDenied`; other errors of the kernel.
    pub fn scratch_in(dir: &Path) -> Result<Ssd> {
        let fail = |e: Errno| Error::os("open", e.raw_os_error(), dir.display().to_string());
        let folder = Folder::open(dir).map_err(fail)?;
        Ssd::from_fd(names::scratch(&folder).map_err(fail)?, dir)
    }

    /// Gives a nameless file a name, which must not exist yet.
    ///
    /// # Errors
    /// `System` with `EEXIST` where the name exists; other errors of the kernel.
    pub fn link_as(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let fail = |e: Errno| Error::os("name", e.raw_os_error(), path.display().to_string());
        let folder = Folder::open(&parent_dir(path)).map_err(fail)?;
        let name = path.file_name().ok_or(Errno::ISDIR).map_err(fail)?;
        let fd = self.file().cached_fd();
        let naming = Naming::of(fd, &folder).ok_or(Errno::NOENT).map_err(fail)?;
        naming.link(fd, &folder, name).map_err(fail)
    }
}

#[cfg(test)]
mod tests;
