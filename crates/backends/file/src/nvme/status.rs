//! The device's status codes (NVM Express, Base Specification, "Status Field"), as text and as
//! errors.

use std::fmt;

/// "Do not retry": the same command would fail again.
const DO_NOT_RETRY: u16 = 1 << 14;
/// How often a command is repeated that may succeed then, as the kernel does for its own.
const TRIES: u16 = 5;

/// A status other than success: the code in bits 7:0, its type in bits 10:8, and flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) u16);

impl Status {
    fn kind(self) -> u16 {
        self.0 >> 8 & 7
    }

    fn code(self) -> u16 {
        self.0 & 0xff
    }

    /// What the specification calls it.
    fn name(self) -> Option<&'static str> {
        Some(match (self.kind(), self.code()) {
            (0, 0x01) => "invalid command opcode",
            (0, 0x02) => "invalid field in command",
            (0, 0x04) => "data transfer error",
            (0, 0x05) => "commands aborted due to power loss",
            (0, 0x06) => "internal error",
            (0, 0x07) => "command abort requested",
            (0, 0x08) => "command aborted due to SQ deletion",
            (0, 0x0b) => "invalid namespace or format",
            (0, 0x13) => "PRP offset invalid",
            (0, 0x1c) => "sanitize failed",
            (0, 0x1d) => "sanitize in progress",
            (0, 0x20) => "namespace is write protected",
            (0, 0x21) => "command interrupted",
            (0, 0x22) => "transient transport error",
            (0, 0x80) => "LBA out of range",
            (0, 0x81) => "capacity exceeded",
            (0, 0x82) => "namespace not ready",
            (0, 0x83) => "reservation conflict",
            (0, 0x84) => "format in progress",
            (1, 0x80) => "conflicting attributes",
            (1, 0x81) => "invalid protection information",
            (1, 0x82) => "attempted write to read only range",
            (2, 0x80) => "write fault",
            (2, 0x81) => "unrecovered read error",
            (2, 0x82) => "end-to-end guard check error",
            (2, 0x83) => "end-to-end application tag check error",
            (2, 0x84) => "end-to-end reference tag check error",
            (2, 0x85) => "compare failure",
            (2, 0x86) => "access denied",
            (2, 0x87) => "deallocated or unwritten logical block",
            (3, 0x00) => "internal path error",
            (3, 0x01) => "asymmetric access persistent loss",
            (3, 0x02) => "asymmetric access inaccessible",
            (3, 0x03) => "asymmetric access transition",
            _ => return None,
        })
    }

    /// The errno whose kind of error it is: what the caller can do about it.
    pub(crate) fn errno(self) -> i32 {
        match (self.kind(), self.code()) {
            (0, 0x20) | (1, 0x82) => libc::EROFS,
            (0, 0x81) => libc::ENOSPC,
            (0, 0x83) => libc::EBUSY,
            (0, 0x01) => libc::EOPNOTSUPP,
            (2, 0x86) => libc::EACCES,
            _ => libc::EIO,
        }
    }

    /// Whether a command that failed so and was repeated `tries` times is to be repeated: where the
    /// device does not forbid it, and the reason may pass.
    pub(crate) fn may_be_repeated(self, tries: u16) -> bool {
        let passes = matches!((self.kind(), self.code()), (0, 0x07 | 0x08 | 0x21 | 0x22 | 0x82) | (3, _));
        self.0 & DO_NOT_RETRY == 0 && passes && tries < TRIES
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, code) = (self.kind(), self.code());
        write!(f, "NVMe status {kind:x}h/{code:02x}h")?;
        match (self.name(), kind) {
            (Some(name), _) => write!(f, " ({name})"),
            (None, 7) => write!(f, " (of the device's vendor)"),
            (None, _) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_says_what_it_is_and_what_can_be_done() {
        let read_error = Status(DO_NOT_RETRY | 0x281);
        assert_eq!(read_error.to_string(), "NVMe status 2h/81h (unrecovered read error)");
        assert_eq!((read_error.errno(), read_error.may_be_repeated(0)), (libc::EIO, false));
        assert_eq!(Status(0x020).errno(), libc::EROFS);
        assert_eq!(Status(0x081).errno(), libc::ENOSPC);
        assert_eq!(Status(0x77f).to_string(), "NVMe status 7h/7fh (of the device's vendor)");
        assert_eq!(Status(0x0f3).to_string(), "NVMe status 0h/f3h");
        assert!(Status(0x082).may_be_repeated(4) && !Status(0x082).may_be_repeated(5));
        assert!(!Status(DO_NOT_RETRY | 0x082).may_be_repeated(0) && !Status(0x080).may_be_repeated(0));
    }
}
