//! Copying records that are mostly short.

/// The bytes that are copied for a shorter record: eight registers.
const WIDE: usize = 128;

/// Copies the first `len` bytes of `from` to `to`, from `at` on, if there is room. It may also
/// change bytes behind them. Returns whether there was room.
///
/// A short record is copied as if it were longer, because the branches of a copy of just its length
/// are mispredicted, and cost more.
#[inline]
pub(crate) fn copy_record(to: &mut [u8], at: usize, from: &[u8], len: usize) -> bool {
    if len <= WIDE
        && let Some(from) = from.first_chunk::<WIDE>()
        && let Some(to) = to.get_mut(at..).and_then(<[u8]>::first_chunk_mut::<WIDE>)
    {
        *to = *from;
        return true;
    }
    match (to.get_mut(at..at + len), from.get(..len)) {
        (Some(to), Some(from)) => {
            to.copy_from_slice(from);
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn just_the_record_matters() {
        let from: Vec<u8> = (0..=255).collect();
        for room in [0, 1, 100, 127, 128, 129, 300] {
            for len in [0, 1, 64, 127, 128, 129, 200, 256] {
                for more in [0, 1, 56, 128] {
                    let window = &from[..(len + more).min(256)];
                    let mut to = vec![9; 10 + room];
                    assert_eq!(copy_record(&mut to, 10, window, len), len <= room, "{len} of {window:?} into {room}");
                    assert_eq!(to[..10], [9; 10]);
                    if len <= room {
                        assert_eq!(to[10..10 + len], from[..len]);
                    }
                }
            }
        }
    }
}
