//! The two ends of a stream: where its bytes come from, what must arrive, and waits that end.

pub(in crate::commands::stream) mod origin;
pub(in crate::commands::stream) mod replay;
pub(in crate::commands::stream) mod waiting;
