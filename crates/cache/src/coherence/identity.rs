//! The identity of a file, by which it is recognized after a restart, also of the machine.
//!
//! ```text
//! file system: its UUID, or its number (f_fsid)    survives a restart, unlike a device number
//! file:        inode, birth time, generation       a reused inode has another generation
//! device:      compared within one boot only       two file systems may be copies, UUID included
//! mount:       stayed mounted                      then this kernel made all its times
//! ```
//! What a file system does not report is 0 for all of its files.
//!
//! Images that are built reproducibly share all of that: UUID, inodes, times. So after a new mount
//! of the file system, equal times are only a hint. Where anybody may have set them, they are not
//! even that ([`Proof`]).
//!
//! The unsafe code is two system calls for which rustix has no names. Their types are those that
//! the kernel fills.
#![allow(unsafe_code)]

use datapipes_core::{Error, Result, Ssd};
use rustix::fs::{AtFlags, StatxFlags};
use rustix::ioctl::{Getter, ioctl, opcode};

use super::outside::Look;

/// The bytes of an identity in a snapshot.
pub(crate) const BYTES: usize = 80;

/// The identity of a file among all files of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    system: [u8; 16],
    inode: u64,
    born_ns: i128,
    generation: u64,
    /// The boot for which the device number is valid.
    boot: [u8; 16],
    device: u64,
    /// The unique number of the mount within this boot (from kernel 6.8 on), or 0 where it is not
    /// available.
    mount: u64,
}

/// How well it is known that a file which looks the same is the same, with the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// It is another file, or may be.
    None,
    /// Its file system was mounted again, and a kernel made its times. Its bytes must be compared.
    Hint,
    /// Its file system stayed mounted.
    Mount,
}

/// File systems (by `f_type`) whose times the kernel makes: ext2 to ext4, XFS, Btrfs, F2FS, tmpfs.
/// In read-only images (EROFS, SquashFS, ISO 9660) the builder of the image makes them. On a
/// network file system or a FUSE file system another machine or a program makes them.
const KERNEL_MADE: [u32; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994];
/// The flag STATX_MNT_ID_UNIQUE.
const UNIQUE_MOUNT: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// The kernel's `struct fsuuid2`.
#[repr(C)]
struct Uuid {
    len: u8,
    bytes: [u8; 16],
}

/// The request FS_IOC_GETFSUUID (kernel 6.9).
type GetUuid = Getter<{ opcode::read::<Uuid>(0x15, 0) }, Uuid>;
/// The request FS_IOC_GETVERSION. The kernel fills the first four bytes.
type GetGeneration = Getter<{ opcode::read::<libc::c_long>(b'v', 1) }, [u32; 2]>;

impl Identity {
    pub(crate) fn of(ssd: &Ssd) -> Result<Identity> {
        let fd = ssd.file().cached_fd();
        let fail = |e: rustix::io::Errno| Error::os("look at", e.raw_os_error(), ssd.path().display().to_string());
        let stat = rustix::fs::fstat(fd).map_err(fail)?;
        // All of these are optional: a missing one is ignored when files are compared.
        let born_ns = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME)
            .ok()
            .filter(|x| x.stx_mask & StatxFlags::BTIME.bits() != 0)
            .map_or(0, |x| i128::from(x.stx_btime.tv_sec) * 1_000_000_000 + i128::from(x.stx_btime.tv_nsec));
        // SAFETY: the call's number says that it fills at most as many bytes as the type has, and
        // zeros are a value of the type.
        let generation = unsafe { ioctl(fd, GetGeneration::new()) }.map_or(0, |n| u64::from(n[0]));
        let id = rustix::fs::fstatvfs(fd).map_or(0, |fs| fs.f_fsid);
        // SAFETY: the number is made from the type, which is the kernel's.
        let system = match unsafe { ioctl(fd, GetUuid::new()) } {
            Ok(uuid) if uuid.len == 16 && uuid.bytes != [0; 16] => uuid.bytes,
            _ if id != 0 => beside(id, 0),
            // Without an id of its own it is named by its device number, which may change with the
            // next boot.
            _ => beside(stat.st_dev, u64::MAX),
        };
        let (inode, device) = (stat.st_ino, stat.st_dev);
        let mount = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, UNIQUE_MOUNT)
            .ok()
            .filter(|x| x.stx_mask & UNIQUE_MOUNT.bits() != 0)
            .map_or(0, |x| x.stx_mnt_id);
        Ok(Identity { system, inode, born_ns, generation, boot: boot(), device, mount })
    }

    /// Whether it is the same file, as far as can be known.
    pub(crate) fn is(&self, other: &Identity) -> bool {
        let of = |i: &Identity| (i.system, i.inode, i.born_ns, i.generation);
        of(self) == of(other) && (self.boot != other.boot || self.device == other.device)
    }

    /// How well it is known that the file, which looks as it did when it had the identity `other`,
    /// still has the same bytes.
    pub(crate) fn proof(&self, other: &Identity, ssd: &Ssd, look: &Look) -> Proof {
        let is_known_boot = self.boot == other.boot && self.boot != [0; 16];
        if !self.is(other) {
            Proof::None
        } else if is_known_boot && self.mount != 0 && self.mount == other.mount {
            Proof::Mount
        } else if ssd.file().file_system().is_some_and(|kind| KERNEL_MADE.contains(&kind))
            && !look.is_of_whole_seconds()
        {
            Proof::Hint
        } else {
            Proof::None
        }
    }

    pub(crate) fn to_bytes(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..16].copy_from_slice(&self.system);
        bytes[16..24].copy_from_slice(&self.inode.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.born_ns.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.generation.to_le_bytes());
        bytes[48..64].copy_from_slice(&self.boot);
        bytes[64..72].copy_from_slice(&self.device.to_le_bytes());
        bytes[72..].copy_from_slice(&self.mount.to_le_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; BYTES]) -> Identity {
        let half = |at: usize| std::array::from_fn(|i| bytes[at + i]);
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        Identity {
            system: half(0),
            inode: number(16),
            born_ns: i128::from_le_bytes(half(24)),
            generation: number(40),
            boot: half(48),
            device: number(64),
            mount: number(72),
        }
    }
}

fn beside(first: u64, second: u64) -> [u8; 16] {
    let mut both = [0; 16];
    both[..8].copy_from_slice(&first.to_le_bytes());
    both[8..].copy_from_slice(&second.to_le_bytes());
    both
}

/// Returns the number of this boot. It is zero where it is not available, and device numbers are
/// then compared.
fn boot() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).unwrap_or(0).to_be_bytes()
}

#[cfg(all(test, not(miri), not(shuttle)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_file_is_known_again_after_a_restart_and_is_no_other() {
        let paths = ["one", "two"].map(|n| {
            let path = std::env::temp_dir().join(format!("dp-identity-{}-{n}", std::process::id()));
            std::fs::write(&path, [7; 10]).unwrap();
            path
        });
        let [one, two] = paths.each_ref().map(|p| Identity::of(&Ssd::open(p).unwrap()).unwrap());
        assert!(one.is(&Identity::of(&Ssd::open(&paths[0]).unwrap()).unwrap()) && !one.is(&two));
        assert_eq!(Identity::from_bytes(&one.to_bytes()), one);
        // After a restart, devices have other numbers.
        let again = Identity { boot: [9; 16], device: one.device + 1, ..one };
        assert!(again.is(&one));
        // A copy of its file system is mounted beside it.
        assert!(!Identity { device: one.device + 1, ..one }.is(&one));
        // Another file reuses its inode.
        assert!(!Identity { generation: one.generation + 1, ..one }.is(&one));
        assert!(!Identity { born_ns: one.born_ns + 1, ..one }.is(&one));
        // The same mount is proof. With another mount, times that anybody may have set prove
        // nothing.
        let ssd = Ssd::open(&paths[0]).unwrap();
        let look = |nanoseconds: i128| Look {
            modified_ns: 7_000_000_000,
            changed_ns: 7_000_000_000 + nanoseconds,
            ..Look::default()
        };
        let mounted = Identity { mount: 7, boot: [9; 16], ..one };
        let anew = Identity { mount: 8, ..mounted };
        assert_eq!(mounted.proof(&mounted, &ssd, &look(0)), Proof::Mount);
        assert_eq!(anew.proof(&mounted, &ssd, &look(0)), Proof::None);
        assert_ne!(anew.proof(&mounted, &ssd, &look(1)), Proof::Mount);
        assert_ne!(Identity { boot: [8; 16], ..mounted }.proof(&mounted, &ssd, &look(1)), Proof::Mount);
        assert_ne!(Identity { mount: 0, ..one }.proof(&Identity { mount: 0, ..one }, &ssd, &look(1)), Proof::Mount);
        println!("{one:?}");
        paths.iter().for_each(|p| std::fs::remove_file(p).unwrap());
    }
}
