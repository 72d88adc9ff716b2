//! Warm restart: saves the items worth keeping to a file, and loads them.
//!
//! ```text
//! magic, version | the file's look and identity, the time of validity, CRC
//! blocks: { items, bytes, CRC | items: offset, length | their bytes } | 0, 0, count, CRC
//! ```
//! All numbers are little-endian. The snapshot is written without a name and published whole. If
//! the file still looks as it did then, the bytes are used as they are. Otherwise only the offsets
//! are used, and the bytes are read from the file, in order. Whether the items matched the file as
//! it looked is known only at the end. If others changed it unnoticed, or anybody changed it
//! meanwhile, the header field for its look stays empty, which no file ever matches.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use datapipes_core::{AtomicFile, Error, ErrorKind, FileMode, Result, Ssd};

use crate::bytes::zeroed;
use crate::coherence::identity::{self, Identity, Proof};
use crate::coherence::outside::Look;
use crate::coherence::writes::Stamp;
use crate::fine::FineGrained;
use crate::pool::file::Inner;
use crate::store::PAGE;
use crate::store::header::MAX_OFFSET;

const MAGIC: &[u8; 8] = b"dpfine\0\x03";
/// Bytes of an item's offset and length.
const HEAD: usize = 12;
/// Approximate bytes of a block's items.
const BLOCK: usize = 1 << 20;
/// The number of items that are read again together.
const TOGETHER: usize = 4096;
/// The most bytes of a block: its last item may begin just below [`BLOCK`]. The number of items is
/// at most the number of bytes.
const MAX_BUFFER_BYTES: u64 = BLOCK as u64 + PAGE - 1;

/// One item in this many is compared with the file, where only its times say that it is the same.
const SAMPLE: u64 = 64;
/// The most items that are compared, if items have the usual length.
const SAMPLES: u64 = 4096;
/// The usual length of an item with its head, in bytes.
const USUAL: u64 = 128;

/// The result of loading a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadSummary {
    /// Items that are cached again.
    pub items: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Whether the file had changed, so that the bytes were read from it and not from the snapshot.
    pub read_again: bool,
}

#[derive(Default)]
struct Block {
    items: Vec<(u64, u32)>,
    bytes: Vec<u8>,
}

impl Block {
    fn write(&self, to: &mut dyn Write) -> std::io::Result<()> {
        let mut head = Vec::with_capacity(self.items.len() * HEAD);
        for (offset, len) in &self.items {
            head.extend_from_slice(&offset.to_le_bytes());
            head.extend_from_slice(&len.to_le_bytes());
        }
        let mut crc = crc32fast::Hasher::new();
        crc.update(&head);
        crc.update(&self.bytes);
        to.write_all(&(self.items.len() as u32).to_le_bytes())?;
        to.write_all(&(self.bytes.len() as u32).to_le_bytes())?;
        to.write_all(&crc.finalize().to_le_bytes())?;
        to.write_all(&head)?;
        to.write_all(&self.bytes)
    }
}

/// Bytes of the file's look and identity, of the time when it was saved, and of the time until
/// which it is valid. Their CRC follows.
const LOOKS: usize = 40 + identity::BYTES + 16;
const LOOK: usize = LOOKS + 4;
/// The offset of the two times.
const TIMES: usize = 40 + identity::BYTES;
/// The value of that header where the items are not known to match the file at one moment.
const NO_LOOK: [u8; LOOK] = [0xff; LOOK];

/// The header of a snapshot, about its file.
struct Said {
    look: Look,
    identity: Identity,
    /// When it was saved, in nanoseconds since 1970, and until when its bytes may be used: a change
    /// that was young when they were read may have gone on afterwards.
    saved_ns: u64,
    until_ns: u64,
}

impl Said {
    /// Returns for how long from now on its bytes may be used.
    fn left(&self) -> Option<Duration> {
        let now = now_ns();
        // A clock that was set back does not show how much time has passed.
        (now >= self.saved_ns && now < self.until_ns).then(|| match self.until_ns {
            u64::MAX => Duration::MAX,
            until => Duration::from_nanos(until - now),
        })
    }
}

fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, nanoseconds)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn look_bytes(said: &Said) -> [u8; LOOK] {
    let look = said.look;
    let mut bytes = [0; LOOK];
    bytes[..8].copy_from_slice(&look.len.to_le_bytes());
    bytes[8..24].copy_from_slice(&look.modified_ns.to_le_bytes());
    bytes[24..40].copy_from_slice(&look.changed_ns.to_le_bytes());
    bytes[40..TIMES].copy_from_slice(&said.identity.to_bytes());
    bytes[TIMES..TIMES + 8].copy_from_slice(&said.saved_ns.to_le_bytes());
    bytes[TIMES + 8..LOOKS].copy_from_slice(&said.until_ns.to_le_bytes());
    let crc = crc32fast::hash(&bytes[..LOOKS]);
    bytes[LOOKS..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn look_of(bytes: &[u8; LOOK]) -> Option<Said> {
    let look = Look {
        len: u64_at(bytes, 0),
        modified_ns: i128::from_le_bytes(array(&bytes[8..24])),
        changed_ns: i128::from_le_bytes(array(&bytes[24..40])),
    };
    // If the header is damaged, the bytes are read from the file.
    let known = *bytes != NO_LOOK && u32_at(bytes, LOOKS) == crc32fast::hash(&bytes[..LOOKS]);
    known.then(|| Said {
        look,
        identity: Identity::from_bytes(&array(&bytes[40..TIMES])),
        saved_ns: u64_at(bytes, TIMES),
        until_ns: u64_at(bytes, TIMES + 8),
    })
}

/// The state of the cache at one moment, to find out whether it changed since.
struct Present {
    look: Look,
    stamp: Stamp,
    /// For how long the items are valid, if others changed nothing unnoticed until then.
    current: Option<Duration>,
    at_ns: u64,
    /// The number of changes by others until then.
    others: u64,
}

impl Present {
    fn of(inner: &Inner, ssd: &Ssd) -> Result<Present> {
        let all = 0..u64::MAX;
        let stamp = inner.writes.stamp(&all);
        let others = inner.changes_by_others();
        let rest = Look::at_rest(ssd)?;
        let look = rest.unwrap_or_default();
        // The events are taken after the look: every change before it has caused its event by then.
        inner.pool.take_events();
        let current = inner.outside.is_current(look).filter(|_| rest.is_some() && !inner.writes.any());
        Ok(Present { look, stamp, current, at_ns: now_ns(), others })
    }

    /// Returns how the file looked, if it did not change from then until now.
    fn still(&self, inner: &Inner, ssd: &Ssd) -> Result<Option<Said>> {
        inner.pool.take_events();
        let quiet = !inner.writes.any() && inner.writes.unchanged(&(0..u64::MAX), self.stamp);
        let same = quiet && inner.changes_by_others() == self.others && Look::at(ssd)? == self.look;
        let Some(left) = self.current.filter(|_| same) else { return Ok(None) };
        let (saved_ns, until_ns) = (self.at_ns, self.at_ns.saturating_add(nanoseconds(left)));
        Ok(Some(Said { look: self.look, identity: Identity::of(ssd)?, saved_ns, until_ns }))
    }
}

/// A file that counts the bytes written to it.
struct Counted {
    file: File,
    written: u64,
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let n = self.file.write(bytes)?;
        self.written += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

fn corrupt(path: &Path, why: &str) -> Error {
    Error::new(ErrorKind::Corrupt, "load", format!("{}: {why}", path.display()))
        .with_advice("start without it: it is only a cache")
}

fn io(path: &Path, what: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |e| Error::io(what, e, path.display().to_string())
}

impl FineGrained {
    /// Saves items that were read more than once to `path`, which is replaced as a whole or not at
    /// all. Returns the number of items.
    ///
    /// If another process may have changed the file unnoticed, or anybody changes it during the
    /// save, only the positions of the items are useful: [`load`](Self::load) reads their bytes
    /// again. This is so while a change that the file's times show is younger than one or two
    /// seconds, and after changes of our own until the cache has dropped what they may hide (see
    /// [`ExternalChanges`](crate::ExternalChanges)). With `Never`, changes by others while the file
    /// is open are not considered. With `Events` it is so after each event until
    /// [`look_outside`](Self::look_outside) was called twice. If the file system's times are whole
    /// seconds, this call waits up to two seconds, so that a change right afterwards is seen.
    /// [`ExternalChanges`](crate::ExternalChanges) says which changes are not found.
    ///
    /// # Errors
    /// `InvalidInput` for a cache that is not over a file. Errors of writing.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<u64> {
        self.0.owner.check("save")?;
        let path = path.as_ref();
        let Some(ssd) = &self.0.ssd else {
            return Err(Error::new(ErrorKind::InvalidInput, "save", "the cache is not over a file"));
        };
        let present = Present::of(&self.0, ssd)?;
        // The snapshot holds bytes of the file, so it gets the same access rights.
        let mode = FileMode::of(ssd)?.and(FileMode::USUAL).and_owner();
        let draft = AtomicFile::create_with(path, mode)?;
        let fail = io(path, "save");
        let file = File::from(draft.ssd().file().cached_fd().try_clone_to_owned().map_err(&fail)?);
        let mut out = std::io::BufWriter::with_capacity(BLOCK, Counted { file, written: 0 });
        out.write_all(MAGIC).map_err(&fail)?;
        out.write_all(&NO_LOOK).map_err(&fail)?;
        let mut count = 0u64;
        for shard in 0..self.0.store.shards() {
            // Blocks are collected under the shard's lock and written without it.
            let mut blocks = vec![Block::default()];
            self.0.store.each(shard, &mut |offset, bytes, worth| {
                let Some(offset) = self.0.map.offset_at(offset).filter(|_| worth > 0) else { return };
                count += 1;
                if let Some(block) = blocks.last_mut() {
                    block.items.push((offset, bytes.len() as u32));
                    block.bytes.extend_from_slice(bytes);
                    if block.bytes.len() >= BLOCK {
                        blocks.push(Block::default());
                    }
                }
            });
            for block in blocks.iter().filter(|b| !b.items.is_empty()) {
                block.write(&mut out).map_err(&fail)?;
            }
        }
        out.write_all(&[0; 8]).map_err(&fail)?;
        out.write_all(&count.to_le_bytes()).map_err(&fail)?;
        out.write_all(&crc32fast::hash(&count.to_le_bytes()).to_le_bytes()).map_err(&fail)?;
        out.flush().map_err(&fail)?;
        let written = out.get_ref().written;
        if let Some(said) = present.still(&self.0, ssd)? {
            out.get_ref().file.write_all_at(&look_bytes(&said), MAGIC.len() as u64).map_err(&fail)?;
        }
        drop(out);
        draft.publish(written)?;
        Ok(count)
    }

    /// Loads a snapshot of [`save`](Self::save). Items for which there is no room are left out.
    ///
    /// The bytes are used as they are if it is the same file, by its file system and inode, and
    /// looks as it did then. Otherwise they are read from the file. If the file system was mounted
    /// again since (or the kernel, before 6.8, does not tell), one item in 64, about 4,096 at most,
    /// is compared with the file first. All items are read again if the times may come from the
    /// building of an image: whole seconds, or a file system other than ext2 to ext4, XFS, Btrfs,
    /// F2FS and tmpfs. They are also read again if a change that was young at the save has doubled
    /// its age since, because it may have gone on (see
    /// [`ExternalChanges`](crate::ExternalChanges)); if it has not doubled yet, the loaded items
    /// are dropped once when it has. With a time to live the bytes are always read again, because
    /// saving must not make items younger.
    ///
    /// Not found: a change made while the file system was mounted elsewhere, if it left the file's
    /// times unchanged and none of its bytes are among the compared items.
    ///
    /// # Errors
    /// `NotFound`. `Corrupt` where the snapshot is damaged, or has contents that no cache writes
    /// (whatever its checksums say); the items before the damage were checked and loaded.
    /// `OutOfMemory` where there is no memory for a block, which is 14 MiB at most.
    pub fn load(&self, path: impl AsRef<Path>) -> Result<LoadSummary> {
        self.0.owner.check("load")?;
        let path = path.as_ref();
        let Some(ssd) = &self.0.ssd else {
            return Err(Error::new(ErrorKind::InvalidInput, "load", "the cache is not over a file"));
        };
        let all = 0..u64::MAX;
        let stamp = self.0.writes.stamp(&all);
        let file = File::open(path).map_err(io(path, "load"))?;
        let mut from = BufReader::with_capacity(1 << 20, file);
        let mut exactly = |len: usize| -> Result<Vec<u8>> {
            let mut bytes = zeroed(len)?;
            from.read_exact(&mut bytes).map_err(|e| match e.kind() {
                std::io::ErrorKind::UnexpectedEof => corrupt(path, "it ends early"),
                _ => io(path, "load")(e),
            })?;
            Ok(bytes)
        };
        let head = exactly(MAGIC.len() + LOOK)?;
        if head[..8] != MAGIC[..] {
            return Err(corrupt(path, "it is not a snapshot of a cache, or it has another version"));
        }
        // A later change of the file is found by the stamp, if this process makes it, or by the
        // look outside, if another does. The snapshot does not store the age of items, so with a
        // time to live they are read again.
        let lives = self.config().ttl.is_some();
        let said = look_of(&array(&head[MAGIC.len()..])).filter(|_| !self.0.writes.any() && !lives);
        let left = match said.and_then(|said| said.left().map(|left| (said, left))) {
            Some((said, left)) if Look::at(ssd)? == said.look => {
                match Identity::of(ssd)?.proof(&said.identity, ssd, &said.look) {
                    Proof::Mount => Some(left),
                    Proof::Hint if samples_agree(path, ssd).unwrap_or(false) => Some(left),
                    Proof::Hint | Proof::None => None,
                }
            }
            _ => None,
        };
        let same = left.is_some();
        // This comes before anything is cached: if the items are dropped meanwhile, the stamp has
        // changed, and nothing more is loaded.
        left.into_iter().for_each(|left| self.0.outside.loads(left));
        let mut warmed = LoadSummary { read_again: !same, ..LoadSummary::default() };
        let mut count = 0;
        loop {
            let sizes = exactly(8)?;
            let (items, len) = (u64::from(u32_at(&sizes, 0)), u64::from(u32_at(&sizes, 4)));
            if items == 0 {
                let end = exactly(12)?;
                if len != 0 || u64_at(&end, 0) != count || u32_at(&end, 8) != crc32fast::hash(&end[..8]) {
                    return Err(corrupt(path, "its end does not fit the rest"));
                }
                return Ok(warmed);
            }
            if len > MAX_BUFFER_BYTES || items > len {
                return Err(corrupt(path, "a block claims more than a block has"));
            }
            let crc = u32_at(&exactly(4)?, 0);
            let heads = exactly(items as usize * HEAD)?;
            let bytes = exactly(len as usize)?;
            let mut hasher = crc32fast::Hasher::new();
            hasher.update(&heads);
            hasher.update(&bytes);
            if hasher.finalize() != crc {
                return Err(corrupt(path, "a block's checksum is wrong"));
            }
            if !are_items(&heads, len) {
                return Err(corrupt(path, "an item is not one that a cache writes"));
            }
            count += items;
            if same {
                self.take_in(&heads, &bytes, &|| self.0.writes.unchanged(&all, stamp), &mut warmed);
            } else {
                self.read_in(&heads, &mut warmed);
            }
        }
    }

    /// Loads items with the snapshot's bytes.
    fn take_in(&self, heads: &[u8], bytes: &[u8], valid: &dyn Fn() -> bool, warmed: &mut LoadSummary) {
        let mut rest = bytes;
        for (offset, len) in items_of(heads) {
            let Some((bytes, left)) = rest.split_at_checked(len) else { return };
            rest = left;
            if self.0.check_range(offset, len).is_ok() && self.0.insert(offset, bytes, offset, valid) {
                warmed.items += 1;
                warmed.bytes += len as u64;
            }
        }
    }

    /// Loads items whose bytes must be read again.
    fn read_in(&self, heads: &[u8], warmed: &mut LoadSummary) {
        for heads in heads.chunks(TOGETHER * HEAD) {
            let there = items_of(heads).filter(|&(offset, len)| self.0.check_range(offset, len).is_ok());
            let mut some: Vec<(u64, usize)> = there.collect();
            some.sort_unstable();
            // Items that cannot be read are skipped; a later read reports why.
            let Ok(mut out) = zeroed(some.iter().map(|(_, len)| len).sum()) else { continue };
            let Ok(gathered) = self.gather_ranges(&some, &mut out) else { continue };
            let failed: usize = gathered.failed.iter().map(|(number, _)| some[*number].1).sum();
            warmed.items += (some.len() - gathered.failed.len()) as u64;
            warmed.bytes += (out.len() - failed) as u64;
        }
    }
}

/// Whether a sample of the snapshot's items equals the file's bytes. A damaged item is not
/// compared; loading reports it.
fn samples_agree(path: &Path, ssd: &Ssd) -> std::io::Result<bool> {
    let snapshot = File::open(path)?;
    let every = (snapshot.metadata()?.len() / USUAL / SAMPLES).max(SAMPLE);
    let file = File::from(ssd.file().cached_fd().try_clone_to_owned()?);
    let (mut at, mut number) = ((MAGIC.len() + LOOK) as u64, 0u64);
    loop {
        let mut sizes = [0; 8];
        snapshot.read_exact_at(&mut sizes, at)?;
        let (items, len) = (u64::from(u32_at(&sizes, 0)), u64::from(u32_at(&sizes, 4)));
        if items == 0 {
            return Ok(true);
        }
        let Ok(mut heads) = zeroed(if len > MAX_BUFFER_BYTES || items > len { 0 } else { items as usize * HEAD })
        else {
            return Ok(false);
        };
        snapshot.read_exact_at(&mut heads, at + 12)?;
        if heads.is_empty() || !are_items(&heads, len) {
            return Ok(false);
        }
        at += 12 + heads.len() as u64;
        for (offset, len) in items_of(&heads) {
            if number.is_multiple_of(every) {
                let (mut then, mut now) = ([0; PAGE as usize], [0; PAGE as usize]);
                let (then, now) = (&mut then[..len], &mut now[..len]);
                snapshot.read_exact_at(then, at)?;
                file.read_exact_at(now, offset)?;
                if then != now {
                    return Ok(false);
                }
            }
            (at, number) = (at + len as u64, number + 1);
        }
    }
}

/// Returns the items of a block: offset and length each.
fn items_of(heads: &[u8]) -> impl Iterator<Item = (u64, usize)> {
    heads.chunks_exact(HEAD).map(|head| (u64_at(head, 0), u32_at(head, 8) as usize))
}

/// Whether each item is one that a cache writes, within a page, and their lengths add up to the
/// bytes of the block. Whether the file still has them is checked later.
fn are_items(heads: &[u8], len: u64) -> bool {
    let is_item = |offset: u64, len: u64| {
        let end = offset.checked_add(len).filter(|&end| len > 0 && end <= MAX_OFFSET);
        end.is_some_and(|end| offset / PAGE == (end - 1) / PAGE)
    };
    items_of(heads).all(|(offset, len)| is_item(offset, len as u64))
        && items_of(heads).map(|(_, len)| len as u64).sum::<u64>() == len
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(bytes);
    array
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(&bytes[at..at + 8]))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(&bytes[at..at + 4]))
}
