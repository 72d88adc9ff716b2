//! `s3s-fs` with what S3 has and it lacks: `If-Match` of reads, lists of unfinished uploads, and
//! CRC-64 of parts and of whole objects.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use crc_fast::{CrcAlgorithm, checksum};
use futures_util::StreamExt;
use s3s::dto::*;
use s3s::{Body, S3, S3Request, S3Response, S3Result, s3_error};
use s3s_fs::FileSystem;

/// What is known beside the files.
#[derive(Default)]
pub(crate) struct StoreState {
    /// Uploads by their names: bucket, key, begin.
    uploads: Mutex<HashMap<String, (String, String, SystemTime)>>,
    /// Objects that were written by the protocol, whose checksums S3 would have.
    written: Mutex<HashMap<(String, String), ()>>,
    pub(crate) age_seconds: AtomicU64,
    /// Whether the checksum of whole objects is CRC-32C, as older servers have it.
    pub(crate) only_crc32c: AtomicBool,
}

impl StoreState {
    pub(crate) fn unfinished(&self) -> usize {
        self.uploads.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub(crate) fn forget(&self, bucket: &str, key: &str) {
        let of = (bucket.to_owned(), key.to_owned());
        self.written.lock().unwrap_or_else(PoisonError::into_inner).remove(&of);
    }

    fn wrote(&self, bucket: &str, key: &str) {
        let of = (bucket.to_owned(), key.to_owned());
        self.written.lock().unwrap_or_else(PoisonError::into_inner).insert(of, ());
    }

    fn has_written(&self, bucket: &str, key: &str) -> bool {
        let of = (bucket.to_owned(), key.to_owned());
        self.written.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&of)
    }

    fn ended(&self, upload: &str) {
        self.uploads.lock().unwrap_or_else(PoisonError::into_inner).remove(upload);
    }
}

pub(crate) struct CheckedStore {
    files: FileSystem,
    root: PathBuf,
    state: Arc<StoreState>,
}

impl CheckedStore {
    pub(crate) fn new(root: &Path, state: Arc<StoreState>) -> Result<CheckedStore, String> {
        let files = FileSystem::new(root).map_err(|e| format!("{e:?}"))?;
        Ok(CheckedStore { files, root: root.to_path_buf(), state })
    }

    fn older(&self, time: SystemTime) -> Timestamp {
        let age = Duration::from_secs(self.state.age_seconds.load(Relaxed));
        Timestamp::from(time.checked_sub(age).unwrap_or(time))
    }

    /// The checksum of a whole object, where S3 would have it.
    fn whole_sum(&self, algorithm: CrcAlgorithm, bucket: &str, key: &str) -> Option<u64> {
        if !self.state.has_written(bucket, key) {
            return None;
        }
        let bytes = std::fs::read(self.root.join(bucket).join(key)).ok()?;
        Some(checksum(algorithm, &bytes))
    }
}

/// Eight bytes in base64.
fn base64(sum: u64) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits = u128::from(sum) << 2;
    let digit = |n: u32| char::from(DIGITS[usize::try_from(bits >> (6 * n) & 63).unwrap_or(0)]);
    (0..11).rev().map(digit).chain(['=']).collect()
}

/// Four bytes in base64.
fn base64_of_32(sum: u64) -> String {
    // The first six characters of eight bytes hold the first four and a half of them.
    let long = base64((sum & 0xffff_ffff) << 32);
    format!("{}==", &long[..6])
}

/// Reads a body, and checks it against the checksum that came with it.
async fn checked(body: Option<StreamingBlob>, sum: Option<&String>) -> S3Result<Bytes> {
    let mut body = body.ok_or_else(|| s3_error!(IncompleteBody))?;
    let mut bytes = BytesMut::new();
    while let Some(piece) = body.next().await {
        bytes.extend_from_slice(&piece.map_err(|_| s3_error!(IncompleteBody))?);
    }
    if let Some(sum) = sum
        && *sum != base64(checksum(CrcAlgorithm::Crc64Nvme, &bytes))
    {
        return Err(s3_error!(BadDigest, "the CRC-64 of the bytes is another one"));
    }
    Ok(bytes.freeze())
}

#[async_trait::async_trait]
impl S3 for CheckedStore {
    async fn get_object(&self, req: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        let condition = req.input.if_match.clone();
        let answer = self.files.get_object(req).await?;
        if let (Some(ETagCondition::ETag(wanted)), Some(tag)) = (condition, &answer.output.e_tag)
            && !wanted.strong_cmp(tag)
        {
            return Err(s3_error!(PreconditionFailed));
        }
        Ok(answer)
    }

    async fn head_object(&self, req: S3Request<HeadObjectInput>) -> S3Result<S3Response<HeadObjectOutput>> {
        let wants = req.input.checksum_mode.is_some();
        let (bucket, key) = (req.input.bucket.clone(), req.input.key.clone());
        let mut answer = self.files.head_object(req).await?;
        if wants && self.state.only_crc32c.load(Relaxed) {
            let sum = self.whole_sum(CrcAlgorithm::Crc32Iscsi, &bucket, &key);
            answer.output.checksum_crc32c = sum.map(base64_of_32);
        } else if wants {
            let sum = self.whole_sum(CrcAlgorithm::Crc64Nvme, &bucket, &key);
            answer.output.checksum_crc64nvme = sum.map(base64);
        }
        Ok(answer)
    }

    async fn put_object(&self, req: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        let mut req = req;
        let (bucket, key) = (req.input.bucket.clone(), req.input.key.clone());
        let bytes = checked(req.input.body.take(), req.input.checksum_crc64nvme.as_ref()).await?;
        req.input.body = Some(StreamingBlob::from(Body::from(bytes)));
        let answer = self.files.put_object(req).await?;
        self.state.wrote(&bucket, &key);
        Ok(answer)
    }

    async fn create_multipart_upload(
        &self,
        req: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        let (bucket, key) = (req.input.bucket.clone(), req.input.key.clone());
        let answer = self.files.create_multipart_upload(req).await?;
        if let Some(id) = &answer.output.upload_id {
            let mut uploads = self.state.uploads.lock().unwrap_or_else(PoisonError::into_inner);
            uploads.insert(id.clone(), (bucket, key, SystemTime::now()));
        }
        Ok(answer)
    }

    async fn upload_part(&self, req: S3Request<UploadPartInput>) -> S3Result<S3Response<UploadPartOutput>> {
        let mut req = req;
        let sum = req.input.checksum_crc64nvme.clone();
        let bytes = checked(req.input.body.take(), sum.as_ref()).await?;
        req.input.body = Some(StreamingBlob::from(Body::from(bytes)));
        let mut answer = self.files.upload_part(req).await?;
        answer.output.checksum_crc64nvme = sum;
        Ok(answer)
    }

    async fn complete_multipart_upload(
        &self,
        req: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let (bucket, key, id) = (req.input.bucket.clone(), req.input.key.clone(), req.input.upload_id.clone());
        if !self.state.uploads.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&id) {
            return Err(s3_error!(NoSuchUpload));
        }
        let answer = self.files.complete_multipart_upload(req).await?;
        self.state.ended(&id);
        self.state.wrote(&bucket, &key);
        Ok(answer)
    }

    async fn abort_multipart_upload(
        &self,
        req: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        let id = req.input.upload_id.clone();
        let answer = self.files.abort_multipart_upload(req).await?;
        self.state.ended(&id);
        Ok(answer)
    }

    async fn list_parts(&self, req: S3Request<ListPartsInput>) -> S3Result<S3Response<ListPartsOutput>> {
        let mut answer = self.files.list_parts(req).await?;
        for part in answer.output.parts.iter_mut().flatten() {
            part.last_modified = part.last_modified.take().map(|time| {
                let time: time::OffsetDateTime = time.into();
                self.older(time.into())
            });
        }
        Ok(answer)
    }

    async fn list_multipart_uploads(
        &self,
        req: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        let prefix = req.input.prefix.unwrap_or_default();
        let uploads = self.state.uploads.lock().unwrap_or_else(PoisonError::into_inner);
        let these =
            uploads.iter().filter(|(_, (bucket, key, _))| *bucket == req.input.bucket && key.starts_with(&prefix));
        let listed = these.map(|(id, (_, key, begin))| MultipartUpload {
            key: Some(key.clone()),
            upload_id: Some(id.clone()),
            initiated: Some(self.older(*begin)),
            ..Default::default()
        });
        let output = ListMultipartUploadsOutput {
            bucket: Some(req.input.bucket.clone()),
            uploads: Some(listed.collect()),
            is_truncated: Some(false),
            ..Default::default()
        };
        Ok(S3Response::new(output))
    }

    async fn delete_object(&self, req: S3Request<DeleteObjectInput>) -> S3Result<S3Response<DeleteObjectOutput>> {
        self.files.delete_object(req).await
    }

    async fn list_objects_v2(&self, req: S3Request<ListObjectsV2Input>) -> S3Result<S3Response<ListObjectsV2Output>> {
        self.files.list_objects_v2(req).await
    }
}
