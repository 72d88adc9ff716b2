//! Reading a checkpoint, and checking it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use datapipes_core::{Dram, Error, ErrorKind, Locator, Machine, MapOptions, Result, Span, Ssd};

use super::manifest::{BLOCK, CHUNK, Manifest, Trailer};
use super::pieces::{self, CopyDirection, Job, PIECE, Pace, PieceLimit, ProgressCallback};
use super::places::CheckpointSource;

/// The longest manifest: a checksum for each MiB of a hundred TiB.
const MAX_MANIFEST_BYTES: u64 = 1 << 30;

/// A complete checkpoint, whose end is intact. Its regions are checked when they are read.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    machine: MachineOf,
    place: PlaceOf,
    path: PathBuf,
    manifest: Manifest,
}

/// A place with a short `Debug` text.
#[derive(Clone)]
struct PlaceOf(Arc<dyn Locator + Send + Sync>);

impl std::fmt::Debug for PlaceOf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.0.endpoint())
    }
}

/// A machine with a short `Debug` text.
#[derive(Clone)]
struct MachineOf(Machine);

impl std::fmt::Debug for MachineOf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Machine")
    }
}

impl Checkpoint {
    /// Opens a file and reads its end.
    ///
    /// # Errors
    /// `NotFound`; `Corrupt` if the end is missing or damaged.
    pub(crate) fn open(machine: &Machine, path: &Path) -> Result<Checkpoint> {
        let ssd = Ssd::open(path)?;
        let len = ssd.len()?;
        Checkpoint::of(machine, path, CheckpointSource { place: Arc::new(ssd), len })
    }

    /// Reads the end of a place.
    ///
    /// # Errors
    /// `Corrupt` if the end is missing or damaged.
    pub(crate) fn of(machine: &Machine, path: &Path, source: CheckpointSource) -> Result<Checkpoint> {
        let CheckpointSource { place, len } = source;
        let corrupt = |why: String| {
            Error::new(ErrorKind::Corrupt, "open", format!("checkpoint {}: {why}", path.display())).with_offset(len)
        };
        if len < BLOCK {
            return Err(corrupt("it is too short".into()));
        }
        let block = read(machine, &*place, len - BLOCK, BLOCK)?;
        let trailer = Trailer::decode(&block.lease()?, len).map_err(corrupt)?;
        if trailer.manifest_len > MAX_MANIFEST_BYTES {
            return Err(corrupt(format!("a manifest of {} bytes is too long", trailer.manifest_len)));
        }
        let bytes = read(machine, &*place, trailer.manifest_at, trailer.manifest_len.max(1))?;
        let manifest = Manifest::decode(&bytes.lease()?, &trailer).map_err(corrupt)?;
        let (machine, place) = (MachineOf(machine.clone()), PlaceOf(place));
        Ok(Checkpoint { machine, place, path: path.to_path_buf(), manifest })
    }

    /// Returns the contents of the checkpoint.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the path of its file, or what its place is called.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Fills these regions from the saved regions of the same names; others stay on disk. Each MiB
    /// is checked when it arrives. After an error the contents of the regions are undefined.
    ///
    /// # Errors
    /// `NotFound` for a name that the checkpoint does not have; `InvalidInput` for a region of
    /// another length; `Corrupt` with the region and the offset in it; `Busy`; `Interrupted` if
    /// `watch` breaks; errors of reading.
    pub fn restore_into(&self, regions: &[(&str, &Dram)], watch: ProgressCallback<'_>) -> Result<()> {
        let mut indices = Vec::new();
        let mut jobs = Vec::new();
        for (name, memory) in regions {
            let index = self.index(name)?;
            let region = &self.manifest.regions[index];
            if region.len != memory.len() as u64 {
                let why =
                    format!("region `{name}` has {} bytes, and the memory to fill has {}", region.len, memory.len());
                return Err(Error::new(ErrorKind::InvalidInput, "restore", why));
            }
            indices.push(index);
            jobs.push(Job { memory, offset: region.offset });
        }
        let span = datapipes_metrics::span!(Info, "checkpoint_restore", [number = self.manifest.number], empty: []);
        let mut check = |job: usize, at, sums: &[u32]| self.check(indices[job], at, sums);
        let restored = pieces::run(&self.machine.0, (CopyDirection::Restore, &*self.place.0), &jobs, watch, &mut check);
        span.ended(restored.is_ok());
        restored.map(drop)
    }

    /// Restores all regions into new memory.
    ///
    /// # Errors
    /// The same as for [`restore_into`](Self::restore_into), and `OutOfMemory`.
    pub fn restore(&self, watch: ProgressCallback<'_>) -> Result<Vec<(String, Dram)>> {
        let allocate = |len: u64| {
            let len = usize::try_from(len)
                .map_err(|_| Error::new(ErrorKind::OutOfMemory, "restore", format!("a region of {len} bytes")))?;
            // Pages are faulted in as they are registered, piece by piece, while the device works.
            // An empty region is an empty range of one byte of memory.
            let memory = Dram::allocate_with(len.max(1), MapOptions::default().prefault(false))?;
            if len == 0 { memory.range(0, 0) } else { Ok(memory) }
        };
        let regions: Vec<(String, Dram)> = self
            .manifest
            .regions
            .iter()
            .map(|region| Ok((region.name.clone(), allocate(region.len)?)))
            .collect::<Result<_>>()?;
        let targets: Vec<(&str, &Dram)> = regions.iter().map(|(name, memory)| (name.as_str(), memory)).collect();
        self.restore_into(&targets, watch)?;
        Ok(regions)
    }

    /// Reads and checks all regions, in little memory.
    ///
    /// # Errors
    /// The same as for [`restore_into`](Self::restore_into).
    pub fn verify(&self, watch: ProgressCallback<'_>) -> Result<()> {
        let memory = Dram::allocate(2 * PIECE)?;
        let mut pace = Pace { done: 0, total: self.manifest.bytes(), watch };
        let pipe = self.machine.0.connect(&*self.place.0, &memory)?;
        let (mut ahead, mut limit, mut turn) = (None, PieceLimit::of(&*self.place.0), 0);
        for (index, region) in self.manifest.regions.iter().enumerate() {
            let mut at = 0;
            while at < region.len {
                let len = (limit.piece() as u64).min(region.len - at);
                let target = (turn % 2 * PIECE) as u64;
                let begun = limit.begin();
                let started = pipe.start(Span { source: region.offset + at, target, len })?;
                if let Some((before, begun)) = ahead.replace(((index, at, len, target, started), begun)) {
                    self.land(before, &memory, &mut pace)?;
                    limit.arrived(begun);
                }
                at += len;
                turn += 1;
            }
        }
        match ahead {
            Some((last, _)) => self.land(last, &memory, &mut pace),
            None => Ok(()),
        }
    }

    /// Waits for a piece and checks it.
    fn land(
        &self,
        (index, at, len, target, transfer): (usize, u64, u64, u64, datapipes_core::Transfer),
        memory: &Dram,
        pace: &mut Pace<'_>,
    ) -> Result<()> {
        transfer.wait()?;
        let bytes = memory.range(target as usize, len as usize)?.lease()?;
        self.check(index, at as usize, &pieces::checksums(&bytes).collect::<Vec<_>>())?;
        pace.advance(len as usize)
    }

    fn index(&self, name: &str) -> Result<usize> {
        self.manifest.regions.iter().position(|r| r.name == name).ok_or_else(|| {
            let names: Vec<&str> = self.manifest.regions.iter().map(|r| r.name.as_str()).collect();
            Error::new(ErrorKind::NotFound, "restore", format!("region `{name}` in {}", self.path.display()))
                .with_advice(format!("its regions are: {}", names.join(", ")))
        })
    }

    /// Checks that a piece has the bytes that were saved.
    fn check(&self, index: usize, at: usize, sums: &[u32]) -> Result<()> {
        let region = &self.manifest.regions[index];
        for (nth, found) in sums.iter().enumerate() {
            let chunk = at / CHUNK + nth;
            if region.checksums.get(chunk) != Some(found) {
                let why = format!(
                    "checkpoint {}, region `{}`: the MiB at this offset of the region differs from the saved one",
                    self.path.display(),
                    region.name
                );
                return Err(Error::new(ErrorKind::Corrupt, "restore", why)
                    .with_offset((chunk * CHUNK) as u64)
                    .with_advice("an older checkpoint may be intact"));
            }
        }
        Ok(())
    }
}

/// Reads a range of a place into new memory.
fn read(machine: &Machine, place: &dyn Locator, at: u64, len: u64) -> Result<Dram> {
    let memory = Dram::allocate_with(len as usize, MapOptions::default().prefault(false))?;
    machine.connect(place, &memory)?.transfer(Span { source: at, target: 0, len })?;
    Ok(memory)
}
