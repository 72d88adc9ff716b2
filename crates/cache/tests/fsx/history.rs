//! A history of writes, which tells for every read whether its bytes are of one moment between its
//! call and its return.
//!
//! The file consists of granules of 64 bytes. A writer locks granules against other writers, and
//! gives each its next version. The version is *begun* before the bytes may change, and *done* when
//! the writer's call has returned.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Condvar, Mutex};

use super::fixture::mix;

pub(crate) const GRANULE: u64 = 64;
/// The number of versions that are remembered of each granule.
const KEPT: u64 = 8;

/// The kind of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Data,
    /// A hole, or bytes by which the file was extended.
    Zero,
    /// The granule is beyond the end of the file.
    Absent,
}

#[derive(Default)]
struct Entry {
    version: AtomicU64,
    /// The tick at which its write began, which identifies the write, and two bits of kind.
    write: AtomicU64,
    /// The tick at which it was over.
    end: AtomicU64,
}

#[derive(Default)]
struct Granule {
    begun: AtomicU64,
    done: AtomicU64,
    kept: [Entry; KEPT as usize],
}

pub(crate) struct History {
    granules: Vec<Granule>,
    tick: AtomicU64,
    locked: Mutex<Vec<Range<u64>>>,
    unlocked: Condvar,
    /// The number of checks left out because too many versions had come meanwhile.
    pub(crate) lost: AtomicU64,
    pub(crate) checked: AtomicU64,
}

/// Returns the bytes of a granule's version.
pub(crate) fn content(granule: u64, version: u64, kind: Kind) -> [u8; GRANULE as usize] {
    let mut bytes = [0; GRANULE as usize];
    if kind == Kind::Data {
        for (i, word) in bytes.chunks_exact_mut(8).enumerate() {
            let number = if i == 0 { version } else { mix(granule << 20 ^ version ^ (i as u64) << 56) };
            word.copy_from_slice(&number.to_le_bytes());
        }
    }
    bytes
}

/// A change that has begun.
pub(crate) struct Change {
    granules: Range<u64>,
    locked: Range<u64>,
}

/// The versions that one reader saw, which never go back.
pub(crate) struct Reader {
    last: Vec<u64>,
}

impl History {
    pub(crate) fn new(granules: u64) -> History {
        History {
            granules: (0..granules).map(|_| Granule::default()).collect(),
            tick: AtomicU64::new(1),
            locked: Mutex::default(),
            unlocked: Condvar::new(),
            lost: AtomicU64::new(0),
            checked: AtomicU64::new(0),
        }
    }

    pub(crate) fn reader(&self) -> Reader {
        Reader { last: vec![0; self.granules.len()] }
    }

    /// Locks granules against other writers.
    pub(crate) fn lock(&self, range: Range<u64>) -> Change {
        let overlaps = |other: &Range<u64>| other.start < range.end && range.start < other.end;
        let mut locked = self.locked.lock().unwrap();
        while locked.iter().any(overlaps) {
            locked = self.unlocked.wait(locked).unwrap();
        }
        locked.push(range.clone());
        Change { granules: range.start..range.start, locked: range }
    }

    /// Gives granules of the change their next version. Returns their new bytes.
    pub(crate) fn begin(&self, change: &mut Change, range: Range<u64>, kind: impl Fn(u64) -> Kind) -> Vec<u8> {
        assert!(change.locked.start <= range.start && range.end <= change.locked.end);
        let write = self.tick.fetch_add(1, SeqCst);
        let mut bytes = Vec::with_capacity(((range.end - range.start) * GRANULE) as usize);
        for granule in range.clone() {
            let of = &self.granules[granule as usize];
            let version = of.begun.load(SeqCst) + 1;
            let entry = &of.kept[(version % KEPT) as usize];
            entry.version.store(u64::MAX, SeqCst);
            entry.write.store(write << 2 | kind(granule) as u64, SeqCst);
            entry.end.store(u64::MAX, SeqCst);
            entry.version.store(version, SeqCst);
            of.begun.store(version, SeqCst);
            bytes.extend_from_slice(&content(granule, version, kind(granule)));
        }
        change.granules = range;
        bytes
    }

    /// Notes that the writer's call has returned.
    pub(crate) fn end(&self, change: Change) {
        let end = self.tick.fetch_add(1, SeqCst);
        for granule in change.granules {
            let of = &self.granules[granule as usize];
            let version = of.begun.load(SeqCst);
            of.kept[(version % KEPT) as usize].end.store(end, SeqCst);
            of.done.store(version, SeqCst);
        }
        let mut locked = self.locked.lock().unwrap();
        let at = locked.iter().position(|r| *r == change.locked).unwrap();
        locked.swap_remove(at);
        self.unlocked.notify_all();
    }

    /// Returns a version's write (kind, begin, end), if it is still remembered.
    fn entry(&self, granule: u64, version: u64) -> Option<(Kind, u64, u64)> {
        if version == 0 {
            return Some((Kind::Data, 0, 0));
        }
        let entry = &self.granules[granule as usize].kept[(version % KEPT) as usize];
        let before = entry.version.load(SeqCst);
        let (write, end) = (entry.write.load(SeqCst), entry.end.load(SeqCst));
        let kind = [Kind::Data, Kind::Zero, Kind::Absent][(write & 3) as usize];
        (before == version && entry.version.load(SeqCst) == version).then_some((kind, write >> 2, end))
    }

    fn of(offset: u64, len: u64) -> Range<u64> {
        offset / GRANULE..(offset + len).div_ceil(GRANULE)
    }

    /// Returns the least versions that a read which begins now may see.
    pub(crate) fn before(&self, offset: u64, len: u64) -> Vec<u64> {
        Self::of(offset, len).map(|g| self.granules[g as usize].done.load(SeqCst)).collect()
    }

    /// Checks the bytes of a read.
    pub(crate) fn after(&self, reader: &mut Reader, offset: u64, bytes: &[u8], before: &[u64]) -> Result<(), String> {
        let mut seen = Vec::new();
        for (granule, &least) in Self::of(offset, bytes.len() as u64).zip(before) {
            let most = self.granules[granule as usize].begun.load(SeqCst);
            let from = (granule * GRANULE).max(offset);
            let to = ((granule + 1) * GRANULE).min(offset + bytes.len() as u64);
            let part = &bytes[(from - offset) as usize..(to - offset) as usize];
            let inside = (from - granule * GRANULE) as usize..(to - granule * GRANULE) as usize;
            let is = |version, kind| content(granule, version, kind)[inside.clone()] == *part;
            let mut matching = Vec::new();
            let mut forgotten = false;
            for version in least..=most {
                match self.entry(granule, version) {
                    Some((kind, ..)) if kind != Kind::Absent && is(version, kind) => matching.push(version),
                    Some(_) => {}
                    // The version is forgotten, but whole data identifies itself.
                    None if is(version, Kind::Data) => matching.push(version),
                    None => forgotten = true,
                }
            }
            self.checked.fetch_add(1, SeqCst);
            match matching[..] {
                [] if forgotten => _ = self.lost.fetch_add(1, SeqCst),
                [] => return Err(self.wrong(granule, part, least, most)),
                [version] => {
                    let last = &mut reader.last[granule as usize];
                    if version < *last {
                        return Err(format!("granule {granule} went back from version {last} to {version}"));
                    }
                    *last = version;
                    seen.push((granule, version));
                }
                _ => {}
            }
        }
        self.torn(&seen)
    }

    fn wrong(&self, granule: u64, part: &[u8], least: u64, most: u64) -> String {
        let shown = (0..=most)
            .rev()
            .take(2000)
            .find_map(|v| (content(granule, v, Kind::Data)[..part.len()] == *part).then(|| format!("version {v}")));
        let zeros = part.iter().all(|&b| b == 0);
        let shown = shown.unwrap_or_else(|| if zeros { "zeros".into() } else { "torn or foreign bytes".into() });
        let kept: Vec<_> = (most.saturating_sub(3)..=most).map(|v| (v, self.entry(granule, v))).collect();
        format!("granule {granule} shows {shown}, must be of versions {least}..={most}; {kept:?}")
    }

    /// Checks that the granules of one read are of one moment.
    fn torn(&self, seen: &[(u64, u64)]) -> Result<(), String> {
        let known: Vec<_> = seen.iter().filter_map(|&(g, v)| Some((g, v, self.entry(g, v)?.1))).collect();
        let writes: BTreeSet<u64> = known.iter().map(|(.., write)| *write).collect();
        let Some(&latest) = writes.last() else { return Ok(()) };
        for (granule, version, _) in known {
            let Some((_, next, over)) = self.entry(granule, version + 1) else { continue };
            if writes.contains(&next) || over < latest {
                return Err(format!(
                    "torn: granule {granule} shows version {version}, whose successor (write {next}, over at {over}) came \
                     before what others show (write {latest})"
                ));
            }
        }
        Ok(())
    }

    /// Whether the file may have been shorter than this at some moment since.
    pub(crate) fn may_end(&self, offset: u64, len: u64, before: &[u64]) -> bool {
        Self::of(offset, len).zip(before).any(|(granule, &least)| {
            let most = self.granules[granule as usize].begun.load(SeqCst);
            (least..=most).any(|v| self.entry(granule, v).is_none_or(|(kind, ..)| kind == Kind::Absent))
        })
    }
}
