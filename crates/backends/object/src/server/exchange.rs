//! What was asked of a store, and what of its answers is noted: counts, checksums of parts that
//! were sent, the checksum that the server has of an object.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use datapipes_core::locks::Mutex;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Uri};

use super::byte_sum::{ByteSum, SumKind, sent_crc64, whole_object};
use super::connections::Connections;

/// What is noted of the requests of one store.
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    pub(crate) requests: AtomicU64,
    pub(crate) sent: AtomicU64,
    pub(crate) retries: AtomicU64,
    pub(crate) connections: Arc<Connections>,
    /// Publishing must fail where the object exists.
    pub(crate) only_new: AtomicBool,
    /// Google's server has a header of its own for that.
    pub(crate) is_gcs: bool,
    /// The sum of each part that was sent, by the part's number from 1; 0 is a whole object.
    parts: Mutex<HashMap<u32, ByteSum>>,
    /// The sum of the whole object, as the server had it at the last look.
    whole: Mutex<Option<ByteSum>>,
}

impl Exchange {
    pub(crate) fn new(is_gcs: bool) -> Arc<Exchange> {
        Arc::new(Exchange { is_gcs, ..Exchange::default() })
    }

    /// Notes a request, and adds what the protocols' library cannot say.
    pub(crate) fn asked(&self, parts: &mut Parts) {
        self.requests.fetch_add(1, Relaxed);
        if parts.method == Method::PUT
            && let Some(value) = sent_crc64(&parts.headers)
        {
            self.sent_part(part_number(&parts.uri).unwrap_or(0), ByteSum { kind: SumKind::Crc64, value });
        }
        if self.only_new.load(Relaxed) && publishes(&parts.method, &parts.uri) {
            let (name, value) = match self.is_gcs {
                true => (HeaderName::from_static("x-goog-if-generation-match"), HeaderValue::from_static("0")),
                false => (http::header::IF_NONE_MATCH, HeaderValue::from_static("*")),
            };
            parts.headers.insert(name, value);
        }
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
