//! The version of an object that is read, and the checksum of what was read of it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use datapipes_core::locks::Mutex;
use datapipes_core::{Error, ErrorKind, Result};
use futures_util::stream::StreamExt;
use object_store::{GetOptions, GetRange, GetResultPayload, ObjectMeta};

use super::read_sums::{ReadSums, WholeSum};
use crate::client_state::ClientState;
use crate::server::Store;
use crate::server::byte_sum::ByteSum;
use crate::server::failure::{failed, status};

/// The version of an object at the time it was opened.
#[derive(Debug)]
pub(crate) struct Pinned {
    pub(crate) len: u64,
    e_tag: Option<String>,
    version: Option<String>,
    modified: i64,
    /// Whether a server compares the tag exactly. A weak tag is compared by this crate alone.
    is_strong: bool,
    /// The time of the look, a request without bytes.
    pub(crate) latency: Duration,
    /// The checksum of all bytes, where the server has one.
    sum: Option<ByteSum>,
    /// The sums of ranges that were read, unless they are too many.
    read: Mutex<Option<ReadSums>>,
    verified: AtomicBool,
}

impl Pinned {
    /// Looks at an object.
    pub(crate) async fn look(client: &ClientState, store: &Store, name: &str) -> Result<Pinned> {
        let mut attempts = client.attempts();
        loop {
            let options = GetOptions { head: true, ..GetOptions::default() };
            let began = Instant::now();
            match store.objects.get_opts(&store.path, options).await {
                Ok(answer) => {
                    let elapsed = began.elapsed();
                    client.read_costs.waited(elapsed);
                    if answer.meta.size == 0 && store.is_web() {
                        Pinned::check_empty(store, name).await?;
                    }
                    return Pinned::new(answer.meta, elapsed, store.exchange.whole_sum(), name);
                }
                Err(error) => {
                    let Some(pause) = attempts.after(&error) else {
                        return match status(&error) {
                            Some(400 | 401 | 403 | 405 | 501) => Pinned::by_its_first_byte(store, &error, name).await,
                            // Whether the object is missing, or its bucket.
                            Some(404) if !store.is_web() => Pinned::by_its_first_byte(store, &error, name).await,
                            _ => Err(failed("open", name, &error, &store.secrets)),
                        };
                    };
                    store.exchange.again();
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    /// What names the version: the server's tag, or the length and the time of change.
    pub(crate) fn text(&self) -> String {
        let tag = self.e_tag.clone().unwrap_or_else(|| format!("{} bytes at {} ms", self.len, self.modified));
        self.version.as_ref().map_or(tag.clone(), |version| format!("{tag}, version {version}"))
    }

    /// Looks by a request for the first byte, where the server refuses a look without bytes: an
    /// address may be signed for one method alone. And an answer without bytes has no reason.
    async fn by_its_first_byte(store: &Store, refused: &object_store::Error, name: &str) -> Result<Pinned> {
        let options = GetOptions { range: Some(GetRange::Bounded(0..1)), ..GetOptions::default() };
        let began = Instant::now();
        match store.objects.get_opts(&store.path, options).await {
            Ok(answer) => Pinned::new(answer.meta, began.elapsed(), None, name),
            // There is no first byte, or the server knows no ranges: then the first refusal counts.
            Err(error) if status(&error) == status(refused) => Err(failed("open", name, &error, &store.secrets)),
            Err(_) => Err(failed("open", name, refused, &store.secrets)),
        }
    }

    /// Makes sure that an object of no bytes has none: web servers say so of pages that they make.
    async fn check_empty(store: &Store, name: &str) -> Result<()> {
        let answer = store.objects.get_opts(&store.path, GetOptions::default()).await;
        let answer = answer.map_err(|error| failed("open", name, &error, &store.secrets))?;
        let GetResultPayload::Stream(mut stream) = answer.payload;
        while let Some(bytes) = stream.next().await {
            if !bytes.map_err(|error| failed("open", name, &error, &store.secrets))?.is_empty() {
                let why = format!("{name}: the server says that it has no bytes, and sends some");
                let error = Error::new(ErrorKind::Unsupported, "open", why);
                return Err(error.with_advice("get it with another program: its length is not known beforehand"));
            }
        }
        Ok(())
    }

    fn new(meta: ObjectMeta, latency: Duration, sum: Option<ByteSum>, name: &str) -> Result<Pinned> {
        if i64::try_from(meta.size).is_err() {
            let why = format!("{name}: the server says that it has {} bytes", meta.size);
            return Err(Error::new(ErrorKind::Corrupt, "open", why));
        }
        let is_strong = meta.e_tag.as_deref().is_some_and(|tag| !tag.starts_with("W/"));
        let sums = sum.map(|sum| ReadSums::new(sum.kind, meta.size));
        Ok(Pinned {
            len: meta.size,
            e_tag: meta.e_tag,
            version: meta.version,
            modified: meta.last_modified.timestamp_millis(),
            is_strong,
            latency,
            sum,
            read: Mutex::new(sums),
            verified: AtomicBool::new(false),
        })
    }

    pub(crate) fn e_tag(&self) -> Option<&str> {
        self.e_tag.as_deref()
    }

    pub(crate) fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// The checksum that the server has of all bytes.
    pub(crate) fn sum(&self) -> Option<ByteSum> {
        self.sum
    }

    /// What tells a changed object, in words.
    pub(crate) fn pin(&self) -> &'static str {
        match (&self.e_tag, self.is_strong) {
            (Some(_), true) => "pinned by its ETag (If-Match on each range)",
            (Some(_), false) => "pinned by its weak ETag, compared in each answer",
            (None, _) => "without an ETag: a change is noticed by length and time only",
        }
    }

    /// The request for a range of this version.
    pub(crate) fn request(&self, range: std::ops::Range<u64>) -> GetOptions {
        GetOptions {
            range: Some(GetRange::Bounded(range)),
            if_match: self.e_tag.clone().filter(|_| self.is_strong),
            version: self.version.clone(),
            ..GetOptions::default()
        }
    }

    /// Checks that an answer is of this version.
    pub(crate) fn check(&self, meta: &ObjectMeta, name: &str) -> Result<()> {
        let same_tag = match (&self.e_tag, &meta.e_tag) {
            (Some(mine), Some(its)) => mine == its,
            // A server that gave a tag before gives one now.
            (Some(_), None) => false,
            (None, _) => self.modified == meta.last_modified.timestamp_millis(),
        };
        if same_tag && self.len == meta.size { Ok(()) } else { Err(changed(name)) }
    }

    /// What makes the sum of a range, where the sum of all bytes is to be made.
    pub(crate) fn digest(&self) -> Option<crc_fast::Digest> {
        let is_wanted = self.read.lock().is_some();
        self.sum.filter(|_| is_wanted).map(|sum| sum.kind.digest())
    }

    /// Notes the sum of a range that was read. When the ranges are the whole object, their sum must
    /// be the server's. If it is not, that stays an error until the damaged range is read
    /// again: a reader may pass over the first error.
    ///
    /// # Errors
    /// `Corrupt` where it is not.
    pub(crate) fn note_sum(&self, at: u64, len: u64, sum: u64, name: &str) -> Result<()> {
        let mut read = self.read.lock();
        let (Some(sums), Some(expected)) = (read.as_mut(), self.sum) else { return Ok(()) };
        let (kind, its) = (expected.kind.name(), expected.value);
        let corrupt = |why: String| {
            Err(Error::new(ErrorKind::Corrupt, "read", format!("{name}: {why}"))
                .with_advice("open it and read it again; if that fails, the object is damaged"))
        };
        match sums.note(at, len, sum) {
            WholeSum::Open => Ok(()),
            WholeSum::Lost => {
                *read = None;
                Ok(())
            }
            WholeSum::Known(whole) if whole == its => {
                self.verified.store(true, Relaxed);
                Ok(())
            }
            WholeSum::Known(whole) => {
                self.verified.store(false, Relaxed);
                corrupt(format!("the bytes that came have {kind} {whole:016x}, the server says {its:016x}"))
            }
            WholeSum::Differs => {
                self.verified.store(false, Relaxed);
                corrupt(format!("bytes that were read twice differ; the server says {kind} {its:016x} of them all"))
            }
        }
    }

    /// Whether all bytes were read, and had the server's checksum.
    pub(crate) fn is_verified(&self) -> bool {
        self.verified.load(Relaxed)
    }
}

/// The error of an object that is another one by now.
pub(crate) fn changed(name: &str) -> Error {
    Error::new(ErrorKind::Corrupt, "read", format!("{name} changed since it was opened"))
        .with_advice("open it again; what was read before is of the version before")
}
