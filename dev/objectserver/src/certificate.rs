//! An authority of a test, and a certificate that it signed for this machine.

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// What a server shows, and who signed it.
pub struct ServerCertificate {
    authority: String,
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl ServerCertificate {
    /// Makes an authority, and a certificate for these names or addresses.
    ///
    /// # Errors
    /// Those of making keys and certificates.
    pub fn new(names: &[&str]) -> io::Result<ServerCertificate> {
        ServerCertificate::until(names, None)
    }

    /// As [`new`](Self::new), with a certificate that was valid until then.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn expired(names: &[&str], until: SystemTime) -> io::Result<ServerCertificate> {
        ServerCertificate::until(names, Some(until))
    }

    fn until(names: &[&str], until: Option<SystemTime>) -> io::Result<ServerCertificate> {
        let fail = |e: rcgen::Error| io::Error::other(e.to_string());
        let mut params = CertificateParams::new(Vec::new()).map_err(fail)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().map_err(fail)?).map_err(fail)?;
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate().map_err(fail)?;
        let mut params = CertificateParams::new(names).map_err(fail)?;
        if let Some(until) = until {
            params.not_after = until.into();
        }
        let certificate = params.signed_by(&key, &authority).map_err(fail)?;
        let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(io::Error::other)?;
        Ok(ServerCertificate { authority: authority.pem(), certificate: certificate.der().clone(), key })
    }

    /// The authority's own certificate, as files of certificates have it (PEM).
    pub fn authority(&self) -> &str {
        &self.authority
    }

    pub(crate) fn acceptor(&self) -> io::Result<TlsAcceptor> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|config| {
                config.with_no_client_auth().with_single_cert(vec![self.certificate.clone()], self.key.clone_key())
            })
            .map_err(io::Error::other)?;
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}
