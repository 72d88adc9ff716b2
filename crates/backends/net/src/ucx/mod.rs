//! UCX, loaded at run time: its interface, a worker with one connection, and what a worker can
//! move.
//!
//! | module | what it does |
//! |---|---|
//! | `abi` | the structures and numbers of UCX's C interface |
//! | `library` | loads UCX, finds its functions, refuses other versions, keeps it quiet |
//! | `worker` | a context with a worker: progress, its event, its address |
//! | `connection` | a worker that is connected to a peer's memory: put, get, flush, the end |

pub(crate) mod abi;
pub(crate) mod connection;
pub(crate) mod library;
pub(crate) mod worker;
