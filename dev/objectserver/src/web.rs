//! A small web server over a folder, with TLS if asked: what `http://` and `https://` read.
//!
//! Some servers are odd, and so are files of some names: `no-head` (a HEAD is refused), `zero-head`
//! (it says that there are no bytes), `umlaut` (a header is no ASCII).

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderValue, IF_MATCH, LAST_MODIFIED,
    RANGE,
};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::Notify;

use crate::certificate::ServerCertificate;

/// A web server. It stops when it is dropped.
pub struct WebServer {
    address: SocketAddr,
    stop: Arc<Notify>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl WebServer {
    /// Starts a server of the files in `root`, by TLS where it has a certificate.
    ///
    /// # Errors
    /// Those of the certificate, the port and the thread.
    pub fn start(root: &Path, certificate: Option<&ServerCertificate>) -> io::Result<WebServer> {
        let root: Arc<Path> = root.into();
        let tls = certificate.map(ServerCertificate::acceptor).transpose()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0)))?;
        let address = listener.local_addr()?;
        let stop = Arc::new(Notify::new());
        let stopped = stop.clone();
        let serve = async move {
            loop {
                let Ok((socket, _)) = listener.accept().await else { continue };
                let (root, tls) = (root.clone(), tls.clone());
                tokio::spawn(async move {
                    let service = service_fn(move |request| {
                        let root = root.clone();
                        async move { answer(&root, &request) }
                    });
                    let connection = hyper::server::conn::http1::Builder::new();
                    // A client that goes away, or does not trust the server, is no error of it.
                    match tls {
                        None => drop(connection.serve_connection(TokioIo::new(socket), service).await),
                        Some(tls) => {
                            if let Ok(socket) = tls.accept(socket).await {
                                drop(connection.serve_connection(TokioIo::new(socket), service).await);
                            }
                        }
                    }
                });
            }
        };
        let thread = std::thread::Builder::new().name("web-server".into()).spawn(move || {
            runtime.block_on(async move {
                futures_util::future::select(Box::pin(serve), Box::pin(stopped.notified())).await;
            });
            runtime.shutdown_timeout(Duration::from_millis(100));
        })?;
        Ok(WebServer { address, stop, thread: Some(thread) })
    }

    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for WebServer {
    fn drop(&mut self) {
        self.stop.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn empty(status: StatusCode) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = status;
    answer
}

fn answer(root: &Path, request: &Request<Incoming>) -> http::Result<Response<Full<Bytes>>> {
    let path: PathBuf = root.join(request.uri().path().trim_start_matches('/'));
    let Ok(bytes) = std::fs::read(&path) else { return Ok(empty(StatusCode::NOT_FOUND)) };
    let modified = std::fs::metadata(&path).and_then(|meta| meta.modified()).unwrap_or(UNIX_EPOCH);
    let nanos = modified.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let tag = format!("\"{:x}-{nanos:x}\"", bytes.len());
    if request.headers().get(IF_MATCH).is_some_and(|wanted| *wanted != *tag) {
        return Ok(empty(StatusCode::PRECONDITION_FAILED));
    }
    let is_head = request.method() == Method::HEAD;
    let is_odd = |what: &str| request.uri().path().contains(what);
    if is_head && is_odd("no-head") {
        return Ok(empty(StatusCode::METHOD_NOT_ALLOWED));
    }
    let whole = bytes.len();
    let range = request.headers().get(RANGE).filter(|_| !is_odd("no-range"));
    let range = range.and_then(|range| range_of(range, whole));
    let mut builder = Response::builder()
        .header(ETAG, tag)
        .header(ACCEPT_RANGES, "bytes")
        .header(LAST_MODIFIED, "Thu, 26 Nov 2026 00:00:00 GMT");
    let body = match range {
        None => Bytes::from(bytes),
        Some((first, end)) => {
            let range = format!("bytes {first}-{}/{whole}", end - 1);
            builder = builder.status(StatusCode::PARTIAL_CONTENT).header(CONTENT_RANGE, range);
            Bytes::from(bytes).slice(first..end)
        }
    };
    if is_odd("umlaut") {
        builder =
            builder.header(CONTENT_DISPOSITION, HeaderValue::from_bytes("attachment; filename=\"ä\"".as_bytes())?);
    }
    builder = builder.header(CONTENT_LENGTH, if is_head && is_odd("zero-head") { 0 } else { body.len() });
    builder.body(Full::new(if is_head { Bytes::new() } else { body }))
}

/// The range that is asked for, as its first byte and the one behind its last.
fn range_of(range: &HeaderValue, whole: usize) -> Option<(usize, usize)> {
    let (first, last) = range.to_str().ok()?.strip_prefix("bytes=")?.split_once('-')?;
    let (first, last) = (first.parse().ok()?, last.parse::<usize>().ok()?);
    (first <= last && first < whole).then(|| (first, last.saturating_add(1).min(whole)))
}
