//! Size classes: slabs of equal items (Pipette, section 3.2.1).

use super::header::MAX_LEN;

/// The bytes of a slab.
pub(crate) const SLAB: usize = 64 << 10;

/// The most bytes that an item of each class holds: four steps from each power of two to the next,
/// so from 32 bytes on at most a fifth of an item is unused.
#[rustfmt::skip]
pub(crate) const CAPACITIES: [usize; 32] = [
    8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256,
    320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 3584, MAX_LEN,
];

/// The number of classes.
pub(crate) const CLASSES: usize = CAPACITIES.len();

/// The smallest class that can hold `len` bytes.
#[inline]
pub(crate) fn class_of(len: usize) -> u8 {
    OF_EIGHTS.get(len.div_ceil(8)).copied().unwrap_or(CLASSES as u8 - 1)
}

/// The class of each length, in units of eight bytes, because all capacities are multiples of
/// eight.
static OF_EIGHTS: [u8; MAX_LEN / 8 + 1] = {
    let mut of = [0; MAX_LEN / 8 + 1];
    let (mut eights, mut class) = (0, 0);
    while eights < of.len() {
        if eights * 8 > CAPACITIES[class] {
            class += 1;
        }
        of[eights] = class as u8;
        eights += 1;
    }
    of
};

/// The layout of a slab of a class.
///
/// ```text
/// [ headers: 8 B each ][ the policy's links, if any ][ padding to a line ][ data ]
/// ```
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    /// The most bytes that an item holds.
    pub(crate) capacity: usize,
    /// The number of items in a slab.
    pub(crate) items: usize,
    /// The offset of the policy's part.
    pub(crate) extra_at: usize,
    /// The offset of the data.
    pub(crate) data_at: usize,
}

impl Geometry {
    /// Returns the geometry of a class, where the policy keeps `extra` bytes for each item.
    pub(crate) fn of(class: u8, extra: usize) -> Geometry {
        let capacity = CAPACITIES[usize::from(class)];
        let data_at = |items: usize| (items * (8 + extra)).next_multiple_of(64);
        let mut items = (SLAB / (capacity + 8 + extra)).min(4096);
        while data_at(items) + items * capacity > SLAB {
            items -= 1;
        }
        Geometry { capacity, items, extra_at: items * 8, data_at: data_at(items) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_goes_to_the_smallest_class_that_holds_it() {
        assert_eq!(CAPACITIES[usize::from(class_of(1))], 8);
        assert_eq!(CAPACITIES[usize::from(class_of(128))], 128);
        assert_eq!(CAPACITIES[usize::from(class_of(129))], 160);
        assert_eq!(usize::from(class_of(MAX_LEN)), CLASSES - 1);
        for len in 32..=MAX_LEN {
            let unused = CAPACITIES[usize::from(class_of(len))] - len;
            assert!(unused < 8 || unused * 5 <= len + unused, "{unused} bytes beside {len} are not used");
        }
        for len in 0..=MAX_LEN {
            assert_eq!(usize::from(class_of(len)), CAPACITIES.partition_point(|&c| c < len), "{len}");
        }
    }

    #[test]
    fn slabs_are_full_and_nothing_overlaps() {
        for class in 0..CLASSES as u8 {
            for extra in [0, 8] {
                let g = Geometry::of(class, extra);
                assert!(g.extra_at + g.items * extra <= g.data_at);
                assert!(g.data_at + g.items * g.capacity <= SLAB);
                assert!(g.items * (g.capacity + 8 + extra) * 100 >= SLAB * 93, "class {class} wastes its slab: {g:?}");
            }
        }
        // This is what an item of 128 bytes costs in a slab, without the index and other tables.
        assert!(SLAB as f64 / Geometry::of(class_of(128), 0).items as f64 <= 136.5);
    }
}
