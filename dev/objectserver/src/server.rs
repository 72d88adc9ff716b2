//! A server on a port of this machine, with its own thread.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use s3s::Body;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use tokio::net::TcpListener;
use tokio::sync::Notify;

use crate::certificate::ServerCertificate;
use crate::google;
use crate::store::{CheckedStore, StoreState};

/// The key that the server takes.
pub(crate) const KEY: &str = "test-key-id";
/// Its secret, which no message may contain.
pub(crate) const SECRET: &str = "test-secret-that-nobody-prints";

/// How requests are to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    S3,
    Google,
}

/// An S3 server over a folder. It stops when it is dropped.
pub struct S3Server {
    address: SocketAddr,
    root: PathBuf,
    state: Arc<StoreState>,
    stop: Arc<Notify>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl S3Server {
    /// The secret of the key, for tests that look for it where it must not be.
    pub const SECRET: &str = SECRET;

    /// Starts a server whose buckets are the folders in `root`.
    ///
    /// # Errors
    /// Those of the folder, the port and the thread.
    pub fn start(root: &Path) -> io::Result<S3Server> {
        S3Server::start_with(root, None)
    }

    /// As [`start`](Self::start), by TLS where it has a certificate.
    ///
    /// # Errors
    /// As [`start`](Self::start), and those of the certificate.
    pub fn start_with(root: &Path, certificate: Option<&ServerCertificate>) -> io::Result<S3Server> {
        S3Server::serve(root, certificate, Protocol::S3)
    }

    /// As [`start`](Self::start), with the protocol of Google.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub(crate) fn start_as_google(root: &Path) -> io::Result<S3Server> {
        S3Server::serve(root, None, Protocol::Google)
    }

    fn serve(root: &Path, certificate: Option<&ServerCertificate>, protocol: Protocol) -> io::Result<S3Server> {
        let tls = certificate.map(ServerCertificate::acceptor).transpose()?;
        std::fs::create_dir_all(root)?;
        let state = Arc::new(StoreState::default());
        let store = CheckedStore::new(root, state.clone()).map_err(io::Error::other)?;
        let mut builder = S3ServiceBuilder::new(store);
        if protocol == Protocol::S3 {
            builder.set_auth(SimpleAuth::from_single(KEY, SECRET));
        }
        let service = builder.build();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0)))?;
        let address = listener.local_addr()?;
        let stop = Arc::new(Notify::new());
        let stopped = stop.clone();
        let serve = async move {
            loop {
                let Ok((socket, _)) = listener.accept().await else { continue };
                let _ = socket.set_nodelay(true);
                let (service, tls) = (service.clone(), tls.clone());
                tokio::spawn(async move {
                    let service = service_fn(move |request: http::Request<Incoming>| {
                        let request = request.map(Body::from);
                        let service = service.clone();
                        async move {
                            match protocol {
                                Protocol::S3 => service.call(request).await,
                                Protocol::Google => google::answer(&service, request).await,
                            }
                        }
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
        let thread = std::thread::Builder::new().name("s3-server".into()).spawn(move || {
            runtime.block_on(async move {
                futures_util::future::select(Box::pin(serve), Box::pin(stopped.notified())).await;
            });
            runtime.shutdown_timeout(Duration::from_millis(100));
        })?;
        Ok(S3Server { address, root: root.to_path_buf(), state, stop, thread: Some(thread) })
    }

    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What a client's environment says: key, secret, region and endpoint.
    pub fn settings(&self) -> Vec<(String, String)> {
        S3Server::settings_at(self.address)
    }

    /// The same, with a proxy's address as the endpoint.
    pub fn settings_at(address: SocketAddr) -> Vec<(String, String)> {
        let settings = [
            ("AWS_ACCESS_KEY_ID", KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ENDPOINT_URL", format!("http://{address}")),
        ];
        settings.map(|(name, value)| (name.to_owned(), value)).into()
    }

    /// Makes a bucket.
    ///
    /// # Errors
    /// Those of making a folder.
    pub fn make_bucket(&self, bucket: &str) -> io::Result<()> {
        std::fs::create_dir_all(self.root.join(bucket))
    }

    /// Puts an object, past the protocol.
    ///
    /// # Errors
    /// Those of writing a file.
    pub fn put(&self, bucket: &str, key: &str, bytes: &[u8]) -> io::Result<()> {
        let path = self.root.join(bucket).join(key);
        std::fs::create_dir_all(path.parent().unwrap_or(&self.root))?;
        // As a whole, so that a reader never sees half of it; and without what the server noted.
        let draft = self.root.join(format!(".put-{}", std::process::id()));
        std::fs::write(&draft, bytes)?;
        std::fs::rename(draft, path)?;
        self.state.forget(bucket, key);
        Ok(())
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

    /// How many uploads are begun and neither completed nor aborted.
    pub fn unfinished(&self) -> usize {
        self.state.unfinished()
    }

    /// Has the checksum of whole objects be CRC-32C from now on, as servers have it that know no
    /// CRC-64.
    pub fn know_only_crc32c(&self) {
        self.state.only_crc32c.store(true, Relaxed);
    }

    /// Has uploads that are listed from now on look older.
    pub fn age_uploads(&self, by: Duration) {
        self.state.age_seconds.store(by.as_secs(), Relaxed);
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.stop.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
