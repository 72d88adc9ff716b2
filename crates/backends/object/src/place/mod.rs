//! An object as a place: read at one version, or written whole.
//!
//! | file | what it holds |
//! |---|---|
//! | `pinned` | the version that is read, and its checksum |
//! | `read_sums` | the checksums of ranges that were read, until they are the whole object |
//! | `covered` | which bytes of a part were written |
//! | `published` | an object after it was published |
//! | `parts` | the parts of an object that is written, and where each one is |
//! | `upload` | an object that is written |
//! | `handle` | an object as backends see it |
//! | `sending` | sending parts, publishing, giving up |
//! | `looking` | looking at an object before it is published, and after it |
//! | `object` | the locator |

mod covered;
mod handle;
mod looking;
mod object;
mod parts;
mod pinned;
mod published;
mod read_sums;
mod sending;
mod upload;

pub(crate) use handle::{ObjectPlace, Side};
pub use object::{Leftovers, Object, ObjectReport};
pub(crate) use parts::{Admission, PartBuffer, PartState};
pub(crate) use pinned::{Pinned, changed};
pub use published::PublishedObject;
pub(crate) use upload::Upload;
