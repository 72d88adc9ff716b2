//! What a cache is told when it is made.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use datapipes_core::Machine;
use serde::{Deserialize, Serialize};

use crate::reassign::Reassignment;

/// Who is admitted, and who has to go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CachePolicy {
    /// S3-FIFO for each size class, and a clock while samples show that the load drifts. The
    /// default.
    #[default]
    Adaptive,
    /// S3-FIFO for each size class (SOSP 2023).
    S3Fifo,
    /// SIEVE (NSDI 2024); 8 bytes more an item.
    Sieve,
    /// W-TinyLFU (ACM TOS 2017).
    WTinyLfu,
    /// Pipette's own (DAC 2022): least recently used, an adaptive threshold of references, TempBuf;
    /// 8 bytes more an item.
    Pipette,
}

impl CachePolicy {
    /// All of them.
    pub const ALL: [CachePolicy; 5] =
        [CachePolicy::Adaptive, CachePolicy::S3Fifo, CachePolicy::Sieve, CachePolicy::WTinyLfu, CachePolicy::Pipette];

    /// Its name, as the command line has it.
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
                .advice(format!("give one of {}", names.join(", ")))
        })
    }
}

/// How it is found that another process changed a file. Until then its old bytes are given out.
///
/// What no way finds: bytes that others store into memory that maps the file, once the page was
/// written before (its times move with the first store after the page was cleaned, and no event
/// comes); on a network file system, what another machine writes until this one's attributes are
/// renewed. Events leave out asynchronous writes (libaio: databases, virtual machines; a loop
/// device over the file), writes to a layer below an overlay, and what this process itself does
/// past the library: only the times tell of those.
///
/// A block device has many names, and file systems are mounted on it: times and events are of the
/// one name by which it is open, and tell nothing of its bytes. So it is refused unless nobody else
/// writes to it (`Never`) or old bytes may be given out for a time to live ([`CacheConfig::ttl`],
/// with `Every` or `Times`); what is saved of it is read again.
///
/// The times move when a write begins, and its bytes come later. So after a change that the times
/// show, all that is cached of the file goes once more each time that the change has become twice
/// as old (20 ms, 40 ms, ...; as often as it is looked at, at most): old bytes that were read while
/// one long call wrote are given out for about as long again as the call took. A file that was
/// written just before it is opened is treated so, too, and so is a snapshot whose bytes were read
/// while a change was young.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExternalChanges {
    /// Not at all: nobody else writes there while it is open.
    Never,
    /// By events of the kernel (fanotify), right after each change, where the kernel lets this
    /// process listen (from 5.13 on, unless it is confined; 128 pools or single caches a user
    /// without privileges); and by the file's length and times, looked at this often. Without
    /// events it is as `Times`, and [`explain`](crate::FineGrained::explain) says so. The default,
    /// every 100 ms. An event names no part of the file: all that is cached of it goes.
    ///
    /// A change by this process through the library hides from the times what others begin
    /// meanwhile. Of most of that events come; for the rest, all that is cached of the file goes 10
    /// s after such a change, every 10 s while they go on, and then each time that the last one is
    /// twice as old. Where nobody else writes, `Never` spares that, and `Events` where nobody
    /// writes without an event.
    Every(Duration),
    /// By the file's length and times alone, looked at this often. A change by this process through
    /// the library hides what others change meanwhile, so after one everything that is cached of
    /// the file goes with the next look. Where nobody else writes, `Never` spares that.
    Times(Duration),
    /// By events of the kernel alone; needs the maintenance thread. The file's times are looked at
    /// only when
    /// [`look_outside`](crate::FineGrained::look_outside) is called, so what events leave out (see above) is not found: for files
    /// that others write to by write(2) and its like alone. Refused where the kernel refuses.
    Events,
}

impl Default for ExternalChanges {
    fn default() -> ExternalChanges {
        ExternalChanges::Every(Duration::from_millis(100))
    }
}

/// Checks bytes that came from the device: the offset of a read and its bytes; what is wrong with
/// them, if anything is.
///
/// It may read through the same cache, by any of its faces (a checksum that lies beside the data):
/// nothing that another read could wait for is held while it runs. What it reads so is checked,
/// too; it must not lead back to the bytes that it is asked about, which would have no end.
pub type Verify = Arc<dyn Fn(u64, &[u8]) -> Result<(), String> + Send + Sync>;

/// The settings of one file of a pool; they begin as the pool's [`CacheConfig`] says.
#[derive(Clone)]
#[non_exhaustive]
pub struct FileOptions {
    /// Reads of more bytes than this of one page go by the block path.
    pub large: usize,
    /// Whether what comes by the block path is kept as pages. Without, it is given out only.
    pub keep_blocks: bool,
    /// How changes of the file by others are found.
    pub outside: ExternalChanges,
    /// How long a read waits for a write into the same bytes before it is refused as `Busy`.
    pub patience: Duration,
    /// Run after each read from the device, before the bytes are given out or kept.
    pub verify: Option<Verify>,
}

impl FileOptions {
    pub(crate) fn of(config: &CacheConfig) -> FileOptions {
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

/// The settings of a cache. All have defaults but the machine.
#[derive(Clone)]
pub struct CacheConfig {
    pub(crate) machine: Machine,
    /// Memory for everything, in bytes: data, index, ghosts, detector, read buffers, advice
    /// ([`prefetch`](crate::FineGrained::prefetch)). At least 2 MiB. What a caller asks bytes into
    /// is his; futures have buffers beside it ([`on`](crate::FineGrained::on)).
    pub budget: usize,
    /// Who is admitted, and who has to go.
    pub policy: CachePolicy,
    /// How slabs are divided among size classes.
    pub reassignment: Reassignment,
    /// Reads of more bytes than this of one page go by the block path.
    pub large: usize,
    /// Whether what comes by the block path is kept as pages, in the same budget. Without, it is
    /// given out only.
    pub keep_blocks: bool,
    /// Requests that one thread has outstanding at the device.
    pub depth: usize,
    /// Threads that read from the device at once; more wait, and are refused as `Busy` where none
    /// of those came back within `patience`, at least a second: a file system that does not answer
    /// has all of them.
    pub lanes: usize,
    /// Threads that wait for a lane at most: a further one is refused as `Busy`, so that a device
    /// that does not keep up is felt before all threads stand there. Futures have a limit of their
    /// own ([`FineGrained::on_with`](crate::FineGrained::on_with)).
    pub waiting: usize,
    /// How long an item may be given out after it was read; for ever without.
    pub ttl: Option<Duration>,
    /// How changes of the file by others are found.
    pub outside: ExternalChanges,
    /// How long a read waits for a write into the same bytes before it is refused as `Busy`.
    pub patience: Duration,
    /// Run after each read from the device, before the bytes are given out or kept.
    pub verify: Option<Verify>,
    /// Touch all memory now. Without, the first use of each page pays for it.
    pub prefault: bool,
    /// A thread that looks after slabs, time to live and changes from outside. Without, the caller
    /// calls
    /// [`maintain`](crate::FineGrained::maintain).
    pub maintenance: bool,
}

impl CacheConfig {
    /// The defaults: 64 MiB, everything else as the fields say.
    pub fn new(machine: &Machine) -> CacheConfig {
        CacheConfig {
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

    /// With a budget, in bytes.
    #[must_use]
    pub fn budget(mut self, bytes: usize) -> CacheConfig {
        self.budget = bytes;
        self
    }

    /// With a policy.
    #[must_use]
    pub fn policy(mut self, policy: CachePolicy) -> CacheConfig {
        self.policy = policy;
        self
    }

    /// With so many requests of a thread outstanding at the device.
    #[must_use]
    pub fn depth(mut self, depth: usize) -> CacheConfig {
        self.depth = depth;
        self
    }
}

impl fmt::Debug for CacheConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("budget", &self.budget)
            .field("policy", &self.policy)
            .field("reassignment", &self.reassignment)
            .field("large", &self.large)
            .field("depth", &self.depth)
            .field("ttl", &self.ttl)
            .finish_non_exhaustive()
    }
}
