//! The peers of the flavors: rings by hand, with registered files and buffers, set up before any
//! clock starts. The unsafe code pushes requests, whose buffers live in the same structure as the
//! ring and are used by one request at a time.

use std::os::fd::AsRawFd;
use std::time::Duration;

use datapipes::{Dram, Result, Span};
use io_uring::{IoUring, opcode, types};

use super::measuring::Random;
use super::{BLOCK, Scene};

/// Requests under way at most.
pub(crate) const DEPTH: u64 = 32;

/// Registers a ring's file and its buffers, a block for each slot.
fn registered(ring: &IoUring, scene: &Scene, slots: u64) -> Dram {
    let buffers = Dram::allocate((slots * BLOCK) as usize).unwrap();
    let vector = libc::iovec { iov_base: buffers.memory().address().cast(), iov_len: (slots * BLOCK) as usize };
    // SAFETY: whoever calls keeps the buffers as long as the ring, in one structure.
    unsafe { ring.submitter().register_buffers(&[vector]) }.unwrap();
    let fd = scene.ssd.file().direct_fd().unwrap().as_raw_fd();
    ring.submitter().register_files(&[fd]).unwrap();
    buffers
}

fn push(ring: &mut IoUring, buffers: &Dram, source: u64, slot: u64) {
    // SAFETY: slots are those that `registered` was given.
    let at = unsafe { buffers.memory().address().add((slot * BLOCK) as usize) };
    let entry = opcode::ReadFixed::new(types::Fixed(0), at, BLOCK as u32, 0).offset(source).build();
    // SAFETY: the slot's bytes are used by this request only, until it is done, and outlive the
    // ring; the file is registered.
    unsafe { ring.submission().push(&entry.user_data(slot)) }.unwrap();
}

/// A ring that is polled without system calls, with or without pauses. Such a ring cannot have
/// `DEFER_TASKRUN`, whose completions arrive in a system call.
pub(crate) struct Polled {
    ring: IoUring,
    buffers: Dram,
}

impl Polled {
    pub(crate) fn new(scene: &Scene) -> Polled {
        let ring = IoUring::new(32).unwrap();
        let buffers = registered(&ring, scene, 1);
        Polled { ring, buffers }
    }

    pub(crate) fn read(&mut self, span: Span, pause: Option<Duration>) -> Result<()> {
        push(&mut self.ring, &self.buffers, span.source, 0);
        self.ring.submit().unwrap();
        loop {
            if let Some(done) = self.ring.completion().next() {
                assert_eq!(done.result(), BLOCK as i32);
                return Ok(());
            }
            match pause {
                Some(pause) => std::thread::sleep(pause),
                None => std::hint::spin_loop(),
            }
        }
    }
}

/// A ring that waits in the kernel, at its best setting: one thread, completions by the call that
/// waits for them. Kernels before 6.1 have no such setting; there it is a plain one.
pub(crate) struct ByHand {
    ring: IoUring,
    buffers: Dram,
    free: Vec<u64>,
}

impl ByHand {
    pub(crate) fn new(scene: &Scene, slots: u64) -> ByHand {
        let best = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(DEPTH as u32);
        let ring = best.or_else(|_| IoUring::new(DEPTH as u32)).unwrap();
        let buffers = registered(&ring, scene, slots);
        ByHand { ring, buffers, free: (0..slots).collect() }
    }

    pub(crate) fn read(&mut self, span: Span) -> Result<()> {
        push(&mut self.ring, &self.buffers, span.source, 0);
        self.ring.submit_and_wait(1).unwrap();
        let done = self.ring.completion().next().unwrap();
        assert_eq!(done.result(), BLOCK as i32);
        Ok(())
    }

    /// Keeps all slots under way; each wait is for so many completions.
    pub(crate) fn read_many(&mut self, scene: &Scene, reads: u64, at_once: u64) -> Result<()> {
        let (mut started, mut done, mut random) = (0, 0, Random(0x5eed));
        while done < reads {
            while started < reads
                && let Some(slot) = self.free.pop()
            {
                push(&mut self.ring, &self.buffers, scene.span(&mut random, slot).source, slot);
                started += 1;
            }
            self.ring.submit_and_wait(at_once.min(started - done) as usize).unwrap();
            for answer in self.ring.completion() {
                assert_eq!(answer.result(), BLOCK as i32);
                self.free.push(answer.user_data());
                done += 1;
            }
        }
        Ok(())
    }
}
