//! Messages to the service manager (`sd_notify`), and the watchdog that it may keep.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use datapipes_core::Result;
use datapipes_service::server::{LogPriority, ProbeOutcome, ServiceLog, ServiceProbe};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sendto, socket_with};

/// How often the manager is told how the service is, where it keeps no watchdog.
const EVERY: Duration = Duration::from_secs(10);

/// The service manager, if there is one.
pub(crate) struct ServiceManager {
    socket: OwnedFd,
    address: SocketAddrUnix,
}

impl ServiceManager {
    /// The one that `NOTIFY_SOCKET` names. A name that no socket can have is none.
    pub(crate) fn find() -> Option<ServiceManager> {
        let name = std::env::var_os("NOTIFY_SOCKET")?;
        let name = name.as_encoded_bytes();
        let address = match name.strip_prefix(b"@") {
            Some(name) => SocketAddrUnix::new_abstract_name(name),
            None => SocketAddrUnix::new(name),
        };
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
        Some(ServiceManager { socket: socket.ok()?, address: address.ok()? })
    }

    /// Sends it a message. Errors are ignored: it finds out by itself that it hears nothing.
    pub(crate) fn tell(&self, what: &str) {
        let _ = sendto(&self.socket, what.as_bytes(), SendFlags::NOSIGNAL, &self.address);
    }

    /// Tells it how the service is until `end` is closed. While the manager keeps a watchdog, that
    /// is told to wait only after the service has proved that it serves: a service that is stuck
    /// is started again.
    pub(crate) fn keep_told(&self, mut probe: ServiceProbe, log: &ServiceLog, end: &Receiver<()>) {
        let watchdog = watchdog_time();
        // Three tries, so that a machine under load does not lose a service that is only slow.
        let every = watchdog.map_or(EVERY, |time| time / 3);
        let mut was_well = true;
        while end.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
            let found = probe.check(every);
            if let Err(e) = &found
                && was_well
            {
                log.line_of(LogPriority::Error, format_args!("does not serve: {e}"));
            }
            was_well = found.is_ok();
            self.tell(&message(watchdog.is_some(), &found));
        }
    }
}

fn message(watched: bool, found: &Result<ProbeOutcome>) -> String {
    match found {
        Ok(ProbeOutcome { clients, under_way, .. }) => {
            let alive = if watched { "WATCHDOG=1\n" } else { "" };
            format!("{alive}STATUS=Serves {clients} clients, {under_way} transfers under way")
        }
        // A message ends a value at the end of its line.
        Err(e) => format!("STATUS=Does not serve: {}", e.to_string().replace('\n', " ")),
    }
}

/// The time after which the manager's watchdog ends this process, if it keeps one
/// (sd_watchdog_enabled(3)).
fn watchdog_time() -> Option<Duration> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>());
    match number("WATCHDOG_PID") {
        Some(Ok(pid)) if pid == u64::from(std::process::id()) => {}
        None => {}
        Some(_) => return None,
    }
    let micros = number("WATCHDOG_USEC")?.ok().filter(|micros| *micros > 0)?;
    Some(Duration::from_micros(micros))
}
