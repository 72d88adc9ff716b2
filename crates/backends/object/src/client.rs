//! What a program opens objects by.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use datapipes_core::{Error, ErrorKind, Result};
use futures_util::future::ready;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use object_store::list::PaginatedListOptions;

use crate::address::{ObjectAddress, ObjectScheme};
use crate::client_state::ClientState;
use crate::options::{CreateOptions, ObjectOptions};
use crate::place::Object;
use crate::reactor::Reactor;
use crate::server::connect::Purpose;
use crate::server::failure::failed;
use crate::server::leftovers;
use crate::server::settings::Settings;
use crate::server::{Store, Transport};

/// The pauses before uploads are asked for once more.
const END_PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(1)];

/// An object of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedObject {
    /// Its address.
    pub address: ObjectAddress,
    /// Its length in bytes.
    pub len: u64,
}

/// The connections to servers, the credentials and the options by which objects are opened. A copy
/// shares them.
///
/// Credentials, regions and endpoints are those of the clouds' own tools: the variables `AWS_*`
/// (with `AWS_ENDPOINT_URL`), `GOOGLE_*` and `AZURE_*`, and the keys in AWS's profile files.
///
/// ```no_run
/// use std::sync::Arc;
/// use datapipes_core::{Dram, Machine, Span, topology::Topology};
/// use datapipes_object::{ObjectBackend, ObjectClient};
/// let client = ObjectClient::from_environment()?;
/// let machine = Machine::new(Topology::discover(), vec![Arc::new(ObjectBackend::new())]);
/// let object = client.open("s3://bucket/key")?;
/// let memory = Dram::allocate(object.len() as usize)?;
/// let pipe = machine.connect(&object, &memory)?;
/// pipe.transfer(Span { source: 0, target: 0, len: object.len() })?;
/// # Ok::<(), datapipes_core::Error>(())
/// ```
#[derive(Clone)]
pub struct ObjectClient(Arc<ClientState>);

impl ObjectClient {
    /// Makes a client with the settings of this process's environment. It starts one thread.
    ///
    /// # Errors
    /// As [`with_options`](Self::with_options).
    pub fn from_environment() -> Result<ObjectClient> {
        ObjectClient::with_options(ObjectOptions::default())
    }

    /// Whether a variable of this name says something to
    /// [`from_environment`](Self::from_environment). Profile files are looked for below `HOME`.
    pub fn reads_variable(name: &str) -> bool {
        Settings::reads(name)
    }

    /// As [`from_environment`](Self::from_environment), with options.
    ///
    /// # Errors
    /// `InvalidInput` for options that make no sense; `System` where the kernel refuses a thread;
    /// `Unavailable` where certificates that are named cannot be read.
    pub fn with_options(options: ObjectOptions) -> Result<ObjectClient> {
        ObjectClient::new(options, Settings::of_environment())
    }

    /// Makes a client with these settings in place of the environment's, by the same names.
    ///
    /// # Errors
    /// As [`with_options`](Self::with_options).
    pub fn with_settings(
        options: ObjectOptions,
        settings: impl IntoIterator<Item = (String, String)>,
    ) -> Result<ObjectClient> {
        ObjectClient::new(options, Settings::of(settings))
    }

    fn new(options: ObjectOptions, settings: Settings) -> Result<ObjectClient> {
        options.check()?;
        let transport = Transport::new(options.idle_time, options.connections, settings.get("AWS_CA_BUNDLE"))?;
        Ok(ObjectClient(Arc::new(ClientState::new(options, settings, transport, Reactor::start()?))))
    }

    /// Opens an object for reading, at the version that it has now: if it changes, reads of it
    /// fail.
    ///
    /// # Errors
    /// `InvalidInput` for an address that makes no sense; `NotFound`, `PermissionDenied`, `Device`
    /// by the server's answer.
    pub fn open(&self, address: &str) -> Result<Object> {
        Object::open(&self.0, address.parse()?)
    }

    /// Begins an object, which appears when it is published ([`Object::publish`]). Unfinished
    /// uploads to the same key that ended processes left are removed.
    ///
    /// # Errors
    /// As [`open`](Self::open); `Unsupported` for HTTP.
    pub fn create(&self, address: &str, options: CreateOptions) -> Result<Object> {
        Object::create(&self.0, address.parse()?, options)
    }

    /// Returns the objects that a pattern stands for, by key: those whose keys are the pattern with
    /// text without `/`, or none, in the place of the `*` at its end.
    ///
    /// # Errors
    /// `InvalidInput` where it is no pattern; `OutOfRange` where there are more objects than
    /// [`ObjectOptions::max_listed`]; `Corrupt` where the server's list makes no sense; as
    /// [`open`](Self::open).
    pub fn list(&self, pattern: &str) -> Result<Vec<ListedObject>> {
        let address: ObjectAddress = pattern.parse()?;
        let (prefix, probe) = prefix_of(&address, "list")?;
        let store = Store::connect(&probe, Purpose::Write, &self.0.settings, &self.0.transport)?;
        let state = self.0.clone();
        self.0
            .reactor
            .run("list", async move { state.unless_stopped("list", listed(&state, &store, &address, &prefix)).await })
    }

    /// Stops all that the client does, for good: requests under way and later ones fail as
    /// `Interrupted`. Objects that are written and not published are ended by their drop as usual;
    /// a request that publishes is not cut. A program calls it when it is asked to end, so that it
    /// does not wait for a server that does not answer.
    pub fn stop(&self) {
        self.0.stop();
    }

    /// Whether the answer to a request that publishes an object is waited for.
    pub fn is_publishing(&self) -> bool {
        self.0.is_publishing()
    }

    /// How many uploads of this client may have been left at servers: those of objects that were
    /// dropped or failed, whose end the server refused or did not confirm in time, and those whose
    /// beginning it did not confirm. A later [`create`](Self::create) of the same key removes
    /// them, and [`end_uploads`](Self::end_uploads).
    pub fn unfinished_uploads(&self) -> u64 {
        self.0.unfinished.load(SeqCst)
    }

    /// Ends all unfinished uploads to the keys that a pattern stands for, as of
    /// [`list`](Self::list), however old they are, and returns how many. It is for keys that only
    /// processes of the caller write, some of which were killed: an upload that is still written
    /// fails. Servers other than those of S3 do not list uploads: then there are none.
    ///
    /// # Errors
    /// `InvalidInput` where it is no pattern; `Unavailable` where they cannot be listed or ended.
    pub fn end_uploads(&self, pattern: &str) -> Result<usize> {
        let address: ObjectAddress = pattern.parse()?;
        let (prefix, probe) = prefix_of(&address, "end uploads")?;
        let store = Store::connect(&probe, Purpose::Write, &self.0.settings, &self.0.transport)?;
        if store.s3.is_none() {
            return Ok(0);
        }
        let state = self.0.clone();
        self.0.reactor.run("end uploads", async move {
            let mut pauses = END_PAUSES.into_iter();
            loop {
                let why = match leftovers::end_all(&store, &state.transport, &prefix).await {
                    Ok(ended) => return Ok(ended),
                    Err(why) => store.secrets.scrub(&why),
                };
                let Some(pause) = pauses.next() else {
                    return Err(Error::new(ErrorKind::Unavailable, "end uploads", format!("{address}: {why}")));
                };
                tokio::time::sleep(pause).await;
            }
        })
    }

    /// Removes an object, for good where the bucket keeps no versions. S3 does not say whether
    /// there was one.
    ///
    /// # Errors
    /// As [`open`](Self::open); `Unsupported` for HTTP.
    pub fn remove(&self, address: &str) -> Result<()> {
        let address: ObjectAddress = address.parse()?;
        if address.is_pattern() || address.scheme() == ObjectScheme::Http {
            let why = format!("{address}: only a single object of a bucket is removed");
            return Err(Error::new(ErrorKind::Unsupported, "remove", why));
        }
        let store = Store::connect(&address, Purpose::Write, &self.0.settings, &self.0.transport)?;
        let state = self.0.clone();
        self.0.reactor.run("remove", async move {
            let mut attempts = state.attempts();
            let once = || stream::once(ready(Ok(store.path.clone()))).boxed();
            while let Err(error) = store.objects.delete_stream(once()).try_next().await {
                let Some(pause) = attempts.after(&error) else {
                    return Err(failed("remove", &address.to_string(), &error, &store.secrets));
                };
                store.exchange.again();
                tokio::time::sleep(pause).await;
            }
            Ok(())
        })
    }
}

/// The part of a pattern's key before the `*`, and an address by which its bucket is asked.
fn prefix_of(address: &ObjectAddress, operation: &'static str) -> Result<(String, ObjectAddress)> {
    let Some(prefix) = address.key().strip_suffix('*').filter(|_| address.is_pattern()) else {
        let why = format!("{address} is no pattern of objects");
        return Err(
            Error::new(ErrorKind::InvalidInput, operation, why).with_advice("end it in `*`, as s3://BUCKET/PREFIX/*")
        );
    };
    if prefix.contains('*') {
        let why = format!("{address}: a `*` that is not the last character");
        return Err(Error::new(ErrorKind::InvalidInput, operation, why));
    }
    let probe = if prefix.is_empty() { address.clone() } else { address.with_key(&format!("{prefix}x"))? };
    Ok((prefix.to_owned(), probe))
}

/// Lists page by page. A server's list is not trusted: its keys must ascend and have the prefix.
async fn listed(
    state: &ClientState,
    store: &Store,
    address: &ObjectAddress,
    prefix: &str,
) -> Result<Vec<ListedObject>> {
    let Some(lists) = &store.lists else {
        debug_assert_eq!(address.scheme(), ObjectScheme::Http);
        return Err(Error::new(ErrorKind::Unsupported, "list", format!("{address}: a web server has no list")));
    };
    let corrupt = |why: &str| Error::new(ErrorKind::Corrupt, "list", format!("{address}: {why}"));
    let mut found: Vec<ListedObject> = Vec::new();
    let mut last: Option<String> = None;
    let mut token = None;
    let mut pages = 0;
    loop {
        let mut attempts = state.attempts();
        let page = loop {
            let options =
                PaginatedListOptions { delimiter: Some("/".into()), page_token: token.clone(), ..Default::default() };
            let given = (!prefix.is_empty()).then_some(prefix);
            match lists.list_paginated(given, options).await {
                Ok(page) => break page,
                Err(error) => {
                    let Some(pause) = attempts.after(&error) else {
                        return Err(failed("list", &address.to_string(), &error, &store.secrets));
                    };
                    store.exchange.again();
                    tokio::time::sleep(pause).await;
                }
            }
        };
        for meta in page.result.objects {
            let key = meta.location.as_ref();
            // The key of this one ends in `/`, which the protocols' library does not express. An
            // empty one stands for a folder.
            if prefix.strip_suffix('/') == Some(key) {
                if meta.size == 0 {
                    continue;
                }
                let why = format!("{address}: the object `{prefix}` has bytes, and a key that ends in `/`");
                return Err(Error::new(ErrorKind::Unsupported, "list", why).with_advice("give it another key"));
            }
            if !key.starts_with(prefix) || last.as_deref().is_some_and(|last| key <= last) {
                return Err(corrupt("the server's list is not in order, or of other keys"));
            }
            last = Some(key.to_owned());
            if found.len() >= state.options.max_listed {
                let why = format!("{address}: more than {} objects", state.options.max_listed);
                return Err(Error::new(ErrorKind::OutOfRange, "list", why).with_advice("give a longer prefix"));
            }
            found.push(ListedObject { address: address.with_key(key)?, len: meta.size });
        }
        pages += 1;
        // A page of folders alone has no object; so many of them in a row lead nowhere.
        if pages > 1000 + found.len() {
            return Err(corrupt("the server's list does not end"));
        }
        // Some servers give an empty one at the end.
        match page.page_token.filter(|next| !next.is_empty()) {
            Some(next) if token.as_ref() != Some(&next) => token = Some(next),
            Some(_) => return Err(corrupt("the server's list does not go on")),
            None => return Ok(found),
        }
    }
}

impl fmt::Debug for ObjectClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither settings nor addresses: they may hold secrets.
        f.write_str("ObjectClient")
    }
}
