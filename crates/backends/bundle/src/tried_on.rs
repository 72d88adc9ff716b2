//! What each primitive was tried on. The table in `docs/hardware.md` is checked against this one.

/// What a primitive ran on: the first of these that holds. It is about machines of the project, not
/// about the one that the process runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum TriedOn {
    /// A processor, disk or kernel of the project's machines.
    Hardware,
    /// Drivers of a kernel over hardware that QEMU emulates.
    Guest,
    /// A program in the tests that behaves as the device does.
    DeviceModel,
    /// A server in the tests, on this machine: never the service of a cloud.
    TestServer,
    /// Nothing: it was never run.
    Nothing,
}

impl TriedOn {
    /// As words, behind "tried on".
    pub fn words(self) -> &'static str {
        match self {
            TriedOn::Hardware => "hardware",
            TriedOn::Guest => "emulated hardware in a guest, never hardware",
            TriedOn::TestServer => "a server on the same machine, never a cloud's",
            TriedOn::DeviceModel => "a model of the device, never hardware",
            TriedOn::Nothing => "nothing: never run",
        }
    }
}

/// Every primitive of every backend, and what it was tried on.
pub const TRIED: [(&str, TriedOn); 40] = [
    ("copy-by-size", TriedOn::Hardware),
    ("memcpy", TriedOn::Hardware),
    ("rep-movsb", TriedOn::Hardware),
    ("nt-avx2", TriedOn::Hardware),
    ("nt-avx512", TriedOn::Hardware),
    ("load-into-cache", TriedOn::Hardware),
    ("cldemote", TriedOn::Nothing),
    ("clwb", TriedOn::Hardware),
    ("clflushopt", TriedOn::Hardware),
    ("leave", TriedOn::Hardware),
    ("read-itself", TriedOn::Hardware),
    // The instructions ran on hardware, but never on persistent memory.
    ("pmem-store", TriedOn::Guest),
    ("pmem-store-nt", TriedOn::Guest),
    ("pmem-store-writeback", TriedOn::Guest),
    ("pmem-load", TriedOn::Guest),
    ("pmem-load-nt", TriedOn::Guest),
    ("pmem-flush", TriedOn::Guest),
    ("dsa-move", TriedOn::DeviceModel),
    ("dsa-move-to-cache", TriedOn::DeviceModel),
    ("dsa-and-core", TriedOn::DeviceModel),
    // DPDK's own software device for an engine, through DPDK.
    ("dmadev-move", TriedOn::DeviceModel),
    ("dmadev-and-core", TriedOn::DeviceModel),
    ("uring-direct", TriedOn::Hardware),
    ("uring-cached", TriedOn::Hardware),
    ("pread-direct", TriedOn::Hardware),
    ("pread-cached", TriedOn::Hardware),
    ("pwrite-direct", TriedOn::Hardware),
    ("pwrite-cached", TriedOn::Hardware),
    ("uring-nvme", TriedOn::Guest),
    ("kernel-copy", TriedOn::Hardware),
    ("vm-put", TriedOn::Hardware),
    ("vm-get", TriedOn::Hardware),
    // By shared memory and TCP; by RDMA only in a guest.
    ("ucx-put", TriedOn::Hardware),
    ("ucx-get", TriedOn::Hardware),
    // On a machine with an H100.
    ("gpu-upload", TriedOn::Hardware),
    ("gpu-download", TriedOn::Hardware),
    ("gpu-copy", TriedOn::Hardware),
    // It takes two devices.
    ("gpu-peer", TriedOn::DeviceModel),
    // Of the feature `object`.
    ("object-get", TriedOn::TestServer),
    ("object-put", TriedOn::TestServer),
];

/// Returns what a primitive was tried on. One that is not in the table was tried on nothing.
pub fn tried_on(primitive: &str) -> TriedOn {
    TRIED.iter().find(|(name, _)| *name == primitive).map_or(TriedOn::Nothing, |(_, on)| *on)
}
