//! The conversation with one client, in a thread of its own, until the client or the export ends.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use datapipes_core::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::exports::{ExportState, ExporterState};
use super::holder::{HolderPeer, HolderSpec};
use super::holder_process::HolderProcess;
use crate::control::messages::{ClientAsk, EndReason, ExportFacts, ExporterAnswer};
use crate::control::noise::SealedStream;
use crate::control::settings::{RemoteRights, RemoteTransport, ucx_settings};
use crate::control::wire::{CONVERSATION, ControlStream};
use crate::direct::peer::peer_number;

/// How long a client that was told of the end may take to let go of the memory.
const FAREWELL: Duration = Duration::from_secs(10);

/// Serves a client.
pub(super) fn serve(exporter: &ExporterState, socket: OwnedFd, is_tcp: bool) -> Result<()> {
    let until = Instant::now() + CONVERSATION;
    let stranger = exporter.strangers.enter(&socket)?;
    #[cfg_attr(not(feature = "tls"), allow(unused_mut))]
    let mut stream = ControlStream::over(socket, is_tcp)?;
    #[cfg(feature = "tls")]
    stream.secure(&exporter.options.network, false, until)?;
    let local = stream.local_ip();
    let key_of = |number: &_| exporter.exports.lock().get(number).map(|export| export.key.clone());
    let (mut client, number) = SealedStream::accept(stream, key_of, until)?;
    drop(stranger);
    let ask = ClientAsk::from_bytes(&client.receive(until)?)?;
    let Some(_place) = exporter.take_place() else {
        let why =
            format!("{} clients use its exports, as many as it lets (`max_clients`)", exporter.options.max_clients);
        return client.send(&ExporterAnswer::Refused(why).to_bytes(), until);
    };
    // The lock is let go before anything else.
    let export = exporter.exports.lock().get(&number).cloned();
    let Some(export) = export else {
        return client.send(&ExporterAnswer::Refused("the export was revoked".into()).to_bytes(), until);
    };
    let transport = exporter.options.network.transport;
    let facts = ExportFacts { len: export.len as u64, rights: export.rights, transport };
    if ask == ClientAsk::Facts {
        return client.send(&ExporterAnswer::Facts(facts).to_bytes(), until);
    }
    let Some(in_use) = export.begin() else {
        return client.send(&ExporterAnswer::Refused("the export was revoked".into()).to_bytes(), until);
    };
    let peer = match ask {
        ClientAsk::Direct => number_of(&client, transport).map(|client| HolderPeer::Kernel { client }),
        _ => ucx_settings(&exporter.options.network, local, "connect").map(HolderPeer::Ucx),
    };
    let held = peer.and_then(|peer| start_holder(exporter, &export, facts, peer, client.stream.as_fd()));
    let (mut holder, answer) = match held {
        Ok(held) => held,
        Err(e) => {
            drop(in_use);
            return client.send(&ExporterAnswer::Refused(format!("no holder: {e}")).to_bytes(), until);
        }
    };
    let answered = client.send(&answer.to_bytes(), Instant::now() + CONVERSATION);
    let end = answered.and_then(|()| wait_for_end(&client, &holder, &export));
    // The memory is out of reach before anybody hears of it.
    holder.end();
    drop(in_use);
    if let Some(reason) = end? {
        client.send(&reason.to_bytes(), Instant::now() + CONVERSATION)?;
        if ask == ClientAsk::Direct {
            // Until the client has let go, or had time to, no other process gets the number by
            // which it calls the holder.
            client.stream.wait_for_end(Instant::now() + FAREWELL);
        }
    }
    drop(holder);
    Ok(())
}

/// The number of a client that the kernel lets reach a holder.
fn number_of(client: &SealedStream, transport: RemoteTransport) -> Result<i32> {
    let number = peer_number(client.stream.as_fd()).filter(|_| transport == RemoteTransport::SharedMemory);
    number.ok_or_else(|| {
        let why = "the kernel copies only between processes of this machine, over a Unix socket";
        Error::new(ErrorKind::Unavailable, "export", why)
    })
}

fn start_holder(
    exporter: &ExporterState,
    export: &ExportState,
    facts: ExportFacts,
    peer: HolderPeer,
    client: BorrowedFd<'_>,
) -> Result<(HolderProcess, ExporterAnswer)> {
    let spec = HolderSpec {
        at: export.at as u64,
        len: facts.len,
        rights: facts.rights,
        transport: facts.transport,
        peer,
        exporter: std::process::id(),
    };
    let read_only;
    let memory = match export.rights {
        RemoteRights::ReadWrite => export.memory.writable(),
        RemoteRights::Read => {
            read_only = export.memory.read_only()?;
            read_only.as_fd()
        }
    };
    let (holder, answer) = HolderProcess::start(&exporter.options.program, &spec, memory, client)?;
    match &answer {
        ExporterAnswer::Memory(said, _) | ExporterAnswer::Direct(said, _) if *said == facts => Ok((holder, answer)),
        _ => Err(Error::new(ErrorKind::Corrupt, "export", "a holder that holds something else")),
    }
}

/// Waits until the client goes (`None`), the export is revoked, or the holder ends.
fn wait_for_end(client: &SealedStream, holder: &HolderProcess, export: &ExportState) -> Result<Option<EndReason>> {
    loop {
        let mut fds = [
            PollFd::new(&export.ended, PollFlags::IN),
            PollFd::new(holder, PollFlags::IN),
            // A client says nothing more: its end is all that comes.
            PollFd::from_borrowed_fd(client.stream.as_fd(), PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(Error::os("export", e.raw_os_error(), "a client's events")),
        }
        let [revoked, ended, gone] = fds.map(|fd| !fd.revents().is_empty());
        match (revoked, ended, gone) {
            (true, _, _) => return Ok(Some(EndReason::Revoked)),
            (_, true, _) => return Ok(Some(EndReason::HolderEnded)),
            (_, _, true) => return Ok(None),
            _ => {}
        }
    }
}
