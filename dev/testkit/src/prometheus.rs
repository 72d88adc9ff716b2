//! A Prometheus of a test's own, where the machine has one.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::PATIENCE;

/// A Prometheus that reads metrics of this machine four times a second, until it is dropped.
#[derive(Debug)]
pub struct Prometheus {
    child: Child,
    port: u16,
}

impl Prometheus {
    /// Starts one that asks a port; `None` where Prometheus is not installed, or its files cannot
    /// be written.
    pub fn start(folder: &Path, target: u16) -> Option<Prometheus> {
        let config = format!(
            "global:\n  scrape_interval: 250ms\nscrape_configs:\n- job_name: test\n  static_configs:\n  \
             - targets: ['127.0.0.1:{target}']\n"
        );
        std::fs::write(folder.join("prometheus.yml"), config).ok()?;
        let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|free| free.local_addr()).ok()?.port();
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", folder.join("prometheus.yml").display()));
        command.arg(format!("--storage.tsdb.path={}", folder.join("data").display()));
        command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
        Some(Prometheus { child, port })
    }

    /// The JSON that it answers to a query; `None` while it answers nothing.
    pub fn query(&self, query: &str) -> Option<String> {
        let encoded: String = query
            .bytes()
            .map(|b| if b.is_ascii_alphanumeric() { char::from(b).to_string() } else { format!("%{b:02X}") })
            .collect();
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        write!(stream, "GET /api/v1/query?query={encoded} HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
