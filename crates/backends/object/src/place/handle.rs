//! An object as backends see it. Pipes, jobs and parts on their way share it with the value that
//! the user holds, which alone publishes it or gives it up.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::pinned::Pinned;
use super::upload::Upload;
use crate::client_state::ClientState;
use crate::server::Store;

/// Which side of a pipe the object can be.
pub(crate) enum Side {
    Source(Pinned),
    Target(Arc<Upload>),
}

/// An object as backends see it.
pub(crate) struct ObjectPlace {
    pub(crate) client: Arc<ClientState>,
    pub(crate) store: Store,
    /// The same bucket, for looking at what was published.
    pub(crate) looks: Store,
    pub(crate) name: String,
    pub(crate) side: Side,
    pub(crate) was_published: AtomicBool,
    /// Whether a request that publishes was made, and no answer says that it was not done.
    pub(crate) may_be_published: AtomicBool,
}
