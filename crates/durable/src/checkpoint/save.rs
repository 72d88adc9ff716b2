//! Writing a checkpoint.

use std::collections::HashSet;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use datapipes_core::memory::{Access, RawLease};
use datapipes_core::{AtomicFile, Dram, Error, ErrorKind, FileMode, HopReport, Locator, Machine, Result, Route, Span};
use datapipes_metrics::{Label, Sample, vocabulary};
use serde::Serialize;

use super::manifest::{BLOCK, CHUNK, CheckpointRegion, Manifest};
use super::pieces::{self, CopyDirection, Job, ProgressCallback};
use super::places::CheckpointTarget;
use super::store::{Checkpoints, Home, Removal};

/// The settings of a save.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SaveOptions {
    /// How many checkpoints are kept, the new one included; older ones are removed when it is
    /// durable. `None` keeps all.
    pub keep: Option<usize>,
    /// The permissions of the file, less the umask. Permissions that the newest checkpoint of the
    /// folder does not have are left out, so a folder that was made private stays private.
    pub mode: FileMode,
}

datapipes_core::setters! {
    SaveOptions {
        keep: into Option<usize>,
        mode: FileMode,
    }
}

/// The report of a save.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct SavedCheckpoint {
    /// The number of the checkpoint.
    pub number: u64,
    /// Bytes of its regions.
    pub bytes: u64,
    /// The time until all bytes were written, in seconds.
    pub write_seconds: f64,
    /// The time after that until it was durable under its name, in seconds.
    pub publish_seconds: f64,
    /// The time in which checksums were computed, in seconds; the device worked meanwhile.
    pub checksum_seconds: f64,
    /// The numbers of the checkpoints that were removed.
    pub removed: Vec<u64>,
    /// Why older ones could not be removed, where that is so. The new one is durable all the same.
    pub removal_error: Option<String>,
    /// The route of the first region's bytes.
    #[serde(skip)]
    pub route: Option<Route>,
    /// What was moved, by primitive.
    #[serde(skip)]
    pub movements: Vec<HopReport>,
}

impl SavedCheckpoint {
    /// Returns it as samples.
    pub fn samples(&self) -> Vec<Sample> {
        let phase = |seconds: f64, name| Sample::new(&vocabulary::CHECKPOINT_PHASES, seconds).label(Label::Phase, name);
        vec![
            Sample::new(&vocabulary::CHECKPOINT_NUMBER, self.number),
            Sample::new(&vocabulary::CHECKPOINT_BYTES, self.bytes),
            phase(self.write_seconds, "write"),
            phase(self.publish_seconds, "publish"),
            phase(self.checksum_seconds, "checksum"),
            Sample::new(&vocabulary::CHECKPOINT_REMOVED, self.removed.len()),
        ]
    }
}

impl Checkpoints {
    /// Saves regions as a new checkpoint, the newest. It becomes visible only when all of it is
    /// durable.
    ///
    /// # Errors
    /// `Busy` while a region is written to, or another save to this folder runs; `InvalidInput` for
    /// no regions or two of the same name, and in places that are no folder where another save
    /// published a checkpoint meanwhile; `NoSpace`; `Interrupted` if `watch` breaks; errors of
    /// writing. After an error nothing of the checkpoint is left, unless the error says so.
    /// That older ones could not be removed is none: see [`SavedCheckpoint::removal_error`].
    pub fn save(
        &self,
        regions: &[(&str, &Dram)],
        options: &SaveOptions,
        watch: ProgressCallback<'_>,
    ) -> Result<SavedCheckpoint> {
        let len_bytes: u64 = regions.iter().map(|(_, memory)| memory.len() as u64).sum();
        let count = regions.len() as u64;
        let span =
            datapipes_metrics::span!(Info, "checkpoint_save", [regions = count, len_bytes = len_bytes], empty: []);
        let saved = save(self, regions, options, watch);
        span.ended(saved.is_ok());
        saved
    }
}

/// Where a new checkpoint is written.
enum Draft {
    File(AtomicFile),
    Place(Box<dyn CheckpointTarget>),
}

impl Draft {
    fn begin(store: &Checkpoints, manifest: &Manifest, mode: FileMode) -> Result<Draft> {
        let len = manifest.offset();
        match store.home() {
            Home::Folder(_) => {
                let mode = store.mode_of_newest()?.map_or(mode, |newest| mode.and(newest));
                let draft = AtomicFile::create_with(&store.path(manifest.number), mode.and_owner())?;
                draft.ssd().preallocate(len)?;
                Ok(Draft::File(draft))
            }
            // A checksum takes at most 11 characters, and there is one for each MiB.
            Home::Places(places) => {
                let end = (len >> 16).saturating_add(1 << 20);
                places.create(manifest.number, len.saturating_add(end)).map(Draft::Place)
            }
        }
    }

    fn place(&self) -> &dyn Locator {
        match self {
            Draft::File(draft) => draft.ssd(),
            // The locator of a target is the target itself.
            Draft::Place(target) => &**target,
        }
    }

    fn publish(self, len: u64) -> Result<()> {
        match self {
            Draft::File(draft) => draft.publish(len).map(drop),
            Draft::Place(target) => target.publish(len),
        }
    }
}

fn save(
    store: &Checkpoints,
    regions: &[(&str, &Dram)],
    options: &SaveOptions,
    watch: ProgressCallback<'_>,
) -> Result<SavedCheckpoint> {
    let sole = match store.home() {
        Home::Folder(dir) => Some((dir, store.sole(dir)?)),
        Home::Places(_) => None,
    };
    // The leases last until the end, so that all regions are of one moment: their writers get
    // `Busy`.
    let leases: Vec<RawLease> =
        regions.iter().map(|(_, memory)| memory.memory().raw_lease(Access::Read)).collect::<Result<_>>()?;
    let since = Instant::now();
    let mut manifest = plan(store.next_number()?, regions)?;
    let draft = Draft::begin(store, &manifest, options.mode)?;
    let jobs: Vec<Job<'_>> = regions
        .iter()
        .zip(&manifest.regions)
        .map(|((_, memory), region)| Job { memory, offset: region.offset })
        .collect();
    let mut checksums: Vec<Vec<u32>> = vec![Vec::new(); jobs.len()];
    let mut look = |region: usize, _, sums: &[u32]| {
        checksums[region].extend(sums);
        Ok(())
    };
    let way = (CopyDirection::Save, draft.place());
    let moved = pieces::run(store.machine(), way, &jobs, watch, &mut look)?;
    for (region, checksums) in manifest.regions.iter_mut().zip(checksums) {
        region.checksums = checksums;
    }
    let len = write_end(store.machine(), draft.place(), &manifest)?;
    drop(leases);
    let write_seconds = since.elapsed().as_secs_f64();
    let check = || sole.as_ref().map_or(Ok(()), |(_, (_, sole))| sole.check());
    check()?;
    draft.publish(len)?;
    // The folder may have been replaced meanwhile; then the checkpoint must not be reported as
    // saved.
    check()?;
    let publish_seconds = since.elapsed().as_secs_f64() - write_seconds;
    let keep = options.keep.map(|keep| keep.max(1));
    let removal = match (keep, &sole, store.home()) {
        (Some(keep), Some((dir, (_, sole))), _) => store.keep_last_locked(keep, dir, sole),
        (Some(keep), None, Home::Places(places)) => store.keep_last_in(keep, &**places),
        _ => Removal::default(),
    };
    let (number, bytes) = (manifest.number, manifest.bytes());
    let (removed, removal_error) = (removal.numbers, removal.error.map(|error| error.to_string()));
    Ok(SavedCheckpoint {
        number,
        bytes,
        write_seconds,
        publish_seconds,
        checksum_seconds: moved.seconds,
        removed,
        removal_error,
        route: moved.route,
        movements: moved.movements.into_hops(),
    })
}

/// Lays out the file: an offset for each region.
fn plan(number: u64, regions: &[(&str, &Dram)]) -> Result<Manifest> {
    let mut names = HashSet::new();
    if let Some((name, _)) = regions.iter().find(|(name, _)| !names.insert(*name)) {
        let why = format!("two regions are called `{name}`");
        return Err(Error::new(ErrorKind::InvalidInput, "save", why).with_advice("give each a name of its own"));
    }
    if regions.is_empty() {
        return Err(Error::new(ErrorKind::InvalidInput, "save", "a checkpoint of no regions"));
    }
    let mut offset = 0;
    let mut place = |(name, memory): &(&str, &Dram)| {
        let region =
            CheckpointRegion { name: (*name).to_owned(), len: memory.len() as u64, offset, checksums: Vec::new() };
        offset = (offset + region.len).next_multiple_of(BLOCK);
        region
    };
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs());
    let regions = regions.iter().map(&mut place).collect();
    Ok(Manifest { number, created_unix_s: created, chunk_bytes: CHUNK as u64, regions })
}

/// Writes the manifest and the trailer. Returns the length of the whole.
fn write_end(machine: &Machine, place: &dyn Locator, manifest: &Manifest) -> Result<u64> {
    let bytes = manifest.encode()?;
    let memory = Dram::allocate(bytes.len())?;
    memory.lease_mut()?.copy_from_slice(&bytes);
    let (target, len) = (manifest.offset(), bytes.len() as u64);
    machine.connect(&memory, place)?.transfer(Span { source: 0, target, len })?;
    Ok(target + len)
}
