//! Waiting for the next block of any of several channels (fan-in).

use datapipes_core::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;

use super::{Block, Receiver, Source};
use crate::channel::bell;
use crate::channel::ring::controller_gone;
use crate::channel::{Patience, Waiting};

/// The most channels that one thread can wait for at once: the kernel accepts 128 words, and each
/// channel has three.
pub const MAX_INLETS: usize = 42;

/// Waits for a block of any of the receivers. It looks first at the one after `last`, so that no
/// receiver starves. Returns the index of the receiver, and its block or the error that ended its
/// channel (`EndOfFile` where its sender closed).
///
/// # Errors
/// `InvalidInput` for no receivers or more than [`MAX_INLETS`]. `Unsupported` for a mixture of
/// shared memory and sockets. `Busy` when the patience is over. `Unavailable` where the controller
/// ended.
pub fn receive_any(
    receivers: &mut [Option<Receiver>],
    last: usize,
    patience: Patience,
) -> Result<(usize, Result<Block>)> {
    let count = receivers.len();
    let open = receivers.iter().flatten().count();
    if open == 0 || open > MAX_INLETS {
        return Err(Error::new(ErrorKind::InvalidInput, "receive", format!("from {open} channels")));
    }
    let mut waiting = Waiting::new(patience);
    loop {
        let told = |sleeping| receivers.iter().flatten().for_each(|r| r.inlet.say_sleeping(sleeping));
        told(true);
        // This is announced before the last look, so that a later sender wakes this thread. A
        // revocation between the look and the sleep is noticed when the slice ends.
        let found = look(receivers, (last + 1) % count);
        let slept = if found.is_none() { sleep(receivers, &mut waiting) } else { Ok(()) };
        receivers.iter().flatten().for_each(|r| r.inlet.say_sleeping(false));
        if let Some(found) = found {
            return Ok(found);
        }
        slept?;
    }
}

fn look(receivers: &mut [Option<Receiver>], first: usize) -> Option<(usize, Result<Block>)> {
    let count = receivers.len();
    for at in (0..count).map(|i| (first + i) % count) {
        match receivers[at].as_mut().map(|r| r.inlet.poll_block()) {
            Some(Ok(Some(block))) => return Some((at, Ok(block))),
            Some(Err(e)) => return Some((at, Err(e))),
            Some(Ok(None)) | None => {}
        }
    }
    None
}

fn sleep(receivers: &[Option<Receiver>], waiting: &mut Waiting) -> Result<()> {
    let Some(slice) = waiting.slice() else { return Err(waiting.over("receive", "no block came on any channel")) };
    let (mut words, mut descriptors, mut state, mut alive) = (Vec::new(), Vec::new(), None, None);
    for receiver in receivers.iter().flatten() {
        match receiver.inlet.event().0 {
            Source::Words(watches, page, lives) => {
                words.extend(watches);
                (state, alive) = (Some(page), Some(lives));
            }
            Source::Descriptor(fd, lives) => {
                descriptors.push(fd);
                alive = lives.or(alive);
            }
        }
    }
    match (state, descriptors.is_empty()) {
        (Some(state), true) => bell::wait_any(&words, state, slice),
        (None, false) => {
            let mut polled: Vec<_> = descriptors.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            let limit = Timespec { tv_sec: slice.as_secs() as i64, tv_nsec: slice.subsec_nanos().into() };
            match poll(&mut polled, Some(&limit)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(Error::os("receive", e.raw_os_error(), "waiting for several sockets")),
            }
        }
        _ => {
            return Err(Error::new(ErrorKind::Unsupported, "receive", "from shared memory and sockets at once")
                .with_advice("give each transport a thread of its own"));
        }
    }
    match alive {
        Some(alive) if !alive() => Err(controller_gone("receive")),
        _ => Ok(()),
    }
}
