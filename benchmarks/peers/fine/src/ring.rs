//! Plain reads past the page cache by io_uring, written by hand: registered file, registered
//! buffers, one call for many.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use io_uring::{IoUring, opcode, types};

use crate::reader::{Outcome, Reader, Session};

/// The deepest queue.
pub const DEEPEST: usize = 256;

/// Reads the blocks of a file that hold what is asked for.
pub struct Direct {
    file: File,
    /// The smallest read.
    block: u64,
}

impl Direct {
    /// For items of `item` bytes, of which none crosses a block's border.
    pub fn open(path: &str, item: u64) -> Outcome<Direct> {
        let file = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path);
        let file = file.map_err(|e| format!("{path}: {e}"))?;
        let block = smallest_read(&file, item).ok_or_else(|| format!("{path}: no direct read of up to 4 KiB"))?;
        Ok(Direct { file, block })
    }

    /// The bytes of a read at the device.
    pub fn block(&self) -> u64 {
        self.block
    }

    pub fn ring(&self) -> Outcome<Ring> {
        Ring::new(&self.file, self.block as usize).map_err(|e| format!("io_uring: {e}"))
    }
}

impl Reader for Direct {
    fn session(&self) -> Outcome<Box<dyn Session + '_>> {
        Ok(Box::new(self.ring()?))
    }

    fn hits_by(&self) -> &'static str {
        "unknown"
    }

    fn notes(&self) -> Vec<(&'static str, f64)> {
        vec![("block_bytes", self.block as f64)]
    }

    fn warm_up(&self) -> Option<(usize, usize)> {
        Some((2048, 1))
    }
}

/// The smallest direct read that the device does and that holds an item, by trying: 512 bytes on
/// many disks, 4 KiB on others.
fn smallest_read(file: &File, item: u64) -> Option<u64> {
    #[repr(align(4096))]
    struct Page([u8; 4096]);
    let mut page = Page([0; 4096]);
    let sizes = [512, 1024, 2048, 4096].into_iter().filter(|size| *size as u64 >= item);
    let mut possible = sizes.filter(|size| file.read_at(&mut page.0[..*size], 0).is_ok());
    possible.next().map(|size| size as u64)
}

/// A ring and its buffers, of one thread.
pub struct Ring {
    ring: IoUring,
    buffers: *mut u8,
    layout: std::alloc::Layout,
    block: usize,
}

impl Ring {
    fn new(file: &File, block: usize) -> std::io::Result<Ring> {
        let ring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(DEEPEST as u32)?;
        ring.submitter().register_files(&[file.as_raw_fd()])?;
        let layout = std::alloc::Layout::from_size_align(DEEPEST * block, 4096).map_err(std::io::Error::other)?;
        // SAFETY: the layout has a size that is not zero.
        let buffers = unsafe { std::alloc::alloc_zeroed(layout) };
        let iovec = libc::iovec { iov_base: buffers.cast(), iov_len: layout.size() };
        // SAFETY: the buffers live until this value is dropped, after which the ring is gone.
        unsafe { ring.submitter().register_buffers(&[iovec])? };
        Ok(Ring { ring, buffers, layout, block })
    }

    /// Reads `len` bytes at each offset, none across a block's border; `done` gets its number and
    /// its bytes.
    pub fn read_all(
        &mut self,
        offsets: &[u64],
        len: usize,
        depth: usize,
        mut done: impl FnMut(usize, &[u8]),
    ) -> Outcome<()> {
        let (block, depth) = (self.block as u64, depth.min(DEEPEST));
        let mut free: Vec<usize> = (0..depth).rev().collect();
        let (mut next, mut left) = (0, offsets.len());
        while left > 0 {
            // A batch that fits is submitted and awaited by one call; a longer one keeps the queue
            // full.
            let ready = free.len() >= (depth / 8).max(1) || free.len() == depth;
            while next < offsets.len() && ready {
                let Some(slot) = free.pop() else { break };
                // SAFETY: the slot is free, so nobody else uses this part of the registered
                // buffers.
                let at = unsafe { self.buffers.add(slot * self.block) };
                let entry = opcode::ReadFixed::new(types::Fixed(0), at, self.block as u32, 0)
                    .offset(offsets[next] / block * block)
                    .build()
                    .user_data((next as u64) << 16 | slot as u64);
                // SAFETY: the buffer outlives the request: this function ends when all have
                // completed, or the process does.
                unsafe { self.ring.submission().push(&entry) }.map_err(|e| e.to_string())?;
                next += 1;
            }
            let wait = if offsets.len() <= depth { left } else { 1 };
            self.ring.submit_and_wait(wait).map_err(|e| format!("io_uring: {e}"))?;
            for entry in self.ring.completion() {
                let (number, slot) = ((entry.user_data() >> 16) as usize, (entry.user_data() & 0xffff) as usize);
                if entry.result() != self.block as i32 {
                    // Others are under way into these buffers: the end of the process is the safe
                    // way out.
                    eprintln!("a direct read of {} bytes gave {}", self.block, entry.result());
                    std::process::exit(1);
                }
                let within = (offsets[number] % block) as usize;
                // SAFETY: the kernel is done with this slot, and filled it.
                done(number, unsafe { std::slice::from_raw_parts(self.buffers.add(slot * self.block + within), len) });
                free.push(slot);
                left -= 1;
            }
        }
        Ok(())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; nothing is under way, for `read_all` waits for all.
        unsafe { std::alloc::dealloc(self.buffers, self.layout) };
    }
}

impl Session for Ring {
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Outcome<()> {
        let len = out.len();
        self.read_all(&[offset], len, 1, |_, bytes| out.copy_from_slice(bytes))
    }

    fn batch(&mut self, offsets: &[u64], len: usize, depth: usize, out: &mut [u8]) -> Outcome<()> {
        self.read_all(offsets, len, depth, |number, bytes| out[number * len..][..len].copy_from_slice(bytes))
    }
}
