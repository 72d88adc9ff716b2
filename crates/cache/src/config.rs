//! The settings of a cache and of its files.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use datapipes_core::Machine;
use serde::{Deserialize, Serialize};

use crate::store::reassign::Reassignment;

/// A policy that decides which items the cache admits and which it evicts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CachePolicy {
    /// S3-FIFO for each size class, replaced by a clock while samples show that the load drifts.
    /// This is the default.
    #[default]
    Adaptive,
    /// S3-FIFO for each size class (SOSP 2023).
    S3Fifo,
    /// SIEVE (NSDI 2024). It needs 8 more bytes an item.
    Sieve,
    /// W-TinyLFU (ACM TOS 2017).
    WTinyLfu,
    /// The policy of Pipette (DAC 2022): least recently used, with an adaptive threshold of
    /// references and a TempBuf. It needs 8 more bytes an item.
    Pipette,
}

impl CachePolicy {
    /// All policies.
    pub const ALL: [CachePolicy; 5] =
        [CachePolicy::Adaptive, CachePolicy::S3Fifo, CachePolicy::Sieve, CachePolicy::WTinyLfu, CachePolicy::Pipette];

    /// The policy's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            CachePolicy::Adaptive => "adaptive",
            CachePolicy::S3Fifo => "s3-fifo",
            CachePolicy::Sieve => "sieve",
            CachePolicy::WTinyLfu => "w-tiny-lfu",
            CachePolicy::Pipette => "pipette",
        }
    }
}

impl std::str::FromStr for CachePolicy {
    type Err = datapipes_core::Error;

    fn from_str(text: &str) -> Result<CachePolicy, Self::Err> {
        CachePolicy::ALL.into_iter().find(|p| p.name() == text).ok_or_else(|| {
            let names: Vec<_> = CachePolicy::ALL.iter().map(|p| p.name()).collect();
            datapipes_core::Error::new(datapipes_core::ErrorKind::InvalidInput, "choose a policy", format!("{text:?}"))
                .with_advice(format!("give one of {}", names.join(", ")))
        })
    }
}

/// How the cache finds changes of the file by other processes. Until a change is found, reads
/// return the old bytes.
///
/// No method finds bytes that others store through a memory mapping once the page was written
/// before: the times move only with the first store after the page was cleaned, and there is no
/// event. On a network file system, a write by another machine is not found until this machine
/// renews the attributes. Events leave out asynchronous writes (libaio: databases, virtual
/// machines; a loop device over the file), writes to a layer below an overlay, and writes of this
/// process that bypass the library. Only the times reveal those.
///
/// A block device has many names, and file systems are mounted on it. Times and events belong to
/// the one name by which it is open, and reveal nothing about its bytes. So a block device is
/// refused unless nobody else writes to it (`Never`), or old bytes are allowed for a time to live
/// ([`CacheOptions::ttl`], with `Every` or `Times`). The bytes of its snapshots are read again.
///
/// The times move when a write begins, and its bytes arrive later. So after a change of the times,
/// the file's cached items are dropped again whenever the age of the change has doubled (20 ms, 40
/// ms, ...; at most once a look). Old bytes that were read during one long call may therefore be
/// returned for about as long again as the call took. The same holds for a file that was written
/// just before it is opened, and for a snapshot whose bytes were read while a change was young.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExternalChanges {
    /// Changes are not looked for: nobody else writes to the file while it is open.
    Never,
    /// By kernel events (fanotify) right after each change, and by the file's length and times at
    /// this interval. This is the default, with 100 ms. Events need a kernel from 5.13 on that lets
    /// this process listen; a user without privileges has 128 pools or single caches with events.
    /// Without events this works as `Times`, and [`explain`](crate::FineGrained::explain) says so.
    /// An event does not name a part of the file, so the whole file is dropped from the cache.
    ///
    /// A change by this process through the library hides concurrent changes of others from the
    /// times. Most of those cause events. For the others, the file's cached items are dropped 10 s
    /// after such a change, every 10 s while such changes go on, and then each time the age of the
    /// last one has doubled. `Never` avoids that where nobody else writes, and `Events` where
    /// nobody writes without an event.
    Every(Duration),
    /// By the file's length and times alone, looked at with this interval. A change by this process
    /// through the library hides concurrent changes of others, so the next look after one drops all
    /// cached items of the file. `Never` avoids that where nobody else writes.
    Times(Duration),
    /// By kernel events alone. This needs the maintenance thread. The file's times are looked at
    /// only when [`look_outside`](crate::FineGrained::look_outside) is called, so changes without
    /// events (see above) are not found. It is for files that others change only by write(2) and
    /// similar calls. It is refused where the kernel refuses events.
    Events,
}

impl Default for ExternalChanges {
    fn default() -> ExternalChanges {
        ExternalChanges::Every(Duration::from_millis(100))
    }
}

/// A function that checks bytes from the device. It gets the offset of a read and its bytes, and
/// returns what is wrong with them, if anything.
///
/// It may read through the same cache in any way (for example a checksum stored beside the data):
/// the cache holds nothing meanwhile that another read could wait for. Bytes that it reads are
/// checked, too. It must not read the bytes that it was asked to check, because that would never
/// end.
pub type Verify = Arc<dyn Fn(u64, &[u8]) -> Result<(), String> + Send + Sync>;

/// The settings of one file of a pool. The defaults come from the pool's [`CacheOptions`].
#[derive(Clone)]
#[non_exhaustive]
pub struct FileOptions {
    /// Reads of more bytes than this from one page use the block path.
    pub large: usize,
    /// Whether bytes read by the block path are cached as pages. If not, they are only returned.
    pub keep_blocks: bool,
    /// How changes of the file by others are found.
    pub outside: ExternalChanges,
    /// How long a read waits for a write to the same bytes before it fails with `Busy`.
    pub patience: Duration,
    /// A check that runs after each read from the device, before the bytes are returned or cached.
    pub verify: Option<Verify>,
}

datapipes_core::setters! {
    FileOptions {
        large: usize,
        keep_blocks: bool,
        outside: ExternalChanges,
        patience: Duration,
    }
}

impl FileOptions {
    /// Sets [`verify`](#structfield.verify).
    #[must_use]
    pub fn verify(mut self, verify: Verify) -> Self {
        self.verify = Some(verify);
        self
    }

    pub(crate) fn of(config: &CacheOptions) -> FileOptions {
        FileOptions {
            large: config.large,
            keep_blocks: config.keep_blocks,
            outside: config.outside,
            patience: config.patience,
            verify: config.verify.clone(),
        }
    }
}

impl fmt::Debug for FileOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileOptions")
            .field("large", &self.large)
            .field("keep_blocks", &self.keep_blocks)
            .field("outside", &self.outside)
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

/// The settings of a cache. Everything but the machine has a default.
#[derive(Clone)]
#[non_exhaustive]
pub struct CacheOptions {
    pub(crate) machine: Machine,
    /// The memory budget in bytes, for everything: data, index, ghosts, detector, read buffers and
    /// advice ([`prefetch`](crate::FineGrained::prefetch)). At least 2 MiB. It does not include the
    /// caller's buffers, or the buffers of futures ([`on`](crate::FineGrained::on)).
    pub budget: usize,
    /// The policy that decides which items are admitted and evicted.
    pub policy: CachePolicy,
    /// How slabs are divided among size classes.
    pub reassignment: Reassignment,
    /// Reads of more bytes than this from one page use the block path.
    pub large: usize,
    /// Whether bytes read by the block path are cached as pages, in the same budget. If not, they
    /// are only returned.
    pub keep_blocks: bool,
    /// The number of requests that one thread has outstanding at the device.
    pub depth: usize,
    /// The number of threads that read from the device at once. Further threads wait. They fail
    /// with `Busy` if no reader returns within `patience` (at least a second), because a file
    /// system that does not answer then holds all of them.
    pub lanes: usize,
    /// The most threads that wait for a lane. A further one fails with `Busy`, so that callers
    /// notice a slow device before all threads wait for it. Futures have their own limit
    /// ([`FineGrained::on_with`](crate::FineGrained::on_with)).
    pub waiting: usize,
    /// How long an item may be returned after it was read. Without it there is no limit.
    pub ttl: Option<Duration>,
    /// How changes of the file by others are found.
    pub outside: ExternalChanges,
    /// How long a read waits for a write to the same bytes before it fails with `Busy`.
    pub patience: Duration,
    /// A check that runs after each read from the device, before the bytes are returned or cached.
    pub verify: Option<Verify>,
    /// Whether all memory is touched at the start. If not, the first use of each page takes longer.
    pub prefault: bool,
    /// Whether a thread handles slabs, time to live and changes from outside. If not, the caller
    /// calls [`maintain`](crate::FineGrained::maintain).
    pub maintenance: bool,
}

datapipes_core::setters! {
    CacheOptions {
        budget: usize,
        policy: CachePolicy,
        reassignment: Reassignment,
        large: usize,
        keep_blocks: bool,
        depth: usize,
        lanes: usize,
        waiting: usize,
        ttl: into Option<Duration>,
        outside: ExternalChanges,
        patience: Duration,
        prefault: bool,
        maintenance: bool,
    }
}

impl CacheOptions {
    /// Sets [`verify`](#structfield.verify).
    #[must_use]
    pub fn verify(mut self, verify: Verify) -> Self {
        self.verify = Some(verify);
        self
    }

    /// Returns the defaults: a budget of 64 MiB, and the fields' own defaults.
    pub fn new(machine: &Machine) -> CacheOptions {
        CacheOptions {
            machine: machine.clone(),
            budget: 64 << 20,
            policy: CachePolicy::default(),
            reassignment: Reassignment::default(),
            large: 2048,
            keep_blocks: true,
            depth: 64,
            lanes: 2 * std::thread::available_parallelism().map_or(2, usize::from),
            waiting: 4096,
            ttl: None,
            outside: ExternalChanges::default(),
            patience: Duration::from_secs(1),
            verify: None,
            prefault: true,
            maintenance: true,
        }
    }
}

impl fmt::Debug for CacheOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheOptions")
            .field("budget", &self.budget)
            .field("policy", &self.policy)
            .field("reassignment", &self.reassignment)
            .field("large", &self.large)
            .field("depth", &self.depth)
            .field("ttl", &self.ttl)
            .finish_non_exhaustive()
    }
}
