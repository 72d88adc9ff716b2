//! Connecting to a Unix socket, within a time. Where more clients wait than the listener's queue
//! holds, the kernel keeps a caller that blocks for ever: an exporter that was stopped, or a child
//! of it that kept the socket, accepts nobody.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// The first and the longest pause until the queue is tried again: nothing tells when it has room.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const MAX_PAUSE: Duration = Duration::from_millis(100);

/// Connects to the socket at a path. The connection does not block.
///
/// # Errors
/// Those of connecting; `TimedOut` where the listener has accepted nobody by then.
pub(crate) fn connect_by(path: &Path, until: Instant) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let mut pause = FIRST_PAUSE;
    loop {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        match connect(&socket, &address) {
            Ok(()) => return Ok(socket),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    let why = "more clients wait there than its queue holds, and none is let in";
                    return Err(io::Error::new(io::ErrorKind::TimedOut, why));
                }
                std::thread::sleep(pause.min(left));
                pause = pause.saturating_mul(2).min(MAX_PAUSE);
            }
            Err(e) => return Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{bind, listen};

    #[test]
    fn a_full_queue_is_an_error_in_time() {
        // Where it is not the time that ends a call, it may take any time on a busy machine.
        let far = || Instant::now() + Duration::from_secs(100);
        let path = std::env::temp_dir().join(format!("datapipes-local-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&listener, 0).unwrap();
        datapipes_testkit::bounded("a full queue is an error in time", {
            let path = path.clone();
            move || {
                let soon = || Instant::now() + Duration::from_millis(50);
                // One fits in the queue.
                let first = connect_by(&path, far()).unwrap();
                assert_eq!(connect_by(&path, soon()).unwrap_err().kind(), io::ErrorKind::TimedOut);
                drop(first);
            }
        });
        drop(listener);
        assert_eq!(connect_by(&path, far()).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(connect_by(&path, far()).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
