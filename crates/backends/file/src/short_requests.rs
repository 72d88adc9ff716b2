//! The files on which io_uring may be used: those where the kernel finishes short requests
//! correctly.
//!
//! A system call that moved fewer bytes than requested reports it, and its caller requests the
//! rest. For regular files io_uring does that itself, inside the kernel (`io_read`,
//! `need_complete_io`), from where the file system's cursor in the memory stands. A file system
//! that got a short answer from a FUSE server or another machine may have its cursor beyond the
//! bytes that were moved. The rest then lands at a wrong place, and the request is reported as
//! complete (seen on Linux 6.18 with FUSE, reading and writing). This cannot be seen from outside
//! and cannot be switched off. So io_uring serves only the kernel's own file systems, where
//! requests are short only at the end of a file. All others are served by system calls.
//!
//! An overlay is trusted although it may lie over a FUSE file system: the kernel does not tell.

use datapipes_core::locator::FilePlace;

/// Names and numbers (of `statfs(2)`) of the kernel's own file systems, over devices of this
/// machine or its memory.
const LOCAL: [(&str, u32); 18] = [
    ("ext2, ext3 or ext4", 0xef53),
    ("xfs", 0x5846_5342),
    ("btrfs", 0x9123_683e),
    ("bcachefs", 0xca45_1a4e),
    ("f2fs", 0xf2f5_2010),
    ("zfs", 0x2fc1_2fc1),
    ("tmpfs", 0x0102_1994),
    ("ramfs", 0x8584_58f6),
    ("hugetlbfs", 0x9584_58f6),
    ("overlayfs", 0x794c_7630),
    ("erofs", 0xe0f5_e1e2),
    ("squashfs", 0x7371_7368),
    ("iso9660", 0x9660),
    ("udf", 0x1501_3346),
    ("vfat", 0x4d44),
    ("exfat", 0x2011_bab0),
    ("ntfs3", 0x7366_746e),
    ("jfs", 0x3153_464a),
];

/// Returns whether io_uring serves a file, or why not.
pub(crate) fn ring_serves(file: &FilePlace) -> Result<(), String> {
    if file.is_block_device() {
        return Ok(());
    }
    match file.file_system() {
        Some(number) if LOCAL.iter().any(|(_, local)| *local == number) => Ok(()),
        Some(number) => Err(format!(
            "io_uring finishes short requests wrongly on file systems that a server provides (this one has the type {number:#x})"
        )),
        None => Err(
            "io_uring finishes short requests wrongly on some file systems, and the kernel does not report the type of this one"
                .into(),
        ),
    }
}
