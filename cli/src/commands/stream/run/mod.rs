//! One run of a stream, and what is shown of it.

pub(in crate::commands::stream) mod one;
pub(in crate::commands::stream) mod picture;
pub(in crate::commands::stream) mod table;
pub(in crate::commands::stream) mod view;
pub(in crate::commands::stream) mod watch;
