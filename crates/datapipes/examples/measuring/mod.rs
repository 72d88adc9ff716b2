//! What the measuring examples share: a file on the disk, random numbers, processor time, medians.

use datapipes::{Dram, FileAccess, Machine, Result, Span, Ssd};

/// A file without a name in `dir`, written, synced, and accessed past the page cache.
pub(crate) fn file_in(machine: &Machine, dir: &str, len: u64) -> Result<Ssd> {
    const PIECE: u64 = 8 << 20;
    let ssd = Ssd::unlinked_in(dir)?;
    let filled = Dram::allocate(PIECE as usize)?;
    filled.lease_mut()?.iter_mut().enumerate().for_each(|(i, b)| *b = (i * 31) as u8);
    let write = machine.connect(&filled, &ssd)?;
    for at in (0..len).step_by(PIECE as usize) {
        write.transfer(Span { source: 0, target: at, len: PIECE })?;
    }
    ssd.sync()?;
    ssd.with_access(FileAccess::Direct)
}

/// Random numbers, the same in each run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// The processor time of this process.
pub(crate) fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The median, if there is anything.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
