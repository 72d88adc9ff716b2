//! A file whose bytes follow from their place, so that what was read can be told right or wrong.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use datapipes::{AtomicFile, Error, FileMode, Result};

use crate::progress::{self, State};
use crate::system::signals;

const BLOCK: usize = 1 << 20;

/// The byte at an offset.
pub(super) fn byte(offset: u64) -> u8 {
    word(offset / 8).to_le_bytes()[(offset % 8) as usize]
}

fn word(at: u64) -> u64 {
    (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Whether the first and the last byte are those of their places.
pub(super) fn is_right(offset: u64, bytes: &[u8]) -> bool {
    match (bytes.first(), bytes.last()) {
        (Some(first), Some(last)) => *first == byte(offset) && *last == byte(offset + bytes.len() as u64 - 1),
        _ => true,
    }
}

/// Writes such a file, unless one of this length is there already. It is synced, and not in the
/// page cache afterwards.
pub(super) fn make(path: &Path, bytes: u64) -> Result<()> {
    let told = |e: std::io::Error| Error::io("write", e, path.display().to_string());
    if !std::fs::metadata(path).is_ok_and(|m| m.len() == bytes) {
        let done = std::sync::atomic::AtomicU64::new(0);
        let relaxed = std::sync::atomic::Ordering::Relaxed;
        let write = || -> Result<()> {
            let draft = AtomicFile::replacing(path, FileMode::USUAL)?;
            let mut file = File::from(draft.ssd().file().cached_fd().try_clone_to_owned().map_err(told)?);
            let mut block = vec![0; BLOCK];
            for start in (0..bytes).step_by(BLOCK) {
                for (at, eight) in (start / 8..).zip(block.chunks_exact_mut(8)) {
                    eight.copy_from_slice(&word(at).to_le_bytes());
                }
                let len = (bytes - start).min(BLOCK as u64);
                file.write_all(&block[..len as usize]).map_err(told)?;
                done.store(start + len, relaxed);
                signals::check("fine")?;
            }
            draft.publish(bytes).map(|_| ())
        };
        let state = || State { phase: "writing", done: done.load(relaxed), total: bytes, later: 0 };
        progress::during(progress::wanted(), state, write)?;
    }
    forget(path)
}

/// Takes a file out of the page cache.
pub(super) fn forget(path: &Path) -> Result<()> {
    let told = |e: std::io::Error| Error::io("advise", e, path.display().to_string());
    let file = File::open(path).map_err(told)?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).map_err(|e| told(e.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_what_it_should() {
        let path = std::env::temp_dir().join(format!("dpipe-fine-content-{}", std::process::id()));
        make(&path, 1_048_583).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(bytes.len(), 1_048_583);
        assert!((0u64..).zip(&bytes).all(|(at, b)| byte(at) == *b));
        assert!(is_right(77, &bytes[77..200]) && !is_right(78, &bytes[77..200]) && is_right(5, &[]));
    }
}
