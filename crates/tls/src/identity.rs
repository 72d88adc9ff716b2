//! Who this side is, and whom it believes.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use datapipes_core::{Error, ErrorKind, Result};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde::{Deserialize, Serialize};

/// The longest file of certificates.
const MAX_FILE_BYTES: u64 = 16 << 10;

/// A certificate with its private key, and the certificates that are believed: those that signed
/// the certificates of other machines, or these where they signed themselves.
///
/// Debug output shows nothing of the key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsIdentity {
    certificate: String,
    key: String,
    trusted: String,
    peer_name: Option<String>,
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsIdentity").field("peer_name", &self.peer_name).finish_non_exhaustive()
    }
}

impl TlsIdentity {
    /// Reads a certificate (with those that signed it behind it), its private key and the trusted
    /// certificates, all in the PEM format.
    ///
    /// # Errors
    /// `PermissionDenied` where others may read the key's file; those of
    /// [`from_pem`](Self::from_pem) and of reading.
    pub fn load(certificate: &Path, key: &Path, trusted: &Path) -> Result<TlsIdentity> {
        let key_text = text(key, true)?;
        let identity = TlsIdentity {
            certificate: text(certificate, false)?,
            key: key_text,
            trusted: text(trusted, false)?,
            peer_name: None,
        };
        identity.check().map_err(|e| e.within(certificate.display().to_string()))?;
        Ok(identity)
    }

    /// The same from texts.
    ///
    /// # Errors
    /// `InvalidInput` where one of them holds no certificate or key, or the key is not that of the
    /// certificate.
    pub fn from_pem(certificate: &str, key: &str, trusted: &str) -> Result<TlsIdentity> {
        let identity = TlsIdentity {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            trusted: trusted.to_owned(),
            peer_name: None,
        };
        identity.check()?;
        Ok(identity)
    }

    /// The name that the certificate of the side that is connected to must have: a DNS name or an
    /// IP address. Without it, it is the address that is connected to.
    #[must_use]
    pub fn with_peer_name(self, name: impl Into<String>) -> TlsIdentity {
        TlsIdentity { peer_name: Some(name.into()), ..self }
    }

    pub(crate) fn peer_name(&self) -> Option<&str> {
        self.peer_name.as_deref()
    }

    fn check(&self) -> Result<()> {
        self.server("check").map(drop)
    }

    fn chain(&self) -> Result<Vec<CertificateDer<'static>>> {
        certificates(&self.certificate, "the certificate")
    }

    fn private_key(&self) -> Result<PrivateKeyDer<'static>> {
        // The cause is left out: it could show bytes of the key.
        PrivateKeyDer::from_pem_slice(self.key.as_bytes())
            .map_err(|_| wrong("the private key is none in the PEM format"))
    }

    fn roots(&self) -> Result<Arc<RootCertStore>> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.trusted, "the trusted certificates")? {
            roots.add(certificate).map_err(|e| wrong(&format!("a trusted certificate: {e}")).with_source(e))?;
        }
        Ok(Arc::new(roots))
    }

    /// What connects, for a purpose.
    pub(crate) fn client(&self, purpose: &str) -> Result<Arc<ClientConfig>> {
        let verifier = WebPkiServerVerifier::builder_with_provider(self.roots()?, provider()).build();
        let verifier = verifier.map_err(|e| wrong(&format!("the trusted certificates: {e}")).with_source(e))?;
        let config = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&rustls::version::TLS13]);
        let mut config = config
            .map_err(failed)?
            .with_webpki_verifier(verifier)
            .with_client_auth_cert(self.chain()?, self.private_key()?)
            .map_err(own)?;
        config.alpn_protocols = vec![purpose.as_bytes().to_vec()];
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }

    /// What is connected to, for a purpose.
    pub(crate) fn server(&self, purpose: &str) -> Result<Arc<ServerConfig>> {
        let verifier = WebPkiClientVerifier::builder_with_provider(self.roots()?, provider()).build();
        let verifier = verifier.map_err(|e| wrong(&format!("the trusted certificates: {e}")).with_source(e))?;
        let config = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&rustls::version::TLS13]);
        let mut config = config
            .map_err(failed)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(self.chain()?, self.private_key()?)
            .map_err(own)?;
        config.alpn_protocols = vec![purpose.as_bytes().to_vec()];
        // Each connection proves everything anew, and nothing follows the conversation unasked.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn certificates(pem: &str, what: &str) -> Result<Vec<CertificateDer<'static>>> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<std::result::Result<_, _>>()
        .map_err(|e| wrong(&format!("{what}: {e}")))?;
    if found.is_empty() { Err(wrong(&format!("{what}: none in the PEM format"))) } else { Ok(found) }
}

fn text(path: &Path, is_secret: bool) -> Result<String> {
    let shown = path.display().to_string();
    let file = File::open(path).map_err(|e| Error::io("open", e, &shown))?;
    let mode = file.metadata().map_err(|e| Error::io("look at", e, &shown))?.mode();
    if is_secret && mode & 0o077 != 0 {
        return Err(Error::new(ErrorKind::PermissionDenied, "read", format!("{shown}: others may read this key"))
            .with_advice(format!("chmod 600 {shown}")));
    }
    let mut text = String::new();
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(|e| Error::io("read", e, &shown))?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(wrong(&format!("{shown}: more than {MAX_FILE_BYTES} bytes of certificates")));
    }
    Ok(text)
}

fn wrong(what: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, "read", what)
}

fn own(e: rustls::Error) -> Error {
    wrong(&format!("the certificate and its key: {e}")).with_source(e)
}

fn failed(e: rustls::Error) -> Error {
    Error::new(ErrorKind::System, "open", format!("TLS: {e}")).with_source(e)
}
