//! Whether io_uring may be used on a file: whether the kernel finishes short requests rightly
//! there.
//!
//! A system call that moved less than it was asked for says so, and its caller asks for the rest.
//! io_uring does that by itself for regular files, inside the kernel (`io_read`,
//! `need_complete_io`), and goes on where the file system's cursor in the memory stands. A file
//! system that was answered short by somebody else, a FUSE server or another machine, may have its
//! cursor further on than the bytes that were moved: the rest lands beside its place, and the
//! request is told to be complete (seen on Linux 6.18 with FUSE, reading and writing). Nothing can
//! be seen of that from outside, and it cannot be switched off. So only file systems of the
//! kernel's own are served by io_uring, whose requests are short at the end of a file alone; all
//! others are served by system calls.
//!
//! An overlay is trusted though what is below it may be a FUSE file system: the kernel does not
//! tell.

use datapipes_core::locator::FilePlace;

/// Names and numbers of file systems that are the kernel's own, over devices of this machine or its
/// memory; the numbers are those of `statfs(2)`.
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

/// Whether io_uring serves a file, or why not.
pub(crate) fn ring_serves(file: &FilePlace) -> Result<(), String> {
    if file.is_block_device() {
        return Ok(());
    }
    match file.file_system() {
        Some(number) if LOCAL.iter().any(|(_, local)| *local == number) => Ok(()),
        Some(number) => Err(format!(
            "io_uring finishes short requests wrongly on file systems that others serve (this one has the type {number:#x})"
        )),
        None => Err(
            "io_uring finishes short requests wrongly on some file systems, and the kernel does not tell which this is"
                .into(),
        ),
    }
}
