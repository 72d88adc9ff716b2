//! Mappings: the kernel's calls for pages, regions over files, memory that processes share.

mod file_map;
pub(super) mod mapped_file;
pub(super) mod pages;
mod shared_map;
