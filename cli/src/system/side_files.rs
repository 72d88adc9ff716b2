//! Files that a command writes beside its work: a page, metrics, a picture, a trace.
//!
//! ```text
//! SideFileArgument  what the option says; it cannot be opened
//!       |
//! SideFiles::take   <--- CommandPlaces: all that the command reads and writes
//!       |
//!   SideFile        can be written, and looks at the places again each time
//! ```
//! Such a file must be none of the places, and no other side file, by whatever name: a hard link, a
//! link that leads to nothing yet, a descriptor. So the types leave no other way to open one.

mod argument;
mod identity;
mod places;
mod stream;
mod taking;
#[cfg(test)]
mod tests;
mod writing;

pub(crate) use argument::SideFileArgument;
pub(crate) use places::CommandPlaces;
pub(crate) use taking::SideFiles;
pub(crate) use writing::{SideDraft, SideFile};
