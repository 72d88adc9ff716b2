//! The manifest and the trailer at the end of a checkpoint.

use datapipes_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// Bytes covered by one checksum.
pub(crate) const CHUNK: usize = 1 << 20;
/// Regions, manifest and trailer start at multiples of this.
pub(crate) const BLOCK: u64 = 4096;
const MAGIC: [u8; 8] = *b"DPCKPT01";
const VERSION: u32 = 1;

/// A region of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CheckpointRegion {
    /// The region's name.
    pub name: String,
    /// Its length, in bytes.
    pub len: u64,
    /// Its offset in the file, in bytes.
    pub offset: u64,
    /// CRC-32 of each MiB; the last chunk may be shorter.
    pub checksums: Vec<u32>,
}

/// The contents of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Manifest {
    /// The checkpoint's number in its folder.
    pub number: u64,
    /// The time when it was begun, in seconds since 1970.
    pub created_unix_s: u64,
    /// Bytes covered by each checksum.
    pub chunk_bytes: u64,
    /// The regions, in the order in which they were given.
    pub regions: Vec<CheckpointRegion>,
}

impl Manifest {
    /// Returns the bytes of all regions.
    pub fn bytes(&self) -> u64 {
        self.regions.iter().map(|r| r.len).sum()
    }

    /// The offset of the manifest, behind the regions.
    pub(crate) fn offset(&self) -> u64 {
        self.regions.iter().map(|r| (r.offset + r.len).next_multiple_of(BLOCK)).max().unwrap_or(0)
    }

    /// Returns the end of the file: the manifest, zeros, the trailer.
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        self.encode_at(self.offset())
    }

    fn encode_at(&self, offset: u64) -> Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec(self)
            .map_err(|e| Error::new(ErrorKind::System, "save", format!("the manifest as JSON: {e}")).with_source(e))?;
        let (len, crc) = (bytes.len() as u64, crc32fast::hash(&bytes));
        bytes.resize(bytes.len().next_multiple_of(BLOCK as usize), 0);
        let file_len = offset + bytes.len() as u64 + BLOCK;
        let mut trailer = MAGIC.to_vec();
        trailer.extend(VERSION.to_le_bytes());
        trailer.extend(crc.to_le_bytes());
        trailer.extend(offset.to_le_bytes());
        trailer.extend(len.to_le_bytes());
        trailer.extend(file_len.to_le_bytes());
        trailer.resize(BLOCK as usize - 4, 0);
        trailer.extend(crc32fast::hash(&trailer).to_le_bytes());
        bytes.extend(trailer);
        Ok(bytes)
    }

    /// Reads a manifest, and refuses one that makes no sense.
    pub(crate) fn decode(bytes: &[u8], trailer: &Trailer) -> Result<Manifest, String> {
        if crc32fast::hash(bytes) != trailer.manifest_crc {
            return Err("the manifest's checksum is wrong".into());
        }
        let manifest: Manifest = serde_json::from_slice(bytes).map_err(|e| format!("the manifest is invalid: {e}"))?;
        let mut end = 0;
        for region in &manifest.regions {
            let fits = region.offset >= end
                && region.len <= trailer.manifest_at
                && region.offset <= trailer.manifest_at - region.len
                && region.checksums.len() as u64 == region.len.div_ceil(CHUNK as u64);
            if !fits {
                return Err(format!("the manifest is invalid: region `{}`", region.name));
            }
            end = region.offset + region.len;
        }
        if manifest.chunk_bytes != CHUNK as u64 {
            return Err(format!("its checksums cover {} bytes each, which is not supported", manifest.chunk_bytes));
        }
        Ok(manifest)
    }
}

/// The last block of the file. If it is intact, the file has the length that it was written with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trailer {
    pub(crate) manifest_at: u64,
    pub(crate) manifest_len: u64,
    manifest_crc: u32,
}

impl Trailer {
    /// Decodes the last block of a file of `file_len` bytes.
    pub(crate) fn decode(block: &[u8], file_len: u64) -> Result<Trailer, String> {
        let whole = block.first_chunk::<{ BLOCK as usize }>().ok_or("it is too short")?;
        let (body, crc) = whole.split_at(BLOCK as usize - 4);
        let long = |at: usize| body[at..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
        let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |b| u32::from_le_bytes(*b));
        if body[..8] != MAGIC || crc32fast::hash(body) != word(crc) {
            return Err("its end is missing or damaged".into());
        }
        if word(&body[8..]) != VERSION {
            return Err(format!("its version {} is not supported", word(&body[8..])));
        }
        let trailer = Trailer { manifest_at: long(16), manifest_len: long(24), manifest_crc: word(&body[12..]) };
        let sane = long(32) == file_len
            && trailer.manifest_at <= file_len
            && trailer.manifest_len <= file_len - trailer.manifest_at
            && trailer.manifest_at.is_multiple_of(BLOCK);
        if sane { Ok(trailer) } else { Err("its length has changed".into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let region = |name: &str, len: u64, offset: u64, n: usize| CheckpointRegion {
            name: name.into(),
            len,
            offset,
            checksums: (0..n as u32).collect(),
        };
        let regions = vec![region("a", 5000, 0, 1), region("b \"quoted\"", 3 << 20 | 1, 8192, 4)];
        Manifest { number: 9, created_unix_s: 1_800_000_000, chunk_bytes: CHUNK as u64, regions }
    }

    fn decode(end: &[u8], offset: u64) -> Result<Manifest, String> {
        let file_len = offset + end.len() as u64;
        let trailer = Trailer::decode(&end[end.len().saturating_sub(BLOCK as usize)..], file_len)?;
        let at = trailer.manifest_at.checked_sub(offset).ok_or("before its place")? as usize;
        let bytes = end.get(at..at + trailer.manifest_len as usize).ok_or("outside")?;
        Manifest::decode(bytes, &trailer)
    }

    #[test]
    fn a_manifest_is_read_as_it_was_written_and_no_flip_or_cut_passes() {
        let manifest = manifest();
        let (end, offset) = (manifest.encode().unwrap(), manifest.offset());
        assert_eq!(decode(&end, offset), Ok(manifest.clone()));
        let json = serde_json::to_vec(&manifest).unwrap().len();
        let used = (0..json).chain(end.len() - BLOCK as usize..end.len());
        for byte in used {
            for bit in 0..8 {
                let mut bad = end.clone();
                bad[byte] ^= 1 << bit;
                assert!(decode(&bad, offset).is_err(), "byte {byte} bit {bit}");
            }
        }
        for cut in 1..end.len() {
            assert!(decode(&end[..end.len() - cut], offset).is_err(), "cut by {cut}");
        }
    }

    #[test]
    fn a_manifest_that_lies_is_refused() {
        let refused = |change: &dyn Fn(&mut Manifest)| {
            let mut lie = manifest();
            change(&mut lie);
            let offset = manifest().offset();
            // Such a manifest was written by a program that computes checksums correctly.
            let end = lie.encode_at(offset).unwrap();
            decode(&end, offset).unwrap_err()
        };
        assert!(refused(&|m| m.regions[1].offset = 4096).contains("b \"quoted\""));
        assert!(refused(&|m| m.regions[1].offset = u64::MAX).contains("is invalid"));
        assert!(refused(&|m| m.regions[0].len = 1 << 50).contains("region `a`"));
        assert!(refused(&|m| m.regions[1].checksums.truncate(3)).contains("is invalid"));
        assert!(refused(&|m| m.chunk_bytes = 7).contains("7 bytes"));
    }
}
