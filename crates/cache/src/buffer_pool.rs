//! A pool: one memory budget for the small reads of many files.
//!
//! ```text
//! BufferPool: budget, one store and policy, lanes, detector, one thread, one queue of events
//!   file A: engine, changes, reads in flight, positions in the store's space (space.rs),
//!           and the 2 descriptors of its `Ssd`
//!   file B: ...
//! ```

use datapipes_core::{Error, ErrorKind, Result, Ssd};

use crate::config::{CacheOptions, FileOptions};
use crate::fine::FineGrained;
use crate::metrics::Metrics;
use crate::pool::Pool;
use crate::pool::space::Map;
use crate::sync::Arc;

/// A cache for many files. They share one memory budget, one policy that decides which items stay,
/// one maintenance thread, and one set of rings to the device. Cloning it makes another handle.
/// Open files keep the pool alive, too.
///
/// A file on a network or FUSE file system may wait for an answer for ever. Its own reads do so
/// then. Other files are maintained as usual, and their reads fail with `Busy` if each lane to the
/// device waits for that file ([`CacheOptions::lanes`](crate::CacheOptions)). Such files are looked
/// at by an additional thread for each device, and closed by a thread of their own. While these
/// wait, they keep nothing of other files open, and no drop blocks.
///
/// The memory is the budget and about 8 KiB for each file with its [`Ssd`] (the versions of the
/// file's parts, and the table of reads in flight, which grows with their number). A file needs no
/// thread, and no descriptor beside those of the `Ssd`. The lengths of all open files, each rounded
/// up to a power of two and at least 1 MiB, must fit in 16 TiB. The part of a file that grows
/// beyond that is read but not cached.
///
/// ```
/// use datapipes_cache::{BufferPool, CacheOptions, ExternalChanges};
/// use datapipes_core::Ssd;
/// # fn main() -> datapipes_core::Result<()> {
/// # let paths = ["a", "b"].map(|n| std::env::temp_dir().join(format!("pool-doc-{}-{n}", std::process::id())));
/// # paths.iter().for_each(|p| std::fs::write(p, [7; 100_000]).unwrap());
/// let machine = datapipes::discover();
/// let mut config = CacheOptions::new(&machine).budget(16 << 20);
/// config.outside = ExternalChanges::Never; // Nobody else writes there.
/// let pool = BufferPool::new(config)?;
/// let [users, posts] = [pool.open(&Ssd::open(&paths[0])?)?, pool.open(&Ssd::open(&paths[1])?)?];
/// let mut row = [0; 128];
/// users.read(4 * 128, &mut row)?;
/// posts.read(9 * 128, &mut row)?;
/// assert_eq!(pool.metrics().items, 2);
/// drop(users); // What is cached of it goes with its last handle.
/// assert_eq!(pool.metrics().items, 1);
/// # paths.iter().for_each(|p| std::fs::remove_file(p).unwrap());
/// # Ok(())
/// # }
/// ```
///
/// Like a [`FineGrained`], it belongs to the process that made it.
#[derive(Clone)]
pub struct BufferPool(pub(crate) Arc<Pool>);

impl BufferPool {
    /// Makes a pool without files.
    ///
    /// # Errors
    /// `InvalidInput` for a budget below 2 MiB. `OutOfMemory` for one beyond the memory that this
    /// process may have.
    pub fn new(config: CacheOptions) -> Result<BufferPool> {
        Pool::over_files(config).map(BufferPool)
    }

    /// Opens a file in the pool, with the pool's settings. In [`FineGrained::metrics`] the reads,
    /// errors and changes are those of the file; hits, misses and items are those of all files.
    ///
    /// # Errors
    /// `InvalidInput` for a file that is not open for reading or is larger than 16 TiB, for
    /// [`Events`](crate::ExternalChanges::Events) without the maintenance thread, and for a block
    /// device without [`Never`](crate::ExternalChanges::Never) or a time to live (see
    /// [`ExternalChanges`](crate::ExternalChanges)). `NoSpace` where the open files leave no room
    /// for it in 16 TiB. Errors of connecting.
    pub fn open(&self, ssd: &Ssd) -> Result<FineGrained> {
        self.open_with(ssd, self.file_options())
    }

    /// As [`open`](Self::open), with the file's own settings.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(&self, ssd: &Ssd, options: FileOptions) -> Result<FineGrained> {
        self.0.owner.check("open")?;
        let file = self.0.open(ssd, options, |len| {
            Map::of_file(len, &self.0.space).ok_or_else(|| {
                let context = format!("{}: {len} bytes beside the files that are open", ssd.path().display());
                Error::new(ErrorKind::NoSpace, "open", context)
                    .with_advice("close others, or make a second pool: a pool's files have 16 TiB together")
            })
        })?;
        Ok(FineGrained(file))
    }

    /// Returns the pool's settings for files, to be changed.
    pub fn file_options(&self) -> FileOptions {
        FileOptions::of(&self.0.config)
    }

    /// Returns the counters of all files together, closed ones included, and the present state.
    pub fn metrics(&self) -> Metrics {
        self.0.metrics()
    }

    /// Returns the number of open files.
    pub fn files(&self) -> usize {
        if self.0.owner.is_here() { self.0.files().len() } else { 0 }
    }

    /// Does what the maintenance thread does. Where
    /// [`CacheOptions::maintenance`](crate::CacheOptions) is off, the caller calls it now and then.
    /// It then also waits for FUSE and network file systems that answer late, after everything else
    /// is done.
    pub fn maintain(&self) {
        self.0.maintain();
    }

    /// The settings of the pool.
    pub fn config(&self) -> &CacheOptions {
        &self.0.config
    }
}

impl std::fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BufferPool({} files, {:?})", self.files(), self.0.config)
    }
}
