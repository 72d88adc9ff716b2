//! The requests and what they must bring: the same for every reader, by seed.

use datapipes_data::access::{ItemLayout, Items, Popularity};

/// What is read: equal items of a file, by popularity.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub layout: ItemLayout,
    pub popularity: Popularity,
    pub seed: u64,
}

impl Load {
    /// `uniform` or `zipf:EXPONENT`, over items of `len` bytes.
    pub fn parse(text: &str, items: u64, len: u32) -> Result<Load, String> {
        let popularity = match text.split_once(':') {
            None if text == "uniform" => Popularity::Uniform,
            Some(("zipf", e)) => Popularity::Zipf { exponent: e.parse().map_err(|_| format!("no number: {e}"))? },
            _ => return Err(format!("no load `{text}`")),
        };
        let layout = ItemLayout { items, item_bytes: len, stride_bytes: u64::from(len) };
        Ok(Load { layout, popularity, seed: 7 })
    }

    /// All requests from the first one on.
    pub fn requests(&self) -> Items {
        Items::new(self.layout, self.popularity, self.seed)
    }
}

/// The part of one thread: every n-th request, so that popular items are the same in all threads.
pub fn share(all: &Items, thread: usize, threads: usize) -> impl Iterator<Item = u64> + use<> {
    all.clone().skip(thread).step_by(threads).map(|r| r.offset)
}

/// The eight bytes at an offset that is a multiple of eight.
pub fn word(offset: u64) -> u64 {
    (offset / 8 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Fills with what the file has at an offset.
pub fn fill(offset: u64, out: &mut [u8]) {
    for (at, bytes) in out.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&word(offset + at as u64 * 8).to_le_bytes());
    }
}

/// Whether first and last words are those of the offset.
#[inline]
pub fn is_right(offset: u64, bytes: &[u8]) -> bool {
    let (Some(first), Some(last)) = (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) else { return false };
    u64::from_le_bytes(*first) == word(offset) && u64::from_le_bytes(*last) == word(offset + bytes.len() as u64 - 8)
}

/// Writes the file, and syncs it.
pub fn make(path: &str, bytes: u64) -> std::io::Result<()> {
    use std::io::Write;
    let mut file = std::fs::File::create(path)?;
    let mut block = vec![0; 1 << 20];
    for at in (0..bytes).step_by(1 << 20) {
        fill(at, &mut block);
        file.write_all(&block[..(bytes - at).min(1 << 20) as usize])?;
    }
    file.sync_all()
}
