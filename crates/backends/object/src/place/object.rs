//! The locator.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use datapipes_core::locator::{Endpoint, EndpointHandle, Locator, PlaceFacts};
use datapipes_core::{Error, ErrorKind, Persistence, Reach, Result};

use super::handle::{ObjectPlace, Side};
use super::parts::Parts;
use super::pinned::Pinned;
use super::published::PublishedObject;
use super::upload::Upload;
use crate::address::{ObjectAddress, ObjectScheme};
use crate::client_state::ClientState;
use crate::costs::USUAL_PIECE;
use crate::options::{CreateOptions, MAX_PART, MAX_PARTS, MIN_PART, ObjectOptions};
use crate::server::connect::Purpose;
use crate::server::exchange::Exchange;
use crate::server::leftovers;
use crate::server::{ConnectionReport, Store, connections};

/// How long a writer looks for uploads that ended processes left.
const LEFTOVERS_TIME: Duration = Duration::from_secs(5);

/// The unfinished uploads to a key that were found when it was created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leftovers {
    /// How many were removed, because they had made no progress for a while.
    pub removed: usize,
    /// How many were left, because another process may still write them.
    pub left: usize,
    /// Why they could not be listed or removed, where that is so.
    pub unknown: Option<String>,
}

/// What was asked of the server for one object.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ObjectReport {
    /// Requests, with those that were made again.
    pub requests: u64,
    /// Requests that were made again after a failure.
    pub retries: u64,
    /// Bytes of answers that came.
    pub received_bytes: u64,
    /// Bytes of requests that went.
    pub sent_bytes: u64,
    /// How many requests are made at once, by the rates seen.
    pub connections: u32,
    /// The best rate of all connections of the client together, in bytes per second; 0 if none was
    /// seen yet.
    pub bytes_per_second: f64,
    /// What each connection carried.
    pub by_connection: Vec<ConnectionReport>,
    /// The checksum that travels with written bytes and is checked by the server, or by which its
    /// answers are checked, in words.
    pub write_checksum: &'static str,
    /// Whether all bytes were read, and had the server's checksum of the whole object.
    pub read_verified: bool,
}

/// An object in a bucket, as a place.
///
/// One that was opened is read at the version that it had then. One that was created is written in
/// parts, in any order but each byte once, and appears as a whole when it is published. If it is
/// dropped before, transfers to it fail from then on, those under way too, and its parts are
/// removed. The drop waits for the server to have removed them, for 5 seconds at most.
pub struct Object {
    place: Arc<ObjectPlace>,
    facts: Arc<PlaceFacts>,
    address: ObjectAddress,
    leftovers: Leftovers,
}

impl Object {
    pub(crate) fn open(client: &Arc<ClientState>, address: ObjectAddress) -> Result<Object> {
        refuse_pattern(&address, "list it, and open each")?;
        let state = client.clone();
        let store = Store::connect(&address, Purpose::Read, &state.settings, &state.transport)?;
        let (looks, name) = (store.clone(), address.to_string());
        let pinned = {
            let (state, store, name) = (state.clone(), store.clone(), name.clone());
            client
                .reactor
                .run("open", async move { state.unless_stopped("open", Pinned::look(&state, &store, &name)).await })?
        };
        let facts = PlaceFacts {
            kind: "object",
            name: name.clone(),
            reach: Reach::Server,
            granularity: 1,
            alignment: 1,
            persistence: Persistence::AfterSync,
            len: Some(pinned.len),
            node: None,
            core: None,
        };
        let (side, was_published, may_be_published) =
            (Side::Source(pinned), AtomicBool::new(false), AtomicBool::new(false));
        let place = ObjectPlace { client: state, store, looks, name, side, was_published, may_be_published };
        Ok(Object { place: Arc::new(place), facts: Arc::new(facts), address, leftovers: Leftovers::default() })
    }

    pub(crate) fn create(client: &Arc<ClientState>, address: ObjectAddress, options: CreateOptions) -> Result<Object> {
        refuse_pattern(&address, "write %2A for the `*` of a key that ends in one")?;
        if address.scheme() == ObjectScheme::Http {
            let why = format!("{address}: a web server is only read");
            return Err(Error::new(ErrorKind::Unsupported, "create", why).with_advice("write to s3://, gs:// or az://"));
        }
        let state = client.clone();
        let store = Store::connect(&address, Purpose::Write, &state.settings, &state.transport)?;
        let looks = Store::connect(&address, Purpose::Read, &state.settings, &state.transport)?;
        let name = address.to_string();
        let needed = needed_part_bytes(options.expected_len)
            .map_err(|why| Error::new(ErrorKind::InvalidInput, "create", format!("{name}: {why}")))?;
        let leftovers = {
            let (state, store) = (state.clone(), store.clone());
            client.reactor.run("create", async move {
                // It is housekeeping: a server with many uploads, or a slow one, does not delay the
                // writer.
                let removing = tokio::time::timeout(LEFTOVERS_TIME, remove_leftovers(&state, &store));
                let late =
                    |_| Leftovers { unknown: Some("looking for them took too long".into()), ..Leftovers::default() };
                state.unless_stopped("create", async { Ok(removing.await.unwrap_or_else(late)) }).await
            })?
        };
        let part_bytes = part_bytes(&state.options, needed);
        let buffers = usize::try_from(state.options.buffered_bytes / part_bytes).unwrap_or(usize::MAX);
        let max_buffers = buffers.max(options.writers.saturating_mul(2).saturating_add(2));
        let upload = Arc::new(Upload::new(Parts::new(part_bytes, max_buffers, MAX_PARTS), options.only_new));
        let facts = PlaceFacts {
            kind: "object",
            name: name.clone(),
            reach: Reach::Server,
            granularity: 1,
            alignment: if part_bytes.is_power_of_two() { part_bytes } else { 1 << 20 },
            persistence: Persistence::AfterSync,
            len: None,
            node: None,
            core: None,
        };
        let (side, was_published, may_be_published) =
            (Side::Target(upload), AtomicBool::new(false), AtomicBool::new(false));
        let place = ObjectPlace { client: state, store, looks, name, side, was_published, may_be_published };
        Ok(Object { place: Arc::new(place), facts: Arc::new(facts), address, leftovers })
    }

    /// Its address.
    pub fn address(&self) -> &ObjectAddress {
        &self.address
    }

    /// Its length in bytes: of the version that is read, or of what was written so far.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        match &self.place.side {
            Side::Source(pinned) => pinned.len,
            Side::Target(upload) => upload.parts.lock().end,
        }
    }

    /// What names the version that is read: the server's tag, or the length and the time of change.
    /// `None` where it is written.
    pub fn version(&self) -> Option<String> {
        match &self.place.side {
            Side::Source(pinned) => Some(pinned.text()),
            Side::Target(_) => None,
        }
    }

    /// The unfinished uploads that were found when it was created.
    pub fn leftovers(&self) -> &Leftovers {
        &self.leftovers
    }

    /// Bytes of a part, where the object is written.
    pub fn part_bytes(&self) -> Option<u64> {
        match &self.place.side {
            Side::Source(_) => None,
            Side::Target(upload) => Some(upload.parts.lock().part_bytes),
        }
    }

    /// Makes the object visible as a whole, in the place of one with its key. `len` is what the
    /// caller knows to have written. The object is looked at afterwards: its length, and its
    /// checksum where the server has one, must be those of the bytes that were written.
    ///
    /// Bytes that were skipped are zeros, as in a file, but a part that was skipped as a whole is
    /// refused. An object that is shorter than a part can be written on and published again.
    ///
    /// # Errors
    /// `InvalidInput` where another length was written, parts are missing, or the object had to be
    /// new and exists; `Busy` while transfers are under way; the error of a part that failed;
    /// `Corrupt` where the server has something else afterwards. Unless the error says that the
    /// object may be published, nothing has changed at the server.
    pub fn publish(&self, len: u64) -> Result<PublishedObject> {
        match &self.place.side {
            Side::Target(upload) => self.place.publish(upload, len),
            Side::Source(_) => {
                let why = format!("{}: it is open for reading", self.address);
                Err(Error::new(ErrorKind::InvalidInput, "publish", why).with_advice("create it to write it"))
            }
        }
    }

    /// Whether it may be visible at the server: a request that publishes it was made, and no answer
    /// said that it was not done.
    pub fn may_be_published(&self) -> bool {
        self.place.may_be_published.load(SeqCst)
    }

    /// What was asked of the server for it so far.
    pub fn report(&self) -> ObjectReport {
        let (store, client) = (&self.place.store, &self.place.client);
        let mut exchanges = vec![&store.exchange];
        if !Arc::ptr_eq(&store.exchange, &self.place.looks.exchange) {
            exchanges.push(&self.place.looks.exchange);
        }
        let sum = |of: fn(&Exchange) -> &AtomicU64| exchanges.iter().map(|one| of(one).load(Relaxed)).sum();
        let (pace, read_verified) = match &self.place.side {
            Side::Source(pinned) => (&client.reads, pinned.is_verified()),
            Side::Target(_) => (&client.writes, false),
        };
        ObjectReport {
            requests: sum(|exchange| &exchange.requests),
            retries: sum(|exchange| &exchange.retries),
            received_bytes: sum(|exchange| &exchange.connections.received),
            sent_bytes: sum(|exchange| &exchange.sent),
            connections: pace.level(),
            bytes_per_second: pace.rate(),
            by_connection: connections::reports(exchanges.iter().map(|one| &*one.connections)),
            write_checksum: store.checksum,
            read_verified,
        }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        if let Side::Target(upload) = &self.place.side {
            self.place.abandon(upload);
        }
    }
}

impl Locator for Object {
    fn endpoint(&self) -> Endpoint {
        Endpoint { facts: self.facts.clone(), handle: EndpointHandle::Other(self.place.clone()) }
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Object({})", self.address)
    }
}

fn refuse_pattern(address: &ObjectAddress, advice: &'static str) -> Result<()> {
    if address.is_pattern() {
        let why = format!("{address} stands for several objects");
        return Err(Error::new(ErrorKind::InvalidInput, "open", why).with_advice(advice));
    }
    Ok(())
}

/// The least bytes of a part with which an object of this length has no more parts than servers
/// take.
fn needed_part_bytes(expected: Option<u64>) -> std::result::Result<u64, String> {
    let needed = expected.unwrap_or(0).div_ceil(MAX_PARTS).div_ceil(1 << 20) << 20;
    if needed > MAX_PART {
        return Err(format!("{} bytes are more than {MAX_PARTS} parts of 5 GiB", expected.unwrap_or(0)));
    }
    Ok(needed)
}

/// Bytes of a part.
fn part_bytes(options: &ObjectOptions, needed: u64) -> u64 {
    options.part_bytes.unwrap_or(USUAL_PIECE).max(needed).clamp(MIN_PART, MAX_PART)
}

/// Removes unfinished uploads without progress.
async fn remove_leftovers(state: &ClientState, store: &Store) -> Leftovers {
    let mut leftovers = Leftovers::default();
    let (Some(_), Some(uploads)) = (&store.s3, &store.uploads) else { return leftovers };
    match leftovers::unfinished(store, &state.transport).await {
        Err(why) => leftovers.unknown = Some(store.secrets.scrub(&why)),
        Ok(found) => {
            for upload in found {
                if upload.idle < state.options.leftover_age {
                    leftovers.left += 1;
                } else if uploads.abort_multipart(&store.path, &upload.id).await.is_ok() {
                    leftovers.removed += 1;
                } else {
                    leftovers.left += 1;
                    leftovers.unknown = Some("an unfinished upload could not be removed".into());
                }
            }
        }
    }
    leftovers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_as_long_as_the_object_needs() {
        let of = |part: Option<u64>, len: Option<u64>| {
            let options = ObjectOptions::default().part_bytes(part);
            needed_part_bytes(len).map(|needed| super::part_bytes(&options, needed))
        };
        assert_eq!(of(None, None), Ok(8 << 20));
        assert_eq!(of(Some(5 << 20), Some(1)), Ok(5 << 20));
        assert_eq!(of(None, Some(1 << 40)), Ok(105 << 20));
        assert!(of(None, Some(u64::MAX)).is_err());
    }
}
