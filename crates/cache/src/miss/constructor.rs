//! The access constructor (Pipette, section 3.1.2): turns missing pieces into requests to the
//! device, merged where they touch.

use super::dispatcher::Path;
use crate::device::engine::{EngineFacts, Extent};
use crate::store::{PAGE, SECTOR};

/// Missing bytes of one page, and the path by which they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) offset: u64,
    pub(crate) len: usize,
    /// The position in the caller's memory.
    pub(crate) out_at: usize,
    /// The read that the piece belongs to.
    pub(crate) read: u32,
    pub(crate) path: Path,
}

impl Piece {
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.len as u64
    }

    /// The range that is cached after the read. It is never less than the piece, even if the file
    /// was truncated since.
    pub(crate) fn kept(&self, file_len: u64) -> (u64, u64) {
        let (from, to) = match self.path {
            Path::Bytes => (self.offset, self.end()),
            Path::Sectors => (self.offset / SECTOR * SECTOR, self.end().next_multiple_of(SECTOR)),
            Path::Blocks => (self.offset / PAGE * PAGE, self.end().next_multiple_of(PAGE)),
        };
        (from, to.min(file_len.max(self.end())))
    }
}

/// An extent to read, and the range of pieces that it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) extent: Extent,
    pub(crate) first: usize,
    pub(crate) count: usize,
}

/// Sorts the pieces by offset and makes requests for them: aligned for the engine, merged where
/// they touch, not longer than the engine's limit, and clipped to the file.
pub(crate) fn construct(pieces: &mut [Piece], file_len: u64, facts: EngineFacts) -> Vec<Request> {
    pieces.sort_unstable_by_key(|p| (p.offset, p.len));
    let grain = u64::from(facts.granularity.max(1));
    let mut requests: Vec<Request> = Vec::with_capacity(pieces.len());
    for (at, piece) in pieces.iter().enumerate() {
        let (from, to) = piece.kept(file_len);
        let from = from / grain * grain;
        let to = to.next_multiple_of(grain).min(file_len.max(to));
        if let Some(last) = requests.last_mut()
            && from <= last.extent.end()
            && from >= last.extent.offset
            && to.max(last.extent.end()) - last.extent.offset <= u64::from(facts.longest)
        {
            last.extent.len = (to.max(last.extent.end()) - last.extent.offset) as u32;
            last.count += 1;
            continue;
        }
        requests.push(Request { extent: Extent { offset: from, len: (to - from) as u32 }, first: at, count: 1 });
    }
    requests
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: EngineFacts = EngineFacts { granularity: 512, depth: 8, longest: 4096 };

    fn piece(offset: u64, len: usize, path: Path) -> Piece {
        Piece { offset, len, out_at: 0, read: 0, path }
    }

    #[test]
    fn equal_adjacent_and_overlapping_pieces_become_one_request() {
        let mut pieces = [
            piece(600, 100, Path::Bytes),
            piece(100, 50, Path::Bytes),
            piece(100, 50, Path::Bytes),
            piece(500, 24, Path::Bytes),
            piece(9000, 10, Path::Bytes),
        ];
        let requests = construct(&mut pieces, 1 << 20, FACTS);
        let extents: Vec<_> = requests.iter().map(|r| (r.extent.offset, r.extent.len, r.count)).collect();
        assert_eq!(extents, [(0, 1024, 4), (8704, 512, 1)]);
    }

    #[test]
    fn blocks_are_whole_pages_and_the_file_has_an_end() {
        let mut pieces = [piece(5000, 10, Path::Blocks), piece(8192, 100, Path::Blocks)];
        let requests = construct(&mut pieces, 8300, FACTS);
        let extents: Vec<_> = requests.iter().map(|r| (r.extent.offset, r.extent.len)).collect();
        assert_eq!(extents, [(4096, 4096), (8192, 108)]);
    }

    #[test]
    fn every_piece_lies_in_its_request() {
        let mut random = 7u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % below
        };
        for granularity in [1, 512, 4096] {
            for _ in 0..300 {
                let file_len = 1 + next(100_000);
                let paths = [Path::Bytes, Path::Sectors, Path::Blocks];
                let mut pieces: Vec<_> = (0..next(40))
                    .map(|_| {
                        let offset = next(file_len);
                        let room = (PAGE - offset % PAGE).min(file_len - offset);
                        piece(offset, 1 + next(room) as usize, paths[next(3) as usize])
                    })
                    .collect();
                let facts = EngineFacts { granularity, ..FACTS };
                let requests = construct(&mut pieces, file_len, facts);
                assert_eq!(requests.iter().map(|r| r.count).sum::<usize>(), pieces.len());
                for r in &requests {
                    assert!(r.extent.offset % u64::from(granularity) == 0 && r.extent.len <= 4096 && r.extent.len > 0);
                    for p in &pieces[r.first..r.first + r.count] {
                        let (from, to) = p.kept(file_len);
                        assert!(r.extent.offset <= from && to <= r.extent.end() && from <= p.offset && p.end() <= to);
                    }
                }
            }
        }
    }
}
