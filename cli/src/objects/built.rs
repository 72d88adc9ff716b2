//! Objects, opened.

use datapipes::locks::Mutex;
use datapipes::object::{ConnectionReport, CreateOptions, Object, ObjectAddress, ObjectClient, escaped_key};
use datapipes::{Endpoint, Locator, Result};

use super::account::{ConnectionAccount, OTHERS, ObjectAccount};
use crate::system::{signals, standard_streams};

/// Pieces of a new object that are written at once.
const WRITERS: usize = 3;

/// The name of a file that is made of an object.
pub(crate) fn file_name(address: &str) -> Option<String> {
    address.parse::<ObjectAddress>().ok()?.file_name().map(str::to_owned)
}

/// The address of an object of this name behind a text that ends in `/`. A name that ends in `*`
/// becomes no pattern.
pub(crate) fn address_in(folder: &str, name: &str) -> String {
    format!("{folder}{}", escaped_key(name))
}

/// The clients of this command: each way has a thread and connections of its own.
static READS: Mutex<Option<ObjectClient>> = Mutex::new(None);
static WRITES: Mutex<Option<ObjectClient>> = Mutex::new(None);

/// How many uploads of this command may have been left at servers.
pub(crate) fn unfinished_uploads() -> u64 {
    [&READS, &WRITES].iter().filter_map(|client| client.lock().as_ref().map(ObjectClient::unfinished_uploads)).sum()
}

/// The connections and credentials of a command, which are made at their first use.
#[derive(Clone, Debug)]
pub(crate) struct ObjectAccess(ObjectClient);

impl ObjectAccess {
    /// Those for objects that are read.
    pub(crate) fn to_read() -> Result<ObjectAccess> {
        ObjectAccess::shared(&READS)
    }

    /// Those for objects that are written, and read beside that.
    pub(crate) fn to_write() -> Result<ObjectAccess> {
        ObjectAccess::shared(&WRITES)
    }

    fn shared(kept: &Mutex<Option<ObjectClient>>) -> Result<ObjectAccess> {
        let mut kept = kept.lock();
        if let Some(client) = &*kept {
            return Ok(ObjectAccess(client.clone()));
        }
        let client = ObjectClient::from_environment()?;
        // A server may say nothing for long.
        let stops = client.clone();
        signals::when_asked(move || {
            stops.stop();
            if stops.is_publishing() {
                // Whether anybody reads it changes nothing.
                standard_streams::note(b"dpipe: the answer to a request that publishes an object is waited for\n");
            }
        })?;
        Ok(ObjectAccess(kept.insert(client).clone()))
    }

    /// Checks that an object can have an address.
    pub(crate) fn check_address(&self, address: &str) -> Result<()> {
        address.parse::<ObjectAddress>().map(drop)
    }

    /// Opens an object for reading.
    pub(crate) fn open(&self, address: &str) -> Result<AnyObject> {
        self.0.open(address).map(AnyObject)
    }

    /// Begins an object that so many threads write at once.
    pub(crate) fn create(&self, address: &str, expected_len: Option<u64>, writers: usize) -> Result<AnyObject> {
        let options = CreateOptions::default().expected_len(expected_len).writers(writers);
        self.0.create(address, options).map(AnyObject)
    }

    /// Begins an object that must not exist when it is published.
    pub(crate) fn create_only_new(&self, address: &str, expected_len: u64) -> Result<AnyObject> {
        let options = CreateOptions::default().expected_len(expected_len).writers(WRITERS).only_new(true);
        self.0.create(address, options).map(AnyObject)
    }

    /// Removes an object.
    pub(crate) fn remove(&self, address: &str) -> Result<()> {
        self.0.remove(address)
    }

    /// The addresses that a pattern stands for; an address that is no pattern stands for itself.
    pub(crate) fn list(&self, address: &str) -> Result<Vec<String>> {
        if !address.parse::<ObjectAddress>()?.is_pattern() {
            return Ok(vec![address.to_owned()]);
        }
        Ok(self.0.list(address)?.into_iter().map(|found| found.address.to_string()).collect())
    }
}

/// An object that is read or written.
#[derive(Debug)]
pub(crate) struct AnyObject(Object);

impl AnyObject {
    pub(crate) fn len(&self) -> u64 {
        self.0.len()
    }

    /// Its address.
    pub(crate) fn address(&self) -> String {
        self.0.address().to_string()
    }

    /// The last part of its key.
    pub(crate) fn file_name(&self) -> Option<&str> {
        self.0.address().file_name()
    }

    /// Bytes of a part, where it is written.
    pub(crate) fn part_bytes(&self) -> Option<usize> {
        self.0.part_bytes().map(|part| usize::try_from(part).unwrap_or(usize::MAX))
    }

    /// Makes it visible.
    pub(crate) fn publish(&self, len: u64) -> Result<()> {
        // The answer to the request that publishes may be what a signal ends.
        signals::undo_warns(format!("{} may be published: look at it", self.0.address()));
        if let Err(error) = self.0.publish(len) {
            // A stop before the request that publishes leaves what was there.
            if !self.0.may_be_published() {
                signals::undo_says(format!("{} is as it was before", self.0.address()));
            }
            return Err(error);
        }
        signals::undo_warns(format!("{} is published", self.0.address()));
        Ok(())
    }

    /// What a user is told of it beside its bytes.
    pub(crate) fn notes(&self) -> Vec<String> {
        let found = self.0.leftovers();
        let mut notes = Vec::new();
        if found.removed > 0 {
            notes.push(format!("{} unfinished uploads to {} were removed", found.removed, self.0.address()));
        }
        if found.left > 0 {
            notes.push(format!(
                "{} unfinished uploads to {} were left: they made progress lately",
                found.left,
                self.0.address()
            ));
        }
        if let Some(why) = &found.unknown {
            notes.push(format!("whether unfinished uploads to {} were left is not known: {why}", self.0.address()));
        }
        notes
    }

    /// Bytes that came from the server, and requests to it.
    pub(crate) fn came(&self) -> (u64, u64) {
        let report = self.0.report();
        (report.received_bytes, report.requests)
    }

    /// What was asked of the server.
    pub(crate) fn report(&self) -> ObjectAccount {
        let report = self.0.report();
        let connection = |one: &ConnectionReport| {
            let ends = one.addresses.map(|(local, server)| format!("{local} to {server}"));
            let account = ConnectionAccount {
                requests: one.requests,
                received_bytes: one.received_bytes,
                sent_bytes: one.sent_bytes,
                busy_seconds: one.busy.as_secs_f64(),
                bytes_per_second: one.bytes_per_second(),
            };
            (ends.unwrap_or_else(|| OTHERS.to_owned()), account)
        };
        ObjectAccount {
            address: self.0.address().to_string(),
            objects: 1,
            requests: report.requests,
            retries: report.retries,
            received_bytes: report.received_bytes,
            sent_bytes: report.sent_bytes,
            at_once: report.connections,
            bytes_per_second: report.bytes_per_second,
            part_bytes: self.0.part_bytes(),
            read_verified: report.read_verified,
            connections: report.by_connection.iter().map(connection).collect(),
        }
    }
}

impl Locator for AnyObject {
    fn endpoint(&self) -> Endpoint {
        self.0.endpoint()
    }
}
