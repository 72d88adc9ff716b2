//! CRC-32 (IEEE 802.3, as in zlib) of short records.
//!
//! The checksum of sort-benchmark data is a sum of CRCs over 100 bytes each. `crc32fast` folds by
//! carry-less multiplication from 128 bytes on, and goes byte by byte through the rest of a
//! division by 64, which for 100 bytes is a third of the work. So short records are done here,
//! sixteen bytes a step with sixteen tables, and long ones by `crc32fast`.

/// The length from which `crc32fast` is faster.
const LONG: usize = 128;

const POLYNOMIAL: u32 = 0xEDB8_8320;

/// `TABLES[k][byte]`: the effect of `byte` when `k` bytes follow it.
static TABLES: [[u32; 256]; 16] = {
    let mut tables = [[0u32; 256]; 16];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut follow = 1;
    while follow < 16 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[follow - 1][byte];
            tables[follow][byte] = (before >> 8) ^ tables[0][(before & 0xFF) as usize];
            byte += 1;
        }
        follow += 1;
    }
    tables
};

/// Returns the CRC-32 of `record`.
#[inline]
pub(super) fn crc32(record: &[u8]) -> u32 {
    if record.len() >= LONG { crc32fast::hash(record) } else { crc32_short(record) }
}

#[inline]
fn crc32_short(record: &[u8]) -> u32 {
    let (chunks, rest) = record.as_chunks::<16>();
    let mut crc = chunks.iter().fold(!0, step);
    let (chunks, rest) = rest.as_chunks::<8>();
    for chunk in chunks {
        crc = step(crc, chunk);
    }
    let (chunks, rest) = rest.as_chunks::<4>();
    for chunk in chunks {
        crc = step(crc, chunk);
    }
    for byte in rest {
        crc = step(crc, &[*byte]);
    }
    !crc
}

/// Takes `N` bytes in at once. `N` is a constant, so that the loops unroll into `N` independent
/// look-ups.
#[inline(always)]
fn step<const N: usize>(crc: u32, chunk: &[u8; N]) -> u32 {
    let carried = crc.to_le_bytes();
    let mut next = if N < 4 { crc >> (8 * N as u32) } else { 0 };
    for (index, byte) in chunk.iter().enumerate() {
        let byte = if index < 4 { byte ^ carried[index] } else { *byte };
        next ^= TABLES[N - 1 - index][usize::from(byte)];
    }
    next
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn equals_crc32fast(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(super::crc32(&bytes), crc32fast::hash(&bytes));
            prop_assert_eq!(super::crc32_short(&bytes), crc32fast::hash(&bytes));
        }
    }

    #[test]
    fn known_answer() {
        // The check value of CRC-32/ISO-HDLC.
        assert_eq!(super::crc32(b"123456789"), 0xCBF4_3926);
    }
}
