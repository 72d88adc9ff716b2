//! Memory of a holder on this machine, read and written by the kernel for the caller
//! (`process_vm_readv`, `process_vm_writev`): one copy, on the caller's core. Nothing of the
//! exporter runs, and no page is mapped by both sides, so what a key permits holds as it does for
//! UCX: the kernel copies only what the holder maps, and with the protection that it has there. A
//! holder that was killed has nothing mapped.
//!
//! The kernel takes a process by its number. The number of a holder stays its own while the
//! exporter has not reaped it, which it does once the client has let go, or some seconds after it
//! told the client (`FAREWELL` of `export::client`). If the exporter itself dies, the number is
//! free as soon as the holder has ended; the client looks at its connection at least every
//! millisecond. A client whose thread stands still between that look and the copy for as long as
//! it takes to give out every other number, which is 32,768 new processes at least, could reach
//! another process of its own user.
//!
//! Both must run as the same user, and the kernel must let the client trace the holder: it refuses
//! that to clients which are confined by Landlock, and where Yama forbids all tracing. Then UCX is
//! used. Rejected: `/proc/PID/mem`, which keeps hold of the process itself and copies every page
//! twice.
//!
//! | file | what it holds |
//! |---|---|
//! | `peer` | the two system calls, and the proof that a number is the holder's |
//! | `mover` | moves spans under leases; the loss of the other side |

mod mover;
pub(crate) mod peer;

pub(crate) use mover::DirectMover;
