//! The identity of a file, beside its bytes: owner, group, mode, extended attributes (ACLs and
//! security labels among them) and inode flags. A file that takes another's place takes these over.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fmt;
use std::os::fd::BorrowedFd;

use rustix::fs::{Gid, IFlags, Mode, Stat, Uid, XattrFlags};
use rustix::io::Errno;

/// The mode's bits for reading, writing and executing, and the sticky bit.
const KEPT_BITS: u32 = 0o1777;
/// The mode's bits that give a program the rights of its owner or group.
const PRIVILEGES: u32 = 0o6000;
/// Attributes that describe the bytes of a file; they would be wrong for other bytes.
const OF_THE_BYTES: [&[u8]; 3] = [b"security.ima", b"security.evm", b"security.capability"];
const CAPABILITY: &[u8] = b"security.capability";
const ACL: &[u8] = b"system.posix_acl_access";

/// An attribute that a new file cannot take over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LostAttribute {
    /// The owner: only root can give files away.
    Owner,
    /// The group: the process is not a member of it.
    Group,
    /// The permission bits.
    Mode,
    /// The extended attribute of this name.
    Attribute(String),
    /// The inode flags, as set by `chattr`.
    Flags,
}

impl fmt::Display for LostAttribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LostAttribute::Owner => f.write_str("its owner"),
            LostAttribute::Group => f.write_str("its group"),
            LostAttribute::Mode => f.write_str("its mode"),
            LostAttribute::Attribute(name) if name.as_bytes() == ACL => f.write_str("its ACL"),
            LostAttribute::Attribute(name) => write!(f, "its attribute {name}"),
            LostAttribute::Flags => f.write_str("its inode flags"),
        }
    }
}

/// Gives `new` the identity of `old`, as far as possible, and returns the first attribute that
/// could not be taken over. The mode comes last, so that until then only the owner may read `new`.
pub(super) fn take_over(old: BorrowedFd<'_>, new: BorrowedFd<'_>) -> Result<Option<LostAttribute>, Errno> {
    let (from, to) = (rustix::fs::fstat(old)?, rustix::fs::fstat(new)?);
    let mut lost = take_owner(&from, &to, new);
    lost = lost.or(take_attributes(old, new));
    lost = lost.or(take_flags(old, new));
    // Who could read the old file by its group or its ACL is not known for a file without these.
    let shared = matches!(&lost, Some(LostAttribute::Group))
        || matches!(&lost, Some(LostAttribute::Attribute(a)) if a.as_bytes() == ACL);
    let kept = if shared { 0o700 } else { KEPT_BITS };
    if rustix::fs::fchmod(new, Mode::from_raw_mode(from.st_mode & kept)).is_err() {
        lost = lost.or(Some(LostAttribute::Mode));
    }
    Ok(lost)
}

fn take_owner(from: &Stat, to: &Stat, new: BorrowedFd<'_>) -> Option<LostAttribute> {
    let group = Gid::from_raw(from.st_gid);
    if from.st_gid != to.st_gid && rustix::fs::fchown(new, None, Some(group)).is_err() {
        return Some(LostAttribute::Group);
    }
    let owner = Uid::from_raw(from.st_uid);
    if from.st_uid != to.st_uid && rustix::fs::fchown(new, Some(owner), None).is_err() {
        return Some(LostAttribute::Owner);
    }
    None
}

/// Returns the extended attributes that belong to the file's identity; `None` where they cannot all
/// be read.
fn attributes(file: BorrowedFd<'_>) -> Option<BTreeMap<CString, Vec<u8>>> {
    let mut names = Vec::with_capacity(1 << 16);
    match rustix::fs::flistxattr(file, rustix::buffer::spare_capacity(&mut names)) {
        Ok(_) => {}
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Some(BTreeMap::new()),
        Err(_) => return None,
    }
    let mut found = BTreeMap::new();
    for name in names.split(|b| *b == 0).filter(|n| !n.is_empty() && !OF_THE_BYTES.contains(n)) {
        let (name, mut value) = (CString::new(name).ok()?, Vec::with_capacity(1 << 16));
        match rustix::fs::fgetxattr(file, &name, rustix::buffer::spare_capacity(&mut value)) {
            Ok(_) => found.insert(name, value),
            // The attribute was removed since it was listed, or has no value of its own.
            Err(Errno::NODATA | Errno::OPNOTSUPP) => None,
            Err(_) => return None,
        };
    }
    Some(found)
}

fn take_attributes(old: BorrowedFd<'_>, new: BorrowedFd<'_>) -> Option<LostAttribute> {
    let lost = |name: &CString| Some(LostAttribute::Attribute(name.to_string_lossy().into_owned()));
    let (Some(from), Some(mut to)) = (attributes(old), attributes(new)) else {
        return Some(LostAttribute::Attribute("that cannot be read".into()));
    };
    for (name, value) in &from {
        if to.remove(name).as_ref() != Some(value)
            && rustix::fs::fsetxattr(new, name, value, XattrFlags::empty()).is_err()
        {
            return lost(name);
        }
    }
    // The attributes that remain came from the folder, such as its default ACL.
    to.keys().find(|name| rustix::fs::fremovexattr(new, *name).is_err()).and_then(lost)
}

fn take_flags(old: BorrowedFd<'_>, new: BorrowedFd<'_>) -> Option<LostAttribute> {
    let of_users = IFlags::SECURE_REMOVAL
        | IFlags::UNRM
        | IFlags::COMPRESSED
        | IFlags::SYNC
        | IFlags::NODUMP
        | IFlags::NOATIME
        | IFlags::JOURNALING
        | IFlags::NOTAIL
        | IFlags::NOCOW;
    // A file system without flags loses nothing.
    let (Ok(from), Ok(to)) = (rustix::fs::ioctl_getflags(old), rustix::fs::ioctl_getflags(new)) else { return None };
    if (from ^ to).intersects(of_users) {
        let wanted = (to - of_users) | (from & of_users);
        let set = rustix::fs::ioctl_setflags(new, wanted).and_then(|()| rustix::fs::ioctl_getflags(new));
        if !set.is_ok_and(|now| !(from ^ now).intersects(of_users)) {
            return Some(LostAttribute::Flags);
        }
    }
    None
}

/// Whether running the file grants privileges. The kernel takes these away when a file is written,
/// by its own rules.
pub(super) fn gives_rights(file: BorrowedFd<'_>, stat: &Stat) -> bool {
    let mut none = [0; 0];
    // Both ERANGE and a length mean that the attribute exists.
    let capable = !matches!(
        rustix::fs::fgetxattr(file, CAPABILITY, &mut none),
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS | Errno::ACCESS)
    );
    stat.st_mode & PRIVILEGES != 0 || capable
}
