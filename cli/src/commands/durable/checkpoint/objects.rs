//! Checkpoints that are objects of a bucket: each is one object, named as a file would be.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use datapipes::{Endpoint, Error, ErrorKind, Locator, Machine, Result};
use datapipes_durable::checkpoint::{
    CheckpointPlaces, CheckpointSource, CheckpointTarget, Checkpoints, checkpoint_name, checkpoint_number,
};

use crate::objects::{AnyObject, ObjectAccess, is_object};
use crate::outcome::note;

/// The checkpoints of a folder, or those whose keys begin with a prefix.
pub(super) fn checkpoints(machine: &Machine, dir: &Path) -> Result<Checkpoints> {
    let Some(address) = dir.to_str().filter(|dir| is_object(dir)) else { return Ok(Checkpoints::at(machine, dir)) };
    if address.starts_with("http") || address.contains(['*', '?']) {
        let why = format!("{}: a bucket and a prefix of keys are needed", crate::objects::shown(address));
        let error = Error::new(ErrorKind::InvalidInput, "checkpoint", why);
        return Err(error.with_advice("write s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX"));
    }
    let (access, prefix) = (ObjectAccess::to_write()?, address.trim_end_matches('/').to_owned());
    Ok(Checkpoints::over(machine, Arc::new(ObjectPlaces { access, name: PathBuf::from(&prefix), prefix })))
}

/// Objects whose keys are a prefix and the name of a checkpoint.
struct ObjectPlaces {
    access: ObjectAccess,
    /// The address without the last `/`.
    prefix: String,
    name: PathBuf,
}

impl ObjectPlaces {
    fn address(&self, number: u64) -> String {
        format!("{}/{}", self.prefix, checkpoint_name(number))
    }
}

impl CheckpointPlaces for ObjectPlaces {
    fn name(&self) -> &Path {
        &self.name
    }

    fn numbers(&self) -> Result<Vec<u64>> {
        // The digits are as many for all numbers, so the order of keys is that of numbers.
        let found = self.access.list(&format!("{}/*", self.prefix))?;
        Ok(found.iter().filter_map(|address| checkpoint_number(address.rsplit('/').next()?)).collect())
    }

    fn name_of(&self, number: u64) -> PathBuf {
        PathBuf::from(self.address(number))
    }

    fn open(&self, number: u64) -> Result<CheckpointSource> {
        let object = self.access.open(&self.address(number))?;
        let len = object.len();
        Ok(CheckpointSource { place: Arc::new(object), len })
    }

    fn create(&self, number: u64, about_len: u64) -> Result<Box<dyn CheckpointTarget>> {
        let object = self.access.create_only_new(&self.address(number), about_len)?;
        object.notes().iter().for_each(|text| note(&format!("dpipe checkpoint: note: {text}\n")));
        Ok(Box::new(NewCheckpoint(object)))
    }

    fn remove(&self, number: u64) -> Result<()> {
        self.access.remove(&self.address(number))
    }
}

/// An object that becomes a checkpoint.
struct NewCheckpoint(AnyObject);

impl Locator for NewCheckpoint {
    fn endpoint(&self) -> Endpoint {
        self.0.endpoint()
    }
}

impl CheckpointTarget for NewCheckpoint {
    fn publish(&self, len: u64) -> Result<()> {
        self.0.publish(len)
    }
}
