//! A read or write command, in the form in which the kernel takes it through io_uring.
//!
//! The kernel's structure (`struct nvme_uring_cmd` of `linux/nvme_ioctl.h`) has the words of the
//! command of 64 bytes that the device gets (NVM Express, NVM Command Set, read and write). The
//! kernel fills in the command's identifier and the pointers to memory.
#![deny(clippy::arithmetic_side_effects)]

/// `NVME_URING_CMD_IO`: `_IOWR('N', 0x80, struct nvme_uring_cmd)`.
pub(crate) const PASS_IO: u32 = (3 << 30) | ((STRUCTURE as u32) << 16) | ((b'N' as u32) << 8) | 0x80;

/// Bytes of `struct nvme_uring_cmd`.
const STRUCTURE: usize = 72;
/// Bytes that an entry of 128 bytes has for a command.
const ROOM: usize = 80;

/// The opcodes of the NVM command set that are used.
const WRITE: u8 = 1;
const READ: u8 = 2;

/// A read or write command to a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IoCommand {
    pub(crate) write: bool,
    pub(crate) namespace: u32,
    /// The first logical block.
    pub(crate) first_block: u64,
    /// The number of blocks less one, as the command has it.
    pub(crate) blocks_less_one: u16,
    /// The address of the bytes in this process.
    pub(crate) address: u64,
    /// The length of the bytes.
    pub(crate) len: u32,
}

impl IoCommand {
    /// Returns the bytes of the kernel's structure. What is not set here is 0: no hints, no
    /// protection information, no metadata, the driver's timeout.
    pub(crate) fn encode(&self) -> [u8; ROOM] {
        let mut bytes = [0; ROOM];
        bytes[0] = if self.write { WRITE } else { READ };
        bytes[4..8].copy_from_slice(&self.namespace.to_ne_bytes());
        bytes[24..32].copy_from_slice(&self.address.to_ne_bytes());
        bytes[36..40].copy_from_slice(&self.len.to_ne_bytes());
        // Words 10 and 11: the lower and the upper half of the first block.
        bytes[40..44].copy_from_slice(&(self.first_block as u32).to_ne_bytes());
        bytes[44..48].copy_from_slice(&((self.first_block >> 32) as u32).to_ne_bytes());
        // Word 12: the number of blocks in its lower half.
        bytes[48..52].copy_from_slice(&u32::from(self.blocks_less_one).to_ne_bytes());
        bytes
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, clippy::unwrap_used)]
mod tests {
    use super::*;
    use datapipes_testkit::Random;

    /// `struct nvme_uring_cmd`, as `linux/nvme_ioctl.h` publishes it.
    #[repr(C)]
    struct Published {
        opcode: u8,
        flags: u8,
        rsvd1: u16,
        nsid: u32,
        cdw2: u32,
        cdw3: u32,
        metadata: u64,
        addr: u64,
        metadata_len: u32,
        data_len: u32,
        cdw10: u32,
        cdw11: u32,
        cdw12: u32,
        cdw13: u32,
        cdw14: u32,
        cdw15: u32,
        timeout_ms: u32,
        rsvd2: u32,
    }

    /// A field of the kernel's structure: its name, its offset, its length.
    macro_rules! fields {
        ($($name:ident: $of:ty),*) => {
            [$((stringify!($name), std::mem::offset_of!(Published, $name), size_of::<$of>())),*]
        };
    }

    /// Returns a field's value, by the published layout.
    fn field(bytes: &[u8], name: &str) -> u64 {
        let fields = fields!(opcode: u8, flags: u8, rsvd1: u16, nsid: u32, cdw2: u32, cdw3: u32, metadata: u64,
            addr: u64, metadata_len: u32, data_len: u32, cdw10: u32, cdw11: u32, cdw12: u32, cdw13: u32, cdw14: u32,
            cdw15: u32, timeout_ms: u32, rsvd2: u32);
        let (_, at, len) = fields.into_iter().find(|f| f.0 == name).unwrap();
        let mut wide = [0; 8];
        wide[..len].copy_from_slice(&bytes[at..at + len]);
        u64::from_le_bytes(wide)
    }

    #[test]
    fn a_command_is_laid_out_as_published() {
        assert_eq!((size_of::<Published>(), PASS_IO), (STRUCTURE, 0xC048_4E80));
        let mut random = Random(datapipes_testkit::seed(7));
        for round in 0..2000 {
            // The ends of each field, and what lies between.
            let mut any = |most: u64| match random.next() % 8 {
                0 => 0,
                1 => most,
                _ => random.next() & most,
            };
            let command = IoCommand {
                write: round % 2 == 0,
                namespace: any(u64::from(u32::MAX)) as u32,
                first_block: any(u64::MAX),
                blocks_less_one: any(u64::from(u16::MAX)) as u16,
                address: any(u64::MAX),
                len: any(u64::from(u32::MAX)) as u32,
            };
            let bytes = command.encode();
            let expected = [
                // Opcodes of the NVM command set: write is 01h, read is 02h.
                ("opcode", if command.write { 1 } else { 2 }),
                ("nsid", u64::from(command.namespace)),
                ("addr", command.address),
                ("data_len", u64::from(command.len)),
                ("cdw10", command.first_block & 0xffff_ffff),
                ("cdw11", command.first_block >> 32),
                // Bits 15:0 have the number of blocks, which begins at 0; bits 31:16 (limited
                // retry, forced unit access, protection, directives, storage tags) are clear.
                ("cdw12", u64::from(command.blocks_less_one)),
            ];
            for (name, value) in expected {
                assert_eq!(field(&bytes, name), value, "{name} of {command:?}");
            }
            for name in ["flags", "rsvd1", "cdw2", "cdw3", "metadata", "metadata_len", "cdw13", "cdw14", "cdw15"] {
                assert_eq!(field(&bytes, name), 0, "{name} of {command:?}");
            }
            assert_eq!((field(&bytes, "timeout_ms"), field(&bytes, "rsvd2")), (0, 0), "{command:?}");
            assert_eq!(&bytes[STRUCTURE..], [0; ROOM - STRUCTURE], "{command:?}");
        }
    }
}
