//! Whether a file is replaced by another or written in place. One function decides it from facts,
//! before anything is changed.

use std::fmt;

use rustix::io::Errno;

use super::identity::LostAttribute;

/// What a path leads to, as far as it matters for writing there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetKind {
    /// Nothing: writing would create a file.
    Nothing,
    /// A regular file.
    File,
    /// Something that is written in order and has no length: a FIFO, a terminal, `/dev/null`, a
    /// file of `/proc` or `/sys`.
    Stream,
    /// A block device.
    BlockDevice,
    /// A directory.
    Folder,
    /// A socket, which cannot be opened by its path.
    Socket,
}

/// The facts about a path before a file is written there.
#[derive(Clone, Debug)]
pub(super) struct TargetFacts {
    pub(super) kind: TargetKind,
    /// Whether the path names a descriptor, in `/proc`.
    pub(super) by_descriptor: bool,
    /// The result of opening it for writing.
    pub(super) opened: Result<(), Errno>,
    /// The result of making a file beside it.
    pub(super) beside: Result<(), Errno>,
    /// The number of its names.
    pub(super) links: u64,
    /// Whether something is mounted on its name.
    pub(super) mounted: bool,
    /// Whether another process had a lease on it, which opening it ended.
    pub(super) leased: bool,
    /// Whether running it grants privileges.
    pub(super) gives_rights: bool,
    /// Why its folder does not allow its name to be given to another file.
    pub(super) held: Option<NameProtection>,
    /// What another file in its place would lack.
    pub(super) lost: Option<LostAttribute>,
}

/// How a folder protects the names in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameProtection {
    /// The folder is sticky, and the file belongs to another user.
    Sticky,
    /// Names can only be added to the folder.
    AppendOnly,
}

/// Why a file is written in place.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InPlaceReason {
    /// The path names a descriptor.
    Descriptor,
    /// It has this many names, of which a new file would have only one.
    Links(u64),
    /// Something is mounted on its name.
    Mounted,
    /// No file can be made beside it, with this errno.
    Folder(i32),
    /// Its folder does not allow its name to be given to another file.
    Held(NameProtection),
    /// Another process had a lease on it.
    Leased,
    /// Running it grants privileges. By its own rules, the kernel takes these away when it is
    /// written.
    GivesRights,
    /// A new file could not have this attribute.
    Lost(LostAttribute),
    /// At the very end, the new file could not be given its name, with this errno.
    Refused(i32),
}

impl fmt::Display for InPlaceReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = |errno: &i32| std::io::Error::from_raw_os_error(*errno);
        match self {
            InPlaceReason::Descriptor => f.write_str("it is named by a descriptor"),
            InPlaceReason::Links(links) => write!(f, "it has {links} names (hard links)"),
            InPlaceReason::Mounted => f.write_str("something is mounted on its name"),
            InPlaceReason::Folder(errno) => write!(f, "no file can be made in its directory ({})", error(errno)),
            InPlaceReason::Held(NameProtection::Sticky) => {
                f.write_str("it belongs to another user, in a sticky directory")
            }
            InPlaceReason::Held(NameProtection::AppendOnly) => f.write_str("its directory is append-only"),
            InPlaceReason::Leased => f.write_str("another process had a lease on it"),
            InPlaceReason::GivesRights => f.write_str("it has set-user-ID or set-group-ID bits or capabilities"),
            InPlaceReason::Lost(lost) => write!(f, "a new file could not have {lost}"),
            InPlaceReason::Refused(errno) => write!(f, "the new file could not take its name ({})", error(errno)),
        }
    }
}

/// How a file gets to a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// A complete file takes the name, or the place of the file that has it.
    Rename,
    /// The bytes of the existing file are overwritten.
    InPlace(InPlaceReason),
    /// The bytes are written in order.
    Stream,
    /// It is refused with the errno of `open(2)`.
    Refuse(Errno),
}

/// Decides. It considers lost attributes last, because a way without a loss is preferred.
pub(super) fn decide(facts: &TargetFacts) -> Way {
    match facts.kind {
        TargetKind::Folder => return Way::Refuse(Errno::ISDIR),
        TargetKind::Socket => return Way::Refuse(Errno::NXIO),
        TargetKind::Stream | TargetKind::BlockDevice => return Way::Stream,
        TargetKind::Nothing => return facts.beside.map_or_else(Way::Refuse, |()| Way::Rename),
        TargetKind::File => {}
    }
    if let Err(e) = facts.opened {
        return Way::Refuse(e);
    }
    let reason = if facts.by_descriptor {
        InPlaceReason::Descriptor
    } else if let Err(e) = facts.beside {
        if is_passing(e) {
            return Way::Refuse(e);
        }
        InPlaceReason::Folder(e.raw_os_error())
    } else if facts.links != 1 {
        InPlaceReason::Links(facts.links)
    } else if facts.mounted {
        InPlaceReason::Mounted
    } else if let Some(held) = facts.held {
        InPlaceReason::Held(held)
    } else if facts.gives_rights {
        InPlaceReason::GivesRights
    } else if facts.leased {
        InPlaceReason::Leased
    } else if let Some(lost) = &facts.lost {
        InPlaceReason::Lost(lost.clone())
    } else {
        return Way::Rename;
    };
    Way::InPlace(reason)
}

/// Whether an error tells of a shortage in the process, and nothing about the folder.
fn is_passing(e: Errno) -> bool {
    matches!(e, Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::INTR)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: TargetFacts = TargetFacts {
        kind: TargetKind::File,
        by_descriptor: false,
        opened: Ok(()),
        beside: Ok(()),
        links: 1,
        mounted: false,
        leased: false,
        gives_rights: false,
        held: None,
        lost: None,
    };

    #[test]
    fn the_decision_as_a_table() {
        let new = TargetFacts { kind: TargetKind::Nothing, links: 0, ..PLAIN };
        let kind = |kind| TargetFacts { kind, ..PLAIN };
        let here = Way::InPlace;
        let table = [
            (new.clone(), Way::Rename),
            (TargetFacts { beside: Err(Errno::ACCESS), ..new.clone() }, Way::Refuse(Errno::ACCESS)),
            (TargetFacts { beside: Err(Errno::NOSPC), ..new }, Way::Refuse(Errno::NOSPC)),
            (kind(TargetKind::Folder), Way::Refuse(Errno::ISDIR)),
            (kind(TargetKind::Socket), Way::Refuse(Errno::NXIO)),
            (kind(TargetKind::Stream), Way::Stream),
            (kind(TargetKind::BlockDevice), Way::Stream),
            (PLAIN, Way::Rename),
            // It is refused as by open(2), even if a rename would work.
            (TargetFacts { opened: Err(Errno::ACCESS), ..PLAIN }, Way::Refuse(Errno::ACCESS)),
            (TargetFacts { opened: Err(Errno::PERM), links: 2, ..PLAIN }, Way::Refuse(Errno::PERM)),
            (TargetFacts { opened: Err(Errno::TXTBSY), ..PLAIN }, Way::Refuse(Errno::TXTBSY)),
            (TargetFacts { opened: Err(Errno::ROFS), beside: Err(Errno::ROFS), ..PLAIN }, Way::Refuse(Errno::ROFS)),
            (TargetFacts { by_descriptor: true, links: 0, ..PLAIN }, here(InPlaceReason::Descriptor)),
            (TargetFacts { by_descriptor: true, ..PLAIN }, here(InPlaceReason::Descriptor)),
            (TargetFacts { beside: Err(Errno::ACCESS), ..PLAIN }, here(InPlaceReason::Folder(libc::EACCES))),
            (TargetFacts { beside: Err(Errno::NOSPC), ..PLAIN }, here(InPlaceReason::Folder(libc::ENOSPC))),
            (TargetFacts { beside: Err(Errno::MFILE), ..PLAIN }, Way::Refuse(Errno::MFILE)),
            (TargetFacts { links: 2, ..PLAIN }, here(InPlaceReason::Links(2))),
            (TargetFacts { links: 0, ..PLAIN }, here(InPlaceReason::Links(0))),
            (TargetFacts { mounted: true, ..PLAIN }, here(InPlaceReason::Mounted)),
            (
                TargetFacts { held: Some(NameProtection::Sticky), ..PLAIN },
                here(InPlaceReason::Held(NameProtection::Sticky)),
            ),
            (
                TargetFacts { held: Some(NameProtection::AppendOnly), ..PLAIN },
                here(InPlaceReason::Held(NameProtection::AppendOnly)),
            ),
            (TargetFacts { gives_rights: true, ..PLAIN }, here(InPlaceReason::GivesRights)),
            (TargetFacts { leased: true, ..PLAIN }, here(InPlaceReason::Leased)),
            (
                TargetFacts { lost: Some(LostAttribute::Group), ..PLAIN },
                here(InPlaceReason::Lost(LostAttribute::Group)),
            ),
        ];
        for (facts, way) in table {
            assert_eq!(decide(&facts), way, "{facts:?}");
        }
    }
}
