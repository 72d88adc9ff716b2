//! Inputs and outputs of a sort that are objects in buckets.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datapipes::locks::Mutex;
use datapipes::{Endpoint, Error, ErrorKind, Locator, Result};
use datapipes_sort::{Input, InputPlace, Output, OutputPlace};

use crate::arguments::sort_args::Parsed;
use crate::objects::{self, AnyObject, ObjectAccess, ObjectAccount, is_object, is_object_path, shown};
use crate::outcome::note;
use crate::remote_memory;

/// The objects of a sort, and what opens them.
pub(super) struct SortObjects {
    access: Option<ObjectAccess>,
    output: Option<String>,
    /// The inputs: what was asked for them is known when all of it was read.
    read: Mutex<Vec<Arc<AnyObject>>>,
    /// What was asked for the output until it was published. The object itself belongs to the sort,
    /// whose failure ends it.
    written: Arc<Mutex<Option<ObjectAccount>>>,
}

impl SortObjects {
    /// Looks for objects among the names.
    pub(super) fn of(parsed: &Parsed, names: &[OsString]) -> Result<SortObjects> {
        if let Some(name) = parsed.output.as_ref().and_then(|name| name.to_str()) {
            remote_memory::refuse("sort", &[name])?;
        }
        let output = parsed.output.as_ref().and_then(|name| name.to_str()).filter(|name| is_object(name));
        let any = output.is_some() || names.iter().any(|name| is_object_path(Path::new(name)));
        Ok(SortObjects {
            access: any.then(ObjectAccess::to_read).transpose()?,
            output: output.map(str::to_owned),
            read: Mutex::default(),
            written: Arc::default(),
        })
    }

    /// Whether the output is an object.
    pub(super) fn has_output(&self) -> bool {
        self.output.is_some()
    }

    /// The inputs by their names. A pattern of objects stands for each of them, in the order of
    /// their keys.
    pub(super) fn inputs(&self, names: &[OsString]) -> Result<Vec<Input>> {
        let mut inputs = Vec::new();
        for name in names {
            match (name.to_str().filter(|name| is_object(name)), &self.access) {
                (Some(address), Some(access)) => {
                    for address in objects::inputs(access, "sort", address)? {
                        let object = Arc::new(access.open(&address)?);
                        self.read.lock().push(object.clone());
                        inputs.push(Input::Place(InputPlace::new(shown(&address), object)?));
                    }
                }
                _ => inputs.push(Input::deferred(Path::new(name))?),
            }
        }
        Ok(inputs)
    }

    /// The object that is to be written, for so many threads.
    pub(super) fn output(&self, inputs: &[Input], threads: usize) -> Result<Output> {
        let Some(address) = &self.output else {
            return Err(Error::new(ErrorKind::InvalidInput, "sort", "the output is no object"));
        };
        let mut total = Some(0u64);
        for input in inputs {
            total = total.zip(input.len()?).map(|(sum, len)| sum.saturating_add(len));
        }
        // A terminator may be added to each input.
        let expected = total.map(|total| total.saturating_add(inputs.len() as u64));
        let object = ObjectAccess::to_write()?.create(address, expected, threads)?;
        object.notes().iter().for_each(|text| note(&format!("dpipe sort: note: {text}\n")));
        let (name, account) = (PathBuf::from(shown(address)), self.written.clone());
        Ok(Output::Place(Arc::new(SortedObject { object, name, account })))
    }

    /// What was asked of servers: for all inputs together, and for the output.
    pub(super) fn accounts(&self) -> Vec<ObjectAccount> {
        let mut inputs = ObjectAccount::default();
        self.read.lock().iter().for_each(|object| inputs.add(object.report()));
        let all = [Some(inputs), self.written.lock().clone()];
        all.into_iter().flatten().filter(|account| account.objects > 0).collect()
    }
}

/// An object that takes sorted records.
#[derive(Debug)]
struct SortedObject {
    object: AnyObject,
    name: PathBuf,
    account: Arc<Mutex<Option<ObjectAccount>>>,
}

impl Locator for SortedObject {
    fn endpoint(&self) -> Endpoint {
        self.object.endpoint()
    }
}

impl OutputPlace for SortedObject {
    fn name(&self) -> &Path {
        &self.name
    }

    fn publish(&self, len: u64) -> Result<()> {
        self.object.publish(len)?;
        *self.account.lock() = Some(self.object.report());
        Ok(())
    }
}
