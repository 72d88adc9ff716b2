//! Statistics that a process offers to its user's other processes (`dpipe top`): a small page in
//! memory (a file on tmpfs) that the process writes now and then, and that others read.
//!
//! ```text
//! $XDG_RUNTIME_DIR/datapipes/        else /dev/shm/datapipes-UID/; the user's own, mode 0700
//!   PID-START-N                      a page: header and samples as JSON (see `page.rs`)
//!
//! writer: generation odd -> samples -> generation even, length, checksum      no lock, one writer
//! reader: header -> samples -> the same header again, and the checksum fits?  else it tries again
//! ```
//!
//! * Nothing is offered unless the program says so ([`StatisticsOffer::start`], or `dpipe`'s own
//!   commands). Without that there is no thread, no file and no cost. `DATAPIPES_OFFER=0` in the
//!   environment overrules the program.
//! * Samples name no files, users, or names of clients (`datapipes_metrics`), so a page has nothing
//!   secret in it.
//! * A page is read by `pread` into memory of the reader, never mapped: whoever truncates it cannot
//!   end the reader. Pages are data of strangers to the reader: their lengths, owners and text are
//!   checked, and a bad one is shown as such.
//! * A page belongs to the process that its name and its header say, which holds a lock of it. When
//!   that process is gone, in whatever container it ran, the next reader removes the page. A child
//!   made by `fork` has no page until it makes one, and leaves its parent's alone.
//!
//! Rejected: a page in every process (a thread and a file that nobody asked for), a socket (the
//! process would have to answer while it is stuck, which is when people look), and a mapped file
//! (SIGBUS in the reader).

mod folder;
mod page;
mod writer;

pub use page::{OfferedPage, OfferedPages, PageOwner};
pub use writer::{PageWriter, StatisticsOffer};

use crate::error::Result;

/// The variable of the environment with which a user forbids offers: `0`.
const VARIABLE: &str = "DATAPIPES_OFFER";

/// Whether the environment lets processes offer statistics.
pub fn is_allowed() -> bool {
    std::env::var_os(VARIABLE).is_none_or(|value| value != "0")
}

/// The pages of this user's processes. Pages of processes that are gone are removed.
///
/// # Errors
/// Errors of the folder: it belongs to somebody else, or others may enter it. A folder that does
/// not exist has no pages.
pub fn pages() -> Result<OfferedPages> {
    match folder::Folder::existing()? {
        Some(folder) => folder.pages(),
        None => Ok(OfferedPages::default()),
    }
}
