//! The mounts that this process sees, from `/proc/self/mountinfo`.

use crate::topology::tree::Tree;

/// One line of mountinfo, as far as it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) id: u64,
    /// The directory of the file system that is mounted here (`/`, except for a bind mount or a
    /// subvolume).
    pub(super) root: String,
    pub(super) mount_point: String,
    pub(super) fs_type: String,
    pub(super) source: String,
    pub(super) super_options: String,
}

pub(super) fn read(tree: &Tree) -> Vec<Mount> {
    let text = tree.required("proc/self/mountinfo", "mounts").unwrap_or_default();
    text.lines().filter_map(parse).collect()
}

/// Parses `36 35 98:0 /root /mount/point rw,noatime master:1 - ext3 /dev/root rw,errors=continue`.
fn parse(line: &str) -> Option<Mount> {
    // The number of optional fields before the dash varies; that of the fields after it does not.
    let (before, after) = line.split_once(" - ")?;
    let mut before = before.split(' ');
    let id = before.next()?.parse().ok()?;
    let root = before.nth(2)?;
    let mount_point = before.next()?;
    let mut after = after.split(' ');
    Some(Mount {
        id,
        root: unescape(root),
        mount_point: unescape(mount_point),
        fs_type: after.next()?.to_owned(),
        source: unescape(after.next()?),
        super_options: after.next().unwrap_or_default().to_owned(),
    })
}

/// Undoes the kernel's escapes: `\040` and the like for blanks, tabs, newlines and backslashes.
fn unescape(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let code =
            bytes.get(at + 1..at + 4).filter(|code| byte == b'\\' && code.iter().all(|c| (b'0'..=b'7').contains(c)));
        match code.and_then(|code| code.iter().try_fold(0_u8, |all, c| all.checked_mul(8)?.checked_add(c - b'0'))) {
            Some(value) => {
                out.push(value);
                at += 4;
            }
            None => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_lines() {
        let line = r"36 35 98:0 /mnt1 /mnt\040two rw master:1 shared:2 - cgroup none\134x rw,memory,cpu";
        let mount = parse(line).unwrap();
        assert_eq!((mount.id, mount.root.as_str(), mount.mount_point.as_str()), (36, "/mnt1", "/mnt two"));
        assert_eq!((mount.fs_type.as_str(), mount.source.as_str()), ("cgroup", r"none\x"));
        assert_eq!(mount.super_options, "rw,memory,cpu");
        assert_eq!(parse("36 35 98:0 / /x rw"), None);
        assert_eq!(parse(""), None);
        assert_eq!(unescape(r"a\9\04\777"), r"a\9\04\777");
    }
}
