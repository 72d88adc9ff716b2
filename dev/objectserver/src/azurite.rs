//! The emulator of Azure's Blob Storage by its maker, `azurite`, which Node's `npm` installs.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process::{ServerProcess, last_line, working};

/// The version. A new one is another folder of the cache.
const VERSION: &str = "3.35.0";
/// The account that it has, and the account's key, which everybody knows.
const ACCOUNT: &str = "devstoreaccount1";
const KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
/// A signature of that key for requests past the client, which allows all until the year 2100.
const SAS: &str = "sv=2020-10-02&ss=b&srt=sco&sp=rwdlacup&se=2100-01-01T00%3A00%3A00Z&spr=https,http&sig=pYlYx5IZlbJJrdqRQfb1jtycAyr0GM%2F7Az0rakKXhEo%3D";

/// The server in a process of its own, over a folder. It ends when this value is dropped.
pub struct AzuriteServer(ServerProcess);

impl AzuriteServer {
    /// Returns the program, which is installed at the first call and kept in `cache`.
    ///
    /// # Errors
    /// Why there is none: no Node, no `npm`, no package.
    pub fn program(cache: &Path) -> Result<PathBuf, String> {
        let folder = cache.join(format!("azurite-{VERSION}"));
        let program = folder.join("node_modules/azurite/dist/src/blob/main.js");
        if program.exists() {
            return Ok(program);
        }
        let npm = working(&["npm"], "--version").ok_or("there is no npm to install it with")?;
        // Under its name only when all of it is there.
        let draft = cache.join(format!("azurite-{VERSION}-{}", std::process::id()));
        std::fs::create_dir_all(&draft).map_err(|e| format!("{}: {e}", draft.display()))?;
        let install = Command::new(npm)
            .args(["install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"])
            .arg(&draft)
            .arg(format!("azurite@{VERSION}"))
            .stdin(Stdio::null())
            .output()
            .map_err(|e| format!("{npm}: {e}"))?;
        if !install.status.success() {
            let _ = std::fs::remove_dir_all(&draft);
            return Err(format!("npm does not install it: {}", last_line(&install.stderr)));
        }
        // Another test may have been faster.
        if std::fs::rename(&draft, &folder).is_err() {
            let _ = std::fs::remove_dir_all(&draft);
        }
        Ok(program)
    }

    /// Starts it over a folder. A loose one takes, and does not look at, what it does not know: the
    /// checksums of requests. A strict one refuses them.
    ///
    /// # Errors
    /// Those of starting it, or what it says instead of listening.
    pub fn start(program: &Path, root: &Path, is_loose: bool) -> io::Result<AzuriteServer> {
        std::fs::create_dir_all(root)?;
        let process = ServerProcess::start(|address| {
            let mut command = Command::new("node");
            command.arg(program).args(["--silent", "--disableTelemetry", "--blobHost", "127.0.0.1"]);
            command.args(["--blobPort", &address.port().to_string(), "--location"]).arg(root);
            if is_loose {
                command.arg("--loose");
            }
            command
        })?;
        Ok(AzuriteServer(process))
    }

    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// What a client's environment says, at this address: that of the server, or of a proxy.
    pub fn settings_at(address: SocketAddr) -> Vec<(String, String)> {
        let endpoint = format!("http://{address}/{ACCOUNT}");
        let text = format!("AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={endpoint};");
        vec![("AZURE_STORAGE_CONNECTION_STRING".to_owned(), text)]
    }

    /// The same with a signature in place of the key.
    pub fn signed_settings(&self) -> Vec<(String, String)> {
        let text = format!("BlobEndpoint=http://{}/{ACCOUNT};SharedAccessSignature={SAS}", self.address());
        vec![("AZURE_STORAGE_CONNECTION_STRING".to_owned(), text)]
    }

    /// Makes a container.
    ///
    /// # Errors
    /// Those of the connection, and an answer that is no success.
    pub fn make_bucket(&self, bucket: &str) -> io::Result<()> {
        match self.ask("PUT", &format!("{bucket}?restype=container"))? {
            (201, _) => Ok(()),
            (status, body) => {
                Err(io::Error::other(format!("{status}: {}", String::from_utf8_lossy(&body).escape_debug())))
            }
        }
    }

    /// The bytes of an object, past the client.
    ///
    /// # Errors
    /// Those of the connection, and an answer that is no success.
    pub fn bytes(&self, bucket: &str, key: &str) -> io::Result<Vec<u8>> {
        match self.ask("GET", &format!("{bucket}/{key}"))? {
            (200, body) => Ok(body),
            (status, _) => Err(io::Error::other(format!("{bucket}/{key}: {status}"))),
        }
    }

    /// Whether there is an object.
    pub fn has(&self, bucket: &str, key: &str) -> bool {
        self.bytes(bucket, key).is_ok()
    }

    /// One request by hand: the status and the body of the answer.
    fn ask(&self, method: &str, path: &str) -> io::Result<(u16, Vec<u8>)> {
        let join = if path.contains('?') { '&' } else { '?' };
        let mut connection = TcpStream::connect(self.address())?;
        write!(
            connection,
            "{method} /{ACCOUNT}/{path}{join}{SAS} HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\n\
             x-ms-version: 2021-08-06\r\nConnection: close\r\n\r\n",
            self.address()
        )?;
        let mut answer = Vec::new();
        connection.read_to_end(&mut answer)?;
        let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap_or(answer.len());
        let head = String::from_utf8_lossy(answer.get(..end).unwrap_or(&[])).into_owned();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("no answer: {head}")))?;
        let body = answer.get(end + 4..).unwrap_or(&[]).to_vec();
        let is_chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
        Ok((status, if is_chunked { joined(&body) } else { body }))
    }
}

/// The bytes of a body in chunks.
fn joined(mut chunks: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(end) = chunks.windows(2).position(|bytes| bytes == b"\r\n") {
        let (len, rest) = chunks.split_at(end);
        let len = usize::from_str_radix(&String::from_utf8_lossy(len), 16).unwrap_or(0);
        let Some(chunk) = rest.get(2..2 + len).filter(|_| len > 0) else { break };
        bytes.extend_from_slice(chunk);
        chunks = rest.get(2 + len + 2..).unwrap_or(&[]);
    }
    bytes
}
