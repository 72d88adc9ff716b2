//! Cutting a job into requests that the kernel accepts.
//!
//! ```text
//! read, direct       |  head  |   aligned, straight into memory   | tail |
//!                 ...+--------+--------+--------+--------+--------+...
//!                    head and tail: whole blocks into a bounce buffer, the part is copied
//! write, direct      |  head  |   aligned, straight from memory   | tail |
//!                    head and tail: through the page cache
//! ```
//!
//! If direct I/O does not accept the address, every request of the job goes through a bounce
//! buffer.
//!
//! The edges of writes go through the page cache for two reasons. A block that belongs to the job
//! only in part must be read, changed and written, while another transfer (or process) may be
//! changing its other part. The kernel's page lock makes that safe; our own read and write would
//! not be. And it extends a file to the exact byte. A page is written either directly or through
//! the cache, never both, whatever else is in flight: direct requests cover only whole pages, so
//! the write-back of a page cannot replace new bytes by old ones. The kernel keeps both views of
//! the file coherent between requests.
#![deny(clippy::arithmetic_side_effects)]

/// The direction in which bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the file into memory.
    Read,
    /// From memory into the file.
    Write,
}

/// The descriptor that a request uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheMode {
    /// Past the page cache.
    Direct,
    /// Through the page cache.
    Cached,
}

/// Unaligned direct jobs up to this length are read through one bounce buffer, not as head, middle
/// and tail.
const ONE_BOUNCE: u64 = 64 << 10;
/// The largest offset that the kernel accepts.
const LAST: u64 = i64::MAX as u64;
/// The length of a bounce buffer in bytes.
pub(crate) const BOUNCE: u64 = 256 << 10;

/// The rules that the requests of a mover follow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) direction: Direction,
    pub(crate) lane: CacheMode,
    /// The alignment of offset and length, for direct I/O. The three alignments are powers of two.
    pub(crate) offset_align: u64,
    /// The alignment of addresses, for direct I/O.
    pub(crate) memory_align: u64,
    /// Direct writes cover whole units of this: pages and blocks of the file system.
    pub(crate) edge_align: u64,
    /// The most bytes of one request; at least `edge_align`.
    pub(crate) request_bytes: u64,
}

impl Rules {
    /// Whether a request from or to this address may name memory that is registered with the
    /// kernel. Registered memory is a list of pages to the kernel. Some versions (6.1, say) want
    /// each page's part of a direct request to be of whole blocks, although the device takes any
    /// address that is a multiple of a few bytes: others are `EINVAL`.
    pub(crate) fn may_be_registered(&self, lane: CacheMode, address: u64) -> bool {
        lane != CacheMode::Direct || address.is_multiple_of(self.offset_align.max(1))
    }
}

/// The rest of a job that is to be moved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemainingPart {
    /// Offset in the file.
    pub(crate) file_at: u64,
    /// The length in bytes; not 0.
    pub(crate) len: u64,
    /// Address in memory.
    pub(crate) address: u64,
    /// The most bytes from the address that a request should cover (to the end of its registered
    /// slice); not 0.
    pub(crate) room: u64,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestPlan {
    pub(crate) lane: CacheMode,
    /// The offset of the request in the file.
    pub(crate) file_at: u64,
    /// The length of the request in bytes.
    pub(crate) io_len: u64,
    /// Bytes at its start that are not part of the job.
    pub(crate) skip: u64,
    /// Bytes after these that are part of the job.
    pub(crate) useful: u64,
    /// Whether it goes through a bounce buffer.
    pub(crate) bounce: bool,
}

impl Rules {
    /// Returns the first request of the rest. It always covers at least one byte of the job.
    pub(crate) fn plan(&self, need: &RemainingPart) -> RequestPlan {
        match (self.lane, self.direction) {
            (CacheMode::Cached, _) => {
                straight(CacheMode::Cached, need, need.len.min(self.request_bytes).min(need.room))
            }
            (CacheMode::Direct, Direction::Read) => self.read(need),
            (CacheMode::Direct, Direction::Write) => self.write(need),
        }
    }

    fn read(&self, need: &RemainingPart) -> RequestPlan {
        let align = self.offset_align;
        let before = misalignment(need.file_at, align);
        if before == 0 && misalignment(need.address, self.memory_align) == 0 && need.len >= align {
            return straight(CacheMode::Direct, need, self.whole(need, align));
        }
        let to_block = align.saturating_sub(before);
        let useful = if need.len <= ONE_BOUNCE || !self.agree(need) {
            need.len.min(down(BOUNCE.min(self.request_bytes), align).max(align).saturating_sub(before))
        } else if before != 0 {
            to_block.min(need.len)
        } else {
            // This is aligned in the file; a head of a whole block aligns the address only if
            // blocks shift addresses.
            need.len.min(align)
        };
        let io_len = up(before.saturating_add(useful), align);
        if need.file_at.saturating_sub(before).saturating_add(io_len) > LAST {
            // The rest of the block is beyond the kernel's largest offset.
            return straight(CacheMode::Cached, need, need.len.min(self.request_bytes));
        }
        RequestPlan {
            lane: CacheMode::Direct,
            file_at: down(need.file_at, align),
            io_len,
            skip: before,
            useful,
            bounce: true,
        }
    }

    /// Whether direct I/O accepts the address at which the file is at the start of a block. Then
    /// all but the ends of a job goes straight.
    pub(crate) fn agree(&self, need: &RemainingPart) -> bool {
        let to_block = self.offset_align.saturating_sub(misalignment(need.file_at, self.offset_align));
        misalignment(need.address.wrapping_add(to_block), self.memory_align) == 0
    }

    fn write(&self, need: &RemainingPart) -> RequestPlan {
        let unit = self.edge_align;
        let before = misalignment(need.file_at, unit);
        if before != 0 || need.len < unit {
            return straight(CacheMode::Cached, need, need.len.min(unit.saturating_sub(before)));
        }
        if misalignment(need.address, self.memory_align) == 0 {
            return straight(CacheMode::Direct, need, self.whole(need, unit));
        }
        let useful = down(need.len.min(BOUNCE.min(self.request_bytes).max(unit)), unit);
        RequestPlan { lane: CacheMode::Direct, file_at: need.file_at, io_len: useful, skip: 0, useful, bounce: true }
    }

    /// Returns the most whole units that fit in a request and in the slice. One unit may extend
    /// beyond the slice.
    fn whole(&self, need: &RemainingPart, unit: u64) -> u64 {
        down(need.len.min(self.request_bytes).min(need.room), unit).max(unit)
    }
}

/// Returns by how many bytes an offset lies behind a multiple of `unit`, a power of two.
fn misalignment(at: u64, unit: u64) -> u64 {
    at & unit.wrapping_sub(1)
}

/// Rounds down to a multiple of `unit`, a power of two.
fn down(at: u64, unit: u64) -> u64 {
    at & !unit.wrapping_sub(1)
}

/// Rounds up to a multiple of `unit`. The values are far from 2^64.
fn up(at: u64, unit: u64) -> u64 {
    down(at.saturating_add(unit.wrapping_sub(1)), unit)
}

fn straight(lane: CacheMode, need: &RemainingPart, len: u64) -> RequestPlan {
    RequestPlan { lane, file_at: need.file_at, io_len: len, skip: 0, useful: len, bounce: false }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests {
    use super::*;

    /// Linux 6.1 refuses others on an NVMe disk whose memory alignment is 4 bytes.
    #[test]
    fn registered_memory_begins_at_a_block_where_the_page_cache_is_bypassed() {
        let rules = Rules {
            direction: Direction::Read,
            lane: CacheMode::Direct,
            offset_align: 512,
            memory_align: 4,
            edge_align: 4096,
            request_bytes: 1 << 20,
        };
        assert!(
            rules.may_be_registered(CacheMode::Direct, 0x1000) && rules.may_be_registered(CacheMode::Direct, 0x1200)
        );
        assert!(
            !rules.may_be_registered(CacheMode::Direct, 0x1004) && !rules.may_be_registered(CacheMode::Direct, 0x11ff)
        );
        assert!(rules.may_be_registered(CacheMode::Cached, 0x1001));
    }

    /// Follows a job to its end and checks every request against the rules.
    fn walk(rules: &Rules, mut need: RemainingPart) -> Vec<RequestPlan> {
        let (slice, end) = (1 << 20, need.file_at + need.len);
        let mut cuts = Vec::new();
        while need.len > 0 {
            need.room = slice - need.address % slice;
            let cut = rules.plan(&need);
            assert!(cut.useful > 0 && cut.useful <= need.len, "{cut:?} of {need:?}");
            assert_eq!(cut.file_at + cut.skip, need.file_at, "{cut:?} of {need:?}");
            if cut.lane == CacheMode::Direct {
                let unit = if rules.direction == Direction::Read { rules.offset_align } else { rules.edge_align };
                assert_eq!((cut.file_at % unit, cut.io_len % unit), (0, 0), "{cut:?} of {need:?}");
                assert!(cut.bounce || need.address.is_multiple_of(rules.memory_align), "{cut:?} of {need:?}");
                assert!(!cut.bounce || cut.io_len <= BOUNCE.max(unit), "{cut:?} of {need:?}");
            }
            if rules.direction == Direction::Write {
                assert_eq!(cut.io_len, cut.useful, "a write of bytes outside the job: {cut:?}");
            }
            need.file_at += cut.useful;
            need.address += cut.useful;
            need.len -= cut.useful;
            cuts.push(cut);
        }
        assert_eq!(need.file_at, end);
        cuts
    }

    #[test]
    fn every_cut_meets_the_rules() {
        for direction in [Direction::Read, Direction::Write] {
            for lane in [CacheMode::Direct, CacheMode::Cached] {
                for (offset_align, memory_align) in [(512, 512), (512, 4), (4096, 4096), (4096, 512), (1, 1)] {
                    let rules = Rules {
                        direction,
                        lane,
                        offset_align,
                        memory_align,
                        edge_align: 4096,
                        request_bytes: 128 << 10,
                    };
                    for file_at in [0, 1, 511, 512, 4095, 4096, 1_000_003] {
                        for address in [0, 1, 4, 512, 513, 4096, (1 << 20) - 512, (1 << 20) - 3] {
                            for len in [1, 2, 511, 512, 513, 4096, 8191, 70_000, 3_000_001] {
                                walk(&rules, RemainingPart { file_at, len, address, room: 0 });
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn only_the_edges_of_an_unaligned_read_bounce() {
        let rules = Rules {
            direction: Direction::Read,
            lane: CacheMode::Direct,
            offset_align: 512,
            memory_align: 512,
            edge_align: 4096,
            request_bytes: 1 << 20,
        };
        let cuts = walk(&rules, RemainingPart { file_at: 100, len: 200_000, address: 612, room: 0 });
        let bounced: Vec<_> = cuts.iter().map(|c| c.bounce).collect();
        assert_eq!(bounced, [true, false, true]);
    }
}
