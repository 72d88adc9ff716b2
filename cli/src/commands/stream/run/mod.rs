//! One run of a stream, and what is shown of it.

mod meters;
pub(in crate::commands::stream) mod one;
pub(in crate::commands::stream) mod page;
pub(in crate::commands::stream) mod picture;
mod routes;
pub(in crate::commands::stream) mod table;
pub(in crate::commands::stream) mod view;
pub(in crate::commands::stream) mod watch;
