//! Descriptors of every kind that a process can have, and what their owner may do with them
//! afterwards.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create, open,
};

use super::Talk;

const LEN: u64 = 64 << 10;

fn memory(len: u64, seals: SealFlags) -> OwnedFd {
    let fd = memfd_create("bytes", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    // This is refused if the process may not make such long files.
    let _ = ftruncate(&fd, len);
    if (1..=8 << 20).contains(&len) {
        // Passed memory must be populated.
        let _ = fallocate(&fd, FallocateFlags::empty(), 0, len);
    }
    fcntl_add_seals(&fd, seals).unwrap();
    fd
}

fn opened(path: &Path, flags: OFlags) -> Option<OwnedFd> {
    open(path, flags | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::RUSR | Mode::WUSR).ok()
}

impl Talk<'_> {
    /// A file without a name, possibly opened again with other flags.
    fn file(&self, len: u64, flags: Option<OFlags>) -> Option<OwnedFd> {
        let file = opened(&self.world.dir, OFlags::RDWR | OFlags::TMPFILE)?;
        if len <= LEN {
            rustix::io::pwrite(&file, &[7; LEN as usize][..len as usize], 0).ok()?;
        } else {
            ftruncate(&file, len).ok()?;
        }
        let Some(flags) = flags else { return Some(file) };
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        open(path, flags | OFlags::CLOEXEC, Mode::empty()).ok()
    }

    /// Makes a descriptor. Even kinds are for memory, odd ones for files; zeros are valid ones.
    pub(super) fn descriptor(&mut self, kind: u8, which: usize) -> OwnedFd {
        let seals = SealFlags::SHRINK | SealFlags::GROW;
        let fd = match kind {
            0..100 if kind.is_multiple_of(2) => None,
            0..100 => self.file(LEN, None),
            // The same place again.
            100..140 => {
                self.passed.get(usize::from(kind) % self.passed.len().max(1)).and_then(|fd| fd.try_clone().ok())
            }
            140 | 142 => Some(memory(LEN, SealFlags::SHRINK)),
            144 | 146 => Some(memory(LEN, seals | SealFlags::WRITE)),
            148 => Some(memory(LEN, SealFlags::empty())),
            150 => Some(memory(0, seals)),
            152 => Some(memory(1 << 40, seals)),
            154 => Some(memory(LEN + 1, seals)),
            156 => Some(memory(8 << 20, seals)),
            141 => self.file(LEN, Some(OFlags::RDONLY)),
            143 => self.file(LEN, Some(OFlags::WRONLY)),
            145 => self.file(LEN, Some(OFlags::RDWR | OFlags::APPEND)),
            147 => self.file(LEN, Some(OFlags::PATH)),
            149 => self.file(LEN, Some(OFlags::RDWR | OFlags::DIRECT)),
            151 => self.file(1 << 40, None),
            153 => self.file(0, None),
            155 => Some(memory(LEN, SealFlags::GROW)),
            157 => Some(memory(LEN, SealFlags::empty())),
            158 => opened("/dev/zero".as_ref(), OFlags::RDWR),
            159 => opened("/dev/null".as_ref(), OFlags::RDWR),
            160 => opened(&self.world.dir, OFlags::RDONLY),
            161 => opened("/proc/self/mem".as_ref(), OFlags::RDWR),
            162 => rustix::pipe::pipe().ok().map(|(reader, _)| reader),
            163 => rustix::pipe::pipe().ok().map(|(_, writer)| writer),
            164 => self.open.get(which).and_then(|connection| connection.socket.try_clone().ok()),
            165 => self.open.get(which).and_then(|connection| connection.pipes.front()?.try_clone().ok()),
            166 => rustix::event::eventfd(1, rustix::event::EventfdFlags::CLOEXEC).ok(),
            167 => rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).ok(),
            168 => opened("/dev/ptmx".as_ref(), OFlags::RDWR | OFlags::NOCTTY),
            169 => {
                let fd = memory(LEN, seals);
                let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&fd, punch, 4096, 4096).ok().map(|()| fd)
            }
            _ if kind % 2 == 1 => self.file(LEN, None),
            _ => None,
        };
        fd.unwrap_or_else(|| memory(LEN, seals))
    }

    /// Changes a passed file, which still belongs to the client that passed it.
    pub(super) fn change_what_was_passed(&mut self) {
        let at = self.choices.below(self.passed.len());
        let what = self.choices.below(6);
        let number = self.choices.number();
        let Some(fd) = self.passed.get(at) else { return };
        let fd = fd.as_fd();
        // Each may be refused, by a seal or by the kind of file.
        match what {
            0 => drop(ftruncate(fd, number.min(1 << 41))),
            1 => drop(ftruncate(fd, 0)),
            2 => drop(fallocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, number.clamp(1, LEN))),
            3 | 4 => {
                let flags = [OFlags::APPEND, OFlags::NONBLOCK, OFlags::DIRECT, OFlags::empty()][number as usize % 4];
                let _ = rustix::fs::fcntl_setfl(fd, flags);
            }
            _ => drop(rustix::io::pwrite(fd, &[3; 4096], number.min(LEN))),
        }
    }
}
