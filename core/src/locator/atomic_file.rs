//! The door through which files come to be: outputs that are published whole, and scratch files.
//!
//! **How.** A [`AtomicFile`] is written beside the name that it is to have. It has no name itself
//! (`O_TMPFILE`) where the file system has such files, so that the kernel frees it with the
//! process, whatever happens to that. When it is complete and durable it takes the name, or the
//! place of the file that has it, in one step: a reader sees the old file or the new one.
//!
//! **What is kept of a file that is replaced.** Its owner, group, mode, extended attributes, ACL,
//! security label and inode flags are taken over. Its inode number, its birth time and its project
//! (of project quotas) are not: a program that has the old file open goes on seeing the old bytes,
//! and so does a mount of that one file in another container.
//!
//! **When a rename would lose something** — the file has several names, or something mounted on it;
//! a part of its identity cannot be given to another file; its directory takes no new files or does
//! not let go of its name; somebody held a lease on it; running it gives rights; it was named by a
//! descriptor (`/dev/fd/3`) — an [`OutputFile`] or a draft made by
//! [`AtomicFile::replacing`] writes the bytes into the file that is there, as `cp` does, and says so ([`InPlaceReason`]). That
//! is decided when it is opened. An output file is written in place from [`OutputFile::begin`] on.
//! A draft is completed first, in its directory or in that for temporary files, and copied at the
//! end. [`AtomicFile::create`] never writes in place: it is for files of which no half may ever be
//! seen, and takes over what it can.
//!
//! **What comes meanwhile.** A file that came by the name after the draft was opened gives it
//! nothing of its identity, and is not written to: anybody may have made it, where anybody may make
//! files (`/tmp`). It is replaced, or, where the kernel does not allow that, the draft is not
//! published.
//!
//! **What is refused.** A file that the process may not write to is not replaced, though its
//! directory would allow that: the error is that of `open(2)`.
//!
//! **Who may read what is not complete.** Its owner. A file gets its final mode when it is
//! published.
//!
//! **What a crash leaves.** Where files need no names, nothing; and a hidden name
//! (`.dpipe-output-*`) where it falls between two calls of the kernel, because no call gives a
//! nameless file the name of another. Where they need names (NFS, FUSE, overlayfs before Linux
//! 6.3), a hidden name with the bytes so far. The next user of the directory removes it: see
//! `names.rs` for how it knows that nobody is at work on it. Only the first 4096 names of a
//! directory are looked at. What is written in place is incomplete after a crash; the bytes not yet
//! written are zeros, or the file is shorter.

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
pub use folder::parent_dir;
pub use identity::LostAttribute;
pub use in_place::InPlaceFile;
use in_place::copy_all;
use names::Naming;
pub use output::OutputFile;
use target::{Beside, Target, look_again};
pub use target::{FileMode, target_kind};

/// So often a name may come and go between two looks at it.
const MAX_LOOKS: usize = 16;

/// How a file came to be under its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublishOutcome {
    /// There was none of this name.
    New,
    /// It took the place of another, and its identity.
    Replaced,
    /// Its bytes were written into the file that was there.
    InPlace(InPlaceReason),
}

/// A file under way to its name. Dropped before [`publish`](Self::publish), it leaves nothing.
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
    /// For messages.
    shown: PathBuf,
    /// Where its name will be; none where it is to be copied into a file that is open already.
    place: Option<(Folder, OsString)>,
    /// Its name meanwhile, where it has one.
    hidden: Option<OsString>,
    naming: Naming,
    /// The mode of a new file.
    mode: Mode,
    /// The file that it is to replace, open for writing.
    there: Option<OwnedFd>,
    whole: Whole,
    owner: OwningProcess,
}

/// What counts more where a rename would cost the replaced file something.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Whole {
    /// That nobody ever sees a half of it.
    Always,
    /// That it stays the same file.
    UnlessLost,
    /// It was found out that it must be copied.
    Copied(InPlaceReason),
}

impl AtomicFile {
    /// A file beside `path`; whatever is at `path` stays until it is published. The file behind a
    /// link is replaced, not the link, also where the link leads to nothing yet. A reader sees the
    /// old file or the new one, never anything else.
    ///
    /// # Errors
    /// `InvalidInput` where `path` is there and is no regular file; `PermissionDenied`, and
    /// whatever else `open(2)` says, where it may not be written to; `Busy` or `PermissionDenied`
    /// where its name cannot be taken; what creating a file in its directory meets.
    pub fn create(path: &Path) -> Result<AtomicFile> {
        AtomicFile::create_with(path, FileMode::USUAL)
    }

    /// As [`beside`](Self::create), with the permissions that a new file has.
    ///
    /// # Errors
    /// As [`beside`](Self::create).
    pub fn create_with(path: &Path, mode: FileMode) -> Result<AtomicFile> {
        let target = Target::of(path, mode)?;
        if let Way::InPlace(reason) = &target.way
            && let Some(errno) = never_whole(reason)
        {
            let context = format!("{}: {reason}", path.display());
            return Err(Error::os("replace", errno, context).advice("name another file"));
        }
        AtomicFile::of(target, Whole::Always)
    }

    /// A file that is to take the place of the one at `path`, if there is one, without its losing
    /// its identity: where a rename would cost it that, the bytes are copied into it when they are
    /// complete, and it is not whole meanwhile.
    ///
    /// # Errors
    /// As [`beside`](Self::create), but for a name that cannot be taken.
    pub fn replacing(path: &Path, mode: FileMode) -> Result<AtomicFile> {
        AtomicFile::of(Target::of(path, mode)?, Whole::UnlessLost)
    }

    fn of(mut target: Target, whole: Whole) -> Result<AtomicFile> {
        let whole = match &target.way {
            Way::Refuse(e) => return Err(target.refusal(*e)),
            Way::Stream => {
                let why = format!("{} is there, and is no regular file", target.shown.display());
                let error = Error::new(ErrorKind::InvalidInput, "write", why);
                return Err(error.advice("name a file, new or to be replaced"));
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
                        // The error is what counts.
                        let _ = folder.remove(hidden);
                    }
                })?;
                Ok(AtomicFile { ssd, shown, place, hidden, naming, mode, there, whole, owner: OwningProcess::here() })
            }
            // Nothing can be made beside it, so it is completed elsewhere.
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
                    owner: OwningProcess::here(),
                })
            }
        }
    }

    /// The file, to be written to.
    pub fn ssd(&self) -> &Ssd {
        &self.ssd
    }

    /// The path that it was asked for by.
    pub fn path(&self) -> &Path {
        &self.shown
    }

    /// Writes bytes from its beginning on, through the page cache: for small files.
    ///
    /// # Errors
    /// `NoSpace`, `Device`. `Forked` in a child of the process that made it.
    pub fn write(&self, bytes: &[u8]) -> Result<()> {
        self.owner.check("write")?;
        self.ssd.file().write_observers().write_observed(0..bytes.len() as u64, || self.write_all(bytes))
    }

    fn write_all(&self, bytes: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            match rustix::io::pwrite(self.fd(), &bytes[done..], done as u64) {
                Ok(0) => return Err(self.failed("write", Errno::IO)),
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(self.failed("write", e).offset(done as u64)),
            }
        }
        Ok(())
    }

    /// Why its bytes will be copied into the file that is there, where that is known already.
    pub fn copied_because(&self) -> Option<&InPlaceReason> {
        match &self.whole {
            Whole::Copied(reason) => Some(reason),
            Whole::Always | Whole::UnlessLost => None,
        }
    }

    /// Cuts the file to its length, makes it durable and gives it its name.
    ///
    /// # Errors
    /// `NoSpace`, `Device` from making it durable; what naming it meets. Nothing of it is left
    /// then, and what was there is as it was, unless the error says that it was being written in
    /// place. `Forked` in a child of the process that made it, where dropping it does nothing.
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
                        // Somebody was quicker: what is there now is replaced.
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
                    let why = format!("{} is there now, and is no regular file", self.shown.display());
                    return Err(Error::new(ErrorKind::InvalidInput, "rename", why));
                }
                Err(e) => return Err(self.failed("rename", e)),
            }
        }
        Err(Error::new(ErrorKind::Busy, "rename", format!("{} comes and goes", self.shown.display())))
    }

    /// Takes the place of a file that came by its name since the beginning, and may be anybody's:
    /// nothing of its identity is taken over, and nothing is written into it. What is kept is the
    /// identity of the file that was there in the beginning, if there was one. `None` where the
    /// name must be looked at again.
    fn displace(&mut self, len: u64) -> Result<Option<PublishOutcome>> {
        self.take_identity()?;
        self.sync()?;
        match self.name_it(Over::File) {
            Ok(()) => self.named(PublishOutcome::Replaced).map(Some),
            // It is another user's, in a sticky directory, say.
            Err(e @ (Errno::PERM | Errno::ACCESS | Errno::BUSY)) => {
                Err(self.failed("rename", e).advice("another file came under this name meanwhile"))
            }
            Err(e) => self.get_name(e, len).map(|()| None),
        }
    }

    /// Whoever could not read the file that was there in the beginning cannot read this one,
    /// wherever that one is by now.
    fn take_identity(&self) -> Result<()> {
        match &self.there {
            Some(there) => identity::take_over(there.as_fd(), self.fd()).map(drop),
            None => rustix::fs::fchmod(self.fd(), self.mode),
        }
        .map_err(|e| self.failed("set owner and mode of", e))
    }

    /// Takes the place of the file that had the name in the beginning and has it now; `None` where
    /// it must be looked at again.
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
            // Not allowed, or not known to the file system. A device that fails is another matter:
            // the old bytes are safe there.
            Err(e) if self.whole == Whole::UnlessLost && !is_hopeless(e) => {
                self.copy(len, InPlaceReason::Refused(e.raw_os_error())).map(Some)
            }
            Err(e) => self.get_name(e, len).map(|()| None),
        }
    }

    /// Whether it is the file that was opened in the beginning.
    fn is_there(&self, stat: &Stat) -> bool {
        let open = self.there.as_ref().and_then(|there| rustix::fs::fstat(there).ok());
        open.is_some_and(|open| (open.st_dev, open.st_ino) == (stat.st_dev, stat.st_ino))
    }

    /// Gives it its final name.
    fn name_it(&mut self, over: Over) -> Result<(), Errno> {
        let Some((folder, name)) = &self.place else { return Err(Errno::NOENT) };
        let fd = self.ssd.file().cached_fd();
        let hidden = match (&self.hidden, over) {
            (Some(hidden), _) => hidden,
            (None, Over::Nothing) => return self.naming.link(fd, folder, name),
            // From here on the hidden name must go, one way or the other.
            (None, Over::File) => self.hidden.insert(names::link_hidden(self.naming, fd, folder)?),
        };
        let renamed = match over {
            Over::File => rustix::fs::renameat(folder.fd(), hidden, folder.fd(), name),
            Over::Nothing => {
                let careful = rustix::fs::renameat_with(folder.fd(), hidden, folder.fd(), name, RenameFlags::NOREPLACE);
                match careful {
                    // The file system does not know how: what came since the last look is replaced.
                    Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                        rustix::fs::renameat(folder.fd(), hidden, folder.fd(), name)
                    }
                    other => other,
                }
            }
        };
        renamed.map(|()| self.hidden = None)
    }

    /// A file without a name could not be given one: its bytes go to a file with a hidden name,
    /// which can be renamed.
    fn get_name(&mut self, e: Errno, len: u64) -> Result<()> {
        let Some((folder, _)) = &self.place else { return Err(self.failed("name", e)) };
        let gone = folder.stat().is_ok_and(|stat| stat.st_nlink == 0);
        if gone || is_hopeless(e) || self.hidden.is_some() {
            let error = self.failed("name", e);
            return Err(if gone { error.advice("its directory was removed meanwhile") } else { error });
        }
        let (fd, hidden) = names::hidden(folder, names::OUTPUT, names::PRIVATE).map_err(|e| self.failed("name", e))?;
        self.hidden = Some(hidden);
        let named = Ssd::from_fd(fd, &self.shown)?;
        copy_all(&self.ssd, &named, len)?;
        self.ssd = named;
        Ok(())
    }

    /// It has its name: makes that durable.
    fn named(&self, published: PublishOutcome) -> Result<PublishOutcome> {
        names::unlock(self.fd());
        if let Some((folder, _)) = &self.place {
            let shown = || folder.path().display().to_string();
            folder.sync(self.fd()).map_err(|e| Error::os("sync", e.raw_os_error(), shown()))?;
        }
        Ok(published)
    }

    /// Copies its bytes into the file that is there.
    fn copy(&mut self, len: u64, reason: InPlaceReason) -> Result<PublishOutcome> {
        let Some(there) = self.there.take() else { return Err(self.failed("open", Errno::NOENT)) };
        let target = InPlaceFile::new(there, &self.shown, reason)?;
        target.begin(Some(len))?;
        let why = target.reason().clone();
        copy_all(&self.ssd, target.ssd(), len)
            .map_err(|e| e.advice(format!("it was being written in place, because {why}, and is incomplete")))?;
        target.publish(len).map(PublishOutcome::InPlace)
    }

    fn sync(&self) -> Result<()> {
        rustix::fs::fsync(self.fd()).map_err(|e| self.failed("sync", e))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.ssd.file().cached_fd()
    }

    fn failed(&self, operation: &'static str, e: Errno) -> Error {
        Error::os(operation, e.raw_os_error(), self.shown.display().to_string())
    }
}

/// Whether no other way to a name would do better.
fn is_hopeless(e: Errno) -> bool {
    matches!(e, Errno::NOENT | Errno::NOSPC | Errno::DQUOT | Errno::ROFS | Errno::IO)
}

/// What a file that is complete takes the name of.
#[derive(Clone, Copy)]
enum Over {
    Nothing,
    File,
}

/// The error's number where a reason to write in place leaves no other way.
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
            // It may be gone already, which is what is wanted.
            let _ = folder.remove(hidden);
        }
    }
}

impl Ssd {
    /// A file in `dir` that nobody else sees and that is gone with its last user, also after `kill
    /// -9`. Only its owner may open it in the moment in which it has a name, where the file system
    /// has no files without.
    ///
    /// # Errors
    /// `NotFound` where there is no such directory; `PermissionDenied`; what the kernel says.
    pub fn scratch_in(dir: &Path) -> Result<Ssd> {
        let fail = |e: Errno| Error::os("open", e.raw_os_error(), dir.display().to_string());
        let folder = Folder::open(dir).map_err(fail)?;
        Ssd::from_fd(names::scratch(&folder).map_err(fail)?, dir)
    }

    /// Gives a file that has no name one, which must not exist yet.
    ///
    /// # Errors
    /// `System` with `EEXIST` where the name exists; what the kernel says.
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
