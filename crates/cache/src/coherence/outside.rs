//! Changes that were not announced: by other processes, or through memory that maps the file.
//!
//! ```text
//! kernel events (events.rs):  another process changed the file: its cached items are dropped,
//!                             even during our own writes
//! length and times:           the file looks different: its cached items are dropped
//! doubt (doubt.rs):           a change that was seen may not be over, and one beside a change of
//!                             our own is not seen: the cached items are dropped again later
//! ```
//! A write moves the times when it begins. Asynchronous writes of other processes cause no event. A
//! store through a mapping moves the times only when the page is first written after it was
//! cleaned. Two writes within a tick of the file system's clock (nanoseconds on kernels from 6.13
//! on, milliseconds before, up to two seconds on old file systems) look like one. So this finds a
//! file that was edited or replaced in place. It is not a protocol between processes.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use datapipes_core::{Error, Result, Ssd};

use super::doubt::Doubt;
use super::events::FileName;
use crate::config;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

/// The length and times of a file at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) len: u64,
    pub(crate) modified_ns: i128,
    pub(crate) changed_ns: i128,
}

/// File systems (by `f_type`) that know the attributes of an open file without asking others: ext2
/// to ext4, XFS, Btrfs, F2FS, tmpfs, ramfs, FAT, SquashFS, EROFS and ISO 9660.
const STEADY: [u32; 10] =
    [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994, 0x8584_58f6, 0x4d44, 0x7371_7368, 0xe0f5_e1e2, 0x9660];

/// Whether a look at the file never blocks. Other file systems (network, FUSE, layers over them)
/// may answer late, or never.
pub(crate) fn is_steady(ssd: &Ssd) -> bool {
    ssd.file().file_system().is_some_and(|kind| STEADY.contains(&kind))
}

impl Look {
    pub(crate) fn at(ssd: &Ssd) -> Result<Look> {
        let stat = rustix::fs::fstat(ssd.file().cached_fd())
            .map_err(|e| Error::os("look at", e.raw_os_error(), ssd.path().display().to_string()))?;
        let ns = |s: i64, ns: i128| i128::from(s) * 1_000_000_000 + ns;
        Ok(Look {
            len: u64::try_from(stat.st_size).unwrap_or(0),
            modified_ns: ns(stat.st_mtime, i128::from(stat.st_mtime_nsec)),
            changed_ns: ns(stat.st_ctime, i128::from(stat.st_ctime_nsec)),
        })
    }

    /// Looks at the file such that every later change is seen. While the last change is younger
    /// than a few ticks of the file system's clock, it waits that long. Returns None where the file
    /// keeps changing.
    pub(crate) fn at_rest(ssd: &Ssd) -> Result<Option<Look>> {
        for _ in 0..4 {
            let look = Look::at(ssd)?;
            let (age, tick) = (look.age(ssd), look.tick());
            if age >= tick {
                return Ok(Some(look));
            }
            std::thread::sleep(tick - age);
            if Look::at(ssd)? == look {
                return Ok(Some(look));
            }
        }
        Ok(None)
    }

    /// Returns at least the time since the last change. The times of a network file system come
    /// from another machine's clock, so they are not compared with ours.
    fn age(&self, ssd: &Ssd) -> Duration {
        if !is_steady(ssd) {
            return Duration::ZERO;
        }
        let last = u64::try_from(self.changed_ns.max(self.modified_ns)).unwrap_or(0);
        SystemTime::now().duration_since(UNIX_EPOCH + Duration::from_nanos(last)).unwrap_or_default()
    }

    /// A file that changed within this time may change again without a visible difference. File
    /// systems with times in whole seconds (ext4 with inodes of 128 bytes, HFS+, old servers) or in
    /// every second one (FAT) are recognized by that.
    fn tick(&self) -> Duration {
        if self.is_of_whole_seconds() { SECONDS } else { TICK }
    }

    pub(crate) fn is_of_whole_seconds(&self) -> bool {
        let whole = |ns: i128| ns % 1_000_000_000 == 0;
        whole(self.modified_ns) && whole(self.changed_ns)
    }
}

/// The longest clock tick of a file system with fractions of seconds, as far as we know.
const TICK: Duration = Duration::from_millis(20);
/// The longest clock tick of a file system with whole seconds.
const SECONDS: Duration = Duration::from_secs(2);
/// A snapshot does not trust bytes that were read before the last change had this age, because a
/// write's time is that of its beginning.
const SETTLED: Duration = Duration::from_secs(1);
/// The shortest interval at which the cache is dropped because of changes of our own while events
/// are received. Changes that they hide are then rare, because most changes by others cause events.
const BESIDE_OUR_OWN: Duration = Duration::from_secs(10);

/// The result of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Same,
    Changed,
    /// The file may have changed in a way that cannot be seen.
    Uncertain,
}

struct Known {
    /// The last look.
    look: Option<Look>,
    /// The doubt after a change that was seen: it may not be over.
    seen: Doubt,
    /// The doubt after changes of our own, which may hide changes of others.
    hidden: Option<Doubt>,
    /// When the items from a snapshot are dropped once, because a change that was young when it was
    /// saved may have gone on since. None: they need not be dropped, or were.
    loaded: Option<Instant>,
}

impl Known {
    fn doubts(&mut self) -> impl Iterator<Item = &mut Doubt> {
        std::iter::once(&mut self.seen).chain(&mut self.hidden)
    }

    fn is_due(&mut self, now: Instant) -> bool {
        self.is_loaded_due(now) || self.doubts().any(|doubt| doubt.is_due(now))
    }

    fn is_loaded_due(&self, now: Instant) -> bool {
        self.loaded.is_some_and(|due| due <= now)
    }

    /// Notes that the cached items are dropped now.
    fn goes(&mut self, now: Instant) {
        self.doubts().for_each(|doubt| doubt.goes(now));
        self.loaded = None;
    }
}

/// What is known about changes from outside.
pub(crate) struct Outside {
    pub(crate) how: config::ExternalChanges,
    /// Whether events report changes by other processes.
    listens: bool,
    /// The file's name in events.
    name: Option<FileName>,
    /// Whether it is a block device: times and events of one of its names reveal nothing about its
    /// bytes.
    block: bool,
    known: Mutex<Known>,
    /// Whether events came since the last call of `was_told`.
    told: AtomicBool,
}

impl Outside {
    /// Starts with the file's present state. `listens` says that events of the file come, under
    /// this name if that is known.
    pub(crate) fn new(ssd: Option<&Ssd>, how: config::ExternalChanges, listens: Option<Option<FileName>>) -> Outside {
        let look = ssd.and_then(|s| Look::at(s).ok());
        let (listens, name) = (listens.is_some(), listens.flatten());
        // A file about which nothing is known is treated as one that changes now.
        let age = ssd.zip(look).map_or(Duration::ZERO, |(ssd, look)| look.age(ssd));
        let seen = Doubt::of_age(Instant::now(), age, TICK);
        let known = Mutex::new(Known { look, seen, hidden: None, loaded: None });
        let block = ssd.is_some_and(|ssd| ssd.file().is_block_device());
        Outside { how, listens, name, block, known, told: AtomicBool::new(false) }
    }

    /// Whether changes of our own hide all changes of others, not only those without events.
    fn by_times_alone(&self) -> bool {
        self.looks() && !self.listens
    }

    /// Whether the file's times are looked at from time to time.
    pub(crate) fn looks(&self) -> bool {
        !self.block && matches!(self.how, config::ExternalChanges::Every(_) | config::ExternalChanges::Times(_))
    }

    pub(crate) fn listens(&self) -> bool {
        self.listens
    }

    pub(crate) fn name(&self) -> Option<&FileName> {
        self.name.as_ref()
    }

    /// Notes that an event came.
    pub(crate) fn tell(&self) {
        self.told.store(true, Ordering::SeqCst);
    }

    /// Whether events came since the last call.
    pub(crate) fn was_told(&self) -> bool {
        self.told.swap(false, Ordering::SeqCst)
    }

    /// Notes that a change of our own begins: until its end, times do not show changes by others.
    pub(crate) fn own_begins(&self) {
        if self.looks() {
            self.own_changes(&mut self.known.lock());
        }
    }

    /// Notes that a change of our own is over: the present look becomes the expected one.
    pub(crate) fn own_ends(&self, ssd: Option<&Ssd>) {
        let mut known = self.known.lock();
        known.look = ssd.and_then(|s| Look::at(s).ok());
        if self.looks() {
            self.own_changes(&mut known);
        }
    }

    fn own_changes(&self, known: &mut Known) {
        let (first, least) =
            if self.by_times_alone() { (Duration::ZERO, TICK) } else { (BESIDE_OUR_OWN, BESIDE_OUR_OWN) };
        let now = Instant::now();
        match &mut known.hidden {
            Some(doubt) => doubt.renew(now, first),
            none => *none = Some(Doubt::from_now(now, first, least)),
        }
    }

    /// Whether the file looks different from before. Times reveal nothing during changes of our
    /// own, so `quiet` is asked after the look. With `settle`, a doubt that is due is reported, and
    /// the caller drops the cached items.
    pub(crate) fn look(&self, ssd: Option<&Ssd>, quiet: &dyn Fn() -> bool, settle: bool) -> Result<Found> {
        let Some(ssd) = ssd else { return Ok(Found::Same) };
        if self.block {
            return Ok(Found::Uncertain);
        }
        let mut known = self.known.lock();
        let was_quiet = quiet();
        let look = Look::at(ssd)?;
        let now = Instant::now();
        let due = settle && known.is_due(now);
        // `quiet` is asked in both cases: a change may have ended since and now waits for this
        // lock.
        let is_quiet = was_quiet && quiet();
        let before = if is_quiet { known.look.replace(look) } else { Some(look) };
        if before != Some(look) {
            known.goes(now);
            known.seen = Doubt::from_now(now, TICK, TICK);
            return Ok(Found::Changed);
        }
        if !due {
            return Ok(Found::Same);
        }
        known.goes(now);
        if !is_quiet && self.by_times_alone() {
            // This repeats with each look until the change is over.
            self.own_changes(&mut known);
        }
        Ok(Found::Uncertain)
    }

    /// Whether all cached bytes are those of the file as it looked then, as far as this way of
    /// finding changes can know. If so, returns for how long that may be assumed without another
    /// read: a change that was young when the bytes were read may not be over. Events that were not
    /// taken are ignored.
    pub(crate) fn is_current(&self, look: Look) -> Option<Duration> {
        let mut known = self.known.lock();
        let now = Instant::now();
        let loaded = known.loaded.map_or(Duration::MAX, |due| due.saturating_duration_since(now));
        let is_current = match self.how {
            // It cannot be known later either.
            _ if self.block => false,
            config::ExternalChanges::Never => return Some(loaded),
            // Nobody looked since an event came, or since a change without an event.
            config::ExternalChanges::Events => known.look == Some(look),
            config::ExternalChanges::Every(_) | config::ExternalChanges::Times(_) => {
                let settled = SETTLED.max(look.tick());
                known.look == Some(look) && known.doubts().all(|doubt| doubt.is_settled(settled))
            }
        };
        // An event comes at the end of a change, perhaps after this file is closed. So there is
        // doubt with events as well.
        is_current.then(|| known.doubts().map(|doubt| doubt.left(now)).min().unwrap_or(loaded).min(loaded))
    }

    /// Notes that items of a snapshot are loaded, and are to be dropped after this time.
    pub(crate) fn loads(&self, left: Duration) {
        let mut known = self.known.lock();
        let due = Instant::now().checked_add(left);
        known.loaded = [known.loaded, due].into_iter().flatten().min();
    }

    /// Whether the items of a snapshot must be dropped now. It is asked where the file is not
    /// looked at, and does not block.
    pub(crate) fn is_loaded_due(&self) -> bool {
        // If another thread looks at the file, it may wait for its file system. The next look
        // decides.
        let Some(mut known) = self.known.try_lock() else { return false };
        let due = known.is_loaded_due(Instant::now());
        if due {
            known.loaded = None;
        }
        due
    }

    /// Describes how changes are found.
    pub(crate) fn explain(&self) -> String {
        match (self.how, self.listens) {
            (config::ExternalChanges::Every(_) | config::ExternalChanges::Times(_), _) if self.block => {
                "changes by others: not found, because it is a block device; its bytes are returned for the time to live".into()
            }
            (config::ExternalChanges::Never, _) => "changes by others are not looked for".into(),
            (config::ExternalChanges::Events, _) => {
                "changes by others: by events of the kernel alone, which leave out asynchronous writes (aio, loop devices)".into()
            }
            (config::ExternalChanges::Every(time), true) => format!(
                "changes by others: by events of the kernel, and by the file's times every {time:?}; while this process changes the file, \
                 all that is cached of it goes every {BESIDE_OUR_OWN:?}"
            ),
            (config::ExternalChanges::Every(time) | config::ExternalChanges::Times(time), false | true) => {
                format!(
                    "changes by others: by the file's times every {time:?}; after a change of our own all that is cached of the file goes"
                )
            }
        }
    }
}
