//! Objects in buckets, in a build with the feature `object`.

use std::path::PathBuf;
use std::sync::Arc;

use datapipes::locks::Mutex;
use datapipes::object::{CreateOptions, Object, ObjectClient};
use datapipes::process::OwningProcess;
use datapipes::sort::{InputPlace, Output, OutputPlace};
use datapipes::{Dram, Endpoint, Locator, Result, Span};

use crate::machine;
use crate::opened::constraints;

/// Whether this build has objects.
pub(crate) const BUILT: bool = true;

/// The settings of the environment that a client was made with.
type Environment = Vec<(String, String)>;

struct Kept {
    client: ObjectClient,
    environment: Environment,
    owner: OwningProcess,
}

/// The client of the last call: its connections are used again as long as the environment says the
/// same.
static CLIENT: Mutex<Option<Kept>> = Mutex::new(None);

fn environment() -> Environment {
    let counts = |name: &str| ObjectClient::reads_variable(name) || name.starts_with("SSL_") || name == "HOME";
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    let mut found: Environment = std::env::vars_os().filter_map(text).filter(|(name, _)| counts(name)).collect();
    found.sort();
    found
}

fn client() -> Result<ObjectClient> {
    let environment = environment();
    let mut kept = CLIENT.lock();
    if let Some(kept) = kept.as_ref().filter(|kept| kept.environment == environment && kept.owner.is_here()) {
        return Ok(kept.client.clone());
    }
    let client = ObjectClient::from_environment()?;
    let made = Kept { client: client.clone(), environment, owner: OwningProcess::here() };
    // A parent's client is left as it is: its thread is not in this process.
    if let Some(old) = kept.replace(made).filter(|old| !old.owner.is_here()) {
        std::mem::forget(old);
    }
    Ok(client)
}

/// An object that is open for reading.
#[derive(Clone)]
pub(crate) struct Source(Arc<Object>);

impl Source {
    pub(crate) fn open(address: &str) -> Result<Source> {
        Ok(Source(Arc::new(client()?.open(address)?)))
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.len()
    }

    /// What names its version: the server's tag, or its length and time.
    pub(crate) fn version(&self) -> String {
        self.0.version().unwrap_or_default()
    }

    /// Reads into memory of at least `len` bytes.
    pub(crate) fn read(&self, offset: u64, target: &Dram, len: u64) -> Result<()> {
        let pipe = machine().connect_with(&*self.0, target, &constraints(len))?;
        pipe.transfer(Span { source: offset, target: 0, len })
    }

    pub(crate) fn place(&self) -> Result<InputPlace> {
        InputPlace::new(PathBuf::from(self.0.address().to_string()), self.0.clone())
    }
}

/// The addresses that a pattern stands for; an address that is no pattern stands for itself.
pub(crate) fn list(address: &str) -> Result<Vec<String>> {
    if !address.ends_with('*') || address.starts_with("http") {
        return Ok(vec![address.to_owned()]);
    }
    Ok(client()?.list(address)?.into_iter().map(|found| found.address.to_string()).collect())
}

/// Removes an object.
pub(crate) fn remove(address: &str) -> Result<()> {
    client()?.remove(address)
}

/// Ends the unfinished uploads to the keys that a pattern stands for, and returns their number.
pub(crate) fn end_uploads(pattern: &str) -> Result<usize> {
    client()?.end_uploads(pattern)
}

/// An object that is being written.
#[derive(Debug)]
pub(crate) struct Target {
    object: Object,
    name: PathBuf,
}

impl Target {
    pub(crate) fn create(address: &str, expected_len: Option<u64>, only_new: bool) -> Result<Target> {
        let options = CreateOptions::default().expected_len(expected_len).only_new(only_new);
        let object = client()?.create(address, options)?;
        Ok(Target { name: PathBuf::from(object.address().to_string()), object })
    }

    pub(crate) fn len(&self) -> u64 {
        self.object.len()
    }

    pub(crate) fn write(&self, offset: u64, source: &Dram, len: u64) -> Result<()> {
        let pipe = machine().connect_with(source, &self.object, &constraints(len))?;
        pipe.transfer(Span { source: 0, target: offset, len })
    }

    pub(crate) fn publish(&self, len: u64) -> Result<()> {
        self.object.publish(len).map(drop)
    }
}

impl Locator for Target {
    fn endpoint(&self) -> Endpoint {
        self.object.endpoint()
    }
}

impl OutputPlace for Target {
    fn name(&self) -> &std::path::Path {
        &self.name
    }

    fn publish(&self, len: u64) -> Result<()> {
        Target::publish(self, len)
    }
}

/// The object that a sort writes.
pub(crate) fn output(address: &str, expected_len: u64) -> Result<Output> {
    Ok(Output::Place(Arc::new(Target::create(address, Some(expected_len), false)?)))
}
