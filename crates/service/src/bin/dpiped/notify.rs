//! Messages to the service manager (`sd_notify`).

use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sendto, socket_with};

/// Sends a message to the service manager, if there is one. Errors are ignored.
pub(crate) fn tell(what: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let name = name.as_encoded_bytes();
    let address = match name.strip_prefix(b"@") {
        Some(name) => SocketAddrUnix::new_abstract_name(name),
        None => SocketAddrUnix::new(name),
    };
    let Ok(address) = address else { return };
    if let Ok(socket) = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None) {
        let _ = sendto(&socket, what.as_bytes(), SendFlags::NOSIGNAL, &address);
    }
}
