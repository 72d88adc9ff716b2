//! Kinds of files in words, for errors.

use rustix::fs::FileType;

/// What `st_mode` says of a file's kind, as people call it: "a named pipe".
pub fn file_kind_words(mode: u32) -> &'static str {
    match FileType::from_raw_mode(mode) {
        FileType::RegularFile => "a file",
        FileType::Directory => "a folder",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a named pipe",
        FileType::Socket => "a socket",
        FileType::CharacterDevice => "a character device",
        FileType::BlockDevice => "a block device",
        _ => "a file of an unknown kind",
    }
}
