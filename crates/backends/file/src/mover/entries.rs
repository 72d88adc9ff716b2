//! The entries of a ring: of 64 bytes, or of 128 where requests may be commands to a device.
//!
//! Unsafe code: one command that reads a block into a bounce buffer.
#![allow(unsafe_code)]

use std::os::fd::AsRawFd;

use datapipes_core::{Error, ErrorKind, Result};
use io_uring::{IoUring, cqueue, opcode, squeue, types};

use super::bounce::BouncePool;
use crate::nvme::{IoCommand, OpenNamespace, PASS_IO, Status};

/// An entry, and the answers of a ring that has such entries.
pub(crate) trait RingEntry: squeue::EntryMarker + From<squeue::Entry> + Send + Sync + 'static {
    /// The answer to it.
    type Answer: cqueue::EntryMarker + Send + Sync;

    /// The same with these flags.
    fn flagged(self, flags: squeue::Flags) -> Self;

    /// The same with this number, which its answer has.
    fn numbered(self, number: u64) -> Self;

    /// Returns a command as an entry; `None` where it has no room for one.
    fn command(device: types::Fd, command: &IoCommand, buffer: Option<u16>) -> Option<Self>;

    /// Reads the first block of a namespace by a command, so that a refusal is known before a
    /// transfer begins. The ring is new: nothing else is in it.
    ///
    /// # Errors
    /// `Unavailable`, with the reason.
    fn try_command(
        ring: &mut IoUring<Self, Self::Answer>,
        namespace: &OpenNamespace,
        bounces: &BouncePool,
    ) -> Result<()> {
        let refused = |why: String| {
            let context = format!("/dev/{}: {why}", namespace.facts.generic);
            Error::new(ErrorKind::Unavailable, "pass a command through to", context).with_advice("use uring-direct")
        };
        let bounce = bounces.take()?;
        let block = u32::try_from(namespace.facts.block_bytes).unwrap_or(u32::MAX);
        let command = namespace.facts.command(false, 0, block, bounce.address() as u64);
        let entry = command.and_then(|c| Self::command(types::Fd(namespace.device.as_raw_fd()), &c, None));
        let Some(entry) = entry else { return Err(refused("it has no block to read".into())) };
        // SAFETY: the entry's memory is the bounce buffer, which has room for a block. It is given
        // back when the kernel has answered, and is never freed if it has not.
        let answer = match unsafe { answer(ring, &entry) } {
            Ok(answer) => answer,
            Err(why) => {
                std::mem::forget(bounce);
                return Err(refused(why));
            }
        };
        bounces.give_back(bounce);
        match answer {
            0 => Ok(()),
            // A status has 15 bits.
            1.. => Err(refused(Status(answer as u16).to_string())),
            _ => Err(refused(std::io::Error::from_raw_os_error(-answer).to_string())),
        }
    }
}

/// Submits an entry to a ring that has no other, and returns its answer.
///
/// # Safety
/// The memory that the entry refers to must stay until the answer, and for ever where there is
/// none.
unsafe fn answer<E: RingEntry>(ring: &mut IoUring<E, E::Answer>, entry: &E) -> std::result::Result<i32, String> {
    // SAFETY: as the caller guarantees.
    unsafe { ring.submission().push(entry) }.map_err(|e| e.to_string())?;
    loop {
        let entered = ring.submit_and_wait(1).map_err(|e| (e.raw_os_error(), e.to_string()));
        if let Some(answer) = ring.completion().next() {
            return Ok(Into::<cqueue::Entry>::into(answer).result());
        }
        match entered {
            Ok(_) | Err((Some(libc::EINTR | libc::EAGAIN | libc::EBUSY), _)) => {}
            Err((_, why)) => return Err(why),
        }
    }
}

impl RingEntry for squeue::Entry {
    type Answer = cqueue::Entry;

    fn flagged(self, flags: squeue::Flags) -> Self {
        self.flags(flags)
    }

    fn numbered(self, number: u64) -> Self {
        self.user_data(number)
    }

    fn command(_: types::Fd, _: &IoCommand, _: Option<u16>) -> Option<Self> {
        None
    }
}

impl RingEntry for squeue::Entry128 {
    type Answer = cqueue::Entry32;

    fn flagged(self, flags: squeue::Flags) -> Self {
        self.flags(flags)
    }

    fn numbered(self, number: u64) -> Self {
        self.user_data(number)
    }

    fn command(device: types::Fd, command: &IoCommand, buffer: Option<u16>) -> Option<Self> {
        Some(opcode::UringCmd80::new(device, PASS_IO).cmd(command.encode()).buf_index(buffer).build())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::nvme::Claims;
    use datapipes_core::Ssd;

    /// The door of a mover lets no such command through, so this one goes past it.
    #[test]
    fn a_command_that_the_device_refuses_is_answered_by_a_status() {
        let Some(given) = std::env::var_os("DATAPIPES_NVME") else {
            return println!("SKIPPED: DATAPIPES_NVME names no namespace");
        };
        for path in std::env::split_paths(&given) {
            let ssd = Ssd::open_rw(&path).unwrap();
            let namespace = OpenNamespace::open(ssd.file(), false, &Claims::default()).unwrap();
            let mut ring = IoUring::<squeue::Entry128, cqueue::Entry32>::builder().build(4).unwrap();
            let bounces = BouncePool::new(1 << 16);
            squeue::Entry128::try_command(&mut ring, &namespace, &bounces).unwrap();
            let (blocks, len) = (namespace.facts.blocks, namespace.facts.block_bytes as u32);
            let bounce = bounces.take().unwrap();
            let mut command = namespace.facts.command(false, 0, len, bounce.address() as u64).unwrap();
            let device = types::Fd(namespace.device.as_raw_fd());
            for (first_block, expected) in [(blocks - 1, 0), (blocks, 0x80), (u64::MAX, 0x80)] {
                command.first_block = first_block;
                let entry = squeue::Entry128::command(device, &command, None).unwrap();
                // SAFETY: the bounce buffer has room for a block, and lives on.
                let status = unsafe { answer(&mut ring, &entry) }.unwrap();
                assert_eq!(status & 0x7ff, expected, "{status:#x} for block {first_block} of {blocks}");
            }
            assert!(Status(0x80).to_string().contains("LBA out of range"));
        }
    }
}
