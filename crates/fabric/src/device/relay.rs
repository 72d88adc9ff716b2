//! Relaying blocks from one channel to another. The application does this for devices that do not
//! talk to each other, and the resource-side CPU does it for the application.

use datapipes_core::threads;
use datapipes_core::{Error, ErrorKind, Result};

use super::{Body, DeviceChannels};
use crate::channel::{BlockOutcome, Patience, Reply};
use crate::transport::{Receiver, Sender};

/// Relays blocks until the sender closes. Returns the numbers of blocks and bytes. It replies to a
/// block when it was sent on, and to an end of stream when everything downstream is done. A later
/// failure goes upstream with the next reply. Bytes are copied once, from memory to memory, and not
/// looked at. It ignores the patience of both ends and waits until a channel ends.
///
/// # Errors
/// The error that ended a channel, after it was reported upstream.
pub fn relay(receiver: &mut Receiver, sender: &mut Sender) -> Result<(u64, u64)> {
    receiver.set_patience(Patience::UNTIL_ENDED);
    sender.set_patience(Patience::UNTIL_ENDED);
    sender.relay_failures();
    let (mut blocks, mut bytes) = (0, 0);
    loop {
        let block = match receiver.receive() {
            Ok(block) => block,
            Err(e) if e.kind() == ErrorKind::Busy => continue,
            Err(e) if e.kind() == ErrorKind::EndOfFile => return Ok((blocks, bytes)),
            Err(e) => return Err(e),
        };
        let (head, len) = (block.head(), block.len() as u64);
        let sent = sender.forward(&block, head).and_then(|()| if head.end { sender.drain() } else { Ok(Reply::DONE) });
        match sent {
            Ok(reply) => block.reply(sender.take_failure().unwrap_or(reply))?,
            Err(e) => {
                block.reply(Reply { outcome: BlockOutcome::of_error(&e), word: 0 })?;
                return Err(e);
            }
        }
        blocks += 1;
        bytes += len;
    }
}

/// The resource-side CPU: the n-th inlet is relayed to the n-th outlet, with a thread for each
/// pair.
pub(super) struct Hub;

impl Body for Hub {
    fn run(&mut self, stage: &mut DeviceChannels<'_>) -> Result<()> {
        if stage.inlets.len() != stage.outlets.len() {
            let context = format!("{} inlets to {} outlets", stage.inlets.len(), stage.outlets.len());
            return Err(Error::new(ErrorKind::InvalidInput, "relay", context));
        }
        let pairs = stage.inlets.drain(..).flatten().zip(stage.outlets.drain(..));
        std::thread::scope(|scope| {
            let (mut threads, mut outcome) = (Vec::new(), Ok(()));
            for (mut receiver, mut sender) in pairs {
                let carry = move || relay(&mut receiver, &mut sender);
                match threads::spawn_scoped(scope, "relay", carry) {
                    Ok(thread) => threads.push(thread),
                    // Its ends are dropped with it, so both neighbours learn it at once.
                    Err(e) => outcome = Err(e.within("a channel of a relay")),
                }
            }
            for thread in threads {
                let done =
                    thread.join().unwrap_or_else(|_| Err(Error::new(ErrorKind::System, "relay", "a thread panicked")));
                outcome = outcome.and(done.map(|_| ()));
            }
            outcome
        })
    }
}
