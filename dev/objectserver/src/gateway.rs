//! A second S3 server, written by others in another language: `versitygw`, which Go's module client
//! builds. What only one server understands is no protocol.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::server::{KEY, S3Server, SECRET};

/// The module and its version. A new version is another folder of the cache.
const MODULE: &str = "github.com/versity/versitygw";
const VERSION: &str = "v1.8.0";
/// How long it may take until it listens.
const START: Duration = Duration::from_secs(30);

/// The server in a process of its own, over a folder. It ends when this value is dropped.
pub struct GatewayServer {
    child: Child,
    address: SocketAddr,
    root: PathBuf,
}

impl GatewayServer {
    /// Returns the program, which is built at the first call and kept in `cache`.
    ///
    /// # Errors
    /// Why there is none: no Go, no module, no build.
    pub fn program(cache: &Path) -> Result<PathBuf, String> {
        let folder = cache.join(format!("versitygw-{VERSION}"));
        let program = folder.join("versitygw");
        if program.exists() {
            return Ok(program);
        }
        // Beside the tools of the search path, where Go's own installer puts it.
        let go = ["go", "/usr/local/go/bin/go"].into_iter().find(|go| {
            let asked = Command::new(go).arg("version").stdin(Stdio::null()).output();
            asked.is_ok_and(|output| output.status.success())
        });
        let go = go.ok_or("there is no Go to build it with")?;
        std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let build = Command::new(go)
            .args(["install", "-trimpath", "-ldflags=-s -w", &format!("{MODULE}/cmd/versitygw@{VERSION}")])
            .env("GOBIN", &folder)
            .env("CGO_ENABLED", "0")
            .env("GOFLAGS", "-buildvcs=false")
            .current_dir(&folder)
            .stdin(Stdio::null())
            .output()
            .map_err(|e| format!("{go}: {e}"))?;
        if !build.status.success() {
            let text = String::from_utf8_lossy(&build.stderr);
            let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message").to_owned();
            return Err(format!("Go does not build it: {last}"));
        }
        Ok(program)
    }

    /// Starts it over a folder, whose folders are buckets.
    ///
    /// # Errors
    /// Those of starting it, or what it says instead of listening.
    pub fn start(program: &Path, root: &Path) -> io::Result<GatewayServer> {
        std::fs::create_dir_all(root)?;
        // Another process may take the port in between; then the start fails, and says so.
        let address = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?;
        let mut child = Command::new(program)
            .args(["--port", &address.to_string(), "--region", "us-east-1", "--quiet", "posix"])
            .arg(root)
            .env("ROOT_ACCESS_KEY", KEY)
            .env("ROOT_SECRET_KEY", SECRET)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
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
        Ok(GatewayServer { child, address, root: root.to_path_buf() })
    }

    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What a client's environment says: key, secret, region and endpoint.
    pub fn settings(&self) -> Vec<(String, String)> {
        S3Server::settings_at(self.address)
    }

    /// Makes a bucket.
    ///
    /// # Errors
    /// Those of making a folder.
    pub fn make_bucket(&self, bucket: &str) -> io::Result<()> {
        std::fs::create_dir_all(self.root.join(bucket))
    }

    /// The bytes of an object, past the protocol.
    ///
    /// # Errors
    /// Those of reading a file.
    pub fn bytes(&self, bucket: &str, key: &str) -> io::Result<Vec<u8>> {
        std::fs::read(self.root.join(bucket).join(key))
    }

    /// Whether there is an object.
    pub fn has(&self, bucket: &str, key: &str) -> bool {
        self.root.join(bucket).join(key).exists()
    }
}

impl Drop for GatewayServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
