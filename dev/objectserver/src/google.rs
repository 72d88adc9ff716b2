//! A model of Google's server: its protocol is S3's with other headers, by its documentation. No
//! emulator by others takes uploads in parts.
//!
//! | Google | S3 |
//! |---|---|
//! | a token, which the model does not look at | signatures |
//! | `x-goog-if-generation-match: 0` | `If-None-Match: *` |
//! | `?generation=N`, `x-goog-generation: N`: one version of an object | `If-Match`, `ETag` |
//! | `x-goog-hash: crc32c=...` | `x-amz-checksum-crc32c` |

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use crc_fast::{CrcAlgorithm, checksum};
use http::header::{AUTHORIZATION, ETAG, HeaderName, HeaderValue, IF_NONE_MATCH};
use http::{Request, StatusCode, Uri};
use s3s::service::S3Service;
use s3s::{Body, HttpError, HttpResponse};

use crate::server::S3Server;

/// The server over a folder. It stops when it is dropped.
pub struct GoogleModel(S3Server);

impl GoogleModel {
    /// Starts it. Its buckets are the folders in `root`.
    ///
    /// # Errors
    /// Those of the folder, the port and the thread.
    pub fn start(root: &Path) -> io::Result<GoogleModel> {
        let server = S3Server::start_as_google(root)?;
        server.know_only_crc32c();
        Ok(GoogleModel(server))
    }

    /// The S3 server behind it: its files, its uploads.
    pub fn server(&self) -> &S3Server {
        &self.0
    }

    /// What a client's environment says, at this address: that of the server, or of a proxy.
    pub fn settings_at(address: SocketAddr) -> Vec<(String, String)> {
        vec![("STORAGE_EMULATOR_HOST".to_owned(), address.to_string())]
    }
}

/// Answers a request of Google's protocol by S3's.
pub(crate) async fn answer(service: &S3Service, mut request: Request<Body>) -> Result<HttpResponse, HttpError> {
    let headers = request.headers_mut();
    headers.remove(AUTHORIZATION);
    headers.insert(HeaderName::from_static("x-amz-checksum-mode"), HeaderValue::from_static("ENABLED"));
    if headers.remove("x-goog-if-generation-match").is_some_and(|generation| generation == "0") {
        headers.insert(IF_NONE_MATCH, HeaderValue::from_static("*"));
    }
    let wanted = take_generation(request.uri_mut());
    let mut answer = service.call(request).await?;
    let Some(tag) = answer.headers().get(ETAG) else { return Ok(answer) };
    let generation = checksum(CrcAlgorithm::Crc64Nvme, tag.as_bytes()) >> 1;
    if wanted.is_some_and(|wanted| wanted != generation) {
        let mut gone = HttpResponse::new(Body::from("<Error><Code>NoSuchKey</Code></Error>".to_owned()));
        *gone.status_mut() = StatusCode::NOT_FOUND;
        return Ok(gone);
    }
    let headers = answer.headers_mut();
    headers.insert(HeaderName::from_static("x-goog-generation"), HeaderValue::from(generation));
    if let Some(sum) = headers.remove("x-amz-checksum-crc32c")
        && let Ok(sum) = HeaderValue::from_str(&format!("crc32c={}", sum.to_str().unwrap_or_default()))
    {
        headers.insert(HeaderName::from_static("x-goog-hash"), sum);
    }
    Ok(answer)
}

/// Takes `generation=N` out of the query.
fn take_generation(uri: &mut Uri) -> Option<u64> {
    let query = uri.query()?.to_owned();
    let (its, others): (Vec<&str>, Vec<&str>) = query.split('&').partition(|pair| pair.starts_with("generation="));
    let generation = its.first()?.strip_prefix("generation=")?.parse().ok()?;
    let path = format!("{}?{}", uri.path(), others.join("&"));
    *uri = path.trim_end_matches('?').parse().ok()?;
    Some(generation)
}
