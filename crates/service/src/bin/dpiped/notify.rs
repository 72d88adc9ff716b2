//! Messages to the service manager (`sd_notify`), and the watchdog that it may keep.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use datapipes_core::Result;
use datapipes_service::server::{LogEvent, ProbeOutcome, ServiceLog, ServiceProbe};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sendto, socket_with};

/// How often the manager is told how the service is, where it keeps no watchdog.
const EVERY: Duration = Duration::from_secs(10);

/// The shortest time between two probes, each of which makes a pipe and copies by it. A watchdog
/// that is shorter than three of these cannot be kept.
const MIN_EVERY: Duration = Duration::from_millis(100);
/// The least time that a probe has: one that cannot be met would be found, not the service's state.
const MIN_PATIENCE: Duration = Duration::from_secs(1);

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
        // A manager that does not read its socket may not hold up the service, nor its end.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let _ = sendto(&self.socket, what.as_bytes(), flags, &self.address);
    }

    /// Tells it how the service is until `end` is closed. While the manager keeps a watchdog, that
    /// is told to wait only after the service has proved that it serves: a service that is stuck
    /// is started again.
    pub(crate) fn keep_told(&self, mut probe: ServiceProbe, log: &ServiceLog, end: &Receiver<()>) {
        let watchdog = watchdog_time();
        // Three tries, so that a machine under load does not lose a service that is only slow.
        let every = watchdog.map_or(EVERY, |time| (time / 3).max(MIN_EVERY));
        let (mut was_well, mut silent_until) = (true, None);
        while end.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
            let found = probe.check(every.max(MIN_PATIENCE));
            let now = Instant::now();
            if let Err(e) = &found
                && was_well
                && silent_until.is_none_or(|until| until <= now)
            {
                log.event(LogEvent::NotServing, format_args!("does not serve: {e}"));
                silent_until = Some(now + EVERY);
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
