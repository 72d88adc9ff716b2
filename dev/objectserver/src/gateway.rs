//! A second S3 server, written by others in another language: `versitygw`, which Go's module client
//! builds. What only one server understands is no protocol.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process::{ServerProcess, last_line, working};
use crate::server::{KEY, S3Server, SECRET};

/// The module and its version. A new version is another folder of the cache.
const MODULE: &str = "github.com/versity/versitygw";
const VERSION: &str = "v1.8.0";

/// The server in a process of its own, over a folder. It ends when this value is dropped.
pub struct GatewayServer {
    process: ServerProcess,
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
        let go = working(&["go", "/usr/local/go/bin/go"], "version").ok_or("there is no Go to build it with")?;
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
            return Err(format!("Go does not build it: {}", last_line(&build.stderr)));
        }
        Ok(program)
    }

    /// Starts it over a folder, whose folders are buckets.
    ///
    /// # Errors
    /// Those of starting it, or what it says instead of listening.
    pub fn start(program: &Path, root: &Path) -> io::Result<GatewayServer> {
        std::fs::create_dir_all(root)?;
        let process = ServerProcess::start(|address| {
            let mut command = Command::new(program);
            command
                .args(["--port", &address.to_string(), "--region", "us-east-1", "--quiet", "posix"])
                .arg(root)
                .env("ROOT_ACCESS_KEY", KEY)
                .env("ROOT_SECRET_KEY", SECRET);
            command
        })?;
        Ok(GatewayServer { process, root: root.to_path_buf() })
    }

    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.process.address()
    }

    /// What a client's environment says: key, secret, region and endpoint.
    pub fn settings(&self) -> Vec<(String, String)> {
        S3Server::settings_at(self.address())
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
