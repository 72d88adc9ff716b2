//! Systemd's journal by its native protocol: a datagram is an entry, and each of its lines a field
//! (<https://systemd.io/JOURNAL_NATIVE_PROTOCOL>).

use std::fmt::Write as _;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sendto, socket_with};

use super::log_event::{LogEvent, LogPriority, LoggedClient};

/// Where the journal listens.
const SOCKET: &str = "/run/systemd/journal/socket";
/// A variable that names another socket, for a journal of a namespace, or a test.
const SOCKET_VARIABLE: &str = "DATAPIPES_JOURNAL";

/// The journal's socket.
pub(super) struct Journal {
    socket: OwnedFd,
    address: SocketAddrUnix,
}

impl Journal {
    /// The journal, where standard error goes to it: `JOURNAL_STREAM` has the device and inode of
    /// its stream. A program may have sent standard error elsewhere since.
    pub(super) fn of_standard_error() -> Option<Journal> {
        let named = std::env::var("JOURNAL_STREAM").ok()?;
        let stat = rustix::fs::fstat(std::io::stderr()).ok()?;
        if named != format!("{}:{}", stat.st_dev, stat.st_ino) {
            return None;
        }
        let path = std::env::var_os(SOCKET_VARIABLE).unwrap_or_else(|| SOCKET.into());
        let address = SocketAddrUnix::new(path.as_encoded_bytes()).ok()?;
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()?;
        Some(Journal { socket, address })
    }

    /// Sends an entry. False where the journal does not take it now: it may be absent, busy, or the
    /// entry too long for it.
    pub(super) fn send(&self, line: &JournalLine<'_>) -> bool {
        let text = line.fields();
        // A journal that does not read may not hold up the service.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendto(&self.socket, text.as_bytes(), flags, &self.address) == Ok(text.len())
    }
}

/// An entry of the journal.
pub(super) struct JournalLine<'a> {
    pub(super) priority: LogPriority,
    pub(super) event: Option<LogEvent>,
    pub(super) client: Option<LoggedClient>,
    pub(super) message: &'a str,
}

impl JournalLine<'_> {
    /// The fields, a line each. Where a value has lines itself, the protocol wants its length in
    /// binary; ours have none, and what comes from outside is put on one.
    fn fields(&self) -> String {
        let message = self.message.replace('\n', " ");
        let mut text = format!("MESSAGE={message}\nPRIORITY={}\nSYSLOG_IDENTIFIER=dpiped\n", self.priority.number());
        // Writing to a String cannot fail.
        if let Some(event) = self.event {
            let _ = writeln!(text, "MESSAGE_ID={}\nDATAPIPES_EVENT={event:?}", event.message_id());
        }
        if let Some(LoggedClient { number, peer }) = self.client {
            let _ = writeln!(text, "DATAPIPES_CLIENT={number}");
            if let Some(peer) = peer {
                let _ = writeln!(text, "DATAPIPES_CLIENT_UID={}\nDATAPIPES_CLIENT_PID={}", peer.uid, peer.pid);
            }
        }
        text
    }
}
