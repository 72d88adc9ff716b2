//! What was asked of a store, and what of its answers is noted: counts, checksums of parts that
//! were sent, the checksum that the server has of an object.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use datapipes_core::locks::Mutex;
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Uri};
use object_store::azure::{AzureAuthorizer, AzureCredential};
use object_store::client::HttpRequest;
use object_store::{CredentialProvider, Result};

use super::byte_sum::{ByteSum, SumKind, sent_crc64, whole_object};
use super::connections::Connections;
use crate::address::ObjectScheme;

/// What gives the credentials of Azure.
type AzureCredentials = Arc<dyn CredentialProvider<Credential = AzureCredential>>;

/// What is noted of the requests of one store.
pub(crate) struct Exchange {
    pub(crate) scheme: ObjectScheme,
    pub(crate) requests: AtomicU64,
    pub(crate) sent: AtomicU64,
    pub(crate) retries: AtomicU64,
    pub(crate) connections: Arc<Connections>,
    /// Publishing must fail where the object exists.
    pub(crate) only_new: AtomicBool,
    /// Whether requests to Azure state their checksums.
    pub(crate) states_sums: AtomicBool,
    /// What signs requests to Azure.
    azure: OnceLock<AzureCredentials>,
    /// The sum of each part that was sent, by the part's number from 1; 0 is a whole object.
    parts: Mutex<HashMap<u32, ByteSum>>,
    /// The sum of the whole object, as the server had it at the last look.
    whole: Mutex<Option<ByteSum>>,
}

impl Exchange {
    pub(crate) fn new(scheme: ObjectScheme) -> Arc<Exchange> {
        Arc::new(Exchange {
            scheme,
            requests: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            connections: Arc::default(),
            only_new: AtomicBool::new(false),
            states_sums: AtomicBool::new(false),
            azure: OnceLock::new(),
            parts: Mutex::default(),
            whole: Mutex::default(),
        })
    }

    /// What signs requests to Azure, once it is known.
    pub(crate) fn sign_by(&self, credentials: AzureCredentials) {
        // A store is made once.
        let _ = self.azure.set(credentials);
    }

    /// Notes a request, and adds what the protocols' library cannot say. Returns whether it did.
    pub(crate) fn asked(&self, parts: &mut Parts) -> bool {
        self.requests.fetch_add(1, Relaxed);
        if parts.method == Method::PUT
            && let Some(value) = sent_crc64(&parts.headers)
        {
            self.sent_part(part_number(&parts.uri).unwrap_or(0), ByteSum { kind: SumKind::Crc64, value });
        }
        let is_new = self.only_new.load(Relaxed) && publishes(&parts.method, &parts.uri);
        if is_new {
            let (name, value) = match self.scheme {
                // Google's server has a header of its own for that.
                ObjectScheme::Gcs => ("x-goog-if-generation-match", "0"),
                _ => ("if-none-match", "*"),
            };
            parts.headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        is_new
    }

    /// Signs a request anew to which something was added, where the signature covers that: Azure's
    /// covers all conditions, S3's what it names, and a token nothing.
    ///
    /// # Errors
    /// Those of getting the key.
    pub(crate) async fn sign_again(&self, request: &mut HttpRequest) -> Result<()> {
        let signature = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let account = signature.and_then(|value| value.strip_prefix("SharedKey ")?.split_once(':'));
        let (Some(credentials), Some((account, _))) = (self.azure.get(), account) else { return Ok(()) };
        let account = account.to_owned();
        let credential = credentials.get_credential().await?;
        request.headers_mut().remove(AUTHORIZATION);
        AzureAuthorizer::new(&credential, &account).try_authorize(request)
    }

    /// Notes an answer to a look at an object.
    pub(crate) fn looked(&self, headers: &HeaderMap) {
        *self.whole.lock() = whole_object(headers);
    }

    /// Notes the checksum of a part that is sent.
    pub(crate) fn sent_part(&self, number: u32, sum: ByteSum) {
        self.parts.lock().insert(number, sum);
    }

    /// The checksum of a part that was sent.
    pub(crate) fn part_sum(&self, number: u32) -> Option<ByteSum> {
        self.parts.lock().get(&number).copied()
    }

    /// The checksum that the server has of the whole object.
    pub(crate) fn whole_sum(&self) -> Option<ByteSum> {
        *self.whole.lock()
    }

    /// Notes that a request is made again.
    pub(crate) fn again(&self) {
        self.retries.fetch_add(1, Relaxed);
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without what signs: it holds secrets.
        f.write_str("Exchange")
    }
}

/// Whether the request makes an object visible.
pub(crate) fn publishes(method: &Method, uri: &Uri) -> bool {
    let query = uri.query().unwrap_or("");
    let has = |name: &str| query.split('&').any(|pair| pair == name || pair.starts_with(&format!("{name}=")));
    match *method {
        Method::POST => has("uploadId"),
        // Azure's blocks are put with `comp=block`, and published with `comp=blocklist`.
        Method::PUT => !has("partNumber") && !query.split('&').any(|pair| pair == "comp=block"),
        _ => false,
    }
}

fn part_number(uri: &Uri) -> Option<u32> {
    uri.query()?.split('&').find_map(|pair| pair.strip_prefix("partNumber="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_publishes_is_conditional() {
        let is = |method, uri: &str| publishes(&method, &uri.parse().unwrap());
        assert!(is(Method::PUT, "http://h/b/k") && is(Method::POST, "http://h/b/k?uploadId=7"));
        assert!(is(Method::PUT, "http://h/b/k?comp=blocklist"));
        assert!(!is(Method::PUT, "http://h/b/k?partNumber=1&uploadId=7") && !is(Method::POST, "http://h/b/k?uploads="));
        assert!(!is(Method::PUT, "http://h/b/k?comp=block&blockid=1") && !is(Method::GET, "http://h/b/k"));
    }
}
