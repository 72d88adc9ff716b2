//! NVMe namespaces, and the commands that io_uring passes through to them.
//!
//! | module | what it does |
//! |---|---|
//! | `namespace` | finds the namespace behind a block device, with its limits, and opens its generic device |
//! | `claim` | keeps others from mounting a namespace that is written |
//! | `command` | a read or write command, as the kernel takes it; there is no other command |
//! | `status` | the device's status codes, as text and as errors |
//!
//! Only read and write commands to one namespace are made. Admin commands are in no function here.

mod claim;
mod command;
mod namespace;
mod status;

pub(crate) use claim::Claims;
pub(crate) use command::{IoCommand, PASS_IO};
pub(crate) use namespace::{NvmeNamespace, OpenNamespace, generic_devices};
pub(crate) use status::Status;
