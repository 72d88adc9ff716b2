//! Sending parts, publishing, giving up.
//!
//! ```text
//! first part that is whole -> begin an upload; each part -> put (again after a passing failure)
//! publish(len): wait for parts on their way; send those that are not whole
//!               where it must be new -> look whether there is one
//!               one part that was never sent -> one request puts the object
//!               otherwise                    -> complete the upload
//!               look at the object: its length, tag and checksum are what was sent
//! failure, drop of the user's value: cut what is under way, then abort the upload
//! ```
//!
//! Before the request that publishes, readers see nothing of the object; after it, all of it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use bytes::Bytes;
use datapipes_core::memory::Lease;
use datapipes_core::{Error, ErrorKind, Result};
use futures_util::future::{Either, join_all, select};
use object_store::multipart::{MultipartStore, PartId};
use object_store::{MultipartId, PutOptions, PutPayload};

use super::handle::ObjectPlace;
use super::looking::Sent;
use super::parts::{DROPPED, PartBuffer, PartState, Phase, advised};
use super::published::PublishedObject;
use super::upload::Upload;
use crate::client_state::{Publishing, stopped};
use crate::server::byte_sum::ByteSum;
use crate::server::failure::{answer_is_missing, failed, may_be_done, status, upload_is_gone};

/// Bytes that a request hands to its connection at once; the idle time counts from piece to piece.
const PIECE: usize = 256 << 10;
/// How long a failed or dropped object waits for its upload to be aborted.
const ABORT_TIME: Duration = Duration::from_secs(5);
/// How often an upload is aborted of which a part was cut on its way.
const MAX_ABORTS: u32 = 3;
/// The pause between them.
const ABORT_PAUSE: Duration = Duration::from_millis(20);

impl ObjectPlace {
    fn uploads(&self) -> Result<&Arc<dyn MultipartStore>> {
        let none = || Error::new(ErrorKind::Unsupported, "write", format!("{}: a web server is only read", self.name));
        self.store.uploads.as_ref().ok_or_else(none)
    }

    pub(super) fn failed(&self, operation: &'static str, error: &object_store::Error) -> Error {
        failed(operation, &self.name, error, &self.store.secrets)
    }

    /// The upload's name at the server; the first caller begins it.
    async fn upload_id(&self, upload: &Upload) -> Result<String> {
        // It is not cut: an upload whose name never came could not be aborted.
        let begin = || async {
            let uploads = self.uploads()?;
            let mut attempts = self.client.attempts();
            loop {
                if upload.has_ended() {
                    return Err(self.ended());
                }
                if self.client.has_stopped() {
                    return Err(stopped("write"));
                }
                match uploads.create_multipart(&self.store.path).await {
                    Ok(id) => return Ok(id),
                    Err(error) => {
                        // Its name never comes, so it cannot be ended.
                        if answer_is_missing(&error) {
                            self.client.unfinished.fetch_add(1, SeqCst);
                        }
                        let Some(pause) = attempts.after(&error) else { return Err(self.failed("begin", &error)) };
                        self.store.exchange.again();
                        select(pin!(self.end_of(upload)), pin!(tokio::time::sleep(pause))).await;
                    }
                }
            }
        };
        upload.id.get_or_try_init(begin).await.cloned()
    }

    /// The error of a write to an object that nobody can publish any more.
    fn ended(&self) -> Error {
        Error::new(ErrorKind::InvalidInput, "write", format!("{}: {DROPPED}", self.name))
    }

    /// Waits until no part is to be sent any more, and returns why.
    async fn end_of(&self, upload: &Upload) -> Error {
        match select(pin!(upload.ended()), pin!(self.client.has_to_stop())).await {
            Either::Left(_) => self.ended(),
            Either::Right(_) => stopped("write"),
        }
    }

    /// Sends a part, and again where that fails for a passing reason.
    pub(crate) async fn send_part(&self, upload: &Arc<Upload>, number: u32, bytes: Bytes) -> Result<PartId> {
        let _counted = upload.request();
        let id = self.upload_id(upload).await?;
        self.note_sum(number + 1, &bytes);
        let at = upload.parts.lock().part_bytes.saturating_mul(u64::from(number));
        let put = self.put_part(&id, number, at, bytes);
        match select(pin!(self.end_of(upload)), pin!(put)).await {
            Either::Left((error, _)) => {
                upload.was_cut.store(true, SeqCst);
                Err(error)
            }
            Either::Right((part, _)) => part,
        }
    }

    /// Notes the checksum of what is sent, where it does not travel with it.
    fn note_sum(&self, number: u32, bytes: &[u8]) {
        if let Some(kind) = self.store.later_sum {
            self.store.exchange.sent_part(number, ByteSum { kind, value: kind.of(bytes) });
        }
    }

    async fn put_part(&self, id: &MultipartId, number: u32, at: u64, bytes: Bytes) -> Result<PartId> {
        let (uploads, len) = (self.uploads()?, bytes.len() as u64);
        let (payload, mut attempts) = (in_pieces(bytes), self.client.attempts());
        loop {
            let mut turn = self.client.writes.enter().await;
            match uploads.put_part(&self.store.path, id, number as usize, payload.clone()).await {
                Ok(part) => {
                    turn.moved(len);
                    return Ok(part);
                }
                Err(error) => {
                    drop(turn);
                    let Some(pause) = attempts.after(&error) else {
                        return Err(self.failed("write", &error).with_offset(at));
                    };
                    self.store.exchange.again();
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    /// Sends a part from its buffer while its writer goes on.
    pub(crate) fn send_later(self: &Arc<Self>, upload: &Arc<Upload>, number: u32, buffer: PartBuffer) {
        let (place, upload) = (self.clone(), upload.clone());
        // Counted at once: what ends the upload waits for tasks that have not begun.
        let counted = upload.request();
        self.client.reactor.clone().spawn(async move {
            let _counted = counted;
            let len = buffer.memory.len();
            if let Err(error) = place.send_buffer(&upload, number, buffer, len).await {
                upload.fail(&error);
            }
        });
    }

    /// Sends the first `len` bytes of a buffer as a part, and gives the buffer back.
    async fn send_buffer(&self, upload: &Arc<Upload>, number: u32, buffer: PartBuffer, len: usize) -> Result<()> {
        // Whatever happens in between, the buffer counts as arrived.
        let returned = Returned { upload, memory: Some(buffer.memory) };
        let memory = returned.memory.as_ref().map(|memory| memory.range(0, len)?.lease()).transpose()?;
        let Some(lease) = memory else { return Ok(()) };
        let id = self.send_part(upload, number, Bytes::from_owner(BufferBytes(lease))).await?;
        upload.parts.lock().states.insert(number, PartState::Stored { id, len: len as u64 });
        Ok(())
    }

    /// Makes the object visible, with this length.
    pub(crate) fn publish(self: &Arc<Self>, upload: &Arc<Upload>, len: u64) -> Result<PublishedObject> {
        self.client.reactor.check("publish")?;
        let refuse = |kind, why: String| Error::new(kind, "publish", format!("{}: {why}", self.name));
        {
            let mut parts = upload.parts.lock();
            match &parts.phase {
                // What was on its way was stopped, too: less may have been written than is asked.
                Phase::Open if self.client.has_stopped() => return Err(stopped("publish")),
                Phase::Open => {}
                Phase::Published(object) if object.len == len => return Ok(object.clone()),
                Phase::Published(_) => return Err(refuse(ErrorKind::InvalidInput, "it is published already".into())),
                Phase::Publishing => return Err(refuse(ErrorKind::Busy, "it is being published".into())),
                Phase::Failed(kind, why, advice) => {
                    return Err(advised(refuse(*kind, format!("a part of it failed: {why}")), advice));
                }
                Phase::Dropped => return Err(refuse(ErrorKind::InvalidInput, DROPPED.into())),
            }
            if upload.active.load(SeqCst) > 0 {
                let error = refuse(ErrorKind::Busy, "transfers to it are under way".into());
                return Err(error.with_advice("wait for them"));
            }
            if parts.end != len {
                let why = format!("{len} bytes are to be published, and {} were written", parts.end);
                return Err(refuse(ErrorKind::InvalidInput, why));
            }
            parts.phase = Phase::Publishing;
        }
        let (place, its) = (self.clone(), upload.clone());
        match self.client.reactor.run("publish", async move { place.publish_now(&its, len).await }) {
            Ok(object) => {
                upload.parts.lock().phase = Phase::Published(object.clone());
                Ok(object)
            }
            Err(error) => {
                upload.fail(&error);
                self.abandon(upload);
                Err(error)
            }
        }
    }

    async fn publish_now(&self, upload: &Arc<Upload>, len: u64) -> Result<PublishedObject> {
        loop {
            if self.client.has_stopped() {
                return Err(stopped("publish"));
            }
            let arrived = upload.changed.notified();
            let mut arrived = std::pin::pin!(arrived);
            // From here on no notice is missed.
            arrived.as_mut().enable();
            {
                let parts = upload.parts.lock();
                if let Phase::Failed(kind, why, advice) = &parts.phase {
                    let why = format!("{}: a part of it failed: {why}", self.name);
                    return Err(advised(Error::new(*kind, "publish", why), advice));
                }
                if parts.on_the_way == 0 {
                    break;
                }
            }
            arrived.await;
        }
        self.store.exchange.only_new.store(self.is_only_new(upload), SeqCst);
        if self.is_only_new(upload) {
            self.refuse_existing().await?;
        }
        let one =
            upload.id.get().is_none() && upload.parts.lock().is_one_buffer() && len <= upload.parts.lock().part_bytes;
        let sent = if one { self.put_whole(upload, len).await? } else { self.complete(upload, len).await? };
        self.verify(len, sent).await
    }

    /// Waits for a pause, if there is to be another attempt. A request that publishes is not cut,
    /// but none is begun once the client was stopped.
    async fn publishes_again(&self, pause: Option<Duration>) -> bool {
        let Some(pause) = pause.filter(|_| !self.client.has_stopped()) else { return false };
        select(pin!(self.client.has_to_stop()), pin!(tokio::time::sleep(pause))).await;
        if self.client.has_stopped() {
            return false;
        }
        self.store.exchange.again();
        true
    }

    /// Notes that a request that publishes is made, until its answer says otherwise.
    fn asks_to_publish(&self) -> Publishing<'_> {
        self.may_be_published.store(true, SeqCst);
        self.client.publishes()
    }

    fn is_only_new(&self, upload: &Upload) -> bool {
        // What is published again replaces what this value published before.
        upload.only_new && !self.was_published.load(SeqCst)
    }

    /// Puts an object of one part by one request.
    async fn put_whole(&self, upload: &Upload, len: u64) -> Result<Sent> {
        let bytes = {
            let parts = upload.parts.lock();
            match parts.states.get(&0) {
                Some(PartState::Filling(buffer)) => Bytes::from_owner(BufferBytes(without_gaps(buffer, len)?)),
                _ => Bytes::new(),
            }
        };
        self.note_sum(0, &bytes);
        let (payload, mut attempts) = (in_pieces(bytes), self.client.attempts());
        let mut perhaps_done = false;
        loop {
            let publishing = self.asks_to_publish();
            let put = self.store.objects.put_opts(&self.store.path, payload.clone(), PutOptions::default()).await;
            drop(publishing);
            match put {
                Ok(put) => {
                    return Ok(Sent { e_tag: put.e_tag, sum: self.store.exchange.part_sum(0), is_lost: false });
                }
                Err(error) => {
                    perhaps_done |= may_be_done(&error);
                    self.may_be_published.store(perhaps_done, SeqCst);
                    if !self.publishes_again(attempts.after_publishing(&error)).await {
                        return Err(self.unpublished(&error, perhaps_done));
                    }
                }
            }
        }
    }

    /// Sends what is left and completes the upload.
    async fn complete(&self, upload: &Arc<Upload>, len: u64) -> Result<Sent> {
        let (part_bytes, numbers): (u64, Vec<u32>) = {
            let parts = upload.parts.lock();
            let filling = parts.states.iter().filter(|(_, state)| matches!(state, PartState::Filling(_)));
            (parts.part_bytes, filling.map(|(number, _)| *number).collect())
        };
        let len_of = |number: u32| len.saturating_sub(u64::from(number) * part_bytes).min(part_bytes);
        let rest = numbers.into_iter().map(|number| async move {
            let buffer = upload.parts.lock().take(number);
            let Some(buffer) = buffer else { return Ok(()) };
            drop(without_gaps(&buffer, len_of(number))?);
            let len = usize::try_from(len_of(number)).unwrap_or(usize::MAX);
            self.send_buffer(upload, number, buffer, len).await
        });
        join_all(rest).await.into_iter().collect::<Result<()>>()?;

        let mut ids = Vec::new();
        let mut sum: Option<ByteSum> = None;
        {
            let mut parts = upload.parts.lock();
            let count = u32::try_from(len.div_ceil(part_bytes)).unwrap_or(u32::MAX);
            for number in 0..count {
                let (at, expected) = (u64::from(number) * part_bytes, len_of(number));
                match parts.states.get_mut(&number) {
                    Some(PartState::Stored { id, len }) if *len == expected => {
                        ids.push(PartId { content_id: id.content_id.clone() })
                    }
                    _ => {
                        let why = format!("{}: bytes {at} to {} were not written", self.name, at + expected);
                        return Err(Error::new(ErrorKind::InvalidInput, "publish", why).with_offset(at));
                    }
                }
                let part = self.store.exchange.part_sum(number + 1);
                sum = match number {
                    0 => part,
                    _ => sum.zip(part).filter(|(sum, part)| sum.kind == part.kind).map(|(sum, part)| ByteSum {
                        kind: sum.kind,
                        value: sum.kind.join(sum.value, part.value, expected),
                    }),
                };
            }
        }
        let id = self.upload_id(upload).await?;
        let (mut attempts, mut perhaps_done) = (self.client.attempts(), false);
        loop {
            let copies = ids.iter().map(|id| PartId { content_id: id.content_id.clone() }).collect();
            let publishing = self.asks_to_publish();
            let completed = self.uploads()?.complete_multipart(&self.store.path, &id, copies).await;
            drop(publishing);
            match completed {
                Ok(put) => return Ok(Sent { e_tag: put.e_tag, sum, is_lost: false }),
                // An attempt whose answer was lost may have succeeded: the upload is gone then.
                Err(error) if perhaps_done && upload_is_gone(&error) => {
                    return Ok(Sent { e_tag: None, sum, is_lost: true });
                }
                Err(error) => {
                    perhaps_done |= may_be_done(&error);
                    self.may_be_published.store(perhaps_done, SeqCst);
                    if !self.publishes_again(attempts.after_publishing(&error)).await {
                        return Err(self.unpublished(&error, perhaps_done));
                    }
                }
            }
        }
    }

    /// Ends the upload, and aborts it if there is one. It waits for that up to a bound; what takes
    /// longer goes on without the caller.
    pub(crate) fn abandon(&self, upload: &Arc<Upload>) {
        if self.client.reactor.check("drop").is_err() || !upload.end() {
            return;
        }
        let Some(uploads) = self.store.uploads.clone() else { return };
        let (path, client, exchange) = (self.store.path.clone(), self.client.clone(), self.store.exchange.clone());
        let upload = upload.clone();
        // Until it is known to be ended, it may be left.
        client.unfinished.fetch_add(1, SeqCst);
        // The task keeps the thread that it runs on.
        self.client.reactor.finish(ABORT_TIME, async move {
            upload.quiet().await;
            let is_ended = || {
                client.unfinished.fetch_sub(1, SeqCst);
            };
            let Some(id) = upload.id.get() else { return is_ended() };
            for attempt in 0..MAX_ABORTS {
                let mut attempts = client.attempts();
                while let Err(error) = uploads.abort_multipart(&path, id).await {
                    // Some servers refuse the end of what has ended otherwise than by 404.
                    if status(&error) == Some(404) || attempt > 0 && status(&error).is_some() {
                        return is_ended();
                    }
                    // It cannot be aborted: then it is a leftover, which the next writer of the key
                    // removes.
                    let Some(pause) = attempts.after(&error) else { return };
                    exchange.again();
                    tokio::time::sleep(pause).await;
                }
                if !upload.was_cut.load(SeqCst) {
                    return is_ended();
                }
                // A part that was cut may be stored after the upload was aborted, so it is aborted
                // until the server does not know it any more.
                tokio::time::sleep(ABORT_PAUSE).await;
            }
            is_ended();
        });
    }
}

/// Gives a buffer back when its part arrived, failed, or its task ended.
struct Returned<'a> {
    upload: &'a Upload,
    memory: Option<datapipes_core::Dram>,
}

impl Drop for Returned<'_> {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.upload.parts.lock().gave_back(memory);
        }
        self.upload.changed.notify_waiters();
    }
}

/// Bytes of a buffer for a request.
struct BufferBytes(Lease);

impl AsRef<[u8]> for BufferBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// A buffer's first bytes, with zeros where none were written, as in a file.
fn without_gaps(buffer: &PartBuffer, len: u64) -> Result<Lease> {
    let gaps = buffer.covered.gaps(len);
    if !gaps.is_empty() {
        let mut bytes = buffer.memory.lease_mut()?;
        for gap in gaps {
            let range =
                usize::try_from(gap.start).unwrap_or(usize::MAX)..usize::try_from(gap.end).unwrap_or(usize::MAX);
            if let Some(gap) = bytes.get_mut(range) {
                gap.fill(0);
            }
        }
    }
    buffer.memory.range(0, usize::try_from(len).unwrap_or(usize::MAX))?.lease()
}

/// A payload whose pieces are handed over one after another.
fn in_pieces(bytes: Bytes) -> PutPayload {
    (0..bytes.len()).step_by(PIECE).map(|at| bytes.slice(at..bytes.len().min(at + PIECE))).collect()
}
