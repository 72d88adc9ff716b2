//! Whether a file is replaced by another or written in place: one decision, from facts, before
//! anything is done.

use std::fmt;

use rustix::io::Errno;

use super::identity::LostAttribute;

/// What a path leads to, as far as it matters to who writes there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetKind {
    /// Nothing; there would be a new file.
    Nothing,
    /// A regular file.
    File,
    /// What is written in order and has no length: a pipe, a terminal, `/dev/null`, a file of
    /// `/proc` or `/sys`.
    Stream,
    /// A block device.
    BlockDevice,
    /// A directory.
    Folder,
    /// A socket, which is not opened by its path.
    Socket,
}

/// What is known of a path before a file is written there.
#[derive(Clone, Debug)]
pub(super) struct TargetFacts {
    pub(super) kind: TargetKind,
    /// Whether it is reached through `/proc`, by the number of a descriptor.
    pub(super) by_descriptor: bool,
    /// What opening it for writing said.
    pub(super) opened: Result<(), Errno>,
    /// What making a file beside it said.
    pub(super) beside: Result<(), Errno>,
    /// Its names.
    pub(super) links: u64,
    /// Whether something is mounted on its name.
    pub(super) mounted: bool,
    /// Whether somebody had a lease on it, which our open took away.
    pub(super) leased: bool,
    /// Whether whoever runs it gets rights by that.
    pub(super) gives_rights: bool,
    /// Why its folder lets nobody give its name to another file.
    pub(super) held: Option<NameProtection>,
    /// What another file in its place would lack.
    pub(super) lost: Option<LostAttribute>,
}

/// How a folder holds on to the names in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameProtection {
    /// It is sticky, and the file is another user's.
    Sticky,
    /// Names can only be added to it.
    AppendOnly,
}

/// Why a file is written in place.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InPlaceReason {
    /// It was named by the number of a descriptor.
    Descriptor,
    /// It has this many names, which a new file would not have.
    Links(u64),
    /// Something is mounted on its name.
    Mounted,
    /// No file can be made beside it; the error's number.
    Folder(i32),
    /// Its folder lets nobody give its name to another file.
    Held(NameProtection),
    /// Somebody had a lease on it.
    Leased,
    /// Running it gives rights, which the kernel takes away as it sees fit.
    GivesRights,
    /// A new file could not have this of it.
    Lost(LostAttribute),
    /// The new file could not be given its name, at the very end; the error's number.
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
            InPlaceReason::Held(NameProtection::Sticky) => f.write_str("it is another user's, in a sticky directory"),
            InPlaceReason::Held(NameProtection::AppendOnly) => f.write_str("its directory is append-only"),
            InPlaceReason::Leased => f.write_str("another process had a lease on it"),
            InPlaceReason::GivesRights => f.write_str("it has set-user-ID or set-group-ID bits or capabilities"),
            InPlaceReason::Lost(lost) => write!(f, "a new file could not have {lost}"),
            InPlaceReason::Refused(errno) => write!(f, "the new file could not take its name ({})", error(errno)),
        }
    }
}

/// How a file comes to be at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// A complete file takes the name, or the place of the file that has it.
    Rename,
    /// The bytes of the file that is there are written over.
    InPlace(InPlaceReason),
    /// Written in order.
    Stream,
    /// Not as told; the error's number is what `open(2)` says.
    Refuse(Errno),
}

/// Decides. What may be lost is asked last, because a way without a loss is taken where there is
/// one.
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

/// Whether an error says that the process lacks something now, and nothing of the folder.
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
            // Refused as open(2) refuses it, however well a rename would do.
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
