//! Connections to servers: TCP, and TLS over it, each of which takes a bounded time.

use std::fmt;
use std::future::{Ready, ready};
use std::io::Read;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use datapipes_core::{Error, ErrorKind, Result};
use http::Uri;
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector as TcpConnector;
use hyper_util::rt::TokioIo;
use object_store::client::{HttpError, HttpErrorKind};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{CertificateError, ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tower_service::Service;

use super::failure::{BrokenExchange, Trouble};

/// How long a connection may take, and then a handshake of TLS.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// The most bytes of a file of certificates that are read.
const MAX_AUTHORITIES: u64 = 16 << 20;

type Io = TokioIo<TcpStream>;
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Connects by TCP, and by TLS where an address begins with `https`.
#[derive(Clone)]
pub(crate) struct BoundedConnector {
    tcp: TcpConnector,
    tls: Arc<ClientConfig>,
    handshake: Duration,
}

impl BoundedConnector {
    /// `authorities` is a file of certificates to trust in place of the system's. A handshake takes
    /// at most a third of the idle time, so that it is told apart from a server that says nothing.
    ///
    /// # Errors
    /// `Unavailable` where there are no certificates.
    pub(crate) fn new(idle: Duration, authorities: Option<&str>) -> Result<BoundedConnector> {
        let mut tcp = TcpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIME));
        Ok(BoundedConnector { tcp, tls: Arc::new(trust(authorities)?), handshake: idle / 3 })
    }
}

impl Service<Uri> for BoundedConnector {
    type Response = MaybeHttpsStream<Io>;
    type Error = Failure;
    type Future = Pin<Box<dyn Future<Output = std::result::Result<Self::Response, Failure>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<std::result::Result<(), Failure>> {
        self.tcp.poll_ready(cx).map_err(Failure::from)
    }

    fn call(&mut self, address: Uri) -> Self::Future {
        let (connecting, tls, bound) = (self.tcp.call(address.clone()), self.tls.clone(), self.handshake);
        Box::pin(async move {
            let mut layered = HttpsConnector::from((Connected(Some(connecting.await?)), tls));
            match tokio::time::timeout(bound, layered.call(address)).await {
                Ok(stream) => stream,
                Err(_) => Err(NoHandshake(bound).into()),
            }
        })
    }
}

/// A connection that TLS is put over.
struct Connected(Option<Io>);

impl Service<Uri> for Connected {
    type Response = Io;
    type Error = Failure;
    type Future = Ready<std::result::Result<Io, Failure>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        ready(self.0.take().ok_or_else(|| "a connection is used once".into()))
    }
}

/// A server that accepted the connection, and said nothing of TLS, or not enough.
#[derive(Debug)]
struct NoHandshake(Duration);

impl fmt::Display for NoHandshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the server accepts it, and makes no handshake of TLS within {:?}", self.0)
    }
}

impl std::error::Error for NoHandshake {}

/// Whose certificates are believed.
fn trust(authorities: Option<&str>) -> Result<ClientConfig> {
    let unavailable = |why: String| Error::new(ErrorKind::Unavailable, "connect", why);
    let builder = || {
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|e| unavailable(e.to_string()))
    };
    let Some(path) = authorities else {
        let config = match builder()?.with_native_roots() {
            Ok(config) => config,
            // A machine without certificates still talks to servers without TLS.
            Err(_) => builder()?.with_root_certificates(RootCertStore::empty()),
        };
        return Ok(config.with_no_client_auth());
    };
    let mut roots = RootCertStore::empty();
    let fail = |e: &dyn fmt::Display| unavailable(format!("certificates of {path}: {e}"));
    let mut pem = Vec::new();
    let file = std::fs::File::open(path).map_err(|e| fail(&e))?;
    file.take(MAX_AUTHORITIES).read_to_end(&mut pem).map_err(|e| fail(&e))?;
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        roots.add(certificate.map_err(|e| fail(&e))?).map_err(|e| fail(&e))?;
    }
    if roots.is_empty() {
        return Err(fail(&"it has none").with_advice("AWS_CA_BUNDLE names a file of certificates as PEM"));
    }
    Ok(builder()?.with_root_certificates(roots).with_no_client_auth())
}

/// What TLS refused, where that is what an error wraps: an error of I/O does not name it as its
/// source.
fn tls_error<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a rustls::Error> {
    let mut at = error;
    for _ in 0..8 {
        if let Some(tls) = at.downcast_ref::<rustls::Error>() {
            return Some(tls);
        }
        at = at.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref)?;
    }
    None
}

/// What an error of TLS means for a user.
fn trouble_of(tls: &rustls::Error) -> Trouble {
    match tls {
        rustls::Error::InvalidCertificate(why) => Trouble::Untrusted(match why {
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => {
                "look at this machine's clock; if it is right, the server needs a new certificate"
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "check the host's name: the certificate is for others"
            }
            CertificateError::UnknownIssuer => "AWS_CA_BUNDLE names a file of other authorities",
            _ => "the server needs another certificate; AWS_CA_BUNDLE names a file of other authorities",
        }),
        // An answer that is none of TLS, such as one of plain HTTP.
        rustls::Error::InvalidMessage(_) => Trouble::NoTls,
        _ => Trouble::Network,
    }
}

/// A request without an answer. The text of the library's error names no address and no header.
pub(crate) fn unanswered(error: &hyper_util::client::legacy::Error) -> HttpError {
    let mut what = String::from(if error.is_connect() { "no connection" } else { "the connection broke" });
    let mut at = std::error::Error::source(error);
    let mut trouble = Trouble::Network;
    for _ in 0..8 {
        let Some(error) = at else { break };
        if let Some(tls) = tls_error(error) {
            trouble = trouble_of(tls);
        } else if error.is::<NoHandshake>() {
            trouble = Trouble::NoTls;
        }
        at = error.source();
        if at.is_none() {
            what.push_str(": ");
            what.push_str(&error.to_string());
        }
    }
    let kind = if error.is_connect() { HttpErrorKind::Connect } else { HttpErrorKind::Request };
    // A certificate does not become valid by another attempt.
    let passing = !matches!(trouble, Trouble::Untrusted(_));
    HttpError::new(kind, BrokenExchange { what, passing, trouble, sent: !error.is_connect() })
}
