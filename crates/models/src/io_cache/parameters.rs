//! The shapes of the cache and of persistent memory, and the source of each number.

use std::str::FromStr;

use datapipes_core::{Error, ErrorKind, Result};
use serde::Serialize;

/// The line that is replaced when a set is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Replacement {
    /// The least recently used line of the ways that are allowed.
    Lru,
    /// Any line of the ways that are allowed, each with the same probability.
    Random,
}

impl Replacement {
    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Replacement::Lru => "lru",
            Replacement::Random => "random",
        }
    }
}

impl FromStr for Replacement {
    type Err = Error;

    fn from_str(text: &str) -> Result<Replacement> {
        [Replacement::Lru, Replacement::Random].into_iter().find(|r| r.name() == text).ok_or_else(|| {
            Error::new(ErrorKind::InvalidInput, "model", format!("there is no replacement `{text}`"))
                .with_advice("take lru or random")
        })
    }
}

/// The shape of a last-level cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LlcShape {
    /// Sets; line `n` is in set `n % sets`.
    pub sets: u64,
    /// Lines of a set.
    pub ways: u32,
    /// Bytes of a line.
    pub line_bytes: u64,
    /// The line that leaves a full set.
    pub replacement: Replacement,
    /// Whether a line that the core reads from memory is allocated here, too. In a cache that is
    /// not inclusive it goes to the core's own caches alone.
    pub is_inclusive: bool,
}

/// The largest number of ways, because a mask has 32 bits.
pub const MAX_WAYS: u32 = 32;
/// The largest cache in lines: 4 GiB of 64 bytes (the model keeps 17 bytes for each).
pub const MAX_LINES: u64 = 1 << 26;

impl LlcShape {
    /// Returns the cache of the paper's Xeon Gold 6212U (Cascade Lake): 35.75 MiB.
    ///
    /// It has 26 slices of 1.375 MiB, each of 2048 sets of 11 ways (Intel's figures for the
    /// processor: 35.75 MB, 1.375 MB a slice, 11 ways). Lines have 64 bytes (paper, section 4.3).
    /// Replacement is random: assumed. Intel does not document it, and the paper says that lines
    /// leave "semi-randomly". LRU can be chosen, and what it changes is shown. It is not inclusive
    /// (Intel's change with Skylake-SP): lines come in when a core's cache evicts them, and what is
    /// read once is assumed not to.
    pub fn paper() -> LlcShape {
        LlcShape { sets: 26 * 2048, ways: 11, line_bytes: 64, replacement: Replacement::Random, is_inclusive: false }
    }

    /// Returns the same cache with another size and number of ways. Sets are whole: the size is
    /// rounded down to that.
    ///
    /// # Errors
    /// See [`check`](Self::check).
    pub fn resized(self, size_bytes: u64, ways: u32) -> Result<LlcShape> {
        let of_set = u64::from(ways).saturating_mul(self.line_bytes).max(1);
        let shape = LlcShape { sets: size_bytes / of_set, ways, ..self };
        shape.check()?;
        Ok(shape)
    }

    /// Returns the bytes of the cache.
    pub fn size_bytes(&self) -> u64 {
        self.bytes_of_ways(self.ways)
    }

    /// Returns the number of lines.
    pub fn lines(&self) -> u64 {
        self.sets * u64::from(self.ways)
    }

    /// Returns the bytes that fit into some ways of all sets.
    pub fn bytes_of_ways(&self, ways: u32) -> u64 {
        self.sets * u64::from(ways) * self.line_bytes
    }

    /// Checks that the model can run it.
    ///
    /// # Errors
    /// `InvalidInput`: no sets or ways, more than [`MAX_WAYS`] or [`MAX_LINES`], or lines that are
    /// not a power of two from 8 to 4096 bytes.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String, advice: &'static str| {
            Err(Error::new(ErrorKind::InvalidInput, "model", what).with_advice(advice))
        };
        if self.ways == 0 || self.ways > MAX_WAYS {
            return wrong(format!("a cache of {} ways", self.ways), "take 1 to 32 ways");
        }
        if !self.line_bytes.is_power_of_two() || !(8..=4096).contains(&self.line_bytes) {
            return wrong(format!("lines of {} bytes", self.line_bytes), "take a power of two from 8 to 4096");
        }
        if self.sets == 0 {
            return wrong("a cache smaller than one set".into(), "take at least ways times bytes of a line");
        }
        match self.sets.checked_mul(u64::from(self.ways)) {
            Some(lines) if lines <= MAX_LINES => Ok(()),
            _ => wrong(format!("a cache of more than {MAX_LINES} lines"), "take a smaller cache"),
        }
    }
}

/// The ways in which a device's writes may allocate: bit `n` is way `n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WayMask(u32);

impl WayMask {
    /// Writes of devices go to memory: DDIO or DCA is off.
    pub const NONE: WayMask = WayMask(0);

    /// Returns the upper `count` of `ways` ways. Two of 11 are 0x600, the value that
    /// `IIO_LLC_WAYS` has after a reset (Farshin et al., USENIX ATC 2020; the paper's "2").
    pub fn upper(count: u32, ways: u32) -> WayMask {
        let all = WayMask::all(ways).0;
        let below = ways.saturating_sub(count);
        WayMask(if below >= u32::BITS { 0 } else { all >> below << below })
    }

    /// Returns a mask of all ways, which is as none: a device allocates wherever a core does.
    pub fn all(ways: u32) -> WayMask {
        WayMask(if ways >= u32::BITS { u32::MAX } else { (1 << ways) - 1 })
    }

    /// Returns the number of ways.
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Returns the bits, as the register has them.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Whether nothing may be allocated.
    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Whether a way is in the mask.
    pub fn has(self, way: usize) -> bool {
        way < u32::BITS as usize && self.0 >> way & 1 == 1
    }
}

/// The shape of persistent memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PmemShape {
    /// Bytes of a block, which the media writes as a whole (paper, section 4.3: 256).
    pub block_bytes: u64,
    /// Blocks that the combining buffer of one module holds. Measured as 16 KiB by Yang et al.,
    /// USENIX FAST 2020, which is 64 blocks.
    pub buffer_entries: u32,
    /// Modules, each with a buffer (paper, section 4: 6).
    pub modules: u32,
    /// Bytes in a row on one module (Yang et al.: 4 KiB).
    pub interleave_bytes: u64,
}

impl PmemShape {
    /// Returns the shape of the paper's machine: six modules of the first generation.
    pub fn paper() -> PmemShape {
        PmemShape { block_bytes: 256, buffer_entries: 64, modules: 6, interleave_bytes: 4096 }
    }

    /// Checks that the model can run it with lines of this size.
    ///
    /// # Errors
    /// `InvalidInput`: blocks that are no power of two from a line to 64 lines and the interleave;
    /// no modules, or more than 64; no entries, or more than 4096.
    pub fn check(&self, line_bytes: u64) -> Result<()> {
        let wrong =
            |what: String, advice: String| Err(Error::new(ErrorKind::InvalidInput, "model", what).with_advice(advice));
        let largest = line_bytes.saturating_mul(64).min(self.interleave_bytes);
        if !self.block_bytes.is_power_of_two() || !(line_bytes..=largest).contains(&self.block_bytes) {
            let what = format!("blocks of {} bytes beside lines of {line_bytes}", self.block_bytes);
            return wrong(what, format!("take a power of two from {line_bytes} to {largest}"));
        }
        if !(1..=64).contains(&self.modules) {
            return wrong(format!("{} modules", self.modules), "take 1 to 64 modules".into());
        }
        if !(1..=4096).contains(&self.buffer_entries) {
            return wrong(format!("a buffer of {} blocks", self.buffer_entries), "take 1 to 4096 blocks".into());
        }
        Ok(())
    }
}
