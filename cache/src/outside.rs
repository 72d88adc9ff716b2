//! Changes that nobody told us of: other processes, or memory that maps the file.
//!
//! ```text
//! the kernel's events (events.rs):  another process changed the file: what is cached of it goes, whatever we write meanwhile
//! the file's length and times:      it looks otherwise than it did: the same
//! doubt:                            a change that was seen may not be over, and one beside a change of our own is not seen at all:
//!                                   what is cached goes once more later, and again (doubt.rs)
//! ```
//! A write moves the times when it begins, and asynchronous ones of other processes cause no event;
//! one through a mapping moves the times only when the page is first written after it was cleaned;
//! two writes within a tick of the file system's clock (nanoseconds on kernels from 6.13 on,
//! milliseconds before, up to two seconds on old file systems) look like one. So this finds a file
//! that was edited or replaced in place; it is no protocol between processes.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use datapipes_core::{Error, Result, Ssd};

use crate::config;
use crate::doubt::Doubt;
use crate::events::FileName;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, TryLockError, lock};

/// How the file looked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) len: u64,
    pub(crate) modified_ns: i128,
    pub(crate) changed_ns: i128,
}

/// File systems (by `f_type`) that know how an open file looks without asking anybody: ext2 to
/// ext4, XFS, Btrfs, F2FS, tmpfs, ramfs, FAT, SquashFS, EROFS and ISO 9660.
const STEADY: [u32; 10] =
    [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994, 0x8584_58f6, 0x4d44, 0x7371_7368, 0xe0f5_e1e2, 0x9660];

/// Whether a look at the file waits for nobody. Others (network file systems, those of programs,
/// layers over them) may answer late, or never.
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

    /// The same, such that every change from now on is seen: it waits, at most for some ticks of
    /// the file system's clock, while the last change is younger than that. None where it changes
    /// again and again.
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

    /// Since the last change, at least. The times of a network file system are of another machine's
    /// clock, by which nothing is reckoned.
    fn age(&self, ssd: &Ssd) -> Duration {
        if !is_steady(ssd) {
            return Duration::ZERO;
        }
        let last = u64::try_from(self.changed_ns.max(self.modified_ns)).unwrap_or(0);
        SystemTime::now().duration_since(UNIX_EPOCH + Duration::from_nanos(last)).unwrap_or_default()
    }

    /// A file that changed within this time may change again without looking otherwise. A file
    /// system whose times are whole seconds (ext4 with inodes of 128 bytes, HFS+, old servers), or
    /// each second one (FAT), is known by that.
    fn tick(&self) -> Duration {
        if self.is_of_whole_seconds() { SECONDS } else { TICK }
    }

    pub(crate) fn is_of_whole_seconds(&self) -> bool {
        let whole = |ns: i128| ns % 1_000_000_000 == 0;
        whole(self.modified_ns) && whole(self.changed_ns)
    }
}

/// No clock of a file system that has parts of seconds ticks more slowly, as far as we know.
const TICK: Duration = Duration::from_millis(20);
/// None that has whole seconds does.
const SECONDS: Duration = Duration::from_secs(2);
/// What was read before a change was so old is not taken for the present by a snapshot: a write's
/// time is that of its beginning.
const SETTLED: Duration = Duration::from_secs(1);
/// While changes of our own go on and events are listened to, what is cached goes at most so often
/// for their sake: what they hide is rare then, as most changes by others cause events.
const BESIDE_OUR_OWN: Duration = Duration::from_secs(10);

/// What a look found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Same,
    Changed,
    /// It may have changed where that cannot be seen.
    Uncertain,
}

struct Known {
    /// How it looked last.
    look: Option<Look>,
    /// The last change that was seen may not be over.
    seen: Doubt,
    /// Others may have changed it beside changes of our own, which cannot be seen.
    hidden: Option<Doubt>,
    /// When what came from a snapshot goes once: a change that was young when it was saved may have
    /// gone on since. None: it need not, or has gone.
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

    /// What is cached goes now.
    fn goes(&mut self, now: Instant) {
        self.doubts().for_each(|doubt| doubt.goes(now));
        self.loaded = None;
    }
}

/// What is known of changes from outside.
pub(crate) struct Outside {
    pub(crate) how: config::ExternalChanges,
    /// Events tell of other processes.
    listens: bool,
    /// By which name.
    name: Option<FileName>,
    /// Times and events are those of one of the device's names, and tell nothing of its bytes.
    block: bool,
    known: Mutex<Known>,
    /// Events came since this was last asked.
    told: AtomicBool,
}

impl Outside {
    /// From now on. `listens`: events of the file come, under this name if that is known.
    pub(crate) fn new(ssd: Option<&Ssd>, how: config::ExternalChanges, listens: Option<Option<FileName>>) -> Outside {
        let look = ssd.and_then(|s| Look::at(s).ok());
        let (listens, name) = (listens.is_some(), listens.flatten());
        // A file of which nothing is known is as one that changes now.
        let age = ssd.zip(look).map_or(Duration::ZERO, |(ssd, look)| look.age(ssd));
        let seen = Doubt::of_age(Instant::now(), age, TICK);
        let known = Mutex::new(Known { look, seen, hidden: None, loaded: None });
        let block = ssd.is_some_and(|ssd| ssd.file().is_block_device());
        Outside { how, listens, name, block, known, told: AtomicBool::new(false) }
    }

    /// Whether changes of our own hide all of those of others, and not only those of which no event
    /// comes.
    fn by_times_alone(&self) -> bool {
        self.looks() && !self.listens
    }

    /// Whether its times are looked at now and then.
    pub(crate) fn looks(&self) -> bool {
        !self.block && matches!(self.how, config::ExternalChanges::Every(_) | config::ExternalChanges::Times(_))
    }

    pub(crate) fn listens(&self) -> bool {
        self.listens
    }

    pub(crate) fn name(&self) -> Option<&FileName> {
        self.name.as_ref()
    }

    /// An event came.
    pub(crate) fn tell(&self) {
        self.told.store(true, Ordering::SeqCst);
    }

    /// Whether events came since this was last asked.
    pub(crate) fn was_told(&self) -> bool {
        self.told.swap(false, Ordering::SeqCst)
    }

    /// A change of our own begins: what others change until it is over cannot be seen by times.
    pub(crate) fn own_begins(&self) {
        if self.looks() {
            self.own_changes(&mut lock(&self.known));
        }
    }

    /// A change of our own is over: how the file looks now is how it should look.
    pub(crate) fn own_ends(&self, ssd: Option<&Ssd>) {
        let mut known = lock(&self.known);
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

    /// Whether the file looks otherwise than before. Times say nothing while changes of our own are
    /// under way: `quiet` is asked after the look. With `settle`, a doubt that is due is answered;
    /// the caller does what that asks for.
    pub(crate) fn look(&self, ssd: Option<&Ssd>, quiet: &dyn Fn() -> bool, settle: bool) -> Result<Found> {
        let Some(ssd) = ssd else { return Ok(Found::Same) };
        if self.block {
            return Ok(Found::Uncertain);
        }
        let mut known = lock(&self.known);
        let was_quiet = quiet();
        let look = Look::at(ssd)?;
        let now = Instant::now();
        let due = settle && known.is_due(now);
        // In both cases: one may have ended since, and waits for this lock before it says so.
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
            // With each look until it is over.
            self.own_changes(&mut known);
        }
        Ok(Found::Uncertain)
    }

    /// Whether all that is cached is of the file as it looked then: nobody changed it unnoticed
    /// until then, as far as this way of finding changes can know. If so, for how long from now on
    /// that may be taken for true without another read: a change that was young when it was read
    /// may not be over. Events that have not been taken are not reckoned with.
    pub(crate) fn is_current(&self, look: Look) -> Option<Duration> {
        let mut known = lock(&self.known);
        let now = Instant::now();
        let loaded = known.loaded.map_or(Duration::MAX, |due| due.saturating_duration_since(now));
        let is_current = match self.how {
            // Nor can it be known afterwards whether it is.
            _ if self.block => false,
            config::ExternalChanges::Never => return Some(loaded),
            // Nobody looked since an event came, or since something came of which there are none.
            config::ExternalChanges::Events => known.look == Some(look),
            config::ExternalChanges::Every(_) | config::ExternalChanges::Times(_) => {
                let settled = SETTLED.max(look.tick());
                known.look == Some(look) && known.doubts().all(|doubt| doubt.is_settled(settled))
            }
        };
        // An event comes at a change's end, which may be after all of this is closed. So there is
        // doubt with events as well.
        is_current.then(|| known.doubts().map(|doubt| doubt.left(now)).min().unwrap_or(loaded).min(loaded))
    }

    /// What a snapshot says is taken in, and goes after this time.
    pub(crate) fn loads(&self, left: Duration) {
        let mut known = lock(&self.known);
        let due = Instant::now().checked_add(left);
        known.loaded = [known.loaded, due].into_iter().flatten().min();
    }

    /// Whether what a snapshot said goes now; asked where nothing is looked at. It waits for
    /// nobody.
    pub(crate) fn is_loaded_due(&self) -> bool {
        let mut known = match self.known.try_lock() {
            Ok(known) => known,
            Err(TryLockError::Poisoned(known)) => known.into_inner(),
            // Somebody looks at the file, and may wait for its file system: with the next look.
            Err(TryLockError::WouldBlock) => return false,
        };
        let due = known.is_loaded_due(Instant::now());
        if due {
            known.loaded = None;
        }
        due
    }

    /// How changes are found, in words.
    pub(crate) fn explain(&self) -> String {
        match (self.how, self.listens) {
            (config::ExternalChanges::Every(_) | config::ExternalChanges::Times(_), _) if self.block => {
                "changes by others: not found, as it is a block device; its bytes are given out for as long as the time to live says".into()
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
