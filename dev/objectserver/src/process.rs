//! Servers of others, in processes of their own.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long one may take until it listens.
const START: Duration = Duration::from_secs(60);

/// A server that listens on a port of this machine. It ends when this value is dropped.
pub(crate) struct ServerProcess {
    child: Child,
    address: SocketAddr,
}

impl ServerProcess {
    /// Starts the command that is made for an address, and waits until it listens there.
    ///
    /// # Errors
    /// Those of starting it, or what it says instead of listening.
    pub(crate) fn start(command: impl FnOnce(SocketAddr) -> Command) -> io::Result<ServerProcess> {
        // Another process may take the port in between; then the start fails, and says so.
        let address = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?;
        let mut command = command(address);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let since = Instant::now();
        while TcpStream::connect(address).is_err() {
            if child.try_wait()?.is_some() || since.elapsed() > START {
                let _ = child.kill();
                let output = child.wait_with_output()?;
                let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                return Err(io::Error::other(format!("it does not listen: {why}")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(ServerProcess { child, address })
    }

    /// The address at which it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The first of these programs that works, asked for its version.
pub(crate) fn working<'a>(programs: &[&'a str], version: &str) -> Option<&'a str> {
    programs.iter().copied().find(|program| {
        let asked = Command::new(program).arg(version).stdin(Stdio::null()).output();
        asked.is_ok_and(|output| output.status.success())
    })
}

/// The last line of what a program said.
pub(crate) fn last_line(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message").to_owned()
}
