//! A store for a bucket, by the settings.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use datapipes_core::{Error, ErrorKind, Result};
use http::header::{HeaderMap, HeaderValue};
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, Checksum};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::list::PaginatedListStore;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{ClientOptions, ObjectStore, RetryConfig};

use super::byte_sum::SumKind;
use super::exchange::Exchange;
use super::failure::failed;
use super::secrets::Secrets;
use super::settings::{CHECKSUM_OF_AZURE, Settings};
use super::transport::Transport;
use crate::address::{ObjectAddress, ObjectScheme};

/// The checksum of servers that have only CRC-32C: the protocols' library does not send it.
const LATER: &str = "crc32c, compared after publishing";

/// What the requests of a store are for: a signature covers headers that only reads have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Read,
    Write,
}

/// A bucket at a server.
#[derive(Clone)]
pub(crate) struct Store {
    pub(crate) objects: Arc<dyn ObjectStore>,
    pub(crate) uploads: Option<Arc<dyn MultipartStore>>,
    pub(crate) lists: Option<Arc<dyn PaginatedListStore>>,
    /// For requests of S3 that the protocols' library does not make itself.
    pub(crate) s3: Option<Arc<AmazonS3>>,
    pub(crate) exchange: Arc<Exchange>,
    pub(crate) secrets: Secrets,
    /// The object's path within the store.
    pub(crate) path: Path,
    /// Which checksum travels with the bytes that are written, or is compared afterwards, in words.
    pub(crate) checksum: &'static str,
    /// The checksum that is made of written bytes to be compared with the server's afterwards.
    pub(crate) later_sum: Option<SumKind>,
}

impl Store {
    /// Whether it is a web server, which is only read.
    pub(crate) fn is_web(&self) -> bool {
        self.uploads.is_none()
    }

    /// Makes a store for the bucket of an address. It makes no request.
    ///
    /// # Errors
    /// `InvalidInput` where the settings make no sense.
    pub(crate) fn connect(
        address: &ObjectAddress,
        purpose: Purpose,
        settings: &Settings,
        transport: &Transport,
    ) -> Result<Store> {
        let secrets = match address.scheme() {
            ObjectScheme::Http => Secrets::of_query(address.key().split_once('?').map_or("", |(_, query)| query)),
            _ => settings.secrets(),
        };
        if address.scheme() != ObjectScheme::Http {
            settings.check(address.scheme())?;
        }
        let exchange = Exchange::new(address.scheme());
        let fail = |e: object_store::Error| {
            let error = failed("connect", &address.to_string(), &e, &secrets);
            let is_open = error.context().contains("Account must be specified");
            let advice = match address.scheme() {
                ObjectScheme::Azure if is_open => {
                    "set AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_KEY"
                }
                ObjectScheme::Azure => "check the variables AZURE_*",
                ObjectScheme::Gcs => {
                    "check the variables GOOGLE_*: GOOGLE_APPLICATION_CREDENTIALS has the file with a key"
                }
                _ => "check the environment variables and profile files of the cloud's tools",
            };
            // What is wrong with the text of a key may quote it.
            let quotes = ["Unable to decode service account", "unknown variant"];
            if address.scheme() == ObjectScheme::Gcs && quotes.iter().any(|words| error.context().contains(words)) {
                let why = format!("{address}: the credentials are no key of a service account, nor those of a user");
                return Error::new(ErrorKind::InvalidInput, "connect", why).with_advice(advice);
            }
            Error::new(ErrorKind::InvalidInput, "connect", error.context().to_owned()).with_advice(advice)
        };
        let path = match address.scheme() {
            ObjectScheme::Http => Path::default(),
            _ => Path::parse(address.key()).map_err(|e| fail(e.into()))?,
        };
        let connector = transport.connector(exchange.clone());
        let bucket: Bucket = match address.scheme() {
            ObjectScheme::S3 => {
                let (builder, checksum) = s3_builder(address, purpose, settings);
                let s3 = Arc::new(builder.with_http_connector(connector).build().map_err(fail)?);
                Bucket { checksum, s3: Some(s3.clone()), ..Bucket::of(s3) }
            }
            ObjectScheme::Gcs => {
                let mut builder = GoogleCloudStorageBuilder::new();
                for (name, value) in settings.with_prefix("GOOGLE_") {
                    if let Ok(key) = name.to_ascii_lowercase().parse() {
                        builder = builder.with_config(key, value);
                    }
                }
                // The address says the bucket, whatever a setting says.
                let builder = builder.with_bucket_name(address.bucket()).with_retry(once());
                let gcs = builder.with_http_connector(connector).build().map_err(fail)?;
                Bucket { checksum: LATER, ..Bucket::of(Arc::new(gcs)) }
            }
            ObjectScheme::Azure => {
                let mut builder = MicrosoftAzureBuilder::new();
                for (name, value) in settings.with_prefix("AZURE_") {
                    if let Ok(key) = name.to_ascii_lowercase().parse() {
                        builder = builder.with_config(key, value);
                    }
                }
                let builder = builder.with_container_name(address.bucket()).with_retry(once());
                let azure = builder.with_http_connector(connector).build().map_err(fail)?;
                exchange.sign_by(azure.credentials().clone());
                let states_sums = states_sums(settings);
                exchange.states_sums.store(states_sums, Relaxed);
                let checksum = if states_sums { "crc64nvme" } else { "crc64nvme, by the server's answers" };
                Bucket { checksum, ..Bucket::of(Arc::new(azure)) }
            }
            ObjectScheme::Http => {
                let url = format!("{}/{}", address.bucket(), address.key());
                let builder = HttpBuilder::new().with_url(url).with_retry(once()).with_http_connector(connector);
                let objects = Arc::new(builder.build().map_err(fail)?);
                Bucket { objects, uploads: None, lists: None, s3: None, checksum: "none" }
            }
        };
        let Bucket { objects, uploads, lists, s3, checksum } = bucket;
        let later_sum = (checksum == LATER).then_some(SumKind::Crc32c);
        Ok(Store { objects, uploads, lists, s3, exchange, secrets: secrets.clone(), path, checksum, later_sum })
    }
}

/// What the protocols' library has for a bucket, by its traits.
struct Bucket {
    objects: Arc<dyn ObjectStore>,
    uploads: Option<Arc<dyn MultipartStore>>,
    lists: Option<Arc<dyn PaginatedListStore>>,
    s3: Option<Arc<AmazonS3>>,
    checksum: &'static str,
}

impl Bucket {
    fn of<T: ObjectStore + MultipartStore + PaginatedListStore>(store: Arc<T>) -> Bucket {
        let (uploads, lists) = (Some(store.clone() as _), Some(store.clone() as _));
        Bucket { objects: store, uploads, lists, s3: None, checksum: "none" }
    }
}

/// Whether requests to Azure state their checksums. An emulator, whose address has a path, refuses
/// them.
fn states_sums(settings: &Settings) -> bool {
    if let Some(asked) = settings.get(CHECKSUM_OF_AZURE) {
        return !asked.eq_ignore_ascii_case("none");
    }
    let address = ["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"].into_iter().find_map(|name| settings.get(name));
    let path = address.and_then(|address| address.split_once("://")?.1.split_once('/'));
    path.is_none_or(|(_, path)| path.is_empty())
}

/// Requests are repeated by this crate, which counts them and signs each attempt anew.
fn once() -> RetryConfig {
    RetryConfig { max_retries: 0, retry_timeout: Duration::from_secs(60), ..RetryConfig::default() }
}

/// The builder for S3, and the checksum of what is written.
fn s3_builder(address: &ObjectAddress, purpose: Purpose, settings: &Settings) -> (AmazonS3Builder, &'static str) {
    let mut headers = HeaderMap::new();
    if purpose == Purpose::Read {
        headers.insert("x-amz-checksum-mode", HeaderValue::from_static("ENABLED"));
    }
    let options = ClientOptions::new().with_default_headers(headers).with_allow_http(true);
    let mut builder = AmazonS3Builder::new().with_client_options(options);
    let mut asked = "crc64nvme";
    for (name, value) in settings.with_prefix("AWS_") {
        match name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() {
            Ok(AmazonS3ConfigKey::Checksum) => {
                asked = match value.to_ascii_lowercase().as_str() {
                    "none" => "none",
                    "sha256" => "sha256",
                    "crc32c" => LATER,
                    _ => "crc64nvme",
                };
            }
            Ok(key) => builder = builder.with_config(key, value),
            Err(_) => {}
        }
    }
    builder = match asked {
        // The checksum is part of what is signed, so the bytes need no second sum.
        "crc64nvme" => builder.with_checksum_algorithm(Checksum::CRC64NVME).with_unsigned_payload(true),
        "sha256" => builder.with_checksum_algorithm(Checksum::SHA256).with_unsigned_payload(true),
        _ => builder,
    };
    // One object is removed by the request that every server knows.
    (builder.with_bucket_name(address.bucket()).with_disable_bulk_delete(true).with_retry(once()), asked)
}
