//! The spill places: a staging over the places that the job names, opened when the first run needs
//! it.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use datapipes_core::locks::Mutex;
use datapipes_core::topology::BlockDevice;
use datapipes_core::{Error, ErrorKind, Machine, Result, StageOrder, StagePlace, Staging, StagingExtent};

use crate::control::Control;
use crate::cut::CUT_ADVICE;
use crate::report::SpillUse;
use crate::runs::compressed::RunCompressor;
use crate::runs::packing::FrameTable;
use crate::waits::SortWait;

/// Runs start at multiples of this.
const GRAIN: u64 = 4096;

/// The offset of a record in a run, and its prefix, for finding keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexEntry {
    /// The offset in the run, in bytes.
    pub(crate) at: u64,
    pub(crate) prefix: u64,
}

/// The distance of index entries in runs that are written in blocks of `block` bytes. The many
/// short ranges of runs without duplicates are found faster if it is short. Then the index takes
/// twice the memory of the checksums at most.
pub(crate) fn mark_distance(block: usize, grain: usize, unique: bool) -> usize {
    if unique { block.min(grain.saturating_mul(2)) } else { block }
}

/// A sorted run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// The first record of each block that was written, or more of them, in ascending order.
    pub(crate) key_index: Vec<IndexEntry>,
    /// A checksum for each `grain` bytes.
    pub(crate) sums: Vec<u32>,
    pub(crate) grain: usize,
    /// Bytes of its longest record.
    pub(crate) longest: usize,
    /// Where its bytes are, if some of them are compressed; else they are from `offset` on.
    pub(crate) table: Option<FrameTable>,
}

impl Run {
    /// Its space alone.
    pub(crate) fn extent(&self) -> Run {
        Run { offset: self.offset, len: self.len, ..Run::default() }
    }
}

/// The files of the runs of a finished sort, and the file that its output replaced. Freeing large
/// files takes time (0.14 s a GB where the file system discards what it frees, and up to 1.2 s for
/// 400 MB where the disk is busy), during which nobody needs to wait for the sort.
///
/// A sort leaves files here only if their file systems have as much free space as the files take,
/// so that nobody misses theirs meanwhile. They have no names, so whoever holds them frees them
/// also when he is killed.
#[derive(Clone, Debug, Default)]
pub struct SpillFiles(Arc<Mutex<Vec<OwnedFd>>>);

impl SpillFiles {
    /// Takes the files out. They are freed when all of these descriptors are closed.
    pub fn take(&self) -> Vec<OwnedFd> {
        std::mem::take(&mut *self.0.lock())
    }

    /// Another descriptor of a file, with the bytes that it takes, if it is large and its space is
    /// not scarce.
    pub(crate) fn worth_leaving(file: BorrowedFd<'_>) -> Option<(OwnedFd, u64)> {
        let (stat, system) = (rustix::fs::fstat(file).ok()?, rustix::fs::fstatvfs(file).ok()?);
        if rustix::fs::fstatfs(file).is_ok_and(|fs| fs.f_type == TMPFS) {
            return None; // Memory is freed at once.
        }
        let bytes = u64::try_from(stat.st_blocks).ok()?.saturating_mul(512);
        let free = system.f_bavail.saturating_mul(system.f_frsize);
        let fd = (bytes >= LITTLE && free >= bytes).then(|| rustix::io::fcntl_dupfd_cloexec(file, 0).ok());
        Some((fd??, bytes))
    }

    pub(crate) fn leave(&self, file: OwnedFd) {
        self.0.lock().push(file);
    }
}

/// The space of merged runs that a file keeps for the next ones instead of freeing it, at least. It
/// keeps as much as the runs had that were merged last, since the next pass is likely to write as
/// much: so the sort never holds more than while those were merged.
///
/// Blocks that were written before are written again in a third of the time, because the file
/// system need not note that they are no longer empty. Measured on ext4 by direct writes of 64 KiB:
/// 439 MB/s and 1,442 MB/s if 4 are in flight, 986 MB/s and 1,205 MB/s if 16 are.
const KEPT: u64 = 128 << 20;

/// The kind of a file system in memory (tmpfs).
const TMPFS: rustix::fs::FsWord = 0x0102_1994;

/// Less than this is freed at once.
const LITTLE: u64 = 256 << 20;

/// The spill places of a job.
pub(crate) struct Spill<'a> {
    machine: &'a Machine,
    places: Vec<StagePlace>,
    order: StageOrder,
    /// The staging; an input that fits the memory never opens it.
    staging: Mutex<Option<Staging>>,
    /// The program that compresses runs, if one does.
    pub(crate) compressor: Option<RunCompressor>,
    /// Who takes the files in the end.
    pub(crate) keeper: Option<SpillFiles>,
}

/// What helps where runs find no room.
fn room_advice() -> String {
    match rustix::process::getrlimit(rustix::process::Resource::Fsize).current {
        Some(most) => format!("files of this process have {most} bytes at most: raise the limit (ulimit -f)"),
        None => "name places with more room (`spill`), or give more memory (`memory_bytes`)".to_owned(),
    }
}

/// An error of a sort, with what helps its user: where its runs found no room, whoever asked for
/// it, and where a pipe found the end of an input too early.
pub(crate) fn advised(error: Error) -> Error {
    match (error.kind(), error.operation(), error.advice()) {
        (ErrorKind::NoSpace, "stage", None) => error.with_advice(room_advice()),
        (ErrorKind::EndOfFile, "read", _) => error.with_advice(CUT_ADVICE),
        _ => error,
    }
}

impl<'a> Spill<'a> {
    pub(crate) fn new(
        machine: &'a Machine,
        places: Vec<StagePlace>,
        order: StageOrder,
        program: Option<PathBuf>,
    ) -> Result<Self> {
        let packer = program.map(|program| RunCompressor::new(program, &places)).transpose()?;
        Ok(Spill { machine, places, order, staging: Mutex::new(None), compressor: packer, keeper: None })
    }

    /// Returns the staging, and opens it first if needed.
    pub(crate) fn staging(&self) -> Result<Staging> {
        let mut staging = self.staging.lock();
        if let Some(staging) = &*staging {
            return Ok(staging.clone());
        }
        let opened = self.machine.staging(self.places.clone(), self.order);
        let opened = opened.map_err(|e| match e.errno() {
            Some(libc::EMFILE | libc::EFBIG) => e,
            _ => e.with_advice("name writable directories, or other places (`spill`)"),
        })?;
        Ok(staging.insert(opened).clone())
    }

    /// Whether there is one place only, and it has room for so many bytes more. Where there are
    /// several, what one of them has no room for moves on to the next, which may be slower.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        let [only] = &self.places[..] else { return false };
        let uses = self.staging.lock().as_ref().map(Staging::uses).unwrap_or_default();
        let used: u64 = uses.iter().map(|used| used.placed.saturating_sub(used.freed)).sum();
        let left = only.most_bytes().map_or(u64::MAX, |most| most.saturating_sub(used));
        let free = only.as_folder().map_or(u64::MAX, |dir| BlockDevice::available_at(dir).unwrap_or(0));
        left.min(free) >= bytes
    }

    /// Reserves room for a run of `len` bytes. A reservation is a wait for the place: the file
    /// system may hold it back until direct writes under way have ended.
    pub(crate) fn reserve(&self, len: u64, control: &Control) -> Result<Run> {
        let _waits = control.waits_for(SortWait::Spill);
        let extent = self.staging()?.extent(len.next_multiple_of(GRAIN).max(GRAIN));
        let StagingExtent { offset, .. } = extent.map_err(|e| e.with_advice(room_advice()))?;
        Ok(Run { offset, len, ..Run::default() })
    }

    /// Begins a run whose length is known only when it has been written. Its offsets are its own,
    /// so extents may be reserved while it grows.
    pub(crate) fn open_ended(&self) -> Result<Run> {
        // More than any run has, and few enough for thousands of runs.
        const MAX_RUN: u64 = 1 << 48;
        match self.staging()?.offsets(MAX_RUN) {
            Ok(offset) => Ok(Run { offset, ..Run::default() }),
            Err(e) if e.kind() == ErrorKind::InvalidInput => {
                Err(Error::new(ErrorKind::NoSpace, "spill", "there were too many merge passes"))
            }
            Err(e) => Err(e),
        }
    }

    /// Frees the space of merged runs. The files keep some of it for the next runs.
    ///
    /// This is not done piece by piece while a merge reads, because punching a hole waits for
    /// direct I/O in flight in the file. Measured: the last merge of 2 GB took 2.1 s, 2.5 s with a
    /// hole for each 16 MiB read, and 2.9 s with one for each MiB. Between two merges nothing is in
    /// flight, and the last merge reserves its output's space before it begins.
    pub(crate) fn free(&self, runs: Vec<Run>, control: &Control) -> Result<()> {
        let _waits = control.waits_for(SortWait::Spill);
        let staging = self.staging()?;
        let most = runs.iter().map(|run| run.len).sum::<u64>().max(KEPT);
        for run in runs {
            staging.free_for_reuse(run.offset, run.len.next_multiple_of(GRAIN).max(GRAIN), most);
        }
        Ok(())
    }

    /// Frees the space of merged runs, for other files too.
    pub(crate) fn free_now(&self, runs: &[Run], control: &Control) -> Result<()> {
        let _waits = control.waits_for(SortWait::Spill);
        let staging = self.staging()?;
        runs.iter().for_each(|run| staging.free(run.offset, run.len.next_multiple_of(GRAIN).max(GRAIN)));
        Ok(())
    }

    /// Returns the space that the files kept to the file systems, for other files.
    pub(crate) fn free_kept(&self, control: &Control) {
        let _waits = control.waits_for(SortWait::Spill);
        if let Some(staging) = &*self.staging.lock() {
            staging.trim();
        }
    }

    /// Frees the space of a compressed run from `used` on that it did not need. Some of it is kept,
    /// and a next run takes it where enough adjoins. A hole would wait for all direct writes of the
    /// file that are under way, those of other threads too.
    ///
    /// Two threads rarely leave enough in one piece: 78 runs of 850 MB took 78 reservations, and 24
    /// runs by one thread took 7.
    pub(crate) fn cut_packed(&self, run: &Run, used: u64, control: &Control) -> Result<()> {
        let end = run.offset + run.len.next_multiple_of(GRAIN).max(GRAIN);
        let from = run.offset + used.next_multiple_of(GRAIN);
        if from < end {
            let _waits = control.waits_for(SortWait::Spill);
            self.staging()?.free_for_reuse(from, end - from, KEPT);
        }
        Ok(())
    }

    /// Frees the end of a run's space, up to `end`, if the run became shorter than planned.
    pub(crate) fn cut(&self, run: &Run, end: u64, control: &Control) -> Result<()> {
        let _waits = control.waits_for(SortWait::Spill);
        let from = (run.offset + run.len).next_multiple_of(GRAIN);
        if from < end {
            self.staging()?.free(from, end - from);
        }
        Ok(())
    }

    /// Hands the files to the job's keeper if they are large and their space is not scarce. Returns
    /// the bytes that are left to it.
    pub(crate) fn leave(&self) -> u64 {
        let (Some(keeper), Some(staging)) = (&self.keeper, &*self.staging.lock()) else { return 0 };
        let bytes: u64 = staging.uses().iter().map(|used| used.placed.saturating_sub(used.freed)).sum();
        let folders = self.places.iter().filter_map(StagePlace::as_folder);
        let free = folders.map(|folder| BlockDevice::available_at(folder).unwrap_or(0)).min().unwrap_or(0);
        if bytes < LITTLE || free < bytes {
            return 0;
        }
        // If they cannot be duplicated, they are freed at once.
        let Ok(mut files) = staging.files() else { return 0 };
        keeper.0.lock().append(&mut files);
        bytes
    }

    pub(crate) fn uses(&self) -> Vec<SpillUse> {
        let mut uses: Vec<SpillUse> = match &*self.staging.lock() {
            Some(staging) => staging.uses().into_iter().map(SpillUse::from).collect(),
            None => self.places.iter().map(SpillUse::not_needed).collect(),
        };
        if self.compressor.as_ref().is_some_and(RunCompressor::was_used) {
            for place in uses.iter_mut().filter(|place| place.bytes == 0) {
                place.why =
                    "it has the files of a program that compresses runs, whose bytes are not counted".to_owned();
            }
        }
        uses
    }
}
