//! How a client gets at an export: addresses, keys, and a short conversation that needs the key.
//!
//! ```text
//! client -> exporter   "DPREMOT1", the export's number, Noise: a new public key, sealed by the key
//! client <- exporter   Noise: another public key
//! client -> exporter   sealed: what it wants
//! client <- exporter   sealed: length, rights, and where the memory is for UCX; or why not
//!        ...           the connection stays open as long as the pipe
//! client <- exporter   sealed: why the export ended
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | `settings` | rights, transports, and which addresses are refused |
//! | `key` | keys, and the ticket that a client needs |
//! | `local` | connecting to a Unix socket, within a time |
//! | `wire` | bytes of a connection, with a bound on length and time |
//! | `noise` | the conversation, and sealed messages |
//! | `messages` | what is said, checked once |

pub(crate) mod key;
pub(crate) mod local;
pub(crate) mod messages;
pub(crate) mod noise;
pub(crate) mod settings;
pub(crate) mod wire;
